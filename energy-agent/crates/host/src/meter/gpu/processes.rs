//! Who holds a context on a GPU: NVML's lists of compute, graphics and MPS processes as one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use energy_model::gpu::{GpuProcess, GpuProcessKind};
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::call::NvmlCall;
use super::fault::{Calls, GpuFailure};
use crate::workload::pid_namespace;

/// `nvidia-cuda-mps-server` as `/proc/PID/comm` shows it, cut after 15 bytes.
const MPS_SERVER: &str = "nvidia-cuda-mps";

/// A list that grows between the two calls that fetch it is asked for this often.
const TRIES: usize = 3;

/// The lists of one GPU, with what was found out about each process once.
pub struct GpuProcesses {
    /// Where the host's processes are seen; `None` where none are (FC-107).
    procfs: Option<PathBuf>,
    /// Whether a process is an MPS server.
    servers: BTreeMap<u32, bool>,
}

impl GpuProcesses {
    #[must_use]
    pub fn new(procfs: PathBuf) -> Self {
        let procfs = Some(procfs).filter(|procfs| pid_namespace::is_hosts(procfs));
        Self { procfs, servers: BTreeMap::new() }
    }

    /// Every process once per instance, by pid. `None` where the driver offers no list.
    ///
    /// # Errors
    /// When the device is out of reach.
    pub fn read(
        &mut self,
        device: &Device<'_>,
        mig: bool,
        calls: &mut Calls,
    ) -> Result<Option<Vec<GpuProcess>>, GpuFailure> {
        let compute = calls.ask(NvmlCall::ComputeProcesses, || patiently(|| device.running_compute_processes()))?;
        let graphics = calls.ask(NvmlCall::GraphicsProcesses, || patiently(|| device.running_graphics_processes()))?;
        let mps = calls.ask(NvmlCall::MpsProcesses, || patiently(|| device.mps_running_compute_processes()))?;
        if compute.is_none() && graphics.is_none() && mps.is_none() {
            return Ok(None);
        }
        let lists =
            [(GpuProcessKind::Mps, mps), (GpuProcessKind::Compute, compute), (GpuProcessKind::Graphics, graphics)];
        let mut found = merge(lists.map(|(kind, list)| (kind, list.unwrap_or_default())), mig);
        self.mark_servers(&mut found);
        Ok(Some(found))
    }

    fn mark_servers(&mut self, found: &mut [GpuProcess]) {
        let Some(procfs) = &self.procfs else { return };
        let there: BTreeSet<u32> = found.iter().map(|process| process.pid).collect();
        self.servers.retain(|pid, _| there.contains(pid));
        for process in found.iter_mut().filter(|process| process.kind == GpuProcessKind::Compute) {
            let server = self.servers.entry(process.pid).or_insert_with(|| {
                let comm = fs::read_to_string(procfs.join(process.pid.to_string()).join("comm"));
                comm.is_ok_and(|comm| comm.starts_with(MPS_SERVER))
            });
            if *server {
                process.kind = GpuProcessKind::MpsServer;
            }
        }
    }
}

/// One entry for each process and instance; the first list that has it says its kind.
fn merge(lists: [(GpuProcessKind, Vec<ProcessInfo>); 3], mig: bool) -> Vec<GpuProcess> {
    let mut found: BTreeMap<(u32, Option<u32>), GpuProcess> = BTreeMap::new();
    for (kind, list) in lists {
        for ProcessInfo { pid, used_gpu_memory, gpu_instance_id, compute_instance_id: _ } in list {
            if pid == 0 {
                continue;
            }
            let instance = gpu_instance_id.filter(|_| mig);
            let memory_bytes = match used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            let process = GpuProcess { pid, work: 0, memory_bytes, kind, instance };
            let known = found.entry((pid, instance)).or_insert(process);
            known.memory_bytes = known.memory_bytes.max(memory_bytes);
        }
    }
    found.into_values().collect()
}

/// Asks again where the list had grown meanwhile.
fn patiently<T>(mut ask: impl FnMut() -> Result<T, NvmlError>) -> Result<T, NvmlError> {
    for _ in 1..TRIES {
        match ask() {
            Err(NvmlError::InsufficientSize(_)) => {}
            result => return result,
        }
    }
    ask()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(pid: u32, bytes: u64, instance: Option<u32>) -> ProcessInfo {
        ProcessInfo {
            pid,
            used_gpu_memory: UsedGpuMemory::Used(bytes),
            gpu_instance_id: instance,
            compute_instance_id: None,
        }
    }

    #[test]
    fn a_process_in_several_lists_is_one() {
        let lists = [
            (GpuProcessKind::Mps, vec![listed(301, 4000, None)]),
            (GpuProcessKind::Compute, vec![listed(0, 1, None), listed(17, 0, None), listed(301, 4000, None)]),
            (GpuProcessKind::Graphics, vec![listed(17, 9, None)]),
        ];
        let found: Vec<_> = merge(lists, false).iter().map(|it| (it.pid, it.kind, it.memory_bytes)).collect();
        assert_eq!(found, [(17, GpuProcessKind::Compute, Some(9)), (301, GpuProcessKind::Mps, Some(4000))]);
    }

    #[test]
    fn instances_keep_a_process_apart_and_mean_nothing_without_mig() {
        let lists = || {
            [
                (GpuProcessKind::Mps, vec![]),
                (GpuProcessKind::Compute, vec![listed(11, 1, Some(3)), listed(11, 1, Some(5))]),
                (GpuProcessKind::Graphics, vec![]),
            ]
        };
        let instances = |mig| merge(lists(), mig).iter().map(|it| it.instance).collect::<Vec<_>>();
        assert_eq!(instances(true), [Some(3), Some(5)]);
        assert_eq!(instances(false), [None]);
    }

    #[test]
    fn the_mps_server_is_told_by_its_name_fc_056() {
        let procfs = tempfile::tempdir().unwrap();
        fs::create_dir_all(procfs.path().join("self/ns")).unwrap();
        let namespace = |inode: &str| {
            let link = procfs.path().join("self/ns/pid");
            _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(format!("pid:[{inode}]"), link).unwrap();
        };
        namespace("4026531836");
        for (pid, comm) in [("17", "nvidia-cuda-mps\n"), ("18", "python\n")] {
            fs::create_dir(procfs.path().join(pid)).unwrap();
            fs::write(procfs.path().join(pid).join("comm"), comm).unwrap();
        }
        let mut processes = GpuProcesses::new(procfs.path().to_owned());
        let process =
            |pid| GpuProcess { pid, work: 0, memory_bytes: None, kind: GpuProcessKind::Compute, instance: None };
        let mut found = [process(17), process(18), process(19)];
        processes.mark_servers(&mut found);
        use GpuProcessKind::{Compute, MpsServer};
        assert_eq!(found.map(|process| process.kind), [MpsServer, Compute, Compute]);
        // In a namespace of its own 17 is another process.
        namespace("4026532900");
        let mut found = [process(17)];
        GpuProcesses::new(procfs.path().to_owned()).mark_servers(&mut found);
        assert_eq!(found.map(|process| process.kind), [Compute]);
    }
}
