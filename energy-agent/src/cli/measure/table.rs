//! The figures of one run or several as text, in the manner of `perf stat`, or as Markdown. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use energy_model::units::{Microjoules, ratio};
use energy_report::markdown::escaped;
use energy_report::number::grouped;
use energy_report::run::{Part, Run, Warning};
use energy_report::stats::Summary;

/// A run, and what no run file has.
#[derive(Debug)]
pub struct ShownRun {
    pub run: Run,
    /// Idle energy of the node, a part of the run's `node_energy`; `None` where nobody said it.
    pub idle: Option<Microjoules>,
}

/// Longest command line that is repeated.
const MAX_TITLE: usize = 60;

/// One part of the energy over all runs.
type PartKey = (Part, String, String);

/// One figure: its mean over the runs, and what is said beside it.
struct ShownFigure {
    value: String,
    unit: char,
    name: String,
    /// Half of the 95 % interval by Student's t, in percent of the mean; empty with one run.
    spread: String,
    rest: String,
}

const NO_RUN: &str = "No run was measured.";
const WHAT_IT_IS: &str =
    "The energy is active energy: above what the idle machine draws. Board counters, not the wall (EEHPC level: none).";

/// Several lines; of no runs, one that says so.
pub fn text(command: &str, warmups: u32, runs: &[ShownRun]) -> String {
    if runs.is_empty() {
        return format!("\n{NO_RUN}\n");
    }
    let mut text = format!("\nEnergy of '{}' ({})\n\n", shortened(command), scope(warmups, runs));
    for ShownFigure { value, unit, name, spread, rest } in figures(runs) {
        let spread = if spread.is_empty() { spread } else { format!("( +- {spread} )") };
        let line = format!("{value:>14} {unit}  {name:<22} {spread:<14} {rest}");
        writeln!(text, "{}", line.trim_end()).expect("a String takes every write");
    }
    if let Some(far) = outliers(runs) {
        writeln!(text, "{far}").expect("a String takes every write");
    }
    writeln!(text, "\n{WHAT_IT_IS}").expect("a String takes every write");
    for Warning { code, message } in warnings(runs) {
        writeln!(text, "warning: {message} [{code}]").expect("a String takes every write");
    }
    text
}

/// The same for a pull request or an issue.
pub fn markdown(command: &str, warmups: u32, runs: &[ShownRun]) -> String {
    if runs.is_empty() {
        return format!("{NO_RUN}\n");
    }
    let mut text = format!("**Energy of {}** ({})\n\n", escaped(&shortened(command)), escaped(&scope(warmups, runs)));
    text.push_str("| | mean | +- | |\n| --- | ---: | ---: | --- |\n");
    for ShownFigure { value, unit, name, spread, rest } in figures(runs) {
        // Blanks that align columns in a terminal.
        let rest: Vec<&str> = rest.split("  ").map(str::trim).filter(|part| !part.is_empty()).collect();
        writeln!(text, "| {} | {value} {unit} | {spread} | {} |", escaped(&name), escaped(&rest.join(", ")))
            .expect("a String takes every write");
    }
    text.push('\n');
    if let Some(far) = outliers(runs) {
        writeln!(text, "{far}\n").expect("a String takes every write");
    }
    writeln!(text, "{WHAT_IT_IS}").expect("a String takes every write");
    for Warning { code, message } in warnings(runs) {
        writeln!(text, "\n> {}: {}", escaped(code), escaped(message)).expect("a String takes every write");
    }
    text
}

