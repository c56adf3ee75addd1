//! Power limits: the `long_term` constraint of each CPU package, for the node as a whole.
//!
//! Source: `constraint_N_power_limit_uw`, <https://docs.kernel.org/power/powercap/powercap.html>; all power in microwatts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Found, KnobError, KnobValue};
use energy_model::zone::ZoneKind;

use super::attribute;
use crate::meter::powercap::{self, PowercapZone};

/// The unit in which most processors hold a limit, an eighth of a watt; the kernel rounds down to a whole number of them.
const UNIT_UW: u64 = 125_000;

/// Calls of [`PowerLimits::refresh`] between two looks for packages that came or went.
const REFRESHES_PER_SCAN: u32 = 60;

/// The packages that have such a limit.
#[derive(Debug)]
pub struct PowerLimits {
    sysfs: PathBuf,
    zones: BTreeMap<Arc<str>, LimitedZone>,
    refreshes: u32,
}

/// Constraints go by number in the names of their files and by what they are in the file `constraint_N_name`.
#[derive(Clone, Debug)]
struct LimitedZone {
    folder: PathBuf,
    long_term: u32,
    short_term: Option<u32>,
}

impl PowerLimits {
    #[must_use]
    pub fn open(sysfs: &Path) -> Self {
        Self { sysfs: sysfs.to_owned(), zones: zones(powercap::scan(sysfs).entries), refreshes: 0 }
    }

    /// Looks again now and then, and at once when a zone has gone.
    pub fn refresh(&mut self) {
        self.refreshes += 1;
        if self.refreshes >= REFRESHES_PER_SCAN || self.zones.values().any(|zone| !zone.folder.exists()) {
            self.zones = zones(powercap::scan(&self.sysfs).entries);
            self.refreshes = 0;
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.zones.keys()
    }

    /// The file that is written.
    ///
    /// # Errors
    /// When there is no such zone.
    pub fn file(&self, name: &str) -> Result<PathBuf, KnobError> {
        self.zone(name).map(LimitedZone::file)
    }

    /// The range ends at the zone's `max_power_uw`, where it is known, and at the `short_term` limit, which the long one
    /// must not exceed. Where neither is known, it ends at the limit that is set. A limit of 0 is none.
    ///
    /// # Errors
    /// When the zone has gone or its limit cannot be read.
    pub fn read(&self, name: &str) -> Result<Found, KnobError> {
        let zone = self.zone(name)?.clone();
        attribute::by_errand(&zone.file(), move || zone.read())
    }

    /// Whether the limit may be written.
    ///
    /// # Errors
    /// As [`attribute::writable`]; also when the zone has gone or hangs.
    pub fn writable(&self, name: &str) -> Result<(), KnobError> {
        let file = self.file(name)?;
        attribute::by_errand(&self.file(name)?, move || attribute::writable(&file))
    }

    /// Sets a limit, brought into the range, and enables it (`enabled`); or restores both.
    ///
    /// # Errors
    /// As [`Self::read`]; also when the file may not be written (a limit that the firmware has locked answers with EACCES),
    /// or what is to be restored is no limit.
    pub fn write(&self, name: &str, value: &KnobValue) -> Result<Found, KnobError> {
        let (zone, value) = (self.zone(name)?.clone(), value.clone());
        attribute::by_errand(&zone.file(), move || zone.write(&value))
    }

    fn zone(&self, name: &str) -> Result<&LimitedZone, KnobError> {
        self.zones.get(name).ok_or_else(|| KnobError {
            state: KnobState::Unreachable,
            detail: format!("powercap zone {name}: does not exist, or has no long_term constraint"),
        })
    }
}

/// Ends the text of a limit that was not enabled.
const DISABLED: &str = "disabled";

impl LimitedZone {
    fn open(folder: PathBuf) -> Option<Self> {
        let whole = folder.clone();
        attribute::by_errand(&whole, move || Ok(Self::open_now(folder))).ok().flatten()
    }

