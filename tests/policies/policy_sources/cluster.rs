//! ConfigMaps in a cluster.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use serde_json::{Value, json};

use super::*;
use crate::common::kubernetes::cluster::kubeconfig;
use crate::common::kubernetes::node::Node;
use crate::common::kubernetes::proxy::Answer;
use crate::common::kubernetes::server::runtime;
use crate::common::kubernetes::status_object;

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

    /// Replaces what is in it, by fields such as `data` and `binaryData`.
    fn fill(&self, name: &str, fields: &Value) {
        let mut object = json!({"metadata": {"name": self.name(name)}});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let object: ConfigMap = serde_json::from_value(object).unwrap();
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

/// As an editor saves it, in base64 as kubectl and kustomize send what is not UTF-8.
fn utf_16(text: &str) -> String {
    let bytes: Vec<u8> = "\u{feff}".encode_utf16().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    STANDARD.encode(bytes)
}

#[test]
fn a_document_that_moves_to_binary_data_is_refused_and_a_picture_is_none_fc_135() {
    let node = Node::new();
    let maps = Maps::of(&node);
    maps.create("p", &[], &yaml("a=15"));
    let follower = maps.follow();
    follower.wait_for(&["a=15"]);
    maps.fill("p", &json!({"data": null, "binaryData": {"policies.yaml": utf_16(&yaml("a=15"))}}));
    wait_for("the refusal", || follower.refused(None));
    let now = follower.now();
    let [problem] = &*now.problems else { panic!("{:#?}", now.problems) };
    assert!(problem.message.contains("in `binaryData` and not UTF-8"), "{problem:?}");
    assert_eq!((follower.policies(), problem.kept), (vec!["a=15".to_owned()], true));
    follower.assert_logged("refused, the previous version stays active", 1);
    // The first eight bytes of every PNG.
    let picture = STANDARD.encode(b"\x89PNG\r\n\x1a\n");
    let policies = yaml("a=16");
    maps.fill("p", &json!({"data": {"policies.yaml": policies}, "binaryData": {"logo.png": picture}}));
    follower.wait_for(&["a=16"]);
    assert_eq!(follower.now().problems, vec![]);
    // A text is one wherever it is, as it is in a mounted folder.
    maps.fill("p", &json!({"binaryData": {"policies.yaml": STANDARD.encode(yaml("a=17")), "logo.png": picture}}));
    follower.wait_for(&["a=17"]);
    assert_eq!(follower.now().problems, vec![]);
    let all = follower.published.lock().unwrap();
    assert!(all.iter().skip_while(|now| now.policies.is_empty()).all(|now| now.policies.len() == 1), "{all:#?}");
    drop(all);
    maps.delete("p");
}

/// Each begins with the key policies.yaml, with a=1 and b=2.
#[test]
fn what_a_key_loses_without_being_deleted_stays_in_force_fc_135() {
    let node = Node::new();
    let maps = Maps::of(&node);
    let both = yaml("a=1 b=2");
    maps.create("p", &[], &both);
    let follower = maps.follow();
    follower.wait_for(&["a=1", "b=2"]);
    let kept = &["a=1", "b=2"][..];
    for (what, fields, wanted, is_refused) in [
        ("a name without an ending, as before in `data`", json!({"data": {"policies": both}}), kept, false),
        ("the same in `binaryData`", json!({"binaryData": {"policies": utf_16(&both)}}), kept, true),
        ("renamed", json!({"data": {"night.yaml": both}}), kept, false),
        ("renamed and broken", json!({"data": {"day.yaml": "version: 1\npolicies: {"}}), kept, true),
        ("renamed and not UTF-8", json!({"binaryData": {"noon.yaml": utf_16(&both)}}), kept, true),
        ("divided", json!({"data": {"a.yaml": yaml("a=1"), "b.yaml": yaml("b=2")}}), kept, false),
        (
            "divided, and one of them broken",
            json!({"data": {"a.yaml": yaml("a=1"), "c.yaml": "policies: ["}}),
            kept,
            true,
        ),
        ("back", json!({"data": {"policies.yaml": both}}), kept, false),
        ("emptied", json!({"data": {"policies.yaml": ""}}), kept, true),
        ("only comments", json!({"data": {"policies.yaml": "# nothing\n"}}), kept, true),
        ("not to be changed any more", json!({"data": {"policies.yaml": both}, "immutable": true}), kept, false),
    ] {
        maps.fill("p", &fields);
        wait_for(what, || {
            (follower.policies() == wanted && follower.now().problems.is_empty() != is_refused).then_some(())
        });
    }
    let all = follower.published.lock().unwrap();
    assert!(all.iter().skip_while(|now| now.policies.is_empty()).all(|now| now.policies.len() == 2), "{all:#?}");
    drop(all);
    // An immutable ConfigMap is replaced by deleting it. So its policies are deleted, and the next ones are new.
    maps.delete("p");
    follower.wait_for(&[]);
    maps.create("p", &[], "version: 1\npolicies: {");
    wait_for("the refusal", || follower.refused(None));
    assert_eq!(follower.refused(None), Some(false));
    maps.set("p", &[], &yaml("a=3 b=4"));
    follower.wait_for(&["a=3", "b=4"]);
    // So is a key that is taken away, and all of them.
    maps.fill("p", &json!({"data": {"policies.yaml": yaml("a=3"), "b.yaml": yaml("b=4")}}));
    follower.wait_for(&["a=3", "b=4"]);
    maps.fill("p", &json!({"data": {"b.yaml": yaml("b=4")}}));
    follower.wait_for(&["b=4"]);
    maps.fill("p", &json!({"data": null}));
    follower.wait_for(&[]);
    assert_eq!(follower.now().problems, vec![]);
    maps.delete("p");
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
    follower.assert_logged("forbidden", 1);
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
    follower.assert_logged("cannot be read", 3);
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
        follower.now().problems.iter().map(|problem| (problem.place.to_string(), problem.message.clone())).collect();
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

/// A kubeconfig whose user's credentials come from a shell script.
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
