//! The CPU energy meter of this node, chosen once at start: RAPL, else perf, else hwmon, else the estimate. Board sensors
//! are read beside whichever it is.
//!
//! A meter that measures is kept for the life of the process. The estimate gives way to one that appears later (a kernel
//! module loaded after the start): series of the new source begin, those of the estimate stand. A series never changes its
//! source.

use std::path::{Path, PathBuf};
use std::time::Duration;

use energy_model::advice::Advice;
use energy_model::cpu::{Domain, DomainLoad};
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::zone::{ZoneEnergy, ZoneKind};

use super::counter::ZoneCounts;
use super::cpu::{self, CpuModel};
use super::estimate::Estimate;
use super::hwmon::Hwmon;
use super::perf::PerfPower;
use super::rapl::Rapl;
use crate::config::CpuMeter;

/// Between two looks for meters that were not there.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// What the choice depends on; fields as the flags of the same meaning.
#[derive(Clone, Copy, Debug)]
pub struct EnergyOptions<'a> {
    pub sysfs: &'a Path,
    pub procfs: &'a Path,
    pub meter: CpuMeter,
    pub trust_guest: bool,
    pub coefficients: Option<&'a Path>,
    /// How long a board's sensor may hold up a tick.
    pub patience: Duration,
}

/// The chosen meter and, unless it is hwmon itself, the board sensors beside it.
pub struct EnergyMeter {
    chosen: Chosen,
    board: Option<Hwmon>,
    /// Why the meters that were not chosen were not.
    others: Vec<MeterState>,
    later: Later,
}

/// What is needed to look again for meters that were not there.
struct Later {
    sysfs: PathBuf,
    meter: CpuMeter,
    guest: bool,
    mirrored_dies: bool,
    patience: Duration,
    since_look: Duration,
    /// Sensors that were there at the last look, usable or not.
    sensors: Vec<PathBuf>,
}

enum Chosen {
    Rapl(Rapl),
    Perf(PerfPower),
    Hwmon(Hwmon),
    Estimate(Estimate),
    None,
}

impl EnergyMeter {
    /// Chooses the meter: the named one, or with `auto` the first that can read a package. That a named meter does not
    /// work is no error; there is no CPU energy then, and [`states`](Self::states) says why. Logs one line.
    ///
    /// # Errors
    /// When the file of coefficients is unusable.
    pub fn open(options: &EnergyOptions<'_>) -> anyhow::Result<Self> {
        let EnergyOptions { sysfs, procfs, meter, trust_guest, coefficients, patience } = *options;
        let model = CpuModel::read(procfs);
        let guest = cpu::is_guest(procfs, sysfs) && !trust_guest;
        let estimate = Estimate::open(&model, coefficients)?;
        let mirrored_dies = model.mirrors_dies();
        let mut others = Vec::new();
        let mut board = None;
        let mut chosen = Chosen::None;
        for candidate in [CpuMeter::Rapl, CpuMeter::Perf, CpuMeter::Hwmon] {
            let wanted = meter == candidate || meter == CpuMeter::Auto && matches!(chosen, Chosen::None);
            let opened = match candidate {
                CpuMeter::Hwmon => Hwmon::open(sysfs, patience).and_then(|hwmon| {
                    if hwmon.has_package() && wanted {
                        return Ok(Chosen::Hwmon(hwmon));
                    }
                    let state = hwmon.state();
                    board = hwmon.has_platform().then_some(hwmon);
                    Err(state)
                }),
                _ if !wanted => Err(not_wanted(candidate, meter)),
                CpuMeter::Rapl => not_in_guest(guest, MeterName::Rapl, open_rapl(sysfs, mirrored_dies)),
                _ => not_in_guest(guest, MeterName::Perf, PerfPower::open(sysfs, mirrored_dies).map(Chosen::Perf)),
            };
            match opened {
                Ok(meter) => chosen = meter,
                Err(state) if wanted || state.meter != MeterName::Hwmon => others.push(state),
                Err(state) => others.push(MeterState { detail: state.detail, ..not_wanted(candidate, meter) }),
            }
        }
        if meter == CpuMeter::Estimate || meter == CpuMeter::Auto && matches!(chosen, Chosen::None) {
            chosen = Chosen::Estimate(estimate);
        } else {
            others.push(not_wanted(CpuMeter::Estimate, meter));
        }
        let later = Later {
            sysfs: sysfs.to_owned(),
            meter,
            guest,
            mirrored_dies,
            patience,
            since_look: Duration::ZERO,
            sensors: Hwmon::files(sysfs),
        };
        let opened = Self { chosen, board, others, later };
        opened.log(meter);
        Ok(opened)
    }

