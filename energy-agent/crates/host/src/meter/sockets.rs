//! Sockets as an energy meter numbers them and as the kernel numbers those of CPUs, which need not be the same: sensors count
//! from 0 where firmware gives packages numbers of its own.

use std::collections::BTreeSet;

use energy_model::cpu::Domain;

/// How the numbers of one are those of the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// Every socket of the meter has CPUs.
    Same,
    /// None of some sockets of the meter has CPUs, as where all are offline.
    Partly(Vec<u32>),
    /// As many sockets, other numbers: the lowest is the lowest. The meter's number and the CPUs', in order.
    ByRank(Vec<(u32, u32)>),
    /// Other numbers, and not as many.
    Unknown,
}

impl Numbering {
    /// `metered`: sockets that the meter has shown energy of.
    #[must_use]
    pub fn of(metered: &BTreeSet<u32>, domains: &[Domain]) -> Self {
        let sockets: BTreeSet<u32> = domains.iter().filter_map(|domain| domain.socket).collect();
        if sockets.is_empty() || metered.is_subset(&sockets) {
            Self::Same
        } else if metered.len() == sockets.len() {
            Self::ByRank(metered.iter().copied().zip(sockets).collect())
        } else if metered.is_disjoint(&sockets) {
            Self::Unknown
        } else {
            Self::Partly(metered.difference(&sockets).copied().collect())
        }
    }

    /// The domains with the sockets' numbers that the meter uses; without any where they are not known, so that a zone is
    /// divided over all CPUs.
    #[must_use]
    pub(crate) fn renumber(&self, domains: &[Domain]) -> Vec<Domain> {
        let number = |socket: u32| match self {
            Self::Same | Self::Partly(_) => Some(socket),
            Self::ByRank(pairs) => pairs.iter().find(|(_, other)| *other == socket).map(|(metered, _)| *metered),
            Self::Unknown => None,
        };
        domains.iter().map(|domain| Domain { socket: domain.socket.and_then(number), ..*domain }).collect()
    }

    /// Says once what it means.
    pub fn log(&self) {
        match self {
            Self::Same => {}
            Self::Partly(without) => tracing::info!(
                sockets = ?without,
                "the energy meter has sockets without an online CPU, their energy stays idle or unattributed"
            ),
            Self::ByRank(pairs) => {
                let pairs: Vec<_> = pairs.iter().map(|(metered, socket)| format!("{metered} is {socket}")).collect();
                tracing::info!(
                    sockets = pairs.join(", "),
                    "the energy meter and the CPUs' topology number sockets differently, they are matched in order"
                );
            }
            Self::Unknown => tracing::warn!(
                "the energy meter and the CPUs' topology have different numbers of sockets, their energy is \
                 divided over all CPUs"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domains(sockets: &[u32]) -> Vec<Domain> {
        sockets.iter().map(|&socket| Domain { socket: Some(socket), die: None }).collect()
    }

    fn numbering(metered: &[u32], sockets: &[u32]) -> Numbering {
        Numbering::of(&metered.iter().copied().collect(), &domains(sockets))
    }

    #[test]
    fn numbers_of_firmware_are_matched_in_order_fc_115() {
        let by_rank = numbering(&[0, 1], &[36, 3180]);
        assert_eq!(by_rank, Numbering::ByRank(vec![(0, 36), (1, 3180)]));
        // In the order of the domains, whatever that is.
        assert_eq!(by_rank.renumber(&domains(&[3180, 36])), domains(&[1, 0]));
        assert_eq!(numbering(&[1, 2], &[0, 1]), Numbering::ByRank(vec![(1, 0), (2, 1)]), "counted from 1");
    }

    #[test]
    fn the_same_numbers_stay_and_a_socket_without_cpus_is_named() {
        assert_eq!(numbering(&[0, 1], &[0, 1]), Numbering::Same);
        assert_eq!(numbering(&[], &[0, 1]), Numbering::Same);
        assert_eq!(numbering(&[0], &[0, 1]), Numbering::Same, "the other one is not metered");
        let partly = numbering(&[0, 1], &[0]);
        assert_eq!(partly, Numbering::Partly(vec![1]));
        assert_eq!(partly.renumber(&domains(&[0])), domains(&[0]));
        let without = [Domain { socket: None, die: None }];
        assert_eq!(Numbering::of(&BTreeSet::from([0]), &without), Numbering::Same, "one domain, the node");
    }

    #[test]
    fn where_it_cannot_be_told_all_cpus_share() {
        let unknown = numbering(&[0], &[36, 3180]);
        assert_eq!(unknown, Numbering::Unknown);
        assert!(unknown.renumber(&domains(&[36, 3180])).iter().all(|domain| domain.socket.is_none()));
    }
}
