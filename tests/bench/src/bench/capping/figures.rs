//! What the runs come to, as findings, a table and curves.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use energy_report::chart::{Chart, ChartPanel, Line, svg};

use super::curves::{curve, panel};
use super::runs::{BUDGET_W, EXPONENTS, Kind, MIDDLE, Outcome};
use super::score::Score;
use super::truth::Slice;
use crate::bench::{Finding, table};

const SLICE_S: f64 = 0.01;
/// The first five minutes of a run.
const SHOWN: usize = 30_000;

/// One line for the terminal.
pub fn line(score: &Score) -> String {
    let Score { settle_s, over, mean_over, over_j, over_part, writes, work } = score;
    format!(
        "settled {}, then over {:.2} % of the time (means of 1 s {:.2} %), {over_j:.0} J ({:.2} %) over, {writes} writes a minute, work {:.1} %",
        settled(*settle_s),
        over * 100.0,
        mean_over * 100.0,
        over_part * 100.0,
        work * 100.0
    )
}

fn settled(settle_s: Option<f64>) -> String {
    settle_s.map_or("-".to_owned(), |settle_s| format!("{settle_s:.2} s"))
}

/// The goals are those of capping: within 3 ticks, then under 2 % of the time, at most 20 writes.
pub fn findings(outcomes: &[Outcome], seconds: u32) -> Vec<Finding> {
    let steps = outcomes.iter().filter(|outcome| outcome.kind == Kind::Step);
    let settle: Vec<(String, Option<f64>)> = steps.map(|outcome| (outcome.title(), outcome.score.settle_s)).collect();
    let slowest = settle.iter().map(|(_, settle_s)| settle_s.unwrap_or(f64::INFINITY)).fold(0.0, f64::max);
    let each: Vec<String> = settle.iter().map(|(name, settle_s)| format!("{name} {}", settled(*settle_s))).collect();
    let mut findings = vec![Finding {
        what: "capping: a load step over a budget".to_owned(),
        measured: format!("settled in {slowest:.2} s"),
        goal: "within 3 ticks of 1 s".to_owned(),
        reached: slowest <= 3.0,
        how: format!(
            "from the first moment of true power over the budget to the first of 10 s without another; {}",
            each.join(", ")
        ),
    }];
    for (what, kind, single) in [
        ("after a step", Kind::Step, true),
        ("under bursts", Kind::Bursts, true),
        ("under noise", Kind::Noise, true),
        ("8 GPUs in a pod, after a step", Kind::Step, false),
        ("8 GPUs in a pod, staggered bursts", Kind::Bursts, false),
    ] {
        let chosen: Vec<&Outcome> =
            outcomes.iter().filter(|outcome| outcome.kind == kind && (outcome.gpus.len() == 1) == single).collect();
        let most = |of: fn(&Score) -> f64| chosen.iter().map(|outcome| of(&outcome.score)).fold(0.0, f64::max);
        let over = most(|score| score.over);
        let least = chosen.iter().map(|outcome| outcome.score.work).fold(f64::INFINITY, f64::min);
        let each: Vec<String> =
            chosen.iter().map(|outcome| format!("{} {:.2} %", outcome.title(), outcome.score.over * 100.0)).collect();
        findings.push(Finding {
            what: format!("capping: time over the budget, {what}"),
            measured: format!("{:.2} %", over * 100.0),
            goal: "under 2 %".to_owned(),
            reached: over < 0.02,
            how: format!(
                "true power at each moment, from 3 s after the first excess to the end of {seconds} s; means of 1 s are over it at \
                most {:.2} % of the time; energy over it at most {:.2} % of the budget's; work at least {:.1} % of what clocks that \
                always just fit would do; {}",
                most(|score| score.mean_over) * 100.0,
                most(|score| score.over_part) * 100.0,
                least * 100.0,
                each.join(", ")
            ),
        });
    }
    let writes = outcomes.iter().map(|outcome| outcome.score.writes).max().unwrap_or_default();
    findings.push(Finding {
        what: "capping: writes a minute and device".to_owned(),
        measured: writes.to_string(),
        goal: "at most 20".to_owned(),
        reached: writes <= 20,
        how: format!("clocks and power limit together, the busiest minute of {} budgets", outcomes.len()),
    });
    findings
}

