//! An Event of the controller about an object, for `kubectl describe`. Pure.

use energy_model::resources::object::Metadata;
use serde_json::{Value, json};

/// What is said of an object.
pub struct ObjectEvent<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    pub about: &'a Metadata,
    pub action: &'a str,
    pub reason: &'a str,
    pub is_bad: bool,
    pub note: &'a str,
}

impl ObjectEvent<'_> {
    /// The collection in which the Event is made, and the Event. `number` makes its name differ from those of others.
    #[must_use]
    pub fn of(&self, identity: &str, number: u64, time: &str) -> (String, Value) {
        let Metadata { namespace, name, uid, .. } = self.about;
        let short = |text: &str, most: usize| text.chars().take(most).collect::<String>();
        // The server wants events about objects without a namespace here.
        let place = if namespace.is_empty() { "default" } else { namespace };
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": place, "name": format!("{}.{number:x}", short(name, 200))},
            "eventTime": time,
            "action": self.action,
            "reason": self.reason,
            "type": if self.is_bad { "Warning" } else { "Normal" },
            "regarding": {"apiVersion": self.api_version, "kind": self.kind, "name": name, "uid": uid},
            "note": short(self.note, 1000),
            "reportingController": "energy-agent-controller",
            "reportingInstance": short(identity, 120),
        });
        if !namespace.is_empty() {
            event["regarding"]["namespace"] = json!(namespace);
        }
        (format!("/apis/events.k8s.io/v1/namespaces/{place}/events"), event)
    }
}
