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

/// One list and its reverse have every two components in both orders.
#[test]
fn the_order_of_components_means_nothing() {
    let folders = fs::read_dir(deploy().join("components")).unwrap().map(|entry| entry.unwrap().file_name());
    let all: BTreeSet<String> = folders.map(|name| name.into_string().unwrap()).collect();
    for (base, left_out) in [
        ("base", ["gpu-capping", "kube-prometheus-tls", "climatik"]),
        ("gpu-nodes", ["capping", "kube-prometheus", "controller"]),
    ] {
        let mut components: Vec<&str> =
            all.iter().map(String::as_str).filter(|name| !left_out.contains(name)).collect();
        assert_eq!(components.len() + left_out.len(), all.len());
        let forwards = in_any_order(rendered(base, &components));
        components.reverse();
        let backwards = in_any_order(rendered(base, &components));
        assert_eq!(forwards, backwards, "{base} {components:?}");
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
        ("base", &["kube-prometheus-tls", "kube-prometheus"], "already registered"),
        ("base", &["controller", "climatik"], "already registered"),
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
