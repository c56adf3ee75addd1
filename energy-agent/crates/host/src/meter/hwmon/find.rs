//! Which sensors of hwmon measure a CPU package, a part of one, or the machine: by chip, label and file name.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use energy_model::zone::{Source, Zone, ZoneKind};

use crate::errand;

/// A file that measures something of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSensors {
    pub file: PathBuf,
    /// What stays when the kernel gives the chip another number.
    pub identity: SensorIdentity,
    /// An energy counter, else a power sensor.
    pub counts: bool,
    pub zone: Zone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SensorIdentity {
    chip: String,
    label: String,
    name: String,
}

/// All sensors below `sysfs`; energy counters first.
pub fn find(sysfs: &Path) -> Vec<FoundSensors> {
    let mut found = Vec::new();
    for chip in sorted(&sysfs.join("class/hwmon")) {
        // Old drivers keep their attributes in the device's own folder, as does the kernel's of ACPI power meters.
        for folder in [chip.join("device"), chip.clone()] {
            let name = attribute(&folder.join("name")).or_else(|_| attribute(&chip.join("name"))).unwrap_or_default();
            found.extend(in_folder(sysfs, &folder, &name));
        }
    }
    take_apart(&mut found);
    found.sort_by_key(|found| !found.counts);
    found
}

/// A superchip has a meter of each CPU with all its parts (`Grace Power`), and one of each part: those are no packages.
fn take_apart(found: &mut Vec<FoundSensors>) {
    let whole: BTreeSet<Option<u32>> =
        found.iter().filter(|it| it.identity.is(GRACE)).map(|it| it.zone.socket).collect();
    for part in found.iter_mut().filter(|it| it.identity.is(CPU_RAIL) && whole.contains(&it.zone.socket)) {
        part.zone.kind = ZoneKind::Core;
    }
    found.retain(|it| it.zone.kind != ZoneKind::Uncore || whole.contains(&it.zone.socket));
}

/// How a superchip's meters are called: a CPU with its parts, its cores, the rest, and the module with CPU, GPU and memory.
const GRACE: &str = "grace power";
const CPU_RAIL: &str = "cpu power";
const SYSIO: &str = "sysio power";
const MODULE: &str = "module";

impl SensorIdentity {
    fn is(&self, label: &str) -> bool {
        self.label.to_lowercase().starts_with(label)
    }
}

/// The usable sensors in one folder of a chip called `chip`.
fn in_folder(sysfs: &Path, folder: &Path, chip: &str) -> Vec<FoundSensors> {
    let mut sensors = Vec::new();
    for file in sorted(folder) {
        let Some(name) = file.file_name().and_then(|name| name.to_str()) else { continue };
        let (prefix, counts) = if let Some(prefix) = name.strip_suffix("_input").filter(|it| numbered(it, "energy")) {
            (prefix, true)
        } else if let Some(prefix) = name.strip_suffix("_average").filter(|it| numbered(it, "power")) {
            (prefix, false)
        } else if let Some(prefix) = name.strip_suffix("_input").filter(|it| numbered(it, "power"))
            && !folder.join(format!("{prefix}_average")).exists()
        {
            (prefix, false)
        } else {
            continue;
        };
        // An ACPI power meter has no label; its firmware's name for it is elsewhere.
        let label =
            ["label", "oem_info"].iter().find_map(|end| attribute(&folder.join(format!("{prefix}_{end}"))).ok());
        let label = label.unwrap_or_default();
        let Some((kind, socket)) = place(chip, &label) else { continue };
        let path = file.strip_prefix(sysfs).unwrap_or(&file).display().to_string();
        let zone = Zone { kind, socket, die: None, source: Source::Hwmon, path };
        let identity = SensorIdentity { chip: chip.to_owned(), label, name: name.to_owned() };
        sensors.push(FoundSensors { file, identity, counts, zone });
    }
    sensors
}

/// What a sensor measures, and on which socket, by its chip's name and its label; `None` for anything else.
pub(super) fn place(chip: &str, label: &str) -> Option<(ZoneKind, Option<u32>)> {
    let (chip, label) = (chip.to_lowercase(), label.to_lowercase());
    let has = |words: &[&str]| words.iter().any(|word| label.contains(word));
    if has(&["gpu", "dimm", "dram", "mem", "core", "soc power", "vdd", "fan", "disk"]) {
        return None;
    }
    let numbered = label.split_once("socket").and_then(|(_, after)| socket(after));
    if label.starts_with(MODULE) {
        return Some((ZoneKind::Platform, numbered));
    }
    if label.starts_with(SYSIO) {
        return Some((ZoneKind::Uncore, numbered));
    }
    for word in ["package", "socket", "cpu"] {
        if let Some((_, after)) = label.split_once(word) {
            return Some((ZoneKind::Package, socket(after)));
        }
    }
    if chip == "fam15h_power" {
        return Some((ZoneKind::Package, None));
    }
    let board = ["acpi_power_meter", "power_meter"].contains(&chip.as_str()) || has(&["total", "board", "system"]);
    board.then_some((ZoneKind::Platform, None))
}

/// The number after `socket`, `cpu` or `package id`; not that of a voltage such as `cpu 12v`.
fn socket(after: &str) -> Option<u32> {
    let text = after.trim_start_matches([' ', '_', '-', '#']);
    let text = text.strip_prefix("id").unwrap_or(text).trim_start();
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if rest.starts_with(char::is_alphanumeric) { None } else { digits.parse().ok() }
}

fn numbered(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The text of a file beside the reading, which may hang as that may.
fn attribute(file: &Path) -> io::Result<String> {
    let path = file.to_owned();
    errand::run(file, move || text(&path))?
}

pub(super) fn text(file: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path()).collect();
    paths.sort();
    paths
}
