//! Energy from hwmon sensors: energy counters as they are, power sensors integrated over time by the trapezoid rule.
//! Sensors of CPU packages and of the whole machine are used, told by chip name and label; all others are ignored.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::counter::{Counter, ZoneCounts};
use super::{MeterState, Source, Zone, ZoneEnergy, ZoneKind};
use crate::units::{Microjoules, nanos};

/// No machine draws more; a sensor that says so shows garbage. Microwatts.
const MAX_POWER_UW: u64 = 1_000_000_000_000;

/// One sensor that could be placed.
#[derive(Debug)]
struct Sensor {
    zone: Arc<Zone>,
    file: PathBuf,
    reading: Reading,
    /// Why the last reading failed; empty while it works.
    error: String,
}

#[derive(Debug)]
enum Reading {
    Energy(Counter),
    Power(Integral),
}

/// Power readings summed up over time.
#[derive(Debug, Default)]
struct Integral {
    /// Microwatts; `None` before the first reading and after a failed one.
    last: Option<u64>,
    /// Below a microjoule, carried over; 5 x 10^-16 J.
    rest: u128,
}

/// The hwmon sensors that measure a CPU package or the machine.
#[derive(Debug)]
pub struct Hwmon {
    sensors: Vec<Sensor>,
    counts: ZoneCounts,
}

impl Hwmon {
    /// Finds the sensors; of several that would measure the same thing only one is kept, an energy counter first.
    ///
    /// # Errors
    /// State `absent` when there is no usable sensor.
    pub fn open(sysfs: &Path) -> Result<Self, MeterState> {
        let root = sysfs.join("class/hwmon");
        let mut sensors = Vec::new();
        for chip in sorted(&root) {
            // Old drivers keep their attributes in the device's own folder.
            for folder in [chip.join("device"), chip] {
                let name = text(&folder.join("name")).or_else(|_| text(&folder.join("../name"))).unwrap_or_default();
                sensors.extend(sensors_of(sysfs, &folder, &name));
            }
        }
        if sensors.is_empty() {
            let detail = format!("no energy or power sensor of a CPU package or the machine in {}", root.display());
            return Err(MeterState { meter: "hwmon", up: false, reason: "absent", detail });
        }
        // Energy counters first; then only what nothing before covers.
        sensors.sort_by_key(|sensor| matches!(sensor.reading, Reading::Power(_)));
        let mut kept: Vec<Sensor> = Vec::new();
        for sensor in sensors {
            if !kept.iter().any(|other| other.covers(&sensor)) {
                kept.push(sensor);
            }
        }
        let mut sensors = kept;
        for sensor in &mut sensors {
            sensor.error = number(&sensor.file).err().map(|error| sensor.describe(&error)).unwrap_or_default();
        }
        Ok(Self { sensors, counts: ZoneCounts::default() })
    }

    /// Energy of every sensor since the previous call, `elapsed` ago; a sensor is missing at its first good reading.
    pub fn read(&mut self, elapsed: Duration) -> Vec<ZoneEnergy> {
        let mut zones = Vec::with_capacity(self.sensors.len());
        for sensor in &mut self.sensors {
            let value = match number(&sensor.file) {
                Ok(value) => value,
                Err(error) => {
                    self.counts.read_errors += 1;
                    if sensor.error.is_empty() {
                        tracing::warn!(file = %sensor.file.display(), %error, "hwmon sensor unreadable");
                    }
                    sensor.error = sensor.describe(&error);
                    match &mut sensor.reading {
                        Reading::Energy(counter) => counter.miss(elapsed),
                        Reading::Power(integral) => integral.last = None,
                    }
                    continue;
                }
            };
            sensor.error.clear();
            let zone = Arc::clone(&sensor.zone);
            match &mut sensor.reading {
                Reading::Energy(counter) => {
                    let delta = counter.advance(value, elapsed, &mut self.counts);
                    zones.extend(delta.map(|delta| ZoneEnergy { zone, energy: delta.energy, gap: delta.gap }));
                }
                Reading::Power(integral) => {
                    let energy = integral.advance(value, elapsed);
                    zones.extend(energy.map(|energy| ZoneEnergy { zone, energy, gap: false }));
                }
            }
        }
        zones
    }

    /// The machine was suspended: the next reading of each sensor is a first one.
    pub fn resume(&mut self) {
        for sensor in &mut self.sensors {
            match &mut sensor.reading {
                Reading::Energy(counter) => counter.restart(),
                Reading::Power(integral) => integral.last = None,
            }
        }
    }

    /// Whether a sensor of a CPU package can be read, so that there is energy to attribute.
    #[must_use]
    pub fn has_package(&self) -> bool {
        self.sensors.iter().any(|sensor| sensor.zone.kind == ZoneKind::Package && sensor.error.is_empty())
    }

