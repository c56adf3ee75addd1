//! Idle energy divided among pods: under each policy the parts add up to the whole on every page, whichever pods end.

#![expect(clippy::unwrap_used, reason = "a test panics, its helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};

use crate::common::agent::Agent;
use crate::common::cgroup::{Load, Pod};
use crate::common::page::{Page, decimal};
use crate::common::patience::Patience;
use crate::common::powercap::Powercap;
use energy_model::attribution::idle::IdleModel;
use energy_model::zone::{Source, Zone, ZoneKind};
use serde_json::json;
use tempfile::TempDir;

const POD_IDLE: &str = "energy_agent_pod_idle_joules_total";
const UNASSIGNED: &str = "energy_agent_idle_unassigned_joules_total";
const RETIRED: &str = "energy_agent_retired_idle_joules_total";
const NODE_IDLE: &str = "kepler_node_cpu_idle_joules_total";

/// A running agent on two fake sockets, which has learned their idle power in a former boot: whatever else runs here, some
/// energy is idle.
struct Node {
    powercap: Powercap,
    agent: Agent,
    policy: &'static str,
    _state: TempDir,
}

/// 4 W for a package, half a watt for its memory.
fn learned(powercap: &Powercap) -> IdleModel {
    let mut model = IdleModel::new("a former boot");
    for zone in &powercap.zones {
        let (kind, quiet_uw) =
            if zone.name == "dram" { (ZoneKind::Dram, 500_000) } else { (ZoneKind::Package, 4_000_000) };
        let socket = zone.socket.parse().ok();
        let zone = Zone { kind, socket, die: None, source: Source::Rapl, path: zone.path.clone() };
        (0..40).for_each(|_| model.observe(&zone, quiet_uw, 0));
    }
    model
}

impl Node {
    fn start(policy: &'static str) -> Self {
        Self::start_with(policy, &[])
    }

    fn start_with(policy: &'static str, more: &[&str]) -> Self {
        let powercap = Powercap::two_sockets();
        let state = TempDir::new().unwrap();
        fs::write(state.path().join("idle.json"), learned(&powercap).to_json()).unwrap();
        let flags = [
            "--interval=200ms",
            &format!("--state.directory={}", state.path().display()),
            "--meter.trust-guest",
            &powercap.sysfs_flag(),
            &format!("--attribution.idle-policy={policy}"),
            "--export.terminated-retention=2s",
        ];
        let agent = Agent::start(&[&flags, more].concat());
        Self { powercap, agent, policy, _state: state }
    }

    /// Lets every zone use some energy in each of the next ticks and checks every page; the last one.
    fn after_ticks(&self, ticks: u64) -> Page {
        let mut last = self.agent.scrape();
        for _ in 0..ticks {
            self.powercap
                .zones
                .iter()
                .zip([7_000_003, 1_000_001, 5_000_002, 600_001])
                .for_each(|(zone, uj)| zone.add(uj));
            let page = self.agent.after_ticks(1);
            page.assert_conserved();
            self.assert_handed_out(&page);
            page.assert_not_below(&last);
            last = page;
        }
        last
    }

    /// Node idle is pods, unassigned and retired, to the microjoule, and no series says otherwise about its policy.
    fn assert_handed_out(&self, page: &Page) {
        for (zone, source) in page.divided() {
            let labels = [("zone", zone), ("source", source)];
            let [pods, unassigned, retired] =
                [POD_IDLE, UNASSIGNED, RETIRED].map(|name| page.microjoules(name, &labels));
            let idle = page.microjoules(NODE_IDLE, &labels);
            assert_eq!(idle, pods + unassigned + retired, "{zone}: {pods} + {unassigned} + {retired}");
        }
        for sample in [POD_IDLE, UNASSIGNED, RETIRED].iter().flat_map(|name| page.select(name, &[])) {
            assert_eq!((sample.label("policy"), sample.label("source")), (self.policy, "rapl"), "{sample:?}");
            assert!(["package", "dram"].contains(&sample.label("zone")), "{sample:?}");
        }
        // The idle series of a pod come and go with its others, in the same state.
        let series = |name| -> BTreeSet<[&str; 3]> {
            page.select(name, &[]).iter().map(|it| ["pod_id", "state", "zone"].map(|label| it.label(label))).collect()
        };
        let strays: Vec<_> = series(POD_IDLE).difference(&series("kepler_pod_cpu_joules_total")).copied().collect();
        assert!(strays.is_empty(), "{strays:?}");
    }
}

