//! The queries of docs/promql.md, asked by promtool about a world of series whose answers were worked out by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Deserialize)]
struct World {
    series: Vec<BTreeMap<String, String>>,
    answers: BTreeMap<String, Vec<Sample>>,
}

#[derive(Deserialize, Serialize)]
struct Sample {
    labels: String,
    value: f64,
}

/// The queries of a page by their headings.
fn queries(page: &str) -> BTreeMap<String, String> {
    let (mut heading, mut found) = ("", BTreeMap::new());
    let mut query: Option<String> = None;
    for line in page.lines() {
        match &mut query {
            None => {
                if let Some(text) = line.strip_prefix("### ").or_else(|| line.strip_prefix("## ")) {
                    heading = text;
                }
                query = (line == "```promql").then(String::new);
            }
            Some(text) if line == "```" => {
                let earlier = found.insert(heading.to_owned(), std::mem::take(text));
                assert_eq!(earlier, None, "{heading} has two queries");
                query = None;
            }
            Some(text) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    found
}

#[test]
fn every_query_of_the_cookbook_gives_the_answer_worked_out_by_hand() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let queries = queries(&read("docs/promql.md"));
    let world: World = serde_saphyr::from_str(&read("tests/pages/promql/world.yaml")).unwrap();
    let headings: Vec<_> = queries.keys().collect();
    assert_eq!(headings, world.answers.keys().collect::<Vec<_>>(), "headings with a query, and with an answer");

    let tests: Vec<_> = queries
        .iter()
        .map(|(heading, query)| {
            let expr = format!("round({query}, 0.000001)");
            // `topk` and sums need no order: promtool compares sets.
            json!({"expr": expr, "eval_time": "2h", "exp_samples": world.answers[heading]})
        })
        .collect();
    let file = json!({
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": world.series, "promql_expr_test": tests}],
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.yaml");
    fs::write(&path, file.to_string()).unwrap();
    let output = Command::new("promtool")
        .args(["test", "rules"])
        .arg(&path)
        .output()
        .unwrap_or_else(|error| panic!("promtool: {error}; `cargo xtask test` provides it"));
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{said}");
}
