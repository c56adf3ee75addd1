//! The compose file and what it gives Prometheus and Grafana: nobody runs them here, but their paths and addresses have to fit.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::board::root;

fn folder() -> PathBuf {
    root().join("deploy/examples/compose")
}

fn yaml(file: &str) -> Value {
    let text = fs::read_to_string(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// What a service mounts from the repository: the place in the container, and the file or folder.
fn mounts(compose: &Value, service: &str) -> BTreeMap<String, PathBuf> {
    let volumes = compose["services"][service]["volumes"].as_array().unwrap();
    let parts = volumes.iter().map(|volume| volume.as_str().unwrap().split(':').collect::<Vec<_>>());
    parts
        .filter(|parts| parts[0].starts_with('.'))
        .map(|parts| (parts[1].to_owned(), folder().join(parts[0])))
        .collect()
}

#[test]
fn the_compose_example_fits_together() {
    let (compose, scrapes) = (yaml("compose.yaml"), yaml("prometheus.yaml"));
    let prometheus = mounts(&compose, "prometheus");
    let grafana = mounts(&compose, "grafana");
    for (place, file) in prometheus.iter().chain(&grafana) {
        assert!(file.exists(), "{place}: {}", file.display());
    }
    let names = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).unwrap() };
    assert!(names(&scrapes["rule_files"]).iter().all(|file| prometheus.contains_key(file)));
    let job = &scrapes["scrape_configs"][0];
    assert_eq!(job["job_name"], "energy-agent", "docs/alerts.md: the name is in the rules");
    assert_eq!(job["static_configs"][0]["targets"][0], "agent:9102", "the service and the agent's port");
    assert_eq!(compose["services"]["agent"]["command"][0], "run");

    let source = &yaml("grafana/datasources/prometheus.yaml")["datasources"][0];
    assert_eq!((&source["type"], &source["url"]), (&"prometheus".into(), &"http://prometheus:9090".into()));
    assert_eq!(source["jsonData"]["timeInterval"], scrapes["global"]["scrape_interval"], "docs/dashboards.md");
    let provider = &yaml("grafana/dashboards/energy-agent.yaml")["providers"][0];
    let boards = &grafana[provider["options"]["path"].as_str().unwrap()];
    assert_eq!(boards.canonicalize().unwrap(), root().join("dashboards").canonicalize().unwrap());
    for place in ["datasources", "dashboards"] {
        assert!(grafana[&format!("/etc/grafana/provisioning/{place}")].ends_with(format!("grafana/{place}")));
    }
}
