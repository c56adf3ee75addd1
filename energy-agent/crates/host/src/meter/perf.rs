//! RAPL through the kernel's `power` PMU: one perf event per energy domain and package, for systems whose powercap
//! files are masked. Counts are summed by the kernel in 64 bits, so nothing wraps here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context as _, bail};
use energy_model::advice::Advice;
use energy_model::cpu::Domain;
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::units::{Microjoules, floor_u64};
use energy_model::zone::{Source, Zone, ZoneEnergy, ZoneKind};

use super::counter::{Counter, Delta, ZoneCounts};
use super::denial::{self, Need};
use super::state_log::StateLog;
use super::still::{self, Still};
use super::{cpu, perf_event};

const PMU: &str = "bus/event_source/devices/power";

/// File name below `events/`, what it covers, and whether there is one per package (psys is one per machine).
const EVENTS: [(&str, ZoneKind, bool); 5] = [
    ("energy-pkg", ZoneKind::Package, true),
    ("energy-ram", ZoneKind::Dram, true),
    ("energy-cores", ZoneKind::Core, true),
    ("energy-gpu", ZoneKind::Uncore, true),
    ("energy-psys", ZoneKind::Psys, false),
];

/// What the PMU offers, as its sysfs folder says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pmu {
    kind: u32,
    /// One CPU of each package (or die), on which its events are opened.
    cpus: Vec<u32>,
    events: Vec<EnergyEvent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct EnergyEvent {
    kind: ZoneKind,
    per_package: bool,
    config: u64,
    /// Microjoules per count in units of 2^-60; exact for the kernel's scale of 2^-32 J.
    scale: u64,
    path: String,
}

#[derive(Debug)]
struct ZoneReader {
    zone: Arc<Zone>,
    cpu: u32,
    event: EnergyEvent,
    /// `None` after an error (the CPU went offline, say) until it can be opened again.
    opened: Option<perf_event::PerfCounter>,
    /// Of the energy that was counted since the event was opened. It has no range: the kernel sums up in 64 bits.
    counter: Counter,
    still: Still,
    /// It stands still, and cannot have used nothing.
    frozen: bool,
    /// Why it is not used.
    told: StateLog<Option<Reason>>,
}

/// The opened events of the `power` PMU.
#[derive(Debug)]
pub struct PerfPower {
    kind: u32,
    readers: Vec<ZoneReader>,
    refused: Vec<String>,
    counts: ZoneCounts,
}

impl PerfPower {
    /// Opens every event that the PMU offers. With `mirrored_dies` only one die of each socket is opened.
    ///
    /// # Errors
    /// A state that says why no package can be read: `absent`, `permission` or `error`.
    pub fn open(sysfs: &Path, mirrored_dies: bool) -> Result<Self, MeterState> {
        if !sysfs.join(PMU).join("type").exists() {
            let what = format!("{} is missing", pmu_file(sysfs, ""));
            let remedy = "load the kernel module rapl (virtual machines have none)";
            return Err(down(Reason::Absent, Advice::new(what, remedy)));
        }
        let pmu = Pmu::read(sysfs).map_err(|error| down(Reason::Error, format!("{error:#}")))?;
        let mut opened =
            Self { kind: pmu.kind, readers: Vec::new(), refused: Vec::new(), counts: ZoneCounts::default() };
        let mut refusal: Option<io::Error> = None;
        for (event, cpu, zone) in pmu.zones(sysfs, mirrored_dies) {
            match event.open(pmu.kind, cpu) {
                Ok(reading) => {
                    let (zone, counter) = (Arc::new(zone), Counter::new(None));
                    let (still, frozen, told) = (Still::default(), false, StateLog::default());
                    let opened_event = Some(reading);
                    opened.readers.push(ZoneReader {
                        zone,
                        cpu,
                        event,
                        opened: opened_event,
                        counter,
                        still,
                        frozen,
                        told,
                    });
                }
                Err(error) => {
                    opened.refused.push(format!("{} on CPU {cpu}: {error}", event.path));
                    refusal.get_or_insert(error);
                }
            }
        }
        if opened.readers.iter().any(|reader| reader.zone.kind == ZoneKind::Package) {
            return Ok(opened);
        }
        let refused = opened.refused.first().map_or("no event energy-pkg", String::as_str);
        Err(match refusal {
            Some(error) if error.kind() == io::ErrorKind::PermissionDenied => down(
                Reason::Permission,
                denial::advise(
                    Some(format!("perf_event_open {refused}")),
                    Need::Perf,
                    sysfs,
                    "run as root, give CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), or set kernel.perf_event_paranoid to \
                     0 or lower",
                ),
            ),
            Some(_) => down(Reason::Error, format!("perf_event_open {refused}")),
            None => down(
                Reason::Absent,
                format!("{} has no event energy-pkg with a CPU to read it on", pmu_file(sysfs, "")),
            ),
        })
    }

