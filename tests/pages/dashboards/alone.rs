//! The dashboard "Pod energy" on a machine without Kubernetes: a service and a container of Docker, and no pods.

use std::process;

use super::board::{Board, boards, filled_in};
use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::{Cgroup, Load, ids};
use crate::common::prometheus::Prometheus;

/// The values of a label in what the first query of a panel gives. Other tests of this machine have cgroups too, so what is among
/// the ten largest is not this test's.
fn seen(board: &Board, prometheus: &Prometheus, panel: &str, label: &str) -> Vec<String> {
    let query = board.queries().into_iter().find(|query| query.title() == panel).unwrap();
    let expr = filled_in(query.expr, 60, &[]).replace("topk(10,", "topk(100000,");
    let rows = prometheus.query(&expr).into_iter();
    rows.filter(|(_, value)| *value > 0.0)
        .map(|(labels, _)| labels.get(label).and_then(|value| value.as_str()).unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn a_machine_without_pods_has_its_services_and_containers_in_the_panels() {
    let slice = Cgroup::slice();
    let (service, id) = (format!("shop-{}.service", process::id()), ids().1);
    // A tenant may choose a name that begins as another container's.
    let alike = format!("{}{}", &id[..12], "0123".repeat(13));
    let _loads = [service.clone(), format!("docker-{id}.scope"), format!("docker-{alike}.scope")]
        .map(|name| Load::start(&slice.child(&name), &["sleepers", "0", "2000", "8000"]));
    let mut agent = Agent::start(&["--interval=500ms", "--pods.source=none", "--node.name=laptop"]);
    let prometheus = Prometheus::scraping(&format!(
        "[{{job_name: energy-agent, static_configs: [{{targets: ['{}']}}]}}]",
        agent.address
    ));
    let board = boards().into_iter().find(|board| board.name == "pod-energy").unwrap();
    let container = format!("container {}", &id[..12]);
    for (panel, label, wanted) in [
        ("Power now", "", ""),
        ("Energy of workloads", "", ""),
        ("Node power by zone", "node_name", "laptop"),
        ("Where the power goes", "", ""),
        ("Namespace power", "pod_namespace", "outside pods"),
        ("Top 10 pods and services", "workload", &service),
        ("Top 10 pods and services", "workload", &container),
        ("CPU time of the top 10 pods and services", "workload", &container),
        ("Top 10 containers", "workload", &container),
        ("Services and other work outside pods", "service", &service),
        ("Services and other work outside pods", "service", &container),
    ] {
        wait_for(&format!("{wanted:?} in {panel:?}"), || {
            seen(&board, &prometheus, panel, label).iter().any(|value| value == wanted).then_some(())
        });
    }
    let services = seen(&board, &prometheus, "Services and other work outside pods", "service");
    assert!(!services.iter().any(|service| service.contains(&id)), "{services:?}");
    agent.assert_well();
}
