//! RAPL through powercap files: the distinct zones of the node and the energy each gained between two reads. A zone that
//! fails or goes away takes nothing from the others, and comes back without charging what it counted meanwhile.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use anyhow::{Context as _, Result};
use energy_model::advice::Advice;
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::zone::{Zone, ZoneEnergy, ZoneKind};
use tracing::{info, warn};

use super::counter::{Counter, Delta, ZoneCounts};
use super::denial::{self, Need};
use super::powercap::{self, PowercapZone};
use super::state_log::StateLog;
use super::still::{self, Still};
use crate::errand::{self, Errand};

/// Between two looks for zones that appeared (module loaded, socket brought online).
const SCAN_EVERY: Duration = Duration::from_secs(15);

/// Energy counters of the CPU packages and their parts.
#[derive(Debug)]
pub struct Rapl {
    sysfs: PathBuf,
    mirrored_dies: bool,
    /// Every zone ever measured. A zone that went away keeps its place, so that no other copy of it can take over.
    zones: Vec<Tracked>,
    counts: ZoneCounts,
    /// Folders whose trouble has been logged.
    reported: BTreeSet<PathBuf>,
    since_scan: Duration,
}

impl Rapl {
    /// Finds the zones below `sysfs`. Of several copies of one zone (MSR and MMIO interface) the first readable one is
    /// taken for good. `mirrored_dies` says that this is AMD or Hygon: all dies of a socket show one counter there, so one
    /// of them is taken and stands for the socket, and `core` zones are left out, as they count a single core. Zones that
    /// plainly are another maker's (see [`shown_by_amd`]) are taken as they are.
    ///
    /// # Errors
    /// When no zone can be read; the state says why (`absent`, `permission`, `error`) and what to do.
    pub fn open(sysfs: &Path, mirrored_dies: bool) -> Result<Self, MeterState> {
        let mut rapl = Self {
            sysfs: sysfs.to_owned(),
            mirrored_dies: mirrored_dies && shown_by_amd(&powercap::scan(sysfs).entries),
            zones: Vec::new(),
            counts: ZoneCounts::default(),
            reported: BTreeSet::new(),
            since_scan: Duration::ZERO,
        };
        let problems = rapl.scan();
        if rapl.zones.is_empty() {
            return Err(down(problems, sysfs));
        }
        for (path, fault) in problems {
            rapl.report(path, &fault);
        }
        Ok(rapl)
    }

    /// Energy of each zone since the previous call, `elapsed` ago. Zones without a figure are not in the result: all of
    /// them at the first call, later those that cannot be read or have just appeared.
    pub fn read(&mut self, elapsed: Duration) -> Vec<ZoneEnergy> {
        let now = Instant::now();
        let mut gained: Vec<Option<Delta>> = Vec::with_capacity(self.zones.len());
        let mut changed = false;
        let asked: Vec<_> = self.zones.iter_mut().map(|tracked| (!tracked.is_gone()).then(|| tracked.ask())).collect();
        for (tracked, asked) in self.zones.iter_mut().zip(asked) {
            let Some(asked) = asked else {
                changed |= tracked.energy_uj.exists();
                tracked.tell(now);
                gained.push(None);
                continue;
            };
            match tracked.take(asked) {
                Ok(raw) => {
                    tracked.fault.take_if(|fault| fault.reason != Reason::Frozen);
                    let delta = tracked.counter.advance(raw, elapsed, &mut self.counts);
                    gained.push(delta.map(|delta| tracked.gained(delta, elapsed)));
                }
                Err(error) => {
                    self.counts.read_errors += 1;
                    changed |= tracked.fail(RaplFault::from(error), elapsed);
                    gained.push(None);
                }
            }
        }
        let energies = self.judge(gained, now);
        self.since_scan = self.since_scan.saturating_add(elapsed);
        if changed || self.since_scan >= SCAN_EVERY {
            for (path, fault) in self.scan() {
                self.report(path, &fault);
            }
        }
        energies
    }

