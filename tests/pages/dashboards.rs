//! The dashboards: what Grafana needs to import them, units that fit the queries, and data for every query from a real
//! Prometheus server that scraped the agent over pods with work, GPUs and policies.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod alone;
mod board;
mod demo;
mod grafana;
mod owners;
mod pictures;
mod provisioning;
mod rules;
mod world;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::prometheus::now_s;
use crate::common::skip::{API_SERVER, skip};
use board::{Board, boards, filled_in, metric_types, metrics};
use regex::Regex;
use serde_json::{Value, json};
use world::World;

/// Every value of the key `datasource` below.
fn datasources<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            if key == "datasource" {
                found.push(value);
            }
            datasources(value, found);
        }),
        Value::Array(list) => list.iter().for_each(|value| datasources(value, found)),
        _ => {}
    }
}

#[test]
fn each_is_provisioned_with_whatever_data_source_is_there_fc_097() {
    let mut uids = BTreeSet::new();
    for Board { name, json } in boards() {
        let text = json.to_string();
        assert!(!text.contains("${DS_") && json.get("__inputs").is_none() && json.get("id").is_none(), "{name}");
        assert!(uids.insert(json["uid"].as_str().unwrap().to_owned()), "{name}");
        // What Grafana 10.0 writes; later versions read it.
        assert_eq!(json["schemaVersion"], 38, "{name}");
        let mut found = Vec::new();
        datasources(&json, &mut found);
        assert!(found.len() > 30, "{name}");
        let variable = json!({"type": "prometheus", "uid": "${datasource}"});
        assert!(found.into_iter().all(|datasource| *datasource == variable), "{name}");
        let variable = &json["templating"]["list"][0];
        assert_eq!(
            (&variable["name"], &variable["type"], &variable["query"]),
            (&json!("datasource"), &json!("datasource"), &json!("prometheus"))
        );
        assert_eq!(variable["current"], json!({}), "{name}: a data source of another Grafana");
        // Some 1 MB is the most that a ConfigMap holds.
        assert!(fs::metadata(board::root().join(format!("dashboards/{name}.json"))).unwrap().len() < 200_000, "{name}");
    }
}

#[test]
fn panels_say_what_they_show_and_do_not_overlap() {
    let known = ["row", "stat", "timeseries", "bargauge", "table", "text"];
    for board in boards() {
        let (mut ids, mut titles, mut cells) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for panel in board.panels() {
            let title = panel["title"].as_str().unwrap();
            let at = format!("{} {title:?}", board.name);
            assert!(ids.insert(panel["id"].as_u64().unwrap()) && titles.insert(title), "{at}: a second one");
            assert!(known.contains(&panel["type"].as_str().unwrap()), "{at}: not in every Grafana");
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
            assert!(x + w <= 24, "{at}: beyond the edge");
            assert!((x..x + w).all(|x| (y..y + h).all(|y| cells.insert((x, y)))), "{at}: overlaps");
            if panel["type"] == "row" {
                continue;
            }
            assert!(panel["description"].as_str().unwrap().ends_with('.'), "{at}: no sentence that explains it");
            if panel["type"] == "text" {
                assert!(panel["options"]["content"].as_str().unwrap().contains("energy-agent report"), "{at}");
                continue;
            }
            let defaults = &panel["fieldConfig"]["defaults"];
            assert!(!defaults["noValue"].as_str().unwrap().is_empty(), "{at}: an empty panel has to say so");
            assert!(!defaults["unit"].as_str().unwrap().is_empty(), "{at}");
            let references: BTreeSet<_> =
                panel["targets"].as_array().unwrap().iter().map(|t| t["refId"].as_str()).collect();
            assert_eq!(references.len(), panel["targets"].as_array().unwrap().len(), "{at}");
        }
    }
}

/// Every address below, with what it belongs to.
fn addresses<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("url").and_then(Value::as_str));
            map.values().for_each(|value| addresses(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| addresses(value, found)),
        _ => {}
    }
}

