//! The dashboards as Grafana reads them: panels, queries with their units, variables.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;
use serde_json::Value;

/// What `$__rate_interval` is with a scrape each second, and `$__range` over what the tests scrape.
const RATE_INTERVAL: &str = "5s";

pub struct Board {
    /// Its file's name without the ending.
    pub name: String,
    pub json: Value,
}

/// One query of a panel.
pub struct Query<'a> {
    pub panel: &'a Value,
    pub expr: &'a str,
    pub reference: &'a str,
    pub legend: &'a str,
    pub instant: bool,
    /// Of the panel, or of the table's column.
    pub unit: &'a str,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All files in `dashboards/`.
pub fn boards() -> Vec<Board> {
    let mut boards: Vec<Board> = fs::read_dir(root().join("dashboards"))
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            Board { name: path.file_stem().unwrap().to_str().unwrap().to_owned(), json }
        })
        .collect();
    boards.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<_> = boards.iter().map(|board| board.name.as_str()).collect();
    assert_eq!(names, ["agent-health", "capping", "cluster-budgets", "energy-cost", "gpu-health", "pod-energy"]);
    boards
}

impl Board {
    pub fn panels(&self) -> &[Value] {
        self.json["panels"].as_array().unwrap()
    }

    pub fn variables(&self) -> &[Value] {
        self.json["templating"]["list"].as_array().unwrap()
    }

    /// What marks times in all panels: the name and the query.
    pub fn annotations(&self) -> Vec<(&str, &str)> {
        let list = self.json["annotations"]["list"].as_array().unwrap();
        list.iter().map(|one| (one["name"].as_str().unwrap(), one["target"]["expr"].as_str().unwrap())).collect()
    }

    pub fn queries(&self) -> Vec<Query<'_>> {
        let with_targets = self.panels().iter().filter_map(|panel| Some((panel, panel["targets"].as_array()?)));
        let all = with_targets.flat_map(|(panel, targets)| targets.iter().map(move |target| (panel, target)));
        all.map(|(panel, target)| {
            let reference = target["refId"].as_str().unwrap();
            let unit = column_unit(panel, reference).unwrap_or(&panel["fieldConfig"]["defaults"]["unit"]);
            Query {
                panel,
                expr: target["expr"].as_str().unwrap(),
                reference,
                legend: target["legendFormat"].as_str().unwrap(),
                instant: target["instant"].as_bool().unwrap(),
                unit: unit.as_str().unwrap(),
            }
        })
        .collect()
    }
}

impl Query<'_> {
    pub fn title(&self) -> &str {
        self.panel["title"].as_str().unwrap()
    }
}

/// The unit that a table gives the values of a query.
fn column_unit<'a>(panel: &'a Value, reference: &str) -> Option<&'a Value> {
    let organize = panel["transformations"].as_array()?.iter().find(|step| step["id"] == "organize")?;
    let name = &organize["options"]["renameByName"][format!("Value #{reference}")];
    let column =
        panel["fieldConfig"]["overrides"].as_array()?.iter().find(|over| &over["matcher"]["options"] == name)?;
    Some(&column["properties"].as_array()?.iter().find(|property| property["id"] == "unit")?["value"])
}

/// A query as Grafana sends it: `chosen` says what else than "All" is chosen.
pub fn filled_in(expr: &str, range_s: u64, chosen: &[(&str, &str)]) -> String {
    let range = format!("{range_s}s");
    let mut values = vec![("__rate_interval", RATE_INTERVAL), ("__range", &range), ("price", "0.30"), ("gco2", "400")];
    values.push(("job", "energy-agent"));
    values.extend(
        ["cluster", "node", "namespace", "pod", "container", "policy", "gpu", "budget"].map(|name| (name, ".*")),
    );
    for choice in chosen {
        values.retain(|(name, _)| *name != choice.0);
        values.push(*choice);
    }
    let variable = Regex::new(r"\$([a-z_][a-z_0-9]*)").unwrap();
    let replaced = variable.replace_all(expr, |name: &regex::Captures| {
        let value = values.iter().find(|(known, _)| *known == &name[1]);
        value.unwrap_or_else(|| panic!("no value for ${}: {expr}", &name[1])).1.to_owned()
    });
    replaced.into_owned()
}

/// Type of each metric of docs/metrics.md and docs/cluster.md, and of what Prometheus adds to a scrape.
pub fn metric_types() -> BTreeMap<String, String> {
    let text = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let mut types: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            Some((cells.next()?.strip_suffix('`')?.to_owned(), cells.next()?.to_owned()))
        })
        .collect();
    // Those of the controller.
    let guide = fs::read_to_string(root().join("docs/cluster.md")).unwrap();
    let table = guide.split("\n### Metrics of the controller\n").nth(1).unwrap();
    for name in Regex::new(r"energy_agent_[a-z_]+").unwrap().find_iter(table) {
        let kind = if name.as_str().ends_with("_total") { "counter" } else { "gauge" };
        types.insert(name.as_str().to_owned(), kind.to_owned());
    }
    for name in ["up", "scrape_duration_seconds", "scrape_samples_scraped"] {
        types.insert(name.to_owned(), "gauge".to_owned());
    }
    for name in ["energy_agent_tick_duration_seconds", "energy_agent_scrape_duration_seconds"] {
        assert_eq!(types.remove(name).unwrap(), "histogram");
        for part in ["bucket", "sum", "count"] {
            types.insert(format!("{name}_{part}"), "counter".to_owned());
        }
    }
    types
}

/// The metrics that an expression names.
pub fn metrics(expr: &str) -> Vec<String> {
    let name = Regex::new(r"\b(?:kepler|energy_agent|process|scrape)_[a-z0-9_]+|\bup\b").unwrap();
    name.find_iter(expr).map(|found| found.as_str().to_owned()).collect()
}
