//! Energy from hwmon sensors: energy counters as they are, power sensors integrated over time by the trapezoid rule.
//! Sensors of CPU packages and of the whole machine are used, told by chip name and label; all others are ignored.

mod slow_file;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::slow_file::SlowFile;
use super::counter::{Counter, ZoneCounts};
use super::denial::{self, Need};
use super::told::Told;
use super::watch::DEADLINE;
use super::{MeterState, Source, Zone, ZoneEnergy, ZoneKind};
use crate::units::{Microjoules, nanos};

/// No machine draws more; a sensor that says so shows garbage. Microwatts.
const MAX_POWER_UW: u64 = 1_000_000_000_000;

/// One sensor that could be placed.
#[derive(Debug)]
struct Sensor {
    zone: Arc<Zone>,
    file: SlowFile,
    reading: Reading,
    /// Why the last reading failed; empty while it works.
    error: String,
    /// Whether it could not be read.
    told: Told<bool>,
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
    /// Time since then without an answer, none of which was long enough to be a failure.
    missed: Duration,
    /// Below a microjoule, carried over; 5 x 10^-16 J.
    rest: u128,
}

/// The hwmon sensors that measure a CPU package or the machine.
#[derive(Debug)]
pub struct Hwmon {
    sensors: Vec<Sensor>,
    counts: ZoneCounts,
    patience: Duration,
}

