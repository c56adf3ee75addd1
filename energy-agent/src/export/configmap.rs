//! A watch of one ConfigMap into what happened to it.

use crate::config::ObjectName;

/// Something about the ConfigMap that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there, with these keys and values.
    Found(Vec<(String, String)>),
    /// The API server says that there is none.
    Gone,
    /// The API server can't be asked, for this reason; what it said before holds.
    Trouble(String),
}

/// `ConfigMap NAMESPACE/NAME`, for messages.
#[must_use]
pub fn title(object: &ObjectName) -> String {
    format!("ConfigMap {}/{}", object.namespace, object.name)
}
