//! What the snapshot of a tick means for capping: each pod's power and run time, each GPU's users.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use energy_model::capping::observation::{GpuDevice, Observation, PodNow};
use energy_model::snapshot::{Snapshot, WorkloadState};
use energy_model::units::{Watts, nanos, ratio};
use energy_model::workload::names::{Pod, Pods};
use energy_model::zone::{Source, Zone, ZoneKind};

/// Remembers run times from tick to tick.
#[derive(Debug, Default)]
pub struct Observer {
    /// By what the pod's cgroup is named by.
    runtime_ns: HashMap<Arc<str>, u64>,
    /// There was a tick before. The first is shorter than an interval: its power decides nothing.
    has_begun: bool,
}

/// What the rows of a pod add up to.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    watts: f64,
    runtime_ns: u64,
}

impl Observer {
    /// The node as `snapshot` shows it, without its knobs. `now` is a clock that does not go backwards.
    pub fn observe(&mut self, now: Duration, snapshot: &Snapshot, pods: &Pods, gpus: Vec<GpuDevice>) -> Observation {
        let node_cpu_power = node_cpu_power(snapshot).filter(|_| self.has_begun);
        self.has_begun = true;
        let mut used: BTreeMap<&Arc<str>, Used> = BTreeMap::new();
        for row in &snapshot.rows {
            let Some(uid) = row.workload.pod_uid() else { continue };
            let used = used.entry(uid).or_default();
            // Ended instances' run time stays with the pod, so that the difference is this interval's.
            used.runtime_ns += row.runtime_ns;
            if row.state == WorkloadState::Running {
                let cpu = row.energy.iter().filter(|energy| is_cpu(energy.key.zone));
                used.watts += cpu.filter_map(|energy| energy.power).map(|power| power.0).sum::<f64>();
            }
        }
        let mut before = std::mem::take(&mut self.runtime_ns);
        let mut observed: Vec<PodNow> = pods
            .by_uid
            .values()
            .map(|pod| {
                let uid = key(pod, &used);
                let Used { watts, runtime_ns } = used.get(uid).copied().unwrap_or_default();
                let ran_ns = before.remove(uid).map_or(0, |before| runtime_ns.saturating_sub(before));
                self.runtime_ns.insert(Arc::clone(uid), runtime_ns);
                PodNow {
                    pod: Arc::clone(pod),
                    uid: Arc::clone(uid),
                    cpu_power: node_cpu_power.map(|_| Watts(watts)),
                    cpus_used: ratio(ran_ns, nanos(snapshot.elapsed)),
                    quota: None,
                    frequencies: Vec::new(),
                }
            })
            .collect();
        observed.sort_by(|a, b| a.uid.cmp(&b.uid));
        Observation { now, pods: observed, gpus, node_cpu_power, knobs: BTreeMap::new(), bounds: BTreeMap::new() }
    }
}

/// What the pod's cgroup is named by: of a static pod the hash, once something ran there.
fn key<'a>(pod: &'a Pod, used: &BTreeMap<&Arc<str>, Used>) -> &'a Arc<str> {
    pod.config_hash.as_ref().filter(|hash| used.contains_key(hash)).unwrap_or(&pod.uid)
}

/// Power of the packages and their memory, where all of it was measured. A zone that is not read any more makes it unknown,
/// not lower: less power than there is would open what holds it.
fn node_cpu_power(snapshot: &Snapshot) -> Option<Watts> {
    let cpu = || snapshot.zones.iter().filter(|totals| is_cpu(totals.zone.kind));
    // An estimate that a measurement took the place of stands for nothing any more.
    let measured = cpu().any(|totals| totals.zone.source != Source::Estimate);
    let cpu = cpu().filter(|totals| !measured || totals.zone.source != Source::Estimate);
    let powers: Vec<f64> = cpu
        .map(|totals| Some(totals.power.filter(|power| !stands_still(&totals.zone, *power))?.0))
        .collect::<Option<_>>()?;
    (!powers.is_empty()).then(|| Watts(powers.iter().sum()))
}

/// A package draws some power whatever runs there, and counts it every millisecond (RAPL): a counter that gained nothing has
/// stopped. The memory of a socket that has none may well draw nothing, an estimate may say 0, and a board's sensor may
/// take longer than a tick.
fn stands_still(zone: &Zone, power: Watts) -> bool {
    let rapl = matches!(zone.source, Source::Rapl | Source::RaplMmio | Source::Perf);
    zone.kind == ZoneKind::Package && rapl && power.0 <= 0.0
}

/// The zones that add up to what the CPUs and their memory draw.
const fn is_cpu(zone: ZoneKind) -> bool {
    matches!(zone, ZoneKind::Package | ZoneKind::Dram)
}
