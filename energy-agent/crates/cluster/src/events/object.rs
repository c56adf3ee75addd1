//! A change as the object of `events.k8s.io/v1` that `kubectl describe` and `kubectl events` show.

use std::sync::atomic::{AtomicU32, Ordering};

use energy_model::capping::change::{About, Change};
use energy_model::capping::status::PodId;
use energy_model::resources::api_version;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

const CONTROLLER: &str = "energy-agent";
/// More is refused by the API server; bytes.
/// <https://github.com/kubernetes/kubernetes/blob/v1.33.0/pkg/apis/core/validation/events.go>
const NOTE: usize = 1024;
const INSTANCE: usize = 128;
/// What the name of an object leaves to ours.
const NAME: usize = 200;

pub fn event(change: &Change, node: &str, at: Timestamp) -> Event {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Change { kind, policy, about, message } = change;
    let regarding = regarding(about, node);
    // The server wants events about objects without a namespace here.
    let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let note = policy.as_ref().map_or_else(|| message.clone(), |policy| format!("policy {policy}: {message}"));
    let object = cut(regarding.name.as_deref().unwrap_or_default(), NAME).to_owned();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{object}.{:x}.{number:x}", at.as_microsecond())),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(at)),
        action: Some(kind.as_str().to_owned()),
        reason: Some(kind.as_str().to_owned()),
        type_: Some(if kind.is_warning() { "Warning" } else { "Normal" }.to_owned()),
        regarding: Some(regarding),
        note: Some(cut(&note, NOTE).to_owned()),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(cut(node, INSTANCE).to_owned()),
        ..Event::default()
    }
}

fn regarding(about: &About, node: &str) -> ObjectReference {
    let reference = |kind: &str, namespace: Option<&str>, name: &str, uid: Option<&str>| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        uid: uid.map(str::to_owned),
        ..ObjectReference::default()
    };
    match about {
        // As the kubelet refers to nodes, and as `kubectl describe node` looks for events.
        About::Node => reference("Node", None, node, Some(node)),
        About::Pod(PodId { uid, namespace, name }) => reference("Pod", Some(namespace), name, Some(uid)),
        About::ConfigMap { namespace, name } => reference("ConfigMap", Some(namespace), name, None),
        About::Object { kind, namespace, name } => {
            let namespace = (!namespace.is_empty()).then_some(&**namespace);
            ObjectReference { api_version: Some(api_version()), ..reference(kind, namespace, name, None) }
        }
    }
}

/// The first `bytes` of it, at a character's end.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use energy_model::capping::change::ChangeKind;

    fn told(about: About, message: &str) -> Event {
        let change = Change { kind: ChangeKind::Unreachable, policy: None, about, message: message.to_owned() };
        event(&change, "node-a", Timestamp::UNIX_EPOCH)
    }

    /// The API server refuses an event whose namespace is not its object's, and notes of more than 1024 bytes.
    #[test]
    fn an_event_lies_where_its_object_does_and_nodes_events_in_default() {
        let pod = PodId { uid: "u1".into(), namespace: "ml".into(), name: "train-0".into() };
        let event = told(About::Pod(pod), &"\u{e9}".repeat(600));
        assert_eq!(event.metadata.namespace.as_deref(), Some("ml"));
        assert!(event.metadata.name.unwrap().starts_with("train-0.0."));
        assert_eq!(event.note.unwrap().len(), 1024);
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        let event = told(About::Node, "x");
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        let node = event.regarding.unwrap();
        assert_eq!((node.namespace, node.name.as_deref(), node.uid.as_deref()), (None, Some("node-a"), Some("node-a")));
        let map = About::ConfigMap { namespace: "energy".into(), name: "policies".into() };
        assert_eq!(told(map, "x").metadata.namespace.as_deref(), Some("energy"));
    }
}
