//! Where names come from: the API server over TLS with the credentials that there are, the kubelet, or nowhere.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::common::agent::{Agent, PROGRAM};
use crate::common::cgroup;
use crate::common::kubernetes::cluster::{TOKEN, kubeconfig};
use crate::common::kubernetes::node::{Node, POD_JOULES, wait_for_source};
use crate::common::kubernetes::proxy::Answer;
use crate::common::kubernetes::server::Authority;
use crate::common::kubernetes::status_object;

const INTERVAL: &str = "--interval=250ms";

/// Flags for the API server itself, without the proxy.
fn direct(node: &Node, authority: &Path) -> [String; 3] {
    let file = kubeconfig(node.folder(), &node.cluster.url, Some(authority), &json!({"token": TOKEN}));
    ["--pods.source=api".to_owned(), format!("--kubeconfig={}", file.display()), format!("--node.name={}", node.name)]
}

fn start(flags: &[String]) -> Agent {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Agent::start(&[&[INTERVAL], flags.as_slice()].concat())
}

#[test]
fn an_api_server_with_the_right_certificate_tells_names_over_tls() {
    let node = Node::new();
    let pod = node.pod("cart", &["main"]);
    let agent = start(&direct(&node, &node.cluster.authority));
    pod.burn("main", 20);
    let page = pod.wait_for_name(&agent);
    page.assert_conserved();
    wait_for_source(&agent, "1");
    assert_eq!(node.proxy.asked().len(), 0, "it went by the proxy");
    node.cluster.delete(&pod.object);
}

#[test]
fn an_api_server_with_another_certificate_is_refused_and_told() {
    let node = Node::new();
    let pod = node.pod("cart", &["main"]);
    let stranger = Authority::new();
    let mut agent = start(&direct(&node, &stranger.file()));
    pod.burn("main", 20);
    assert_eq!(wait_for_source(&agent, "0"), "tls");
    let page = agent.after_ticks(2);
    page.assert_conserved();
    assert!(pod.used(&page).0 > 0 && !pod.is_named(&page));
    let told = agent.assert_all_logged(&[" WARN ", "pods cannot be read"], 1);
    let remedy = format!("correct certificate-authority in kubeconfig {}", node.kubeconfig.display());
    assert!(told[0].contains(&node.cluster.url) && told[0].contains(&remedy), "{}", told[0]);
    agent.assert_well();
    node.cluster.delete(&pod.object);
}

#[test]
fn without_encryption_no_certificates_are_needed_on_the_machine() {
    let node = Node::new();
    let pod = node.pod("cart", &["main"]);
    let (kubeconfig, name) =
        (format!("--kubeconfig={}", node.kubeconfig.display()), format!("--node.name={}", node.name));
    let command = ["env", "SSL_CERT_FILE=/nowhere", "SSL_CERT_DIR=/nowhere", PROGRAM];
    let agent = Agent::spawn(&command, &[INTERVAL, "--pods.source=api", &kubeconfig, &name]);
    agent.wait_until_ready();
    assert_eq!(wait_for_source(&agent, "1"), "ok");
    node.cluster.delete(&pod.object);
}

/// A service account's files, where a pod has them.
#[test]
fn inside_a_cluster_the_service_account_is_used_without_a_flag() {
    let node = Node::new();
    let pod = node.pod("cart", &["main"]);
    std::fs::write(node.folder().join("token"), TOKEN).unwrap();
    std::fs::copy(&node.cluster.authority, node.folder().join("ca.crt")).unwrap();
    std::fs::write(node.folder().join("namespace"), "energy").unwrap();
    let (host, port) = node.cluster.url.strip_prefix("https://").unwrap().rsplit_once(':').unwrap();
    let script = format!(
        "set -e; mount -t tmpfs tmpfs /run; mkdir -p /run/secrets/kubernetes.io; \
         cp -r {} /run/secrets/kubernetes.io/serviceaccount; test -e /var/run/secrets; exec \"$0\" \"$@\"",
        node.folder().display()
    );
    let variables = [
        format!("KUBERNETES_SERVICE_HOST={host}"),
        format!("KUBERNETES_SERVICE_PORT={port}"),
        format!("NODE_NAME={}", node.name),
        "HOME=/nonexistent".to_owned(),
    ];
    let mut command = vec!["unshare", "--mount", "env", "-u", "KUBECONFIG"];
    command.extend(variables.iter().map(String::as_str));
    command.extend(["sh", "-c", &script, PROGRAM]);
    let agent = Agent::spawn(&command, &[INTERVAL]);
    agent.wait_until_ready();
    pod.burn("main", 20);
    let page = pod.wait_for_name(&agent);
    assert_eq!(page.select(POD_JOULES, &pod.labels())[0].label("node_name"), node.name);
    wait_for_source(&agent, "1");
    node.cluster.delete(&pod.object);
}

