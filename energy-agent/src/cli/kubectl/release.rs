//! `kubectl energy release` and `resume`: mode Off for budgets that limit nodes, and back to the mode that they had. It asks
//! only the API server, so that it works without a controller.

use anyhow::{Result, bail};
use energy_cluster::api::{Api, ApiError};
use energy_model::capping::policy::Mode;
use energy_model::resources::cluster_power_budget::PLURAL;
use energy_model::resources::object::KubeObject;
use energy_model::resources::{GROUP, VERSION};
use futures_util::{StreamExt as _, stream};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{Said, all_budgets};
use crate::config::ChosenBudgets;

/// The mode that a released budget had.
const RELEASED_FROM: &str = "power.energy-agent.io/released-from";
/// In whose name the API server notes the change.
const MANAGER: &str = "kubectl-energy";
/// Requests at the same time: racks are hundreds.
const AT_ONCE: usize = 32;
/// The controller writes the status of the same object meanwhile.
const TRIES: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Release,
    Resume,
}

/// Releases or resumes budgets, each by itself.
///
/// # Errors
/// When all are to be and they can't be listed.
pub(super) async fn change(api: &Api, chosen: &ChosenBudgets, direction: Direction) -> Result<Said> {
    let names = if chosen.all {
        let objects = all_budgets(api).await?;
        let names: Vec<String> = objects
            .into_iter()
            .filter(|object| concerns(object, direction))
            .map(|object| object.metadata.name)
            .collect();
        if names.is_empty() {
            let text = match direction {
                Direction::Release => "no budget is in mode Enforce: none limits a node\n",
                Direction::Resume => "no budget was released\n",
            };
            return Ok(Said { text: text.to_owned(), wrong: Vec::new() });
        }
        names
    } else {
        chosen.names.clone()
    };
    if let Some(name) = names.iter().find(|name| name.is_empty() || !name.chars().all(is_of_names)) {
        bail!("{name:?} is no name of a ClusterPowerBudget; kubectl energy budgets lists them");
    }
    let outcomes = stream::iter(&names).map(|name| one(api, name, direction)).buffered(AT_ONCE);
    let (mut text, mut wrong) = (String::new(), Vec::new());
    for outcome in outcomes.collect::<Vec<_>>().await {
        match outcome {
            Ok(line) => text += &line,
            Err(problem) => wrong.push(problem),
        }
    }
    Ok(Said { text, wrong })
}

/// Whatever is none would be a part of a path.
fn is_of_names(letter: char) -> bool {
    letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-.".contains(letter)
}

/// Whether there is something to do about it.
fn concerns(object: &KubeObject, direction: Direction) -> bool {
    match direction {
        // One that can't be read is not known to be open.
        Direction::Release => mode(object).is_none_or(|mode| mode == Mode::Enforce),
        Direction::Resume => mode_before(object).is_some(),
    }
}

/// A line of what was done, or of what is wrong.
async fn one(api: &Api, name: &str, direction: Direction) -> Result<String, String> {
    let path = format!("/apis/{GROUP}/{VERSION}/{PLURAL}/{name}");
    let said = |error: &ApiError| match error {
        ApiError::Absent => {
            format!("budget {name}: there is none of this name; kubectl energy budgets lists them")
        }
        error => format!("budget {name}: {}", error.message()),
    };
    for _ in 0..TRIES {
        let object = api.get(&path).await.map_err(|error| said(&error))?;
        let (patch, done) = match plan(&object, direction)? {
            ModeChange::Nothing(line) => return Ok(line),
            ModeChange::Patch(patch, done) => (patch, done),
        };
        match api.patch(&path, MANAGER, &patch).await {
            Ok(_) => return Ok(done),
            Err(ApiError::Conflict) => {}
            Err(error) => return Err(said(&error)),
        }
    }
    Err(format!("budget {name}: others write it all the time; try again, or set spec.mode by kubectl edit cpb {name}"))
}

#[derive(Debug, PartialEq)]
enum ModeChange {
    Nothing(String),
    /// A merge patch, and what is true once it is taken.
    Patch(Value, String),
}

