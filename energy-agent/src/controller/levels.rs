//! PowerLevels as they should be, and what has to be written for that. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use energy_budget::law::Decision;
use energy_cluster::objects::ObjectKey;
use energy_model::resources::object::{KubeObject, Metadata};
use energy_model::resources::power_level::{
    self, LevelSubject, PowerLevelSpec, TierLevel, name_for_budget, name_for_policy,
};
use energy_model::resources::{GROUP, LEVELS_LEASE, VERSION, api_version};
use energy_model::resources::{cluster_power_budget, power_capping_policy};
use serde_json::{Value, json};

use super::budgets::{Round, is_foreign};
use super::sources::ObjectsByKey;
use super::totals::DecidedPolicy;

/// The static share is written anew when it has moved by so much; it moves a little at every tick.
const FALLBACK_STEP: u32 = 20;
/// What a node waits for a sign of life of whoever writes the level of a policy.
const STALE_AFTER_SECONDS: u32 = 60;

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
    pub key: ObjectKey,
    /// Some limit falls by it.
    pub lowers: bool,
    pub write: Write,
}

/// The levels that there should be.
#[derive(Debug, Default)]
pub struct LevelPlan {
    wanted: Vec<WantedLevel>,
    /// Somebody else's, and those of objects that were never right: they stay as they are.
    kept: BTreeSet<ObjectKey>,
    /// Kinds whose objects are known: other levels for them are deleted.
    known: Vec<&'static str>,
}

#[derive(Debug)]
struct WantedLevel {
    key: ObjectKey,
    subject: LevelSubject,
    tiers: Vec<TierLevel>,
    fallback: u32,
    stale_after_seconds: u32,
}

impl LevelPlan {
    /// Levels of budgets lie in the namespace of the agents.
    pub fn add_budgets(&mut self, round: &Round, budgets: &ObjectsByKey, namespace: &str) {
        self.known.push(cluster_power_budget::KIND);
        let key = |object: &KubeObject| (namespace.to_owned(), name_for_budget(&object.metadata.name));
        let others = round.budgets.iter().filter(|decided| !decided.is_ours).map(|decided| &decided.object);
        let unread = round.unread.iter().map(|unread| &unread.object);
        let foreign = budgets.values().filter(|object| is_foreign(object));
        self.kept.extend(others.chain(unread).chain(foreign).map(|object| key(object)));
        for decided in round.budgets.iter().filter(|decided| decided.is_ours && decided.spec.is_enforced()) {
            self.wanted.push(WantedLevel {
                key: key(&decided.object),
                subject: subject(cluster_power_budget::KIND, &decided.object.metadata),
                tiers: tiers(&decided.spec.settings.tiers, &decided.decision),
                fallback: decided.decision.fallback.get().into(),
                stale_after_seconds: decided.spec.spec.on_controller_loss.after_seconds,
            });
        }
    }

    /// Levels of policies lie beside them.
    pub fn add_policies(&mut self, policies: &[DecidedPolicy]) {
        self.known.push(power_capping_policy::KIND);
        for decided in policies {
            let metadata = &decided.object.metadata;
            let key = (metadata.namespace.clone(), name_for_policy(&metadata.name));
            match &decided.total {
                Some(total) if decided.is_ours && total.is_enforced => self.wanted.push(WantedLevel {
                    key,
                    subject: subject(power_capping_policy::KIND, metadata),
                    tiers: tiers(&[String::new()], &total.decision),
                    fallback: total.decision.fallback.get().into(),
                    stale_after_seconds: STALE_AFTER_SECONDS,
                }),
                _ if !decided.is_ours || decided.was_never_right => drop(self.kept.insert(key)),
                _ => {}
            }
        }
    }

