//! Measures what energy-agent has to reach and prints it beside the goals. Everything is a ratio, a percentage or a count
//! within one run, because machines differ and drift.

mod accuracy;
pub mod agent;
mod capping;
mod cluster;
mod energy;
mod footprint;
mod gpus;
pub mod page;
mod pingpong;
mod processes;
mod scale;
mod scrape;
mod siege;
mod table;
pub mod world;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

pub use self::capping::kubelet;
use crate::{cargo, checked};

#[derive(Args)]
pub struct Options {
    /// Only these rows.
    #[arg(value_enum)]
    rows: Vec<Row>,
    /// Short runs and small crowds, to see that the command works; the numbers mean little.
    #[arg(long, conflicts_with = "write")]
    quick: bool,
    /// Keep the results in docs/benchmarks.md; what was not measured now stays there as it was.
    #[arg(long)]
    write: bool,
    /// So many nodes in the row `cluster`, in place of 5,000.
    #[arg(long, value_name = "N", conflicts_with = "write", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    nodes: Option<u32>,
    /// Write the figures and curves of `capping` and `capping-cpu` into this folder.
    #[arg(long, value_name = "DIR", conflicts_with = "quick")]
    plots: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Row {
    /// CPU time charged to a container against its cpu.stat.
    Accuracy,
    /// Shares of energy beside a pod that does nothing but start processes.
    Storm,
    /// Pods that live a moment.
    ShortPods,
    /// Whether the parts add up on every scrape.
    Conservation,
    /// What a task switch costs with the agent running.
    Pingpong,
    /// CPU time and memory of the agent.
    Footprint,
    /// What GPUs cost a tick.
    Gpus,
    /// Duration and size of a scrape.
    Scrape,
    /// A thousand pods of which twenty a second are replaced, for ten minutes: memory, CPU time, ticks, scrapes, log.
    Scale,
    /// What probes and a scraper wait beside thousands of hostile clients.
    Siege,
    /// What the process level costs besides.
    Processes,
    /// GPUs under power budgets: how fast and how well they are kept, and what work it costs; a quarter of an hour.
    Capping,
    /// Busy loops under a budget for CPU power, which their quota keeps.
    CappingCpu,
    /// From an edit of a policy to its effect.
    CappingEdits,
    /// What a budget for every pod costs a tick.
    CappingTicks,
    /// Budgets over 5,000 simulated nodes in 300 racks: the controller and a real API server; a quarter of an hour.
    Cluster,
}

impl Row {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// One line of the table.
struct Finding {
    what: String,
    measured: String,
    goal: String,
    reached: bool,
    how: String,
}

/// How long and how large: a measurement or a smoke test.
#[derive(Clone, Copy)]
struct Scale {
    quick: bool,
}

impl Scale {
    fn of<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    fn seconds(self, full: u64, quick: u64) -> Duration {
        Duration::from_secs(self.of(full, quick))
    }

    /// Of the agent's ticks.
    fn interval(self) -> Duration {
        Duration::from_millis(self.of(1000, 200))
    }
}

/// Builds in release and measures. A missed goal is a result; the table says so.
///
/// # Errors
/// When the build fails or a row could not be measured, after the others were.
pub fn run(options: &Options) -> Result<()> {
    println!("building in release");
    checked(cargo().args(["build", "--release", "--locked", "--package", "energy-agent"]))?;
    checked(cargo().args(["build", "--release", "--locked", "--package", "energy-agent", "--example", "load"]))?;
    let scale = Scale { quick: options.quick };
    let rows = if options.rows.is_empty() { Row::value_variants() } else { &options.rows };
    let machine = table::machine()?;
    let mut measured = Vec::new();
    let mut failed = Vec::new();
    let plots = options.plots.as_deref();
    for row in rows {
        let name = row.name();
        println!("measuring {name}");
        let began = Instant::now();
        let outcome = match row {
            Row::Accuracy => accuracy::accuracy(scale),
            Row::Storm => accuracy::storm(scale),
            Row::ShortPods => energy::short_pods(scale),
            Row::Conservation => energy::conservation(scale),
            Row::Pingpong => pingpong::pingpong(scale),
            Row::Footprint => footprint::footprint(scale),
            Row::Gpus => gpus::gpus(scale),
            Row::Scrape => scrape::scrape(scale),
            Row::Scale => scale::scale(scale),
            Row::Siege => siege::siege(scale),
            Row::Processes => processes::processes(scale),
            Row::Capping => capping::gpus(scale, plots),
            Row::CappingCpu => capping::cpu::cpu(scale, plots),
            Row::CappingEdits => capping::edits::edits(scale),
            Row::CappingTicks => capping::ticks::ticks(scale),
            Row::Cluster => cluster::cluster(scale, options.nodes),
        };
        match outcome {
            Ok(more) => {
                for Finding { what, measured, goal, reached, how: _ } in &more {
                    println!("  {what}: {measured} (goal {goal}){}", if *reached { "" } else { " MISSED" });
                }
                println!("  took {:.0} s", began.elapsed().as_secs_f64());
                measured.push((name, more));
            }
            Err(error) => {
                eprintln!("  not measured: {error:#}");
                failed.push(name);
            }
        }
    }
    println!("\n{}", machine.text());
    for (_, findings) in &measured {
        println!("{}", table::markdown(findings));
    }
    let findings: Vec<&Finding> = measured.iter().flat_map(|(_, findings)| findings).collect();
    let missed: Vec<&str> =
        findings.iter().filter(|finding| !finding.reached).map(|finding| finding.what.as_str()).collect();
    println!("{}", table::verdict(findings.len(), &missed));
    if scale.quick {
        println!("--quick: short runs on small crowds; these are no measurements");
    }
    if options.write {
        let order: Vec<String> = Row::value_variants().iter().map(|row| row.name()).collect();
        table::write(&machine, &measured, &order)?;
    }
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}

/// The middle value; of an even number the lower of the two.
fn median(values: &[f64]) -> f64 {
    quantile(values, 50)
}

/// The smallest value that at least this percentage of the values do not exceed (nearest rank); NaN of none.
fn quantile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

/// Numbers without a pattern, to come at any place between two ticks.
const fn uneven(number: u32) -> u32 {
    (number.wrapping_mul(number).wrapping_mul(0x9e37_79b9)) >> 16
}

/// `part / whole` of two counts of the same unit, in percent.
fn percent(part: u64, whole: u64) -> f64 {
    let float = |count| Duration::from_nanos(count).as_secs_f64();
    float(part) / float(whole) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert!((median(&values) - 2.0).abs() < 1e-9);
        assert!((quantile(&values, 99) - 4.0).abs() < 1e-9);
        assert!((quantile(&values, 25) - 1.0).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_part_of_a_count_is_a_percentage() {
        assert!((percent(1, 8) - 12.5).abs() < 1e-9);
    }
}
