//! The dashboards by the types that Grafana publishes of them for each of its lines, and TypeScript's compiler as the judge:
//! of keys that are not there, of values of another type, and of options that a panel of that kind has not.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::board::{boards, root};
use crate::common::skip;

/// Kinds of panels whose options are judged; `grafana/board.ts` names them too.
const KINDS: [&str; 5] = ["bargauge", "stat", "table", "text", "timeseries"];

/// The fetched packages.
struct Packages {
    folder: PathBuf,
    node: PathBuf,
}

impl Packages {
    fn fetched() -> Option<Self> {
        let (folder, node) = (env::var_os("TEST_GRAFANA_SCHEMA"), env::var_os("TEST_NODE"));
        if folder.is_none() || node.is_none() {
            skip::skip(&skip::GRAFANA);
        }
        Some(Self { folder: folder?.into(), node: node?.into() })
    }

    /// Versions of Grafana as package.json names them.
    fn lines() -> Vec<String> {
        let text = fs::read_to_string(sources().join("package.json")).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let names = json["dependencies"].as_object().unwrap().keys();
        let lines: Vec<_> = names.filter_map(|name| Some(name.strip_prefix("grafana-")?.to_owned())).collect();
        let majors: BTreeSet<_> = lines.iter().map(|line| line.split('.').next().unwrap()).collect();
        assert_eq!(majors.into_iter().collect::<Vec<_>>(), ["10", "11", "12"], "docs/dashboards.md names these");
        lines
    }

    /// The one file of a line's types in this folder; later lines have them elsewhere.
    fn types(&self, line: &str, folder: &str) -> PathBuf {
        let package = self.folder.join(format!("node_modules/grafana-{line}/dist"));
        let place =
            ["types", "esm"].map(|part| package.join(part).join(folder)).into_iter().find(|place| place.is_dir());
        let files = fs::read_dir(place.unwrap_or_else(|| panic!("{line}: no {folder}"))).unwrap().flatten();
        let mut files = files.map(|entry| entry.path()).filter(|file| file.to_str().unwrap().ends_with(".gen.d.ts"));
        files.next().unwrap_or_else(|| panic!("{line}: no types in {folder}"))
    }

    fn index(&self, line: &str) -> PathBuf {
        let package = self.folder.join(format!("node_modules/grafana-{line}/dist"));
        let places = ["types/index.d.ts", "index.d.ts", "esm/index.d.ts"].map(|file| package.join(file));
        places.into_iter().find(|file| file.is_file()).unwrap()
    }

    /// What the compiler has against dashboards, pairs of name and text: a line each, `NAME.ts(LINE,COLUMN): error ..`.
    fn complaints(&self, line: &str, boards: &[(String, String)]) -> Vec<String> {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::copy(sources().join("board.ts"), at("board.ts")).unwrap();
        for (name, text) in boards {
            // In front of the file's first line, so that the compiler's lines are the file's.
            let head = r#"import type { Board } from "./board"; export const board: Board = "#;
            fs::write(at(&format!("{name}.ts")), head.to_owned() + text).unwrap();
        }
        let mut paths = json!({
            "@grafana/schema": [self.index(line)],
            "raw/dashboard": [self.types(line, "raw/dashboard/x")],
            "prometheus": [self.types("10.4", "raw/composable/prometheus/dataquery/x")],
        });
        for kind in KINDS {
            let file = self.types(line, &format!("raw/composable/{kind}/panelcfg/x"));
            paths[format!("panel/{kind}")] = json!([file]);
        }
        let options = json!({
            "strict": true, "noEmit": true, "skipLibCheck": true, "types": [], "target": "es2020", "module": "esnext",
            "moduleResolution": "bundler", "paths": paths,
        });
        fs::write(at("tsconfig.json"), json!({"compilerOptions": options}).to_string()).unwrap();
        let mut compiler = Command::new(&self.node);
        compiler.arg(self.folder.join("node_modules/typescript/bin/tsc")).args(["--pretty", "false"]);
        let output = compiler.current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
        // What is explained further is indented.
        let lines: Vec<_> = said.lines().filter(|line| !line.starts_with(' ')).map(str::to_owned).collect();
        assert_eq!(output.status.success(), lines.is_empty(), "{said}");
        let of_a_board = |said: &str| boards.iter().any(|(name, _)| said.starts_with(&format!("{name}.ts(")));
        assert!(lines.iter().all(|line| of_a_board(line)), "{line}: it is not the dashboards that are wrong: {said}");
        lines
    }
}

