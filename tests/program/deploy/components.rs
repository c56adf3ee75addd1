//! The components of the kustomizations: in any order the same result, or an error.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::manifests::{deploy, items, object, parsed};

/// What kubectl makes of a base of deploy/ with these components.
fn kustomized(base: &str, components: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    // Paths in a kustomization are relative.
    let up = "../".repeat(folder.path().canonicalize().unwrap().components().count() - 1);
    let deploy = deploy().canonicalize().unwrap();
    let path = |name: &str| format!("{up}{}", deploy.join(name).strip_prefix("/").unwrap().display());
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [path(base)],
        "components": components.iter().map(|name| path(&format!("components/{name}"))).collect::<Vec<_>>(),
    });
    fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let output = Command::new("kubectl").arg("kustomize").arg(folder.path()).output();
    output.unwrap_or_else(|error| panic!("kubectl: {error}; `cargo xtask test` provides it"))
}

fn rendered(base: &str, components: &[&str]) -> Vec<Value> {
    let output = kustomized(base, components);
    assert!(output.status.success(), "{base} {components:?}: {}", String::from_utf8_lossy(&output.stderr));
    parsed(&String::from_utf8(output.stdout).unwrap())
}

/// The text of each object, with its lists of variables, mounts and volumes sorted: their order means nothing.
fn in_any_order(mut objects: Vec<Value>) -> BTreeSet<String> {
    for object in objects.iter_mut().filter(|object| object["kind"] == "DaemonSet") {
        let pod = &mut object["spec"]["template"]["spec"];
        let sort = |list: &mut Value| list.as_array_mut().unwrap().sort_by_key(ToString::to_string);
        sort(&mut pod["volumes"]);
        sort(&mut pod["containers"][0]["volumeMounts"]);
        sort(&mut pod["containers"][0]["env"]);
    }
    objects.iter().map(ToString::to_string).collect()
}

/// What a component changes or needs, and that must be listed before it.
const NEEDS: [(&str, &str); 6] = [
    ("resources", "capping"),
    ("controller", "resources"),
    ("climatik", "resources"),
    ("controller-network-policy", "controller"),
    ("controller-kube-prometheus", "controller"),
    ("kube-prometheus-tls", "tls"),
];

/// The same components: each time the first one of the list whose needs are met.
fn after_their_needs(mut components: Vec<&str>) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    let is_met = |found: &[&str], need: &str| {
        found.contains(&need)
            || (need == "capping" && found.contains(&"gpu-capping"))
            || (need == "controller" && found.contains(&"climatik"))
    };
    while !components.is_empty() {
        let may_follow = |name: &&str| NEEDS.iter().all(|(component, need)| component != name || is_met(&found, need));
        let next = components.iter().position(may_follow).expect("what they need is among them");
        found.push(components.remove(next));
    }
    found
}

/// One list and its reverse have every two components in both orders that are allowed.
#[test]
fn the_order_of_components_means_nothing() {
    let folders = fs::read_dir(deploy().join("components")).unwrap().map(|entry| entry.unwrap().file_name());
    let all: BTreeSet<String> = folders.map(|name| name.into_string().unwrap()).collect();
    for (base, left_out) in [
        ("base", &["gpu-capping", "kube-prometheus", "climatik"][..]),
        ("gpu-nodes", &["capping", "tls", "kube-prometheus-tls", "controller"]),
    ] {
        let mut components: Vec<&str> =
            all.iter().map(String::as_str).filter(|name| !left_out.contains(name)).collect();
        assert_eq!(components.len() + left_out.len(), all.len());
        let one = after_their_needs(components.clone());
        components.reverse();
        let other = after_their_needs(components);
        assert_ne!(one, other);
        assert_eq!(
            in_any_order(rendered(base, &one)),
            in_any_order(rendered(base, &other)),
            "{base} {one:?} {other:?}"
        );
    }
}

#[test]
fn capping_reaches_both_daemon_sets_and_the_capability_one() {
    let objects = rendered("gpu-nodes", &["gpu-capping"]);
    for (name, is_added) in [("energy-agent", false), ("energy-agent-gpu", true)] {
        let container = &object(&objects, "DaemonSet", name)["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["args"][1], "--capping=on", "{name}");
        let added: Vec<&Value> = items(&container["securityContext"]["capabilities"]["add"]).collect();
        assert_eq!(added.contains(&&json!("SYS_ADMIN")), is_added, "{name}");
        assert_eq!(added.len(), if is_added { 3 } else { 2 }, "{name}");
    }
}

#[test]
fn what_does_not_fit_together_is_an_error_and_not_left_out() {
    for (base, components, named) in [
        ("base", &["gpu-capping"][..], "energy-agent-gpu"),
        ("gpu-nodes", &["capping", "gpu-capping"], "already registered"),
        ("gpu-nodes", &["gpu-capping", "capping"], "already registered"),
        ("base", &["kube-prometheus", "kube-prometheus-tls"], "already registered"),
        ("base", &["tls", "kube-prometheus-tls", "kube-prometheus"], "already registered"),
        ("base", &["capping", "resources", "controller", "climatik"], "already registered"),
        // What is needed is not there, or not yet.
        ("base", &["resources"], "ClusterRole.v1.rbac.authorization.k8s.io/energy-agent-events"),
        ("base", &["resources", "capping"], "energy-agent-events"),
        ("base", &["capping", "controller"], "energy-agent-resources"),
        ("base", &["capping", "climatik"], "energy-agent-resources"),
        ("base", &["controller-network-policy"], "Deployment.v1.apps/energy-agent-controller"),
        ("base", &["kube-prometheus", "controller-kube-prometheus"], "Deployment.v1.apps/energy-agent-controller"),
        // A monitor that scrapes by HTTP what speaks TLS, and the other way round.
        ("base", &["tls", "kube-prometheus"], "components/kube-prometheus"),
        ("base", &["kube-prometheus", "tls"], "components/tls"),
        ("gpu-nodes", &["kube-prometheus", "tls"], "components/tls"),
        ("base", &["kube-prometheus-tls"], "components/kube-prometheus-tls"),
        ("base", &["kube-prometheus-tls", "tls"], "components/kube-prometheus-tls"),
    ] {
        let output = kustomized(base, components);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(named), "{base} {components:?}: {said}");
    }
}

#[test]
fn every_component_and_base_has_an_overlay_of_its_name() {
    let names = |folder: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(deploy().join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let mut expected = names("components");
    expected.insert("gpu-nodes".to_owned());
    assert_eq!(names("overlays"), expected);
}