    /// Energy of every zone since the previous call, `elapsed` ago. `loads` is parallel to `domains` and empty while
    /// not known; only the estimate needs it.
    pub fn read(&mut self, elapsed: Duration, loads: &[DomainLoad], domains: &[Domain]) -> Vec<ZoneEnergy> {
        let mut zones = match &mut self.chosen {
            Chosen::Rapl(rapl) => rapl.read(elapsed),
            Chosen::Perf(perf) => perf.read(elapsed),
            Chosen::Hwmon(hwmon) => hwmon.read(elapsed),
            Chosen::Estimate(estimate) => estimate.read(elapsed, loads, domains),
            Chosen::None => Vec::new(),
        };
        let board = self.board.as_mut().map(|board| board.read(elapsed)).unwrap_or_default();
        zones.extend(board.into_iter().filter(|energy| energy.zone.kind == ZoneKind::Platform));
        self.later.since_look = self.later.since_look.saturating_add(elapsed);
        if self.later.since_look >= LOOK_EVERY {
            self.later.since_look = Duration::ZERO;
            self.look();
        }
        zones
    }

    /// Whether a sensor shows the power of the whole machine, or of a module.
    #[must_use]
    pub(crate) fn has_board(&self) -> bool {
        let hwmon = if let Chosen::Hwmon(hwmon) = &self.chosen { Some(hwmon) } else { self.board.as_ref() };
        hwmon.is_some_and(Hwmon::has_platform)
    }

    /// Takes up what came since: a measurement in place of the estimate or of nothing, and sensors of the board.
    fn look(&mut self) {
        let sensors = match &self.chosen {
            Chosen::Hwmon(_) => return,
            _ => Hwmon::files(&self.later.sysfs),
        };
        let more = sensors != self.later.sensors;
        self.later.sensors = sensors;
        let measures = !matches!(self.chosen, Chosen::Estimate(_) | Chosen::None);
        if !measures && let Some(chosen) = self.later.measure(more) {
            self.chosen = chosen;
            if matches!(self.chosen, Chosen::Hwmon(_)) {
                self.board = None;
            }
            let state = self.chosen_state().expect("it was chosen");
            self.others.retain(|other| other.meter != state.meter);
            if self.others.iter().all(|other| other.meter != MeterName::Estimate) {
                self.others.push(not_wanted(CpuMeter::Estimate, self.later.meter));
            }
            tracing::info!(
                meter = state.meter.as_str(),
                detail = %state.detail,
                "a CPU energy meter became available, it is used from now on"
            );
        }
        if more && self.board.is_none() && !matches!(self.chosen, Chosen::Hwmon(_)) {
            let Later { sysfs, patience, .. } = &self.later;
            self.board = Hwmon::open(sysfs, *patience).ok().filter(Hwmon::has_platform);
        }
    }

    /// The machine was suspended. Counters may have been cleared meanwhile, passed their range unseen, or gone on with
    /// what no work caused: their next reading is a first one.
    pub(crate) fn resume(&mut self) {
        match &mut self.chosen {
            Chosen::Rapl(rapl) => rapl.resume(),
            Chosen::Perf(perf) => perf.resume(),
            Chosen::Hwmon(hwmon) => hwmon.resume(),
            Chosen::Estimate(_) | Chosen::None => {}
        }
        if let Some(board) = &mut self.board {
            board.resume();
        }
    }

    /// One state per meter, the chosen one first, that of the board's sensors last.
    #[must_use]
    pub fn states(&self) -> Vec<MeterState> {
        let mut states: Vec<MeterState> = self.chosen_state().into_iter().collect();
        states.extend_from_slice(&self.others);
        let board = match &self.chosen {
            Chosen::Hwmon(hwmon) => Some(hwmon),
            _ => self.board.as_ref(),
        };
        states.extend(board.and_then(Hwmon::board_state));
        states
    }

    #[must_use]
    pub fn counts(&self) -> ZoneCounts {
        let mut counts = match &self.chosen {
            Chosen::Rapl(rapl) => rapl.counts(),
            Chosen::Perf(perf) => perf.counts(),
            Chosen::Hwmon(hwmon) => hwmon.counts(),
            Chosen::Estimate(_) | Chosen::None => ZoneCounts::default(),
        };
        if let Some(board) = &self.board {
            counts += board.counts();
        }
        counts
    }