    fn open_now(folder: PathBuf) -> Option<Self> {
        let name = |index: u32| attribute::read(&folder.join(format!("constraint_{index}_name"))).ok();
        // The kernel has at most three (long, short, peak); a number may be left out.
        let position = |wanted: &str| (0..8).find(|&index| name(index).as_deref() == Some(wanted));
        let long_term = position("long_term")?;
        let short_term = position("short_term");
        let zone = Self { folder, long_term, short_term };
        zone.attribute(long_term, "power_limit_uw").exists().then_some(zone)
    }

    /// The file that is written.
    fn file(&self) -> PathBuf {
        self.attribute(self.long_term, "power_limit_uw")
    }

    fn read(&self) -> Result<Found, KnobError> {
        let limit = attribute::read_number(&self.attribute(self.long_term, "power_limit_uw"))?;
        let short = self.short_term.and_then(|short| attribute::known(&self.attribute(short, "power_limit_uw")));
        let highest = attribute::known(&self.attribute(self.long_term, "max_power_uw"));
        let least = attribute::known(&self.attribute(self.long_term, "min_power_uw")).unwrap_or(UNIT_UW);
        let value = Some(limit).filter(|&limit| limit > 0);
        let bound = highest.into_iter().chain(short).min().or(value);
        Ok(Found {
            min: least,
            max: bound.unwrap_or(0),
            step: UNIT_UW,
            value,
            raw: if self.disabled() { format!("{limit} {DISABLED}") } else { limit.to_string() },
            state: if bound.is_some_and(|bound| bound >= least) { KnobState::Ok } else { KnobState::Unsupported },
            epoch: attribute::inode(&self.folder),
        })
    }

    fn write(&self, value: &KnobValue) -> Result<Found, KnobError> {
        let file = self.file();
        let enabled = self.folder.join("enabled");
        let before = self.read()?;
        let (wanted, disabled) = match value {
            KnobValue::Set(_) if before.state != KnobState::Ok => {
                let detail = format!("setting {}: neither its maximum nor its current value is known", file.display());
                return Err(KnobError { state: before.state, detail });
            }
            KnobValue::Set(limit) => ((*limit).min(before.max).max(before.min), false),
            KnobValue::Restore(raw) => match raw.split_once(' ') {
                Some((limit, DISABLED)) => (super::number(limit)?, true),
                _ => (super::number(raw)?, false),
            },
        };
        // A zone is never enabled with a limit that is neither the old nor the new one.
        if disabled && !self.disabled() {
            attribute::write(&enabled, "0")?;
        }
        attribute::write(&file, &wanted.to_string())?;
        if !disabled
            && self.disabled()
            && let Err(error) = attribute::write(&enabled, "1")
        {
            attribute::write(&file, &before.value.unwrap_or(0).to_string())?;
            return Err(error);
        }
        let mut found = self.read()?;
        let shown = found.value.unwrap_or(0);
        if shown.abs_diff(wanted) >= UNIT_UW || self.disabled() != disabled {
            found.state = KnobState::NotEffective;
        }
        Ok(found)
    }

    fn attribute(&self, constraint: u32, name: &str) -> PathBuf {
        self.folder.join(format!("constraint_{constraint}_{name}"))
    }

    /// Whether its limits are kept but not enabled; without the file they are enabled.
    fn disabled(&self) -> bool {
        attribute::read(&self.folder.join("enabled")).is_ok_and(|enabled| enabled == "0")
    }
}

/// One zone for each package or die, of its copies the first that has a limit: the hardware keeps to the lower of both, so
/// that lowering one is enough, and the first is the one that is metered (FC-002).
fn zones(entries: Vec<PowercapZone>) -> BTreeMap<Arc<str>, LimitedZone> {
    let mut packages = Vec::new();
    let mut zones = BTreeMap::new();
    for PowercapZone { kind, socket, die, dir, name, source: _ } in entries {
        if kind != ZoneKind::Package || packages.contains(&(socket, die)) {
            continue;
        }
        if let Some(zone) = LimitedZone::open(dir) {
            packages.push((socket, die));
            zones.insert(name.into(), zone);
        }
    }
    zones
}
