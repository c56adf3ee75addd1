//! What the pods may do: Pod Security (FC-101), and the API server's roles against what an agent asks for.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::kubernetes::cluster::Cluster;
use crate::common::kubernetes::node::Node;
use crate::common::manifests::{folders, items, object, rendered};
use crate::common::nvml::{FakeNvml, gpu};
use crate::common::pod_resources::{Kubelet, claim, listed_pod};

/// What the level `baseline` refuses of a pod.
/// Source: <https://kubernetes.io/docs/concepts/security/pod-security-standards/>.
fn refused(pod: &Value) -> BTreeSet<String> {
    const HARMLESS: [&str; 13] = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    let mut refused = BTreeSet::new();
    for name in ["hostPID", "hostIPC", "hostNetwork"] {
        if pod[name] == true {
            refused.insert(name.to_owned());
        }
    }
    if items(&pod["volumes"]).any(|volume| volume["hostPath"].is_object()) {
        refused.insert("hostPath".to_owned());
    }
    for container in items(&pod["containers"]) {
        let security = &container["securityContext"];
        let mut note = |wrong: bool, what: &str| {
            if wrong {
                refused.insert(what.to_owned());
            }
        };
        note(security["privileged"] == true, "privileged");
        note(security["procMount"].is_string(), "procMount");
        note(security["seccompProfile"]["type"] == "Unconfined", "seccomp");
        note(items(&container["ports"]).any(|port| port["hostPort"].is_number()), "hostPort");
        for capability in items(&security["capabilities"]["add"]).map(|name| name.as_str().unwrap()) {
            note(!HARMLESS.contains(&capability), capability);
        }
    }
    refused
}

/// FC-101: the namespace has the label that its pods need, and nothing else of them needs it.
#[test]
fn the_namespace_lets_in_what_the_pods_need_and_they_need_no_more() {
    for folder in folders() {
        let objects = rendered(&folder);
        let namespace = object(&objects, "Namespace", "energy-agent");
        for mode in ["enforce", "audit", "warn"] {
            assert_eq!(namespace["metadata"]["labels"][format!("pod-security.kubernetes.io/{mode}")], "privileged");
        }
        for daemon_set in objects.iter().filter(|object| object["kind"] == "DaemonSet") {
            let name = daemon_set["metadata"]["name"].as_str().unwrap();
            let pod = &daemon_set["spec"]["template"]["spec"];
            let mut expected = BTreeSet::from(["hostPID", "hostPath", "BPF", "PERFMON"].map(str::to_owned));
            let writes_gpus = folder == "overlays/gpu-capping" && name == "energy-agent-gpu";
            if writes_gpus {
                expected.insert("SYS_ADMIN".to_owned());
            }
            assert_eq!(refused(pod), expected, "{folder} {name}");
            let security = &pod["containers"][0]["securityContext"];
            assert_eq!(security["readOnlyRootFilesystem"], true);
            assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
            assert_eq!(security["allowPrivilegeEscalation"] == false, !writes_gpus, "{folder} {name}");
            let writable: Vec<&str> = items(&pod["containers"][0]["volumeMounts"])
                .filter(|mount| mount["readOnly"] != true)
                .map(|mount| mount["mountPath"].as_str().unwrap())
                .collect();
            let caps = items(&pod["containers"][0]["args"]).any(|argument| argument == "--capping=on");
            assert_eq!(writable.len(), if caps { 5 } else { 1 }, "{folder} {name}: {writable:?}");
        }
    }
}

/// By the level `restricted`, and two of them wherever nodes are drained.
#[test]
fn the_controller_has_two_replicas_and_no_privileges() {
    let objects = rendered("overlays/controller");
    let deployment = object(&objects, "Deployment", "energy-agent-controller");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(refused(pod), BTreeSet::new());
    assert_eq!(
        (&pod["securityContext"]["runAsNonRoot"], &pod["securityContext"]["seccompProfile"]["type"]),
        (&json!(true), &json!("RuntimeDefault"))
    );
    let security = &pod["containers"][0]["securityContext"];
    let expected = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
    });
    assert_eq!(*security, expected);
    assert_eq!(deployment["spec"]["replicas"], 2);
    let disruption = object(&objects, "PodDisruptionBudget", "energy-agent-controller");
    assert_eq!(disruption["spec"]["selector"], deployment["spec"]["selector"]);
    // The Service of the agents does not find it.
    let agents = &object(&objects, "Service", "energy-agent")["spec"]["selector"];
    assert_ne!(
        agents["app.kubernetes.io/name"],
        deployment["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
    );
}