/// What all zones gave a pod.
fn given(page: &Page, pod: &Pod) -> u64 {
    page.microjoules(POD_IDLE, &[("pod_id", &pod.uid)])
}

/// Totals by pod that the first page has and the second has no more: other tests' pods end here, too.
fn ended(last: &Page, gone: &Page) -> u64 {
    let ended = |pod: &str| !gone.has(POD_IDLE, &[("pod_id", pod)]);
    let samples = last.select(POD_IDLE, &[]).into_iter().filter(|sample| ended(sample.label("pod_id")));
    samples.map(|sample| decimal(&sample.value, 6)).sum()
}

#[test]
fn by_usage_idle_energy_follows_the_work_of_the_pods() {
    let node = Node::start("usage");
    let [busy, calm, asleep] = [Pod::systemd(), Pod::new(), Pod::new()];
    let loads = [
        busy.load(&["sleepers", "0", "3000", "7000"]),
        calm.load(&["sleepers", "0", "1000", "19000"]),
        Load::start(&asleep.container, &["sleep", "600"]),
    ];
    // On one socket, whose idle energy they share.
    for load in &loads[..2] {
        let pinned =
            Command::new("taskset").args(["-cp", "0", &load.0.id().to_string()]).stdout(Stdio::null()).status();
        assert!(pinned.is_ok_and(|status| status.success()), "taskset");
    }
    // On a busy machine the sleeper takes a while to begin to sleep.
    let ran = |page: &Page| page.nanoseconds("energy_agent_pod_cpu_seconds_total", &[("pod_id", &asleep.uid)]);
    let mut start = node.after_ticks(3);
    for _ in 0..20 {
        let before = std::mem::replace(&mut start, node.after_ticks(3));
        if ran(&before) > 0 && ran(&before) == ran(&start) {
            break;
        }
    }
    let end = node.after_ticks(15);
    let gains: Vec<u64> = [&busy, &calm, &asleep].map(|pod| given(&end, pod) - given(&start, pod)).into();
    assert!(gains[0] > 2 * gains[1] && gains[1] > 0, "{gains:?}");
    assert_eq!(gains[2], 0, "who sleeps uses nothing");
    assert!(end.has(POD_IDLE, &[("pod_id", &asleep.uid), ("state", "running")]), "and was measured to");
    // Active energy is what it is without a policy.
    assert_eq!(end.one("energy_agent_attribution_info", &[]).label("idle"), "learned");
    assert!(!end.has("energy_agent_meter_up", &[("meter", "idle_policy")]), "it needs nothing");
}

#[test]
fn in_equal_parts_each_pod_counts_once() {
    let node = Node::start("equal");
    let [busy, asleep] = [Pod::systemd(), Pod::new()];
    let _loads = [
        busy.load(&["sleepers", "0", "1000", "4000"]),
        Load::start(
            &busy.cgroup.child("cri-containerd-0000000000000000000000000000000000000000000000000000000000000001.scope"),
            &["sleep", "600"],
        ),
        asleep.load(&["sleep", "600"]),
    ];
    let start = node.after_ticks(3);
    let end = node.after_ticks(10);
    let gains = [&busy, &asleep].map(|pod| given(&end, pod) - given(&start, pod));
    assert!(gains[0] > 0, "{gains:?}");
    // A microjoule a zone and tick is what rounding may leave.
    let ticks = end.ticks() - start.ticks();
    assert!(gains[0].abs_diff(gains[1]) <= 4 * ticks, "{gains:?} in {ticks} ticks");
}

#[test]
fn by_requests_without_anybody_to_ask_all_of_it_is_unassigned_and_said_so_once() {
    let node = Node::start("requests");
    let pod = Pod::new();
    let _load = pod.load(&["sleepers", "0", "1000", "4000"]);
    let page = node.after_ticks(8);
    assert!(!page.has(POD_IDLE, &[]), "no request is known, so no pod's part is zero");
    assert_eq!(page.microjoules(UNASSIGNED, &[]), page.microjoules(NODE_IDLE, &[]));
    assert!(page.microjoules(UNASSIGNED, &[]) > 0);
    assert_eq!(page.one("energy_agent_meter_up", &[("meter", "idle_policy"), ("reason", "absent")]).value, "0");
    let told = node.agent.assert_logged("idle-policy", 1);
    assert!(told[0].contains(" WARN ") && told[0].contains("--pods.source"), "{told:?}");
}