impl Hwmon {
    /// Finds the sensors; of several that would measure the same thing only one is kept, an energy counter first. Each is
    /// tried once. `patience`: a sensor that has once taken longer is not waited for any more, its readings come a tick late.
    ///
    /// # Errors
    /// State `absent` when there is no usable sensor.
    pub fn open(sysfs: &Path, patience: Duration) -> Result<Self, MeterState> {
        let root = sysfs.join("class/hwmon");
        let mut sensors = Vec::new();
        for chip in sorted(&root) {
            // Old drivers keep their attributes in the device's own folder.
            for folder in [chip.join("device"), chip] {
                let name = text(&folder.join("name")).or_else(|_| text(&folder.join("../name"))).unwrap_or_default();
                sensors.extend(sensors_of(sysfs, &folder, &name, patience));
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
        let mut hwmon = Self { sensors: kept, counts: ZoneCounts::default(), patience };
        hwmon.try_all();
        Ok(hwmon)
    }

    /// Reads every sensor once, so that it is known which can be read. All together have the time after which one hangs.
    fn try_all(&mut self) {
        let now = Instant::now();
        let until = now + DEADLINE;
        let asked: Vec<_> = self.sensors.iter_mut().map(|sensor| sensor.file.ask(now)).collect();
        for (sensor, refused) in self.sensors.iter_mut().zip(asked) {
            match refused.or_else(|| sensor.file.take(until)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    let why = sensor.describe(&error);
                    sensor.fail(why, Duration::ZERO);
                }
                None if sensor.file.begins_to_hang(until) => {
                    let why = sensor.silence();
                    sensor.fail(why, Duration::ZERO);
                }
                None => {}
            }
        }
    }

    /// Energy of every sensor since the previous call, `elapsed` ago; a sensor is missing at its first good reading, and
    /// where its answer is not there in time.
    pub fn read(&mut self, elapsed: Duration) -> Vec<ZoneEnergy> {
        let now = Instant::now();
        let until = now + self.patience;
        let late: Vec<_> = self.sensors.iter_mut().map(|sensor| sensor.file.ask(now)).collect();
        let mut zones = Vec::with_capacity(self.sensors.len());
        for (sensor, late) in self.sensors.iter_mut().zip(late) {
            match late.or_else(|| sensor.file.take(until)) {
                Some(Ok(value)) => zones.extend(sensor.advance(value, elapsed, &mut self.counts)),
                Some(Err(error)) => {
                    self.counts.read_errors += 1;
                    let why = sensor.describe(&error);
                    sensor.fail(why, elapsed);
                }
                None if sensor.file.begins_to_hang(now) => {
                    self.counts.read_errors += 1;
                    let why = sensor.silence();
                    sensor.fail(why, elapsed);
                }
                None if sensor.file.hangs() => {
                    sensor.tell();
                    sensor.miss(elapsed);
                }
                None => sensor.wait(elapsed),
            }
        }
        zones
    }

    /// The machine was suspended: the next reading of each sensor is a first one.
    pub fn resume(&mut self) {
        for sensor in &mut self.sensors {
            match &mut sensor.reading {
                Reading::Energy(counter) => counter.restart(),
                Reading::Power(integral) => integral.restart(),
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
        self.state_of(ZoneKind::Package)
    }

    /// That of the sensors of the whole machine, where there are any.
    #[must_use]
    pub fn board_state(&self) -> Option<MeterState> {
        self.has_platform().then(|| MeterState { meter: "board", ..self.state_of(ZoneKind::Platform) })
    }

    #[must_use]
    pub const fn counts(&self) -> ZoneCounts {
        self.counts
    }

    fn state_of(&self, kind: ZoneKind) -> MeterState {
        let sensors: Vec<&Sensor> = self.sensors.iter().filter(|sensor| sensor.zone.kind == kind).collect();
        let up = sensors.iter().any(|sensor| sensor.error.is_empty());
        let reason = sensors.first().map_or("absent", |sensor| if up { "ok" } else { sensor.reason() });
        let mut detail = match sensors.len() {
            0 => format!("no {} sensor", kind.as_str()),
            1 => format!("1 {} sensor", kind.as_str()),
            count => format!("{count} {} sensors", kind.as_str()),
        };
        for sensor in sensors.iter().filter(|sensor| !sensor.error.is_empty()) {
            detail.push_str("; ");
            detail.push_str(&sensor.error);
        }
        match reason {
            "permission" => {
                detail.push_str("; ");
                detail.push_str(
                    &denial::explain(Need::Files, Path::new("/sys")).unwrap_or_else(|| "run as root".to_owned()),
                );
            }
            "hanging" => {
                detail.push_str("; see the kernel's log for errors of ACPI or IPMI, or unload the sensor's driver");
            }
            _ => {}
        }
        MeterState { meter: "hwmon", up, reason, detail }
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
                same && (ours.socket.is_some() || self.file.path.parent() == later.file.path.parent())
            }
    }

    fn advance(&mut self, value: u64, elapsed: Duration, counts: &mut ZoneCounts) -> Option<ZoneEnergy> {
        self.error.clear();
        self.tell();
        let (energy, gap) = match &mut self.reading {
            Reading::Energy(counter) => {
                counter.advance(value, elapsed, counts).map(|delta| (delta.energy, delta.gap))?
            }
            Reading::Power(integral) => integral.advance(value, elapsed)?,
        };
        Some(ZoneEnergy { zone: Arc::clone(&self.zone), energy, gap })
    }

    /// The reading failed.
    fn fail(&mut self, why: String, elapsed: Duration) {
        self.error = why;
        self.tell();
        self.miss(elapsed);
    }

    /// Logs a change of state, where that is due.
    fn tell(&mut self) {
        match self.told.due(!self.error.is_empty(), Instant::now()) {
            None => {}
            Some(changes) if self.error.is_empty() => {
                tracing::info!(file = %self.file.path.display(), changes, "hwmon sensor readable again");
            }
            Some(changes) => tracing::warn!(error = self.error, changes, "hwmon sensor unreadable"),
        }
    }

    /// What was used meanwhile is not known, but to a counter.
    fn miss(&mut self, elapsed: Duration) {
        match &mut self.reading {
            Reading::Energy(counter) => counter.miss(elapsed),
            Reading::Power(integral) => integral.restart(),
        }
    }

    /// The answer will come yet.
    fn wait(&mut self, elapsed: Duration) {
        match &mut self.reading {
            Reading::Energy(counter) => counter.miss(elapsed),
            Reading::Power(integral) => integral.missed = integral.missed.saturating_add(elapsed),
        }
    }

    fn reason(&self) -> &'static str {
        match &self.error {
            _ if self.file.hangs() => "hanging",
            error if error.contains("ermission denied") => "permission",
            _ => "error",
        }
    }

    fn describe(&self, error: &io::Error) -> String {
        format!("{}: {error}", self.file.path.display())
    }

    fn silence(&self) -> String {
        format!("{}: no answer for {} s", self.file.path.display(), DEADLINE.as_secs_f32())
    }
}

impl Integral {
    /// Energy since the last reading, and whether ticks without an answer lie between.
    fn advance(&mut self, power_uw: u64, elapsed: Duration) -> Option<(Microjoules, bool)> {
        let missed = std::mem::take(&mut self.missed);
        let last = self.last.replace(power_uw)?;
        // Mean power times time, in halves of a microwatt nanosecond.
        let time = u128::from(nanos(missed.saturating_add(elapsed)));
        let sum = (u128::from(last) + u128::from(power_uw)) * time + self.rest;
        self.rest = sum % 2_000_000_000;
        Some((Microjoules(u64::try_from(sum / 2_000_000_000).unwrap_or(u64::MAX)), !missed.is_zero()))
    }

    /// The next reading is a first one.
    const fn restart(&mut self) {
        (self.last, self.missed) = (None, Duration::ZERO);
    }
}

/// The usable sensors in one folder of a chip called `chip`.
fn sensors_of(sysfs: &Path, folder: &Path, chip: &str, patience: Duration) -> Vec<Sensor> {
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
        let file = SlowFile::new(&file, patience);
        sensors.push(Sensor { zone, file, reading, error: String::new(), told: Told::default() });
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
