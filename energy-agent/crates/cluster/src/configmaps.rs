//! ConfigMaps of one namespace, by name or by labels, as they are at present; from a watch of the API server that never
//! sees another.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use tokio::sync::watch as channel;

use crate::config::{LabelledObjects, ObjectName};
use crate::kubernetes::watch::{self, Heard, Query, Watched};
use crate::kubernetes::{ClusterError, Credentials};

/// A ConfigMap may have 1 MiB.
const PAGE: u32 = 20;

/// Which ConfigMaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    Named(ObjectName),
    Labelled(LabelledObjects),
}

/// Keys and values of a ConfigMap.
pub type Data = BTreeMap<String, ConfigMapValue>;

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigMapValue {
    /// In `data`.
    Text(Arc<str>),
    /// In `binaryData`, where kubectl and kustomize put every file that is not UTF-8. A key may be in one of both, and
    /// move. `None`: it is no text.
    Binary(Option<Arc<str>>),
}

/// What is known of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownConfigMaps {
    /// Those there are, by name. What was said last holds while the API server is away; `None`: it never answered.
    pub maps: Option<BTreeMap<String, Arc<Data>>>,
    /// What keeps it from being asked now.
    pub trouble: Option<ClusterError>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigMap {
    metadata: ConfigMapMeta,
    #[serde(deserialize_with = "or_null")]
    data: BTreeMap<String, String>,
    #[serde(rename = "binaryData", deserialize_with = "or_null")]
    binary: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ConfigMapMeta {
    name: String,
    resource_version: String,
}

fn or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Watched for ConfigMap {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Which {
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::Named(object) => &object.namespace,
            Self::Labelled(objects) => &objects.namespace,
        }
    }

    /// `ConfigMap NAMESPACE/NAME` or `ConfigMaps NAMESPACE with LABELS`, for messages.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Named(ObjectName { namespace, name }) => format!("ConfigMap {namespace}/{name}"),
            Self::Labelled(LabelledObjects { namespace, labels }) => format!("ConfigMaps {namespace} with {labels}"),
        }
    }

    fn query(&self) -> Query {
        let namespace = self.namespace();
        let (object, fields, labels) = match self {
            Self::Named(ObjectName { name, .. }) => {
                (format!("configmaps {name} in namespace {namespace}"), Some(format!("metadata.name={name}")), None)
            }
            Self::Labelled(LabelledObjects { labels, .. }) => {
                (format!("configmaps in namespace {namespace}"), None, Some(labels.clone()))
            }
        };
        Query { path: format!("/api/v1/namespaces/{namespace}/configmaps"), object, fields, labels, page: PAGE }
    }
}

/// Follows them in a task of the current runtime.
#[must_use]
pub fn start(credentials: Option<Credentials>, which: &Which) -> channel::Receiver<KnownConfigMaps> {
    let (publish, told) = channel::channel(KnownConfigMaps::default());
    let Some(credentials) = credentials else {
        publish.send_replace(KnownConfigMaps { maps: None, trouble: Some(ClusterError::no_credentials()) });
        return told;
    };
    let mut maps = BTreeMap::new();
    let tell = move |heard: Heard<ConfigMap>| match heard {
        Heard::All(all) => maps = all.into_iter().map(entry).collect(),
        Heard::Applied(map) => maps.extend([entry(map)]),
        Heard::Deleted(map) => drop(maps.remove(&map.metadata.name)),
        Heard::Answered => {
            let now = KnownConfigMaps { maps: Some(maps.clone()), trouble: None };
            publish.send_if_modified(|told| {
                let is_other = *told != now;
                *told = now;
                is_other
            });
        }
        // Of troubles that follow each other, each kind is one.
        Heard::Failed(trouble) => drop(publish.send_if_modified(|told| {
            let is_other = told.trouble.as_ref().map(|trouble| trouble.reason) != Some(trouble.reason);
            told.trouble = Some(trouble);
            is_other
        })),
    };
    tokio::spawn(watch::run(credentials, which.query(), tell));
    told
}

fn entry(map: ConfigMap) -> (String, Arc<Data>) {
    let ConfigMap { metadata, data, binary } = map;
    let binary = binary.into_iter().map(|(key, value)| (key, ConfigMapValue::Binary(decoded(&value).map(Arc::from))));
    let data = data.into_iter().map(|(key, value)| (key, ConfigMapValue::Text(value.into())));
    (metadata.name, Arc::new(binary.chain(data).collect()))
}

/// The text of a value in `binaryData`; `None`: it is none.
#[must_use]
pub fn decoded(base64: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(base64).ok()?).ok()
}

/// What is said of a key that should have a text.
#[must_use]
pub const fn not_text() -> &'static str {
    "it is in `binaryData` and not UTF-8; save the file as UTF-8 and apply it again, so that it is in `data`"
}
