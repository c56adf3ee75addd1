//! The labels of pods that `--pods.labels` names, in the manner of kube-state-metrics: one series of value 1 a pod, to be
//! joined with its energy in a query.

use std::collections::BTreeMap;

use crate::export::metrics as m;
use crate::export::text::{Labels, Value, Writer};
use crate::snapshot::Snapshot;

pub fn write(writer: &mut Writer, snapshot: &Snapshot) {
    // Two labels that look alike on the page would make it unreadable; the first named stays.
    let mut exported: Vec<(String, &str)> = Vec::new();
    for label in snapshot.pod_labels.iter() {
        let name = exported_name(label);
        if !exported.iter().any(|(known, _)| *known == name) {
            exported.push((name, label));
        }
    }
    super::family(writer, &m::POD_LABELS);
    if exported.is_empty() {
        return;
    }
    let uids = snapshot.rows.iter().filter_map(|row| row.workload.pod_uid());
    let pods: BTreeMap<_, _> = uids.map(|uid| (snapshot.names.pod(uid), uid)).collect();
    for (pod, uid) in pods {
        let Some(labels) = snapshot.names.labels(uid) else { continue };
        let value = |label: &str| labels.get(label).map_or("", String::as_str);
        let more: Vec<(&str, &str)> = exported.iter().map(|(name, label)| (name.as_str(), value(label))).collect();
        let pod = [
            ("pod_id", pod.id),
            ("pod_name", pod.name),
            ("pod_namespace", pod.namespace),
            ("node_name", &snapshot.node),
        ];
        writer.sample(&Labels::new(&pod), &more, Value::Integer(1));
    }
}

/// `app.kubernetes.io/name` is `label_app_kubernetes_io_name`.
fn exported_name(label: &str) -> String {
    let letters = label.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' });
    "label_".chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_named_as_kube_state_metrics_has_it() {
        assert_eq!(exported_name("app.kubernetes.io/name"), "label_app_kubernetes_io_name");
    }
}
