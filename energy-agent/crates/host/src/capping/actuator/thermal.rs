//! Whether the kernel itself holds a CPU's clock down. `scaling_max_freq` shows the least that all parties allow (frequency
//! QoS): beside the administrator and this agent, the firmware and thermal governors. A value of theirs comes and goes, and
//! what was written waits beneath it.

use std::fs;
use std::path::Path;

use crate::errand;

/// Types of cooling devices that act on CPU clocks: `thermal/cpufreq_cooling.c`, `drivers/acpi/processor_thermal.c`.
const COOLERS: [&str; 2] = ["cpufreq-", "processor"];

/// Whether a cooling device is at work, or the firmware allows no more than `khz`.
#[must_use]
pub(crate) fn holds_down(sysfs: &Path, policy: u32, khz: u64) -> bool {
    let tree = sysfs.to_owned();
    // Whose driver hangs says nothing.
    errand::run(&sysfs.join("class/thermal"), move || look(&tree, policy, khz)).unwrap_or(false)
}

fn look(sysfs: &Path, policy: u32, khz: u64) -> bool {
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let bios = sysfs.join(format!("devices/system/cpu/cpufreq/policy{policy}/bios_limit"));
    if number(&bios).is_some_and(|limit| limit <= khz) {
        return true;
    }
    let devices = fs::read_dir(sysfs.join("class/thermal")).into_iter().flatten().flatten();
    devices.map(|device| device.path()).any(|device| {
        let kind = fs::read_to_string(device.join("type")).unwrap_or_default().to_lowercase();
        COOLERS.iter().any(|cooler| kind.starts_with(cooler))
            && number(&device.join("cur_state")).is_some_and(|state| state > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cooling_cpu_and_a_limit_of_the_firmware_hold_clocks_down() {
        let sysfs = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = sysfs.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(!holds_down(sysfs.path(), 0, 1_000_000));
        write("class/thermal/thermal_zone0/type", "acpitz\n");
        write("class/thermal/cooling_device0/type", "Fan\n");
        write("class/thermal/cooling_device0/cur_state", "1\n");
        write("class/thermal/cooling_device1/type", "Processor\n");
        write("class/thermal/cooling_device1/cur_state", "0\n");
        assert!(!holds_down(sysfs.path(), 0, 1_000_000));
        write("class/thermal/cooling_device1/cur_state", "2\n");
        assert!(holds_down(sysfs.path(), 0, 1_000_000));
        write("class/thermal/cooling_device1/cur_state", "0\n");
        write("devices/system/cpu/cpufreq/policy0/bios_limit", "1000000\n");
        assert!(holds_down(sysfs.path(), 0, 1_000_000));
        assert!(!holds_down(sysfs.path(), 0, 900_000), "somebody else is lower still");
        assert!(!holds_down(sysfs.path(), 1, 1_000_000));
    }
}
