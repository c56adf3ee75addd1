//! The labels of pods that `--pods.labels` names: one series of value 1 a pod, to be
//! joined with its energy in a query.

use std::collections::BTreeMap;

use energy_model::snapshot::Snapshot;

use crate::metrics as m;
use crate::text::{Labels, SeriesValue, Writer};

pub fn write(writer: &mut Writer, snapshot: &Snapshot) {
    super::family(writer, &m::POD_LABELS);
    if snapshot.pod_labels.is_empty() {
        return;
    }
    let uids = snapshot.rows.iter().filter_map(|row| row.workload.pod_uid());
    let pods: BTreeMap<_, _> = uids.map(|uid| (snapshot.names.pod(uid), uid)).collect();
    for (pod, uid) in pods {
        let Some(labels) = snapshot.names.labels(uid) else { continue };
        let value = |label: &str| labels.get(label).map_or("", String::as_str);
        let more: Vec<(&str, &str)> =
            snapshot.pod_labels.iter().map(|label| (label.name.as_str(), value(&label.key))).collect();
        let pod = [
            ("pod_id", pod.id),
            ("pod_name", pod.name),
            ("pod_namespace", pod.namespace),
            ("node_name", &snapshot.node),
        ];
        writer.sample(&Labels::new(&pod), &more, SeriesValue::Integer(1));
    }
}
