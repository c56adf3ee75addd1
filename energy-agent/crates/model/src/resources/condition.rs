//! How an object stands, in the form that all tools of Kubernetes read.

use serde::{Deserialize, Serialize};

/// `status.conditions[]`. <https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties>
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    /// `Ready`, `InBudget`, `Limiting`, `Applied`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A fixed word.
    pub reason: String,
    /// For people, with figures.
    pub message: String,
    /// RFC 3339.
    pub last_transition_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
