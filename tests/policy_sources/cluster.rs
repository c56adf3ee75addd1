//! ConfigMaps in a cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use serde_json::json;

use super::*;
use crate::kubernetes::cluster::kubeconfig;
use crate::kubernetes::node::Node;
use crate::kubernetes::proxy::Answer;
use crate::kubernetes::server::runtime;
use crate::kubernetes::status_object;

const NAMESPACE: &str = "default";

struct Maps<'a> {
    api: Api<ConfigMap>,
    node: &'a Node,
}

impl<'a> Maps<'a> {
    fn of(node: &'a Node) -> Self {
        Self { api: Api::namespaced(node.cluster.client.clone(), NAMESPACE), node }
    }

    /// Tests share the cluster.
    fn name(&self, name: &str) -> String {
        format!("{name}-{}", self.node.name)
    }

    fn object(&self, name: &str, labels: &[&str], policies: &str) -> ConfigMap {
        let labels = labels.iter().map(|label| ((*label).to_owned(), self.node.name.clone())).collect();
        let metadata = ObjectMeta { name: Some(self.name(name)), labels: Some(labels), ..ObjectMeta::default() };
        let data = BTreeMap::from([("policies.yaml".to_owned(), policies.to_owned())]);
        ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
    }

    fn create(&self, name: &str, labels: &[&str], policies: &str) {
        runtime().block_on(self.api.create(&PostParams::default(), &self.object(name, labels, policies))).unwrap();
    }

    fn set(&self, name: &str, labels: &[&str], policies: &str) {
        let object = self.object(name, labels, policies);
        runtime().block_on(self.api.replace(&self.name(name), &PostParams::default(), &object)).unwrap();
    }

    fn delete(&self, name: &str) {
        runtime().block_on(self.api.delete(&self.name(name), &DeleteParams::default())).unwrap();
    }

    /// Follows the ConfigMap `p` through the node's proxy.
    fn follow(&self) -> Follower {
        let kubeconfig = format!("--kubeconfig={}", self.node.kubeconfig.display());
        Follower::start(&[&kubeconfig, &format!("--capping.configmap={NAMESPACE}/{}", self.name("p"))])
    }
}

#[test]
fn edits_count_and_a_deletion_is_one() {
    let node = Node::new();
    let maps = Maps::of(&node);
    let follower = maps.follow();
    // Not there is an answer.
    assert!(follower.wait_for_state(0, "absent").up && follower.now().complete);
    maps.create("p", &[], &yaml("a=1 b=2"));
    follower.wait_for(&["a=1", "b=2"]);
    let source = &follower.now().policies.values().next().unwrap().source.to_string();
    assert_eq!(*source, format!("ConfigMap {NAMESPACE}/{} key policies.yaml", maps.name("p")));
    maps.set("p", &[], &yaml("a=3 b=2"));
    follower.wait_for(&["a=3", "b=2"]);
    maps.set("p", &[], &yaml("a=many b=2"));
    wait_for("the refusal", || follower.refused(Some("a")));
    assert_eq!(
        (follower.policies(), follower.refused(Some("a"))),
        (vec!["a=3".to_owned(), "b=2".to_owned()], Some(true))
    );
    maps.set("p", &[], "version: 1\npolicies: {");
    wait_for("the refusal", || follower.refused(None));
    assert_eq!(follower.policies(), ["a=3", "b=2"]);
    maps.set("p", &[], &yaml("b=2"));
    follower.wait_for(&["b=2"]);
    maps.delete("p");
    follower.wait_for(&[]);
    assert!(node.proxy.asked().iter().all(|asked| asked.path.contains("metadata.name")), "only this map is asked for");
    assert_eq!(node.proxy.lists(), 1, "one list, then the watch");
}

