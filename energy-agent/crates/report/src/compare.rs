//! Runs side by side: what each group of them cost, what can be said about the difference, and which of them nobody would choose.
//!
//! Only runs that did the same work are compared as a whole. Of others, what one unit of the work cost.

pub mod chart;
mod claim;
mod columns;
mod figures;
mod front;
mod group;
mod number;
pub mod prices;
pub mod profile;
pub mod render;
mod work;

use serde::Serialize;

pub use self::claim::DifferenceClaim;
pub use self::columns::GroupRow;
use self::figures::CostFigures;
pub use self::group::RunGroup;
use self::prices::HourlyPrices;
use self::work::WorkMatch;
use crate::run::Warning;
use crate::stats;

/// What is known beside the runs.
#[derive(Clone, Debug, Default)]
pub struct CompareOptions {
    pub prices: Option<HourlyPrices>,
    pub per_kwh: Option<f64>,
    /// Of both prices, for people.
    pub currency: String,
    pub grams_per_kwh: Option<f64>,
    /// What the nodes used meanwhile, idle included, in place of what the runs used.
    pub whole_node: bool,
    /// Somebody states that all runs did the same work.
    pub same_work: bool,
}

/// Groups of runs, compared.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Else only what a unit of work cost is compared.
    pub same_work: bool,
    /// Of the work, where all runs have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub currency: String,
    pub rows: Vec<GroupRow>,
    /// Each group against the first.
    pub claims: Vec<DifferenceClaim>,
    pub notes: Vec<Warning>,
}

/// Compares groups; the first is what the others are compared with.
///
/// # Errors
/// When nothing can be compared: a sentence for people.
pub fn compare(groups: &[RunGroup], options: &CompareOptions) -> Result<Comparison, String> {
    let mut notes = Vec::new();
    let done: Vec<RunGroup> = groups.iter().map(|group| group.succeeded(&mut notes)).collect();
    if let Some(empty) = done.iter().find(|group| group.runs.is_empty()) {
        return Err(format!("{} has no run that succeeded, so there is nothing to compare", empty.name));
    }
    let work = WorkMatch::of(&done, options.same_work)?;
    let (same_work, unit) = match &work {
        WorkMatch::Same { unit } => (true, unit.clone()),
        WorkMatch::Different { unit, why } => {
            let message = format!("{why}; so only the energy per unit of work ({unit}) is compared");
            notes.push(Warning { code: "different_work".to_owned(), message });
            (false, Some(unit.clone()))
        }
    };
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for group in &done {
        let figures = group.runs.iter().map(|run| CostFigures::of(run, options)).collect::<Result<Vec<_>, String>>()?;
        rows.push(GroupRow::of(&group.name, &figures, same_work));
        notes.extend(group.notes(&figures, options));
        all.push(figures);
    }
    let doubts = group::doubts(&done, &all, &mut notes);
    let claims = claim::claims(&done, &all, same_work, unit.as_deref(), &doubts);
    columns::relate(&mut rows);
    if same_work {
        front::mark(&mut rows);
    }
    let currency = options.currency.clone();
    Ok(Comparison { same_work, unit, currency, rows, claims, notes })
}

/// Mean seconds and joules of each group; `None`: not measured.
#[must_use]
pub fn means(groups: &[RunGroup], options: &CompareOptions) -> Vec<Option<(f64, f64)>> {
    let mean = |group: &RunGroup| {
        let of = |run| CostFigures::of(run, options).ok().and_then(|figures| Some((figures.seconds, figures.joules?)));
        let all: Vec<(f64, f64)> = group.runs.iter().map(of).collect::<Option<_>>()?;
        let (seconds, joules): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
        (!seconds.is_empty()).then(|| (stats::mean(&seconds), stats::mean(&joules)))
    };
    groups.iter().map(mean).collect()
}

#[cfg(test)]
mod tests;
