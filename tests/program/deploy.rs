//! The manifests of deploy/: valid, equal to the Helm chart, asking for no more than is needed. Needs kubectl 1.30 or later;
//! `cargo xtask test` fetches it where it is not there, and the Python packages that the first test uses.

#![expect(clippy::unwrap_used, reason = "tests panic")]

mod components;
mod helm;
mod rights;
mod values;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::{env, fs};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::kubernetes::cluster::{Cluster, TOKEN, kubeconfig};
use crate::common::manifests::{deploy, folders, items, object, parsed, rendered, text};
use crate::common::skip;

#[test]
fn every_folder_is_valid_by_kubernetes_schema_and_equal_to_the_chart() {
    let Some(python) = env::var_os("TEST_PYTHON") else {
        return skip::skip(&skip::PYTHON);
    };
    let folder = TempDir::new().unwrap();
    let mut check = Command::new(python);
    check.arg(deploy().join("../tests/program/deploy/manifests.py"));
    for name in folders() {
        let file = folder.path().join(name.replace('/', "-"));
        fs::write(&file, text(&name)).unwrap();
        check.arg(format!("{name}={}", file.display()));
    }
    let output = check.arg(deploy().join("helm/energy-agent")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// What the test server has: neither RBAC nor quotas nor the operator's kinds.
fn taken(mut objects: Vec<Value>) -> Vec<Value> {
    objects.retain(|object| ["v1", "apps/v1"].contains(&object["apiVersion"].as_str().unwrap()));
    objects.retain(|object| object["kind"] != "ResourceQuota");
    objects
}

#[test]
fn an_api_server_takes_every_folder() {
    if env::var_os("TEST_KUBE_API").is_none() {
        return skip::skip(&skip::API_SERVER);
    }
    let cluster = Cluster::shared();
    // Before there is a namespace, the server can say nothing of what would be in it.
    applied(&cluster, &taken(rendered("base")), &[]);
    let others = folders().into_iter().filter(|name| name != "base");
    let objects: Vec<Value> = others.flat_map(|name| taken(rendered(&name))).collect();
    applied(&cluster, &objects, &["--dry-run=server"]);
    // One over the other, as when components are added and removed.
    applied(&cluster, &objects, &[]);
}

/// Gives these objects to the API server, which has to take them.
fn applied(cluster: &Cluster, objects: &[Value], more: &[&str]) {
    let folder = TempDir::new().unwrap();
    let config = kubeconfig(folder.path(), &cluster.url, Some(&cluster.authority), &json!({"token": TOKEN}));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let mut apply = Command::new("kubectl");
    apply.arg(format!("--kubeconfig={}", config.display()));
    apply.args(["apply", "--server-side", "--filename=-"]).args(more).stdin(Stdio::piped());
    let child = apply.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("kubectl: {error}; `cargo xtask test` provides it"));
    child.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether the pod may be on a node with these labels: its selector, and one term of its affinity, whose requirements are
/// all `NotIn`; a label that is not there is in nothing.
fn may_be_on(pod: &Value, labels: &[(&str, &str)]) -> bool {
    let label = |key: &str| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let selector = pod["nodeSelector"].as_object().unwrap();
    let affinity = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let is_met = |requirement: &Value| {
        assert_eq!(requirement["operator"], "NotIn");
        let value = label(requirement["key"].as_str().unwrap());
        items(&requirement["values"]).all(|refused| value != refused.as_str())
    };
    let has_term = affinity.is_null()
        || items(&affinity["nodeSelectorTerms"]).any(|term| items(&term["matchExpressions"]).all(is_met));
    selector.iter().all(|(key, value)| label(key) == value.as_str()) && has_term
}

/// FC-130: the operator unloads the driver once nobody uses it, and drains no DaemonSet.
#[test]
fn while_the_gpu_operator_upgrades_the_driver_no_agent_holds_it() {
    const GPU: [(&str, &str); 2] = [("kubernetes.io/os", "linux"), ("nvidia.com/gpu.present", "true")];
    let paused = "paused-for-driver-upgrade";
    let case = fs::read_to_string(deploy().join("../tests/cases/FC-130-driver-upgrade.json")).unwrap();
    assert!(case.contains(paused));
    let (client, plugin) = ("nvidia.com/gpu.deploy.client", "nvidia.com/gpu.deploy.device-plugin");
    for folder in ["overlays/gpu-nodes", "overlays/gpu-capping"] {
        let objects = rendered(folder);
        let pod = |name: &str| &object(&objects, "DaemonSet", name)["spec"]["template"]["spec"];
        let on = |name: &str, more: &[(&str, &str)]| may_be_on(pod(name), &[&GPU, more].concat());
        for (more, stays) in [
            (&[][..], true),
            (&[(plugin, "true")], true),
            (&[(plugin, "true"), (client, "true")], true),
            // With GPUs given by dynamic resource allocation there is no plugin.
            (&[(plugin, "false"), (client, "true")], true),
            (&[(plugin, paused)], false),
            (&[(plugin, paused), (client, paused)], false),
            (&[(plugin, "true"), (client, "paused-for-mig-change")], false),
        ] {
            assert_eq!(on("energy-agent-gpu", more), stays, "{folder} {more:?}");
            assert!(!on("energy-agent", more), "{folder} {more:?}");
        }
    }
}

#[test]
fn the_examples_in_the_policy_config_map_are_right_once_uncommented() {
    let objects = rendered("base");
    let document = object(&objects, "ConfigMap", "energy-agent-policies")["data"]["policies.yaml"].as_str().unwrap();
    let example = |line: &str| {
        line.strip_prefix('#').filter(|rest| rest.starts_with("- ") || rest.starts_with("  ")).map(str::to_owned)
    };
    let lines: Vec<String> = document.lines().filter_map(example).collect();
    let policies = parsed(&lines.join("\n")).remove(0);
    assert_eq!(policies.as_array().unwrap().len(), 2);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("policies.yaml");
    for text in [document.to_owned(), format!("version: 1\npolicies:\n{}\n", lines.join("\n"))] {
        fs::write(&file, &text).unwrap();
        let output = Command::new(crate::common::agent::PROGRAM).args(["policy", "check"]).arg(&file).output().unwrap();
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stdout));
    }
    let in_chart = fs::read_to_string(deploy().join("helm/energy-agent/files/policies.yaml")).unwrap();
    assert_eq!(document, in_chart);
}

