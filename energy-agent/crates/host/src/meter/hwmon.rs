//! Energy from hwmon sensors: energy counters as they are, power sensors integrated over time by the trapezoid rule.
//! Sensors of CPU packages and of the whole machine are used; chip name and label identify them. All others are ignored.

mod find;
mod slow_file;

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::advice::Advice;
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::units::{Microjoules, nanos};
use energy_model::zone::{Zone, ZoneEnergy, ZoneKind};

use self::find::{FoundSensors, SensorIdentity, find, text};
use self::slow_file::SlowFile;
use super::counter::{Counter, ZoneCounts};
use super::deadline::DEADLINE;
use super::denial::{self, Need};
use super::state_log::StateLog;
use super::still::{self, Still};
use super::trapezoid::Trapezoid;

/// No machine draws more; a sensor that says so shows garbage. Microwatts.
const MAX_POWER_UW: u64 = 1_000_000_000_000;

/// So many microwatts times nanoseconds are a microjoule.
const MICROWATT_NANOSECONDS: u128 = 1_000_000_000;

/// Between two looks for sensors that came, went, or have another number now.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// The same while one cannot be read.
const LOOK_SOONER: Duration = Duration::from_secs(5);

/// One sensor that could be placed.
#[derive(Debug)]
struct Sensor {
    /// As it was found first: a sensor that comes back under another number goes on with its series.
    zone: Arc<Zone>,
    identity: SensorIdentity,
    file: SlowFile,
    reading: HwmonReading,
    /// Why the last reading failed; `None` while it works.
    failure: Option<HwmonFailure>,
    still: Still,
    /// It stands still, and cannot have used nothing.
    frozen: bool,
    /// Why it is not used: it stands still, or it could not be read.
    told: StateLog<Option<Reason>>,
}

#[derive(Debug)]
struct HwmonFailure {
    reason: Reason,
    /// With the file.
    text: String,
}

#[derive(Debug)]
enum HwmonReading {
    Energy(Counter),
    Power(HwmonIntegral),
}

/// Power readings summed up over time.
#[derive(Debug)]
struct HwmonIntegral {
    /// Microwatts; `None` before the first reading and after a failed one.
    last: Option<u64>,
    /// Time since then without an answer, none of which was long enough to be a failure.
    missed: Duration,
    sum: Trapezoid,
}

/// The hwmon sensors that measure a CPU package or the machine.
#[derive(Debug)]
pub struct Hwmon {
    sysfs: PathBuf,
    sensors: Vec<Sensor>,
    counts: ZoneCounts,
    patience: Duration,
    since_look: Duration,
}

impl Hwmon {
    /// Finds the sensors; of several that would measure the same thing only one is kept, an energy counter first. Each is
    /// tried once. `patience`: a sensor that has once taken longer is not waited for any more, its readings come a tick late.
    ///
    /// # Errors
    /// State `absent` when there is no usable sensor.
    pub fn open(sysfs: &Path, patience: Duration) -> Result<Self, MeterState> {
        let mut hwmon = Self {
            sysfs: sysfs.to_owned(),
            sensors: Vec::new(),
            counts: ZoneCounts::default(),
            patience,
            since_look: Duration::ZERO,
        };
        hwmon.look();
        if hwmon.sensors.is_empty() {
            let root = sysfs.join("class/hwmon");
            let detail = format!("no energy or power sensor of a CPU package or the machine in {}", root.display());
            return Err(MeterState::down(MeterName::Hwmon, Reason::Absent, detail));
        }
        hwmon.try_all();
        Ok(hwmon)
    }

    /// The files of all sensors that are there now; looked at without reading a sensor.
    #[must_use]
    pub fn files(sysfs: &Path) -> Vec<PathBuf> {
        find(sysfs).into_iter().map(|found| found.file).collect()
    }

    /// Takes up sensors that are new, and those that have another number now.
    fn look(&mut self) {
        self.since_look = Duration::ZERO;
        let mut found = find(&self.sysfs);
        // Those that are where they were first, so that of two alike each keeps its own.
        let mut moved: Vec<&mut Sensor> = Vec::new();
        for sensor in &mut self.sensors {
            let same = |it: &FoundSensors| it.file == sensor.file.path && it.identity == sensor.identity;
            match found.iter().position(same) {
                Some(place) => _ = found.remove(place),
                None => moved.push(sensor),
            }
        }
        for sensor in moved {
            let alike = |it: &FoundSensors| it.identity == sensor.identity && it.zone.socket == sensor.zone.socket;
            if let Some(place) = found.iter().position(alike) {
                sensor.move_to(&found.remove(place).file, self.patience);
            }
        }
        // Energy counters first; then only what nothing before covers.
        for found in found {
            if self.sensors.iter().any(|known| known.covers(&found)) {
                continue;
            }
            if !self.sensors.is_empty() {
                tracing::info!(file = %found.file.display(), kind = found.zone.kind.as_str(), "hwmon sensor found");
            }
            self.sensors.push(Sensor::new(found, self.patience));
        }
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
                    let why = sensor.refusal(&error);
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
                    let why = sensor.refusal(&error);
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
        self.leave_out_still(&mut zones, elapsed);
        self.since_look = self.since_look.saturating_add(elapsed);
        let failing = self.sensors.iter().any(|sensor| sensor.failure.is_some() && !sensor.frozen);
        if self.since_look >= if failing { LOOK_SOONER } else { LOOK_EVERY } {
            self.look();
        }
        zones
    }

