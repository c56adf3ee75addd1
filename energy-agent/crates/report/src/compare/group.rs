//! Runs that are taken together, and what a reader has to know about them.

use std::collections::BTreeSet;

use super::CompareOptions;
use super::figures::{CostFigures, EnergyBasis};
use super::prices::held;
use crate::run::{Outcome, Run, Warning};
use crate::stats::Summary;

/// Below this, energy is a lower bound.
const WHOLE: f64 = 0.98;

impl Run {
    /// What groups the run by a label; some words are known without one.
    #[must_use]
    pub fn group(&self, by: &str) -> Option<String> {
        if let Some(value) = self.labels.get(by) {
            return Some(value.clone());
        }
        match by {
            "gpu" => {
                let models: BTreeSet<&str> = held(self).flatten().collect();
                Some(models.into_iter().collect::<Vec<_>>().join(" + ")).filter(|models| !models.is_empty())
            }
            "node" => {
                let nodes: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
                Some(nodes.join(" + ")).filter(|nodes| !nodes.is_empty())
            }
            "name" => Some(self.subject.name.clone()),
            "class" => self.subject.class.clone(),
            _ => None,
        }
    }
}

/// Runs of one kind.
#[derive(Clone, Debug)]
pub struct RunGroup {
    pub name: String,
    pub runs: Vec<Run>,
}

impl RunGroup {
    /// Groups runs by what `key` says of each, in the order in which the keys come.
    #[must_use]
    pub fn by(runs: Vec<(String, Run)>) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for (name, run) in runs {
            match groups.iter_mut().find(|group| group.name == name) {
                Some(group) => group.runs.push(run),
                None => groups.push(Self { name, runs: vec![run] }),
            }
        }
        groups
    }

    /// Without runs that failed: they have not done the work.
    pub(super) fn succeeded(&self, notes: &mut Vec<Warning>) -> Self {
        let has_failed = |outcome: &Outcome| !outcome.succeeded;
        let (failed, runs): (Vec<Run>, Vec<Run>) =
            self.runs.iter().cloned().partition(|run| run.outcome.as_ref().is_some_and(has_failed));
        if !failed.is_empty() {
            let message = format!("{} of {} failed and are left out", runs_of(failed.len()), self.name);
            notes.push(Warning { code: "run_failed".to_owned(), message });
        }
        Self { name: self.name.clone(), runs }
    }

    /// What is special about its runs.
    pub(super) fn notes(&self, figures: &[CostFigures], options: &CompareOptions) -> Vec<Warning> {
        let mut notes = Vec::new();
        let mut note = |code: &str, message: String| notes.push(Warning { code: code.to_owned(), message });
        let joules: Vec<f64> = figures.iter().filter_map(|figures| figures.joules).collect();
        for outlier in Summary::of(&joules).map(|summary| summary.outliers).unwrap_or_default() {
            let far = format!("run {} of {} used {:.1} J", outlier + 1, self.name, joules[outlier]);
            note("outlier", format!("{far}, far from the others of its group; it counts all the same"));
        }
        if options.prices.is_some() && figures.iter().any(|figures| figures.cost.is_none()) {
            let remedy = "add its GPU model or one of its labels to the file of prices";
            note("no_price", format!("{} has no price: {remedy}", self.name));
        }
        let partly = self.runs.iter().filter(|run| run.measured.coverage < WHOLE).count();
        if partly > 0 {
            let seen = format!("{} of {} were not seen as a whole", runs_of(partly), self.name);
            note("at_least", format!("{seen}, so their energy is a lower bound"));
        }
        notes
    }

    fn is_whole(&self) -> bool {
        self.runs.iter().all(|run| run.measured.coverage >= WHOLE)
    }
}

/// For each group whether its energy cannot be compared with that of the first; why not is in the notes. Where the energies of one
/// group's runs are not of one kind, they have no mean and are taken out.
pub(super) fn doubts(groups: &[RunGroup], figures: &mut [Vec<CostFigures>], notes: &mut Vec<Warning>) -> Vec<bool> {
    let basis = |runs: &[CostFigures]| runs.iter().map(|run| run.basis).reduce(EnergyBasis::and).unwrap_or_default();
    let first = figures.first().map(|runs| basis(runs)).unwrap_or_default();
    let mut note = |code: &str, message: String| notes.push(Warning { code: code.to_owned(), message });
    let mut doubts = Vec::new();
    for (group, runs) in groups.iter().zip(figures) {
        let own = basis(runs);
        let mixed = runs.iter().find_map(|run| runs[0].basis.differs(run.basis, "one run", "another"));
        let differs = first.differs(own, &groups[0].name, &group.name);
        doubts.push(mixed.is_some() || differs.is_some() || !group.is_whole());
        if let Some(why) = mixed {
            note("measured_differently", format!("{} has no mean energy: {why}", group.name));
            runs.iter_mut().for_each(CostFigures::forget_energy);
        } else if let Some(why) = differs {
            note("measured_differently", format!("{why}: their energies cannot be compared"));
        } else if own.dram != first.dram {
            let [with, without] = if own.dram { [group, &groups[0]] } else { [&groups[0], group] };
            note(
                "parts_differ",
                format!("the energy of {} includes memory (dram), that of {} does not", with.name, without.name),
            );
        }
    }
    doubts
}

fn runs_of(n: usize) -> String {
    if n == 1 { "1 run".to_owned() } else { format!("{n} runs") }
}
