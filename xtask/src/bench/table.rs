//! The findings as a Markdown table that can be read in a terminal as well, and the page in docs/ that keeps it.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Finding, percent};
use crate::{output, root};

const PAGE: &str = "docs/benchmarks.md";

/// What the numbers were measured on.
pub struct Machine {
    date: String,
    cpu: String,
    cores: usize,
    kernel: String,
    revision: String,
    busy: f64,
}

/// # Errors
/// When a program that is asked is missing.
pub fn machine() -> Result<Machine> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let guest = cpuinfo.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
    let changed =
        output(Command::new("git").args(["status", "--porcelain", "--untracked-files=no"]).current_dir(root()))
            .is_ok_and(|text| !text.is_empty());
    let revision = output(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(root()));
    Ok(Machine {
        date: output(Command::new("date").args(["--utc", "+%Y-%m-%d %H:%M UTC"]))?,
        cpu: model.trim_start_matches([' ', '\t', ':']).to_owned() + if guest { ", a virtual machine" } else { "" },
        cores: thread::available_parallelism()?.get(),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        revision: revision.unwrap_or_else(|_| "unknown".to_owned()) + if changed { " with changes" } else { "" },
        busy: busy()?,
    })
}

/// Share of the CPUs' time that was not idle over two seconds, percent.
fn busy() -> Result<f64> {
    let read = || -> Result<(u64, u64)> {
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        // user nice system idle iowait irq softirq steal; guest time is part of user.
        let times: Vec<u64> = line.split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
        Ok((times.iter().sum(), times.iter().skip(3).take(2).sum()))
    };
    let before = read()?;
    thread::sleep(Duration::from_secs(2));
    let after = read()?;
    Ok(100.0 - percent(after.1 - before.1, after.0 - before.0))
}

impl Machine {
    pub fn text(&self) -> String {
        let Self { date, cpu, cores, kernel, revision, busy } = self;
        format!(
            "{date}; {cpu}, {cores} CPUs; Linux {kernel}; revision {revision}; \
            before the start other programs kept {busy:.0} % of the CPUs busy.\n"
        )
    }
}

/// Aligned but for the last column.
pub fn markdown(findings: &[Finding]) -> String {
    let mut rows = vec![["what", "measured", "goal", "reached", "how"].map(str::to_owned)];
    for Finding { what, measured, goal, reached, how } in findings {
        let reached = if *reached { "yes" } else { "**no**" };
        rows.push([what, measured, goal, reached, how].map(|cell| cell.replace('|', "\\|")));
    }
    let mut widths = [0; 4];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (width, cell) in widths.iter().zip(row) {
            let _ = write!(text, "| {cell:width$} ");
        }
        let _ = writeln!(text, "| {} |", row[4]);
        if index == 0 {
            let rules = widths.iter().chain([&3]).map(|width| "-".repeat(*width));
            let _ = writeln!(text, "| {} |", rules.collect::<Vec<_>>().join(" | "));
        }
    }
    text
}

/// One sentence that says which goals were missed.
pub fn verdict(findings: &[Finding]) -> String {
    let missed: Vec<&str> =
        findings.iter().filter(|finding| !finding.reached).map(|finding| finding.what.as_str()).collect();
    if missed.is_empty() {
        return format!("All {} goals were reached.", findings.len());
    }
    format!("{} of {} goals were missed: {}.", missed.len(), findings.len(), missed.join("; "))
}

/// # Errors
/// When the page cannot be written.
pub fn write(machine: &Machine, findings: &[Finding]) -> Result<()> {
    let text = format!(
        "# Benchmarks\n\n\
        <!-- Written by `cargo xtask bench --write`. -->\n\n\
        What the agent has to reach, measured by `cargo xtask bench` (needs root, cgroup v2 and a quiet machine). Each\n\
        number is a ratio, a percentage or a count within one run on one machine; the workloads are real processes in\n\
        real cgroups with the names that the kubelet gives.\n\n{}\n{}\n{}\n",
        machine.text(),
        verdict(findings),
        markdown(findings)
    );
    fs::write(root().join(PAGE), text.trim_end().to_owned() + "\n").with_context(|| PAGE.to_owned())?;
    println!("kept in {PAGE}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_goal_is_said_plainly() {
        let finding = |what: &str, reached| Finding {
            what: what.to_owned(),
            measured: "2 %".to_owned(),
            goal: "under 1 %".to_owned(),
            reached,
            how: "a|b".to_owned(),
        };
        let findings = [finding("one", true), finding("two", false)];
        assert_eq!(verdict(&findings), "1 of 2 goals were missed: two.");
        assert_eq!(verdict(&findings[..1]), "All 1 goals were reached.");
        let table = markdown(&findings);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "| what | measured | goal      | reached | how |");
        assert_eq!(lines[1], "| ---- | -------- | --------- | ------- | --- |");
        assert_eq!(lines[3], "| two  | 2 %      | under 1 % | **no**  | a\\|b |");
    }
}
