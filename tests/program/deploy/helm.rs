//! The chart by Helm itself, in an API server: what is there then is what kustomize would put there.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::kubernetes::cluster::{Cluster, TOKEN, kubeconfig};
use crate::common::manifests::{deploy, parsed, text};
use crate::common::skip;

/// Another namespace than the other tests', so that their objects are not in the way. The chart may be installed in any.
const NAMESPACE: &str = "measurements";

struct Admin {
    config: PathBuf,
    python: PathBuf,
    chart: PathBuf,
}

impl Admin {
    /// What kubectl writes for these objects, which it gets as its input.
    fn kubectl(&self, arguments: &[&str], objects: &[Value]) -> String {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg(format!("--kubeconfig={}", self.config.display())).args(arguments).arg("--filename=-");
        let child = kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("kubectl: {error}; `cargo xtask test` provides it"));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        child.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn helm(&self, action: &str, values: &Value) {
        let mut helm = Command::new(&self.python);
        helm.arg(deploy().join("../tests/program/deploy/helm.py")).arg(action).arg(&self.config).arg(NAMESPACE);
        let output = helm.arg(&self.chart).arg(values.to_string()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {action}: {said}");
    }
}

/// The chart for any server: the test server does not say which version it has.
fn chart(folder: &Path) -> PathBuf {
    let chart = folder.join("energy-agent");
    let copied = Command::new("cp")
        .args(["--recursive", "--no-dereference"])
        .arg(deploy().join("helm/energy-agent"))
        .arg(&chart)
        .status();
    assert!(copied.unwrap().success());
    let file = chart.join("Chart.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let (kept, version): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| !line.starts_with("kubeVersion:"));
    assert_eq!(version.len(), 1);
    fs::write(&file, kept.join("\n")).unwrap();
    chart
}

/// The kinds of RBAC, which the test server doesn't have, as kinds of which it knows nothing but the name.
fn kinds_of_rbac() -> Vec<Value> {
    let kinds = [
        ("ClusterRole", "Cluster"),
        ("ClusterRoleBinding", "Cluster"),
        ("Role", "Namespaced"),
        ("RoleBinding", "Namespaced"),
    ];
    let definition = |(kind, scope): (&str, &str)| {
        let plural = format!("{}s", kind.to_lowercase());
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{plural}.rbac.authorization.k8s.io"),
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": "rbac.authorization.k8s.io", "scope": scope, "names": {"kind": kind, "plural": plural},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        })
    };
    kinds.into_iter().map(definition).collect()
}

/// The objects that kustomize makes of a folder, in the namespace of this test; without the namespace itself.
fn expected(folder: &str) -> Vec<Value> {
    let mut objects = parsed(&text(folder).replace("namespace: energy-agent", &format!("namespace: {NAMESPACE}")));
    objects.retain(|object| object["kind"] != "Namespace");
    objects
}

/// Whether all of `part` is in `whole`, which a server has added to. Lists are as long, in any order.
fn is_in(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|found| is_in(value, found)))
        }
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().all(|item| whole.iter().any(|found| is_in(item, found)))
        }
        _ => part == whole,
    }
}

#[test]
fn helm_installs_upgrades_and_uninstalls_what_kustomize_renders() {
    let (Some(python), Some(_)) = (env::var_os("TEST_PYTHON"), env::var_os("TEST_KUBE_API")) else {
        return skip::skip(if env::var_os("TEST_PYTHON").is_none() { &skip::PYTHON } else { &skip::API_SERVER });
    };
    let (cluster, folder) = (Cluster::shared(), TempDir::new().unwrap());
    let config = kubeconfig(folder.path(), &cluster.url, Some(&cluster.authority), &json!({"token": TOKEN}));
    let admin = Admin { config, python: python.into(), chart: chart(folder.path()) };
    let kinds = kinds_of_rbac();
    admin.kubectl(&["apply", "--server-side"], &kinds);
    admin.kubectl(&["wait", "--for=condition=established", "--timeout=60s"], &kinds);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    admin.kubectl(&["create"], &[namespace]);

    let check = |folder: &str| {
        let objects = expected(folder);
        let found: Value = serde_json::from_str(&admin.kubectl(&["get", "--output=json"], &objects)).unwrap();
        let found = found["items"].as_array().unwrap();
        assert_eq!(found.len(), objects.len());
        for (object, found) in objects.iter().zip(found) {
            assert!(is_in(object, found), "{folder}: kustomize {object}, Helm {found}");
        }
    };
    admin.helm("install", &json!({}));
    check("base");
    admin.helm("upgrade", &json!({"capping": {"enabled": true}}));
    check("overlays/capping");
    // What only capping needs goes with it.
    admin.helm("upgrade", &json!({"capping": {"enabled": false}}));
    check("base");
    let of_capping: Vec<Value> = expected("overlays/capping")
        .into_iter()
        .filter(|object| object["kind"] == "RoleBinding" || object["metadata"]["name"] == "energy-agent-events")
        .collect();
    assert_eq!(of_capping.len(), 3);
    let left = |objects: &[Value]| admin.kubectl(&["get", "--ignore-not-found", "--output=name"], objects);
    assert_eq!(left(&of_capping), "");
    admin.helm("uninstall", &json!({}));
    assert_eq!(left(&expected("overlays/capping")), "");
}
