//! What a class of work costs on each model of hardware: what a scheduler can rank nodes by.

use std::collections::BTreeMap;

use serde::Serialize;

use super::CompareOptions;
use super::figures::CostFigures;
use super::prices::held;
use crate::run::Run;
use crate::stats::Summary;

/// The label that GPU feature discovery gives a node; its value is the model with dashes for blanks.
const PRODUCT: &str = "nvidia.com/gpu.product";
/// Without --work.
const WHOLE_RUN: &str = "run";

/// By class, then by model.
pub type ClassProfiles = BTreeMap<String, BTreeMap<String, ClassProfile>>;

/// Energy and time of a run, or of a unit of its work. The energy is active energy, unless a field says what else is in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassProfile {
    pub joules: f64,
    pub seconds: f64,
    pub watts: f64,
    pub n: usize,
    /// Of the joules; `None` with one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stddev: Option<f64>,
    pub unit: String,
    /// The runs are of a sweep: the GPU was theirs alone, and its idle energy is in the joules.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub includes_gpu_idle: bool,
    /// Day of the last run.
    pub date: String,
}

/// The profiles of runs that succeeded and were measured. `day` writes seconds since the Unix epoch as a date.
///
/// # Errors
/// When a run has no model or no energy, or runs of one class and model did different work.
pub fn profiles<'a>(
    runs: impl IntoIterator<Item = &'a Run>,
    day: impl Fn(f64) -> String,
) -> Result<ClassProfiles, String> {
    let mut of: BTreeMap<(String, String), Vec<&Run>> = BTreeMap::new();
    for run in runs.into_iter().filter(|run| run.outcome.as_ref().is_none_or(|outcome| outcome.succeeded)) {
        let class = run.group("class").unwrap_or_else(|| run.subject.name.clone());
        let model = model(run).ok_or_else(|| format!("a run of {class} names neither a GPU model nor a CPU"))?;
        of.entry((class, model)).or_default().push(run);
    }
    let mut profiles = ClassProfiles::new();
    for ((class, model), runs) in of {
        let profile = profile(&runs, &day).map_err(|why| format!("{class} on {model}: {why}"))?;
        profiles.entry(class).or_default().insert(model, profile);
    }
    Ok(profiles)
}

fn profile(runs: &[&Run], day: &impl Fn(f64) -> String) -> Result<ClassProfile, String> {
    let unit = |run: &Run| run.work.as_ref().map_or(WHOLE_RUN, |work| &work.unit).to_owned();
    let first = runs.first().map(|run| unit(run)).unwrap_or_default();
    if let Some(other) = runs.iter().map(|run| unit(run)).find(|other| *other != first) {
        return Err(format!("the work of some runs is in {first}, that of others in {other}"));
    }
    // The same name is no class: `sh` runs anything.
    let mut unnamed = runs.iter().filter(|run| run.group("class").is_none()).map(|run| &run.subject.digest);
    if let Some(digest) = unnamed.next()
        && unnamed.any(|other| other != digest)
    {
        let remedy = "say which class each is of with `measure --label class=NAME`";
        return Err(format!("the runs are of different commands or images; {remedy}"));
    }
    let (mut joules, mut seconds, mut whole_gpu) = (Vec::new(), Vec::new(), Vec::new());
    for run in runs {
        let figures = CostFigures::of(run, &CompareOptions::default())?;
        let amount = run.work.as_ref().map_or(1.0, |work| work.amount);
        let energy = figures.joules.filter(|_| !figures.estimated);
        joules.push(energy.ok_or("the energy of a run was not measured")? / amount);
        seconds.push(figures.seconds / amount);
        whole_gpu.push(figures.basis.whole_gpu);
    }
    let includes_gpu_idle = whole_gpu.contains(&true);
    if includes_gpu_idle && whole_gpu.contains(&false) {
        return Err("the GPU's idle energy is part of some runs (of a sweep) and not of others".to_owned());
    }
    let [joules, seconds] = [joules, seconds].map(|values| Summary::of(&values).ok_or("the amount of work is 0"));
    let (joules, seconds) = (joules?, seconds?);
    let last = runs.iter().map(|run| run.end).fold(f64::NEG_INFINITY, f64::max);
    Ok(ClassProfile {
        joules: joules.mean,
        seconds: seconds.mean,
        watts: joules.mean / seconds.mean,
        n: joules.n,
        stddev: joules.stddev,
        unit: first,
        includes_gpu_idle,
        date: day(last),
    })
}

/// As node labels have it: the GPU's model with dashes, else the CPU's.
fn model(run: &Run) -> Option<String> {
    let of_gpu = held(run).flatten().next();
    let of_cpu = || run.nodes.iter().find_map(|node| node.cpu.as_deref());
    let named = run.labels.get(PRODUCT).map(String::as_str).or(of_gpu).or_else(of_cpu)?;
    Some(named.split_whitespace().collect::<Vec<_>>().join("-"))
}
