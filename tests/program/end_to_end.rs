//! Everything real at once, as on a node: containers of runc, eBPF, an API server that kubectl talks to, and a Prometheus
//! that is asked in PromQL. Only the energy counters and the GPU are played.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod container;
mod kubectl;
mod world;

use std::env;
use std::fs;

use crate::common::agent::wait_for;
use crate::common::skip;
use world::World;

/// Active energy less that of pods, system, retired and unattributed, for CPUs by kind of zone and for GPUs; and what is
/// active and idle less what was measured, zone by zone.
const DIFFERENCES: [&str; 3] = [
    "sum by (zone, source) (kepler_node_cpu_active_joules_total) - sum by (zone, source) ({__name__=~\"\
     kepler_pod_cpu_joules_total|energy_agent_system_cpu_joules_total|energy_agent_retired_cpu_joules_total|\
     energy_agent_node_cpu_unattributed_joules_total\"})",
    "sum by (source) (kepler_node_gpu_active_joules_total) - sum by (source) ({__name__=~\"\
     kepler_pod_gpu_joules_total|energy_agent_system_gpu_joules_total|energy_agent_retired_gpu_joules_total|\
     energy_agent_node_gpu_unattributed_joules_total\"})",
    "kepler_node_cpu_active_joules_total + kepler_node_cpu_idle_joules_total - kepler_node_cpu_joules_total",
];

/// 400 W for the GPUs of each pod.
const POLICIES: &str = "\
version: 1
policies:
- name: train
  mode: Recommend
  selector: {matchLabels: {app: train}}
  budget: {watts: 400, components: [gpu]}
";

#[test]
fn pods_are_named_metered_capped_by_an_edit_released_by_a_deletion_and_counted_after_their_end() {
    if env::var_os("TEST_KUBE_API").is_none() {
        return skip::skip(&skip::API_SERVER);
    }
    let mut world = World::start();
    let train = |name: &str| format!("{name}{{pod_name=\"train\",pod_namespace=\"{}\"}}", world.node.name);

    // Names and joules, of CPU and GPU.
    for pod in ["train", "web"] {
        let joules = format!("kepler_pod_cpu_joules_total{{pod_name=\"{pod}\",zone=\"package\",source=\"rapl\"}} > 1");
        world.wait_for_one(&joules);
    }
    world.wait_for_one(&format!("{} > 100", train("kepler_pod_gpu_joules_total")));
    let container =
        format!("kepler_container_cpu_joules_total{{container_name=\"main\",pod_id=\"{}\"}}", world.web.uid());
    world.wait_for_some(&container);

    // What would be done, before it is done.
    fs::write(world.kubectl.file("policies.yaml"), POLICIES).unwrap();
    world.kubectl.run("create configmap policies --from-file=policies.yaml");
    let state =
        |state: &str| format!("energy_agent_policy_state{{policy=\"train\",pod_name=\"train\",state=\"{state}\"}}");
    world.wait_for_one(&state("recommending"));
    assert_eq!(world.lock(), None, "a recommendation writes nothing");

    // An edit caps within three ticks; the command returns once the server has it.
    world.kubectl.edit("configmap policies", "s/mode: Recommend/mode: Enforce/");
    let edited = world.agent.scrape().ticks();
    wait_for("a lock of the clocks", || world.lock());
    let ticks = world.agent.scrape().ticks() - edited;
    // A tick that may have begun before it, the tick that sees it, and one until it is seen here.
    assert!(ticks <= 3, "capped {ticks} ticks after the edit");
    world.wait_for_one(&state("capping"));
    let within = format!("{} <= 400", train("energy_agent_policy_power_watts"));
    world.wait_for_one(&within);
    world.wait_for_some("energy_agent_cap_limit_hertz{policy=\"train\"} < 1.98e9");

    // A deletion releases.
    world.kubectl.run("delete configmap policies");
    world.wait_for_no_lock();
    world.wait_for_none("energy_agent_policy_state");
    world.wait_for_one(&format!("{} > 600", train("kepler_pod_gpu_watts")));

    // Energy outlives its pod: first under the pod's name, then among the retired.
    let web = "kepler_pod_cpu_joules_total{pod_name=\"web\",zone=\"package\"}";
    let before = world.number(web);
    world.end_web();
    let ended = "kepler_pod_cpu_joules_total{pod_name=\"web\",zone=\"package\",state=\"terminated\"}";
    let last = world.wait_for_one(ended);
    assert!(last >= before, "{last} J after the end, {before} J before");
    world.wait_for_none(web);
    world.wait_for_one(&format!("energy_agent_retired_cpu_joules_total{{zone=\"package\"}} >= {last}"));

    // Nothing was lost or made at any second of the story. On the page it is exact to the microjoule (the last page below);
    // Prometheus computes in floating point.
    for difference in DIFFERENCES {
        let worst = world.prometheus.query(&format!("max_over_time(abs({difference})[10m:1s])"));
        assert!(!worst.is_empty() && worst.iter().all(|(_, joules)| *joules < 1e-6), "{difference}: {worst:?}");
        let seconds = world.number(&format!("max(count_over_time(({difference})[10m:1s]))"));
        assert!(seconds > 10.0, "{difference} was looked at for {seconds} s only");
    }
    world.agent.scrape().assert_conserved();
    world.agent.assert_well();
}
