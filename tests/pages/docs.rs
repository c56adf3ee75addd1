//! The documentation against the program: lines of doctor, states, metrics, flags, policies and links.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::agent::PROGRAM;
use crate::common::nvml::{FakeNvml, gpu};
use regex::Regex;
use serde_json::Value;
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// README.md, CONTRIBUTING.md and what is in docs, by name.
fn pages() -> BTreeMap<String, String> {
    let docs =
        fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = docs.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"));
    pages
        .chain(["CONTRIBUTING.md".to_owned(), "README.md".to_owned()])
        .map(|name| (name.clone(), text(&name)))
        .collect()
}

/// Standard output of the program.
fn said(arguments: &[&str]) -> String {
    String::from_utf8(Command::new(PROGRAM).args(arguments).output().unwrap().stdout).unwrap()
}

#[test]
fn every_line_of_doctor_is_explained() {
    let nvml = FakeNvml::new().gpu(gpu("GPU-a"));
    nvml.play();
    let report: Value = serde_json::from_str(&said(&["doctor", "--format=json", &nvml.flag()])).unwrap();
    let lines: BTreeSet<&str> =
        report["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert!(lines.contains("gpu") && lines.len() > 15, "{lines:?}");
    let page = text("docs/troubleshooting.md");
    for line in lines {
        assert!(page.contains(&format!("\n| `{line}` |")), "{line} is not in docs/troubleshooting.md");
    }
}

#[test]
fn every_state_of_a_policy_and_a_limit_is_explained() {
    let (page, metrics) = (text("docs/troubleshooting.md"), text("docs/metrics.md"));
    let parentheses = Regex::new(r" ?\([^)]*\)").unwrap();
    for (metric, before, count) in [("energy_agent_policy_state", "state: ", 8), ("energy_agent_cap_up", "reason: ", 8)]
    {
        let row = metrics.lines().find(|line| line.starts_with(&format!("| `{metric}` "))).unwrap();
        let states = row.split_once(before).unwrap().1.split_once('.').unwrap().0;
        let states = parentheses.replace_all(states, "").into_owned();
        let states: Vec<&str> = states.split(", ").collect();
        assert_eq!(states.len(), count, "{states:?}");
        for state in states {
            assert!(page.contains(&format!("\n| `{state}` |")), "{metric} {state} is not in docs/troubleshooting.md");
        }
    }
}

#[test]
fn every_metric_of_kepler_is_in_the_guide() {
    let page = text("docs/migrate-from-kepler.md");
    let (contract, dashboards) = (text("tests/kepler-contract.tsv"), text("tests/kepler-dashboards.tsv"));
    let rows = |table: &str, column: usize| {
        let lines = table.lines().filter(|line| !line.starts_with('#'));
        lines.flat_map(|line| line.split('\t').nth(column).unwrap().split(',').map(str::to_owned)).collect::<Vec<_>>()
    };
    let mut names = rows(&contract, 0);
    // Recording rules of the operator are not Kepler's.
    names.extend(rows(&dashboards, 2).into_iter().filter(|name| !name.contains(':')));
    assert!(names.len() > 80, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "{name} is not in docs/migrate-from-kepler.md");
    }
}

#[test]
fn policies_in_the_docs_are_right() {
    let (folder, mut count) = (TempDir::new().unwrap(), 0);
    let fence = Regex::new(r"(?s)```(?:yaml)?\n(version: 1\n.*?)```").unwrap();
    for (name, page) in pages() {
        for policies in fence.captures_iter(&page) {
            let file = folder.path().join("policies.yaml");
            fs::write(&file, &policies[1]).unwrap();
            let check = Command::new(PROGRAM).args(["policy", "check"]).arg(&file).output().unwrap();
            assert!(check.status.success(), "{name}: {}\n{check:?}", &policies[1]);
            count += 1;
        }
    }
    assert!(count >= 2, "{count} documents with policies");
}

#[test]
fn flags_in_the_docs_exist() {
    let flag = Regex::new(r"--[a-z]+(?:[.-][a-z]+)*").unwrap();
    let own = Regex::new(r"`energy-agent [^`]*`|`--[^`]*`|(?m)^energy-agent .*$").unwrap();
    let commands = [
        "run",
        "controller",
        "kubectl release",
        "kubectl top",
        "top",
        "doctor",
        "report",
        "restore",
        "policy",
        "compare",
        "measure",
    ];
    let help: String =
        commands.iter().map(|command| said(&command.split(' ').chain(["--help"]).collect::<Vec<_>>())).collect();
    let mut known: BTreeSet<&str> = flag.find_iter(&help).map(|flag| flag.as_str()).collect();
    // Of the program alone, not of its commands.
    known.insert("--version");
    let mut count = 0;
    for (name, page) in pages() {
        for flag in own.find_iter(&page).flat_map(|words| flag.find_iter(words.as_str())) {
            // The only flags of another program that stand alone.
            let foreign = name == "docs/migrate-from-kepler.md" && flag.as_str() == "--metrics";
            assert!(foreign || known.contains(flag.as_str()), "{name}: there is no flag {}", flag.as_str());
            count += 1;
        }
    }
    assert!(count > 60, "{count} flags");
}

