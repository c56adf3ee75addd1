//! Divides each workload's part of a zone among its processes, by CPU time or by what they did on a GPU; exactly, in
//! microjoules. What no process is known for goes to nobody in particular.

use std::sync::Arc;

use super::scope::ZoneScope;
use super::split::split;
use super::usage::order;
use super::{Attribution, Division, Method, ZoneAttribution};
use crate::cpu::Domain;
use crate::process::Process;
use crate::snapshot::EnergyKey;
use crate::units::Microjoules;
use crate::workload::Workload;

/// What one process ran for one workload on the CPUs of one domain during the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessShare {
    /// Position in [`CpuUsage::workloads`].
    pub workload: usize,
    pub process: Process,
    /// As in [`crate::sample::Work::domain`].
    pub domain: Option<u32>,
    pub runtime_ns: u64,
}

/// Whose a part of a zone's active energy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Process(Process),
    /// All kernel threads.
    Kernel,
    /// A workload's own that none of its known processes ran.
    Rest,
}

/// A part of a zone's active energy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    pub key: EnergyKey,
    pub part: Part,
    pub energy: Microjoules,
}

/// Position of a workload in `usage`.
#[must_use]
pub fn position(usage: &[&Arc<Workload>], workload: &Arc<Workload>) -> Option<usize> {
    usage.binary_search_by(|probe| order(probe, workload)).ok()
}

/// Divides the shares of every zone. Per zone the charges sum to its active energy less the unattributed. `of_pid` finds
/// the process that a GPU's driver names by its host PID.
#[must_use]
pub fn divide(
    attribution: &Attribution,
    domains: &[Domain],
    mut shares: Vec<ProcessShare>,
    of_pid: impl Fn(u32) -> Option<Process>,
) -> Vec<Charge> {
    shares.sort_unstable_by_key(|share| (share.workload, share.process));
    let workloads: Vec<_> = attribution.usage.workloads().collect();
    let mut charges = Vec::new();
    let mut weights = Vec::new();
    for ZoneAttribution { zone, division, .. } in &attribution.zones {
        let Some(division) = division else { continue };
        let key = EnergyKey { zone: zone.kind, source: zone.source };
        if let Method::Gpu(_) = division.method {
            charge_gpu(division, key, &of_pid, &mut charges);
            continue;
        }
        let scope = ZoneScope::of(zone, domains);
        for &(index, energy) in &division.shares {
            let workload = workloads[index];
            if *workload[0].workload == Workload::Kernel {
                charges.push(Charge { key, part: Part::Kernel, energy });
                continue;
            }
            let start = shares.partition_point(|share| share.workload < index);
            let own = shares[start..].chunk_by(|a, b| (a.workload, a.process) == (b.workload, b.process));
            let own = own.take_while(|group| group[0].workload == index);
            weights.clear();
            weights.extend(own.clone().map(|group| {
                let covered = group.iter().filter(|share| scope.covers(share.domain));
                covered.fold(0_u64, |sum, share| sum.saturating_add(share.runtime_ns))
            }));
            let known_ns = weights.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns));
            let covered = workload.iter().filter(|share| scope.covers(share.domain));
            let all_ns = covered.fold(0_u64, |sum, share| sum.saturating_add(share.runtime_ns));
            weights.push(all_ns.saturating_sub(known_ns));
            let Some(mut parts) = split(energy, &weights) else {
                charges.push(Charge { key, part: Part::Rest, energy });
                continue;
            };
            let rest = parts.pop().unwrap_or_default();
            charges.push(Charge { key, part: Part::Rest, energy: rest });
            charges.extend(own.zip(parts).map(|(group, energy)| Charge {
                key,
                part: Part::Process(group[0].process),
                energy,
            }));
        }
    }
    charges
}

