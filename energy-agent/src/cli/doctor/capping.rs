//! The rows about capping: the knobs, and who may turn them. With `--capping=off` none of them is missed.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use energy_host::capping::files::{FileKnobs, Hierarchy};
use energy_host::capping::lock::{self, LockState, NotLocked};
use energy_host::meter::powercap;
use energy_model::advice::Advice;
use energy_model::zone::ZoneKind;

use super::{CheckRow, CheckStatus, plural};
use crate::config::{Capping, Config};

pub fn rows(config: &Config) -> Vec<CheckRow> {
    let is_off = config.capping == Capping::Off;
    let knobs = [cpufreq(&config.host.sysfs), cpu_quota(config), power_limits(&config.host.sysfs)];
    let knobs = knobs.into_iter().map(|row| row.unless_off(is_off));
    knobs.chain([capping_lock(config)]).collect()
}

fn cpufreq(sysfs: &Path) -> CheckRow {
    let name = "cpufreq";
    let policies = cpufreq_policies(sysfs);
    let mut drivers: Vec<String> =
        policies.iter().filter_map(|policy| fs::read_to_string(policy.join("scaling_driver")).ok()).collect();
    drivers.iter_mut().for_each(|driver| *driver = driver.trim().to_owned());
    drivers.sort();
    drivers.dedup();
    let driver =
        if drivers.is_empty() { "driver not named".to_owned() } else { format!("driver {}", drivers.join(", ")) };
    let files: Vec<PathBuf> = policies.iter().map(|policy| policy.join("scaling_max_freq")).collect();
    if files.iter().any(|file| file.exists()) {
        let policies = plural(policies.len(), if policies.len() == 1 { "policy" } else { "policie" });
        return knobs(name, &format!("{driver}, {policies}, scaling_max_freq"), &files, SYSFS_WRITABLE);
    }
    let folder = sysfs.join("devices/system/cpu/cpufreq");
    let detail = format!("no scaling_max_freq below {}: no capping by CPU clock", folder.display());
    CheckRow::new(
        name,
        CheckStatus::Missing,
        detail,
        "load a cpufreq driver such as intel_pstate or acpi-cpufreq; most virtual machines have none",
    )
}

/// The policy folders, or where there are none those of single CPUs.
fn cpufreq_policies(sysfs: &Path) -> Vec<PathBuf> {
    let cpu = sysfs.join("devices/system/cpu");
    let numbered = |path: &Path, word: &str| {
        let number = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix(word));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let policies: Vec<PathBuf> =
        list(&cpu.join("cpufreq")).into_iter().filter(|path| numbered(path, "policy")).collect();
    if !policies.is_empty() {
        return policies;
    }
    let cpus = list(&cpu).into_iter().filter(|path| numbered(path, "cpu"));
    cpus.map(|path| path.join("cpufreq")).filter(|path| path.is_dir()).collect()
}

/// The quota files of the top cgroups stand for those of the pods below them.
fn cpu_quota(config: &Config) -> CheckRow {
    let name = "cpu_quota";
    let file_knobs = FileKnobs::open(&config.host.sysfs, &config.host.cgroupfs);
    let (root, file, is_v1) = match file_knobs.quota_hierarchy() {
        Some(Hierarchy::V2(root)) => (root, "cpu.max", false),
        Some(Hierarchy::V1(root)) => (root, "cpu.cfs_quota_us", true),
        None => {
            let detail = format!("no cpu controller below {}: no capping by CPU quota", config.host.cgroupfs.display());
            let remedy = "mount the host's cgroup hierarchy and name it with --path.cgroupfs; the kernel needs CONFIG_CFS_BANDWIDTH";
            return CheckRow::new(name, CheckStatus::Missing, detail, remedy);
        }
    };
    let folders = [vec![root.clone()], list(root)].concat().into_iter();
    let files: Vec<PathBuf> = folders.map(|folder| folder.join(file)).filter(|file| file.exists()).collect();
    if files.is_empty() {
        let detail = format!("no cgroup below {} has {file}: no capping by CPU quota", root.display());
        let remedy = "none on a node with a kubelet, which adds it with its pods; elsewhere, write +cpu to cgroup.subtree_control";
        return CheckRow::new(name, CheckStatus::Missing, detail, remedy);
    }
    let row = knobs(name, &format!("{file} below {}", root.display()), &files, CGROUPFS_WRITABLE);
    if is_v1 && row.status == CheckStatus::Ok {
        let detail =
            format!("{}, in cgroup v1: a pod's quota cannot be below the limit of one of its containers", row.detail);
        return CheckRow::new(name, CheckStatus::Fallback, detail, "boot with systemd.unified_cgroup_hierarchy=1");
    }
    row
}