fn figures(runs: &[ShownRun]) -> Vec<ShownFigure> {
    let Some(first) = runs.first() else { return Vec::new() };
    let mut figures: Vec<ShownFigure> = keys(runs).iter().map(|key| of_part(first, runs, key)).collect();
    let elapsed = summary(runs, |shown| shown.run.end - shown.run.start);
    let cpu = summary(runs, |shown| shown.run.cpu_seconds.unwrap_or_default());
    let whole =
        summary(runs, |shown| shown.run.node_energy.iter().map(|energy| ratio(energy.microjoules, 1_000_000)).sum());
    let mut rest = format!("CPU {} s", grouped(mean(cpu.as_ref()), 2));
    // Of a run between two readings of an agent, nobody knows it.
    if runs.iter().all(|shown| !shown.run.node_energy.is_empty()) {
        rest += &format!("   whole node {} J", grouped(mean(whole.as_ref()), 2));
    }
    if runs.iter().all(|shown| shown.idle.is_some()) {
        let idle = summary(runs, |shown| ratio(shown.idle.unwrap_or_default().0, 1_000_000));
        rest += &format!("   idle {} J", grouped(mean(idle.as_ref()), 2));
    }
    figures.push(ShownFigure {
        value: grouped(mean(elapsed.as_ref()), 3),
        unit: 's',
        name: "elapsed".to_owned(),
        spread: spread(elapsed.as_ref()),
        rest,
    });
    figures.extend(per_work(runs));
    figures
}

fn mean(summary: Option<&Summary>) -> f64 {
    summary.map_or(0.0, |summary| summary.mean)
}

/// Each kind once.
fn warnings(runs: &[ShownRun]) -> Vec<&Warning> {
    let warnings = runs.iter().flat_map(|shown| &shown.run.warnings).map(|warning| (warning.code.as_str(), warning));
    warnings.collect::<BTreeMap<_, _>>().into_values().collect()
}

/// `5 runs, 1 warm-up; rapl, nvml`.
fn scope(warmups: u32, runs: &[ShownRun]) -> String {
    let count = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let mut scope = count(runs.len(), "run");
    if warmups > 0 {
        scope += &format!(", {}", count(usize::try_from(warmups).unwrap_or(usize::MAX), "warm-up"));
    }
    let sources: BTreeSet<&str> =
        runs.iter().flat_map(|shown| &shown.run.energy).map(|energy| energy.source.as_str()).collect();
    if !sources.is_empty() {
        scope += &format!("; {}", sources.into_iter().collect::<Vec<_>>().join(", "));
    }
    scope
}

fn shortened(command: &str) -> String {
    if command.chars().count() <= MAX_TITLE {
        return command.to_owned();
    }
    command.chars().take(MAX_TITLE).chain("...".chars()).collect()
}

/// The parts that any of the runs has, in the order of a run file.
fn keys(runs: &[ShownRun]) -> Vec<PartKey> {
    let energies = runs.iter().flat_map(|shown| &shown.run.energy);
    let keys: BTreeSet<PartKey> =
        energies.map(|energy| (energy.part, energy.zone.clone(), energy.source.clone())).collect();
    keys.into_iter().collect()
}

fn of_part(first: &ShownRun, runs: &[ShownRun], key: &PartKey) -> ShownFigure {
    let (part, zone, source) = key;
    let of = |shown: &ShownRun| -> (f64, Option<f64>) {
        let same = shown
            .run
            .energy
            .iter()
            .filter(|energy| (energy.part, &energy.zone, &energy.source) == (*part, zone, source));
        same.fold((0.0, None), |(joules, peak), energy| {
            let peak = energy.peak_watts.into_iter().chain(peak).reduce(f64::max);
            (joules + ratio(energy.microjoules, 1_000_000), peak)
        })
    };
    let joules = summary(runs, |shown| of(shown).0);
    let seconds = |shown: &ShownRun| shown.run.end - shown.run.start;
    let watts = summary(runs, |shown| if seconds(shown) > 0.0 { of(shown).0 / seconds(shown) } else { 0.0 });
    let mut rest = format!("{:>9} W mean", grouped(mean(watts.as_ref()), 2));
    if let Some(peak) = runs.iter().filter_map(|shown| of(shown).1).reduce(f64::max) {
        let interval = first.run.measured.interval_seconds * 1000.0;
        rest += &format!(" {:>9} W peak ({interval:.0} ms)", grouped(peak, 2));
    }
    let is_estimated = first.run.energy.iter().any(|energy| energy.zone == *zone && energy.estimated);
    if is_estimated {
        rest += "   estimated";
    }
    ShownFigure {
        value: grouped(mean(joules.as_ref()), 2),
        unit: 'J',
        name: name(first, *part, zone),
        spread: spread(joules.as_ref()),
        rest,
    }
}