#[test]
fn twenty_edits_of_a_configmap_end_at_the_last_with_few_publications() {
    let node = Node::new();
    let maps = Maps::of(&node);
    maps.create("p", &[], &yaml("a=100"));
    let follower = maps.follow();
    follower.wait_for(&["a=100"]);
    let (before, began) = (follower.publications(), Instant::now());
    for edit in 0..20 {
        maps.set("p", &[], &yaml(&format!("a={edit}.5")));
        thread::sleep(Duration::from_millis(80));
    }
    let edited = began.elapsed();
    follower.wait_for(&["a=19.5"]);
    let took = began.elapsed();
    let publications = follower.publications() - before;
    println!("edited in {edited:?}, in force after {took:?}, {publications} publications");
    assert!(publications <= at_most(took), "{publications} in {took:?}");
    maps.delete("p");
}

#[test]
fn an_api_server_that_is_away_or_refuses_deletes_nothing() {
    let node = Node::new();
    let maps = Maps::of(&node);
    maps.create("p", &[], &yaml("a=1"));
    let follower = maps.follow();
    follower.wait_for(&["a=1"]);
    // Away, and back with an edit made meanwhile.
    node.proxy.go_away();
    assert!(!follower.wait_for_state(0, "unreachable").up);
    thread::sleep(Duration::from_secs(2));
    assert_eq!(follower.policies(), ["a=1"]);
    maps.set("p", &[], &yaml("a=2"));
    node.proxy.come_back();
    follower.wait_for(&["a=2"]);
    assert!(follower.wait_for_state(0, "ok").up);
    // The permission is taken away.
    let words = "configmaps is forbidden: User \"agent\" cannot list resource \"configmaps\"";
    let refusal = Answer::Refuse(403, status_object(403, "Forbidden", words));
    (node.proxy.faults().lists, node.proxy.faults().watches) = (refusal.clone(), refusal);
    node.proxy.end_watches();
    let state = follower.wait_for_state(0, "forbidden");
    assert!(state.detail.contains("list and watch on configmaps"), "{state:?}");
    assert_eq!(follower.policies(), ["a=2"]);
    assert_eq!(follower.logged("forbidden").len(), 1, "{:#?}", follower.logged(""));
    let kept = follower.published.lock().unwrap();
    assert!(kept.iter().skip(2).all(|now| now.policies.len() == 1), "{kept:#?}");
    drop(kept);
    maps.delete("p");
}

#[test]
fn a_watch_that_is_too_old_is_listed_anew_and_finds_what_is_gone() {
    let node = Node::new();
    let maps = Maps::of(&node);
    maps.create("p", &[], &yaml("a=1"));
    let follower = maps.follow();
    follower.wait_for(&["a=1"]);
    node.proxy.wait_for_watch();
    // FC-105: expired while the object is there, then after its deletion was missed.
    let expired = json!({"type": "ERROR", "object": status_object(410, "Expired", "too old resource version")});
    let lists = node.proxy.lists();
    node.proxy.send(&expired);
    wait_for("another list", || (node.proxy.lists() > lists).then_some(()));
    node.proxy.wait_for_watch();
    assert_eq!(follower.policies(), ["a=1"]);
    node.proxy.faults().swallowed = Some("DELETED");
    maps.delete("p");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(follower.policies(), ["a=1"], "the test swallows the deletion");
    node.proxy.send(&expired);
    follower.wait_for(&[]);
    assert_eq!(follower.logged(" WARN "), Vec::<String>::new());
}

#[test]
fn without_permission_from_the_start_nothing_is_known_to_be_deleted_and_it_is_said_once() {
    let node = Node::new();
    let maps = Maps::of(&node);
    maps.create("p", &[], &yaml("a=1"));
    // Troubles that alternate.
    let forbidden = Answer::Refuse(403, status_object(403, "Forbidden", "configmaps is forbidden"));
    node.proxy.faults().lists = Answer::status(500);
    let follower = maps.follow();
    for reason in ["error", "unauthorized", "error", "unauthorized"] {
        node.proxy.faults().lists = Answer::status(if reason == "error" { 500 } else { 401 });
        follower.wait_for_state(0, reason);
    }
    node.proxy.faults().lists = forbidden;
    follower.wait_for_state(0, "forbidden");
    assert!(!follower.now().complete);
    assert_eq!(follower.logged("cannot be read").len(), 3, "{:#?}", follower.logged(""));
    maps.delete("p");
}