/// The rules have one source, a file for a Prometheus server. Helm takes it as it is, kustomize can't.
#[test]
fn the_prometheus_rule_is_the_file_of_rules() {
    let file = deploy().join("prometheus/operator/prometheusrule.yaml");
    let rules = fs::read_to_string(deploy().join("prometheus/rules.yaml")).unwrap();
    let found = fs::read_to_string(&file).unwrap();
    let head = &found[..found.find("\nspec:\n").unwrap() + "\nspec:\n".len()];
    let indented = |line: &str| if line.trim().is_empty() { line.to_owned() } else { format!("  {line}") };
    let expected = head.to_owned() + &rules.split_inclusive('\n').map(indented).collect::<String>();
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, &expected).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap();
    let again = "run UPDATE_DOCS=1 cargo test -p energy-agent --test program prometheus_rule";
    assert!(found == expected, "{} is old; {again}", file.display());
    // As YAML too: nothing of it means something else for being indented.
    let objects = rendered("overlays/kube-prometheus");
    assert_eq!(object(&objects, "PrometheusRule", "energy-agent")["spec"], parsed(&rules)[0]);
}

/// What docs/install.md tells people to write beside the folder deploy.
#[test]
fn the_kustomization_of_the_guide_renders_with_an_image_of_ones_own() {
    let guide = fs::read_to_string(deploy().join("../docs/install.md")).unwrap();
    let kustomization = guide.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(kustomization.starts_with("# site/kustomization.yaml\n"), "{kustomization}");
    let folder = TempDir::new().unwrap();
    let site = folder.path().join("site");
    fs::create_dir(&site).unwrap();
    symlink(deploy().canonicalize().unwrap(), folder.path().join("deploy")).unwrap();
    fs::write(site.join("kustomization.yaml"), kustomization).unwrap();
    let objects = rendered(site.to_str().unwrap());
    let container = &object(&objects, "DaemonSet", "energy-agent")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], concat!("REGISTRY/energy-agent:", env!("CARGO_PKG_VERSION")));
    object(&objects, "PodMonitor", "energy-agent");
    // With policies in a file of one's own.
    let generator = guide.split("```yaml\n").nth(2).unwrap().split("```").next().unwrap();
    let capping = kustomization.replace("components/kube-prometheus", "components/capping");
    assert_ne!(capping, kustomization);
    fs::write(site.join("kustomization.yaml"), capping + generator).unwrap();
    fs::write(site.join("policies.yaml"), "version: 1\n").unwrap();
    let objects = rendered(site.to_str().unwrap());
    assert_eq!(
        object(&objects, "ConfigMap", "energy-agent-policies")["data"],
        json!({"policies.yaml": "version: 1\n"})
    );

    // The label that the Prometheus of kube-prometheus-stack asks for.
    let patches = guide.split("```yaml\n").nth(3).unwrap().split("```").next().unwrap();
    fs::write(site.join("kustomization.yaml"), kustomization.to_owned() + patches).unwrap();
    let objects = rendered(site.to_str().unwrap());
    for kind in ["PodMonitor", "PrometheusRule"] {
        assert_eq!(object(&objects, kind, "energy-agent")["metadata"]["labels"]["release"], "NAME");
    }
    assert!(object(&objects, "DaemonSet", "energy-agent")["metadata"]["labels"]["release"].is_null());
    // A web.yaml of one's own, as the component says.
    let component = fs::read_to_string(deploy().join("components/tls/kustomization.yaml")).unwrap();
    let patches = component.lines().filter_map(|line| line.strip_prefix("#   "));
    let patches: String = patches.map(|line| format!("{line}\n")).collect();
    let secured = kustomization.replace("components/kube-prometheus", "components/tls");
    fs::write(site.join("kustomization.yaml"), secured + &patches).unwrap();
    let objects = rendered(site.to_str().unwrap());
    let web = object(&objects, "Secret", "energy-agent-web")["stringData"]["web.yaml"].as_str().unwrap();
    assert!(web.contains("cert_file: tls.crt") && web.contains("prometheus: HASH"), "{web}");

    let table = guide.lines().skip_while(|line| !line.starts_with("| component or base, and overlay |")).skip(2);
    let named =
        table.map_while(|line| line.strip_prefix("| `")?.split('`').next()).map(|name| format!("overlays/{name}"));
    let overlays = folders().into_iter().filter(|folder| folder != "base");
    assert_eq!(named.collect::<BTreeSet<_>>(), overlays.collect());
}

