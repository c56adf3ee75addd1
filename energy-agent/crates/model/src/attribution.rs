//! Divides what the hardware drew by who used it: one interval's zone energies, CPU usage and GPU processes become, per
//! zone, idle energy, each workload's active energy, and what belongs to nobody known; exactly, in microjoules.

pub mod busy;
pub mod cpu;
pub mod gpu;
pub mod idle;
pub mod idle_policy;
pub mod method;
pub mod process;
#[cfg(test)]
mod properties;
pub mod scope;
pub mod split;
#[cfg(test)]
mod tests;
pub mod usage;

use std::sync::Arc;
use std::time::Duration;

use self::busy::Busy;
pub use self::cpu::Weight;
use self::gpu::{GpuMethod, GpuUse};
use self::idle::IdleModel;
use self::method::IdleMethod;
use self::scope::ZoneScope;
use self::usage::{CpuShare, CpuUsage};
use crate::cpu::{Domain, DomainLoad};
use crate::units::{Microjoules, nanos};
use crate::zone::{Source, Zone, ZoneEnergy};

/// How idle energy is separated from active energy.
#[derive(Clone, Copy, Debug)]
pub enum Idle<'a> {
    /// The learned idle power of a zone; [`Idle::Ratio`] for zones whose idle power is not known yet.
    Learned(&'a IdleModel),
    /// Kepler's way: the share of the hardware's time that was not busy is the idle share of the energy. Nothing is idle
    /// where the busy time is not known.
    Ratio,
    /// All energy is active.
    None,
}

impl<'a> Idle<'a> {
    #[must_use]
    pub const fn new(method: IdleMethod, model: &'a IdleModel) -> Self {
        match method {
            IdleMethod::Learned => Self::Learned(model),
            IdleMethod::Ratio => Self::Ratio,
            IdleMethod::None => Self::None,
        }
    }

    /// Which of these divides the energy of `zones` at present; the label `idle`.
    #[must_use]
    pub fn in_force<'z>(self, zones: impl IntoIterator<Item = &'z Zone>) -> &'static str {
        match self {
            Self::Learned(model) => model.method_in_force(zones),
            Self::Ratio => "ratio",
            Self::None => "none",
        }
    }
}

/// One interval's readings, as [`crate::sample::Sample`] has them, with cgroups and processes turned into workloads.
#[derive(Clone, Debug)]
pub struct Interval<'a> {
    pub elapsed: Duration,
    pub zones: Vec<ZoneReading<'a>>,
    pub domains: &'a [Domain],
    /// Parallel to `domains`.
    pub loads: &'a [DomainLoad],
    /// What workloads did on the CPUs.
    pub shares: Vec<CpuShare>,
}

/// What one zone used, and what says who used it.
#[derive(Clone, Copy, Debug)]
pub struct ZoneReading<'a> {
    pub energy: &'a ZoneEnergy,
    /// What `energy` covers. A GPU is read on a thread of its own, so its interval is not the tick's.
    pub elapsed: Duration,
    pub users: ZoneUsers<'a>,
}

/// Who used a zone.
#[derive(Clone, Copy, Debug)]
pub enum ZoneUsers<'a> {
    /// Whoever ran on its CPUs.
    Cpus,
    /// The GPU's processes.
    Gpu(GpuUse<'a>),
}

/// An interval's energy, divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution {
    pub elapsed: Duration,
    /// All that ran on CPUs or was charged for a GPU.
    pub usage: CpuUsage,
    /// In the order of [`Interval::zones`].
    pub zones: Vec<ZoneAttribution>,
}

/// One zone's energy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneAttribution {
    pub zone: Arc<Zone>,
    pub measured: Microjoules,
    /// As in [`ZoneEnergy::gap`]: no power may be derived.
    pub gap: bool,
    /// As in [`ZoneReading::elapsed`].
    pub elapsed: Duration,
    /// `None` for kinds that overlap others and are not divided.
    pub division: Option<Division>,
}

/// How one zone's energy is divided: `active + idle` is the measured energy, the shares and `unattributed` are `active`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    pub active: Microjoules,
    pub idle: Microjoules,
    pub unattributed: Microjoules,
    pub method: Method,
    /// Position in [`CpuUsage::workloads`] and energy, ascending; without those that got nothing.
    pub shares: Vec<(usize, Microjoules)>,
    /// The part of a GPU's shares that is known by process, by host PID, ascending.
    pub processes: Vec<(u32, Microjoules)>,
}

/// What a zone's active energy was divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Cpu(Weight),
    Gpu(GpuMethod),
}

impl Attribution {
    /// What all CPU zones were divided by: cycles only if none had to do without.
    #[must_use]
    pub fn weight(&self) -> Weight {
        let divisions = self.zones.iter().filter_map(|zone| zone.division.as_ref());
        let mut weights = divisions.filter_map(|division| match division.method {
            Method::Cpu(weight) => Some(weight),
            Method::Gpu(_) => None,
        });
        let first = weights.next().unwrap_or(Weight::Runtime);
        if weights.all(|weight| weight == first) { first } else { Weight::Runtime }
    }
}