/// What workloads were charged for a GPU: each known process's own, and the rest.
fn charge_gpu(division: &Division, key: EnergyKey, of_pid: impl Fn(u32) -> Option<Process>, charges: &mut Vec<Charge>) {
    let mut rest: Microjoules = division.shares.iter().map(|(_, part)| *part).sum();
    for &(pid, energy) in &division.processes {
        if let Some(process) = of_pid(pid) {
            rest = rest - energy;
            charges.push(Charge { key, part: Part::Process(process), energy });
        }
    }
    charges.push(Charge { key, part: Part::Rest, energy: rest });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::attribution::Weight;
    use crate::attribution::gpu::GpuMethod;
    use crate::attribution::usage::{CpuShare, CpuUsage};
    use crate::zone::{Source, Zone, ZoneKind};

    const KEY: EnergyKey = EnergyKey { zone: ZoneKind::Package, source: Source::Rapl };
    const A: Process = Process { pid: 10, start_ns: 1 };
    const B: Process = Process { pid: 11, start_ns: 1 };

    fn unit(name: &str) -> Arc<Workload> {
        Arc::new(Workload::Unit { unit: name.into() })
    }

    fn ran(workload: Arc<Workload>, domain: u32, runtime_ns: u64) -> CpuShare {
        CpuShare { workload, domain: Some(domain), runtime_ns, cycles: 0, switches: 0 }
    }

    fn zone(socket: u32, shares: &[(usize, u64)]) -> ZoneAttribution {
        let active = Microjoules(shares.iter().map(|(_, energy)| energy).sum());
        let zone =
            Zone { kind: KEY.zone, socket: Some(socket), die: None, source: KEY.source, path: socket.to_string() };
        let shares = shares.iter().map(|&(index, energy)| (index, Microjoules(energy))).collect();
        let (idle, unattributed) = (Microjoules::ZERO, Microjoules::ZERO);
        let (method, processes) = (Method::Cpu(Weight::Runtime), Vec::new());
        ZoneAttribution {
            zone: Arc::new(zone),
            measured: active,
            gap: false,
            elapsed: Duration::from_secs(1),
            division: Some(Division { active, idle, unattributed, method, shares, processes }),
        }
    }

    fn attribution(usage: CpuUsage, zones: Vec<ZoneAttribution>) -> Attribution {
        Attribution { elapsed: Duration::from_secs(1), usage, zones }
    }

    fn nobody(_: u32) -> Option<Process> {
        None
    }

    fn share(workload: usize, process: Process, domain: u32, runtime_ns: u64) -> ProcessShare {
        ProcessShare { workload, process, domain: Some(domain), runtime_ns }
    }

    fn parts(charges: &[Charge]) -> Vec<(Part, u64)> {
        charges.iter().map(|charge| (charge.part, charge.energy.0)).collect()
    }

    #[test]
    fn a_workloads_energy_is_divided_by_cpu_time_and_what_no_process_ran_is_the_rest() {
        let usage = CpuUsage::group(vec![ran(Arc::new(Workload::Kernel), 0, 50), ran(unit("a"), 0, 100)]);
        let zones = attribution(usage, vec![zone(0, &[(0, 7), (1, 1000)])]);
        // 60 and 30 of 100 ns are known: 600, 300 and the rest 100.
        let charges = divide(&zones, &[], vec![share(1, B, 0, 30), share(1, A, 0, 20), share(1, A, 0, 40)], nobody);
        assert_eq!(
            parts(&charges),
            [(Part::Kernel, 7), (Part::Rest, 100), (Part::Process(A), 600), (Part::Process(B), 300)]
        );
    }

    #[test]
    fn a_zone_is_divided_by_what_ran_on_its_socket() {
        let usage = CpuUsage::group(vec![ran(unit("a"), 0, 100), ran(unit("a"), 1, 100)]);
        let domains = [0, 1].map(|socket| Domain { socket: Some(socket), die: None });
        let zones = attribution(usage, vec![zone(0, &[(0, 10)]), zone(1, &[(0, 20)])]);
        let charges = divide(&zones, &domains, vec![share(0, A, 0, 100), share(0, B, 1, 100)], nobody);
        let mut got: Vec<_> = parts(&charges).into_iter().filter(|(_, energy)| *energy > 0).collect();
        got.sort_by_key(|(_, energy)| *energy);
        assert_eq!(got, [(Part::Process(A), 10), (Part::Process(B), 20)]);
    }

    #[test]
    fn processes_that_were_seen_to_run_longer_than_their_workload_share_what_it_has() {
        let usage = CpuUsage::group(vec![ran(unit("a"), 0, 100)]);
        let zones = attribution(usage, vec![zone(0, &[(0, 9)])]);
        let charges = divide(&zones, &[], vec![share(0, A, 0, 200), share(0, B, 0, 100)], nobody);
        assert_eq!(parts(&charges), [(Part::Rest, 0), (Part::Process(A), 6), (Part::Process(B), 3)]);
    }

    #[test]
    fn a_workload_without_known_processes_keeps_its_energy_as_the_rest() {
        let usage = CpuUsage::group(vec![ran(unit("a"), 0, 100), ran(unit("b"), 0, 0)]);
        let charges = divide(&attribution(usage, vec![zone(0, &[(0, 9), (1, 4)])]), &[], vec![], nobody);
        assert_eq!(parts(&charges), [(Part::Rest, 9), (Part::Rest, 4)]);
    }

    #[test]
    fn of_a_gpu_each_known_process_has_its_own_part_and_the_others_parts_are_the_rest() {
        let usage = CpuUsage::group(vec![CpuShare::none(unit("a"))]);
        let mut gpu = zone(0, &[(0, 100)]);
        let division = gpu.division.as_mut().unwrap();
        division.method = Method::Gpu(GpuMethod::Samples);
        division.processes = vec![(10, Microjoules(60)), (99, Microjoules(30))];
        let of_pid = |pid| (u64::from(pid) == A.pid).then_some(A);
        let charges = divide(&attribution(usage, vec![gpu]), &[], vec![], of_pid);
        assert_eq!(parts(&charges), [(Part::Process(A), 60), (Part::Rest, 40)]);
    }
}
