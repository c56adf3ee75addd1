//! Which CPUs a zone's energy is divided over, and how busy they were.

use std::time::Duration;

use super::busy::Busy;
use crate::cpu::Domain;
use crate::cpu::DomainLoad;
use crate::units::nanos;
use crate::zone::Zone;

/// What `/proc/stat` may be wrong by at one reading, per CPU: it counts in jiffies of 10 ms (`USER_HZ`), one of which
/// may be unfinished at each end of the interval.
const TICK_NOISE_NS_PER_CPU: u64 = 20_000_000;
/// Busy time that is not worth calling missed, as a divisor: the usage meter charges neither the switch itself nor
/// interrupts of an idle CPU, which is about 1 % of a busy machine.
const BUSY_NOISE_DIVISOR: u64 = 100;

/// The CPU domains a zone covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZoneScope {
    /// All CPUs: the zone has no socket, or nothing is known about sockets.
    Node,
    /// Indices of domains; empty when the zone's socket has no CPU.
    Domains(Vec<usize>),
}

impl ZoneScope {
    /// The die that the zone names where dies are domains, else its socket, else the node.
    #[must_use]
    pub fn of(zone: &Zone, domains: &[Domain]) -> Self {
        let Some(socket) = zone.socket.filter(|_| domains.iter().any(|domain| domain.socket.is_some())) else {
            return Self::Node;
        };
        let of_socket = || domains.iter().enumerate().filter(|(_, domain)| domain.socket == Some(socket));
        let of_die: Vec<usize> = of_socket()
            .filter(|(_, domain)| zone.die.is_some() && domain.die == zone.die)
            .map(|(index, _)| index)
            .collect();
        Self::Domains(if of_die.is_empty() { of_socket().map(|(index, _)| index).collect() } else { of_die })
    }

    /// Whether work in `domain` (`None`: somewhere) counts in this zone.
    #[must_use]
    pub fn covers(&self, domain: Option<u32>) -> bool {
        match (self, domain) {
            (Self::Node, _) => true,
            (Self::Domains(members), None) => !members.is_empty(),
            (Self::Domains(members), Some(domain)) => members.iter().any(|&member| u32::try_from(member) == Ok(domain)),
        }
    }

    /// Sums the load of the scope's domains; `None` where it is not known. A node without any CPU is one whose load could
    /// not be read.
    #[must_use]
    pub fn load(&self, loads: &[DomainLoad]) -> Option<ScopeLoad> {
        if loads.iter().all(|load| load.cpus == 0) {
            return None;
        }
        let mut sum = ScopeLoad { cpus: 0, busy_ns: 0, dropped_ns: 0, cycles: true };
        let mut add = |load: &DomainLoad| {
            sum.cpus += u64::from(load.cpus);
            sum.busy_ns = sum.busy_ns.saturating_add(load.busy_ns);
            sum.dropped_ns = sum.dropped_ns.saturating_add(load.dropped_ns);
            sum.cycles &= load.cycles || load.cpus == 0;
        };
        match self {
            Self::Node => loads.iter().for_each(&mut add),
            Self::Domains(members) if members.is_empty() => return None,
            Self::Domains(members) => {
                for &member in members {
                    add(loads.get(member)?);
                }
            }
        }
        Some(sum)
    }
}

/// How busy the CPUs of a scope were; fields as in [`DomainLoad`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeLoad {
    pub cpus: u64,
    pub busy_ns: u64,
    pub dropped_ns: u64,
    pub cycles: bool,
}

impl ScopeLoad {
    /// Busy time that nobody was charged for though `charged_ns` were; what clock granularity explains is not missed.
    #[must_use]
    pub(crate) fn missed_ns(&self, charged_ns: u64) -> u64 {
        let noise_ns =
            self.cpus.saturating_mul(TICK_NOISE_NS_PER_CPU).saturating_add(self.busy_ns / BUSY_NOISE_DIVISOR);
        self.dropped_ns.max(self.busy_ns.saturating_sub(charged_ns).saturating_sub(noise_ns))
    }

