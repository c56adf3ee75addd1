//! What one run cost, as the figures that are compared.

use super::CompareOptions;
use crate::number::float;
use crate::run::{Energy, Part, Run, WHOLE_GPU};

const JOULES_PER_KWH: f64 = 3.6e6;

/// One run. `None`: not measured, or not known.
#[derive(Clone, Debug)]
pub(super) struct CostFigures {
    pub seconds: f64,
    pub cpu: Option<f64>,
    pub gpu: Option<f64>,
    /// Package, dram and GPU. Measured parts only; where nothing was measured, the estimate.
    pub joules: Option<f64>,
    /// All that is compared is an estimate.
    pub estimated: bool,
    /// Peaks of all zones added up: at most this was drawn at any time.
    pub peak_watts: Option<f64>,
    pub per_work: Option<f64>,
    pub cost: Option<f64>,
    pub grams: Option<f64>,
    pub basis: EnergyBasis,
}

/// What the energy is made of: only equal parts can be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EnergyBasis {
    pub cpu: CpuEvidence,
    pub dram: bool,
    /// The GPU was the run's alone, so its idle energy is part of the GPU's.
    pub whole_gpu: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CpuEvidence {
    #[default]
    Not,
    Estimated,
    Measured,
}

impl CpuEvidence {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Not => "not measured",
            Self::Estimated => "estimated",
            Self::Measured => "measured",
        }
    }
}

impl EnergyBasis {
    /// What is known of both.
    pub fn and(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.min(other.cpu),
            dram: self.dram && other.dram,
            whole_gpu: self.whole_gpu && other.whole_gpu,
        }
    }

    /// Why energies of these two are not compared; `None`: they may be.
    pub(super) fn differs(self, other: Self, own: &str, others: &str) -> Option<String> {
        let (cpu, other_cpu) = (self.cpu.as_str(), other.cpu.as_str());
        let gpu = |is_whole| if is_whole { "includes" } else { "does not include" };
        if self.cpu != other.cpu {
            Some(format!("the CPU of {own} is {cpu}, that of {others} is {other_cpu}"))
        } else if self.whole_gpu != other.whole_gpu {
            let (this, that) = (gpu(self.whole_gpu), gpu(other.whole_gpu));
            Some(format!("the GPU energy of {own} {this} idle energy, that of {others} {that} it"))
        } else {
            None
        }
    }
}

impl CostFigures {
    /// # Errors
    /// When two prices hold for the run.
    pub fn of(run: &Run, options: &CompareOptions) -> Result<Self, String> {
        let seconds = run.end - run.start;
        let counts = |energy: &&Energy| matches!(energy.part, Part::Package | Part::Dram | Part::Gpu);
        let energy = if options.whole_node { &run.node_energy } else { &run.energy };
        let is_measured = energy.iter().filter(counts).any(|energy| !energy.estimated);
        let parts: Vec<&Energy> =
            energy.iter().filter(counts).filter(|energy| !(is_measured && energy.estimated)).collect();
        let sum = |wanted: fn(Part) -> bool| {
            let mut found = parts.iter().filter(|energy| wanted(energy.part)).peekable();
            found.peek().is_some().then(|| found.map(|energy| float(energy.microjoules) / 1e6).sum::<f64>())
        };
        let total = sum(|_| true);
        let cpu = match parts.iter().find(|energy| energy.part == Part::Package) {
            None => CpuEvidence::Not,
            Some(energy) if energy.estimated => CpuEvidence::Estimated,
            Some(_) => CpuEvidence::Measured,
        };
        let has = |part: Part| parts.iter().any(|energy| energy.part == part);
        let is_whole = || run.warnings.iter().any(|warning| warning.code == WHOLE_GPU);
        let basis = EnergyBasis {
            cpu,
            dram: has(Part::Dram),
            // Of whole nodes, all energy includes the idle one.
            whole_gpu: !options.whole_node && has(Part::Gpu) && is_whole(),
        };
        let peaks: Vec<f64> = parts.iter().filter_map(|energy| energy.peak_watts).collect();
        let kwh = total.map(|total| total / JOULES_PER_KWH);
        let work = run.work.as_ref().map(|work| work.amount).filter(|amount| *amount > 0.0);
        Ok(Self {
            seconds,
            cpu: sum(|part| part != Part::Gpu),
            gpu: sum(|part| part == Part::Gpu),
            joules: total,
            estimated: !is_measured && total.is_some(),
            peak_watts: (!peaks.is_empty() && peaks.len() == parts.len()).then(|| peaks.iter().sum()),
            per_work: total.zip(work).map(|(total, work)| total / work),
            cost: cost(run, seconds, kwh, options)?,
            grams: kwh.zip(options.grams_per_kwh).map(|(kwh, grams)| kwh * grams),
            basis,
        })
    }

    /// Takes out the energy, and what follows from it.
    pub(super) fn forget_energy(&mut self) {
        for figure in [
            &mut self.cpu,
            &mut self.gpu,
            &mut self.joules,
            &mut self.peak_watts,
            &mut self.per_work,
            &mut self.cost,
            &mut self.grams,
        ] {
            *figure = None;
        }
        self.estimated = false;
    }

    pub(super) fn watts(&self) -> Option<f64> {
        self.joules.filter(|_| self.seconds > 0.0).map(|joules| joules / self.seconds)
    }

    /// Energy-delay product, J s.
    pub(super) fn edp(&self) -> Option<f64> {
        self.joules.map(|joules| joules * self.seconds)
    }
}

/// Hours of the hardware and kilowatt hours. `None` where a price that was asked for is not known.
fn cost(run: &Run, seconds: f64, kwh: Option<f64>, options: &CompareOptions) -> Result<Option<f64>, String> {
    let hours = match &options.prices {
        Some(prices) => prices.per_hour(run)?.map(|per_hour| Some(per_hour * seconds / 3600.0)),
        None => Some(None),
    };
    let energy = match options.per_kwh {
        Some(per_kwh) => kwh.map(|kwh| Some(kwh * per_kwh)),
        None => Some(None),
    };
    Ok(match (hours, energy) {
        (Some(None), Some(None)) | (None, _) | (_, None) => None,
        (Some(hours), Some(energy)) => Some(hours.unwrap_or_default() + energy.unwrap_or_default()),
    })
}
