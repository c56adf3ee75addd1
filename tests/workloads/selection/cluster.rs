//! The ConfigMap in a cluster: edits, deletion, and an API server that is away or refuses.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use super::{CONTAINER, NODE, POD, VALID, leveled, wait_until};
use crate::common::agent::{Agent, wait_for};
use crate::common::kubernetes::node::Node;
use crate::common::kubernetes::proxy::Answer;
use crate::common::kubernetes::server::runtime;
use crate::common::kubernetes::status_object;

const NAMESPACE: &str = "default";

/// A ConfigMap of a test's own.
struct Map {
    api: Api<ConfigMap>,
    name: String,
}

impl Map {
    /// Not created yet.
    fn of(node: &Node) -> Self {
        Self { api: Api::namespaced(node.cluster.client.clone(), NAMESPACE), name: format!("export-{}", node.name) }
    }

    fn object(&self, data: &[(&str, &str)]) -> ConfigMap {
        let data: BTreeMap<_, _> = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
    }

    fn create(&self, data: &[(&str, &str)]) {
        runtime().block_on(self.api.create(&PostParams::default(), &self.object(data))).unwrap();
    }

    fn set(&self, data: &[(&str, &str)]) {
        runtime().block_on(self.api.replace(&self.name, &PostParams::default(), &self.object(data))).unwrap();
    }

    fn delete(&self) {
        runtime().block_on(self.api.delete(&self.name, &DeleteParams::default())).unwrap();
    }

    /// An agent that follows it through the node's proxy.
    fn agent(&self, node: &Node, flags: &[&str]) -> Agent {
        let kubeconfig = format!("--kubeconfig={}", node.kubeconfig.display());
        let map = format!("--export.configmap={NAMESPACE}/{}", self.name);
        Agent::start(&[&["--pods.source=none", &kubeconfig, &map], flags].concat())
    }
}

/// A ConfigMap that selects one family, and an agent that follows it already.
fn of_watts(node: &Node) -> (Map, Agent) {
    let map = Map::of(node);
    map.create(&[("EXPORT_METRICS", "kepler_node_cpu_watts")]);
    let agent = map.agent(node, &["--interval=200ms"]);
    wait_until(&agent, "the ConfigMap", is_watts);
    (map, agent)
}

fn is_watts(names: &[&str]) -> bool {
    names == ["kepler_node_cpu_watts"]
}

fn wait_valid(agent: &Agent, valid: u64) {
    wait_for("the state of the configuration", || (agent.scrape().count(VALID) == valid).then_some(()));
}

#[test]
fn an_edit_of_the_configmap_counts_within_two_ticks() {
    let node = Node::new();
    let map = Map::of(&node);
    map.create(&[("EXPORT_METRICS", "pod"), ("ENABLE_GPU", "true")]);
    // Ticks at the default interval, a second; the ConfigMap overrides the flag.
    let agent = map.agent(&node, &["--export.levels=container"]);
    wait_until(&agent, "the ConfigMap", |names| !names.contains(&CONTAINER));
    for (metrics, wanted) in [("node", true), ("container", false), ("node, pod", true)] {
        let before = agent.scrape().ticks();
        map.set(&[("EXPORT_METRICS", metrics)]);
        let page = wait_until(&agent, "the edit", |names| names.contains(&NODE) == wanted);
        assert!(page.ticks() - before <= 2, "{} ticks", page.ticks() - before);
    }
    assert_eq!(node.proxy.asked().iter().filter(|asked| !asked.is_watch).count(), 1, "one list, then the watch");
    assert!(node.proxy.asked().iter().all(|asked| asked.path.contains("metadata.name")), "only this map is asked for");
    map.delete();
}

#[test]
fn twenty_edits_without_a_pause_end_at_the_last() {
    let node = Node::new();
    let map = Map::of(&node);
    map.create(&[]);
    let mut agent = map.agent(&node, &["--interval=200ms"]);
    wait_valid(&agent, 1);
    for edit in 0..20 {
        map.set(&[("EXPORT_METRICS", ["node", "kepler_node_cpu_watts", "nonsense"][edit % 3])]);
    }
    // The last, of index 19.
    wait_until(&agent, "the last edit", |names| names == ["kepler_node_cpu_watts"]);
    wait_valid(&agent, 1);
    // An earlier edit looks the same: nothing comes after it.
    let page = agent.after_ticks(3);
    assert_eq!(leveled(&page), ["kepler_node_cpu_watts"]);
    assert_eq!(page.count(VALID), 1);
    assert!(agent.log().len() < 80, "{:#?}", agent.log());
    agent.assert_well();
    map.delete();
}

#[test]
fn a_deleted_configmap_is_back_to_the_flags_and_said_once() {
    let node = Node::new();
    let map = Map::of(&node);
    let agent = map.agent(&node, &["--interval=200ms", "--export.levels=node"]);
    // It may come later.
    wait_valid(&agent, 1);
    agent.assert_logged("the ConfigMap does not exist; ", 1);
    map.create(&[("EXPORT_METRICS", "-*")]);
    wait_until(&agent, "the ConfigMap", |names| names.is_empty());
    map.delete();
    wait_until(&agent, "the flags", |names| names.contains(&NODE));
    wait_valid(&agent, 1);
    // Another list, which finds it gone again.
    let lists = node.proxy.lists();
    node.proxy.send(&json!({"type": "ERROR", "object": status_object(410, "Expired", "too old resource version")}));
    wait_for("another list", || (node.proxy.lists() > lists).then_some(()));
    agent.after_ticks(2);
    let told = agent.assert_logged("the ConfigMap does not exist; ", 2);
    assert!(told[1].contains(&map.name));
}

