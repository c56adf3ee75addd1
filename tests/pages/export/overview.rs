//! What the landing page says to people.

use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::snapshot::{Snapshot, WorkloadEnergy, WorkloadState};
use energy_model::units::{Microjoules, Watts};
use energy_model::workload::names::{Names, Pod, Pods};
use energy_model::workload::sandbox::Sandboxes;
use energy_model::workload::{Runtime, Workload};

use super::server::Server;
use super::world::{DRAM, UID, container, published, rich, row};

fn page(snapshot: Snapshot) -> String {
    let answer = Server::start(published(snapshot)).get("/", &[]);
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(answer.header("content-security-policy").starts_with("default-src 'none'"), "{answer:?}");
    assert_eq!(answer.header("cache-control"), "no-store");
    answer.text().to_owned()
}

#[test]
fn the_page_says_what_the_node_draws_and_what_draws_most() {
    let page = page(rich());
    for part in [
        // Two packages, two memories and a GPU of 30 W each; 20 W of each are active, 10 W idle.
        "<b>150.0 W</b><small>now: package + dram + gpu</small>",
        "<b>100.0 W</b><small>of it active",
        "<b>50.0 W</b><small>of it idle",
        "<b>25 %</b><small>CPU busy",
        // 50.000003 + 28.000002 + 4.000001 + 2 + 100 J are 0.0511 Wh.
        "<b>0.051 Wh</b>",
        "Energy is measured by rapl and nvml.",
        // Two rows of 2 * 1.25 W, one of them with 50.5 W of the GPU; its energies are 10.500003 + 56.000001 J.
        &format!("<td>{UID} <small>pod</small></td><td class=\"n\">55.5 W</td>"),
        "<td class=\"n\">0.018 Wh</td>",
        "<td>docker.service <small>unit</small></td><td class=\"n\">53.0 W</td>",
        "<td>d0c <small>container</small></td><td class=\"n\">2.50 W</td>",
        // 123.456 W is the GPU's own reading of the moment; its energy of the interval comes first.
        "NVIDIA H100 80GB HBM3</small></td><td class=\"n\">30.0 W <small>of 700.0 W</small></td><td class=\"n\">37 %</td>",
        "10.0 <small>of 80 GiB</small>",
        "41 \u{b0}C",
        "rapl <span class=\"chip good\">ok</span>",
        "perf <span class=\"chip plain\">unused</span>",
        "5 zones below &lt;sysfs&gt;",
        "ebpf tp_btf, weight cycles, idle split learned",
        "href=\"/metrics\"",
        "href=\"/policies\"",
        "href=\"/healthz\"",
        "href=\"/readyz\"",
    ] {
        assert!(page.contains(part), "{part} is not on {page}");
    }
    assert!(!page.contains("href=\"/power\""), "the node follows no objects: {page}");
}

/// What a tenant may name.
#[test]
fn nothing_that_somebody_else_named_is_taken_for_markup() {
    let name = "<script>alert(1)</script>\"&\u{202e}evil";
    let pod = Pod { uid: UID.into(), name: name.into(), namespace: name.into(), ..Pod::default() };
    let told = Pods { by_uid: [(Arc::from(UID), Arc::new(pod))].into(), ..Pods::default() };
    let names = Names::default().after(&Arc::new(told), &Sandboxes::default(), [].into_iter()).unwrap();
    let mut snapshot = Snapshot { names: Arc::new(names), node: name.into(), ..rich() };
    snapshot.rows.push(row(Workload::Unit { unit: name.into() }, WorkloadState::Running, 1, 1));
    let id = name.into();
    let outside = Workload::Container { unit: name.into(), id, runtime: Runtime::Docker };
    snapshot.rows.push(row(outside, WorkloadState::Running, 1, 1));
    let page = page(snapshot);
    // The title, the node, namespace and name of the pod, the unit, and the beginning of the container's id.
    assert_eq!(page.matches("&lt;script&gt;").count(), 6, "{page}");
    assert!(!page.contains("<script") && !page.contains('\u{202e}'), "{page}");
}

#[test]
fn five_are_shown_and_only_while_they_draw_something() {
    let mut snapshot = rich();
    for index in 0..9 {
        snapshot.rows.push(row(container(&format!("uid-{index}"), "c"), WorkloadState::Running, 1, 1));
    }
    assert_eq!(page(snapshot.clone()).matches("class=\"part\"").count(), 5);
    for row in &mut snapshot.rows {
        let idle = WorkloadEnergy { key: DRAM, total: Microjoules(1), power: Some(Watts(0.0)) };
        row.energy = [idle].into_iter().collect();
    }
    assert!(page(snapshot).contains("Nothing draws active power now."));
}

#[test]
fn figures_that_are_old_or_not_there_yet_are_not_shown() {
    let empty = page(Snapshot::empty("node-a"));
    assert!(empty.contains("No power reading yet") && !empty.contains(" W</b>"), "{empty}");
    let mut old = published(rich());
    old.completed = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    let page = Server::with_interval(old, Duration::from_secs(1)).get("/", &[]).text().to_owned();
    assert!(page.contains("No tick for ") && !page.contains(" W</b>"), "{page}");
    assert!(page.contains("href=\"/healthz\"") && page.contains("5 zones"), "{page}");
}