#[test]
fn links_lead_to_dashboards_and_set_variables_that_are_there() {
    let boards = boards();
    let variables = |board: &Board| -> BTreeSet<String> {
        board.variables().iter().map(|variable| variable["name"].as_str().unwrap().to_owned()).collect()
    };
    let (kept, set) = (Regex::new(r"\$\{([a-z]+):queryparam\}").unwrap(), Regex::new(r"var-([a-z]+)=").unwrap());
    let mut count = 0;
    for board in &boards {
        let mut found = Vec::new();
        addresses(&board.json["panels"], &mut found);
        for url in found {
            let (uid, arguments) = url.strip_prefix("/d/").unwrap().split_once('?').unwrap();
            let target = boards.iter().find(|board| board.json["uid"] == uid);
            let known = variables(target.unwrap_or_else(|| panic!("{}: no dashboard {uid}", board.name)));
            assert!(set.captures_iter(arguments).all(|name| known.contains(&name[1])), "{}: {url}", board.name);
            let mut both = kept.captures_iter(arguments);
            assert!(both.all(|name| known.contains(&name[1]) && variables(board).contains(&name[1])), "{url}");
            assert!(arguments.ends_with("&${__url_time_range}"), "{url}: the time range is lost");
            count += 1;
        }
    }
    assert!(count > 8, "{count} links");
}

#[test]
fn counters_are_rated_over_ranges_that_hold_enough_scrapes_and_gauges_are_not_fc_098() {
    let types = metric_types();
    let call = Regex::new(r"([a-z_]+)\(([a-z_]+)(?:\{[^}]*\})?\[([^\]]+)\]").unwrap();
    let group = Regex::new(r"group(?: by \([a-z_, ]*\))? ?\([a-z_]+\{[^}]*\}\)").unwrap();
    for board in boards() {
        let marks = board.annotations().into_iter().map(|(_, expr)| (expr, &Value::Null));
        for (expr, panel) in board.queries().iter().map(|query| (query.expr, query.panel)).chain(marks) {
            // A bar for each day is the energy of that day.
            let whole = if panel["interval"] == "1d" { "1d" } else { "$__range" };
            for metric in metrics(expr) {
                assert!(types.contains_key(&metric), "{metric} is not in docs/metrics.md: {expr}");
            }
            for found in call.captures_iter(expr) {
                let (function, metric, range) = (&found[1], &found[2], &found[3]);
                assert_eq!(types[metric], "counter", "{expr}");
                let wanted = if function == "rate" { "$__rate_interval" } else { whole };
                assert!(["rate", "increase"].contains(&function) && range == wanted, "{expr}");
            }
            // What is left without rates, and without groups: their values do not matter.
            let rest = call.replace_all(expr, "");
            for metric in metrics(&group.replace_all(&rest, "")) {
                assert_ne!(types[&metric], "counter", "{metric} as it is: {expr}");
            }
            assert!(!expr.contains("_over_time") && !expr.contains("delta("), "{expr}");
        }
    }
}

/// The units that may be shown for a query, from what it asks.
fn units(expr: &str) -> &'static [&'static str] {
    let has = |text: &str| expr.contains(text);
    if has("$price") {
        &["none"]
    } else if has("$gco2") {
        &["massg"]
    } else if has("/ 3.6e6") {
        assert!(has("increase(") && has("_joules_total"), "{expr}");
        &["kwatth"]
    } else if has("]) * 60") || has("])) * 60") {
        &["opm", "cpm"]
    } else if has("_cpu_seconds_total") && has("_joules_total") {
        &["watt"]
    } else if expr.starts_with("clamp") || has(") / (sum") || has("_ratio{") || has("_late_ticks_total") {
        &["percentunit"]
    } else if has("energy_agent_cap_up{") || has("energy_agent_cap_clamped{") || has("_cpus{") {
        &["short"]
    } else if has("_celsius{") {
        &["celsius"]
    } else if expr.starts_with("count") || expr.starts_with("group") || has("> bool") || has("bool 0") || has("count(")
    {
        &["short"]
    } else if has("duration_seconds")
        || has("(time() -")
        || has("increase(energy_agent_policy_over_budget_seconds_total")
    {
        &["s"]
    } else if has("_joules_total") || has("_watts{") {
        &["watt"]
    } else if has("rate(energy_agent_policy_over_budget_seconds_total")
        || has("_cpu_seconds_total")
        || has("_run_seconds_total")
    {
        // Seconds per second: a part of the time, or CPUs.
        if has("increase(") { &["s"] } else { &["percentunit", "short"] }
    } else if has("_hertz{") {
        &["hertz"]
    } else if has("_bytes{") {
        &["bytes"]
    } else if has("_seconds{") {
        &["s"]
    } else if has("rate(") {
        &["cps"]
    } else {
        &["short"]
    }
}