fn sources() -> PathBuf {
    root().join("tests/pages/dashboards/grafana")
}

#[test]
fn every_dashboard_fits_the_types_of_grafana_10_to_12() {
    let Some(packages) = Packages::fetched() else { return };
    let text = |name: &str| fs::read_to_string(root().join(format!("dashboards/{name}.json"))).unwrap();
    let boards: Vec<_> = boards().into_iter().map(|board| (board.name.clone(), text(&board.name))).collect();
    for line in Packages::lines() {
        let complaints = packages.complaints(&line, &boards);
        assert!(complaints.is_empty(), "Grafana {line}, lines of dashboards/*.json:\n{}", complaints.join("\n"));
    }
}

/// Where in a panel of this kind, or in the dashboard, what is put.
const FAULTS: [(&str, &str, &str); 23] = [
    // Values that are none of those there are.
    ("stat", "/options/colorMode", r#""colour""#),
    ("timeseries", "/options/legend/placement", r#""left""#),
    ("timeseries", "/targets/0/format", r#""series""#),
    ("", "/graphTooltip", "7"),
    ("", "/templating/list/0/type", r#""datasources""#),
    ("bargauge", "/type", r#""graph""#),
    ("text", "/options/mode", r#""md""#),
    // Values of another type.
    ("stat", "/options/reduceOptions/calcs", r#""lastNotNull""#),
    ("timeseries", "/fieldConfig/defaults/custom/lineWidth", r#""1""#),
    ("table", "/fieldConfig/defaults/thresholds/steps/0/value", r#""0""#),
    ("table", "/fieldConfig/overrides/0/properties/0", r#"{"id": "decimals", "value": "two"}"#),
    ("", "/templating/list/1/refresh", "true"),
    ("", "/annotations/list/0/iconColor", "1"),
    // Keys that are misspelt, of another kind of panel, or not there.
    ("stat", "/options/graphmode", r#""none""#),
    ("timeseries", "/fieldConfig/defaults/custom/fillOpacty", "10"),
    ("timeseries", "/fieldConfig/defaults/units", r#""watt""#),
    ("stat", "/fieldConfig/defaults/custom", r#"{"lineWidth": 1}"#),
    ("", "/templating/list/0/current", r#"{"selected": true}"#),
    ("timeseries", "/targets/0/expression", r#""1""#),
    ("table", "/gridPos/width", "5"),
    ("table", "/fieldConfig/overrides/0/properties/0", r#"{"id": "custom.cellOption", "value": {"type": "auto"}}"#),
    ("", "/time/until", r#""now""#),
    ("", "/annotations/list/0/title", r#""Capped""#),
];

/// A dashboard with the first panel of each kind.
fn sample() -> Value {
    let all = boards();
    let mut sample = all.iter().find(|board| board.name == "capping").unwrap().json.clone();
    let of =
        |kind: &str| all.iter().flat_map(|board| board.panels()).find(|panel| panel["type"] == kind).unwrap().clone();
    sample["panels"] = KINDS.map(of).to_vec().into();
    sample
}

#[test]
fn the_types_refuse_a_dashboard_with_a_fault() {
    let Some(packages) = Packages::fetched() else { return };
    let mut boards = vec![("right".to_owned(), sample().to_string())];
    for (index, (kind, place, value)) in FAULTS.into_iter().enumerate() {
        let mut board = sample();
        let within = KINDS.iter().position(|known| *known == kind).map_or(String::new(), |at| format!("/panels/{at}"));
        let (parent, key) = place.rsplit_once('/').unwrap();
        let parent = board.pointer_mut(&(within + parent)).unwrap_or_else(|| panic!("{kind}: nothing at {parent}"));
        let value: Value = serde_json::from_str(value).unwrap();
        match parent {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
            _ => parent[key] = value,
        }
        boards.push((format!("fault-{index}"), board.to_string()));
    }
    for line in Packages::lines() {
        let complaints = packages.complaints(&line, &boards);
        let refused = |name: &str| complaints.iter().any(|said| said.starts_with(&format!("{name}.ts(")));
        assert!(!refused("right"), "Grafana {line}: {complaints:?}");
        for (index, fault) in FAULTS.iter().enumerate() {
            assert!(refused(&format!("fault-{index}")), "Grafana {line} is said to take {fault:?}");
        }
    }
}
