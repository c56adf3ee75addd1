//! The node of FC-089, which a crash leaves throttled: what its four limits were, what they are capped to, and those of its
//! CPUs as plain files.

use serde_json::Value;

use super::tree::Tree;

/// The GPU with a power limit that is one of the four knobs.
pub const GPU: &str = "GPU-fd585786-3c80-50f9-8a72-731ad8419df6";
pub const CPUFREQ: &str = "sys/devices/system/cpu/cpufreq";
pub const ZONE: &str = "sys/devices/virtual/powercap/intel-rapl/intel-rapl:0";

pub struct Crash(Value);

impl Crash {
    pub fn new() -> Self {
        Self(serde_json::from_str(include_str!("../cases/FC-089-crash-restore.json")).unwrap())
    }

    /// A limit before anything was written, by the case's name of it.
    pub fn before(&self, limit: &str) -> u64 {
        self.0["before"][limit].as_u64().unwrap()
    }

    pub fn capped_to(&self, limit: &str) -> u64 {
        self.0["capped_to"][limit].as_u64().unwrap()
    }

    /// A sysfs with the two clocks, and the package with its counter and its limit.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        for policy in [0, 4] {
            let khz = self.before(&format!("policy{policy}.scaling_max_freq"));
            for (file, value) in [
                ("scaling_max_freq", khz),
                ("scaling_min_freq", 300_000),
                ("cpuinfo_min_freq", 300_000),
                ("cpuinfo_max_freq", 2_956_800),
            ] {
                tree.apply(&format!("f {CPUFREQ}/policy{policy}/{file} = {value}"));
            }
        }
        let limit_uw = self.before("rapl.long_term_uw");
        for (file, value) in [
            ("name", "package-0".to_owned()),
            ("energy_uj", "1000000".to_owned()),
            ("max_energy_range_uj", "262143328850".to_owned()),
            ("constraint_0_name", "long_term".to_owned()),
            ("constraint_0_power_limit_uw", limit_uw.to_string()),
            ("constraint_0_max_power_uw", limit_uw.to_string()),
        ] {
            tree.apply(&format!("f {ZONE}/{file} = {value}"));
        }
        tree.apply("l sys/class/powercap/intel-rapl:0 -> ../../devices/virtual/powercap/intel-rapl/intel-rapl:0");
        tree
    }
}
