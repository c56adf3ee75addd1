//! Stand-in until the powercap reader is merged: package zones of `class/powercap/intel-rapl:*`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::counter::{Counter, ZoneCounts};
use super::{MeterState, Source, Zone, ZoneEnergy, ZoneKind};

pub struct Rapl {
    zones: Vec<(Arc<Zone>, PathBuf, Counter)>,
    counts: ZoneCounts,
}

impl Rapl {
    /// # Errors
    /// Why no package zone can be read.
    pub fn open(sysfs: &Path, _mirrored_dies: bool) -> Result<Self, MeterState> {
        let root = sysfs.join("class/powercap");
        let mut zones = Vec::new();
        for entry in fs::read_dir(&root).into_iter().flatten().flatten() {
            let folder = entry.path();
            let name = fs::read_to_string(folder.join("name")).unwrap_or_default();
            if let Some(socket) = name.trim().strip_prefix("package-").and_then(|text| text.parse().ok()) {
                let path = folder.strip_prefix(sysfs).unwrap_or(&folder).display().to_string();
                let zone =
                    Zone { kind: ZoneKind::Package, socket: Some(socket), die: None, source: Source::Rapl, path };
                zones.push((Arc::new(zone), folder.join("energy_uj"), Counter::new(None)));
            }
        }
        if zones.is_empty() {
            let detail = format!("{} shows no RAPL zone", root.display());
            return Err(MeterState { meter: "rapl", up: false, reason: "absent", detail });
        }
        Ok(Self { zones, counts: ZoneCounts::default() })
    }

    pub fn read(&mut self, elapsed: Duration) -> Vec<ZoneEnergy> {
        let mut read = Vec::new();
        for (zone, path, counter) in &mut self.zones {
            let raw = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
            if let Some(delta) = raw.and_then(|raw| counter.advance(raw, elapsed, &mut self.counts)) {
                read.push(ZoneEnergy { zone: Arc::clone(zone), energy: delta.energy, gap: delta.gap });
            }
        }
        read
    }

    #[must_use]
    pub fn state(&self) -> MeterState {
        MeterState { meter: "rapl", up: true, reason: "ok", detail: format!("{} zones", self.zones.len()) }
    }

    #[must_use]
    pub fn counts(&self) -> ZoneCounts {
        self.counts
    }
}
