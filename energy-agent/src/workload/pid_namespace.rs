//! Whether the agent sees the process ids of the host. In a namespace of its own it cannot tell the processes that eBPF
//! and NVML name (FC-107); cgroups still tell who ran.

use std::fs;
use std::path::Path;

use crate::meter::MeterState;

/// The inode of the first PID namespace, `PROC_PID_INIT_INO`.
/// <https://github.com/torvalds/linux/blob/v6.12/include/linux/proc_ns.h>
const HOST: &str = "pid:[4026531836]";

/// What to do about it.
pub const REMEDY: &str = "set hostPID: true in the pod (docker run --pid=host)";

/// What is wrong, for people; `None` in the namespace of the host.
#[must_use]
pub fn restriction(procfs: &Path) -> Option<String> {
    let link = fs::read_link(procfs.join("self/ns/pid")).or_else(|_| fs::read_link("/proc/self/ns/pid"));
    let own = match link {
        Ok(link) if link.as_os_str() == HOST => return None,
        Ok(link) => link.display().to_string(),
        Err(error) => format!("unknown, {}: {error}", procfs.join("self/ns/pid").display()),
    };
    let first = fs::read_to_string(procfs.join("1/comm")).unwrap_or_default();
    let first = if first.trim().is_empty() { String::new() } else { format!(", whose process 1 is {}", first.trim()) };
    Some(format!(
        "not the host's ({own}{first}): processes of pods and GPUs cannot be looked up; attribution by cgroup goes on"
    ))
}

/// The row of `energy_agent_meter_up` for an agent in a pod that does not see the host's processes.
#[must_use]
pub fn state(procfs: &Path) -> Option<MeterState> {
    let detail = format!("PID namespace {}; {REMEDY}", restriction(procfs)?);
    Some(MeterState { meter: "host_pid", up: false, reason: "restricted", detail })
}
