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
use crate::sweep::Objective;

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
    let mut all = Vec::new();
    for group in &done {
        let figures = group.runs.iter().map(|run| CostFigures::of(run, options)).collect::<Result<Vec<_>, String>>()?;
        notes.extend(group.notes(&figures, options));
        all.push(figures);
    }
    let doubts = group::doubts(&done, &mut all, &mut notes);
    let row = |((group, figures), is_doubtful): ((&RunGroup, &Vec<CostFigures>), &bool)| {
        GroupRow::of(&group.name, figures, same_work, !is_doubtful)
    };
    let mut rows: Vec<GroupRow> = done.iter().zip(&all).zip(&doubts).map(row).collect();
    let claims = claim::claims(&done, &all, same_work, unit.as_deref(), &doubts);
    notes.extend(claim::note(&claims));
    columns::relate(&mut rows);
    if same_work {
        front::mark(&mut rows);
    }
    let currency = options.currency.clone();
    Ok(Comparison { same_work, unit, currency, rows, claims, notes })
}

impl Comparison {
    /// What each group costs by an objective; `None`: it did other work, or its energy was not measured or cannot be compared. The
    /// first group is the one without a limit.
    #[must_use]
    pub fn costs(&self, objective: Objective) -> Vec<Option<f64>> {
        let seconds = |row: &GroupRow| row.seconds.as_ref().map(|seconds| seconds.mean);
        let open = self.rows.first().and_then(seconds).unwrap_or(f64::INFINITY);
        self.rows.iter().map(|row| objective.cost(seconds(row)?, row.comparable_joules(), open)).collect()
    }

    /// The place of the group that costs least.
    #[must_use]
    pub fn best(&self, objective: Objective) -> Option<usize> {
        let costs = self.costs(objective).into_iter().enumerate();
        let known = costs.filter_map(|(place, cost)| Some((place, cost.filter(|cost| cost.is_finite())?)));
        known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests;