    /// What to write so that levels are so, under this epoch. `levels` are those there are; `now` is the time as the API server
    /// writes it.
    pub fn writes(&self, levels: &BTreeMap<ObjectKey, Arc<KubeObject>>, epoch: i64, now: &str) -> Vec<LevelWrite> {
        let mut writes: Vec<LevelWrite> =
            self.wanted.iter().filter_map(|wanted| wanted.write(levels.get(&wanted.key), epoch, now)).collect();
        let wanted: BTreeSet<&ObjectKey> = self.wanted.iter().map(|wanted| &wanted.key).collect();
        for (key, object) in levels {
            let is_known = object.spec["for"]["kind"].as_str().is_some_and(|kind| self.known.contains(&kind));
            if is_known && !wanted.contains(key) && !self.kept.contains(key) {
                let write = Write::Delete { path: path(key) };
                writes.push(LevelWrite { key: key.clone(), lowers: false, write });
            }
        }
        writes
    }
}

fn collection(namespace: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{}", power_level::PLURAL)
}

fn path((namespace, name): &ObjectKey) -> String {
    format!("{}/{name}", collection(namespace))
}

fn subject(kind: &str, metadata: &Metadata) -> LevelSubject {
    let Metadata { name, uid, generation, .. } = metadata;
    LevelSubject { kind: kind.to_owned(), name: name.clone(), uid: uid.clone(), generation: *generation }
}

fn tiers(names: &[String], decision: &Decision) -> Vec<TierLevel> {
    let tiers = names.iter().zip(&decision.levels);
    tiers.map(|(tier, level)| TierLevel { tier: tier.clone(), permille: level.get().into() }).collect()
}

impl WantedLevel {
    /// `None`: it is as it should be.
    fn write(&self, there: Option<&Arc<KubeObject>>, epoch: i64, now: &str) -> Option<LevelWrite> {
        let before = there.and_then(|object| object.spec::<PowerLevelSpec>().ok());
        let spec = self.spec(epoch, before.as_ref(), now);
        let lowers = before.as_ref().is_none_or(|before| lowers(before, &spec));
        let write = match (there, before) {
            (None, _) => Write::Create { collection: collection(&self.key.0), object: self.object(&spec, None) },
            // Of an object that is gone; or somebody wrote what is none. It is made anew at the next tick.
            (Some(_), before) if before.as_ref().is_none_or(|before| before.subject.uid != spec.subject.uid) => {
                Write::Delete { path: path(&self.key) }
            }
            (Some(_), Some(before)) if before == spec => return None,
            (Some(there), _) => {
                let object = self.object(&spec, Some(&there.metadata.resource_version));
                Write::Replace { path: path(&self.key), object }
            }
        };
        Some(LevelWrite { key: self.key.clone(), lowers, write })
    }

    fn spec(&self, epoch: i64, before: Option<&PowerLevelSpec>, now: &str) -> PowerLevelSpec {
        let share = before.map(|before| before.fallback_permille);
        let kept = share.filter(|before| before.abs_diff(self.fallback) < FALLBACK_STEP);
        let same = before.filter(|before| before.levels == self.tiers);
        PowerLevelSpec {
            subject: self.subject.clone(),
            epoch,
            change_time: same.map_or_else(|| Some(now.to_owned()), |before| before.change_time.clone()),
            lease_name: LEVELS_LEASE.to_owned(),
            stale_after_seconds: self.stale_after_seconds,
            lowest_permille: self.tiers.iter().map(|level| level.permille).min(),
            levels: self.tiers.clone(),
            fallback_permille: kept.unwrap_or(self.fallback),
        }
    }

    fn object(&self, spec: &PowerLevelSpec, version: Option<&str>) -> Value {
        let LevelSubject { kind, name, uid, .. } = &self.subject;
        let mut object = json!({
            "apiVersion": api_version(),
            "kind": power_level::KIND,
            "metadata": {
                "namespace": self.key.0,
                "name": self.key.1,
                "ownerReferences": [{"apiVersion": api_version(), "kind": kind, "name": name, "uid": uid}],
            },
            "spec": spec,
        });
        if let Some(version) = version {
            object["metadata"]["resourceVersion"] = json!(version);
        }
        object
    }
}

fn lowers(before: &PowerLevelSpec, spec: &PowerLevelSpec) -> bool {
    spec.levels.iter().any(|level| level.permille < before.permille(&level.tier))
}
