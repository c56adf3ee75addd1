//! All objects of one kind, or one by its name, as they are at present; from one list and one watch. A kind that the API
//! server does not have yet has no objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use energy_model::meter_state::Reason;
use energy_model::resources::object::KubeObject;
use energy_model::resources::{GROUP, VERSION};
use serde_json::Value;
use tokio::sync::watch as channel;

use crate::kubernetes::watch::{self, Heard, Query, Watched};
use crate::kubernetes::{ClusterError, Credentials};

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
    let mut objects = Objects::new();
    let tell = move |heard: Heard<KubeObject>| match heard {
        Heard::All(all) => objects = all.into_iter().map(entry).collect(),
        Heard::Applied(object) => objects.extend([entry(object)]),
        Heard::Deleted(object) => drop(objects.remove(&entry(object).0)),
        Heard::Answered => {
            // What did not change stays the same value, so that nobody looks again.
            publish.send_if_modified(|told| {
                let is_other = told.objects.as_deref() != Some(&objects);
                if is_other {
                    told.objects = Some(Arc::new(objects.clone()));
                }
                told.trouble.take().is_some() || is_other
            });
        }
        Heard::Failed(trouble) => {
            let is_absent = trouble.reason == Reason::Absent;
            if is_absent {
                objects.clear();
            }
            // Of troubles that follow each other, each kind is one.
            publish.send_if_modified(|told| {
                let is_other = told.trouble.as_ref().map(|trouble| trouble.reason) != Some(trouble.reason);
                told.trouble = Some(trouble);
                if is_absent {
                    told.objects = Some(Arc::default());
                }
                is_other
            });
        }
    };
    tokio::spawn(async move {
        tokio::select! {
            () = watch::run(credentials, query, tell) => {}
            () = closed.closed() => {}
        }
    });
    told
}

fn entry(mut object: KubeObject) -> (Name, Arc<KubeObject>) {
    object.status = Value::Null;
    ((object.metadata.namespace.clone(), object.metadata.name.clone()), Arc::new(object))
}