    /// Energy of every zone since the previous call, `elapsed` ago; a zone is missing at its first reading and when
    /// unreadable.
    pub fn read(&mut self, elapsed: Duration) -> Vec<ZoneEnergy> {
        let mut gained: Vec<Option<Delta>> = Vec::with_capacity(self.readers.len());
        let now = Instant::now();
        for ZoneReader { zone, cpu, event, opened, counter, still, frozen, told } in &mut self.readers {
            match event.read(self.kind, *cpu, opened) {
                Ok(total) => {
                    let delta = counter.advance(total.0, elapsed, &mut self.counts);
                    gained.push(delta.map(|delta| {
                        still.read(delta.energy.0 > 0 || delta.gap && !*frozen, elapsed);
                        Delta { gap: delta.gap || *frozen, ..delta }
                    }));
                }
                Err(error) => {
                    self.counts.read_errors += 1;
                    *opened = None;
                    (*still, *frozen) = (Still::default(), false);
                    gained.push(None);
                    if let Some(changes) = told.due(Some(Reason::Error), now) {
                        let (path, socket) = (&zone.path, zone.socket);
                        tracing::warn!(path, socket, changes, %error, "perf energy event unreadable");
                    }
                    counter.restart();
                }
            }
        }
        self.judge(&gained, now)
    }

    /// The energies of the events that count; of the others it is said that they stand still.
    fn judge(&mut self, gained: &[Option<Delta>], now: Instant) -> Vec<ZoneEnergy> {
        let places =
            self.readers.iter().map(|ZoneReader { zone, still, .. }| ((zone.kind, zone.socket, zone.die), *still));
        let broken = still::broken(&places.collect::<Vec<_>>());
        let mut zones = Vec::with_capacity(gained.len());
        for ((ZoneReader { zone, still, frozen, told, .. }, delta), broken) in
            self.readers.iter_mut().zip(gained).zip(broken)
        {
            let Some(Delta { energy, gap }) = *delta else { continue };
            *frozen = broken;
            if !broken {
                zones.push(ZoneEnergy { zone: Arc::clone(zone), energy, gap });
            }
            match told.due(broken.then_some(Reason::Frozen), now) {
                None => {}
                Some(changes) if broken => {
                    let (path, socket) = (&zone.path, zone.socket);
                    tracing::warn!(
                        path,
                        socket,
                        changes,
                        why = still.describe(),
                        "the perf energy event does not move"
                    );
                }
                Some(changes) => {
                    let (path, socket) = (&zone.path, zone.socket);
                    tracing::info!(path, socket, changes, "perf energy event readable again");
                }
            }
        }
        zones
    }

    /// The machine was suspended: the next reading of each event is a first one.
    pub(crate) fn resume(&mut self) {
        self.readers.iter_mut().for_each(|reader| reader.counter.restart());
    }

    #[must_use]
    pub fn state(&self) -> MeterState {
        let reading = self.readers.iter().filter(|reader| reader.opened.is_some()).count();
        let packages = || self.readers.iter().filter(|reader| reader.zone.kind == ZoneKind::Package);
        let open = || packages().filter(|reader| reader.opened.is_some());
        let mut detail = format!("{reading} of {} perf energy events read", self.readers.len() + self.refused.len());
        for refused in &self.refused {
            detail.push_str("; ");
            detail.push_str(refused);
        }
        if let Some(frozen) = packages().find(|reader| reader.frozen) {
            detail.push_str(&format!("; {}: {}", frozen.zone.path, frozen.still.describe()));
        }
        let reason = match () {
            () if open().any(|reader| !reader.frozen) => Reason::Ok,
            () if open().next().is_some() => Reason::Frozen,
            () => Reason::Error,
        };
        MeterState { meter: MeterName::Perf, reason, detail: detail.into() }
    }

