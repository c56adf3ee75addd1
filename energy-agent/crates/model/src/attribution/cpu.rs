//! Divides the active energy of a CPU zone by who ran there: by cycles where every CPU counts them, else by run time.

use super::scope::{ScopeLoad, ZoneScope};
use super::usage::CpuUsage;
use super::{Division, Method, split};
use crate::units::Microjoules;

/// What a zone's active energy was divided by; the value of the label `weight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    Cycles,
    Runtime,
}

crate::as_str!(Weight { Cycles => "cycles", Runtime => "runtime" });

/// `busy` is the load that the charged time is compared with: what it has more was missed, and belongs to nobody known.
pub fn divide(
    usage: &CpuUsage,
    scope: &ZoneScope,
    busy: Option<ScopeLoad>,
    active: Microjoules,
    idle: Microjoules,
) -> Division {
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

    let (method, processes) = (Method::Cpu(weight), Vec::new());
    let Some(mut parts) = split::split(active, &weights) else {
        return Division { active, idle, unattributed: active, method, shares: Vec::new(), processes };
    };
    let unattributed = parts.pop().expect("the missed time has a part");
    let shares = parts.into_iter().enumerate().filter(|(_, part)| *part > Microjoules::ZERO).collect();
    Division { active, idle, unattributed, method, shares, processes }
}