    /// Takes energies away of sensors that stand still, and says so.
    fn leave_out_still(&mut self, zones: &mut Vec<ZoneEnergy>, elapsed: Duration) {
        let mut places = Vec::with_capacity(zones.len());
        for ZoneEnergy { zone, energy, gap } in zones.iter() {
            let sensor = self.sensors.iter_mut().find(|sensor| Arc::ptr_eq(&sensor.zone, zone));
            let sensor = sensor.expect("each energy is a sensor's");
            sensor.still.read(energy.0 > 0 || *gap && !sensor.frozen, elapsed);
            places.push(((zone.kind, zone.socket, zone.die), sensor.still));
        }
        let mut broken = still::broken(&places).into_iter();
        zones.retain(|energy| {
            let broken = broken.next().unwrap_or_default();
            if let Some(sensor) = self.sensors.iter_mut().find(|it| Arc::ptr_eq(&it.zone, &energy.zone)) {
                sensor.freeze(broken);
            }
            !broken
        });
    }

    /// The machine was suspended: the next reading of each sensor is a first one.
    pub(crate) fn resume(&mut self) {
        for sensor in &mut self.sensors {
            match &mut sensor.reading {
                HwmonReading::Energy(counter) => counter.restart(),
                HwmonReading::Power(integral) => integral.restart(),
            }
        }
    }

    /// Whether a sensor of a CPU package can be read, so that there is energy to attribute.
    #[must_use]
    pub(crate) fn has_package(&self) -> bool {
        self.sensors.iter().any(|sensor| sensor.zone.kind == ZoneKind::Package && sensor.failure.is_none())
    }

    /// Whether there is a sensor of the whole machine.
    #[must_use]
    pub(crate) fn has_platform(&self) -> bool {
        self.sensors.iter().any(|sensor| sensor.zone.kind == ZoneKind::Platform)
    }

    /// Up where a package can be read.
    #[must_use]
    pub fn state(&self) -> MeterState {
        self.state_of(MeterName::Hwmon, ZoneKind::Package)
    }

    /// That of the sensors of the whole machine, where there are any.
    #[must_use]
    pub(crate) fn board_state(&self) -> Option<MeterState> {
        self.has_platform().then(|| self.state_of(MeterName::Board, ZoneKind::Platform))
    }

    #[must_use]
    pub const fn counts(&self) -> ZoneCounts {
        self.counts
    }

    fn state_of(&self, meter: MeterName, kind: ZoneKind) -> MeterState {
        let sensors: Vec<&Sensor> = self.sensors.iter().filter(|sensor| sensor.zone.kind == kind).collect();
        let failures: Vec<&HwmonFailure> = sensors.iter().filter_map(|sensor| sensor.failure.as_ref()).collect();
        let reason = match failures.first() {
            _ if sensors.is_empty() => Reason::Absent,
            Some(first) if failures.len() == sensors.len() => first.reason,
            _ => Reason::Ok,
        };
        let mut detail = match sensors.len() {
            0 => format!("no {} sensor", kind.as_str()),
            1 => format!("1 {} sensor", kind.as_str()),
            count => format!("{count} {} sensors", kind.as_str()),
        };
        for HwmonFailure { text, .. } in failures {
            detail.push_str("; ");
            detail.push_str(text);
        }
        let detail = match reason {
            Reason::Permission => denial::advise(Some(detail), Need::Files, Path::new("/sys"), "run as root"),
            Reason::Frozen => Advice::new(detail, "load its driver again, or choose another meter with --meter.cpu"),
            Reason::Hanging => {
                Advice::new(detail, "see the kernel's log for errors of ACPI or IPMI, or unload the sensor's driver")
            }
            _ => detail.into(),
        };
        MeterState { meter, reason, detail }
    }
}

impl Sensor {
    /// Whether `later` would measure again what this sensor measures. Sensors of one kind in different chips that name
    /// no socket are one per socket (fam15h_power) or power supply.
    fn covers(&self, later: &FoundSensors) -> bool {
        let (ours, theirs) = (&self.zone, &later.zone);
        let same = ours.socket == theirs.socket;
        let counter = matches!(self.reading, HwmonReading::Energy(_)) && !later.counts;
        ours.kind == theirs.kind
            && if counter {
                same || ours.socket.is_none() || theirs.socket.is_none()
            } else {
                same && (ours.socket.is_some() || self.file.path.parent() == later.file.parent())
            }
    }

