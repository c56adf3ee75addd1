//! The findings as a Markdown table that can be read in a terminal as well, and the page in docs/ that keeps it.

use std::collections::HashMap;
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

/// One sentence that says which of `goals` were missed.
pub fn verdict(goals: usize, missed: &[&str]) -> String {
    if missed.is_empty() {
        return format!("All {goals} goals were reached.");
    }
    format!("{} of {goals} goals were missed: {}.", missed.len(), missed.join("; "))
}

/// Keeps what was measured now; the sections of other rows stay as they are, with the date and revision of their own.
/// `order` is that of the sections.
///
/// # Errors
/// When the page cannot be read or written.
pub fn write(machine: &Machine, measured: &[(String, Vec<Finding>)], order: &[String]) -> Result<()> {
    let path = root().join(PAGE);
    let kept = if path.exists() { fs::read_to_string(&path).with_context(|| PAGE.to_owned())? } else { String::new() };
    fs::write(&path, page(&kept, machine, measured, order)).with_context(|| PAGE.to_owned())?;
    println!("kept in {PAGE}");
    Ok(())
}

fn page(kept: &str, machine: &Machine, measured: &[(String, Vec<Finding>)], order: &[String]) -> String {
    let mut sections: HashMap<&str, String> = kept
        .split("\n## ")
        .skip(1)
        .filter_map(|part| part.split_once("\n\n"))
        .map(|(name, body)| (name, body.to_owned()))
        .collect();
    for (name, findings) in measured {
        sections.insert(name, format!("{}\n{}", machine.text(), markdown(findings)));
    }
    let mut text = format!(
        "# Benchmarks\n\n\
        <!-- Written by `cargo xtask bench --write`. -->\n\n\
        The goals of the agent, measured by `cargo xtask bench` (it needs root, cgroup v2 and a quiet machine). Each\n\
        number is a ratio, a percentage or a count within one run on one machine; the workloads are real processes in\n\
        real cgroups with the names that the kubelet gives. `cargo xtask bench ROWS --write` measures some sections anew.\n\n{}\n",
        total(sections.values())
    );
    for (name, body) in order.iter().filter_map(|name| Some((name, sections.get(name.as_str())?))) {
        let _ = write!(text, "\n## {name}\n\n{}\n", body.trim_end());
    }
    text
}

/// The verdict over all sections.
fn total<'a>(sections: impl Iterator<Item = &'a String>) -> String {
    let rows: Vec<&str> = sections.flat_map(|body| body.lines()).filter(|line| line.starts_with("| ")).collect();
    let reached = rows.iter().filter(|row| row.contains(" | yes     | ")).count();
    let missed = rows.iter().filter(|row| row.contains(" | **no**  | "));
    let missed: Vec<&str> = missed.filter_map(|row| row.split('|').nth(1)).map(str::trim).collect();
    verdict(reached + missed.len(), &missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(what: &str, reached: bool) -> Finding {
        Finding {
            what: what.to_owned(),
            measured: "2 %".to_owned(),
            goal: "under 1 %".to_owned(),
            reached,
            how: "a|b".to_owned(),
        }
    }

    #[test]
    fn a_missed_goal_is_said_plainly() {
        assert_eq!(verdict(2, &["two"]), "1 of 2 goals were missed: two.");
        assert_eq!(verdict(1, &[]), "All 1 goals were reached.");
        let table = markdown(&[finding("one", true), finding("two", false)]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "| what | measured | goal      | reached | how |");
        assert_eq!(lines[1], "| ---- | -------- | --------- | ------- | --- |");
        assert_eq!(lines[3], "| two  | 2 %      | under 1 % | **no**  | a\\|b |");
    }

    #[test]
    fn sections_not_measured_now_stay_with_their_own_date() {
        let machine = |date: &str| Machine {
            date: date.to_owned(),
            cpu: "a CPU".to_owned(),
            cores: 2,
            kernel: "6.18".to_owned(),
            revision: "abc".to_owned(),
            busy: 0.0,
        };
        let order = ["first", "second", "third"].map(str::to_owned);
        let named = |name: &str, findings| (name.to_owned(), findings);
        let old = [
            named("third", vec![finding("three", false)]),
            named("first", vec![finding("one", true), finding("other", false)]),
        ];
        let before = page("", &machine("Monday"), &old, &order);
        assert!(before.contains("\n2 of 3 goals were missed: "), "{before}");
        let now = [named("second", vec![finding("two", true)]), named("third", vec![finding("three", true)])];
        let after = page(&before, &machine("Friday"), &now, &order);
        let lines = |start: &str| {
            after
                .lines()
                .filter(|line| line.starts_with(start))
                .map(|line| line.split(';').next().unwrap_or_default())
                .collect::<Vec<_>>()
        };
        assert_eq!(lines("## "), ["## first", "## second", "## third"]);
        assert_eq!([lines("Monday"), lines("Friday")], [vec!["Monday"], vec!["Friday", "Friday"]]);
        assert!(after.contains("\n1 of 4 goals were missed: other.\n"), "{after}");
        assert_eq!(page(&after, &machine("Sunday"), &[], &order), after);
    }
}