    #[must_use]
    pub fn counts(&self) -> ZoneCounts {
        self.counts
    }
}

impl EnergyEvent {
    fn open(&self, kind: u32, cpu: u32) -> io::Result<perf_event::PerfCounter> {
        perf_event::PerfCounter::open(perf_event::PerfEvent { kind, config: self.config }, cpu)
    }

    /// The energy that was counted since the event was opened, which it is here if it is not.
    fn read(&self, kind: u32, cpu: u32, opened: &mut Option<perf_event::PerfCounter>) -> io::Result<Microjoules> {
        let counter = match opened {
            Some(counter) => counter,
            none => none.insert(self.open(kind, cpu)?),
        };
        Ok(self.energy(counter.read()?.count))
    }

    /// The energy of `count` in all, rounded down. Differences of this lose nothing over time.
    fn energy(&self, count: u64) -> Microjoules {
        Microjoules(u64::try_from((u128::from(count) * u128::from(self.scale)) >> 60).unwrap_or(u64::MAX))
    }
}

impl Pmu {
    fn read(sysfs: &Path) -> anyhow::Result<Self> {
        let folder = sysfs.join(PMU);
        let kind = text(&folder.join("type"))?;
        let kind = kind.parse().with_context(|| format!("{}: {kind:?} is not a PMU type", pmu_file(sysfs, "type")))?;
        let cpus = cpu::read_list(&folder.join("cpumask"))?;
        let mut events = Vec::new();
        for (name, kind, per_package) in EVENTS {
            let file = folder.join("events").join(name);
            if file.exists() {
                let config = config(&file)?;
                let scale = scale(&file)?;
                events.push(EnergyEvent { kind, per_package, config, scale, path: format!("{PMU}/events/{name}") });
            }
        }
        Ok(Self { kind, cpus, events })
    }

    /// Which event to open on which CPU, and the zone that it is.
    fn zones(&self, sysfs: &Path, mirrored_dies: bool) -> Vec<(EnergyEvent, u32, Zone)> {
        let mut places: Vec<(u32, Domain)> = self.cpus.iter().map(|&cpu| (cpu, cpu::ids(sysfs, cpu))).collect();
        let dies: Vec<Domain> = places.iter().map(|place| place.1).collect();
        for (_, place) in &mut places {
            if mirrored_dies || dies.iter().filter(|other| other.socket == place.socket).count() < 2 {
                place.die = None;
            }
        }
        places.sort_by_key(|&(cpu, place)| (place, cpu));
        places.dedup_by_key(|place| place.1);
        let mut zones = Vec::new();
        for event in &self.events {
            for &(cpu, Domain { socket, die }) in places.iter().take(if event.per_package { places.len() } else { 1 }) {
                let (socket, die) = if event.per_package { (socket, die) } else { (None, None) };
                let zone = Zone { kind: event.kind, socket, die, source: Source::Perf, path: event.path.clone() };
                zones.push((event.clone(), cpu, zone));
            }
        }
        zones
    }
}

/// `event=0x02`, as the file of an event says.
fn config(file: &Path) -> anyhow::Result<u64> {
    let text = text(file)?;
    let digits = text.strip_prefix("event=").map(|value| value.trim_start_matches("0x"));
    match digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        Some(config) => Ok(config),
        None => bail!("{}: {text:?} is not of the form event=0x02", file.display()),
    }
}

