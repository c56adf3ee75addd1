//! A ConfigMap with policies.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};

use super::world::World;
use crate::common::kubernetes::server::runtime;

/// Tests share the cluster: its name and its label `policies` have the node's name in them.
pub struct Map {
    api: Api<ConfigMap>,
    pub name: String,
    label: String,
}

impl Map {
    /// A ConfigMap that does not exist yet.
    pub fn new(world: &World, name: &str) -> Self {
        let api = Api::namespaced(world.node.cluster.client.clone(), "default");
        Self { api, name: format!("{name}-{}", world.node.name), label: world.node.name.clone() }
    }

    /// The flag that lets an agent follow it.
    pub fn flag(&self) -> String {
        format!("--capping.configmap=default/{}", self.name)
    }

    /// The flag that lets an agent follow all of the node's.
    pub fn flag_of_all(world: &World) -> String {
        format!("--capping.configmap-selector=default/policies={}", world.node.name)
    }

    /// What the agent calls it.
    pub fn source(&self) -> String {
        format!("ConfigMap default/{} key policies.yaml", self.name)
    }

    /// Makes it, or gives it another document.
    pub fn set(&self, document: &str) {
        let labels = BTreeMap::from([("policies".to_owned(), self.label.clone())]);
        let metadata = ObjectMeta { name: Some(self.name.clone()), labels: Some(labels), ..ObjectMeta::default() };
        let data = BTreeMap::from([("policies.yaml".to_owned(), document.to_owned())]);
        let object = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
        let parameters = PostParams::default();
        let set = async {
            match self.api.replace(&self.name, &parameters, &object).await {
                Err(kube::Error::Api(status)) if status.code == 404 => self.api.create(&parameters, &object).await,
                answer => answer,
            }
        };
        runtime().block_on(set).unwrap();
    }

    pub fn delete(&self) {
        runtime().block_on(self.api.delete(&self.name, &DeleteParams::default())).unwrap();
    }
}