/// Commands of development by the program that has them, commands of the agent by its help.
#[test]
fn commands_in_the_docs_exist() {
    let source = text("xtask/src/main.rs");
    let tasks = source.split_once("enum Task {").unwrap().1.split_once("\n}\n").unwrap().0;
    let variant = Regex::new(r"(?m)^    ([A-Z][A-Za-z]*)[ ({,]").unwrap();
    let capital = Regex::new("([a-z])([A-Z])").unwrap();
    let kebab = |name: &str| capital.replace_all(name, "$1-$2").to_lowercase();
    let tasks: BTreeSet<String> = variant.captures_iter(tasks).map(|name| kebab(&name[1])).collect();
    assert!(tasks.contains("gpu-check") && tasks.len() > 15, "{tasks:?}");
    let help = said(&["--help"]);
    let commands = help.split_once("Commands:").unwrap().1.split_once("\n\n").unwrap().0;
    let commands: BTreeSet<&str> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains("doctor") && commands.len() > 8, "{commands:?}");

    let xtask = Regex::new(r"cargo xtask ([a-z]+(?:-[a-z]+)*)").unwrap();
    let agent = Regex::new(r"(?m)(?:`|^| -- |^\$ )energy-agent ([a-z]+(?:-[a-z]+)*)\b").unwrap();
    let mut count = 0;
    for (name, page) in pages() {
        for found in xtask.captures_iter(&page) {
            assert!(tasks.contains(&found[1]), "{name}: there is no `{}`", &found[0]);
            count += 1;
        }
        for found in agent.captures_iter(&page) {
            assert!(commands.contains(&found[1]), "{name}: there is no `{}`", found[0].trim());
            count += 1;
        }
    }
    assert!(count > 100, "{count} commands");
}

#[test]
fn links_between_pages_lead_somewhere() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let pages = pages();
    let anchors = |page: &str| -> BTreeSet<String> {
        let titles = page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
        let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
        titles.map(|title| title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
    };
    for (name, page) in &pages {
        for link in link.captures_iter(page).map(|found| found[1].to_owned()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = Path::new(name).parent().unwrap();
            let target = if file.is_empty() { PathBuf::from(name) } else { folder.join(file) };
            assert!(root().join(&target).exists(), "{name}: {link}");
            let titles = || anchors(&fs::read_to_string(root().join(&target)).unwrap());
            assert!(anchor.is_empty() || titles().contains(anchor), "{name}: {link} has no such title");
        }
    }
}

/// A line of the threat model or the record of attacks that names a test can be run.
#[test]
fn every_test_that_a_page_names_is_there() {
    let named = Regex::new(r"`((?:tests|energy-agent(?:/crates/[a-z]+)?/src)/[a-z0-9_/]+\.rs)::([a-z0-9_]+)`").unwrap();
    let mut count = 0;
    for (page, text) in pages() {
        for found in named.captures_iter(&text) {
            let (file, test) = (&found[1], &found[2]);
            let source =
                fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{page}: {file}: {error}"));
            let declared =
                source.find(&format!("fn {test}()")).unwrap_or_else(|| panic!("{page}: no {test} in {file}"));
            let before = source[..declared].trim_end();
            assert!(before.ends_with("#[test]") || before.ends_with("#[tokio::test]"), "{page}: {test} is not a test");
            count += 1;
        }
    }
    assert!(count > 20, "{count} tests named; is docs/security.md without them?");
}

/// What the architecture and "where is what" name, below `energy-agent/`.
#[test]
fn every_source_file_that_a_page_names_is_there() {
    let named = Regex::new(r"`((?:crates|src)/[a-z0-9_/]+(?:\.rs)?)/?`").unwrap();
    for (page, least) in [("docs/architecture.md", 20), ("CONTRIBUTING.md", 12)] {
        let text = text(page);
        let files: Vec<&str> = named.captures_iter(&text).map(|found| found.get(1).unwrap().as_str()).collect();
        assert!(files.len() >= least, "{page} names {files:?}");
        for file in files {
            assert!(root().join("energy-agent").join(file).exists(), "{page}: {file}");
        }
    }
}