    /// The energies of the zones whose counters count; of the others it is said that they stand still.
    fn judge(&mut self, gained: Vec<Option<Delta>>, now: Instant) -> Vec<ZoneEnergy> {
        let places = self.zones.iter().map(|Tracked { zone, still, .. }| ((zone.kind, zone.socket, zone.die), *still));
        let broken = still::broken(&places.collect::<Vec<_>>());
        let mut energies = Vec::with_capacity(gained.len());
        for ((tracked, delta), broken) in self.zones.iter_mut().zip(gained).zip(broken) {
            if let Some(Delta { energy, gap }) = delta {
                if broken {
                    let why = format!("{}: {}", tracked.energy_uj.display(), tracked.still.describe());
                    tracked.fault = Some(RaplFault { reason: Reason::Frozen, error: anyhow::Error::msg(why) });
                } else {
                    tracked.fault = None;
                    energies.push(ZoneEnergy { zone: Arc::clone(&tracked.zone), energy, gap });
                }
            }
            tracked.tell(now);
        }
        energies
    }

    /// The machine was suspended: the next reading of each zone is a first one.
    pub(crate) fn resume(&mut self) {
        self.zones.iter_mut().for_each(|tracked| tracked.counter.restart());
    }

    /// Up while at least one zone can be read.
    #[must_use]
    pub fn state(&self) -> MeterState {
        let readable = self.zones.iter().filter(|tracked| tracked.fault.is_none()).count();
        let faults: Vec<&RaplFault> = self.zones.iter().filter_map(|tracked| tracked.fault.as_ref()).collect();
        let worst = faults.iter().max_by_key(|fault| fault.reason);
        let mut detail = Advice::from(format!("{readable} of {} zones readable", self.zones.len()));
        if let Some(Advice { what, remedy }) = worst.map(|fault| fault.advice()) {
            detail = Advice::new(format!("{}; {what}", detail.what), remedy);
        }
        match worst {
            Some(fault) if readable == 0 => MeterState::down(MeterName::Rapl, fault.reason, detail),
            _ => MeterState::up(MeterName::Rapl, detail),
        }
    }

    #[must_use]
    pub const fn counts(&self) -> ZoneCounts {
        self.counts
    }

    /// The zones that are there, readable at the moment or not.
    pub fn zones(&self) -> impl Iterator<Item = &Zone> {
        self.zones.iter().filter(|tracked| !tracked.is_gone()).map(|tracked| &*tracked.zone)
    }

    /// Takes up zones that are new or back, and returns what could not be read on the way.
    fn scan(&mut self) -> Vec<(PathBuf, RaplFault)> {
        self.since_scan = Duration::ZERO;
        let powercap::Scan { entries, unknown, problems } = powercap::scan(&self.sysfs);
        for (dir, label) in unknown {
            if self.reported.insert(dir.clone()) {
                info!(path = %dir.display(), name = label, "powercap zone of unknown kind left out");
            }
        }
        let mut problems: Vec<_> = problems.into_iter().map(|(path, error)| (path, RaplFault::from(error))).collect();
        for entry in entries {
            if self.mirrored_dies && entry.kind == ZoneKind::Core {
                continue;
            }
            let energy_uj = entry.dir.join("energy_uj");
            let zone = zone_of(entry, self.mirrored_dies);
            let place = self.zones.iter().position(|tracked| {
                (tracked.zone.kind, tracked.zone.socket, tracked.zone.die) == (zone.kind, zone.socket, zone.die)
                    // A psys that got its number when that of another socket came.
                    || zone.kind == ZoneKind::Psys && tracked.zone.path == zone.path && !tracked.is_gone()
            });
            if let Some(known) = place.map(|place| &self.zones[place])
                && !(known.is_gone() && known.zone.source == zone.source)
            {
                continue;
            }
            match Tracked::open(zone, energy_uj.clone()) {
                Ok(tracked) => {
                    self.warn_of_range(&tracked);
                    if let Some(place) = place {
                        // That it is back is said as its other changes are.
                        let told = self.zones[place].told.clone();
                        self.zones[place] = Tracked { told, ..tracked };
                    } else {
                        info!(zone = %tracked.zone.path, kind = tracked.zone.kind.as_str(), "zone found");
                        self.zones.push(tracked);
                    }
                }
                Err(error) => {
                    self.counts.read_errors += 1;
                    problems.push((energy_uj, RaplFault::from(error)));
                }
            }
        }
        problems
    }

