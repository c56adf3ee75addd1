//! `energy-agent measure --agent`: the figures against the agent's own page and `cpu.stat`, and what is said where there is no
//! agent, no unit or nobody to make a scope. What the systemd of a user makes is tested by hand in a virtual machine.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use energy_report::run::{MeasuredBy, Part, SubjectKind};
use tempfile::TempDir;

use super::measure::{Measure, OWN_USAGE, codes, text};
use crate::common::agent::{Agent, program_for_all, wait_for};

const UNIT_JOULES: &str = "energy_agent_system_cpu_joules_total";

fn agent(flags: &[&str]) -> Agent {
    Agent::start(&[&["--interval=250ms", "--meter.cpu=estimate", "--gpu=off"], flags].concat())
}

#[test]
fn a_running_agent_counts_the_command_whole() {
    let agent = agent(&[]);
    let address = format!("--agent={}", agent.address);
    // It ends when the agent has read often enough while it ran.
    let folder = TempDir::new().unwrap();
    let enough = folder.path().join("enough");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", enough.display());
    let script = format!("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; {wait}; {OWN_USAGE}; exit 4");
    let mut measure = Measure::script(&[&address, "--work=10"], &script);
    let child = measure.start();
    let unit = format!("energy-agent-measure-{}-1.scope", child.id());
    wait_for("the command's scope", || agent.scrape().has(UNIT_JOULES, &[("unit", &unit)]).then_some(()));
    agent.after_ticks(8);
    fs::write(&enough, "").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains(" J  package ") && stderr.contains("s  elapsed"), "{stderr}");
    let run = measure.run();
    // To the microjoule what the agent says that it was.
    let page = agent.scrape();
    let energy: u64 = run.energy.iter().filter(|energy| energy.part == Part::Package).map(|it| it.microjoules).sum();
    let labels = [("unit", unit.as_str()), ("state", "terminated")];
    assert!(energy > 0 && energy == page.microjoules(UNIT_JOULES, &labels), "{energy}: {run:?}");
    let seconds: f64 = text(&output.stdout).trim().parse::<f64>().unwrap() / 1e6;
    let cpu = run.cpu_seconds.unwrap();
    assert!((seconds * 0.98..seconds * 1.02 + 0.05).contains(&cpu), "{cpu} s, the kernel counted {seconds} s");
    assert_eq!(
        (run.measured.by, run.subject.kind, run.subject.name.as_str()),
        (MeasuredBy::Agent, SubjectKind::Command, "sh")
    );
    assert_eq!(run.outcome.as_ref().unwrap().exit_code, Some(4));
    assert!(!codes(&run).contains(&"end_not_seen") && run.work.is_some(), "{run:?}");
    let node = run.node_energy.iter().find(|energy| energy.part == Part::Package).unwrap();
    assert!(node.microjoules >= energy, "{run:?}");
}

#[test]
fn what_keeps_an_agent_from_measuring_is_said_with_the_remedy() {
    let said = |flags: &[&str]| {
        let output = Measure::new(flags, &["true"]).output();
        (output.status.code(), text(&output.stderr))
    };
    let (code, stderr) = said(&["--agent=127.0.0.1:1"]);
    assert!(code == Some(125) && stderr.contains("is the agent running"), "{code:?} {stderr}");
    let pods_only = agent(&["--export.levels=pod"]);
    let (code, stderr) = said(&[&format!("--agent={}", pods_only.address)]);
    assert!(code == Some(125) && stderr.contains("--export.levels has to name node"), "{code:?} {stderr}");
    drop(pods_only);

    let agent = agent(&["--export.units=sshd.service"]);
    let address = format!("--agent={}", agent.address);
    let (code, stderr) = said(&[&address]);
    // The command has run, so its exit code stays.
    assert!(code == Some(0) && stderr.contains("--export.units, if it is set"), "{code:?} {stderr}");
    // Without root, and without a systemd that the user has.
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program_for_all(folder.path()))
        .args(["measure", &address, "--", "true"])
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("DBUS_SESSION_BUS_ADDRESS")
        .output()
        .unwrap();
    let stderr = text(&output.stderr);
    assert!(output.status.code() == Some(125), "{stderr}");
    assert!(stderr.contains("without root") && stderr.contains("run as root"), "{stderr}");
}