/// Microjoules per count in units of 2^-60, from the files `.scale` and `.unit` of an event.
fn scale(file: &Path) -> anyhow::Result<u64> {
    let unit_file = PathBuf::from(format!("{}.unit", file.display()));
    let unit = text(&unit_file)?;
    if unit != "Joules" {
        bail!("{}: {unit:?} is not Joules", unit_file.display());
    }
    let scale_file = PathBuf::from(format!("{}.scale", file.display()));
    let text = text(&scale_file)?;
    match text.parse::<f64>() {
        // The upper limit keeps the result within 64 bits. A power of two stays exact in all of this.
        Ok(scale) if scale > 0.0 && scale < 1e-5 => Ok(floor_u64(scale * 1e6 * 2f64.powi(60))),
        _ => bail!("{}: {text:?} is not a scale between 0 and 0.00001 joules", scale_file.display()),
    }
}

fn text(file: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(text.trim().to_owned())
}

fn pmu_file(sysfs: &Path, name: &str) -> String {
    sysfs.join(PMU).join(name).display().to_string().trim_end_matches('/').to_owned()
}

fn down(reason: Reason, detail: impl Into<Advice>) -> MeterState {
    MeterState::down(MeterName::Perf, reason, detail)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn tree(files: &[(&str, &str)]) -> TempDir {
        let root = TempDir::new().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const SCALE: &str = "2.3283064365386962890625e-10\n";

    fn pmu(extra: &[(&str, &str)]) -> TempDir {
        let mut files = vec![
            ("bus/event_source/devices/power/type", "4294967295\n"),
            ("bus/event_source/devices/power/cpumask", "0,28\n"),
            ("bus/event_source/devices/power/events/energy-pkg", "event=0x02\n"),
            ("bus/event_source/devices/power/events/energy-pkg.scale", SCALE),
            ("bus/event_source/devices/power/events/energy-pkg.unit", "Joules\n"),
            ("bus/event_source/devices/power/events/energy-psys", "event=0x05\n"),
            ("bus/event_source/devices/power/events/energy-psys.scale", SCALE),
            ("bus/event_source/devices/power/events/energy-psys.unit", "Joules\n"),
            ("devices/system/cpu/cpu0/topology/physical_package_id", "0\n"),
            ("devices/system/cpu/cpu0/topology/die_id", "0\n"),
            ("devices/system/cpu/cpu28/topology/physical_package_id", "1\n"),
            ("devices/system/cpu/cpu28/topology/die_id", "0\n"),
        ];
        files.extend_from_slice(extra);
        tree(&files)
    }

    fn places(root: &TempDir, mirrored_dies: bool) -> Vec<(ZoneKind, u32, Option<u32>, Option<u32>)> {
        let zones = Pmu::read(root.path()).unwrap().zones(root.path(), mirrored_dies);
        zones.into_iter().map(|(_, cpu, zone)| (zone.kind, cpu, zone.socket, zone.die)).collect()
    }

    #[test]
    fn there_is_a_zone_per_event_and_package_and_one_psys() {
        let root = pmu(&[]);
        let package = ZoneKind::Package;
        assert_eq!(
            places(&root, false),
            [(package, 0, Some(0), None), (package, 28, Some(1), None), (ZoneKind::Psys, 0, None, None)]
        );
    }

    #[test]
    fn dies_of_a_socket_are_zones_unless_they_mirror_each_other() {
        let root = pmu(&[
            ("devices/system/cpu/cpu28/topology/physical_package_id", "0\n"),
            ("devices/system/cpu/cpu28/topology/die_id", "1\n"),
        ]);
        let package = ZoneKind::Package;
        let psys = (ZoneKind::Psys, 0, None, None);
        let two = [(package, 0, Some(0), Some(0)), (package, 28, Some(0), Some(1)), psys];
        assert_eq!(places(&root, false), two);
        assert_eq!(places(&root, true), [(package, 0, Some(0), None), psys]);
    }

    #[test]
    fn counts_become_microjoules_without_drift() {
        let root = pmu(&[]);
        let event = Pmu::read(root.path()).unwrap().events.remove(0);
        // One count is 2^-32 J.
        assert_eq!(event.energy(1 << 32), Microjoules(1_000_000));
        assert_eq!(event.energy((1 << 32) - 1), Microjoules(999_999));
        // Three counts are 0.00070 uJ; 1433 of these steps (4299 counts) are 1.0009 uJ.
        let steps = (0..1433).map(|step| event.energy(3 * (step + 1)) - event.energy(3 * step));
        assert_eq!(steps.sum::<Microjoules>(), Microjoules(1));
        // Half of the 64-bit range is 2^31 J.
        assert_eq!(event.energy(1 << 63), Microjoules(2_147_483_648_000_000));
    }

    /// The kernel's CPU clock in place of a power PMU: a count is a nanosecond.
    fn clock(scale: &str) -> PerfPower {
        let root = pmu(&[
            ("bus/event_source/devices/power/type", "1\n"),
            ("bus/event_source/devices/power/cpumask", "0\n"),
            ("bus/event_source/devices/power/events/energy-pkg", "event=0x00\n"),
            ("bus/event_source/devices/power/events/energy-pkg.scale", scale),
        ]);
        PerfPower::open(root.path(), false).expect("perf_event_open needs root or CAP_PERFMON")
    }

    fn package(perf: &mut PerfPower, elapsed: Duration) -> Vec<(u64, bool)> {
        let zones = perf.read(elapsed);
        let packages = zones.iter().filter(|energy| energy.zone.kind == ZoneKind::Package);
        packages.map(|energy| (energy.energy.0, energy.gap)).collect()
    }

    #[test]
    fn an_event_of_the_kernel_is_read_from_its_second_reading_on() {
        let mut perf = clock(SCALE);
        let outer = Instant::now();
        assert_eq!(package(&mut perf, Duration::from_secs(1)), []);
        let inner = Instant::now();
        std::thread::sleep(Duration::from_millis(100));
        let inner = inner.elapsed();
        let read = package(&mut perf, outer.elapsed());
        // 10^8 counts of 2^-32 J are 23283 uJ: a count a nanosecond, within two spans of time.
        let energy = |span: Duration| u64::try_from(span.as_nanos() * 1_000_000 / (1 << 32)).unwrap();
        // The two clocks may differ by a little.
        let (least, most) = (energy(inner) * 99 / 100, energy(outer.elapsed()) * 101 / 100);
        assert!(
            matches!(read[..], [(energy, false)] if (least..=most).contains(&energy)),
            "{read:?}: {least} to {most}"
        );
    }

    #[test]
    fn a_jump_that_no_machine_can_cause_is_a_reset() {
        // After a suspend that cleared the register, the kernel takes the fall for a pass through its 32 bits.
        let mut perf = clock("9e-6\n");
        package(&mut perf, Duration::from_secs(1));
        std::thread::sleep(Duration::from_millis(300));
        // 3 x 10^8 counts are 2700 J, in a millisecond and the 100 that reading may take.
        assert_eq!(package(&mut perf, Duration::from_millis(1)), [(0, true)]);
        assert_eq!(perf.counts().resets, 1);
    }

    #[test]
    fn the_kernels_own_refusal_is_reported() {
        let root = pmu(&[]);
        let state = PerfPower::open(root.path(), false).unwrap_err();
        assert!(!state.is_up());
        // ENOENT for an unknown PMU type; EACCES first where the caller may not measure at all.
        assert!(matches!(state.reason, Reason::Error | Reason::Permission), "{state:?}");
        assert!(state.detail.what.contains("energy-pkg on CPU 0"), "{state:?}");
    }

    #[test]
    fn a_missing_pmu_is_absent() {
        let root = tree(&[]);
        let state = PerfPower::open(root.path(), false).unwrap_err();
        assert_eq!(state.reason, Reason::Absent);
    }

    #[test]
    fn nonsense_is_named_with_its_file() {
        for (name, value) in [
            ("type", "many"),
            ("cpumask", "x7"),
            ("events/energy-pkg", "umask=1"),
            ("events/energy-pkg.scale", "NaN"),
            ("events/energy-pkg.scale", "-1"),
            ("events/energy-pkg.unit", "Watts"),
        ] {
            let root = pmu(&[(&format!("{PMU}/{name}"), value)]);
            let state = PerfPower::open(root.path(), false).unwrap_err();
            assert_eq!(state.reason, Reason::Error);
            assert!(state.detail.what.contains(name) && state.detail.what.contains(value), "{state:?}");
        }
    }
}