/// Tenants write policies of their namespaces by the roles that clusters have; budgets and levels are in none of these.
#[test]
fn who_may_edit_a_namespace_may_edit_its_policies_and_nothing_else_of_ours() {
    let objects = rendered("overlays/controller");
    for (name, labels) in [
        ("energy-agent-policies-edit", &["aggregate-to-edit", "aggregate-to-admin"][..]),
        ("energy-agent-policies-view", &["aggregate-to-view"]),
    ] {
        let role = object(&objects, "ClusterRole", name);
        for label in labels {
            assert_eq!(role["metadata"]["labels"][format!("rbac.authorization.k8s.io/{label}")], "true");
        }
        let rules: Vec<&Value> = items(&role["rules"]).collect();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0]["resources"], json!(["powercappingpolicies"]));
    }
    let aggregated =
        |role: &&Value| role["metadata"]["labels"].as_object().unwrap().keys().any(|key| key.contains("aggregate-to"));
    let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole");
    assert_eq!(roles.filter(aggregated).count(), 2);
}

/// An allowed request: namespace (empty: everywhere), resource, verb, and the object's name (empty: any).
type Right = (String, String, String, String);

fn granted(objects: &[Value]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for role in objects.iter().filter(|object| object["kind"] == "ClusterRole" || object["kind"] == "Role") {
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in items(&role["rules"]) {
            let group = match rule["resources"][0].as_str().unwrap() {
                "events" => "events.k8s.io",
                "resourceslices" => "resource.k8s.io",
                _ => "",
            };
            assert_eq!(rule["apiGroups"], json!([group]), "{rule}");
            let mut names: Vec<&str> = items(&rule["resourceNames"]).map(|name| name.as_str().unwrap()).collect();
            if names.is_empty() {
                names.push("");
            }
            for resource in items(&rule["resources"]) {
                for verb in items(&rule["verbs"]) {
                    let right = |name: &&str| {
                        [namespace, resource.as_str().unwrap(), verb.as_str().unwrap(), name].map(str::to_owned).into()
                    };
                    rights.extend(names.iter().map(right));
                }
            }
        }
    }
    rights
}

/// What the API server authorizes a request as.
fn right(method: &str, path: &str, is_watch: bool) -> Right {
    assert_eq!(method, "GET", "{path}");
    let (path, query) = path.split_once('?').unwrap();
    let path = path.trim_start_matches("/api/v1/").trim_start_matches("/apis/resource.k8s.io/v1/");
    let parts: Vec<&str> = path.split('/').collect();
    let (namespace, resource) = match parts[..] {
        ["namespaces", namespace, resource] => (namespace, resource),
        [resource] => ("", resource),
        _ => panic!("{path}: of one object"),
    };
    // A selection by name counts as the name.
    let named = query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=metadata.name%3D"));
    let verb = if is_watch { "watch" } else { "list" };
    [namespace, resource, verb, named.unwrap_or_default()].map(str::to_owned).into()
}

#[test]
fn the_roles_allow_what_the_agent_asks_for_and_nothing_else() {
    // A GPU that a pod has by a claim: what it is stands in the node's ResourceSlices.
    let cluster = Cluster::shared();
    cluster.serve_resource_slices(&["v1"]);
    let claimed = listed_pod("ml", "train", "main", &claim("gpu.nvidia.com", "worker-1", "gpu-0"));
    let (kubelet, nvml) = (Kubelet::start(claimed), FakeNvml::new().gpu(gpu("GPU-a")));
    nvml.play();
    let socket = format!("--pods.resources-socket={}", kubelet.socket().display());
    for (folder, flags) in [
        ("base", &[][..]),
        ("overlays/gpu-nodes", &[&*socket, &nvml.flag()]),
        ("overlays/capping", &["--capping=on", "--capping.configmap=energy-agent/energy-agent-policies"]),
    ] {
        let objects = rendered(folder);
        let mut granted = granted(&objects);
        // What only a change of a policy's state asks for, as the tests of capping show.
        let event: Right = ["", "events", "create", ""].map(str::to_owned).into();
        assert_eq!(granted.remove(&event), folder == "overlays/capping");
        let node = Node::new();
        let _agent = node.agent(flags);
        let mut asked = BTreeSet::new();
        crate::common::agent::wait_for("everything that is granted to be asked for", || {
            asked = node.proxy.asked().iter().map(|asked| right(&asked.method, &asked.path, asked.is_watch)).collect();
            granted.is_subset(&asked).then_some(())
        });
        assert_eq!(asked, granted, "{folder}");
    }
}
