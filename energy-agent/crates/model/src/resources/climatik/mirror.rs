//! The mirror of a PowerCappingPolicy of Climatik.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{GROUP, VERSION, WRITTEN, is_as_written};
use crate::capping::policy::schema::fields::MAX_TOTAL_WATTS;
use crate::resources::object::{KubeObject, ResourceOwner};
use crate::resources::{self, api_version, power_capping_policy};
use crate::units::nearest_u64;

/// Annotation of a policy of Climatik: the mode of its mirror.
const MODE: &str = "power.energy-agent.io/mode";
/// The same for the algorithm.
const ALGORITHM: &str = "power.energy-agent.io/algorithm";
/// Before the name of a mirror, so that it takes no name that somebody would choose.
const PREFIX: &str = "climatik.";
/// A level's name is seven longer than its policy's, and names have 253 characters.
const LONGEST_NAME: usize = 246;
/// Clocks in MHz that a policy takes as its lowest.
const CLOCKS: (i64, i64) = (100, 10_000);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicySpec {
    power_cap_limit: i64,
    capping_threshold: i64,
    selector: AskedLabels,
    #[serde(default)]
    custom_algorithms: Vec<CustomAlgorithm>,
}

/// As in both groups.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AskedLabels {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    match_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<AskedRequirement>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AskedRequirement {
    key: String,
    operator: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CustomAlgorithm {
    parameters: BTreeMap<String, String>,
}

/// A write that makes a mirror as it should be.
#[derive(Clone, Debug, PartialEq)]
pub enum MirrorWrite {
    Create(Value),
    Replace(Value),
}

#[must_use]
pub fn mirror_name(theirs: &KubeObject) -> String {
    format!("{PREFIX}{}", theirs.metadata.name)
}

/// What has to be written for a policy of Climatik; `None`: the mirror is as it should be. `there` is what has its name.
///
/// # Errors
/// What is wrong with the policy, and what to write.
pub fn mirror(theirs: &KubeObject, there: Option<&KubeObject>) -> Result<Option<MirrorWrite>, String> {
    let name = mirror_name(theirs);
    if name.len() > LONGEST_NAME {
        let most = LONGEST_NAME - PREFIX.len();
        return Err(format!("the name has more than {most} characters; give it a shorter one"));
    }
    if there.is_some_and(|there| !is_mirror(there, theirs)) {
        let kind = power_capping_policy::PLURAL;
        return Err(format!(
            "{kind}.{} {name} is somebody else's and stays as it is; rename one of the two",
            resources::GROUP
        ));
    }
    let spec = policy_spec(theirs)?;
    let written = spec.to_string();
    if there.is_some_and(|there| is_as_written(there, &written, &spec) && has_owner(there, &theirs.metadata.uid)) {
        return Ok(None);
    }
    let mut object = json!({
        "apiVersion": api_version(),
        "kind": power_capping_policy::KIND,
        "metadata": {
            "namespace": theirs.metadata.namespace,
            "name": name,
            "annotations": {WRITTEN: written},
            "ownerReferences": [ResourceOwner { controller: Some(true), ..owner(theirs) }],
        },
        "spec": spec,
    });
    Ok(Some(match there {
        None => MirrorWrite::Create(object),
        Some(there) => {
            object["metadata"]["resourceVersion"] = json!(there.metadata.resource_version);
            MirrorWrite::Replace(object)
        }
    }))
}

fn owner(theirs: &KubeObject) -> ResourceOwner {
    ResourceOwner {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: power_capping_policy::KIND.to_owned(),
        name: theirs.metadata.name.clone(),
        uid: theirs.metadata.uid.clone(),
        controller: None,
    }
}

/// Also of a policy that was deleted and made again, as long as the mirror of before is still there.
#[must_use]
pub fn is_mirror(there: &KubeObject, theirs: &KubeObject) -> bool {
    let owner = owner(theirs);
    let is = |one: &ResourceOwner| {
        (&one.api_version, &one.kind, &one.name) == (&owner.api_version, &owner.kind, &owner.name)
    };
    there.metadata.owner_references.iter().any(is)
}

fn has_owner(there: &KubeObject, uid: &str) -> bool {
    there.metadata.owner_references.iter().any(|owner| owner.uid == uid)
}