#[test]
fn a_setting_that_moves_to_binary_data_is_refused_and_a_picture_is_none_fc_135() {
    let node = Node::new();
    let (map, agent) = of_watts(&node);
    let fill = |fields: serde_json::Value| {
        let mut object = serde_json::to_value(map.object(&[])).unwrap();
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let object: ConfigMap = serde_json::from_value(object).unwrap();
        runtime().block_on(map.api.replace(&map.name, &PostParams::default(), &object)).unwrap();
    };
    // `node` in UTF-16.
    fill(json!({"data": null, "binaryData": {"EXPORT_METRICS": "//5uAG8AZABlAA=="}}));
    wait_valid(&agent, 0);
    assert_eq!(leveled(&agent.after_ticks(2)), ["kepler_node_cpu_watts"]);
    agent.assert_logged("in `binaryData` and not UTF-8", 1);
    fill(json!({"data": {"EXPORT_METRICS": "node"}, "binaryData": {"logo.png": "iVBORw0KGgo="}}));
    wait_until(&agent, "the edit", |names| names.contains(&NODE));
    wait_valid(&agent, 1);
    map.delete();
}

#[test]
fn an_api_server_that_is_away_is_no_deletion() {
    let node = Node::new();
    let (map, mut agent) = of_watts(&node);
    node.proxy.go_away();
    wait_for("a line about the gap", || agent.logged("the ConfigMap cannot be read").pop());
    assert!(is_watts(&leveled(&agent.after_ticks(10))));
    assert_eq!(agent.scrape().count(VALID), 1);
    map.set(&[("EXPORT_METRICS", "kepler_node_cpu_joules_total")]);
    node.proxy.come_back();
    wait_until(&agent, "the edit made meanwhile", |names| names == [NODE]);
    assert!(agent.logged("the ConfigMap cannot be read").len() <= 3, "{:#?}", agent.log());
    assert_eq!(agent.logged("the ConfigMap does not exist; "), Vec::<String>::new());
    agent.assert_well();
    map.delete();
}

#[test]
fn a_refusal_names_the_verb_and_the_flags_hold() {
    let node = Node::new();
    let map = Map::of(&node);
    map.create(&[("EXPORT_METRICS", "pod")]);
    let words = "configmaps is forbidden: User \"agent\" cannot list resource \"configmaps\"";
    node.proxy.faults().lists = Answer::Refuse(403, status_object(403, "Forbidden", words));
    let agent = map.agent(&node, &["--interval=200ms", "--export.levels=node"]);
    let line = wait_for("a line about the refusal", || agent.logged("(403 ").pop());
    for part in ["no permission to list configmaps", &map.name, "list and watch"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    let page = agent.after_ticks(5);
    assert!(page.has(NODE, &[]));
    assert_eq!(page.count(VALID), 0);
    agent.assert_logged("(403 ", 1);
    node.proxy.faults().lists = Answer::Pass;
    wait_until(&agent, "the ConfigMap", |names| !names.contains(&NODE));
    wait_valid(&agent, 1);
    map.delete();
}

#[test]
fn a_bad_configmap_keeps_what_was_and_names_the_key() {
    let node = Node::new();
    let (map, agent) = of_watts(&node);
    map.set(&[("EXPORT_METRICS", "pod"), ("SOURCE.GPU", "aus")]);
    let line = wait_for("a line", || agent.logged("previous selection stays active").pop());
    let key = format!("SOURCE.GPU in ConfigMap {NAMESPACE}/{}", map.name);
    for part in [&*key, "\"aus\"", "enabled, disabled"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(is_watts(&leveled(&agent.after_ticks(2))));
    wait_valid(&agent, 0);
    // A patch repairs it without repeating the rest.
    let patch = Patch::Merge(json!({"data": {"SOURCE.GPU": null}}));
    if runtime().block_on(map.api.patch(&map.name, &PatchParams::default(), &patch)).is_err() {
        // The stub knows no patches.
        map.set(&[("EXPORT_METRICS", "pod")]);
    }
    wait_until(&agent, "the repair", |names| !names.contains(&"kepler_node_cpu_watts"));
    wait_valid(&agent, 1);
    map.delete();
}

#[test]
fn without_the_source_of_names_pods_are_shown_by_uid() {
    let node = Node::new();
    let pod = node.pod("cart", &["main"]);
    let map = Map::of(&node);
    map.create(&[]);
    let agent = node.agent(&[&format!("--export.configmap={NAMESPACE}/{}", map.name)]);
    pod.burn("main", 50);
    let named = pod.wait_for_name(&agent);
    map.set(&[("SOURCE.KUBELET", "disabled")]);
    let page = wait_for("the names to go", || Some(agent.scrape()).filter(|page| !pod.is_named(page)));
    page.assert_conserved();
    assert!(pod.used(&page).0 >= pod.used(&named).0);
    assert!(page.select(POD, &[("pod_id", pod.uid())]).iter().all(|sample| sample.label("pod_name").is_empty()));
    map.set(&[("EXPOSE_KUBELET_METRICS", "true")]);
    pod.wait_for_name(&agent).assert_not_below(&named);
    map.delete();
    node.cluster.delete(&pod.object);
}
