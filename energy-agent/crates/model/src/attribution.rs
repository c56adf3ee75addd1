//! Divides what the hardware drew by who ran: one interval's zone energies and CPU usage become, per zone, idle energy,
//! each workload's active energy, and what belongs to nobody known; exactly, in microjoules.

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

use self::idle::IdleModel;
use self::method::IdleMethod;
use self::scope::{Load, Scope};
use self::usage::Usage;
use crate::cpu::Domain;
use crate::cpu::DomainLoad;
use crate::units::{Microjoules, nanos};
use crate::zone::{Zone, ZoneEnergy};

/// What a zone's active energy was divided by; the value of the label `weight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    Cycles,
    Runtime,
}

crate::as_str!(Weight { Cycles => "cycles", Runtime => "runtime" });

/// How idle energy is told from active energy.
#[derive(Clone, Copy, Debug)]
pub enum Idle<'a> {
    /// The learned idle power of a zone; [`Idle::Ratio`] for zones whose idle power is not known yet.
    Learned(&'a IdleModel),
    /// Kepler's way: the share of the CPUs' time that was not busy is the idle share of the energy. Nothing is idle
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
}

/// One interval's readings, as [`crate::sample::Sample`] has them, with cgroups turned into workloads.
#[derive(Clone, Copy, Debug)]
pub struct Interval<'a> {
    pub elapsed: Duration,
    pub zones: &'a [ZoneEnergy],
    pub domains: &'a [Domain],
    /// Parallel to `domains`.
    pub loads: &'a [DomainLoad],
    pub usage: &'a Usage,
}

/// An interval's energy, divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution {
    pub elapsed: Duration,
    /// In the order of [`Interval::zones`].
    pub zones: Vec<ZoneAttribution>,
}

impl Attribution {
    /// What all zones were divided by: cycles only if none had to do without.
    #[must_use]
    pub fn weight(&self) -> Weight {
        let mut weights = self.zones.iter().filter_map(|zone| zone.division.as_ref()).map(|division| division.weight);
        let first = weights.next().unwrap_or(Weight::Runtime);
        if weights.all(|weight| weight == first) { first } else { Weight::Runtime }
    }
}

/// One zone's energy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneAttribution {
    pub zone: Arc<Zone>,
    pub measured: Microjoules,
    /// As in [`ZoneEnergy::gap`]: no power may be derived.
    pub gap: bool,
    /// `None` for kinds that overlap others and are not divided.
    pub division: Option<Division>,
}

/// How one zone's energy is divided: `active + idle` is the measured energy, the shares and `unattributed` are `active`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    pub active: Microjoules,
    pub idle: Microjoules,
    pub unattributed: Microjoules,
    pub weight: Weight,
    /// Position in [`Usage::workloads`] and energy, ascending; without those that got nothing.
    pub shares: Vec<(usize, Microjoules)>,
}

/// Divides the energy of every zone of the interval.
#[must_use]
pub fn attribute(interval: &Interval<'_>, idle: Idle<'_>) -> Attribution {
    // Shares without a domain weigh in every zone, so they are also compared with the busy time of the whole node.
    let mut ran = interval.usage.workloads().flatten().filter(|share| share.runtime_ns > 0);
    let placed = ran.all(|share| share.domain.is_some());
    let zones = interval
        .zones
        .iter()
        .map(|ZoneEnergy { zone, energy, gap }| {
            let division = zone.kind.attributed().then(|| {
                let scope = Scope::of(zone, interval.domains);
                let load = scope.load(interval.loads);
                let idle = idle_part(interval, idle, zone, *energy, load);
                let busy = if placed { load } else { Scope::Node.load(interval.loads) };
                divide(interval.usage, &scope, busy, *energy, idle)
            });
            ZoneAttribution { zone: Arc::clone(zone), measured: *energy, gap: *gap, division }
        })
        .collect();
    Attribution { elapsed: interval.elapsed, zones }
}

/// Shows the model the power of every zone at its load, where both are known. The energy of a gap is not all there was.
pub fn learn(model: &mut IdleModel, interval: &Interval<'_>) {
    let elapsed_ns = nanos(interval.elapsed);
    for ZoneEnergy { zone, energy, gap } in interval.zones {
        let load = Scope::of(zone, interval.domains).load(interval.loads);
        if let Some(load) = load.filter(|_| !gap && elapsed_ns > 0 && zone.kind.attributed()) {
            let power_uw = u128::from(energy.0) * 1_000_000_000 / u128::from(elapsed_ns);
            model.observe(
                zone,
                u64::try_from(power_uw).unwrap_or(u64::MAX),
                load.busy_part(1_000_000, interval.elapsed),
            );
        }
    }
}

fn idle_part(
    interval: &Interval<'_>,
    idle: Idle<'_>,
    zone: &Zone,
    energy: Microjoules,
    load: Option<Load>,
) -> Microjoules {
    let baseline_uw = match idle {
        Idle::Learned(model) => model.baseline_uw(zone),
        Idle::Ratio => None,
        Idle::None => return Microjoules::ZERO,
    };
    match (baseline_uw, load) {
        (Some(baseline_uw), _) => {
            let idle = u128::from(baseline_uw) * u128::from(nanos(interval.elapsed)) / 1_000_000_000;
            Microjoules(u64::try_from(idle).unwrap_or(u64::MAX)).min(energy)
        }
        (None, Some(load)) => energy - Microjoules(load.busy_part(energy.0, interval.elapsed)),
        (None, None) => Microjoules::ZERO,
    }
}

fn divide(usage: &Usage, scope: &Scope, busy: Option<Load>, energy: Microjoules, idle: Microjoules) -> Division {
    let mut runtimes_ns = Vec::with_capacity(usage.len() + 1);
    let mut cycles = Vec::with_capacity(usage.len() + 1);
    for shares in usage.workloads() {
        let (mut runtime_ns, mut counted) = (0_u64, 0_u64);
        for share in shares.iter().filter(|share| scope.covers(share.domain)) {
            runtime_ns = runtime_ns.saturating_add(share.runtime_ns);
            counted = counted.saturating_add(share.cycles);
        }
        runtimes_ns.push(runtime_ns);
        cycles.push(counted);
    }
    let charged_ns: u128 = runtimes_ns.iter().map(|&ns| u128::from(ns)).sum();
    let charged_cycles: u128 = cycles.iter().map(|&count| u128::from(count)).sum();
    let missed_ns = busy.map_or(0, |load| load.missed_ns(u64::try_from(charged_ns).unwrap_or(u64::MAX)));

    // Cycles without run time, or run time without cycles, is a counter that does not count: missed time could not be
    // expressed in it.
    let by_cycles = busy.is_some_and(|load| load.cycles) && (charged_ns == 0) == (charged_cycles == 0);
    let (weight, mut weights, missed) = if by_cycles && charged_ns > 0 {
        let missed = u128::from(missed_ns).saturating_mul(charged_cycles) / charged_ns;
        (Weight::Cycles, cycles, u64::try_from(missed).unwrap_or(u64::MAX))
    } else {
        (if by_cycles { Weight::Cycles } else { Weight::Runtime }, runtimes_ns, missed_ns)
    };
    weights.push(missed);

    let active = energy - idle;
    let Some(mut parts) = split::split(active, &weights) else {
        return Division { active, idle, unattributed: active, weight, shares: Vec::new() };
    };
    let unattributed = parts.pop().expect("the missed time has a part");
    let shares = parts.into_iter().enumerate().filter(|(_, part)| *part > Microjoules::ZERO).collect();
    Division { active, idle, unattributed, weight, shares }
}