/// The spec of the mirror.
fn policy_spec(theirs: &KubeObject) -> Result<Value, String> {
    let PolicySpec { power_cap_limit, capping_threshold, selector, custom_algorithms } = theirs.spec()?;
    if selector.match_labels.is_empty() && selector.match_expressions.is_empty() {
        return Err("spec.selector: it is empty and would select every pod; write matchLabels".to_owned());
    }
    let most = i64::try_from(nearest_u64(MAX_TOTAL_WATTS)).unwrap_or(i64::MAX);
    if !(1..=most).contains(&power_cap_limit) {
        return Err(format!("spec.powerCapLimit: {power_cap_limit} W; write 1 to {most}"));
    }
    // Limits are raised again at ten percent less, which has to be something.
    if !(11..=150).contains(&capping_threshold) {
        return Err(format!("spec.cappingThreshold: {capping_threshold} %; write 11 to 150"));
    }
    let mode = annotated(theirs, MODE, &["Recommend", "Enforce", "Off"])?;
    let algorithm = annotated(theirs, ALGORITHM, &["ratio", "external"])?;
    let mut spec = json!({
        "mode": mode,
        "selector": selector,
        "budget": {"watts": power_cap_limit, "scope": "Total", "components": ["gpu"]},
        "control": {
            "algorithm": algorithm,
            "engagePercent": capping_threshold,
            "targetPercent": capping_threshold - 5,
            "releasePercent": capping_threshold - 10,
        },
    });
    if let Some(megahertz) = lowest_clock(&custom_algorithms)? {
        spec["actuators"] = json!({"gpu": {"minClockMHz": megahertz}});
    }
    Ok(spec)
}