/// The job for a Prometheus without the operator.
#[test]
fn prometheus_takes_the_job_of_the_guide() {
    let guide = fs::read_to_string(deploy().join("../docs/install.md")).unwrap();
    let job = guide.split("```yaml\n").nth(4).unwrap().split("```").next().unwrap();
    assert!(job.starts_with("scrape_configs:\n- job_name: energy-agent\n"), "{job}");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("prometheus.yaml");
    // Debian's promtool has no discovery by Kubernetes.
    let discovery = "  kubernetes_sd_configs:\n  - role: pod\n    namespaces: {names: [energy-agent]}\n";
    assert!(job.contains(discovery), "{job}");
    fs::write(&file, job.replace(discovery, "  static_configs: [{targets: [node]}]\n")).unwrap();
    let output = Command::new("promtool").args(["check", "config"]).arg(&file).output();
    let output = output.unwrap_or_else(|error| panic!("promtool: {error}; `cargo xtask test` provides it"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// On GKE, where each namespace but kube-system has to have a quota for the class that the DaemonSet asks for.
#[test]
fn a_quota_for_the_priority_class_of_the_agent_comes_along_where_it_is_asked_for_fc_124() {
    let is_quota = |object: &&Value| object["kind"] == "ResourceQuota";
    assert!(folders().iter().any(|folder| folder == "overlays/priority-quota"), "{:?}", folders());
    for folder in folders() {
        let objects = rendered(&folder);
        let quotas: Vec<&Value> = objects.iter().filter(is_quota).collect();
        assert_eq!(quotas.len(), usize::from(folder == "overlays/priority-quota"), "{folder}");
        let agent = object(&objects, "DaemonSet", "energy-agent");
        let class = &agent["spec"]["template"]["spec"]["priorityClassName"];
        assert_eq!(class, "system-node-critical");
        for quota in quotas {
            assert_eq!(quota["metadata"]["namespace"], agent["metadata"]["namespace"]);
            let scope = json!({"scopeName": "PriorityClass", "operator": "In", "values": [class]});
            assert_eq!(quota["spec"]["scopeSelector"], json!({"matchExpressions": [scope]}));
            // Nothing else is counted, so that nothing else of the namespace has to say what it needs.
            assert_eq!(quota["spec"]["hard"], json!({"pods": "1G"}));
        }
    }
    // The event by which people find the remedy.
    let guide = fs::read_to_string(deploy().join("../docs/install.md")).unwrap();
    let guide = guide.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(guide.contains("insufficient quota to match these scopes: [{PriorityClass In [system-node-critical"));
    for remedy in ["component `priority-quota`", "`priorityQuota=true`"] {
        assert!(guide.contains(remedy), "{remedy}");
    }
}

/// `kubectl exec` gives doctor the container's variables and none of its arguments.
#[test]
fn doctor_in_a_pod_asks_for_pods_where_the_agent_does() {
    for (folder, source) in [("base", "API server, "), ("overlays/kubelet", "kubelet at https://127.0.0.1:10250")] {
        let objects = rendered(folder);
        let container = &object(&objects, "DaemonSet", "energy-agent")["spec"]["template"]["spec"]["containers"][0];
        let folder = TempDir::new().unwrap();
        // Nobody is there, so that the row says who was asked.
        let config = kubeconfig(folder.path(), "https://127.0.0.1:1", None, &json!({"token": "none"}));
        let mut doctor = Command::new(crate::common::agent::PROGRAM);
        doctor.args(["doctor", "--format=json", "--node.name=here"]).env("ENERGY_AGENT_KUBECONFIG", config);
        for variable in items(&container["env"]) {
            let value = variable["value"].as_str().unwrap_or(match &variable["valueFrom"]["fieldRef"]["fieldPath"] {
                path if path == "status.hostIP" => "127.0.0.1",
                _ => "here",
            });
            doctor.env(variable["name"].as_str().unwrap(), value);
        }
        let output = doctor.output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let row = items(&found["checks"]).find(|row| row["name"] == "kubernetes").unwrap();
        assert!(row["detail"].as_str().unwrap().starts_with(source), "{row}");
    }
}

/// On a host without Kubernetes the agent gets what its container gets.
#[test]
fn the_systemd_unit_is_right_and_gives_the_capabilities_of_the_daemon_set() {
    let file = deploy().join("debian/energy-agent.service");
    let unit = fs::read_to_string(&file).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let objects = rendered("base");
    let container = &object(&objects, "DaemonSet", "energy-agent")["spec"]["template"]["spec"]["containers"][0];
    let added = items(&container["securityContext"]["capabilities"]["add"]);
    let added: Vec<String> = added.map(|name| format!("CAP_{}", name.as_str().unwrap())).collect();
    assert_eq!(line, added.join(" "));

    // With the program where the unit names it, which need not be on this machine.
    let folder = TempDir::new().unwrap();
    let here = folder.path().join("energy-agent.service");
    fs::write(&here, unit.replace("/usr/bin/energy-agent", crate::common::agent::PROGRAM)).unwrap();
    for arguments in [&["verify"][..], &["security", "--offline=true", "--threshold=40"]] {
        let output = Command::new("systemd-analyze").args(arguments).arg(&here).output();
        let output = output.unwrap_or_else(|error| panic!("systemd-analyze: {error}; it comes with systemd"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("energy-agent.service:"), "{arguments:?}: {said}");
    }
}
