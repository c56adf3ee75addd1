//! CPU quotas: the pod's own cgroup in the hierarchy that has the `cpu` controller, which bounds all its containers
//! together.
//!
//! Sources: `cpu.max`, <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files>; on hosts whose `cpu`
//! controller is still in cgroup v1, `cpu.cfs_quota_us`, <https://docs.kernel.org/scheduler/sched-bwc.html>, in the folder
//! of the same path.
//!
//! In v2 a pod may be given less than its containers have: the least on the way up holds. In v1 the kernel refuses that
//! (EINVAL), and would refuse to start a container again whose own quota is above its pod's. There a pod's quota is never
//! set below the largest quota seen in it, so that pods whose containers have limits can be capped little or not at all.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Found, KnobError, KnobValue};

use super::attribute;
use super::hierarchy::Hierarchy;
use crate::errand;
use crate::meter::cpu::parse_list;
use crate::workload::tree;

/// A hundredth of a CPU.
const STEP: u64 = 10;

/// The kernel takes no quota below a millisecond, whatever the period.
const LEAST_QUOTA_US: u64 = 1000;

/// Quotas of pods.
#[derive(Debug)]
pub struct Quotas {
    hierarchy: Option<Hierarchy>,
    online: PathBuf,
    /// Thousandths of the CPUs that are online.
    max: u64,
    /// v1: the largest quota seen inside a pod, with the inode of its cgroup: a container that is being restarted has no
    /// cgroup for a while. Pods in which none was seen are not in it.
    inside: BTreeMap<Arc<str>, (u64, u64)>,
}

/// What bounds a pod's quota from below, besides its period.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    burst_us: u64,
    /// v1: the largest quota inside the pod; thousandths of a CPU.
    inside: u64,
    /// Inode of the pod's cgroup.
    epoch: u64,
}

/// A quota as the kernel has it, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quota {
    /// `None`: no limit.
    quota_us: Option<u64>,
    period_us: u64,
}

impl Quotas {
    /// Finds the hierarchy; the controller may be in none of them.
    #[must_use]
    pub fn open(sysfs: &Path, cgroupfs: &Path) -> Self {
        let hierarchy = Hierarchy::of("cpu", "cpu.cfs_period_us", cgroupfs);
        let mut quotas =
            Self { hierarchy, online: sysfs.join("devices/system/cpu/online"), max: 0, inside: BTreeMap::new() };
        quotas.refresh();
        quotas
    }

    #[must_use]
    pub const fn hierarchy(&self) -> Option<&Hierarchy> {
        self.hierarchy.as_ref()
    }

    /// Follows CPU hotplug and forgets pods that have gone.
    pub fn refresh(&mut self) {
        let file = self.online.clone();
        let online = errand::run(&self.online, move || fs::read_to_string(file)).and_then(|text| text).ok();
        let online = online.and_then(|text| parse_list(&text).ok());
        let count = online.map_or(0, |cpus| cpus.len());
        let count = if count > 0 { count } else { thread::available_parallelism().map_or(1, usize::from) };
        self.max = u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(1000);
        if let Some(Hierarchy::V1(root)) = &self.hierarchy {
            self.inside.retain(|cgroup, (epoch, _)| attribute::inode(&root.join(&**cgroup)) == *epoch);
        }
    }

    /// The file that is written.
    ///
    /// # Errors
    /// When there is no hierarchy with the controller, or the path leads out of it or to its root, which has no quota.
    pub fn file(&self, cgroup: &str) -> Result<PathBuf, KnobError> {
        let inside = cgroup.split('/').all(|part| !matches!(part, "" | "." | ".."));
        match &self.hierarchy {
            _ if !inside => Err(KnobError {
                state: KnobState::Rejected,
                detail: format!("cgroup {cgroup:?}: not a path below the root of the hierarchy"),
            }),
            Some(Hierarchy::V2(root)) => Ok(root.join(cgroup).join("cpu.max")),
            Some(Hierarchy::V1(root)) => Ok(root.join(cgroup).join("cpu.cfs_quota_us")),
            None => Err(KnobError {
                state: KnobState::Unsupported,
                detail: format!("cgroup {cgroup}: no hierarchy below --path.cgroupfs has the cpu controller"),
            }),
        }
    }

    /// The range goes from the kernel's least quota (1 ms in a period, and not less than its burst) to all CPUs online;
    /// in v1, from the largest quota inside the pod.
    ///
    /// # Errors
    /// When the cgroup has gone (unreachable) or cannot be read.
    pub fn read(&mut self, cgroup: &str) -> Result<Found, KnobError> {
        let file = self.file(cgroup)?;
        let quota = self.quota(&file)?;
        let bounds = self.bounds(cgroup, &file);
        Ok(self.found(quota, bounds))
    }

