//! Where the cluster is found and what pods are known from: the flags of Kubernetes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// Flags of this crate, each also an environment variable.
#[derive(Clone, Debug, Args)]
pub struct ClusterConfig {
    /// Where pod names come from. `api`: a watch of the API server for this node's pods (list and watch on pods).
    /// `kubelet`: a request to the node's kubelet at an interval (nodes/proxy). `auto`: `api` if there is a service account
    /// or a kubeconfig, else `none`. `none` shows pods by uid and containers by id.
    #[arg(
        long = "pods.source",
        env = "ENERGY_AGENT_PODS_SOURCE",
        value_enum,
        default_value_t = PodsSource::Auto,
        value_name = "SOURCE"
    )]
    pub pods_source: PodsSource,
    /// Credentials for the API server outside a pod. Default: KUBECONFIG, as for kubectl. The current context is used, and
    /// the server's certificate is always verified.
    #[arg(long = "kubeconfig", env = "ENERGY_AGENT_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the kubelet. Default: https on port 10250 of NODE_IP, or of 127.0.0.1. Over http:// no credentials are sent.
    #[arg(long = "pods.kubelet-url", env = "ENERGY_AGENT_PODS_KUBELET_URL", value_name = "URL")]
    pub kubelet_url: Option<String>,
    /// Authority (PEM) that must have signed the kubelet's certificate. Default: the cluster's authority.
    #[arg(long = "pods.kubelet-ca", env = "ENERGY_AGENT_PODS_KUBELET_CA", value_name = "FILE")]
    pub kubelet_ca: Option<PathBuf>,
    /// Time between two requests to the kubelet, 1s or more. A new pod causes an earlier request.
    #[arg(long = "pods.kubelet-interval", env = "ENERGY_AGENT_PODS_KUBELET_INTERVAL", default_value = "30s", value_parser = kubelet_interval, value_name = "DURATION")]
    pub kubelet_interval: Duration,
    /// Socket at which the kubelet says which pod has which GPU. It is used only on nodes with GPUs, and is optional.
    #[arg(
        long = "pods.resources-socket",
        env = "ENERGY_AGENT_PODS_RESOURCES_SOCKET",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock",
        value_name = "FILE"
    )]
    pub pods_resources_socket: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PodsSource {
    Auto,
    Api,
    Kubelet,
    None,
}

/// A namespaced object of the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    pub namespace: String,
    pub name: String,
}

/// Objects of one namespace of the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledObjects {
    pub namespace: String,
    /// As in `kubectl --selector`.
    pub labels: String,
}

fn kubelet_interval(text: &str) -> Result<Duration, String> {
    let parsed =
        humantime::parse_duration(text).map_err(|error| format!("{error}; expected a duration such as 30s"))?;
    if parsed < Duration::from_secs(1) { Err("expected 1s or more".to_owned()) } else { Ok(parsed) }
}
