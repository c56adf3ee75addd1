//! The knobs that are files: CPU clocks (`cpufreq`), CPU quotas (cgroups) and power limits (`powercap`), found, read and
//! written. Looking writes nothing; the values to write are the caller's.

mod attribute;
mod cpufreq;
mod exclusive;
mod hierarchy;
mod powercap;
mod quota;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Found, Knob, KnobError, KnobValue};
use tracing::{info, warn};

use self::cpufreq::Cpufreq;
use self::exclusive::Cpusets;
pub use self::hierarchy::Hierarchy;
use self::powercap::PowerLimits;
use self::quota::Quotas;

/// Every file knob of the node.
#[derive(Debug)]
pub struct FileKnobs {
    cpufreq: Cpufreq,
    quotas: Quotas,
    power_limits: PowerLimits,
    cpusets: Cpusets,
    /// Knobs that did not change when they were set, with what they showed instead. As long as they show that, they are
    /// not effective.
    kept: BTreeMap<Knob, (u64, String)>,
    /// Knobs that may be written, with their epochs; what changes later shows when one is written.
    writable: BTreeMap<Knob, u64>,
    /// Knobs that cannot be used, as the log has it.
    reported: BTreeMap<Knob, KnobState>,
}

impl FileKnobs {
    /// Looks for them below the roots of sysfs and of the cgroup hierarchies; writes nothing.
    #[must_use]
    pub fn open(sysfs: &Path, cgroupfs: &Path) -> Self {
        Self {
            cpufreq: Cpufreq::open(sysfs),
            quotas: Quotas::open(sysfs, cgroupfs),
            power_limits: PowerLimits::open(sysfs),
            cpusets: Cpusets::open(cgroupfs),
            kept: BTreeMap::new(),
            writable: BTreeMap::new(),
            reported: BTreeMap::new(),
        }
    }

    /// The clocks and power limits there are, read anew; those that cannot be used have a state that says so. Empty where
    /// the node has neither. Clocks of CPUs that are offline are not there. Costs some 20 microseconds for each knob: for
    /// a node on which a policy is active.
    pub fn list(&mut self) -> BTreeMap<Knob, Found> {
        self.quotas.refresh();
        self.power_limits.refresh();
        let clocks = self.cpufreq.policies().into_iter().map(Knob::CpuFrequency);
        let limits = self.power_limits.names().map(|name| Knob::RaplLimit(Arc::clone(name)));
        let knobs: Vec<Knob> = clocks.chain(limits).collect();
        let listed: BTreeMap<Knob, Found> = knobs
            .into_iter()
            .filter_map(|knob| {
                let found = self.look_and_report(&knob)?;
                Some((knob, found))
            })
            .collect();
        self.forget_gone();
        listed
    }

    /// The quota of a pod, by the path of its own cgroup below the root of the hierarchy. `None` where the `cpu`
    /// controller is in no hierarchy, or the cgroup has none or has gone.
    pub fn pod_quota(&mut self, cgroup: &str) -> Option<(Knob, Found)> {
        self.quotas.hierarchy()?;
        let knob = Knob::CpuQuota(cgroup.trim_matches('/').into());
        let found = self.look_and_report(&knob)?;
        Some((knob, found))
    }

    /// The hierarchy that quotas are written in; `None` where the `cpu` controller is in none.
    #[must_use]
    pub const fn quota_hierarchy(&self) -> Option<&Hierarchy> {
        self.quotas.hierarchy()
    }

    /// A knob as it is now.
    ///
    /// # Errors
    /// When it is not a file knob, has gone, or cannot be read; with the file and the remedy.
    pub fn read(&mut self, knob: &Knob) -> Result<Found, KnobError> {
        self.look(knob).map(|(found, _)| found)
    }

    /// Sets or restores a knob and reads it back. A value out of its range is brought into it: what was written is in the
    /// result. The state of the result is [`KnobState::NotEffective`] if the kernel took the value and the knob does not
    /// show it; then, and as long as it shows what it did, so do [`Self::read`] and [`Self::list`].
    ///
    /// # Errors
    /// As [`Self::read`]; also when it may not be written, the kernel refuses the value, or the text to restore is none of
    /// this knob's. Then it is as it was, unless the detail says otherwise.
    pub fn write(&mut self, knob: &Knob, value: &KnobValue) -> Result<Found, KnobError> {
        let written = match knob {
            Knob::CpuFrequency(policy) => self.cpufreq.write(*policy, value),
            Knob::CpuQuota(cgroup) => self.quotas.write(cgroup, value),
            Knob::RaplLimit(zone) => self.power_limits.write(zone, value),
            Knob::GpuClock(_) | Knob::GpuPower(_) => Err(no_file(knob)),
        };
        self.kept.remove(knob);
        if written.is_err() {
            self.writable.remove(knob);
        }
        if let (KnobValue::Set(_), Ok(Found { state: KnobState::NotEffective, epoch, raw, .. })) = (value, &written) {
            self.kept.insert(knob.clone(), (*epoch, raw.clone()));
        }
        written
    }

    /// Drops what is remembered of a knob: of a quota, when its pod is no longer asked for.
    pub fn forget(&mut self, knob: &Knob) {
        self.kept.remove(knob);
        self.writable.remove(knob);
        self.reported.remove(knob);
    }

    /// The CPUs that a `cpufreq` policy sets the clock of, as far as they are online.
    #[must_use]
    pub fn cpus_of_policy(&self, policy: u32) -> Vec<u32> {
        self.cpufreq.cpus(policy)
    }

