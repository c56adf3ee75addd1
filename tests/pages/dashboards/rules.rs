//! The rules for Prometheus: promtool's own tests, and that every alert is tested and explained.

use std::fs;
use std::process::Command;

use regex::Regex;

use super::board::{metric_types, metrics, root};

fn promtool(arguments: &[&str]) {
    let mut command = Command::new("promtool");
    let output = command.args(arguments).current_dir(root().join("deploy/prometheus")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

#[test]
fn each_alert_fires_and_keeps_quiet_when_it_should_fc_098_fc_099() {
    promtool(&["check", "rules", "rules.yaml"]);
    promtool(&["test", "rules", "rules-test.yaml"]);
}

#[test]
fn each_alert_is_tested_both_ways_and_explained() {
    let (rules, tests, docs) =
        (text("deploy/prometheus/rules.yaml"), text("deploy/prometheus/rules-test.yaml"), text("docs/alerts.md"));
    let alert = Regex::new(r"- alert: (\w+)").unwrap();
    let alerts: Vec<_> = alert.captures_iter(&rules).map(|found| found[1].to_owned()).collect();
    assert!(alerts.len() > 15);
    for alert in &alerts {
        assert!(tests.contains(&format!("alertname: {alert}, eval_time: ")), "{alert} is not tested to keep quiet");
        assert!(tests.contains(&format!("- alertname: {alert}\n")), "{alert} is not tested to fire");
        assert!(docs.contains(&format!("\n### {alert}\n")), "{alert} is not in docs/alerts.md");
        assert!(
            rules.contains(&format!("runbook: docs/alerts.md#{}\n", alert.to_lowercase())),
            "{alert} has no runbook"
        );
    }
    assert_eq!(
        docs.lines().filter(|line| line.starts_with("### ")).count(),
        alerts.len(),
        "an alert that is not there"
    );
}

#[test]
fn rules_rate_counters_over_four_scrapes_of_a_minute_fc_098() {
    let (rules, types) = (text("deploy/prometheus/rules.yaml"), metric_types());
    let call = Regex::new(r"([a-z_]+)\(([a-z_]+)(?:\{[^}]*\})?\[(\d+)([mh])\]\)").unwrap();
    let mut found = 0;
    for call in call.captures_iter(&rules) {
        assert!(["rate", "increase"].contains(&&call[1]) && types[&call[2]] == "counter", "{}", &call[0]);
        assert!(&call[4] == "h" || call[3].parse::<u32>().unwrap() >= 4, "{}", &call[0]);
        found += 1;
    }
    assert_eq!(found, rules.matches('[').count(), "a range that is not looked at");
    let rest = call.replace_all(&rules, "");
    let bare = metrics(&rest).into_iter().find(|name| types.get(name).is_some_and(|kind| kind == "counter"));
    assert_eq!(bare, None, "a counter as it is");
}
