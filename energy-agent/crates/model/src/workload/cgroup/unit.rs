//! The name of what works outside pods and containers: the chain of the units around a cgroup, outermost first.
//!
//! Slices only sort: systemd gives a name once, whatever slice it is in. So they are left out, unless there is nothing else.
//! Machines of LXC and jobs and steps of Slurm count as units. Other folders below a unit are its own. What begins with a
//! folder that no systemd made begins with a `/` and that folder's path; where there is no unit at all, it is the path.
//!
//! No two workloads have one name: a unit's name is given once below the unit around it, and who may make cgroups below
//! a unit has that unit's name before every name that it can give.

/// Unit types that have a cgroup, without slices.
const TYPES: [&str; 5] = [".service", ".scope", ".mount", ".socket", ".swap"];

/// What LXC and Incus call the cgroup of a container and of the process that watches it, before the container's name.
const LXC: [&str; 2] = ["lxc.payload.", "lxc.monitor."];

/// Folders at the top in which LXC before 4.0, and Proxmox still, make a folder for each container.
const LXC_ROOTS: [&str; 3] = ["lxc", "lxc.payload", "lxc.monitor"];

/// The name of the cgroup with these folders.
pub(super) fn name(folders: &[&str]) -> String {
    let units: Vec<usize> = (0..folders.len()).filter(|&at| is_unit(folders, at)).collect();
    let Some(&first) = units.first() else {
        let slice = folders.last().filter(|_| folders.iter().all(|folder| is_slice(folder)));
        return slice.map_or_else(|| format!("/{}", folders.join("/")), |slice| (*slice).to_owned());
    };
    let mut parts: Vec<&str> = folders[..first].iter().copied().filter(|folder| !is_slice(folder)).collect();
    let is_the_nodes = parts.is_empty() && has_type(folders[first]);
    parts.extend(units.iter().map(|&at| folders[at]));
    format!("{}{}", if is_the_nodes { "" } else { "/" }, parts.join("/"))
}

pub(super) fn is_unit(folders: &[&str], at: usize) -> bool {
    let is_machine = LXC.iter().any(|prefix| folders[at].strip_prefix(prefix).is_some_and(|name| !name.is_empty()))
        || (at == 1 && LXC_ROOTS.contains(&folders[0]));
    has_type(folders[at]) || is_machine || is_job(folders, at) || is_step(folders, at)
}

fn is_job(folders: &[&str], at: usize) -> bool {
    at > 0 && folders[at].starts_with("job_") && folders[at - 1].ends_with("slurmstepd.scope")
}

fn is_step(folders: &[&str], at: usize) -> bool {
    at > 0 && folders[at].starts_with("step_") && is_job(folders, at - 1)
}

fn has_type(folder: &str) -> bool {
    TYPES.iter().any(|suffix| folder.ends_with(suffix))
}

fn is_slice(folder: &str) -> bool {
    folder.ends_with(".slice")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> String {
        name(&path.split('/').filter(|folder| !folder.is_empty()).collect::<Vec<_>>())
    }

    /// Each form that the documentation lists.
    #[test]
    fn a_unit_is_called_by_the_chain_of_units_around_it() {
        for (path, unit) in [
            // The node's own.
            ("/", "/"),
            ("/init.scope", "init.scope"),
            ("/system.slice/sshd.service", "sshd.service"),
            ("/system.slice/sshd.service/worker/7", "sshd.service"),
            ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service"),
            ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
            ("/user.slice/user-1000.slice", "user-1000.slice"),
            (r"/system.slice/dev-disk\x2dby.swap", r"dev-disk\x2dby.swap"),
            // Users' managers.
            ("/user.slice/user-1000.slice/user@1000.service", "user@1000.service"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice", "user@1000.service"),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", "user@1000.service/init.scope"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/sshd.service", "user@1000.service/sshd.service"),
            ("/user.slice/user-1001.slice/user@1001.service/app.slice/sshd.service", "user@1001.service/sshd.service"),
            // Machines of systemd-nspawn, and users in them.
            ("/machine.slice/systemd-nspawn@web.service/supervisor", "systemd-nspawn@web.service"),
            (
                "/machine.slice/systemd-nspawn@web.service/payload/system.slice/nginx.service",
                "systemd-nspawn@web.service/nginx.service",
            ),
            ("/machine.slice/machine-web.scope/payload/init.scope", "machine-web.scope/init.scope"),
            (
                "/machine.slice/systemd-nspawn@web.service/payload/user.slice/user-0.slice/user@0.service/app.slice/nginx.service",
                "systemd-nspawn@web.service/user@0.service/nginx.service",
            ),
            // Virtual machines of libvirt and Proxmox.
            (r"/machine.slice/machine-qemu\x2d1\x2ddb.scope/libvirt/vcpu0", r"machine-qemu\x2d1\x2ddb.scope"),
            (r"/machine.slice/machine-qemu\x2d1\x2ddb.scope/libvirt/emulator", r"machine-qemu\x2d1\x2ddb.scope"),
            ("/qemu.slice/100.scope", "100.scope"),
            // LXC, Incus, Proxmox.
            ("/lxc.payload.c1", "/lxc.payload.c1"),
            ("/lxc.payload.c1/openrc.sshd", "/lxc.payload.c1"),
            ("/lxc.payload.c1/init.scope", "/lxc.payload.c1/init.scope"),
            ("/lxc.payload.c1/system.slice/sshd.service", "/lxc.payload.c1/sshd.service"),
            ("/lxc.payload.c2/system.slice/sshd.service", "/lxc.payload.c2/sshd.service"),
            ("/lxc.monitor.c1", "/lxc.monitor.c1"),
            ("/lxc.payload.c1/lxc.payload.in/system.slice/sshd.service", "/lxc.payload.c1/lxc.payload.in/sshd.service"),
            ("/lxc.payload/c1/system.slice/sshd.service", "/lxc.payload/c1/sshd.service"),
            ("/lxc/101/ns/system.slice/sshd.service", "/lxc/101/sshd.service"),
            ("/lxc/101/ns/a/b", "/lxc/101"),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/run-r5.scope/lxc.payload.c1/system.slice/sshd.service",
                "user@1000.service/run-r5.scope/lxc.payload.c1/sshd.service",
            ),
            // Slurm, also with several daemons on a node.
            ("/system.slice/slurmstepd.scope/system", "slurmstepd.scope"),
            ("/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", "slurmstepd.scope/job_123/step_0"),
            ("/system.slice/slurmstepd.scope/job_123/step_batch/slurm", "slurmstepd.scope/job_123/step_batch"),
            ("/system.slice/slurmstepd.scope/job_124/step_0", "slurmstepd.scope/job_124/step_0"),
            ("/system.slice/n1_slurmstepd.scope/job_7/step_0", "n1_slurmstepd.scope/job_7/step_0"),
            ("/system.slice/own.service/job_7/step_0", "own.service"),
            // What a service makes below itself.
            ("/system.slice/own.service/a/sshd.service/b", "own.service/sshd.service"),
            // Folders that systemd did not make.
            ("/batch/job1", "/batch/job1"),
            ("/a.slice/batch/job1", "/a.slice/batch/job1"),
            ("/default/one/system.slice/sshd.service", "/default/one/sshd.service"),
            ("/default/two/system.slice/sshd.service", "/default/two/sshd.service"),
        ] {
            assert_eq!(of(path), unit, "{path}");
        }
    }
}