    /// Microwatts that the estimate gives an idle hardware thread; `None` where energy is measured.
    #[must_use]
    pub fn estimated_idle_power_uw(&self) -> Option<u64> {
        match &self.chosen {
            Chosen::Estimate(estimate) => Some(estimate.idle_power_uw()),
            Chosen::Rapl(_) | Chosen::Perf(_) | Chosen::Hwmon(_) | Chosen::None => None,
        }
    }

    fn chosen_state(&self) -> Option<MeterState> {
        match &self.chosen {
            Chosen::Rapl(rapl) => Some(rapl.state()),
            Chosen::Perf(perf) => Some(perf.state()),
            Chosen::Hwmon(hwmon) => Some(hwmon.state()),
            Chosen::Estimate(estimate) => Some(estimate.state()),
            Chosen::None => None,
        }
    }

    fn log(&self, asked: CpuMeter) {
        let tried = self.others.iter().filter(|state| !matches!(state.reason, Reason::Unused | Reason::Off));
        let tried: Vec<String> = tried
            .map(|MeterState { meter, reason, detail }| format!("{}: {} ({detail})", meter.as_str(), reason.as_str()))
            .collect();
        let tried = tried.join("; ");
        match (&self.chosen, self.chosen_state()) {
            (Chosen::Estimate(_), Some(state)) => tracing::warn!(
                detail = %state.detail,
                tried,
                "CPU energy is an estimate from CPU load, not a measurement; --meter.cpu=none turns it off"
            ),
            (_, Some(state)) => {
                tracing::info!(meter = state.meter.as_str(), detail = %state.detail, tried, "CPU energy meter")
            }
            (_, None) if asked == CpuMeter::None => tracing::info!("CPU energy is off (--meter.cpu=none)"),
            (_, None) => tracing::warn!(tried, "no CPU energy: the meter named by --meter.cpu does not work"),
        }
    }
}

impl Later {
    /// The first of the wanted meters that can read a package now. In a guest only sensors can be one. `sensors` says that there
    /// are others than the last time.
    fn measure(&self, sensors: bool) -> Option<Chosen> {
        let wants = |meter| self.meter == CpuMeter::Auto || self.meter == meter;
        let rapl = || open_rapl(&self.sysfs, self.mirrored_dies).ok();
        let perf = || PerfPower::open(&self.sysfs, self.mirrored_dies).ok().map(Chosen::Perf);
        let hwmon = || Hwmon::open(&self.sysfs, self.patience).ok().filter(Hwmon::has_package).map(Chosen::Hwmon);
        let mut found = None;
        if wants(CpuMeter::Rapl) && !self.guest {
            found = rapl();
        }
        if found.is_none() && wants(CpuMeter::Perf) && !self.guest {
            found = perf();
        }
        if found.is_none() && wants(CpuMeter::Hwmon) && sensors {
            found = hwmon();
        }
        found
    }
}

/// RAPL if it can be read now: zones that only root may read are found, and are no meter.
fn open_rapl(sysfs: &Path, mirrored_dies: bool) -> Result<Chosen, MeterState> {
    let rapl = Rapl::open(sysfs, mirrored_dies)?;
    let state = rapl.state();
    if state.is_up() { Ok(Chosen::Rapl(rapl)) } else { Err(state) }
}

/// A guest's energy counters are what its hypervisor made up, or those of the whole host.
fn not_in_guest(guest: bool, meter: MeterName, opened: Result<Chosen, MeterState>) -> Result<Chosen, MeterState> {
    if !guest || opened.is_err() {
        return opened;
    }
    let what = "this is a virtual machine, so its counters may not be real";
    let detail = Advice::new(what, "--meter.trust-guest trusts them");
    Err(MeterState::down(meter, Reason::Guest, detail))
}

fn not_wanted(candidate: CpuMeter, asked: CpuMeter) -> MeterState {
    let meter = match candidate {
        CpuMeter::Rapl => MeterName::Rapl,
        CpuMeter::Perf => MeterName::Perf,
        CpuMeter::Hwmon => MeterName::Hwmon,
        CpuMeter::Estimate | CpuMeter::Auto | CpuMeter::None => MeterName::Estimate,
    };
    let (reason, detail) = match asked {
        CpuMeter::None => (Reason::Off, "turned off by --meter.cpu=none"),
        CpuMeter::Auto => (Reason::Unused, "a better meter works"),
        _ => (Reason::Unused, "--meter.cpu names another meter"),
    };
    MeterState::down(meter, reason, detail)
}

#[cfg(test)]
mod tests;