/// Writes the table of all runs and curves of some.
///
/// # Errors
/// When a file cannot be written.
pub fn write(folder: &Path, outcomes: &[Outcome], seconds: u32) -> Result<()> {
    let mut text = format!(
        "# Capping: figures\n\n<!-- Written by `cargo xtask bench capping --plots docs/capping`. -->\n\n{}\n\
        Runs of {seconds} s of the shipped program against the simulated GPU, all at the same time; ticks of 1 s. What the columns \
        mean, and what the figures are worth, is said in [capping-law.md](../capping-law.md).\n\n\
        | load | GPUs | exponent | settled | then over, time | means of 1 s over | energy over | writes a minute | work |\n\
        | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        table::machine()?.text()
    );
    for Outcome { name, exponent, gpus, score, .. } in outcomes {
        let Score { settle_s, over, mean_over, over_j, over_part, writes, work } = score;
        let _ = writeln!(
            text,
            "| {name} | {} | {exponent:.1} | {} | {:.2} % | {:.2} % | {over_j:.0} J, {:.2} % | {writes} | {:.1} % |",
            gpus.len(),
            settled(*settle_s),
            over * 100.0,
            mean_over * 100.0,
            over_part * 100.0,
            work * 100.0
        );
    }
    keep(folder, "figures.md", &text)?;
    keep(folder, "steps.svg", &svg(&steps(outcomes)))?;
    for (name, file) in [
        ("bursts 5 of 10 s", "bursts-5-of-10.svg"),
        ("bursts 20 of 40 s", "bursts-20-of-40.svg"),
        ("bursts 10 of 60 s", "bursts-10-of-60.svg"),
        ("noise 20-100 %, 3 s", "noise.svg"),
        ("8 GPUs step", "eight-gpus-step.svg"),
        ("8 GPUs staggered", "eight-gpus-staggered.svg"),
    ] {
        let middle = |outcome: &&Outcome| outcome.name == name && (outcome.exponent - MIDDLE).abs() < 0.1;
        let outcome = outcomes.iter().find(middle).with_context(|| format!("no run {name}"))?;
        keep(folder, file, &svg(&outcome.chart()))?;
    }
    Ok(())
}

/// Writes one file.
///
/// # Errors
/// When it cannot be written.
pub fn keep(folder: &Path, file: &str, text: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(file);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("  kept {} ({} kB)", path.display(), text.len() / 1000);
    Ok(())
}

/// The first half minute of the steps on one GPU, by exponent.
fn steps(outcomes: &[Outcome]) -> Chart {
    let chosen: Vec<&Outcome> =
        outcomes.iter().filter(|outcome| outcome.kind == Kind::Step && outcome.gpus.len() == 1).collect();
    let lines = |of: fn(&Slice) -> f64| {
        let line = |outcome: &&Outcome| {
            let slices = outcome.gpus[0].iter().take(3000);
            curve(&format!("e {:.1}", outcome.exponent), SLICE_S, slices.map(of), 5)
        };
        chosen.iter().map(line).collect()
    };
    Chart {
        title: format!(
            "A load step on one GPU, exponents {:.1} to {:.1}",
            EXPONENTS[0],
            EXPONENTS[EXPONENTS.len() - 1]
        ),
        panels: vec![
            power_panel(lines(|slice| slice.power_w), BUDGET_W, 800.0),
            clock_panel(lines(|slice| f64::from(slice.ceiling_mhz))),
        ],
    }
}

fn power_panel(lines: Vec<Line>, budget_w: f64, top: f64) -> ChartPanel {
    panel("power, W", 190, top, lines, Some((budget_w, format!("budget {budget_w} W"))))
}

fn clock_panel(lines: Vec<Line>) -> ChartPanel {
    panel("highest clock allowed, MHz", 130, 2000.0, lines, None)
}

impl Outcome {
    pub fn title(&self) -> String {
        format!("{} e {:.1}", self.name, self.exponent)
    }

    fn chart(&self) -> Chart {
        let length = self.gpus.iter().map(|slices| slices.len().min(SHOWN)).min().unwrap_or_default();
        let many = 20;
        let sum = |at: usize| self.gpus.iter().map(|slices| slices[at].power_w).sum();
        let power = curve("", SLICE_S, (0..length).map(sum), many);
        let ceilings = self.gpus.iter().enumerate().map(|(number, slices)| {
            curve(
                &format!("GPU {number}"),
                SLICE_S,
                slices.iter().take(SHOWN).map(|slice| f64::from(slice.ceiling_mhz)),
                many,
            )
        });
        let top = 800.0 * self.budget_w / BUDGET_W;
        Chart {
            title: format!("{}, exponent {:.1}", self.name, self.exponent),
            panels: vec![power_panel(vec![power], self.budget_w, top), clock_panel(ceilings.collect())],
        }
    }
}

#[cfg(test)]
mod tests {
    use fake_nvml::units::float;

    use super::*;
    use crate::bench::capping::truth::SLICE_US;

    #[test]
    fn a_slice_is_as_long_as_the_curves_say() {
        assert!((float(SLICE_US) / 1e6 - SLICE_S).abs() < 1e-12);
    }
}
