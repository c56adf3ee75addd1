//! The row of a group: each figure as a mean over its runs.

use serde::Serialize;

use super::figures::CostFigures;
use crate::stats::Summary;

/// One group. A figure that not all of its runs have is `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupRow {
    pub name: String,
    pub n: usize,
    /// Its energy is an estimate.
    pub estimated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_joules: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_joules: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_watts: Option<Summary>,
    /// Energy-delay product, J s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edp: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules_per_work: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grams_co2: Option<Summary>,
    /// Its energy was measured as that of the first row, and is no lower bound.
    #[serde(skip)]
    pub(super) is_comparable: bool,
    /// Its energy, or energy per unit of work, by the least of all rows that can be compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative: Option<f64>,
    /// Another row is at least as fast and as sparing, and better in one of them; `None`: that cannot be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_dominated: Option<bool>,
}

impl GroupRow {
    pub(super) fn of(name: &str, figures: &[CostFigures], same_work: bool, is_comparable: bool) -> Self {
        let mean = |value: fn(&CostFigures) -> Option<f64>| {
            Summary::of(&figures.iter().map(value).collect::<Option<Vec<f64>>>()?)
        };
        // Of different work, totals say nothing.
        let whole = |value| if same_work { mean(value) } else { None };
        Self {
            name: name.to_owned(),
            n: figures.len(),
            estimated: figures.iter().any(|figures| figures.estimated),
            seconds: whole(|figures| Some(figures.seconds)),
            joules: whole(|figures| figures.joules),
            cpu_joules: whole(|figures| figures.cpu),
            gpu_joules: whole(|figures| figures.gpu),
            watts: whole(CostFigures::watts),
            peak_watts: whole(|figures| figures.peak_watts),
            edp: whole(CostFigures::edp),
            joules_per_work: mean(|figures| figures.per_work),
            cost: whole(|figures| figures.cost),
            grams_co2: whole(|figures| figures.grams),
            is_comparable,
            relative: None,
            is_dominated: None,
        }
    }

    fn compared(&self) -> Option<f64> {
        let energy = self.joules.as_ref().or(self.joules_per_work.as_ref());
        energy.filter(|_| self.is_comparable).map(|summary| summary.mean)
    }

    /// Mean energy of a run, where it can be compared with that of other rows.
    pub(super) fn comparable_joules(&self) -> Option<f64> {
        self.joules.as_ref().filter(|_| self.is_comparable).map(|summary| summary.mean)
    }
}

/// Fills in what is relative to the least.
pub(super) fn relate(rows: &mut [GroupRow]) {
    let compared: Vec<f64> = rows.iter().filter_map(GroupRow::compared).collect();
    let least = compared.iter().copied().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    for row in rows.iter_mut().filter(|_| compared.len() > 1 && least.is_finite()) {
        row.relative = row.compared().map(|value| value / least);
    }
}
