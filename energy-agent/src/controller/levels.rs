//! PowerLevels as they should be, and what has to be written for that. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use energy_cluster::objects::ObjectKey;
use energy_model::resources::cluster_power_budget;
use energy_model::resources::object::KubeObject;
use energy_model::resources::power_level::{self, LevelSubject, PowerLevelSpec, TierLevel, name_for_budget};
use energy_model::resources::{GROUP, LEVELS_LEASE, VERSION, api_version};
use serde_json::{Value, json};

use super::budgets::{Decided, Round};

/// The static share is written anew when it has moved by so much; it moves a little at every tick.
const FALLBACK_STEP: u32 = 20;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    Create { collection: String, object: Value },
    Replace { path: String, object: Value },
    Delete { path: String },
}

/// A write, and the level that it is about.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelWrite {
    pub name: String,
    /// Some limit falls by it.
    pub lowers: bool,
    pub write: Write,
}

/// What to write so that levels are as the round says, under this epoch. `levels` are those there are; `now` is the time as
/// the API server writes it.
pub fn writes(
    round: &Round,
    budgets: &BTreeMap<ObjectKey, Arc<KubeObject>>,
    levels: &BTreeMap<ObjectKey, Arc<KubeObject>>,
    namespace: &str,
    epoch: i64,
    now: &str,
) -> Vec<LevelWrite> {
    let collection = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{}", power_level::PLURAL);
    let mut writes: Vec<LevelWrite> = Vec::new();
    let wanted = round.budgets.iter().filter(|decided| decided.is_ours && decided.spec.is_enforced());
    for decided in wanted {
        let name = name_for_budget(&decided.object.metadata.name);
        let there = levels.get(&(namespace.to_owned(), name.clone()));
        let path = format!("{collection}/{name}");
        let before = there.and_then(|object| object.spec::<PowerLevelSpec>().ok());
        let spec = spec(decided, epoch, before.as_ref(), now);
        let lowers = before.as_ref().is_none_or(|before| lowers(before, &spec));
        let write = match (there, before) {
            (None, _) => {
                Write::Create { collection: collection.clone(), object: object(decided, namespace, &name, &spec, None) }
            }
            // Of an object that is gone; or somebody wrote what is none. It is made anew at the next tick.
            (Some(_), before) if before.as_ref().is_none_or(|before| before.subject.uid != spec.subject.uid) => {
                Write::Delete { path }
            }
            (Some(_), Some(before)) if before == spec => continue,
            (Some(there), _) => {
                let object = object(decided, namespace, &name, &spec, Some(&there.metadata.resource_version));
                Write::Replace { path, object }
            }
        };
        writes.push(LevelWrite { name, lowers, write });
    }
    // Those of budgets that are gone, Off or only recommended.
    let is_wanted = |name: &str| {
        let wants = |decided: &Decided| name_for_budget(&decided.object.metadata.name) == name;
        round.budgets.iter().any(|decided| wants(decided) && (decided.spec.is_enforced() || !decided.is_ours))
            // One that can't be read keeps what it has.
            || round.unread.iter().any(|(object, _)| name_for_budget(&object.metadata.name) == name)
    };
    for ((there, name), object) in levels {
        let of_budget = object.spec["for"]["kind"] == cluster_power_budget::KIND;
        let subject = object.spec["for"]["name"].as_str().unwrap_or_default();
        let others = budgets.get(&(String::new(), subject.to_owned())).is_some_and(|budget| is_foreign(budget));
        if there == namespace && of_budget && !others && !is_wanted(name) {
            let write = Write::Delete { path: format!("{collection}/{name}") };
            writes.push(LevelWrite { name: name.clone(), lowers: false, write });
        }
    }
    writes
}

fn is_foreign(budget: &KubeObject) -> bool {
    let name = budget.spec["control"]["controllerName"].as_str();
    name.is_some_and(|name| name != energy_model::resources::CONTROLLER)
}

fn spec(decided: &Decided, epoch: i64, before: Option<&PowerLevelSpec>, now: &str) -> PowerLevelSpec {
    let metadata = &decided.object.metadata;
    let tiers = decided.spec.settings.tiers.iter().zip(&decided.decision.levels);
    let levels: Vec<TierLevel> =
        tiers.map(|(tier, level)| TierLevel { tier: tier.clone(), permille: level.get().into() }).collect();
    let fallback = u32::from(decided.decision.fallback.get());
    let kept = before.map(|before| before.fallback_permille).filter(|before| before.abs_diff(fallback) < FALLBACK_STEP);
    let changed = before.is_none_or(|before| before.levels != levels);
    PowerLevelSpec {
        subject: LevelSubject {
            kind: cluster_power_budget::KIND.to_owned(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            generation: metadata.generation,
        },
        epoch,
        change_time: before
            .filter(|_| !changed)
            .map_or_else(|| Some(now.to_owned()), |before| before.change_time.clone()),
        lease_name: LEVELS_LEASE.to_owned(),
        stale_after_seconds: decided.spec.spec.on_controller_loss.after_seconds,
        lowest_permille: levels.iter().map(|level| level.permille).min(),
        levels,
        fallback_permille: kept.unwrap_or(fallback),
    }
}

fn lowers(before: &PowerLevelSpec, spec: &PowerLevelSpec) -> bool {
    spec.levels.iter().any(|level| level.permille < before.permille(&level.tier))
}

fn object(decided: &Decided, namespace: &str, name: &str, spec: &PowerLevelSpec, version: Option<&str>) -> Value {
    let owner = &decided.object.metadata;
    let mut object = json!({
        "apiVersion": api_version(),
        "kind": power_level::KIND,
        "metadata": {
            "namespace": namespace,
            "name": name,
            "ownerReferences": [{
                "apiVersion": api_version(), "kind": cluster_power_budget::KIND, "name": owner.name, "uid": owner.uid,
            }],
        },
        "spec": spec,
    });
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = json!(version);
    }
    object
}
