//! The values of the Helm chart, one by one: `chart.py` renders and checks them, and the API server takes what they make.

use std::process::Command;
use std::{env, fs};

use serde_json::json;
use tempfile::TempDir;

use super::{applied, taken};
use crate::common::kubernetes::cluster::Cluster;
use crate::common::manifests::deploy;
use crate::common::skip;

#[test]
fn each_value_of_the_chart_does_what_its_comment_says_and_an_api_server_takes_it() {
    let Some(python) = env::var_os("TEST_PYTHON") else {
        return skip::skip(&skip::PYTHON);
    };
    let folder = TempDir::new().unwrap();
    let list = folder.path().join("list.json");
    let mut check = Command::new(python);
    check.arg(deploy().join("../tests/program/deploy/chart.py")).arg(deploy().join("helm/energy-agent")).arg(&list);
    let output = check.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");

    if env::var_os("TEST_KUBE_API").is_none() {
        return skip::skip(&skip::API_SERVER);
    }
    let mut objects = taken(serde_json::from_slice(&fs::read(&list).unwrap()).unwrap());
    for kind in ["ConfigMap", "DaemonSet", "Deployment", "Namespace", "Secret", "Service", "ServiceAccount"] {
        assert!(objects.iter().any(|object| object["kind"] == kind), "no {kind} in {} objects", objects.len());
    }
    // A dry run needs the namespaces. All are one here: the cases have several.
    for object in objects.iter_mut().filter(|object| object["kind"] != "Namespace") {
        object["metadata"]["namespace"] = json!("values");
    }
    let cluster = Cluster::shared();
    applied(&cluster, &[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "values"}})], &[]);
    applied(&cluster, &objects, &["--dry-run=server"]);
}
