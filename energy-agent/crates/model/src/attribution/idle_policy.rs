//! Hands the idle energy of an interval to pods, by a stated policy and exactly: what each zone would have drawn with
//! nothing running is divided among the pods, or belongs to nobody when no pod has a weight.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::method::IdlePolicy;
use super::usage::CpuUsage;
use super::{Attribution, ZoneAttribution, split};
use crate::units::Microjoules;
use crate::zone::{Zone, ZoneKind};

/// A pod that was there during the interval, and what its weight is made of.
#[derive(Clone, Debug)]
struct PodWeight {
    /// On any CPU during the interval.
    runtime_ns: u64,
    /// Thousandths of a CPU; 0 for a pod without a request, or whose request is not known.
    request_milli: u64,
}

/// The pods of an interval, and whose the usage's workloads are.
#[derive(Clone, Debug, Default)]
pub struct Claims<'a> {
    /// Ascending by uid.
    pub uids: Vec<&'a Arc<str>>,
    /// Parallel to `uids`.
    claims: Vec<PodWeight>,
    /// Position in `uids` by position in [`CpuUsage::workloads`]; `None` outside pods.
    of_workload: Vec<Option<usize>>,
}

impl<'a> Claims<'a> {
    /// All pods that are `running` or worked; `request_milli` says what a pod requests by its uid.
    #[must_use]
    pub fn new(
        usage: &'a CpuUsage,
        running: impl Iterator<Item = &'a Arc<str>>,
        request_milli: impl Fn(&str) -> u64,
    ) -> Self {
        let mut pods: BTreeMap<&Arc<str>, u64> = running.map(|uid| (uid, 0)).collect();
        for shares in usage.workloads() {
            let Some(uid) = shares[0].workload.pod_uid() else { continue };
            let runtime_ns = pods.entry(uid).or_default();
            for share in shares {
                *runtime_ns = runtime_ns.saturating_add(share.runtime_ns);
            }
        }
        let uids: Vec<_> = pods.keys().copied().collect();
        let claims = pods.iter().map(|(uid, &runtime_ns)| PodWeight { runtime_ns, request_milli: request_milli(uid) });
        let claims = claims.collect();
        let position = |uid| uids.binary_search(&uid).ok();
        let of_workload = usage.workloads().map(|shares| shares[0].workload.pod_uid().and_then(position)).collect();
        Self { uids, claims, of_workload }
    }

    /// What each pod weighs in this zone under the policy.
    fn weights(&self, policy: IdlePolicy, zone: &ZoneAttribution) -> Vec<u64> {
        match policy {
            IdlePolicy::None => Vec::new(),
            IdlePolicy::Equal => vec![1; self.claims.len()],
            IdlePolicy::Requests => self.claims.iter().map(|claim| claim.request_milli).collect(),
            IdlePolicy::Usage => {
                let mut weights = vec![0; self.claims.len()];
                for &(workload, part) in zone.division.iter().flat_map(|division| &division.shares) {
                    if let Some(pod) = self.of_workload[workload] {
                        weights[pod] += part.0;
                    }
                }
                if weights.iter().any(|&weight| weight > 0) {
                    return weights;
                }
                self.claims.iter().map(|claim| claim.runtime_ns).collect()
            }
        }
    }
}

/// One zone's idle energy, handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleDivision<'a> {
    pub zone: &'a Zone,
    /// Parallel to [`Claims::uids`], summing to the zone's idle energy; `None` when no pod weighs anything, so that the
    /// energy belongs to nobody.
    pub parts: Option<Vec<Microjoules>>,
    pub idle: Microjoules,
}

