//! The dashboards in the form that Grafana's importer and grafana.com take: the data source is asked for at the import.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::root;

/// Stands for the data source that the importer asks for.
const INPUT: &str = "DS_PROMETHEUS";
/// The oldest Grafana that the dashboards are for.
const GRAFANA: &str = "10.0.0";

/// Writes every dashboard to `target/dashboards`.
///
/// # Errors
/// When a dashboard is no JSON, or a file cannot be written.
pub fn write() -> Result<()> {
    let folder = root().join("target/dashboards");
    fs::create_dir_all(&folder)?;
    for file in files()? {
        let to = folder.join(file.file_name().context("a file without a name")?);
        let text = serde_json::to_string_pretty(&importable(&read(&file)?)?)?;
        fs::write(&to, text + "\n").with_context(|| to.display().to_string())?;
        println!("{}", to.display());
    }
    Ok(())
}

fn files() -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(root().join("dashboards"))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn read(file: &Path) -> Result<Value> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_json::from_str(&text).with_context(|| file.display().to_string())
}

/// The dashboard without its variable for the data source, with what it asks for and what it needs.
fn importable(board: &Value) -> Result<Value> {
    // Links between dashboards need no data source: each asked for its own.
    let text =
        board.to_string().replace("${datasource:queryparam}&", "").replace("${datasource}", &format!("${{{INPUT}}}"));
    let Value::Object(mut board) = serde_json::from_str(&text)? else { anyhow::bail!("a dashboard is an object") };
    if let Some(variables) = board.get_mut("templating").and_then(|templating| templating["list"].as_array_mut()) {
        variables.retain(|variable| variable["type"] != "datasource");
    }
    let kinds: BTreeSet<&str> = board["panels"].as_array().into_iter().flatten().filter_map(kind).collect();
    let panels = kinds.iter().map(|kind| json!({"type": "panel", "id": kind, "name": "", "version": ""}));
    let mut requires = vec![
        json!({"type": "grafana", "id": "grafana", "name": "Grafana", "version": GRAFANA}),
        json!({"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}),
    ];
    requires.extend(panels);
    let input = json!({
        "name": INPUT, "label": "Prometheus", "description": "The server that scrapes the agents",
        "type": "datasource", "pluginId": "prometheus", "pluginName": "Prometheus",
    });
    let mut whole = Map::new();
    whole.insert("__inputs".to_owned(), json!([input]));
    whole.insert("__elements".to_owned(), json!({}));
    whole.insert("__requires".to_owned(), requires.into());
    whole.insert("id".to_owned(), Value::Null);
    whole.append(&mut board);
    Ok(whole.into())
}

/// The plugin that draws a panel; rows are Grafana's own.
fn kind(panel: &Value) -> Option<&str> {
    panel["type"].as_str().filter(|kind| *kind != "row")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    #[test]
    fn every_dashboard_asks_for_its_data_source_and_names_what_it_needs() {
        let files = files().unwrap();
        assert!(files.len() > 3);
        for file in files {
            let board = read(&file).unwrap();
            let whole = importable(&board).unwrap();
            let text = whole.to_string();
            let at = file.display();
            assert!(!text.contains("${datasource") && text.contains(r#""uid":"${DS_PROMETHEUS}""#), "{at}");
            assert_eq!(whole["__inputs"][0]["name"], "DS_PROMETHEUS", "{at}");
            let needs: Vec<_> =
                whole["__requires"].as_array().unwrap().iter().map(|need| need["id"].as_str().unwrap()).collect();
            for panel in board["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
                assert!(needs.contains(&panel["type"].as_str().unwrap()), "{at}: {}", panel["type"]);
            }
            assert_eq!(whole["panels"].as_array().unwrap().len(), board["panels"].as_array().unwrap().len(), "{at}");
            let variables = |board: &Value| board["templating"]["list"].as_array().unwrap().len();
            assert_eq!(variables(&whole) + 1, variables(&board), "{at}");
        }
    }
}