#[test]
fn units_fit_what_is_asked_fc_099() {
    for board in boards() {
        for query in board.queries() {
            assert!(units(query.expr).contains(&query.unit), "{}: {:?}: {}", query.title(), query.unit, query.expr);
        }
    }
}

#[test]
fn promtool_reads_every_query() {
    let folder = tempfile::tempdir().unwrap();
    let rules: Vec<Value> = boards()
        .iter()
        .flat_map(Board::queries)
        .enumerate()
        .map(|(index, query)| json!({"record": format!("query:{index}"), "expr": filled_in(query.expr, 3600, &[])}))
        .collect();
    assert!(rules.len() > 100);
    let file = folder.path().join("rules.json");
    fs::write(&file, json!({"groups": [{"name": "queries", "rules": rules}]}).to_string()).unwrap();
    let output = Command::new("promtool").args(["check", "rules"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What not every node has, and this one has not: part of a query, and why.
const NOT_HERE: [(&str, &str); 1] =
    [("energy_agent_ebpf_run_seconds_total", "the kernel counts it only while kernel.bpf_stats_enabled is set")];

#[test]
fn every_query_gives_data() {
    let mut world = World::start();
    let length = pictures::wanted().map_or(Duration::from_secs(18), |wanted| wanted.length);
    let begin = Instant::now();
    world.run_for(length / 3);
    world.enforce();
    world.run_until(begin + length);
    world.run_until_capped();
    if let Some(wanted) = pictures::wanted() {
        wanted.write_pages(&world.agent.address, world.controller.as_ref().map(|controller| &*controller.address));
    }
    // Nothing moves the energy counters while the questions are asked.
    let (range_s, end_s) = (begin.elapsed().as_secs(), now_s());

    let (mut asked, mut wrong) = (0, Vec::new());
    let lookup = Regex::new(r"^label_values\((.*), ([a-z_]+)\)$").unwrap();
    let legend = Regex::new(r"\{\{([a-z_]+)\}\}").unwrap();
    for board in boards() {
        if board.name == "cluster-budgets" && world.controller.is_none() {
            skip(&API_SERVER);
            continue;
        }
        for query in board.queries() {
            let at = format!("{} {:?} {}: {}", board.name, query.title(), query.reference, query.expr);
            let values = world.prometheus.query_at(&filled_in(query.expr, range_s, &[]), end_s);
            asked += 1;
            if let Some((_, reason)) = NOT_HERE.iter().find(|(part, _)| query.expr.contains(part)) {
                println!("not asked for data, because {reason}: {at}");
                continue;
            }
            if values.is_empty() || values.iter().any(|(_, value)| !value.is_finite()) {
                wrong.push(format!("no data: {at}: {values:?}"));
            }
            for label in legend.captures_iter(query.legend) {
                if values.iter().all(|(labels, _)| labels.get(&label[1]).is_none()) {
                    wrong.push(format!("no label {} for the legend: {at}", &label[1]));
                }
            }
            // A choice that nothing fits leaves nothing.
            for name in ["job", "node", "namespace", "pod", "policy", "gpu", "budget"] {
                let uses = query.expr.contains(&format!("\"${name}\""));
                let others = filled_in(query.expr, range_s, &[(name, "nowhere")]);
                if uses && world.prometheus.query_at(&others, end_s).iter().any(|(_, value)| *value > 0.0) {
                    wrong.push(format!("${name} is not applied: {at}"));
                }
            }
        }
        for (name, expr) in board.annotations() {
            let values = world.prometheus.query_at(&filled_in(expr, range_s, &[]), end_s);
            if values.is_empty() {
                wrong.push(format!("no data: {} marks {name}: {expr}", board.name));
            }
        }
        for variable in board.variables().iter().filter(|variable| variable["type"] == "query") {
            let definition = variable["definition"].as_str().unwrap();
            assert_eq!(variable["query"]["query"], definition);
            let parts = lookup.captures(definition).unwrap();
            let found =
                world.prometheus.query(&format!("group by ({}) ({})", &parts[2], filled_in(&parts[1], range_s, &[])));
            let values: Vec<_> = found.iter().filter_map(|(labels, _)| labels.get(&parts[2])).collect();
            // Clusters have names only where Prometheus gives them.
            assert_eq!(values.is_empty(), variable["name"] == "cluster", "{definition}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    println!("{asked} queries asked");
    world.agent.assert_well();
    if let Some(wanted) = pictures::wanted() {
        wanted.write(&boards(), &world.prometheus, range_s, end_s);
        wanted.write_report(&world.prometheus);
    }
}