/// `package`, `dram`, `gpu 0 H100`.
fn name(first: &ShownRun, part: Part, zone: &str) -> String {
    if part != Part::Gpu {
        return zone.to_owned();
    }
    if zone == "gpu" {
        // An agent shows what a unit used of all GPUs.
        return zone.to_owned();
    }
    let gpus = first.run.nodes.iter().flat_map(|node| &node.gpus);
    let gpu = { gpus }.find(|gpu| gpu.uuid == zone);
    gpu.map_or_else(
        || format!("gpu {zone}"),
        |gpu| format!("gpu {} {}", gpu.index, gpu.model.as_deref().unwrap_or_default().trim_start_matches("NVIDIA ")),
    )
}

/// Half of the 95 % interval by Student's t, in percent of the mean.
fn spread(summary: Option<&Summary>) -> String {
    let relative = summary.and_then(Summary::relative);
    relative.map_or(String::new(), |relative| format!("{:.2} %", relative * 100.0))
}

fn per_work(runs: &[ShownRun]) -> Option<ShownFigure> {
    let work = runs.iter().find_map(|shown| shown.run.work.as_ref())?;
    let per = summary(runs, |shown| total(&shown.run) / work.amount);
    Some(ShownFigure {
        value: grouped(mean(per.as_ref()), 6),
        unit: 'J',
        name: format!("per {}", unit_of_one(&work.unit)),
        spread: spread(per.as_ref()),
        rest: String::new(),
    })
}

/// `images` into `image`, so that a figure reads well; other words stay.
fn unit_of_one(unit: &str) -> &str {
    unit.strip_suffix('s').filter(|one| one.len() > 1 && !one.ends_with('s')).unwrap_or(unit)
}

/// Measured energy of all parts that add up; estimated where nothing was measured.
fn total(run: &Run) -> f64 {
    let of = |estimated: bool| -> f64 {
        let parts = run.energy.iter().filter(|energy| energy.estimated == estimated && energy.part != Part::Other);
        parts.map(|energy| ratio(energy.microjoules, 1_000_000)).sum()
    };
    if run.energy.iter().any(|energy| !energy.estimated) { of(false) } else { of(true) }
}

/// Runs that lie far from the others are named and counted.
fn outliers(runs: &[ShownRun]) -> Option<String> {
    let far = |what: &str, summary: Option<Summary>| {
        let far = summary.map(|summary| summary.outliers).unwrap_or_default();
        let numbers: Vec<String> = far.iter().map(|index| (index + 1).to_string()).collect();
        (!numbers.is_empty()).then(|| format!("{what} of run {}", numbers.join(", ")))
    };
    let energy = far("energy", summary(runs, |shown| total(&shown.run)));
    let time = far("time", summary(runs, |shown| shown.run.end - shown.run.start));
    let far: Vec<String> = [energy, time].into_iter().flatten().collect();
    (!far.is_empty()).then(|| format!("far from the others, and counted: {}", far.join("; ")))
}

