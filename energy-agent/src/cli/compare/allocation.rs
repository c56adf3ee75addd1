//! Whether the kubelet has given a GPU to a pod, which need not have a process on it at the moment.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use energy_cluster::pod_resources;
use energy_model::gpu::Gpu;
use energy_model::printable::printable;
use energy_model::workload::device_id::DeviceId;
use energy_model::workload::holder::Holder;
use tokio::runtime::{Builder, Runtime};

/// The node's kubelet, if it has one.
pub(super) struct NodeKubelet {
    socket: PathBuf,
    runtime: Runtime,
}

impl NodeKubelet {
    pub fn new(socket: &Path) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
        Ok(Self { socket: socket.to_owned(), runtime })
    }

    /// # Errors
    /// When a pod has the GPU, or it cannot be known: with the remedy.
    pub fn check_that_no_pod_has(&self, gpu: &Gpu) -> Result<()> {
        let asked = self.runtime.block_on(pod_resources::ask(&self.socket));
        let told = asked.with_context(|| {
            let socket = self.socket.display();
            format!("whether a pod has GPU {} is not known, as the kubelet does not answer at {socket}", gpu.index)
        })?;
        let devices = told.map(|resources| resources.devices).unwrap_or_default();
        let own = DeviceId::of_gpu(gpu);
        for (id, holders) in &devices {
            let what = match id {
                DeviceId::Claimed(_) => "may have been given by a claim",
                id if own.contains(id) => "was given",
                _ => continue,
            };
            let names: Vec<String> = holders.iter().map(name).collect();
            bail!(
                "GPU {} {what} to pod {}: a sweep would slow it down; delete the pod, or drain the node first",
                gpu.index,
                names.join(", ")
            );
        }
        Ok(())
    }
}

fn name(holder: &Holder) -> String {
    printable(&format!("{}/{}", holder.namespace, holder.pod)).into_owned()
}