    /// The busy part of the CPUs' time. CPUs that are all offline were not busy.
    #[must_use]
    pub fn busy(&self, elapsed: Duration) -> Busy {
        Busy::new(self.busy_ns, u128::from(self.cpus) * u128::from(nanos(elapsed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::{Source, ZoneKind};

    fn zone(socket: Option<u32>, die: Option<u32>) -> Zone {
        Zone { kind: ZoneKind::Package, socket, die, source: Source::Rapl, path: "p".into() }
    }

    fn domain(socket: u32, die: Option<u32>) -> Domain {
        Domain { socket: Some(socket), die }
    }

    #[test]
    fn a_zone_is_divided_over_its_die_else_its_socket() {
        let dies = [domain(0, Some(0)), domain(1, Some(0)), domain(0, Some(1))];
        assert_eq!(ZoneScope::of(&zone(Some(0), Some(1)), &dies), ZoneScope::Domains(vec![2]));
        assert_eq!(ZoneScope::of(&zone(Some(0), None), &dies), ZoneScope::Domains(vec![0, 2]));
        assert_eq!(ZoneScope::of(&zone(Some(0), Some(7)), &dies), ZoneScope::Domains(vec![0, 2]));
        assert_eq!(ZoneScope::of(&zone(Some(0), Some(3)), &[domain(0, None)]), ZoneScope::Domains(vec![0]));
    }

    #[test]
    fn a_zone_without_socket_or_a_node_without_topology_means_all_cpus() {
        assert_eq!(ZoneScope::of(&zone(None, None), &[domain(0, None)]), ZoneScope::Node);
        assert_eq!(ZoneScope::of(&zone(Some(0), None), &[Domain { socket: None, die: None }]), ZoneScope::Node);
        assert_eq!(ZoneScope::of(&zone(Some(0), None), &[]), ZoneScope::Node);
    }

    #[test]
    fn a_socket_without_cpus_covers_nobody() {
        let scope = ZoneScope::of(&zone(Some(2), None), &[domain(0, None), domain(1, None)]);
        assert_eq!(scope, ZoneScope::Domains(vec![]));
        assert!(!scope.covers(None) && !scope.covers(Some(0)));
        assert_eq!(scope.load(&[DomainLoad { cpus: 1, busy_ns: 0, dropped_ns: 0, cycles: true }; 2]), None);
    }

    #[test]
    fn cpus_that_are_all_offline_have_no_load_and_a_load_that_could_not_be_read_is_not_known() {
        let offline = DomainLoad { cpus: 0, busy_ns: 0, dropped_ns: 0, cycles: false };
        let online = DomainLoad { cpus: 2, busy_ns: 5, ..offline };
        let (node, socket) = (ZoneScope::Node, ZoneScope::Domains(vec![1]));
        assert_eq!(socket.load(&[online, offline]).map(|load| (load.cpus, load.busy_ns)), Some((0, 0)));
        assert_eq!(node.load(&[online, offline]).map(|load| (load.cpus, load.busy_ns)), Some((2, 5)));
        assert_eq!((node.load(&[offline, offline]), socket.load(&[offline, offline])), (None, None));
        assert_eq!(node.load(&[]), None);
    }

    #[test]
    fn clock_granularity_is_not_missed_time() {
        // 2 CPUs, 1 s busy: 40 ms of jiffies and 10 ms (1 %) are noise.
        let load = ScopeLoad { cpus: 2, busy_ns: 1_000_000_000, dropped_ns: 0, cycles: false };
        assert_eq!(load.missed_ns(950_000_000), 0);
        assert_eq!(load.missed_ns(949_999_999), 1);
        assert_eq!(load.missed_ns(2_000_000_000), 0);
        assert_eq!(ScopeLoad { dropped_ns: 3, ..load }.missed_ns(950_000_000), 3);
    }
}
