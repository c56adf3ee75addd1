//! Kepler's metric names, types and labels on a live page, so that its dashboards work unchanged; and Prometheus' own
//! opinion of the page.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::Load;
use crate::common::kubernetes::node::{Node, Pod};
use crate::common::nvml::{FakeNvml, gpu, process};
use crate::common::powercap::Powercap;
use fake_nvml::plant::Plant;

/// The metrics that Kepler exports: name, type, labels.
const CONTRACT: &str = include_str!("../kepler-contract.tsv");

/// Rows that do not apply, by the beginning of the name, and why.
const NOT_YET: [(&str, &str); 2] = [
    ("kepler_vm_", "virtual machines are cgroups like any other here"),
    ("kepler_platform_", "power of the platform from a BMC is not read"),
];

/// Labels that are empty, and so left out, and why.
const EMPTY: [(&str, &str); 2] =
    [("vm_id", "virtual machines are cgroups like any other here"), ("goversion", "there is no Go")];

/// Rows that do apply.
fn rows() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let row = |line: &'static str| {
        let fields: Vec<_> = line.split('\t').collect();
        let [name, kind, labels] = fields[..] else { panic!("not a row: {line}") };
        (name, kind, labels.split(',').filter(|label| EMPTY.iter().all(|(empty, _)| empty != label)).collect())
    };
    let all = CONTRACT.lines().filter(|line| !line.starts_with('#')).map(row);
    all.filter(|(name, ..)| !NOT_YET.iter().any(|(prefix, _)| name.starts_with(prefix))).collect()
}

/// A running agent with two sockets' zones and a GPU, and pods that work: in containers, sandboxes and beside them.
struct World {
    agent: Agent,
    pods: [Pod; 2],
    _loads: [Load; 4],
    _node: Node,
    _meters: (Powercap, FakeNvml),
}

fn busy() -> World {
    let powercap = Powercap::two_sockets();
    let node = Node::new();
    let pods = [node.pod("web", &["main"]), node.pod("train", &["main"])];
    let nap = ["sleepers", "0", "2000", "2000"];
    let loads = [
        pods[0].load("main", &["spin", "0"]),
        pods[1].load("main", &nap),
        Load::start(&pods[1].cgroup.cgroup.dir, &nap),
        Load::start(&pods[1].cgroup.container, &nap),
    ];
    let mut card = gpu("GPU-1");
    card.plant = Some(Plant::default());
    let mut user = process(loads[0].0.id());
    user.load = 0.5;
    card.processes = Some(vec![user]);
    let nvml = FakeNvml::new().gpu(card);
    nvml.play();
    let agent = node.agent(&[
        "--interval=200ms",
        "--meter.trust-guest",
        &powercap.sysfs_flag(),
        "--export.levels=node,pod,container,process",
        &nvml.flag(),
    ]);
    for _ in 0..3 {
        powercap.zones.iter().for_each(|zone| zone.add(3_000_000));
        agent.after_ticks(1);
    }
    agent.after_ticks(1);
    pods.iter().for_each(|pod| drop(pod.wait_for_name(&agent)));
    wait_for("GPU power of the pod", || agent.scrape().has("kepler_pod_gpu_watts", &[]).then_some(()));
    World { agent, pods, _loads: loads, _node: node, _meters: (powercap, nvml) }
}

#[test]
fn every_metric_of_kepler_that_applies_is_there_with_its_type_and_labels() {
    let World { agent, pods, .. } = &busy();
    let page = agent.scrape();
    let ours = |label: &str| pods.iter().any(|pod| pod.uid() == label);
    let rows = rows();
    assert_eq!(rows.len(), 30, "{rows:#?}");
    for (name, kind, labels) in rows {
        assert!(page.text.contains(&format!("# TYPE {name} {kind}\n")), "no # TYPE {name} {kind}");
        let mut samples = page.select(name, &[]);
        if labels.contains(&"pod_id") {
            // Others may run containers here that are in no pod.
            samples.retain(|sample| ours(sample.label("pod_id")));
        }
        if labels.contains(&"pid") {
            // Only these have all labels: others run outside containers, or are sums without a pid.
            samples.retain(|sample| pods.iter().any(|pod| pod.id("main") == sample.label("container_id")));
        }
        assert!(!samples.is_empty(), "{name} has no series");
        for sample in samples {
            for label in &labels {
                assert_ne!(sample.label(label), "", "{label} is not in {sample:?}");
            }
        }
    }
}

#[test]
fn promtool_finds_nothing_to_object_to() {
    let World { agent, .. } = &busy();
    let open_metrics = agent.fetch("application/openmetrics-text; version=1.0.0");
    assert!(open_metrics.ends_with("\n# EOF\n"));
    let page = agent.scrape();
    assert!(!page.text.contains("# EOF"));
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool: {error}; `cargo xtask test` provides it"));
    promtool.stdin.take().unwrap().write_all(page.text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
