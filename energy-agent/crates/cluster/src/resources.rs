//! All objects of one kind, or one by its name, as they are at present; from one list and one watch. A kind that the API
//! server does not have yet has no objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::meter_state::Reason;
use energy_model::resources::object::KubeObject;
use energy_model::resources::{GROUP, VERSION};
use serde_json::Value;
use tokio::sync::watch as channel;

use crate::kubernetes::watch::{self, Heard, Query, Watched};
use crate::kubernetes::{ClusterError, Credentials};

/// Objects stay for so long where the API server says that it has no such kind: one that has just started may not have read its
/// kinds yet. Where a kind is deleted, its objects are deleted first, and the watch tells.
const GONE_AFTER: Duration = Duration::from_secs(60);
/// Objects in one answer. They are small.
const PAGE: u32 = 200;

/// What is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followable {
    /// All of a kind of `power.energy-agent.io`, by its plural, in all namespaces.
    All(&'static str),
    /// One of them; the namespace is empty for a kind without.
    Named {
        plural: &'static str,
        namespace: String,
        name: String,
    },
    Node(String),
    Lease {
        namespace: String,
        name: String,
    },
}

/// Namespace and name.
pub type Name = (String, String);
/// By their names.
pub type Objects = BTreeMap<Name, Arc<KubeObject>>;

/// What is known of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownObjects {
    /// Those there are. What was said last holds while the API server is away; `None`: it never answered.
    pub objects: Option<Arc<Objects>>,
    /// What keeps it from being asked now; [`Reason::Absent`] where it has no such kind.
    pub trouble: Option<ClusterError>,
}

impl Watched for KubeObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Followable {
    fn query(&self) -> Query {
        let group = format!("/apis/{GROUP}/{VERSION}");
        let at = |group: &str, namespace: &str, plural: &str| match namespace {
            "" => (format!("{group}/{plural}"), format!("{plural} at cluster scope")),
            _ => (format!("{group}/namespaces/{namespace}/{plural}"), format!("{plural} in namespace {namespace}")),
        };
        let ((path, object), name) = match self {
            Self::All(plural) => (at(&group, "", plural), None),
            Self::Named { plural, namespace, name } => (at(&group, namespace, plural), Some(name)),
            Self::Node(name) => (at("/api/v1", "", "nodes"), Some(name)),
            Self::Lease { namespace, name } => (at("/apis/coordination.k8s.io/v1", namespace, "leases"), Some(name)),
        };
        let fields = name.map(|name| format!("metadata.name={name}"));
        let object = name.map_or_else(|| object.clone(), |name| format!("{name} of {object}"));
        Query { path, object, fields, labels: None, page: PAGE }
    }
}

/// Follows them in a task of the current runtime, which ends when nobody listens any more. Their status is left out.
#[must_use]
pub fn start(credentials: Option<Credentials>, which: &Followable) -> channel::Receiver<KnownObjects> {
    let (publish, told) = channel::channel(KnownObjects::default());
    let Some(credentials) = credentials else {
        publish.send_replace(KnownObjects { objects: None, trouble: Some(ClusterError::no_credentials()) });
        return told;
    };
    let query = which.query();
    let closed = publish.clone();
    let mut following = Following::default();
    let tell = move |heard| {
        publish.send_if_modified(|told| following.take(told, heard, Instant::now()));
    };
    tokio::spawn(async move {
        tokio::select! {
            () = watch::run(credentials, query, tell) => {}
            () = closed.closed() => {}
        }
    });
    told
}

#[derive(Default)]
struct Following {
    objects: Objects,
    /// Since when the API server has had no such kind.
    absent: Option<Instant>,
}

impl Following {
    /// Whether something else is told now.
    fn take(&mut self, told: &mut KnownObjects, heard: Heard<KubeObject>, now: Instant) -> bool {
        match heard {
            Heard::All(all) => self.objects = all.into_iter().map(entry).collect(),
            Heard::Applied(object) => self.objects.extend([entry(object)]),
            Heard::Deleted(object) => drop(self.objects.remove(&entry(object).0)),
            Heard::Answered => {
                self.absent = None;
                // What did not change stays the same value, so that nobody looks again.
                let is_other = told.objects.as_deref() != Some(&self.objects);
                if is_other {
                    told.objects = Some(Arc::new(self.objects.clone()));
                }
                return told.trouble.take().is_some() || is_other;
            }
            Heard::Failed(trouble) => {
                let is_absent = trouble.reason == Reason::Absent;
                let since = is_absent.then(|| self.absent.unwrap_or(now));
                self.absent = since;
                let is_gone = since.is_some_and(|since| now.saturating_duration_since(since) >= GONE_AFTER);
                // Of troubles that follow each other, each kind is one.
                let mut is_other = told.trouble.as_ref().map(|trouble| trouble.reason) != Some(trouble.reason);
                told.trouble = Some(trouble);
                if is_absent && (told.objects.is_none() || is_gone) {
                    self.objects.clear();
                    is_other |= told.objects.as_ref().is_none_or(|objects| !objects.is_empty());
                    told.objects = Some(Arc::default());
                }
                return is_other;
            }
        }
        false
    }
}

fn entry(mut object: KubeObject) -> (Name, Arc<KubeObject>) {
    object.status = Value::Null;
    ((object.metadata.namespace.clone(), object.metadata.name.clone()), Arc::new(object))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use serde_json::json;

    use super::*;

    #[test]
    fn objects_outlive_an_api_server_that_has_not_read_its_kinds_yet() {
        let object: KubeObject = serde_json::from_value(json!({"metadata": {"name": "hall"}})).unwrap();
        let absent = || Heard::Failed(ClusterError::new(Reason::Absent, "no such kind".to_owned()));
        let (mut following, mut told, start) = (Following::default(), KnownObjects::default(), Instant::now());
        let count = |told: &KnownObjects| told.objects.as_ref().map(|objects| objects.len());
        let mut after = |told: &mut KnownObjects, seconds, heard| {
            let is_other = following.take(told, heard, start + Duration::from_secs(seconds));
            (is_other, count(told))
        };
        // Nothing was ever told: a kind that nobody has installed has no objects.
        assert_eq!(after(&mut told, 0, absent()), (true, Some(0)));
        assert_eq!(after(&mut told, 20, absent()), (false, Some(0)));
        after(&mut told, 30, Heard::All(vec![object]));
        assert_eq!(after(&mut told, 30, Heard::Answered), (true, Some(1)));
        // The server starts anew, and later the kind is really gone.
        assert_eq!(after(&mut told, 100, absent()), (true, Some(1)));
        assert_eq!(after(&mut told, 140, absent()), (false, Some(1)));
        assert_eq!(after(&mut told, 141, Heard::Answered), (true, Some(1)));
        assert_eq!(after(&mut told, 150, absent()), (true, Some(1)));
        assert_eq!(after(&mut told, 209, absent()), (false, Some(1)));
        assert_eq!(after(&mut told, 210, absent()), (true, Some(0)));
    }
}