    /// Whether there is a sensor of the whole machine.
    #[must_use]
    pub fn has_platform(&self) -> bool {
        self.sensors.iter().any(|sensor| sensor.zone.kind == ZoneKind::Platform)
    }

    /// Up where a package can be read.
    #[must_use]
    pub fn state(&self) -> MeterState {
        let up = self.has_package();
        let packages: Vec<&Sensor> = self.sensors.iter().filter(|it| it.zone.kind == ZoneKind::Package).collect();
        let reason = match packages.first() {
            _ if up => "ok",
            Some(sensor) if sensor.error.contains("ermission denied") => "permission",
            Some(_) => "error",
            None => "absent",
        };
        let mut detail = format!("{} package sensors of {} sensors", packages.len(), self.sensors.len());
        for sensor in self.sensors.iter().filter(|sensor| !sensor.error.is_empty()) {
            detail.push_str("; ");
            detail.push_str(&sensor.error);
        }
        if reason == "permission" {
            detail.push_str("; run as root");
        }
        MeterState { meter: "hwmon", up, reason, detail }
    }

    #[must_use]
    pub fn counts(&self) -> ZoneCounts {
        self.counts
    }
}

impl Sensor {
    /// Whether `later` would measure again what this sensor measures. Sensors of one kind in different chips that name
    /// no socket are one per socket (fam15h_power) or power supply.
    fn covers(&self, later: &Self) -> bool {
        let (ours, theirs) = (&self.zone, &later.zone);
        let same = ours.socket == theirs.socket;
        let counter = matches!(self.reading, Reading::Energy(_)) && matches!(later.reading, Reading::Power(_));
        ours.kind == theirs.kind
            && if counter {
                same || ours.socket.is_none() || theirs.socket.is_none()
            } else {
                same && (ours.socket.is_some() || self.file.parent() == later.file.parent())
            }
    }

    fn describe(&self, error: &io::Error) -> String {
        format!("{}: {error}", self.file.display())
    }
}

impl Integral {
    fn advance(&mut self, power_uw: u64, elapsed: Duration) -> Option<Microjoules> {
        let last = self.last.replace(power_uw)?;
        // Mean power times time, in halves of a microwatt nanosecond.
        let sum = (u128::from(last) + u128::from(power_uw)) * u128::from(nanos(elapsed)) + self.rest;
        self.rest = sum % 2_000_000_000;
        Some(Microjoules(u64::try_from(sum / 2_000_000_000).unwrap_or(u64::MAX)))
    }
}

/// The usable sensors in one folder of a chip called `chip`.
fn sensors_of(sysfs: &Path, folder: &Path, chip: &str) -> Vec<Sensor> {
    let mut sensors = Vec::new();
    for file in sorted(folder) {
        let Some(name) = file.file_name().and_then(|name| name.to_str()) else { continue };
        let (prefix, reading) = if let Some(prefix) = name.strip_suffix("_input").filter(|it| numbered(it, "energy")) {
            (prefix, Reading::Energy(Counter::new(None)))
        } else if let Some(prefix) = name.strip_suffix("_average").filter(|it| numbered(it, "power")) {
            (prefix, Reading::Power(Integral::default()))
        } else if let Some(prefix) = name.strip_suffix("_input").filter(|it| numbered(it, "power"))
            && !folder.join(format!("{prefix}_average")).exists()
        {
            (prefix, Reading::Power(Integral::default()))
        } else {
            continue;
        };
        let label = text(&folder.join(format!("{prefix}_label"))).unwrap_or_default();
        let Some((kind, socket)) = place(chip, &label) else { continue };
        let path = file.strip_prefix(sysfs).unwrap_or(&file).display().to_string();
        let zone = Arc::new(Zone { kind, socket, die: None, source: Source::Hwmon, path });
        sensors.push(Sensor { zone, file, reading, error: String::new() });
    }
    sensors
}

/// What a sensor measures, and on which socket, by its chip's name and its label; `None` for anything else.
fn place(chip: &str, label: &str) -> Option<(ZoneKind, Option<u32>)> {
    let (chip, label) = (chip.to_lowercase(), label.to_lowercase());
    let has = |words: &[&str]| words.iter().any(|word| label.contains(word));
    if has(&["gpu", "dimm", "dram", "mem", "core", "soc power", "vdd", "fan", "disk"]) {
        return None;
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

/// A sensor's value. Not a number, negative or beyond all sense is an error.
fn number(file: &Path) -> io::Result<u64> {
    let text = text(file)?;
    let is_power = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("power"));
    match text.parse::<u64>() {
        Ok(value) if !is_power || value <= MAX_POWER_UW => Ok(value),
        _ => Err(io::Error::other(format!("{text:?} is no reading"))),
    }
}

fn text(file: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests;
