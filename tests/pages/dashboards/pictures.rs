//! What `cargo xtask pictures` draws: each panel's answers, written to files when the variables below ask for it.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::board::{Board, filled_in};
use crate::common::agent::PROGRAM;
use crate::common::prometheus::Prometheus;

pub struct Wanted {
    folder: PathBuf,
    pub length: Duration,
}

/// `PICTURES_FOLDER` and `PICTURES_SECONDS`.
pub fn wanted() -> Option<Wanted> {
    let folder = env::var_os("PICTURES_FOLDER")?.into();
    let seconds = env::var("PICTURES_SECONDS").ok()?.parse().ok()?;
    Some(Wanted { folder, length: Duration::from_secs(seconds) })
}

impl Wanted {
    /// A file for each dashboard: `{"board": .., "answers": {panel: {query: [series]}}}`.
    pub fn write(&self, boards: &[Board], prometheus: &Prometheus, range_s: u64, end: f64) {
        // The first rates need some scrapes.
        let start = end - Duration::from_secs(range_s).as_secs_f64() + 6.0;
        for board in boards {
            let mut answers = Map::new();
            for query in board.queries() {
                let expr = filled_in(query.expr, range_s, &[]);
                let series: Vec<Value> = if query.instant {
                    let values = prometheus.query_at(&expr, end);
                    values.into_iter().map(|(labels, value)| json!({"labels": labels, "value": value})).collect()
                } else {
                    // One bar in place of a month of them.
                    let step_s = if query.panel["interval"] == "1d" { 86_400.0 } else { 1.0 };
                    let start = if step_s > 1.0 { end } else { start };
                    let ranges = prometheus.range(&expr, start, end, step_s);
                    ranges.into_iter().map(|(labels, points)| json!({"labels": labels, "points": points})).collect()
                };
                let panel = answers.entry(query.panel["id"].to_string()).or_insert_with(|| json!({}));
                panel[query.reference] = series.into();
            }
            let marks: Vec<Value> = board
                .annotations()
                .into_iter()
                .flat_map(|(_, expr)| prometheus.range(&filled_in(expr, range_s, &[]), start, end, 1.0))
                .map(|(labels, points)| json!({"labels": labels, "points": points}))
                .collect();
            let all = json!({"board": board.json, "answers": answers, "marks": marks, "start": start, "end": end});
            fs::write(self.folder.join(format!("{}.json", board.name)), all.to_string()).unwrap();
        }
    }

    /// The program's own pages, as a browser gets them, by the addresses of the agent and the controller.
    pub fn write_pages(&self, agent: &str, controller: Option<&str>) {
        let mut pages = vec![(agent, "", "landing.html"), (agent, "policies", "policies.html")];
        pages.extend(controller.map(|controller| (controller, "budgets", "budgets.html")));
        for (address, path, name) in pages {
            let asked = ureq::get(format!("http://{address}/{path}")).header("accept", "text/html").call();
            let page = asked.unwrap().body_mut().read_to_string().unwrap();
            fs::write(self.folder.join(name), page).unwrap();
        }
    }

    /// What `energy-agent report` makes of a pod with GPUs: its table and its plots.
    pub fn write_report(&self, prometheus: &Prometheus) {
        let svg = format!("--svg={}", self.folder.join("report.svg").display());
        let asked = [
            "report",
            "pod",
            "ml/train-0",
            "--prometheus",
            &prometheus.url(),
            "--price-per-kwh=0.30",
            "--currency=EUR",
        ];
        let output = Command::new(PROGRAM).args(asked).args(["--gco2-per-kwh=400", &svg]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        fs::write(self.folder.join("report.txt"), output.stdout).unwrap();
    }
}
