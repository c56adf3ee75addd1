//! Objects of one kind, as they are at present: a watch that keeps them in a channel.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch as channel;

use crate::kubernetes::watch::{self, Heard, Query, Watched};
use crate::kubernetes::{ClusterError, Credentials};

/// Namespace and name; the namespace is empty for objects of the cluster.
pub type ObjectKey = (String, String);

/// An object that is kept by its name.
pub(crate) trait Keyed: Watched {
    fn key(&self) -> ObjectKey;
}

/// What is known of them.
#[derive(Clone, Debug)]
pub struct Known<T> {
    /// Those there are. What was said last holds while the API server is away; `None`: it never answered.
    pub objects: Option<BTreeMap<ObjectKey, Arc<T>>>,
    /// What keeps it from being asked now.
    pub trouble: Option<ClusterError>,
}

/// Follows them in a task of the current runtime.
#[must_use]
pub(crate) fn start<T: Keyed + Send + Sync + 'static>(
    credentials: Credentials,
    query: Query,
) -> channel::Receiver<Known<T>> {
    let (publish, told) = channel::channel(Known { objects: None, trouble: None });
    let tell = move |heard: Heard<T>| {
        publish.send_if_modified(|known| take(known, heard));
    };
    tokio::spawn(watch::run(credentials, query, tell));
    told
}

/// Whether anything is different now.
fn take<T: Keyed>(known: &mut Known<T>, heard: Heard<T>) -> bool {
    let entry = |object: T| (object.key(), Arc::new(object));
    match heard {
        Heard::All(all) => known.objects = Some(all.into_iter().map(entry).collect()),
        Heard::Applied(object) => known.objects.get_or_insert_default().extend([entry(object)]),
        Heard::Deleted(object) => drop(known.objects.get_or_insert_default().remove(&object.key())),
        Heard::Answered => return known.trouble.take().is_some(),
        Heard::Failed(trouble) => {
            let is_other = known.trouble.as_ref().map(|trouble| trouble.reason) != Some(trouble.reason);
            known.trouble = Some(trouble);
            return is_other;
        }
    }
    true
}