/// What an annotation says; the first of `words` if there is no annotation.
fn annotated(theirs: &KubeObject, annotation: &str, words: &[&'static str]) -> Result<&'static str, String> {
    let usual = words.first().copied().unwrap_or_default();
    let Some(word) = theirs.metadata.annotations.get(annotation) else { return Ok(usual) };
    let found = words.iter().copied().find(|known| known == word);
    found.ok_or_else(|| format!("annotation {annotation}: not a word that it may have; write {}", words.join(" or ")))
}

/// MHz; the highest that an algorithm asks for.
fn lowest_clock(algorithms: &[CustomAlgorithm]) -> Result<Option<i64>, String> {
    let mut highest = None;
    for algorithm in algorithms {
        let Some(text) = algorithm.parameters.get("min-frequency") else { continue };
        let megahertz = text.trim().parse::<i64>().ok().filter(|megahertz| (0..=CLOCKS.1).contains(megahertz));
        let megahertz = megahertz.ok_or_else(|| {
            format!("spec.customAlgorithms: min-frequency is not a number of MHz; write 0 to {}", CLOCKS.1)
        })?;
        highest = highest.max(Some(megahertz));
    }
    // No GPU has a clock below the lowest one that our kind takes.
    Ok(highest.filter(|megahertz| *megahertz >= CLOCKS.0))
}

/// Whether these watts are above the threshold of a policy of Climatik, as its status says it.
#[must_use]
pub fn is_action_required(theirs: &KubeObject, watts: f64) -> bool {
    let percent = |field: &str| theirs.spec[field].as_f64();
    let (limit, threshold) = (percent("powerCapLimit"), percent("cappingThreshold"));
    limit.zip(threshold).is_some_and(|(limit, threshold)| watts > limit * threshold / 100.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    fn object(value: Value) -> KubeObject {
        serde_json::from_value(value).unwrap()
    }

    /// 1200 W, above 90 % of which is capped.
    fn theirs() -> Value {
        json!({
            "metadata": {"name": "chat", "namespace": "ml", "uid": "u1"},
            "spec": {
                "powerCapLimit": 1200,
                "selector": {"matchLabels": {"app": "chat"}},
                "cappingThreshold": 90,
                "customAlgorithms": [{"name": "stepwise", "parameters": {"min-frequency": "450", "step": "15"}}],
            },
        })
    }

    fn written(write: Option<MirrorWrite>) -> Value {
        match write {
            Some(MirrorWrite::Create(object) | MirrorWrite::Replace(object)) => object,
            None => Value::Null,
        }
    }

    /// The mirror as the API server would store it, with a default and a version.
    fn stored(mut mirror: Value) -> KubeObject {
        mirror["metadata"]["resourceVersion"] = json!("7");
        mirror["spec"]["priority"] = json!(0);
        object(mirror)
    }

    #[test]
    fn a_policy_becomes_one_budget_for_all_its_pods_that_only_recommends() {
        let mirror = written(mirror(&object(theirs()), None).unwrap());
        assert_eq!(
            mirror["spec"],
            json!({
                "mode": "Recommend",
                "selector": {"matchLabels": {"app": "chat"}},
                "budget": {"watts": 1200, "scope": "Total", "components": ["gpu"]},
                "control": {"algorithm": "ratio", "engagePercent": 90, "targetPercent": 85, "releasePercent": 80},
                "actuators": {"gpu": {"minClockMHz": 450}},
            })
        );
        assert_eq!(
            (&mirror["metadata"]["namespace"], &mirror["metadata"]["name"]),
            (&json!("ml"), &json!("climatik.chat"))
        );
        assert_eq!(
            mirror["metadata"]["ownerReferences"],
            json!([{
                "apiVersion": "climatik.io/v1alpha1", "kind": "PowerCappingPolicy", "name": "chat", "uid": "u1",
                "controller": true,
            }])
        );
    }

    #[test]
    fn annotations_say_the_mode_and_the_algorithm() {
        let mut theirs = theirs();
        theirs["metadata"]["annotations"] =
            json!({"power.energy-agent.io/mode": "Enforce", "power.energy-agent.io/algorithm": "external"});
        let spec = &written(mirror(&object(theirs.clone()), None).unwrap())["spec"];
        assert_eq!((&spec["mode"], &spec["control"]["algorithm"]), (&json!("Enforce"), &json!("external")));
        theirs["metadata"]["annotations"] = json!({"power.energy-agent.io/mode": "enforce"});
        let refusal = mirror(&object(theirs), None).unwrap_err();
        assert!(refusal.ends_with("write Recommend or Enforce or Off"), "{refusal}");
    }

    #[test]
    fn a_mirror_is_written_when_it_is_not_as_it_should_be() {
        let one = object(theirs());
        let there = stored(written(mirror(&one, None).unwrap()));
        assert_eq!(mirror(&one, Some(&there)).unwrap(), None);
        // Changed by somebody.
        let mut edited = there.clone();
        edited.spec["mode"] = json!("Enforce");
        let replaced = written(mirror(&one, Some(&edited)).unwrap());
        assert_eq!(
            (&replaced["spec"]["mode"], &replaced["metadata"]["resourceVersion"]),
            (&json!("Recommend"), &json!("7"))
        );
        // A field is gone.
        let mut less = theirs();
        less["spec"]["customAlgorithms"] = json!([]);
        let replaced = written(mirror(&object(less), Some(&there)).unwrap());
        assert_eq!(replaced["spec"]["actuators"], Value::Null);
        // Deleted and made again.
        let mut again = theirs();
        again["metadata"]["uid"] = json!("u2");
        let replaced = written(mirror(&object(again), Some(&there)).unwrap());
        assert_eq!(replaced["metadata"]["ownerReferences"][0]["uid"], "u2");
    }

    #[test]
    fn the_name_of_somebody_else_s_policy_is_not_taken() {
        let own = object(json!({"metadata": {"name": "climatik.chat", "namespace": "ml"}, "spec": {}}));
        let refusal = mirror(&object(theirs()), Some(&own)).unwrap_err();
        assert!(refusal.contains("climatik.chat is somebody else's and stays as it is"), "{refusal}");
        let mut long = theirs();
        long["metadata"]["name"] = json!("x".repeat(238));
        let refusal = mirror(&object(long), None).unwrap_err();
        assert_eq!(refusal, "the name has more than 237 characters; give it a shorter one");
    }

    #[test]
    fn what_cannot_be_followed_is_refused_with_what_to_write() {
        for (path, value, begin) in [
            ("/spec/selector", json!({}), "spec.selector: it is empty"),
            ("/spec/powerCapLimit", json!(0), "spec.powerCapLimit: 0 W; write 1 to 10000000"),
            ("/spec/cappingThreshold", json!(10), "spec.cappingThreshold: 10 %; write 11 to 150"),
            ("/spec/cappingThreshold", json!(151), "spec.cappingThreshold: 151 %"),
            (
                "/spec/customAlgorithms/0/parameters/min-frequency",
                json!("low"),
                "spec.customAlgorithms: min-frequency is not a number of MHz",
            ),
        ] {
            let mut theirs = theirs();
            *theirs.pointer_mut(path).unwrap() = value;
            let refusal = mirror(&object(theirs), None).unwrap_err();
            assert!(refusal.starts_with(begin), "{refusal}");
        }
        // Lower than any GPU's lowest clock.
        let mut low = theirs();
        *low.pointer_mut("/spec/customAlgorithms/0/parameters/min-frequency").unwrap() = json!("99");
        assert_eq!(written(mirror(&object(low), None).unwrap())["spec"]["actuators"], Value::Null);
    }

    #[test]
    fn an_action_is_required_above_the_threshold() {
        // 90 % of 1200 W are 1080 W.
        let theirs = object(theirs());
        assert!(!is_action_required(&theirs, 1080.0));
        assert!(is_action_required(&theirs, 1080.1));
    }
}