    /// Once for each zone, however often it comes back.
    fn warn_of_range(&mut self, tracked: &Tracked) {
        let Some(why) = &tracked.no_range else { return };
        if self.reported.insert(tracked.energy_uj.with_file_name("max_energy_range_uj")) {
            warn!(zone = %tracked.zone.path, why, "range of the zone unknown: when its counter wraps, the energy of that interval is lost");
        }
    }

    fn report(&mut self, path: PathBuf, fault: &RaplFault) {
        if self.reported.insert(path) {
            warn!(reason = fault.reason.as_str(), error = %fault, "powercap zone left out");
        }
    }
}

/// One zone and the open file it is read from.
#[derive(Debug)]
struct Tracked {
    zone: Arc<Zone>,
    energy_uj: PathBuf,
    /// Closed after a failed read.
    file: Option<File>,
    counter: Counter,
    /// Why the last read failed.
    fault: Option<RaplFault>,
    still: Still,
    told: StateLog<Option<Reason>>,
    /// Why it is not known where the counter wraps.
    no_range: Option<String>,
}

impl Tracked {
    fn open(zone: Zone, energy_uj: PathBuf) -> Result<Self> {
        let file = energy_uj.with_file_name("max_energy_range_uj");
        let (range, no_range) = match powercap::read_number(&file) {
            Ok(0) => (None, Some(format!("{} is 0", file.display()))),
            Ok(range) => (Some(range), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let mut tracked = Self {
            zone: Arc::new(zone),
            energy_uj,
            file: None,
            counter: Counter::new(range),
            fault: None,
            still: Still::default(),
            told: StateLog::default(),
            no_range,
        };
        let asked = tracked.ask();
        tracked.take(asked)?;
        Ok(tracked)
    }

    /// Asks for the counter's value. All zones are asked at once; one that hangs costs the others nothing.
    fn ask(&mut self) -> Errand<Result<(File, u64)>> {
        // sysfs never replaces a file, but a copy of it elsewhere may: the old one would stand still for ever.
        let current = |file: &File| file.metadata().is_ok_and(|metadata| metadata.nlink() > 0);
        let (open, path) = (self.file.take().filter(current), self.energy_uj.clone());
        errand::send(&self.energy_uj, move || {
            let file = open.map_or_else(|| powercap::open(&path), Ok)?;
            let raw = powercap::read_number_again(&file, &path)?;
            Ok((file, raw))
        })
    }

    /// The counter's value that was asked for.
    fn take(&mut self, asked: Errand<Result<(File, u64)>>) -> Result<u64> {
        let (file, raw) = asked.answer().with_context(|| format!("reading {}", self.energy_uj.display()))??;
        self.file = Some(file);
        Ok(raw)
    }

    /// What the counter gained in `elapsed`, which is not what was used then where it had stood still.
    fn gained(&mut self, delta: Delta, elapsed: Duration) -> Delta {
        let stood = self.fault.as_ref().is_some_and(|fault| fault.reason == Reason::Frozen);
        self.still.read(delta.energy.0 > 0 || delta.gap && !stood, elapsed);
        Delta { gap: delta.gap || stood, ..delta }
    }

    /// Whether the zone went away; it is then taken up again by a scan, which looks at its name.
    fn is_gone(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.reason == Reason::Absent)
    }

    /// Logs a change of state, where that is due.
    fn tell(&mut self, now: Instant) {
        let reason = self.fault.as_ref().map(|fault| fault.reason);
        let Some(changes) = self.told.due(reason, now) else { return };
        match &self.fault {
            None => info!(zone = %self.zone.path, changes, "zone readable again"),
            Some(fault) => {
                let reason = fault.reason.as_str();
                warn!(zone = %self.zone.path, reason, error = %fault, changes, "zone unreadable");
            }
        }
    }

    /// Notes a failed read and says whether it changes anything.
    fn fail(&mut self, fault: RaplFault, elapsed: Duration) -> bool {
        if fault.reason == Reason::Absent {
            self.counter.restart();
        } else {
            self.counter.miss(elapsed);
        }
        self.still = Still::default();
        let changed = self.fault.as_ref().is_none_or(|known| known.reason != fault.reason);
        self.fault = Some(fault);
        changed
    }
}

/// A failure with the file it happened on.
#[derive(Debug)]
struct RaplFault {
    reason: Reason,
    error: anyhow::Error,
}

impl From<anyhow::Error> for RaplFault {
    fn from(error: anyhow::Error) -> Self {
        let reason = match error.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == io::ErrorKind::PermissionDenied => Reason::Permission,
            Some(error) if error.kind() == io::ErrorKind::NotFound => Reason::Absent,
            Some(error) if error.kind() == io::ErrorKind::TimedOut => Reason::Hanging,
            // What a file that is still open answers once its device is gone.
            Some(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => Reason::Absent,
            _ => Reason::Error,
        };
        Self { reason, error }
    }
}

impl RaplFault {
    fn advice(&self) -> Advice {
        let what = format!("{:#}", self.error);
        match self.reason {
            Reason::Permission => {
                denial::advise(Some(what), Need::Files, Path::new("/sys"), "run as root or add CAP_DAC_READ_SEARCH")
            }
            Reason::Frozen => Advice::new(
                what,
                "in a virtual machine remove --meter.trust-guest, else choose another meter with --meter.cpu",
            ),
            _ => what.into(),
        }
    }
}

impl fmt::Display for RaplFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.advice().fmt(f)
    }
}