    /// Sets a quota, brought into the range, in the period that is set, or restores quota and period.
    ///
    /// # Errors
    /// As [`Self::read`]; also when the kernel refuses it or what is to be restored is no quota.
    pub fn write(&mut self, cgroup: &str, value: &KnobValue) -> Result<Found, KnobError> {
        let file = self.file(cgroup)?;
        let now = self.quota(&file)?;
        let bounds = self.bounds(cgroup, &file);
        let wanted = match value {
            KnobValue::Set(millicpus) => {
                let range = self.found(now, bounds);
                now.with((*millicpus).min(range.max).max(range.min))
            }
            KnobValue::Restore(raw) => Quota::parse(raw).ok_or_else(|| KnobError {
                state: KnobState::Rejected,
                detail: format!("restoring {}: {raw:?} is not a quota", file.display()),
            })?,
        };
        if matches!(self.hierarchy, Some(Hierarchy::V2(_))) {
            attribute::write(&file, &wanted.to_string())?;
        } else {
            if wanted.period_us != now.period_us {
                attribute::write(&file.with_file_name("cpu.cfs_period_us"), &wanted.period_us.to_string())?;
            }
            attribute::write(&file, &wanted.quota_us.map_or_else(|| "-1".to_owned(), |us| us.to_string()))?;
        }
        // What a write does not change is not read again.
        let mut found = self.found(self.quota(&file)?, bounds);
        if found.raw != wanted.to_string() {
            found.state = KnobState::NotEffective;
        }
        Ok(found)
    }

    fn found(&self, quota: Quota, bounds: Bounds) -> Found {
        let least = Quota { quota_us: Some(LEAST_QUOTA_US.max(bounds.burst_us)), ..quota };
        let min = least.millicpus_up().unwrap_or(0).max(bounds.inside);
        Found {
            min: min.next_multiple_of(STEP),
            max: self.max,
            step: STEP,
            value: quota.millicpus(),
            raw: quota.to_string(),
            state: if min > self.max { KnobState::Unsupported } else { KnobState::Ok },
            epoch: bounds.epoch,
        }
    }

    /// Reads what bounds a quota, and takes note of quotas inside the pod.
    fn bounds(&mut self, cgroup: &str, file: &Path) -> Bounds {
        let folder = file.with_file_name("");
        let epoch = attribute::inode(&folder);
        let v1 = matches!(self.hierarchy, Some(Hierarchy::V1(_)));
        let burst = file.with_file_name(if v1 { "cpu.cfs_burst_us" } else { "cpu.max.burst" });
        let burst_us = attribute::known(&burst).unwrap_or(0);
        let mut inside = if v1 { largest_inside(&folder) } else { 0 };
        match self.inside.get_mut(cgroup).filter(|seen| seen.0 == epoch) {
            Some((_, seen)) => {
                inside = inside.max(*seen);
                *seen = inside;
            }
            None if inside > 0 => drop(self.inside.insert(cgroup.into(), (epoch, inside))),
            None => {}
        }
        Bounds { burst_us, inside, epoch }
    }

    fn quota(&self, file: &Path) -> Result<Quota, KnobError> {
        let mut text = attribute::read(file)?;
        if let Some(Hierarchy::V1(_)) = self.hierarchy {
            let period = attribute::read(&file.with_file_name("cpu.cfs_period_us"))?;
            text = format!("{} {period}", if text == "-1" { "max" } else { &text });
        }
        Quota::parse(&text).ok_or_else(|| KnobError {
            state: KnobState::Error,
            detail: format!("reading {}: expected a quota and a period, found {text:?}", file.display()),
        })
    }
}

/// The largest quota of a cgroup below `folder` (v1); thousandths of a CPU, 0 where none has one. The kernel lets none
/// below a cgroup with a quota have a larger one, so that those need not be looked at.
fn largest_inside(folder: &Path) -> u64 {
    let mut largest = 0;
    // What cannot be listed has no quota that is known.
    let _ = tree::list(folder, |_, name| {
        let child = folder.join(name);
        let own = attribute::known(&child.join("cpu.cfs_quota_us")).and_then(|quota_us| {
            let period_us = attribute::known(&child.join("cpu.cfs_period_us"))?;
            Quota { quota_us: Some(quota_us), period_us }.millicpus_up()
        });
        largest = largest.max(own.unwrap_or_else(|| largest_inside(&child)));
    });
    largest
}

impl Quota {
    /// `max 100000` or `150000 100000`.
    fn parse(text: &str) -> Option<Self> {
        let (quota, period) = text.split_once(' ')?;
        let quota_us = if quota == "max" { None } else { Some(quota.parse().ok()?) };
        let period_us = period.parse().ok().filter(|&period| period > 0)?;
        Some(Self { quota_us, period_us })
    }

    fn millicpus(self) -> Option<u64> {
        Some(self.quota_us?.saturating_mul(1000) / self.period_us)
    }

    fn millicpus_up(self) -> Option<u64> {
        Some(self.quota_us?.saturating_mul(1000).div_ceil(self.period_us))
    }

    const fn with(self, millicpus: u64) -> Self {
        Self { quota_us: Some(millicpus.saturating_mul(self.period_us) / 1000), ..self }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quota_us {
            Some(quota_us) => write!(f, "{quota_us} {}", self.period_us),
            None => write!(f, "max {}", self.period_us),
        }
    }
}
