//! An object of the API server, with its spec and status as they came. They are read one by one, so that one object that
//! cannot be read does not hide the others.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// As far as it is used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeObject {
    pub metadata: Metadata,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub spec: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub status: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<ResourceOwner>,
}

/// The object goes with its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceOwner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl KubeObject {
    /// The spec of its kind.
    ///
    /// # Errors
    /// What is wrong with it: a field of another type, or a word that this version does not know.
    pub fn spec<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(&self.spec).map_err(|error| format!("spec: {error}"))
    }
}