fn plan(object: &KubeObject, direction: Direction) -> Result<ModeChange, String> {
    let name = &object.metadata.name;
    let patch = |mode: Mode, before: Value| {
        json!({
            "metadata": {
                "resourceVersion": object.metadata.resource_version, "annotations": {RELEASED_FROM: before},
            },
            "spec": {"mode": mode},
        })
    };
    let now = mode(object);
    match (direction, now, mode_before(object)) {
        (Direction::Release, Some(Mode::Off), _) => Ok(ModeChange::Nothing(format!("{name}: is Off already\n"))),
        (Direction::Release, Some(Mode::Recommend), _) => {
            Ok(ModeChange::Nothing(format!("{name}: is in mode Recommend and limits no node\n")))
        }
        (Direction::Release, Some(Mode::Enforce), _) => {
            Ok(ModeChange::Patch(patch(Mode::Off, json!(Mode::Enforce)), format!("{name}: Off, was Enforce\n")))
        }
        // Of a newer version: it may limit.
        (Direction::Release, None, _) => {
            Ok(ModeChange::Patch(patch(Mode::Off, json!(object.spec["mode"])), format!("{name}: Off\n")))
        }
        (Direction::Resume, Some(Mode::Off), Some(before)) => {
            Ok(ModeChange::Patch(patch(before, Value::Null), format!("{name}: {before:?}\n")))
        }
        // Somebody has set another mode since.
        (Direction::Resume, Some(now), Some(_)) => Ok(ModeChange::Patch(
            patch(now, Value::Null),
            format!("{name}: stays in mode {now:?}, which was set since\n"),
        )),
        (Direction::Resume, ..) => Err(format!(
            "budget {name}: was not released by kubectl energy; set the mode you want: kubectl patch cpb {name} \
             --type=merge --patch='{{\"spec\": {{\"mode\": \"Enforce\"}}}}'"
        )),
    }
}

/// `None`: a word that this version does not know.
fn mode(object: &KubeObject) -> Option<Mode> {
    object.spec.get("mode").map_or(Some(Mode::default()), |word| Mode::deserialize(word).ok())
}

/// What a released budget was before.
pub(super) fn mode_before(object: &KubeObject) -> Option<Mode> {
    let text = object.metadata.annotations.get(RELEASED_FROM)?;
    Mode::deserialize(json!(text)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    fn budget(mode: &str, before: Option<&str>) -> KubeObject {
        let annotations = before.map_or(json!({}), |before| json!({RELEASED_FROM: before}));
        serde_json::from_value(json!({
            "metadata": {"name": "hall", "resourceVersion": "7", "annotations": annotations}, "spec": {"mode": mode},
        }))
        .unwrap()
    }

    fn patched(plan: &ModeChange) -> (&Value, &Value) {
        let ModeChange::Patch(patch, _) = plan else { panic!("{plan:?}") };
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        (&patch["spec"]["mode"], &patch["metadata"]["annotations"][RELEASED_FROM])
    }

    #[test]
    fn only_what_limits_is_released_and_only_what_was_released_is_resumed() {
        let release = |mode: &str, before| plan(&budget(mode, before), Direction::Release).unwrap();
        let resume = |mode: &str, before| plan(&budget(mode, before), Direction::Resume);
        assert_eq!(patched(&release("Enforce", None)), (&json!("Off"), &json!("Enforce")));
        assert_eq!(patched(&release("Later", None)), (&json!("Off"), &json!("Later")));
        for mode in ["Off", "Recommend"] {
            assert!(matches!(release(mode, None), ModeChange::Nothing(_)));
        }
        assert_eq!(patched(&resume("Off", Some("Enforce")).unwrap()), (&json!("Enforce"), &Value::Null));
        assert_eq!(patched(&resume("Recommend", Some("Enforce")).unwrap()), (&json!("Recommend"), &Value::Null));
        assert!(resume("Off", None).unwrap_err().contains("was not released by kubectl energy"));
        assert!(concerns(&budget("Later", None), Direction::Release));
        assert!(!concerns(&budget("Recommend", None), Direction::Release));
    }
}