#[test]
fn configmaps_are_chosen_by_labels_and_stand_below_a_file() {
    let node = Node::new();
    let maps = Maps::of(&node);
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("policies.yaml");
    fs::write(&path, yaml("a=1")).unwrap();
    maps.create("other", &["other"], &yaml("x=9"));
    maps.create("n", &["policies"], &yaml("b=2"));
    let follower = Follower::start(&[
        &format!("--kubeconfig={}", node.kubeconfig.display()),
        &format!("--capping.policy={}", path.display()),
        &format!("--capping.configmap-selector={NAMESPACE}/policies={}", node.name),
    ]);
    follower.wait_for(&["a=1", "b=2"]);
    maps.create("m", &["policies"], &yaml("a=3 b=4"));
    follower.wait_for(&["a=1", "b=4"]);
    let of = |name: &str| format!("ConfigMap {NAMESPACE}/{} key policies.yaml", maps.name(name));
    let problems: Vec<_> =
        follower.now().problems.iter().map(|problem| (problem.source.to_string(), problem.message.clone())).collect();
    for (source, first) in [(of("m"), format!("file {}", path.display())), (of("n"), of("m"))] {
        assert!(problems.iter().any(|(of, message)| *of == source && message.starts_with(&first)), "{problems:?}");
    }
    // A label that is taken away is a deletion.
    maps.set("m", &[], &yaml("a=3 b=4"));
    follower.wait_for(&["a=1", "b=2"]);
    assert_eq!(follower.now().problems, vec![]);
    assert!(node.proxy.asked().iter().all(|asked| asked.path.contains("labelSelector=")), "no other is asked for");
    for name in ["other", "n", "m"] {
        maps.delete(name);
    }
}

/// A kubeconfig whose user is what a shell script hands out.
fn plugin(node: &Node, script: &str) {
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script], "interactiveMode": "Never",
    }});
    kubeconfig(node.folder(), &format!("http://{}", node.proxy.address()), None, &user);
}

#[test]
fn credentials_that_are_refused_are_asked_for_again() {
    let node = Node::new();
    let maps = Maps::of(&node);
    maps.create("p", &[], &yaml("a=1"));
    let token = node.folder().join("token");
    fs::write(&token, "first").unwrap();
    plugin(&node, &format!("echo '{{\"status\": {{\"token\": \"'$(cat {})'\"}}}}'", token.display()));
    node.proxy.faults().tokens = ["first".to_owned()].into();
    let follower = maps.follow();
    follower.wait_for(&["a=1"]);
    node.proxy.wait_for_watch();
    node.proxy.faults().tokens = ["second".to_owned()].into();
    node.proxy.end_watches();
    follower.wait_for_state(0, "unauthorized");
    assert_eq!(follower.policies(), ["a=1"]);
    maps.set("p", &[], &yaml("a=2"));
    fs::write(&token, "second").unwrap();
    follower.wait_for(&["a=2"]);
    maps.delete("p");
}

#[test]
fn a_credential_plugin_that_hangs_holds_up_no_other_source() {
    let node = Node::new();
    plugin(&node, "exec sleep 60");
    let path = node.folder().join("policies.yaml");
    fs::write(&path, yaml("a=1")).unwrap();
    let follower = Follower::start(&[
        &format!("--kubeconfig={}", node.kubeconfig.display()),
        &format!("--capping.policy={}", path.display()),
        &format!("--capping.configmap={NAMESPACE}/p"),
    ]);
    follower.wait_for(&["a=1"]);
    // The plugin has 30 s, and is not done.
    assert!(!follower.now().complete);
}
