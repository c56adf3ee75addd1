//! Whether the agent sees the process ids of the host. In a namespace of its own it cannot find the processes that eBPF
//! and NVML name (FC-107): the same number is another process there. Cgroups still show who ran on the CPUs, and the
//! kubelet whose a GPU is.

use std::fs;
use std::path::Path;

use energy_model::advice::Advice;
use energy_model::meter_state::{MeterName, MeterState, Reason};

/// The inode of the first PID namespace, `PROC_PID_INIT_INO`.
/// <https://github.com/torvalds/linux/blob/v6.12/include/linux/proc_ns.h>
const HOST: &str = "pid:[4026531836]";
/// `PF_KTHREAD` in the flags of `/proc/PID/stat`.
/// <https://github.com/torvalds/linux/blob/v6.12/include/linux/sched.h>
const KERNEL_THREAD: u64 = 0x0020_0000;

/// What to do about it.
pub const REMEDY: &str =
    "set hostPID: true in the pod (docker run --pid=host), or mount the host's /proc and name it with --path.procfs";

/// Whether the ids in `procfs` are those of the first PID namespace.
#[must_use]
pub(crate) fn is_hosts(procfs: &Path) -> bool {
    // It has a folder `self` only if this process is in its namespace or in one below it. Of the first one's, mounted
    // into a container, the link names the container's; but kthreadd is process 2 there and nowhere else.
    let link = fs::read_link(procfs.join("self/ns/pid"));
    link.is_ok_and(|link| link.as_os_str() == HOST) || is_kernel_thread(procfs, 2)
}

/// Field 9 of `/proc/PID/stat`; the command name before it may hold spaces and parentheses.
fn is_kernel_thread(procfs: &Path, pid: u32) -> bool {
    let stat = fs::read(procfs.join(pid.to_string()).join("stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// What is wrong, for people; `None` where the host's processes are seen.
#[must_use]
pub fn restriction(procfs: &Path) -> Option<String> {
    if is_hosts(procfs) {
        return None;
    }
    let own = match fs::read_link(procfs.join("self/ns/pid")).or_else(|_| fs::read_link("/proc/self/ns/pid")) {
        Ok(link) if link.as_os_str() == HOST => {
            format!("unknown, no such process in {}", procfs.join("self").display())
        }
        Ok(link) => link.display().to_string(),
        Err(error) => format!("unknown, {}: {error}", procfs.join("self/ns/pid").display()),
    };
    let first = fs::read_to_string(procfs.join("1/comm")).unwrap_or_default();
    let first = if first.trim().is_empty() { String::new() } else { format!(", with {} as process 1", first.trim()) };
    Some(format!(
        "not the host's ({own}{first}): processes of pods and GPUs are not looked up. CPU energy is divided by cgroup as \
         usual; a GPU's energy goes to the pod to which the kubelet gave the GPU, else it is unattributed"
    ))
}

/// The row of `energy_agent_meter_up` for an agent that does not see the host's processes.
#[must_use]
pub fn state(procfs: &Path) -> Option<MeterState> {
    let detail = Advice::new(format!("PID namespace {}", restriction(procfs)?), REMEDY);
    Some(MeterState::down(MeterName::HostPid, Reason::Restricted, detail))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_hosts_procfs_is_known_also_from_a_namespace_of_ones_own() {
        let procfs = tempfile::tempdir().unwrap();
        let root = procfs.path();
        assert!(!is_hosts(root), "nothing is known");
        fs::create_dir_all(root.join("self/ns")).unwrap();
        symlink("pid:[4026532900]", root.join("self/ns/pid")).unwrap();
        fs::create_dir(root.join("2")).unwrap();
        // What a container may call its second process, as it is without PF_KTHREAD.
        fs::write(root.join("2/stat"), "2 (kthreadd) S 0 0 0 0 -1 4194560 0 0\n").unwrap();
        assert!(!is_hosts(root));
        // As Linux 6.18 shows it.
        fs::write(root.join("2/stat"), "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0\n").unwrap();
        assert!(is_hosts(root));
        fs::remove_dir_all(root.join("2")).unwrap();
        fs::remove_file(root.join("self/ns/pid")).unwrap();
        symlink(HOST, root.join("self/ns/pid")).unwrap();
        assert!(is_hosts(root));
    }
}