/// Hands out the idle energy of every CPU zone that is divided (package, dram); GPUs have an idle energy of their own.
#[must_use]
pub(crate) fn hand_out<'a>(
    policy: IdlePolicy,
    attribution: &'a Attribution,
    claims: &Claims<'_>,
) -> Vec<IdleDivision<'a>> {
    let zones = attribution.zones.iter().filter(|zone| matches!(zone.zone.kind, ZoneKind::Package | ZoneKind::Dram));
    zones
        .filter_map(|zone| {
            let idle = zone.division.as_ref()?.idle;
            let parts = split::split(idle, &claims.weights(policy, zone));
            Some(IdleDivision { zone: &zone.zone, parts, idle })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::attribution::usage::CpuShare;
    use crate::attribution::{Division, Method, Weight};
    use crate::workload::{Runtime, Workload};
    use crate::zone::Source;

    /// An interval of one zone: what pods' containers and a service ran for and were charged.
    struct World {
        kind: ZoneKind,
        idle: u64,
        /// Pod number, container number, nanoseconds, active microjoules.
        containers: Vec<(u8, u8, u64, u64)>,
        /// Pods without work.
        quiet: Vec<u8>,
        requests: BTreeMap<String, u64>,
    }

    fn uid(pod: u8) -> String {
        format!("pod-{pod:03}")
    }

    impl World {
        fn new(idle: u64, containers: &[(u8, u8, u64, u64)]) -> Self {
            let containers = containers.to_vec();
            Self { kind: ZoneKind::Package, idle, containers, quiet: Vec::new(), requests: BTreeMap::new() }
        }

        /// What each pod gets, and what belongs to nobody.
        fn hand_out(&self, policy: IdlePolicy) -> (BTreeMap<String, u64>, u64) {
            let share = |workload, runtime_ns| CpuShare { workload, domain: None, runtime_ns, cycles: 0, switches: 1 };
            let mut shares = vec![share(Arc::new(Workload::Unit { unit: "a.service".into() }), 1_000_000)];
            for &(pod, container, runtime_ns, _) in &self.containers {
                let (uid, id) = (uid(pod).into(), format!("{container:03}").into());
                let workload = Workload::PodContainer { uid, id, runtime: Runtime::Containerd };
                shares.push(share(Arc::new(workload), runtime_ns));
            }
            let usage = CpuUsage::group(shares);
            let active_of = |workload: &Workload| match workload {
                Workload::PodContainer { uid: pod, id, .. } => {
                    let same = self
                        .containers
                        .iter()
                        .filter(|(number, container, ..)| uid(*number) == **pod && format!("{container:03}") == **id);
                    same.map(|(.., active)| active).sum()
                }
                _ => 5,
            };
            let shares = usage.workloads().map(|shares| Microjoules(active_of(&shares[0].workload))).enumerate();
            let division = Division {
                active: Microjoules::ZERO,
                idle: Microjoules(self.idle),
                unattributed: Microjoules::ZERO,
                method: Method::Cpu(Weight::Runtime),
                shares: shares.collect(),
                processes: Vec::new(),
            };
            let zone = Zone { kind: self.kind, socket: None, die: None, source: Source::Rapl, path: String::new() };
            let zone = ZoneAttribution {
                zone: Arc::new(zone),
                measured: Microjoules(self.idle),
                gap: false,
                elapsed: Duration::from_secs(1),
                division: self.kind.attributed().then_some(division),
            };
            let attribution = Attribution { elapsed: Duration::from_secs(1), usage, zones: vec![zone] };
            let quiet: Vec<Arc<str>> = self.quiet.iter().map(|&pod| uid(pod).into()).collect();
            let claims = Claims::new(&attribution.usage, quiet.iter(), |uid| {
                self.requests.get(uid).copied().unwrap_or_default()
            });
            let mut given = BTreeMap::new();
            let mut unassigned = 0;
            for IdleDivision { zone, parts, idle } in hand_out(policy, &attribution, &claims) {
                assert_eq!(zone.kind, self.kind);
                match parts {
                    Some(parts) => {
                        assert_eq!(parts.iter().map(|part| part.0).sum::<u64>(), idle.0);
                        for (uid, part) in claims.uids.iter().zip(parts) {
                            *given.entry(uid.to_string()).or_default() += part.0;
                        }
                    }
                    None => unassigned += idle.0,
                }
            }
            (given, unassigned)
        }
    }

    fn given(parts: &[(u8, u64)]) -> BTreeMap<String, u64> {
        parts.iter().map(|&(pod, part)| (uid(pod), part)).collect()
    }

    #[test]
    fn usage_follows_the_active_energy_of_the_pods_alone() {
        // Pod 1 was charged 20 + 10, pod 2 was charged 60 and pod 3 nothing; the service's 5 do not count.
        let mut world = World::new(900, &[(1, 0, 7, 20), (1, 1, 7, 10), (2, 0, 1, 60)]);
        world.quiet = vec![3];
        assert_eq!(world.hand_out(IdlePolicy::Usage), (given(&[(1, 300), (2, 600), (3, 0)]), 0));
    }

    #[test]
    fn usage_follows_the_cpu_time_where_no_energy_was_active() {
        let world = World::new(900, &[(1, 0, 100, 0), (1, 1, 100, 0), (2, 0, 100, 0)]);
        assert_eq!(world.hand_out(IdlePolicy::Usage), (given(&[(1, 600), (2, 300)]), 0));
        let mut world = World::new(900, &[]);
        world.quiet = vec![1];
        assert_eq!(world.hand_out(IdlePolicy::Usage), (given(&[]), 900), "nobody ran");
    }

    #[test]
    fn equal_counts_each_pod_once_whatever_it_did() {
        let mut world = World::new(10, &[(1, 0, 9, 9), (1, 1, 9, 9), (2, 0, 1, 1)]);
        world.quiet = vec![1, 3];
        // 10 over 3: the microjoule left over goes to the first uid.
        assert_eq!(world.hand_out(IdlePolicy::Equal), (given(&[(1, 4), (2, 3), (3, 3)]), 0));
    }

    #[test]
    fn requests_count_and_a_pod_without_one_gets_nothing() {
        let mut world = World::new(1_000, &[(1, 0, 500, 500), (2, 0, 500, 500)]);
        world.quiet = vec![3];
        world.requests = [(uid(2), 250), (uid(3), 750)].into();
        assert_eq!(world.hand_out(IdlePolicy::Requests), (given(&[(1, 0), (2, 250), (3, 750)]), 0));
        world.requests.clear();
        assert_eq!(world.hand_out(IdlePolicy::Requests), (given(&[]), 1_000), "no request is known");
    }

    #[test]
    fn without_pods_idle_energy_is_nobodys() {
        for policy in [IdlePolicy::Usage, IdlePolicy::Requests, IdlePolicy::Equal] {
            assert_eq!(World::new(7, &[]).hand_out(policy), (given(&[]), 7), "{policy:?}");
        }
    }

    #[test]
    fn only_processors_and_their_memory_are_handed_out() {
        for (kind, whole) in [(ZoneKind::Dram, 7), (ZoneKind::Gpu, 0), (ZoneKind::Psys, 0), (ZoneKind::Core, 0)] {
            let world = World { kind, ..World::new(7, &[(1, 0, 1, 1)]) };
            let (given, unassigned) = world.hand_out(IdlePolicy::Equal);
            assert_eq!((given.values().sum::<u64>(), unassigned), (whole, 0), "{kind:?}");
        }
    }

    fn amount() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 1..100_u64, 1..10_000_000_000_u64]
    }

    fn world() -> impl Strategy<Value = World> {
        (
            amount(),
            prop::collection::vec((0..9_u8, 0..3_u8, amount(), amount()), 0..20),
            prop::collection::vec(0..12_u8, 0..12),
            prop::collection::btree_map((0..12_u8).prop_map(uid), amount(), 0..12),
        )
            .prop_map(|(idle, mut containers, quiet, requests)| {
                containers.sort_unstable();
                containers.dedup_by_key(|(pod, container, ..)| (*pod, *container));
                World { quiet, requests, ..World::new(idle, &containers) }
            })
    }

    impl std::fmt::Debug for World {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let Self { kind: _, idle, containers, quiet, requests } = self;
            write!(f, "idle {idle}, containers {containers:?}, quiet {quiet:?}, requests {requests:?}")
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_is_made(world in world()) {
            for policy in [IdlePolicy::None, IdlePolicy::Usage, IdlePolicy::Requests, IdlePolicy::Equal] {
                let (given, unassigned) = world.hand_out(policy);
                prop_assert_eq!(given.values().sum::<u64>() + unassigned, world.idle);
            }
        }

        #[test]
        fn whoever_weighs_nothing_gets_nothing(world in world()) {
            for (uid, part) in world.hand_out(IdlePolicy::Requests).0 {
                prop_assert!(part == 0 || world.requests[&uid] > 0);
            }
            let worked: Vec<_> = world.containers.iter().map(|(pod, ..)| super::tests::uid(*pod)).collect();
            for (uid, part) in world.hand_out(IdlePolicy::Usage).0 {
                prop_assert!(part == 0 || worked.contains(&uid));
            }
        }

        #[test]
        fn equal_parts_differ_by_a_microjoule_at_most(world in world()) {
            let (given, _) = world.hand_out(IdlePolicy::Equal);
            if let (Some(least), Some(most)) = (given.values().min(), given.values().max()) {
                prop_assert!(most - least <= 1);
            }
        }

        #[test]
        fn more_requested_is_no_less_given(world in world()) {
            let (given, _) = world.hand_out(IdlePolicy::Requests);
            let request = |uid: &str| world.requests.get(uid).copied().unwrap_or_default();
            for (a, more) in &given {
                for (b, less) in &given {
                    prop_assert!(request(a) <= request(b) || more >= less);
                }
            }
        }
    }
}
