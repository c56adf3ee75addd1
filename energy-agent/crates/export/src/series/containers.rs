//! Which rows are one container on the page: instances of a pod's container that have its name are summed, so that a
//! restart goes on counting; without a name each instance stands for itself.

use rustc_hash::{FxBuildHasher, FxHashMap};

use energy_model::snapshot::{Snapshot, WorkloadRow, WorkloadState};
use energy_model::workload::names::Names;
use energy_model::workload::{POD_OVERHEAD, Runtime, Workload};

use super::{SeriesTotals, family};
use crate::metrics as m;
use crate::text::{Labels, SeriesValue, Writer};

/// Rows under one name or id of one pod; the pod is empty for a container outside pods.
struct ContainerGroup<'a> {
    pod: &'a str,
    /// Empty while it is not known.
    name: &'a str,
    id: &'a str,
    runtime: Runtime,
    /// How well `id` stands for the container: running counts most, then what Kubernetes calls the current instance.
    rank: (bool, bool),
    state: WorkloadState,
    totals: SeriesTotals<'a>,
}

/// What a row says about its container.
struct Instance<'a> {
    pod: &'a str,
    name: &'a str,
    id: &'a str,
    runtime: Runtime,
    current: bool,
}

/// The containers of the snapshot, in the order of its rows. A pod is the sum of its containers, apart from ended ones
/// whose name is not known.
pub fn containers(snapshot: &Snapshot) -> Vec<SeriesTotals<'_>> {
    let mut groups: Vec<ContainerGroup<'_>> = Vec::with_capacity(snapshot.rows.len());
    // A name (a DNS label, or POD) is never a container id (64 hexadecimal digits).
    let mut places: FxHashMap<(&str, &str), usize> =
        FxHashMap::with_capacity_and_hasher(snapshot.rows.len(), FxBuildHasher);
    // All containers of a pod have one runtime; the row of ended instances does not have it.
    let mut runtimes: FxHashMap<&str, Runtime> = FxHashMap::default();
    for row in &snapshot.rows {
        let Some(Instance { pod, name, id, runtime, current }) = instance(row, &snapshot.names) else { continue };
        let runtime = match &*row.workload {
            Workload::PodEnded { .. } if name != POD_OVERHEAD => runtimes.get(pod).copied().unwrap_or(runtime),
            _ => runtime,
        };
        runtimes.insert(pod, runtime);
        let rank = (row.state == WorkloadState::Running, current);
        let place = *places.entry((pod, if name.is_empty() { id } else { name })).or_insert_with(|| {
            groups.push(ContainerGroup { pod, name, id, runtime, rank, state: row.state, totals: SeriesTotals::new() });
            groups.len() - 1
        });
        let group = &mut groups[place];
        if rank >= group.rank {
            (group.id, group.runtime, group.rank) = (id, runtime, rank);
        }
        // Running orders before Terminated.
        group.state = group.state.min(row.state);
        group.totals.add(row, snapshot.counting_since);
    }
    groups.into_iter().map(|group| group.finish(&snapshot.node)).collect()
}

/// Which unit's sums hold each container outside pods.
pub(super) fn write_units(writer: &mut Writer, snapshot: &Snapshot) {
    family(writer, &m::CONTAINER_UNIT_INFO);
    for row in &snapshot.rows {
        let Workload::Container { unit, id, runtime } = &*row.workload else { continue };
        let labels =
            [("container_id", &**id), ("runtime", runtime.as_str()), ("unit", unit), ("node_name", &snapshot.node)];
        writer.sample(&Labels::new(&labels), &[], SeriesValue::Integer(1));
    }
}

fn instance<'a>(row: &'a WorkloadRow, names: &'a Names) -> Option<Instance<'a>> {
    Some(match &*row.workload {
        Workload::Kernel | Workload::Unit { .. } | Workload::PodEnded { name: None, .. } => return None,
        Workload::Container { unit: _, id, runtime } => {
            Instance { pod: "", name: "", id, runtime: *runtime, current: false }
        }
        Workload::PodOverhead { uid } => Instance {
            pod: names.pod(uid).id,
            name: POD_OVERHEAD,
            id: POD_OVERHEAD,
            runtime: Runtime::Unknown,
            current: true,
        },
        Workload::PodContainer { uid, id, runtime } => {
            let name = names.container(uid, id).map_or("", |name| name);
            // A pod has one sandbox; what runs beside its containers is shown with it.
            let current = !name.is_empty() && (name == POD_OVERHEAD || names.current(uid, name) == Some(id));
            Instance { pod: names.pod(uid).id, name, id, runtime: *runtime, current }
        }
        Workload::PodEnded { uid, name: Some(name) } => {
            let id = if **name == *POD_OVERHEAD { POD_OVERHEAD } else { names.current(uid, name).unwrap_or("") };
            Instance { pod: names.pod(uid).id, name, id, runtime: Runtime::Unknown, current: false }
        }
    })
}

impl<'a> ContainerGroup<'a> {
    fn finish(self, node: &str) -> SeriesTotals<'a> {
        let Self { pod, name, id, runtime, rank: _, state, totals } = self;
        let labels = Labels::new(&[
            ("container_id", id),
            ("container_name", name),
            ("runtime", runtime.as_str()),
            ("state", state.as_str()),
            ("pod_id", pod),
            ("node_name", node),
        ]);
        SeriesTotals { labels, ..totals }
    }
}