fn power_limits(sysfs: &Path) -> CheckRow {
    let name = "powercap";
    let scan = powercap::scan(sysfs);
    let packages: Vec<_> = scan.entries.iter().filter(|entry| entry.kind == ZoneKind::Package).collect();
    let limits: Vec<PathBuf> = packages
        .iter()
        .flat_map(|entry| list(&entry.dir))
        .filter(|file| {
            let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
            name.starts_with("constraint_") && name.ends_with("_power_limit_uw")
        })
        .collect();
    if limits.is_empty() {
        let detail = match packages.len() {
            0 => "no RAPL package: no capping of the node by power limit".to_owned(),
            count => format!("{} without limit files: no capping of the node by power limit", plural(count, "package")),
        };
        let remedy =
            if packages.is_empty() { "see rapl" } else { "none: this processor has no such limits (as those of AMD)" };
        return CheckRow::new(name, CheckStatus::Missing, detail, remedy);
    }
    let what = format!("{} on {}", plural(limits.len(), "power limit"), plural(packages.len(), "package"));
    knobs(name, &what, &limits, SYSFS_WRITABLE)
}

/// What to do about a file system that is mounted read-only.
const SYSFS_WRITABLE: &str =
    "for capping, mount the host's /sys read-write into the container and name it with --path.sysfs";
const CGROUPFS_WRITABLE: &str =
    "for capping, mount the host's /sys/fs/cgroup read-write into the container and name it with --path.cgroupfs";

/// Files that capping writes to; they are opened for writing and left as they are.
fn knobs(name: &'static str, what: &str, files: &[PathBuf], writable: &str) -> CheckRow {
    let refusal = files.iter().find_map(|file| Some((file, OpenOptions::new().write(true).open(file).err()?)));
    let Some((file, error)) = refusal else { return CheckRow::ok(name, format!("{what} writable")) };
    let detail = format!("{what} not writable: {}: {error}; metering works without it", file.display());
    let remedy = match error.kind() {
        ErrorKind::PermissionDenied => "for capping, run as root",
        ErrorKind::ReadOnlyFilesystem => writable,
        _ => "",
    };
    CheckRow::new(name, CheckStatus::Missing, detail, remedy)
}

/// Who caps on this node.
fn capping_lock(config: &Config) -> CheckRow {
    let name = "capping_lock";
    let path = lock::path(&config.host.run_directory);
    let path = path.display();
    let unusable = match lock::look(&config.host.run_directory) {
        Ok(LockState::Held(None)) => {
            return CheckRow::ok(name, format!("an unknown agent caps and holds {path}"));
        }
        Ok(LockState::Held(Some(holder))) => {
            let state = holder.state_directory.display();
            let detail = format!("{holder} caps and holds {path}, with --state.directory {state}");
            if config.capping == Capping::Off || holder.state_directory == config.host.state_directory {
                return CheckRow::ok(name, detail);
            }
            let detail = format!("{detail}; an agent with {} only meters", config.host.state_directory.display());
            let remedy = "one is enough: stop one of them, or start it with --capping=off";
            return CheckRow::new(name, CheckStatus::Fallback, detail, remedy);
        }
        Ok(LockState::Free) => None,
        Err(NotLocked::Held(why) | NotLocked::Unshared(why)) => Some(why),
        Err(NotLocked::Unusable(error)) => {
            Some(Advice::new(format!("{error:#}"), "set --run.directory to a folder that only root can open"))
        }
    };
    match (config.capping, unusable) {
        (Capping::Off, None) => {
            CheckRow::new(name, CheckStatus::Off, format!("--capping=off, and no agent holds {path}"), "")
        }
        (Capping::Off, Some(why)) => CheckRow::new(
            name,
            CheckStatus::Off,
            format!("--capping=off; whether another agent caps is not known: {}", why.what),
            "",
        ),
        (Capping::On, None) => CheckRow::ok(name, format!("no agent holds {path}")),
        (Capping::On, Some(why)) => CheckRow::missing(name, why),
    }
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path()).collect();
    paths.sort();
    paths
}
