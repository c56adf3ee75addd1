//! A Prometheus server that scrapes the agent answers what Kepler's dashboards ask.

use std::thread;
use std::time::Duration;

use crate::common::agent::wait_for;
use crate::common::kubernetes::node::Node;
use crate::common::nvml::{FakeNvml, gpu, process};
use crate::common::powercap::Powercap;
use crate::common::prometheus::Prometheus;
use fake_nvml::plant::Plant;

/// The queries of the dashboards: generation, dashboard, metrics, labels, shape, here.
const QUERIES: &str = include_str!("../kepler-dashboards.tsv");

/// A query as Grafana would send it, of a day that is short.
fn filled_in(shape: &str, pid: u32) -> String {
    let pid = pid.to_string();
    let values = [
        ("$job", "power-monitor"),
        ("$node", ".*"),
        ("$zone", "package"),
        ("$namespace", ".*"),
        ("$pod", ".*"),
        ("$pid", &pid),
        ("$day", "1m"),
        ("$step", "1s"),
    ];
    values.iter().fold(shape.to_owned(), |query, (name, value)| query.replace(name, value))
}

#[test]
fn every_query_of_keplers_dashboards_that_applies_gives_data() {
    let powercap = Powercap::two_sockets();
    let node = Node::new();
    let pods = [node.pod("web", &["main"]), node.pod("train", &["main"])];
    let loads = pods.each_ref().map(|pod| pod.load("main", &["sleepers", "0", "2000", "8000"]));
    let mut user = process(loads[1].0.id());
    user.load = 0.5;
    let mut card = gpu("GPU-a");
    (card.plant, card.processes) = (Some(Plant::default()), Some(vec![user]));
    let nvml = FakeNvml::new().gpu(card);
    nvml.play();
    let agent = node.agent(&[
        "--interval=500ms",
        "--meter.trust-guest",
        "--export.levels=node,pod,container,process",
        &powercap.sysfs_flag(),
        &nvml.flag(),
    ]);
    let prometheus = Prometheus::scraping(&format!(
        "[{{job_name: power-monitor, static_configs: [{{targets: ['{}'], labels: {{container: power-monitor}}}}]}}]",
        agent.address
    ));
    // Two samples make a rate, and a day of some seconds has to begin somewhere.
    wait_for("scrapes", || {
        powercap.zones.iter().for_each(|zone| zone.add(1_500_000));
        thread::sleep(Duration::from_millis(200));
        let scraped = prometheus.query("sum_over_time(up[1m])");
        (scraped.first()?.1 >= 6.0).then_some(())
    });

    let rows: Vec<Vec<&str>> =
        QUERIES.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect()).collect();
    let mut asked = 0;
    for row in &rows {
        let [generation, _, metrics, labels, shape, here] = row[..] else { panic!("not a row: {row:?}") };
        assert!(["0.9", "0.10"].contains(&generation), "{row:?}");
        if here.starts_with("none: ") {
            assert_eq!(generation, "0.9", "{row:?}");
            continue;
        }
        let query = filled_in(if here == "same" { shape } else { here }, loads[0].0.id());
        let series = prometheus.query(&query);
        assert!(!series.is_empty(), "no data: {query}");
        assert!(series.iter().all(|(_, value)| value.is_finite()), "{query}: {series:?}");
        asked += 1;
        if here != "same" {
            assert_eq!(generation, "0.9", "{row:?}");
            continue;
        }
        for (metric, label) in metrics.split(',').flat_map(|metric| labels.split(',').map(move |label| (metric, label)))
        {
            if label.is_empty() {
                continue;
            }
            assert!(!prometheus.query(&format!("{metric}{{{label}!=\"\"}}")).is_empty(), "{metric} has no {label}");
        }
    }
    println!("{asked} queries gave data, of {}", rows.len());
    assert_eq!(asked, 60);

    // The old metrics are not there at all, which their equivalents are for.
    for row in rows.iter().filter(|row| row[0] == "0.9" && !row[2].starts_with("kepler:") && !row[2].contains("_gpu_"))
    {
        assert!(prometheus.query(row[2]).is_empty(), "{}", row[2]);
    }
}