#[test]
fn a_node_outside_any_cluster_works_without_names_and_without_complaint() {
    let outside = [
        "env",
        "-u",
        "KUBECONFIG",
        "-u",
        "KUBERNETES_SERVICE_HOST",
        "-u",
        "KUBERNETES_SERVICE_PORT",
        "HOME=/nonexistent",
        PROGRAM,
    ];
    for (flags, reason) in [(&[INTERVAL][..], "absent"), (&[INTERVAL, "--pods.source=none"][..], "off")] {
        let mut agent = Agent::spawn(&outside, flags);
        agent.wait_until_ready();
        let pod = cgroup::Pod::new();
        pod.load(&["burn", "50000"]).wait();
        let page = agent.after_ticks(2);
        page.assert_conserved();
        let labels = [("pod_id", pod.uid.as_str())];
        assert!(page.microjoules(POD_JOULES, &labels) > 0);
        assert_eq!(page.select(POD_JOULES, &labels)[0].label("pod_name"), "");
        assert_eq!(page.one("energy_agent_meter_up", &[("meter", "pods")]).label("reason"), reason);
        assert_eq!(page.one("energy_agent_meter_up", &[("meter", "pods")]).value, "0");
        let complaints: Vec<String> =
            agent.logged("pod").into_iter().filter(|line| line.contains(" WARN ") || line.contains("ERROR")).collect();
        assert_eq!(complaints, Vec::<String>::new());
        agent.assert_well();
    }
}

#[test]
fn the_doctor_says_which_source_answers_and_what_is_missing() {
    let node = Node::new();
    let (kubeconfig, name) =
        (format!("--kubeconfig={}", node.kubeconfig.display()), format!("--node.name={}", node.name));
    let doctor = || {
        let command = ["doctor", "--ebpf=off", &kubeconfig, &name];
        let output = Command::new(PROGRAM).args(command).env("COLUMNS", "400").output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let lines: Vec<_> = text.lines().skip_while(|line| !line.starts_with("  kubernetes")).take(2).collect();
        lines.join("\n")
    };
    let row = doctor();
    let missing = format!("has no pod on node {}", node.name);
    assert!(row.contains("fallback") && row.contains(&missing) && row.contains("NODE_NAME"), "{row}");
    let pod = node.pod("cart", &["main"]);
    let row = doctor();
    assert!(row.contains("ok") && row.contains(&format!("1 pod on node {}", node.name)), "{row}");
    node.proxy.faults().lists = Answer::Refuse(403, status_object(403, "Forbidden", "pods is forbidden"));
    let row = doctor();
    assert!(row.contains("missing") && row.contains("list and watch on pods at cluster scope"), "{row}");
    node.proxy.faults().lists = Answer::status(401);
    let row = doctor();
    assert!(row.contains("missing") && row.contains("unauthorized") && row.contains("-> renew"), "{row}");
    node.cluster.delete(&pod.object);
}

/// FC-107: a pod that was not given the host's process ids.
#[test]
fn in_a_pod_without_the_hosts_processes_the_agent_says_so_once() {
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", PROGRAM];
    let command = [["env", "KUBERNETES_SERVICE_HOST=127.0.0.1"].as_slice(), &unshare].concat();
    let agent = Agent::spawn(&command, &[INTERVAL, "--pods.source=none"]);
    agent.wait_until_ready();
    let page = agent.after_ticks(5);
    let row = page.one("energy_agent_meter_up", &[("meter", "host_pid")]);
    assert_eq!((row.label("reason"), row.value.as_str()), ("restricted", "0"));
    agent.assert_logged("hostPID: true", 1);
}
