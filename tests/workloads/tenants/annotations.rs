//! Annotations and owners of pods, which everybody who may create pods can write.

use serde_json::{Value, json};

use crate::common::agent::wait_for;
use crate::common::busy_node::{CpuPod, World};
use crate::common::cgroup::{Driver, Load, ids};
use crate::common::kubernetes::node::{POD_JOULES, POD_SECONDS, Pod, container, running};
use crate::common::page::Page;
use crate::common::quota::QuotaPod;
use crate::common::{alone, one_of_three};

/// A pod with this label and one container, which runs if it has an id.
pub fn object(world: &World, name: &str, app: &str, id: Option<&str>) -> Value {
    let status = id.map_or(
        json!({}),
        |id| json!({"phase": "Running", "containerStatuses": [running("main", &format!("containerd://{id}"))]}),
    );
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": world.node.name, "name": name, "labels": {"app": app}},
        "spec": {"nodeName": world.node.name, "containers": [container("main")]},
        "status": status,
    })
}

/// The object with the hash of a static pod.
fn with_hash(mut object: Value, hash: &str) -> Value {
    object["metadata"]["annotations"] =
        json!({"kubernetes.io/config.hash": hash, "kubernetes.io/config.source": "file"});
    object
}

/// The object as a mirror pod looks in every respect.
fn as_mirror(world: &World, object: Value, hash: &str) -> Value {
    let mut object = world.node.mirror(&with_hash(object, hash));
    object["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!(hash);
    object
}

/// Pods that claim to be the static pod `hash`: by the annotation alone, and as a perfect mirror pod; several of each, as
/// the order of uids could matter.
fn claim(world: &World, name: &str, app: &str, hash: &str) -> Vec<Value> {
    let claim = |number: usize| {
        let object = object(world, &format!("{name}-{number}"), app, None);
        let object = if number.is_multiple_of(2) { with_hash(object, hash) } else { as_mirror(world, object, hash) };
        world.node.create(&object)
    };
    (0..6).map(claim).collect()
}

pub fn enforced(app: &str, watts: f64) -> String {
    format!(
        "- name: {app}\n  mode: Enforce\n  selector: {{matchLabels: {{app: {app}}}}}\n  budget: {{watts: {watts}, components: [cpu]}}\n"
    )
}

fn cpu_pod(pod: Pod) -> Option<CpuPod> {
    let Pod { object, cgroup } = pod;
    Some(CpuPod { object, quota: QuotaPod::of(cgroup)? })
}

/// A busy pod with this label.
pub fn pod(world: &World, name: &str, app: &str) -> Option<CpuPod> {
    cpu_pod(world.node.adopt(&object(world, name, app, Some(&ids().1))))
}

/// All series that have a uid have the name, and no other series has the name.
#[track_caller]
fn assert_named(page: &Page, uid: &str, name: &str) {
    for family in [POD_JOULES, POD_SECONDS] {
        let by_uid = page.select(family, &[("pod_id", uid)]);
        assert!(!by_uid.is_empty() && by_uid.iter().all(|sample| sample.label("pod_name") == name), "{by_uid:#?}");
        // Other tests' pods have no name here.
        let by_name = if name.is_empty() { Vec::new() } else { page.select(family, &[("pod_name", name)]) };
        assert!(by_name.iter().all(|sample| sample.label("pod_id") == uid), "{by_name:#?}");
    }
}

fn assert_unnamed(page: &Page, pods: &[Value]) {
    for pod in pods {
        let (uid, name) = (pod["metadata"]["uid"].as_str().unwrap(), pod["metadata"]["name"].as_str().unwrap());
        assert!(!page.has(POD_JOULES, &[("pod_id", uid)]), "{uid} has never run: {}", page.text);
        assert!(!page.has(POD_JOULES, &[("pod_name", name)]), "{name} has never run: {}", page.text);
    }
}

#[test]
fn a_hash_that_is_another_pods_uid_takes_over_neither_its_row_nor_its_name_nor_its_limits() {
    one_of_three(|| {
        let _alone = alone();
        let world = World::new();
        let (Some(victim), Some(attacker)) = (pod(&world, "victim", "web"), pod(&world, "attacker", "evil")) else {
            return;
        };
        let uid = victim.object["metadata"]["uid"].as_str().unwrap();
        let forged = claim(&world, "forged", "evil", uid);
        let before = victim.quota.quota();
        let _loads = [victim.spin(), attacker.spin()];
        world.policies(&enforced("evil", 15.0));
        let agent = world.agent(&[]);
        // The policy works, on the pod that it selects.
        attacker.wait_until_capped();
        let mut last = agent.after_ticks(2);
        for _ in 0..8 {
            let page = agent.after_ticks(1);
            page.assert_conserved();
            page.assert_not_below(&last);
            assert_eq!(victim.quota.quota(), before);
            assert_named(&page, uid, "victim");
            assert_unnamed(&page, &forged);
            last = page;
        }
        // Its time is what the kernel says, and its energy goes on.
        let page = agent.after_ticks(2);
        let labels = [("pod_id", uid), ("pod_name", "victim")];
        let shown = page.nanoseconds(POD_SECONDS, &labels);
        let truth = victim.quota.pod.cgroup.cpu_ns();
        // It goes on meanwhile, and the agent may have begun later.
        assert!(shown > 0 && shown <= truth + truth / 20, "{shown} ns of {truth}");
        assert!(page.microjoules(POD_JOULES, &labels) > 0);
        let limits: Vec<_> = page.samples.iter().filter(|it| it.name.starts_with("energy_agent_cap_limit_")).collect();
        assert!(limits.iter().all(|limit| limit.label("device") == attacker.device()), "{limits:#?}");
    });
}

#[test]
fn a_capped_pod_is_not_freed_by_helpers_that_claim_its_uid() {
    let _alone = alone();
    let world = World::new();
    let Some(capped) = pod(&world, "capped", "batch") else { return };
    let uid = capped.object["metadata"]["uid"].as_str().unwrap();
    let open = capped.quota.quota();
    let _load = capped.spin();
    world.policies(&enforced("batch", 15.0));
    let agent = world.agent(&[]);
    capped.wait_until_capped();
    // No label that the policy selects.
    let helpers = claim(&world, "helper", "none", uid);
    // A pod that runs, so that the page shows when all have been reported.
    let id = ids().1;
    let running = with_hash(object(&world, "running", "none", Some(&id)), uid);
    let running = world.node.adopt(&running);
    running.burn("main", 20);
    running.wait_for_name(&agent);
    for _ in 0..8 {
        let page = agent.after_ticks(1);
        page.assert_conserved();
        assert_ne!(capped.quota.quota(), open, "freed");
        assert_named(&page, uid, "capped");
        assert_named(&page, running.uid(), "running");
        assert_unnamed(&page, &helpers);
    }
    // Nor by what is left of them.
    for helper in &helpers {
        world.node.cluster.delete(helper);
    }
    let page = agent.after_ticks(6);
    assert_ne!(capped.quota.quota(), open, "freed");
    assert_named(&page, uid, "capped");
}

#[test]
fn a_static_pod_is_its_mirror_pods_and_nobody_elses() {
    let _alone = alone();
    let world = World::new();
    // As kubelets make it, and as a manifest can have it (OpenShift).
    for (name, hash) in [("etcd-node", ids().0.replace('-', "")), ("apiserver-node", ids().0)] {
        let id = ids().1;
        let mirror = as_mirror(&world, object(&world, name, "control", Some(&id)), &hash);
        let Some(pod) = cpu_pod(Pod::with_cgroups(mirror, &hash, Driver::Systemd)) else { return };
        let folder = pod.quota.pod.another(&id);
        let open = pod.quota.quota();
        let _load = Load::start(&folder, &["spin", "0"]);
        // Before its mirror pod is reported, others claim it.
        let forged = claim(&world, &format!("forged-{name}"), "evil", &hash);
        world.policies(&format!("{}{}", enforced("evil", 15.0), enforced("control", 15.0)));
        let agent = world.agent(&[]);
        let page = agent.after_ticks(6);
        page.assert_conserved();
        assert_named(&page, &hash, "");
        assert_unnamed(&page, &forged);
        assert_eq!(pod.quota.quota(), open, "a policy for those who claim it");
        let unnamed = page.microjoules(POD_JOULES, &[("pod_id", &hash)]);

        let mirror = world.node.create(&pod.object);
        let uid = mirror["metadata"]["uid"].as_str().unwrap();
        let page = wait_for("its name", || {
            Some(agent.scrape()).filter(|page| page.has(POD_JOULES, &[("pod_id", uid), ("pod_name", name)]))
        });
        page.assert_conserved();
        assert_named(&page, uid, name);
        assert_unnamed(&page, &forged);
        assert!(!page.has(POD_JOULES, &[("pod_id", &hash)]), "the hash is a pod of its own beside the name");
        assert!(page.microjoules(POD_JOULES, &[("pod_id", uid)]) >= unnamed, "energy was lost with the name");
        // A policy finds it by the labels of its mirror pod.
        pod.wait_until_capped();
        assert_named(&agent.after_ticks(2), uid, name);
        world.no_policies();
        pod.wait_until_quota_is(&open);
        for pod in forged.iter().chain([&mirror]) {
            world.node.cluster.delete(pod);
        }
    }
}
