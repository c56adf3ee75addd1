//! What can be said about two groups: by how many percent, between which bounds, or that nothing is shown.

use serde::Serialize;

use super::figures::CostFigures;
use super::group::RunGroup;
use crate::run::Warning;
use crate::stats::{LEAST_RUNS, Ratio, ratios};

/// One sentence about two groups.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DifferenceClaim {
    pub of: String,
    /// What it is compared with.
    pub with: String,
    pub quantity: ClaimedQuantity,
    /// `of` by `with`; `None`: too few runs, or figures that cannot be compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
    /// The interval does not hold 1.
    pub is_shown: bool,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ClaimedQuantity {
    Energy,
    EnergyPerWork,
    Time,
}

/// Every group against the first: its energy and, where the work is the same, its time.
pub(super) fn claims(
    groups: &[RunGroup],
    figures: &[Vec<CostFigures>],
    same_work: bool,
    unit: Option<&str>,
    doubts: &[bool],
) -> Vec<DifferenceClaim> {
    let energy: fn(&CostFigures) -> Option<f64> = |figures| figures.joules;
    let per_work: fn(&CostFigures) -> Option<f64> = |figures| figures.per_work;
    let time: fn(&CostFigures) -> Option<f64> = |figures| Some(figures.seconds);
    let wanted = if same_work {
        vec![(ClaimedQuantity::Energy, energy), (ClaimedQuantity::Time, time)]
    } else {
        vec![(ClaimedQuantity::EnergyPerWork, per_work)]
    };
    wanted
        .into_iter()
        .flat_map(|(quantity, value)| {
            let values: Vec<Vec<f64>> = figures.iter().map(|runs| runs.iter().filter_map(value).collect()).collect();
            of_quantity(groups, &values, quantity, unit, doubts)
        })
        .collect()
}

fn of_quantity(
    groups: &[RunGroup],
    values: &[Vec<f64>],
    quantity: ClaimedQuantity,
    unit: Option<&str>,
    doubts: &[bool],
) -> Vec<DifferenceClaim> {
    let Some((base, others)) = values.split_first() else { return Vec::new() };
    let is_doubtful = |group: usize| quantity != ClaimedQuantity::Time && (doubts[0] || doubts[group]);
    let is_enough = |group: usize| base.len() >= LEAST_RUNS && values[group].len() >= LEAST_RUNS;
    // One family of Holm's method.
    let claimed: Vec<usize> = (1..values.len()).filter(|group| is_enough(*group) && !is_doubtful(*group)).collect();
    let of_claimed: Vec<&[f64]> = claimed.iter().map(|group| values[*group].as_slice()).collect();
    let found = ratios(base, &of_claimed);
    let many = claimed.len() > 1;
    let claim = |group: usize| {
        let ratio = claimed.iter().position(|claimed| *claimed == group).and_then(|place| found[place]);
        let (of, with) = (&groups[group].name, &groups[0].name);
        let n = format!("n = {} + {}", values[group].len(), base.len());
        let what = what(quantity, unit);
        let text = match ratio {
            Some(ratio) => sentence(of, with, quantity, &what, ratio, many, &n),
            None if is_doubtful(group) => format!("no claim about {what} of {of} and {with}: see the notes"),
            None if is_enough(group) => format!("no claim about {what} of {of} and {with}: a value is 0"),
            None => {
                format!("no claim about {what} of {of} and {with}: {n}, at least {LEAST_RUNS} runs of each are needed")
            }
        };
        let is_shown = ratio.is_some_and(|ratio| !ratio.holds_one());
        DifferenceClaim { of: of.clone(), with: with.clone(), quantity, ratio, is_shown, text }
    };
    (1..=others.len()).map(claim).collect()
}

/// What the claims about several groups say together.
pub(super) fn note(claims: &[DifferenceClaim]) -> Option<Warning> {
    let is_one_of_several = |claim: &DifferenceClaim| {
        claims.iter().filter(|other| other.quantity == claim.quantity && other.ratio.is_some()).count() > 1
    };
    claims.iter().any(is_one_of_several).then(|| Warning {
        code: "several_groups".to_owned(),
        message: "the chance that any difference is claimed in one figure where there is none is 5 % at most (Holm); each interval \
                  holds by itself with 95 % or more, not all of them together"
            .to_owned(),
    })
}

fn what(quantity: ClaimedQuantity, unit: Option<&str>) -> String {
    match quantity {
        ClaimedQuantity::Energy => "the energy".to_owned(),
        ClaimedQuantity::EnergyPerWork => format!("the energy per unit of work ({})", unit.unwrap_or("work")),
        ClaimedQuantity::Time => "the time".to_owned(),
    }
}

fn sentence(of: &str, with: &str, quantity: ClaimedQuantity, what: &str, ratio: Ratio, many: bool, n: &str) -> String {
    let sure = if many { "95 %, Holm" } else { "95 %" };
    if ratio.holds_one() {
        let bounds = format!("{} to {}", side(ratio.low, quantity), side(ratio.high, quantity));
        return format!("no difference shown in {what} of {of} and {with} ({sure}: {bounds}, {n})");
    }
    let is_less = ratio.ratio < 1.0;
    let percent = |ratio: f64| if is_less { (1.0 - ratio) * 100.0 } else { (ratio - 1.0) * 100.0 };
    let (near, far) = if is_less { (ratio.high, ratio.low) } else { (ratio.low, ratio.high) };
    let change = format!("{:.1} %", percent(ratio.ratio));
    let bounds = format!("({sure}: {:.1} to {:.1} %, {n})", percent(near), percent(far));
    match quantity {
        ClaimedQuantity::Time => {
            let comparison = if is_less { "less time" } else { "longer" };
            format!("{of} takes {change} {comparison} than {with} {bounds}")
        }
        ClaimedQuantity::Energy => format!("{of} uses {change} {} energy than {with} {bounds}", more(is_less)),
        ClaimedQuantity::EnergyPerWork => {
            let per = what.trim_start_matches("the energy ");
            format!("{of} uses {change} {} energy {per} than {with} {bounds}", more(is_less))
        }
    }
}

const fn more(is_less: bool) -> &'static str {
    if is_less { "less" } else { "more" }
}

/// `3.1 % less`.
fn side(ratio: f64, quantity: ClaimedQuantity) -> String {
    let percent = (ratio - 1.0) * 100.0;
    let word = if quantity == ClaimedQuantity::Time && percent > 0.0 { "longer" } else { more(percent < 0.0) };
    format!("{:.1} % {word}", percent.abs())
}