    /// The clocks that are one pod's alone, given the cgroup paths of all living pods of the node; pods without one are
    /// not in it. Reads the cpusets of all containers: for when pods came or went, not for each tick.
    #[must_use]
    pub fn exclusive_frequencies<'a>(&self, pods: impl IntoIterator<Item = &'a str>) -> BTreeMap<Arc<str>, Vec<Knob>> {
        let policies = self.cpufreq.policies().into_iter();
        let policies: BTreeMap<u32, Vec<u32>> = policies.map(|policy| (policy, self.cpufreq.cpus(policy))).collect();
        if policies.is_empty() {
            return BTreeMap::new();
        }
        let pods = pods.into_iter().map(|pod| (Arc::from(pod), self.cpusets.of_pod(pod))).collect();
        exclusive::exclusive(&policies, &pods)
    }

    /// A knob as it is now, and why it cannot be used, if it cannot.
    fn look(&mut self, knob: &Knob) -> Result<(Found, Option<KnobError>), KnobError> {
        let mut found = match knob {
            Knob::CpuFrequency(policy) => self.cpufreq.read(*policy)?,
            Knob::CpuQuota(cgroup) => self.quotas.read(cgroup)?,
            Knob::RaplLimit(zone) => self.power_limits.read(zone)?,
            Knob::GpuClock(_) | Knob::GpuPower(_) => return Err(no_file(knob)),
        };
        let kept = self.kept.get(knob).is_some_and(|(epoch, raw)| (*epoch, raw) == (found.epoch, &found.raw));
        let refused = match self.writable.get(knob) {
            Some(epoch) if *epoch == found.epoch => None,
            _ => self.writable(knob).err(),
        };
        let trouble = if refused.is_some() {
            refused
        } else if kept {
            let what = "a write succeeded, but the value is still";
            let file = self.file(knob)?;
            let detail =
                format!("{}: {what} {}; the firmware or another program has locked it", file.display(), found.raw);
            Some(KnobError { state: KnobState::NotEffective, detail })
        } else if found.state == KnobState::Ok {
            None
        } else {
            let file = self.file(knob)?;
            let detail = format!("{}: no range between its minimum and its maximum", file.display());
            Some(KnobError { state: found.state, detail })
        };
        if let Some(KnobError { state, .. }) = &trouble {
            found.state = *state;
        }
        Ok((found, trouble))
    }

    /// Whether it may be written.
    fn writable(&self, knob: &Knob) -> Result<(), KnobError> {
        match knob {
            Knob::CpuFrequency(policy) => self.cpufreq.writable(*policy),
            Knob::RaplLimit(zone) => self.power_limits.writable(zone),
            // The kernel itself answers, at once.
            Knob::CpuQuota(_) => attribute::writable(&self.file(knob)?),
            Knob::GpuClock(_) | Knob::GpuPower(_) => Err(no_file(knob)),
        }
    }

    /// The file that is written.
    fn file(&self, knob: &Knob) -> Result<PathBuf, KnobError> {
        match knob {
            Knob::CpuFrequency(policy) => Ok(self.cpufreq.file(*policy)),
            Knob::CpuQuota(cgroup) => self.quotas.file(cgroup),
            Knob::RaplLimit(zone) => self.power_limits.file(zone),
            Knob::GpuClock(_) | Knob::GpuPower(_) => Err(no_file(knob)),
        }
    }

    /// Drops what is remembered of knobs that have gone, as far as they are listed.
    fn forget_gone(&mut self) {
        let remembered = self.kept.keys().chain(self.writable.keys()).chain(self.reported.keys());
        let listed = remembered.filter(|knob| !matches!(knob, Knob::CpuQuota(_)));
        let gone: Vec<Knob> = listed.filter(|knob| !self.file(knob).is_ok_and(|file| file.exists())).cloned().collect();
        gone.iter().for_each(|knob| self.forget(knob));
    }

    /// A knob as it is now; `None` for one that is not there. Logs when it becomes usable or stops being so.
    fn look_and_report(&mut self, knob: &Knob) -> Option<Found> {
        let looked = self.look(knob);
        match &looked {
            Err(KnobError { state: KnobState::Unreachable, .. }) => return None,
            Ok((found, None)) => {
                self.writable.insert(knob.clone(), found.epoch);
                if self.reported.remove(knob).is_some() {
                    info!(%knob, "usable again");
                }
            }
            Ok((_, Some(error))) | Err(error) => {
                if self.reported.insert(knob.clone(), error.state) != Some(error.state) {
                    warn!(%knob, reason = error.state.as_str(), error = error.detail, "cannot be used for capping");
                }
            }
        }
        Some(looked.map_or_else(|error| unreadable(&error), |(found, _)| found))
    }
}

/// Stands for a knob that is there and cannot be read.
fn unreadable(error: &KnobError) -> Found {
    Found { min: 0, max: 0, step: 1, value: None, raw: String::new(), state: error.state, epoch: 0 }
}

fn no_file(knob: &Knob) -> KnobError {
    KnobError { state: KnobState::Unsupported, detail: format!("{knob}: is not a file") }
}

/// The number in a text to be restored.
fn number(raw: &str) -> Result<u64, KnobError> {
    // `parse` alone would take a sign.
    let digits = raw.bytes().all(|byte| byte.is_ascii_digit());
    raw.parse().ok().filter(|_| digits).ok_or_else(|| KnobError {
        state: KnobState::Rejected,
        detail: format!("restoring {raw:?}: is not a whole number"),
    })
}
