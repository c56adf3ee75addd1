//! Commands in turns, and how a comparison ends: what is kept of one that a signal ends, and what is refused.

use std::fs;
use std::process::{Command, Stdio};

use energy_report::run::Run;
use serde_json::Value;
use tempfile::TempDir;

use super::{Node, said, steep_card};
use crate::common::agent::{PROGRAM, wait_for};
use crate::schema::assert_valid;

/// `compare` with meters that every machine has.
fn compare(folder: &TempDir, flags: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("compare").arg(format!("--state.directory={}", folder.path().display())).args(flags);
    command.args(["--gpu=off", "--ebpf=off", "--meter.cpu=estimate"]).stdin(Stdio::null());
    command
}

fn runs(file: &std::path::Path) -> Option<Vec<Run>> {
    serde_json::from_str(&fs::read_to_string(file).ok()?).ok()
}

#[test]
fn commands_are_measured_in_turns_and_saved_with_their_seed() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("runs.json");
    let compare = |flags: &[&str]| said(&compare(&folder, flags).output().unwrap());
    let json = format!("--json={}", file.display());
    let (code, text, errors) = compare(&["-r", "3", "--seed=1", &json, "exit 0", "exit 7"]);
    assert_eq!(code, Some(3), "one of them has no run that succeeded: {text}{errors}");
    assert!(errors.contains("exit 7 has no run that succeeded"), "{errors}");
    let runs: Vec<Value> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let commands: Vec<&str> = runs.iter().map(|run| run["labels"]["command"].as_str().unwrap()).collect();
    assert_eq!(commands.len(), 6);
    assert_valid(&file);
    for round in commands.chunks(2) {
        assert!(round.contains(&"1") && round.contains(&"2"), "{commands:?}");
    }
    assert!(!fs::read_to_string(&file).unwrap().contains("exit 7"), "a command line is kept only if that is asked for");
    assert_eq!(compare(&["-r", "3", "exit 0"]).0, Some(2));
    assert_eq!(compare(&[]).0, Some(2));
    assert_eq!(compare(&["nothing.json", "nowhere.json"]).0, Some(2));
}

#[test]
fn a_signal_ends_a_comparison_with_its_code_and_the_runs_by_then_are_kept() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("runs.json");
    let json = format!("--json={}", file.display());
    let mut comparing = compare(&folder, &["-r", "1000", &json, "sleep 0.05", "sleep 0.06"]);
    let comparing = comparing.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("two runs in the file", || runs(&file).filter(|runs| runs.len() >= 2));
    end(comparing.id(), "TERM");
    let (code, _, errors) = said(&comparing.wait_with_output().unwrap());
    assert!(code == Some(143) && errors.ends_with("error: ended by SIGTERM\n"), "{code:?} {errors}");
    assert!(runs(&file).unwrap().iter().all(|run| run.outcome.as_ref().unwrap().succeeded));

    // In a sweep, while a clock is locked.
    let node = Node::new(steep_card());
    let sweep = node.sweep(&["-r", "50", "--gpu-clocks=990..1980/2", &json]).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("a run at a clock", || runs(&file).filter(|runs| runs.iter().any(is_at_a_clock)));
    wait_for("a clock", || node.locked());
    end(sweep.id(), "INT");
    let (code, _, errors) = said(&sweep.wait_with_output().unwrap());
    assert!(code == Some(130) && errors.contains("ended by SIGINT"), "{code:?} {errors}");
    assert_eq!(node.locked(), None, "what was is back");
    assert!(runs(&file).unwrap().iter().any(is_at_a_clock));
}

fn is_at_a_clock(run: &Run) -> bool {
    run.labels.contains_key("gpu-clock-mhz")
}

fn end(pid: u32, signal: &str) {
    assert!(Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn what_cannot_be_compared_or_written_is_refused_and_the_best_is_named() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("runs.json");
    let (path, json) = (file.display().to_string(), format!("--json={}", file.display()));
    let compare = |flags: &[&str]| said(&compare(&folder, flags).output().unwrap());
    let (code, text, errors) = compare(&["-r", "1", "--best=time", &json, "sleep 0.3", "true"]);
    assert!(code == Some(0) && text.contains("\nBest (least time): true\n"), "{text}{errors}");

    // The saved runs are of two commands, until somebody knows better.
    let (code, text, errors) = compare(&["--by=command", &path]);
    assert!(code == Some(3) && text.is_empty(), "{text}{errors}");
    assert!(
        errors.contains("did different work: another command or image (digest); measure or report with"),
        "{errors}"
    );
    assert_eq!(compare(&["--by=command", "--same-work", &path]).0, Some(0));
    let mut bare: Vec<Value> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for run in &mut bare {
        run["subject"].as_object_mut().unwrap().remove("digest");
    }
    fs::write(&file, serde_json::to_string(&bare).unwrap()).unwrap();
    let (code, _, errors) = compare(&["--by=command", &path]);
    assert!(code == Some(3) && errors.contains("may have done different work"), "{errors}");

    // What is printed is not lost with a picture or a profile that cannot be made.
    for (flag, why) in [("--svg=/dev/full", "No space left"), ("--export-profile=/dev/null", "was not measured")] {
        let (code, text, errors) = compare(&["--by=command", "--same-work", flag, &path]);
        assert!(code == Some(3) && text.starts_with("NAME") && errors.contains(why), "{text}{errors}");
    }
    let none = folder.path().join("none/a").display().to_string();
    let gone = [format!("--json={none}"), format!("--svg={none}"), format!("--export-profile={none}")];
    for (code, flags, expected) in [
        (3, &["-r", "1", &gone[0], "echo began >&2", "true"][..], "none/a"),
        (3, &["--by=command", &gone[1], &path], "none/a"),
        (3, &["--by=command", &gone[2], &path], "none/a"),
        (2, &["-r", "1", "--export-profile=a", "echo began >&2", "true"], "measure --label class=NAME"),
        (2, &[&none, &path], "none/a"),
        (2, &["--prices", &none, &path, &path], "none/a"),
        (2, &[&folder.path().display().to_string(), &path], "not a file"),
    ] {
        let (ended, text, errors) = compare(flags);
        assert!(ended == Some(code) && errors.contains(expected), "{flags:?}: {ended:?} {errors}");
        assert!(text.is_empty() && !errors.contains("began"), "{flags:?}: {text}{errors}");
    }
}
