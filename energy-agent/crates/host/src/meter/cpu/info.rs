//! What `/proc/cpuinfo` says about the processors: names for people, identification for the estimate, guest or not.

use std::fs;
use std::path::Path;

use energy_model::cpu::CpuInfo;

/// What identifies the processor type; from the first CPU of `/proc/cpuinfo`. Empty or `None`: not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuModel {
    /// CPUID vendor such as `GenuineIntel`; on ARM the implementer such as `0x41`.
    pub vendor: String,
    pub name: String,
    pub family: Option<u32>,
    /// CPUID model; on ARM the part number (0xd0c is 3340).
    pub model: Option<u32>,
    pub stepping: Option<u32>,
    /// Runs under a hypervisor (x86 only).
    pub hypervisor: bool,
}

impl CpuModel {
    /// Reads `/proc/cpuinfo`; knows nothing where that is missing.
    #[must_use]
    pub fn read(procfs: &Path) -> Self {
        let text = read_lossy(procfs);
        let mut model = Self::default();
        let number = |value: &str| match value.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        };
        for (key, value) in fields(&text) {
            match key {
                "vendor_id" | "CPU implementer" if model.vendor.is_empty() => value.clone_into(&mut model.vendor),
                "model name" | "Model Name" | "Processor" if model.name.is_empty() => {
                    value.clone_into(&mut model.name);
                }
                "cpu family" if model.family.is_none() => model.family = number(value),
                "model" | "CPU part" if model.model.is_none() => model.model = number(value),
                "stepping" if model.stepping.is_none() => model.stepping = number(value),
                "flags" => {
                    model.hypervisor = value.split_ascii_whitespace().any(|flag| flag == "hypervisor");
                    break;
                }
                _ => {}
            }
        }
        model
    }

    /// The model number of an Intel family 6 CPU, which says what its events are.
    #[must_use]
    pub fn intel_model(&self) -> Option<u32> {
        self.model.filter(|_| self.vendor == "GenuineIntel" && self.family == Some(6))
    }

    /// Whether all dies of a package show the same energy counter, so that only one of them may be counted.
    #[must_use]
    pub fn mirrors_dies(&self) -> bool {
        matches!(self.vendor.as_str(), "AuthenticAMD" | "HygonGenuine")
    }
}

/// Every logical CPU of `/proc/cpuinfo`, in its order; empty where the file is missing.
#[must_use]
pub fn cpu_info(procfs: &Path) -> Vec<CpuInfo> {
    let text = read_lossy(procfs);
    let mut cpus: Vec<CpuInfo> = Vec::new();
    for (key, value) in fields(&text) {
        if key == "processor" {
            cpus.push(CpuInfo { processor: value.to_owned(), ..CpuInfo::default() });
            continue;
        }
        // 32-bit ARM puts fields of the whole machine before the first processor; they belong to none.
        let Some(cpu) = cpus.last_mut() else { continue };
        let field = match key {
            "vendor_id" | "CPU implementer" => &mut cpu.vendor_id,
            "model name" => &mut cpu.model_name,
            "physical id" => &mut cpu.physical_id,
            "core id" => &mut cpu.core_id,
            _ => continue,
        };
        if field.is_empty() {
            value.clone_into(field);
        }
    }
    cpus
}

/// Whether this system runs under a hypervisor, so that an energy counter shows what the hypervisor made up or the
/// whole host: `hypervisor` among the x86 CPU flags, or where there are no such flags, `/sys/hypervisor/type` (Xen).
#[must_use]
pub(crate) fn is_guest(procfs: &Path, sysfs: &Path) -> bool {
    let model = CpuModel::read(procfs);
    let x86 = matches!(model.vendor.as_str(), "GenuineIntel" | "AuthenticAMD" | "HygonGenuine" | "CentaurHauls");
    if x86 { model.hypervisor } else { model.hypervisor || sysfs.join("hypervisor/type").exists() }
}

fn read_lossy(procfs: &Path) -> String {
    String::from_utf8_lossy(&fs::read(procfs.join("cpuinfo")).unwrap_or_default()).into_owned()
}

fn fields(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key.trim(), value.trim()))
}
