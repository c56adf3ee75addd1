//! What a container runtime makes of a pod: the OCI configuration that containerd gives to runc for the one container of a
//! DaemonSet. Source: <https://github.com/containerd/containerd/tree/v1.7.27/pkg/cri/server>.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::manifests::items;

/// What is hidden of /proc and /sys in every container.
const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/firmware",
];
const POWERCAP: &str = "/sys/devices/virtual/powercap";
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The configuration of the DaemonSet's container; `unpacked` is what the image alone asks for. `state` stands for the
/// node's folder of that name, `run` beside it for that of the lock.
pub fn config(unpacked: &Value, daemon_set: &Value, id: &str, state: &Path) -> Value {
    let pod = &daemon_set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["image"], concat!("localhost/energy-agent:", env!("CARGO_PKG_VERSION")));
    let security = &container["securityContext"];
    assert_ne!(security["privileged"], true);
    let capabilities = capabilities(&security["capabilities"]);
    let variables = variables(container);

    // umoci puts the entry point there.
    let mut arguments: Vec<String> = items(&unpacked["process"]["args"]).map(text).collect();
    arguments.extend(items(&container["args"]).map(|item| expanded(&text(item), &variables)));
    let mut environment: Vec<String> = items(&unpacked["process"]["env"]).map(text).collect();
    environment.extend(variables.iter().map(|(name, value)| format!("{name}={value}")));

    let mut namespaces = vec!["network", "ipc", "uts", "mount", "cgroup"];
    if pod["hostPID"] != true {
        namespaces.push("pid");
    }
    assert_ne!(pod["hostNetwork"], true);
    let namespaces: Vec<Value> = namespaces.iter().map(|kind| json!({"type": kind})).collect();
    let seccomp = match security["seccompProfile"]["type"].as_str() {
        Some("RuntimeDefault") => seccomp(&capabilities),
        other => panic!("seccomp profile {other:?}"),
    };
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false, "cwd": "/", "args": arguments, "env": environment,
            "user": {"uid": security["runAsUser"], "gid": security["runAsGroup"]},
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "noNewPrivileges": security["allowPrivilegeEscalation"] == false,
        },
        "root": {"path": "rootfs", "readonly": security["readOnlyRootFilesystem"]},
        "hostname": "energy-agent",
        "mounts": mounts(pod, state),
        "linux": {
            "namespaces": namespaces,
            "cgroupsPath": format!("/{id}"),
            "resources": {
                "devices": [{"allow": false, "access": "rwm"}],
                "memory": {"limit": bytes(&container["resources"]["limits"]["memory"])},
            },
            "maskedPaths": MASKED.iter().chain([&POWERCAP]).collect::<Vec<_>>(),
            "readonlyPaths": READ_ONLY,
            "seccomp": seccomp,
        },
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// None of the runtime's own are left, and these are added.
fn capabilities(wanted: &Value) -> Vec<String> {
    assert_eq!(wanted["drop"], json!(["ALL"]));
    items(&wanted["add"]).map(|name| format!("CAP_{}", name.as_str().unwrap())).collect()
}

/// The container's variables, with a node's and a namespace's name.
fn variables(container: &Value) -> BTreeMap<String, String> {
    let value = |variable: &Value| match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
        None => text(&variable["value"]),
        Some("spec.nodeName") => "node-a".to_owned(),
        Some("metadata.namespace") => "energy-agent".to_owned(),
        Some(other) => panic!("no value for {other}"),
    };
    items(&container["env"]).map(|variable| (text(&variable["name"]), value(variable))).collect()
}

/// `$(NAME)` as the kubelet replaces it.
fn expanded(argument: &str, variables: &BTreeMap<String, String>) -> String {
    variables.iter().fold(argument.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
}

fn bytes(quantity: &Value) -> u64 {
    quantity.as_str().unwrap().strip_suffix("Mi").unwrap().parse::<u64>().unwrap() << 20
}

fn mounts(pod: &Value, state: &Path) -> Vec<Value> {
    let own = |to: &str, kind: &str, options: &[&str]| json!({"destination": to, "type": kind, "source": kind, "options": options});
    let mut mounts = vec![
        own("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        own("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        own("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        own("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        own("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        own("/sys/fs/cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]),
    ];
    let mut volumes: Vec<&Value> = items(&pod["containers"][0]["volumeMounts"]).collect();
    // Folders before what is in them, whatever the order in the manifest.
    volumes.sort_by_key(|mount| mount["mountPath"].as_str().unwrap().split('/').count());
    for mount in volumes {
        let volume = items(&pod["volumes"]).find(|volume| volume["name"] == mount["name"]).unwrap();
        let host = volume["hostPath"]["path"].as_str().unwrap();
        let run = state.with_file_name("run");
        let source = match host {
            "/var/lib/energy-agent" => state,
            "/run/energy-agent" => {
                fs::create_dir_all(&run).unwrap();
                &run
            }
            host => Path::new(host),
        };
        let mut options = vec!["rbind", "rprivate", if mount["readOnly"] == true { "ro" } else { "rw" }];
        if mount["recursiveReadOnly"] == "IfPossible" {
            options.push("rro");
        }
        mounts.push(json!({"destination": mount["mountPath"], "type": "bind", "source": source, "options": options}));
    }
    mounts
}

/// The runtime's default profile for these capabilities: Debian's list of system calls, in which bpf and perf_event_open
/// follow CAP_BPF and CAP_PERFMON, as containerd has it since 1.7.
fn seccomp(capabilities: &[String]) -> Value {
    const LIST: &str = "/usr/share/containers/seccomp.json";
    let list = fs::read_to_string(LIST).unwrap_or_else(|error| panic!("{LIST}: {error}; it comes with buildah"));
    let profile: Value = serde_json::from_str(&list).unwrap();
    let holds = |conditions: &Value, all: bool| {
        let has = |names: &Value| {
            let mut named = items(names).map(|name| capabilities.iter().any(|given| name == given.as_str()));
            if all { named.all(|given| given) } else { named.any(|given| given) }
        };
        let here = |names: &Value| items(names).any(|name| name == "amd64" || name == "x86_64");
        let caps = if conditions["caps"].is_array() { has(&conditions["caps"]) } else { all };
        let arches = if conditions["arches"].is_array() { here(&conditions["arches"]) } else { all };
        if all { caps && arches } else { caps || arches }
    };
    let mut rules: Vec<Value> = Vec::new();
    for (call, capability) in [("bpf", "CAP_BPF"), ("perf_event_open", "CAP_PERFMON")] {
        if capabilities.iter().any(|given| given == capability) {
            rules.push(json!({"names": [call], "action": "SCMP_ACT_ALLOW"}));
        }
    }
    for rule in items(&profile["syscalls"]) {
        if holds(&rule["includes"], true) && !holds(&rule["excludes"], false) {
            let names: Vec<&Value> =
                items(&rule["names"]).filter(|name| *name != "bpf" && *name != "perf_event_open").collect();
            let mut rule =
                json!({"names": names, "action": rule["action"], "args": rule["args"], "errnoRet": rule["errnoRet"]});
            rule.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            rules.push(rule);
        }
    }
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "architectures": ["SCMP_ARCH_X86_64"], "syscalls": rules})
}