    fn new(found: FoundSensors, patience: Duration) -> Self {
        let FoundSensors { file, identity, counts, zone } = found;
        let reading =
            if counts { HwmonReading::Energy(Counter::new(None)) } else { HwmonReading::Power(HwmonIntegral::new()) };
        let file = SlowFile::new(&file, patience);
        let (failure, still, told) = (None, Still::default(), StateLog::default());
        Self { zone: Arc::new(zone), identity, file, reading, failure, still, frozen: false, told }
    }

    /// The kernel gave its chip another number. What it counted meanwhile is not known.
    fn move_to(&mut self, file: &Path, patience: Duration) {
        tracing::info!(from = %self.file.path.display(), to = %file.display(), "hwmon sensor has another number");
        self.file = SlowFile::new(file, patience);
        (self.still, self.frozen) = (Still::default(), false);
        match &mut self.reading {
            HwmonReading::Energy(counter) => counter.restart(),
            HwmonReading::Power(integral) => integral.restart(),
        }
    }

    fn advance(&mut self, value: u64, elapsed: Duration, counts: &mut ZoneCounts) -> Option<ZoneEnergy> {
        if !self.frozen {
            self.failure = None;
            self.tell();
        }
        let (energy, gap) = match &mut self.reading {
            HwmonReading::Energy(counter) => {
                counter.advance(value, elapsed, counts).map(|delta| (delta.energy, delta.gap))?
            }
            HwmonReading::Power(integral) => integral.advance(value, elapsed)?,
        };
        // What it gained when it goes on may have been used long before.
        Some(ZoneEnergy { zone: Arc::clone(&self.zone), energy, gap: gap || self.frozen })
    }

    /// Whether it is broken by standing still.
    fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
        self.failure = frozen.then(|| self.failure(Reason::Frozen, &self.still.describe()));
        self.tell();
    }

    /// The reading failed.
    fn fail(&mut self, failure: HwmonFailure, elapsed: Duration) {
        self.failure = Some(failure);
        (self.still, self.frozen) = (Still::default(), false);
        self.tell();
        self.miss(elapsed);
    }

    /// Logs a change of state, where that is due.
    fn tell(&mut self) {
        let reason = self.failure.as_ref().map(|failure| failure.reason);
        let Some(changes) = self.told.due(reason, Instant::now()) else { return };
        match &self.failure {
            None => tracing::info!(file = %self.file.path.display(), changes, "hwmon sensor readable again"),
            Some(failure) => tracing::warn!(error = failure.text, changes, "hwmon sensor unreadable"),
        }
    }

    /// What was used meanwhile is not known, but to a counter.
    fn miss(&mut self, elapsed: Duration) {
        match &mut self.reading {
            HwmonReading::Energy(counter) => counter.miss(elapsed),
            HwmonReading::Power(integral) => integral.restart(),
        }
    }

    /// The answer will come yet.
    fn wait(&mut self, elapsed: Duration) {
        match &mut self.reading {
            HwmonReading::Energy(counter) => counter.miss(elapsed),
            HwmonReading::Power(integral) => integral.missed = integral.missed.saturating_add(elapsed),
        }
    }

    fn failure(&self, reason: Reason, what: &dyn Display) -> HwmonFailure {
        HwmonFailure { reason, text: format!("{}: {what}", self.file.path.display()) }
    }

    fn refusal(&self, error: &io::Error) -> HwmonFailure {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
        self.failure(if is_denied { Reason::Permission } else { Reason::Error }, error)
    }

    fn silence(&self) -> HwmonFailure {
        self.failure(Reason::Hanging, &format_args!("no answer for {} s", DEADLINE.as_secs_f32()))
    }
}

impl HwmonIntegral {
    const fn new() -> Self {
        Self { last: None, missed: Duration::ZERO, sum: Trapezoid::new(MICROWATT_NANOSECONDS) }
    }

    /// Energy since the last reading, and whether ticks without an answer lie between.
    fn advance(&mut self, power_uw: u64, elapsed: Duration) -> Option<(Microjoules, bool)> {
        let missed = std::mem::take(&mut self.missed);
        let last = self.last.replace(power_uw)?;
        self.sum.add(last, power_uw, nanos(missed.saturating_add(elapsed)));
        Some((self.sum.take(), !missed.is_zero()))
    }

    /// The next reading is a first one.
    const fn restart(&mut self) {
        (self.last, self.missed) = (None, Duration::ZERO);
    }
}

/// A sensor's value. Not a number, negative or beyond all sense is an error.
fn number(file: &Path) -> io::Result<u64> {
    let text = text(file)?;
    let is_power = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("power"));
    match text.parse::<u64>() {
        Ok(value) if !is_power || value <= MAX_POWER_UW => Ok(value),
        _ => Err(io::Error::other(format!("{text:?} is not a reading"))),
    }
}

#[cfg(test)]
mod tests;