#[test]
fn by_requests_pods_get_idle_energy_as_they_ask_for_cpu() {
    let cluster = crate::common::kubernetes::node::Node::new();
    let pods = [("large", "1500m"), ("small", "500m"), ("none", "0")].map(|(name, cpu)| {
        let id = crate::common::cgroup::ids().1;
        let container = json!({"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}});
        cluster.adopt(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": cluster.name, "name": name},
            "spec": {"nodeName": cluster.name, "containers": [container]},
            "status": {
                "phase": "Running",
                "containerStatuses": [crate::common::kubernetes::node::running("main", &format!("containerd://{id}"))],
            },
        }))
    });
    let _loads = pods.each_ref().map(|pod| pod.load("main", &["sleep", "600"]));
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig.display());
    let name = format!("--node.name={}", cluster.name);
    let node = Node::start_with("requests", &["--pods.source=api", &kubeconfig, &name]);
    crate::common::kubernetes::node::wait_for_source(&node.agent, "1");
    let start = node.after_ticks(3);
    let end = node.after_ticks(10);
    let given = |page: &Page, uid: &str| page.microjoules(POD_IDLE, &[("pod_id", uid)]);
    let [large, small, none] = pods.each_ref().map(|pod| given(&end, pod.uid()) - given(&start, pod.uid()));
    assert!(small > 0 && none == 0, "{large} {small} {none}");
    // What rounding may leave: two microjoules a zone and tick.
    let ticks = end.ticks() - start.ticks();
    assert!(large.abs_diff(3 * small) <= 8 * ticks, "{large} {small} in {ticks} ticks");
    assert_eq!(end.microjoules(UNASSIGNED, &[]), start.microjoules(UNASSIGNED, &[]));
    for pod in &pods {
        cluster.cluster.delete(&pod.object);
    }
}

#[test]
fn without_a_policy_nothing_is_handed_out() {
    let node = Node::start("none");
    let pod = Pod::new();
    let _load = pod.load(&["sleepers", "0", "1000", "4000"]);
    node.powercap.zones.iter().for_each(|zone| zone.add(5_000_000));
    let page = node.agent.after_ticks(3);
    assert!(page.microjoules(NODE_IDLE, &[]) > 0);
    for name in [POD_IDLE, UNASSIGNED, RETIRED] {
        assert!(!page.text.contains(name), "{name}");
    }
}

/// The death of a pod, under each policy that gives it anything: its part stays as long as its other series, and is retired
/// on the page on which they end.
#[test]
fn what_a_dead_pod_was_given_is_retired_with_it() {
    for policy in ["usage", "equal"] {
        let node = Node::start(policy);
        let (neighbour, pod) = (Pod::new(), Pod::systemd());
        let _steady = neighbour.load(&["sleepers", "0", "1000", "4000"]);
        let load = pod.load(&["sleepers", "0", "1000", "4000"]);
        node.after_ticks(5);
        drop(load);
        pod.remove();
        let mut last = node.after_ticks(2);
        let total = given(&last, &pod);
        assert!(total > 0, "{policy}");
        let mut patience = Patience::new();
        let gone = loop {
            let page = node.after_ticks(1);
            if !page.has("kepler_pod_cpu_joules_total", &[("pod_id", &pod.uid)]) {
                break page;
            }
            page.select(POD_IDLE, &[("pod_id", &pod.uid)])
                .iter()
                .for_each(|it| assert_eq!(it.label("state"), "terminated"));
            assert_eq!(given(&page, &pod), total, "{policy}: the dead are given nothing");
            // This catches series that never end.
            patience.check("the end of its series");
            last = page;
        };
        assert!(!gone.has(POD_IDLE, &[("pod_id", &pod.uid)]), "{policy}");
        // One tick may lie between the pages in which somebody else's pod came and went as well.
        let retired = gone.microjoules(RETIRED, &[]) - last.microjoules(RETIRED, &[]);
        assert_eq!(retired, ended(&last, &gone), "{policy}");
        assert!(retired >= total, "{policy}: {retired} of {total}");
    }
}

#[test]
fn zones_keep_their_idle_energy_apart() {
    let node = Node::start("equal");
    let pod = Pod::new();
    let _load = pod.load(&["sleep", "600"]);
    let page = node.after_ticks(5);
    let by_zone: BTreeMap<_, _> =
        page.select(POD_IDLE, &[("pod_id", &pod.uid)]).iter().map(|it| (it.label("zone"), it.number())).collect();
    // 4 W and 0.5 W, as far as no lower power was seen.
    let ratio = by_zone["package"] / by_zone["dram"];
    assert!(by_zone.len() == 2 && (2.0..9.0).contains(&ratio), "{by_zone:?}");
}