/// Divides the energy of every zone of the interval.
#[must_use]
pub fn attribute(interval: Interval<'_>, idle: Idle<'_>) -> Attribution {
    let parts: Vec<_> = interval.zones.iter().map(|reading| interval.active_and_idle(reading, idle)).collect();
    // GPUs first: who is charged for one need not have run, and has a place in the usage all the same.
    let on_gpus: Vec<_> =
        interval.zones.iter().zip(&parts).map(|(reading, (active, _))| reading.gpu(*active)).collect();
    let charged = on_gpus.iter().flatten().flat_map(|parts| parts.shares.keys());
    let charged: Vec<CpuShare> = charged.map(|workload| CpuShare::none(Arc::clone(workload))).collect();
    let Interval { elapsed, zones, domains, loads, mut shares } = interval;
    shares.extend(charged);
    // Shares without a domain weigh in every zone, so they are also compared with the busy time of the whole node.
    let placed = shares.iter().filter(|share| share.runtime_ns > 0).all(|share| share.domain.is_some());
    let usage = CpuUsage::group(shares);
    let divide = |((reading, (active, idle)), on_gpu): ((ZoneReading<'_>, _), Option<gpu::Parts>)| {
        let ZoneReading { energy: ZoneEnergy { zone, energy, gap }, elapsed, users: _ } = reading;
        let division = zone.kind.attributed().then(|| match on_gpu {
            Some(parts) => parts.division(&usage, active, idle),
            None => {
                let scope = ZoneScope::of(zone, domains);
                let busy = if placed { &scope } else { &ZoneScope::Node }.load(loads);
                cpu::divide(&usage, &scope, busy, active, idle)
            }
        });
        ZoneAttribution { zone: Arc::clone(zone), measured: *energy, gap: *gap, elapsed, division }
    };
    let zones = zones.into_iter().zip(parts).zip(on_gpus).map(divide).collect();
    Attribution { elapsed, usage, zones }
}

/// An estimate's idle power is a part of its model, and not learned: `thread_uw` for each CPU.
pub fn know_estimates(model: &mut IdleModel, interval: &Interval<'_>, thread_uw: u64) {
    let zones = interval.zones.iter().map(|reading| &reading.energy.zone);
    for zone in zones.filter(|zone| zone.source == Source::Estimate) {
        let threads = ZoneScope::of(zone, interval.domains).load(interval.loads).map_or(0, |load| load.cpus);
        model.set_known(zone, thread_uw * threads);
    }
}

/// Shows the model the power of every zone at its load, where both are known. The energy of a gap is not all there was.
pub fn learn(model: &mut IdleModel, interval: &Interval<'_>) {
    for reading in &interval.zones {
        let ZoneReading { energy: ZoneEnergy { zone, energy, gap }, elapsed, users: _ } = reading;
        let elapsed_ns = nanos(*elapsed);
        if let Some(busy) = interval.busy(reading).filter(|_| !gap && elapsed_ns > 0 && zone.kind.attributed()) {
            let power_uw = u128::from(energy.0) * 1_000_000_000 / u128::from(elapsed_ns);
            model.observe(zone, u64::try_from(power_uw).unwrap_or(u64::MAX), busy.of(1_000_000));
        }
    }
}

impl Interval<'_> {
    /// How busy a zone was; `None` where that is not known.
    fn busy(&self, reading: &ZoneReading<'_>) -> Option<Busy> {
        match &reading.users {
            ZoneUsers::Cpus => {
                let load = ZoneScope::of(&reading.energy.zone, self.domains).load(self.loads)?;
                Some(load.busy(reading.elapsed))
            }
            ZoneUsers::Gpu(used) => used.busy(),
        }
    }

    /// A zone's energy in its two parts.
    fn active_and_idle(&self, reading: &ZoneReading<'_>, idle: Idle<'_>) -> (Microjoules, Microjoules) {
        let ZoneEnergy { zone, energy, gap: _ } = reading.energy;
        let baseline_uw = match idle {
            Idle::Learned(model) => model.baseline_uw(zone),
            Idle::Ratio => None,
            Idle::None => return (*energy, Microjoules::ZERO),
        };
        let busy = self.busy(reading);
        let idle = match (baseline_uw, busy) {
            // What a GPU draws beyond its baseline while nobody has a context on it is its own affair.
            (Some(_), Some(busy)) if busy.is_zero() && reading.has_no_users() => *energy,
            (Some(baseline_uw), _) => {
                let idle = u128::from(baseline_uw) * u128::from(nanos(reading.elapsed)) / 1_000_000_000;
                Microjoules(u64::try_from(idle).unwrap_or(u64::MAX)).min(*energy)
            }
            (None, Some(busy)) => *energy - Microjoules(busy.of(energy.0)),
            (None, None) => Microjoules::ZERO,
        };
        (*energy - idle, idle)
    }
}

impl<'a> ZoneReading<'a> {
    /// Zones that are divided by who ran on their CPUs, and those that are not divided.
    pub fn of_cpus(zones: &'a [ZoneEnergy], elapsed: Duration) -> impl Iterator<Item = Self> {
        zones.iter().map(move |energy| Self { energy, elapsed, users: ZoneUsers::Cpus })
    }

    /// Divides the active energy of a GPU.
    fn gpu(&self, active: Microjoules) -> Option<gpu::Parts> {
        match &self.users {
            ZoneUsers::Cpus => None,
            ZoneUsers::Gpu(used) => Some(used.divide(active)),
        }
    }

    /// A GPU without a process. Whether anybody can run on CPUs is no question.
    fn has_no_users(&self) -> bool {
        matches!(&self.users, ZoneUsers::Gpu(used) if used.reading.processes.is_empty())
    }
}