fn summary(runs: &[ShownRun], of: impl Fn(&ShownRun) -> f64) -> Option<Summary> {
    Summary::of(&runs.iter().map(of).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use energy_report::run::{API_VERSION, Energy, Measured, MeasuredBy, Subject, Work};

    use super::*;

    /// A run of 2 s.
    fn run(joules: u64, warnings: &[&str]) -> ShownRun {
        let energy = |microjoules: u64| Energy {
            part: Part::Package,
            zone: "package".to_owned(),
            node: String::new(),
            source: "rapl".to_owned(),
            estimated: false,
            microjoules,
            peak_watts: Some(7.0),
        };
        let warning = |code: &&str| Warning { code: (*code).to_owned(), message: "of a test".to_owned() };
        let run = Run {
            api_version: API_VERSION.to_owned(),
            id: String::new(),
            subject: Subject::default(),
            work: Some(Work { amount: 4.0, unit: "images".to_owned() }),
            labels: BTreeMap::new(),
            nodes: Vec::new(),
            measured: Measured {
                by: MeasuredBy::Own,
                interval_seconds: 0.1,
                coverage: 1.0,
                attribution: BTreeMap::new(),
            },
            start: 100.0,
            end: 102.0,
            waited: None,
            energy: vec![energy(joules * 1_000_000)],
            cpu_seconds: Some(1.5),
            node_energy: vec![energy(1_500_000_000)],
            gpus: Vec::new(),
            limits: Vec::new(),
            series: Vec::new(),
            pods: Vec::new(),
            outcome: None,
            warnings: warnings.iter().map(warning).collect(),
            prices: None,
        };
        ShownRun { run, idle: Some(Microjoules(8_000_000)) }
    }

    /// t of 97.5 % with two degrees of freedom is 4.302653 (tables), so half the interval is 4.302653 x 2 / 1.732051 = 4.968.
    #[test]
    fn several_runs_have_means_and_intervals() {
        let text = text("count 5", 1, &[run(10, &[]), run(12, &["odd"]), run(14, &["odd"])]);
        assert!(text.starts_with("\nEnergy of 'count 5' (3 runs, 1 warm-up; rapl)\n\n"), "{text}");
        for line in [
            "         12.00 J  package                ( +- 41.40 % )      6.00 W mean      7.00 W peak (100 ms)",
            "         2.000 s  elapsed                ( +- 0.00 % )  CPU 1.50 s   whole node 1,500.00 J   idle 8.00 J",
            "      3.000000 J  per image              ( +- 41.40 % )",
            "warning: of a test [odd]",
        ] {
            assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}\n is not once in {text}");
        }
    }

    /// The same figures, and no name is markup.
    #[test]
    fn the_figures_are_a_table_of_markdown() {
        let text = markdown("count | *5*", 1, &[run(10, &[]), run(12, &["odd"]), run(14, &["odd"])]);
        for line in [
            r"**Energy of count \| \*5\*** (3 runs, 1 warm-up; rapl)",
            "| package | 12.00 J | 41.40 % | 6.00 W mean, 7.00 W peak (100 ms) |",
            "| elapsed | 2.000 s | 0.00 % | CPU 1.50 s, whole node 1,500.00 J, idle 8.00 J |",
            "| per image | 3.000000 J | 41.40 % |  |",
            "> odd: of a test",
        ] {
            assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}\n is not once in {text}");
        }
        assert_eq!(markdown("true", 0, &[]), "No run was measured.\n");
    }

    #[test]
    fn one_run_has_no_interval_and_none_says_so() {
        let text_of_one = text("true", 0, &[run(10, &[])]);
        assert!(text_of_one.contains("(1 run; rapl)") && !text_of_one.contains("+-"), "{text_of_one}");
        assert_eq!(text("true", 0, &[]), "\nNo run was measured.\n");
    }

    #[test]
    fn a_run_far_from_the_others_is_named_and_counted() {
        let runs: Vec<_> = [10, 11, 10, 11, 90, 10, 11].into_iter().map(|joules| run(joules, &[])).collect();
        let text = text("true", 0, &runs);
        assert!(text.contains("far from the others, and counted: energy of run 5\n"), "{text}");
        // 153 J over 7 runs.
        assert!(text.contains("21.86 J  package"), "{text}");
    }
}