/// How far two reads of one counter may be apart, for its steps of a millisecond: half a joule, 1 ms at 500 W.
const STEP_UJ: u64 = 500_000;

/// Whether these can be the zones of an AMD or Hygon processor: packages and cores only, and the dies of a socket alike.
fn shown_by_amd(entries: &[PowercapZone]) -> bool {
    let known = |entry: &PowercapZone| matches!(entry.kind, ZoneKind::Package | ZoneKind::Core);
    let dies = |socket| entries.iter().filter(move |entry| entry.kind == ZoneKind::Package && entry.socket == socket);
    let mirrored = |entry: &PowercapZone| {
        let first = dies(entry.socket).next().unwrap_or(entry);
        let read = |entry: &PowercapZone| powercap::read_number(&entry.dir.join("energy_uj"));
        match (read(first), read(entry), read(first)) {
            (Ok(before), Ok(other), Ok(after)) => {
                (before.saturating_sub(STEP_UJ)..=after.saturating_add(STEP_UJ)).contains(&other)
            }
            // A zone that cannot be read, or wraps just now, cannot be compared.
            _ => true,
        }
    };
    entries.iter().all(known)
        && entries.iter().filter(|entry| entry.kind == ZoneKind::Package && entry.die.is_some()).all(mirrored)
}

/// The identity under which the energy of `entry` is exported.
fn zone_of(entry: PowercapZone, mirrored_dies: bool) -> Zone {
    let PowercapZone { kind, socket, die, source, dir: _, name } = entry;
    // The path that every host shows, and Kepler too, whatever way the folder was found.
    let path = format!("/sys/class/powercap/{name}");
    Zone { kind, socket, die: die.filter(|_| !mirrored_dies), source, path }
}

/// The state of a meter without a readable zone.
fn down(problems: Vec<(PathBuf, RaplFault)>, sysfs: &Path) -> MeterState {
    let class = sysfs.join("class/powercap");
    let (reason, detail) = match problems.into_iter().map(|(_, fault)| fault).max_by_key(|fault| fault.reason) {
        None => (
            Reason::Absent,
            Advice::new(
                format!("no RAPL zone in {}", class.display()),
                "load the kernel module intel_rapl_msr (most virtual machines have no RAPL)",
            ),
        ),
        Some(fault) if fault.reason == Reason::Absent => (
            Reason::Absent,
            Advice::new(
                fault.to_string(),
                "a container runtime hides the zones: mount the host's /sys elsewhere and name it with --path.sysfs",
            ),
        ),
        Some(fault) => (fault.reason, fault.advice()),
    };
    MeterState::down(MeterName::Rapl, reason, detail)
}
