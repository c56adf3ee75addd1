//! CPU clocks: the upper end of each `cpufreq` policy, written once for all CPUs of the policy.
//!
//! Source: `scaling_max_freq`, <https://docs.kernel.org/admin-guide/pm/cpufreq.html>; all clocks in kHz.

use std::fs;
use std::path::{Path, PathBuf};

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Found, KnobError, KnobValue};

use super::attribute;

/// A driver may show a clock a little beside the one written. One further above it is not effective; one below is: where
/// the driver has a table, the kernel takes the highest entry that is not above.
const ROUNDING_KHZ: u64 = 100;

/// The policies below a sysfs. Each may hang with its driver, by which the others are not held up.
#[derive(Clone, Debug)]
pub struct Cpufreq {
    folder: PathBuf,
}

impl Cpufreq {
    #[must_use]
    pub fn open(sysfs: &Path) -> Self {
        Self { folder: sysfs.join("devices/system/cpu/cpufreq") }
    }

    /// Numbers of the policies that have a clock to write, ascending; none in most virtual machines (FC-088).
    #[must_use]
    pub fn policies(&self) -> Vec<u32> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut policies: Vec<u32> = entries
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("policy")?.parse().ok())
            .filter(|&policy| self.file(policy).exists())
            .collect();
        policies.sort_unstable();
        policies
    }

    /// The CPUs that a policy sets the clock of: those online, or all of them where the kernel does not say which are online. Empty for a policy
    /// that is not there or has none online.
    #[must_use]
    pub fn cpus(&self, policy: u32) -> Vec<u32> {
        let this = self.clone();
        let list = move |name| {
            let text = attribute::read(&this.attribute(policy, name)).ok()?;
            text.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>().ok()
        };
        let read = move || Ok(list("affected_cpus").or_else(|| list("related_cpus")).unwrap_or_default());
        attribute::by_errand(&self.file(policy), read).unwrap_or_default()
    }

    /// The file that is written.
    #[must_use]
    pub fn file(&self, policy: u32) -> PathBuf {
        self.attribute(policy, "scaling_max_freq")
    }

    /// The range goes from the hardware's lowest clock, or `scaling_min_freq` where that is higher (a clock below it is
    /// refused, or takes the minimum along, by kernel version; it is not ours to lower), to the hardware's highest.
    ///
    /// The value is what all parties together allow: while the firmware or a thermal governor holds the clock lower, it
    /// shows theirs, and nothing shows what was asked for.
    ///
    /// # Errors
    /// When the policy has gone, or its CPUs are offline, or a file holds no clock, or the driver hangs.
    pub fn read(&self, policy: u32) -> Result<Found, KnobError> {
        let this = self.clone();
        attribute::by_errand(&self.file(policy), move || this.read_now(policy))
    }

    /// Whether the file may be written.
    ///
    /// # Errors
    /// As [`attribute::writable`], and when the driver hangs.
    pub fn writable(&self, policy: u32) -> Result<(), KnobError> {
        let file = self.file(policy);
        attribute::by_errand(&self.file(policy), move || attribute::writable(&file))
    }

    fn read_now(&self, policy: u32) -> Result<Found, KnobError> {
        let file = self.file(policy);
        let raw = attribute::read(&file)?;
        let value = attribute::number(&raw, &file)?;
        let max = attribute::read_number(&self.attribute(policy, "cpuinfo_max_freq"))?;
        let lowest = attribute::read_number(&self.attribute(policy, "cpuinfo_min_freq"))?;
        let floor = attribute::known(&self.attribute(policy, "scaling_min_freq")).unwrap_or(0);
        Ok(Found {
            min: lowest.max(floor),
            max,
            step: 1,
            value: Some(value),
            raw,
            state: KnobState::Ok,
            epoch: attribute::inode(&self.folder.join(format!("policy{policy}"))),
        })
    }

    /// Writes a clock, brought into the range, and reads it back.
    ///
    /// # Errors
    /// As [`Self::read`]; also when the file may not be written or what is to be restored is no clock.
    pub fn write(&self, policy: u32, value: &KnobValue) -> Result<Found, KnobError> {
        let (this, value) = (self.clone(), value.clone());
        attribute::by_errand(&self.file(policy), move || this.write_now(policy, &value))
    }

    fn write_now(&self, policy: u32, value: &KnobValue) -> Result<Found, KnobError> {
        let before = self.read_now(policy)?;
        let (khz, restoring) = match value {
            KnobValue::Set(khz) => ((*khz).min(before.max).max(before.min), false),
            KnobValue::Restore(raw) => (super::number(raw)?, true),
        };
        attribute::write(&self.file(policy), &khz.to_string())?;
        let mut found = self.read_now(policy)?;
        let shown = found.value.unwrap_or(u64::MAX);
        let too_high = shown > khz.saturating_add(ROUNDING_KHZ);
        let too_low = restoring && shown.saturating_add(ROUNDING_KHZ) < khz.min(found.max);
        if too_high || too_low {
            found.state = KnobState::NotEffective;
        }
        Ok(found)
    }

    fn attribute(&self, policy: u32, name: &str) -> PathBuf {
        self.folder.join(format!("policy{policy}/{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(files: &[(&str, &str)]) -> (tempfile::TempDir, Cpufreq) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("devices/system/cpu/cpufreq/policy0");
        fs::create_dir_all(&folder).unwrap();
        let usual = [
            ("cpuinfo_min_freq", "800000"),
            ("cpuinfo_max_freq", "3000000"),
            ("scaling_min_freq", "800000"),
            ("scaling_max_freq", "3000000"),
        ];
        for (name, text) in usual.iter().chain(files) {
            fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
        let cpufreq = Cpufreq::open(root.path());
        (root, cpufreq)
    }

    #[test]
    fn a_minimum_that_somebody_raised_is_the_least_that_is_written() {
        let (_root, cpufreq) = policy(&[("scaling_min_freq", "1500000")]);
        let found = cpufreq.write(0, &KnobValue::Set(1_000_000)).unwrap();
        assert_eq!((found.min, found.value, found.state), (1_500_000, Some(1_500_000), KnobState::Ok));
        assert_eq!(attribute::read(&cpufreq.attribute(0, "scaling_min_freq")).unwrap(), "1500000");
    }

    #[test]
    fn a_clock_above_the_hardware_is_written_as_its_highest() {
        let (_root, cpufreq) = policy(&[]);
        assert_eq!(cpufreq.write(0, &KnobValue::Set(9_000_000)).unwrap().value, Some(3_000_000));
    }

    #[test]
    fn cpus_online_count_before_those_that_only_belong() {
        let (_root, cpufreq) = policy(&[("related_cpus", "0 1 2 3"), ("affected_cpus", "0 2")]);
        assert_eq!(cpufreq.cpus(0), [0, 2]);
        let (_root, cpufreq) = policy(&[("related_cpus", "0 1")]);
        assert_eq!(cpufreq.cpus(0), [0, 1]);
        assert!(cpufreq.cpus(9).is_empty());
    }

    #[test]
    fn what_is_no_clock_is_not_restored() {
        let (_root, cpufreq) = policy(&[]);
        for raw in ["", "max", "-1", "1 2"] {
            assert_eq!(cpufreq.write(0, &KnobValue::Restore(raw.to_owned())).unwrap_err().state, KnobState::Rejected);
        }
        assert_eq!(attribute::read(&cpufreq.file(0)).unwrap(), "3000000");
    }
}
