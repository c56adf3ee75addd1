//! What the bridge has to write after a round. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::resources::climatik::clocks::{NodeClocks, asked_clocks, clocks_write, has_clocks};
use energy_model::resources::climatik::mirror::{MirrorWrite, is_action_required, is_mirror, mirror, mirror_name};
use energy_model::resources::object::{KubeObject, Metadata};
use energy_model::resources::{GROUP, VERSION, climatik, node_frequencies, power_capping_policy};
use serde_json::{Value, json};

use crate::controller::sources::{ObjectsByKey, SeenCluster, time};
use crate::controller::totals::DecidedPolicy;

/// A status that says the same is written again after this time, so that its time shows who is alive.
const AGE: Duration = Duration::from_secs(300);

/// A write.
pub struct Task {
    pub path: String,
    pub request: Request,
    /// Kind and object of Climatik that ask for it.
    pub about: Option<(&'static str, Arc<KubeObject>)>,
}

#[derive(PartialEq)]
pub enum Request {
    Create { collection: String, object: Value },
    Replace(Value),
    Apply(Value),
    Status(Value),
}

/// An object of Climatik that cannot be followed.
pub struct Unfollowed {
    pub kind: &'static str,
    pub object: Arc<KubeObject>,
    pub message: String,
}

impl Unfollowed {
    pub fn path(&self) -> String {
        path_of(self.kind, &self.object.metadata)
    }
}

#[derive(Default)]
pub struct BridgePlan {
    pub tasks: Vec<Task>,
    pub problems: Vec<Unfollowed>,
    /// Paths of all objects of Climatik.
    pub known: BTreeSet<String>,
}

/// `stamped`: when status was written, by path.
pub fn plan(
    seen: &SeenCluster,
    decided: &[DecidedPolicy],
    stamped: &BTreeMap<String, Instant>,
    now: Instant,
) -> BridgePlan {
    let mut plan = BridgePlan::default();
    let Some(theirs) = &seen.climatik else { return plan };
    // Without knowing what there is, nothing is made or taken away.
    if let (Some(policies), Some(ours)) = (&theirs.policies, &seen.policies) {
        plan.add_mirrors(policies, ours);
        plan.add_statuses(policies, ours, decided, stamped, now);
    }
    if let Some(frequencies) = &theirs.frequencies {
        plan.add_clocks(frequencies, &seen.frequencies);
    }
    plan
}

impl BridgePlan {
    fn add_mirrors(&mut self, policies: &ObjectsByKey, ours: &ObjectsByKey) {
        let kind = power_capping_policy::KIND;
        for theirs in policies.values() {
            self.known.insert(path_of(kind, &theirs.metadata));
            let namespace = &theirs.metadata.namespace;
            let collection = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{}", power_capping_policy::PLURAL);
            let name = mirror_name(theirs);
            let path = format!("{collection}/{name}");
            let there = ours.get(&(namespace.clone(), name));
            let request = match mirror(theirs, there.map(Arc::as_ref)) {
                Ok(None) => continue,
                Ok(Some(MirrorWrite::Create(object))) => Request::Create { collection, object },
                Ok(Some(MirrorWrite::Replace(object))) => Request::Replace(object),
                Err(message) => {
                    self.problems.push(Unfollowed { kind, object: Arc::clone(theirs), message });
                    continue;
                }
            };
            self.tasks.push(Task { path, request, about: Some((kind, Arc::clone(theirs))) });
        }
    }

    fn add_statuses(
        &mut self,
        policies: &ObjectsByKey,
        ours: &ObjectsByKey,
        decided: &[DecidedPolicy],
        stamped: &BTreeMap<String, Instant>,
        now: Instant,
    ) {
        let kind = power_capping_policy::KIND;
        let name = |decided: &DecidedPolicy| {
            let Metadata { namespace, name, .. } = &decided.object.metadata;
            (namespace.clone(), name.clone())
        };
        // Power that is not known is no reason to say that nothing is needed.
        let measured = decided.iter().filter(|decided| decided.is_measured);
        let watts: BTreeMap<_, f64> = measured.map(|decided| (name(decided), decided.watts)).collect();
        for theirs in policies.values() {
            let key = (theirs.metadata.namespace.clone(), mirror_name(theirs));
            let Some(watts) = watts.get(&key) else { continue };
            if !ours.get(&key).is_some_and(|there| is_mirror(there, theirs)) {
                continue;
            }
            let is = is_action_required(theirs, *watts);
            let path = path_of(kind, &theirs.metadata);
            let is_old = stamped.get(&path).is_none_or(|at| now.saturating_duration_since(*at) >= AGE);
            if theirs.status["cappingActionRequired"] != is || is_old {
                let patch = json!({
                    // Who leads no longer knows an older version.
                    "metadata": {"resourceVersion": theirs.metadata.resource_version},
                    "status": {"cappingActionRequired": is, "lastUpdated": time()},
                });
                self.tasks.push(Task {
                    path,
                    request: Request::Status(patch),
                    about: Some((kind, Arc::clone(theirs))),
                });
            }
        }
    }

    fn add_clocks(&mut self, frequencies: &ObjectsByKey, ours: &ObjectsByKey) {
        let kind = node_frequencies::KIND;
        self.known.extend(frequencies.values().map(|theirs| path_of(kind, &theirs.metadata)));
        let key = |object: &KubeObject| (object.metadata.namespace.clone(), object.metadata.name.clone());
        let mut asked = asked_clocks(frequencies.values().map(Arc::as_ref));
        for (refused, message) in asked.refused {
            if let Some(object) = frequencies.get(&key(refused)).map(Arc::clone) {
                self.problems.push(Unfollowed { kind, object, message });
            }
        }
        // Nodes that nobody asks for any more.
        for ours in ours.values().filter(|ours| has_clocks(ours)) {
            asked.nodes.entry(ours.metadata.name.clone()).or_insert_with(NodeClocks::default);
        }
        for (node, clocks) in &asked.nodes {
            let there = ours.get(&(String::new(), node.clone())).map(Arc::as_ref);
            let Some(object) = clocks_write(node, clocks, there) else { continue };
            let about = clocks.by.and_then(|by| frequencies.get(&key(by)));
            self.tasks.push(Task {
                path: format!("/apis/{GROUP}/{VERSION}/{}/{node}", node_frequencies::PLURAL),
                request: Request::Apply(object),
                about: about.map(|theirs| (kind, Arc::clone(theirs))),
            });
        }
    }
}

/// Of an object of Climatik.
pub fn path_of(kind: &str, metadata: &Metadata) -> String {
    let plural = if kind == node_frequencies::KIND { node_frequencies::PLURAL } else { power_capping_policy::PLURAL };
    let Metadata { namespace, name, .. } = metadata;
    format!("/apis/{}/{}/namespaces/{namespace}/{plural}/{name}", climatik::GROUP, climatik::VERSION)
}
