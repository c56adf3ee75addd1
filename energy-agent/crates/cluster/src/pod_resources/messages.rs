//! The messages of the kubelet's PodResources service, as far as they are used of
//! <https://github.com/kubernetes/kubelet/blob/v0.34.0/pkg/apis/podresources/v1/api.proto>.
//!
//! Written by hand because a few messages of many are used, and generated code needs `protoc` in each build.

use energy_model::workload::device_id::DeviceId;
use prost::Message;

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodMessage>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodMessage {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerMessage>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerMessage {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<DevicesMessage>,
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicMessage>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DevicesMessage {
    #[prost(string, tag = "1")]
    pub resource: String,
    #[prost(string, repeated, tag = "2")]
    pub ids: Vec<String>,
}

/// A claim of dynamic resource allocation.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DynamicMessage {
    #[prost(message, repeated, tag = "4")]
    pub claims: Vec<ClaimMessage>,
}

/// A device of a claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClaimMessage {
    #[prost(message, repeated, tag = "1")]
    pub cdi_devices: Vec<CdiMessage>,
    #[prost(string, tag = "2")]
    pub driver: String,
    #[prost(string, tag = "3")]
    pub pool: String,
    #[prost(string, tag = "4")]
    pub device: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CdiMessage {
    #[prost(string, tag = "1")]
    pub name: String,
}

impl ClaimMessage {
    /// Its names of NVIDIA's. An older kubelet reports those of the container runtime alone.
    pub fn devices(&self) -> Vec<DeviceId> {
        if self.driver.is_empty() {
            return self.cdi_devices.iter().filter_map(|device| DeviceId::of_cdi(&device.name)).collect();
        }
        DeviceId::of_claim(&self.driver, &self.pool, &self.device).into_iter().collect()
    }
}
