//! One GPU whose clock and power limit a sweep sets, through the actuator and its journal: what was is on disk first, floors hold,
//! and after any end the next start or `energy-agent restore` gives it back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use energy_host::capping::actuator::{Actuator, SeenKnobs, TroubleKind};
use energy_host::capping::files::FileKnobs;
use energy_host::config::{GpuMode, HostConfig};
use energy_host::meter::gpu::{GpuMeter, GpuOptions};
use energy_model::capping::knob::{Knob, KnobState, Limit, Limits};
use energy_model::capping::managed_knob::change::KnobChangeKind;
use energy_model::capping::observation::{ClockLook, KnobNow};
use energy_model::capping::policy::PolicyName;
use energy_model::gpu::{Gpu, GpuEnergy, GpuReading};
use energy_model::units::Microjoules;

use crate::signals::{EndSignal, none_yet};

/// How long GPUs may take to show up, and a reading to come.
const APPEAR: Duration = Duration::from_secs(10);
/// How long a limit may take: a write waits for up to 8 s while another program's lock is possible, and a raise for up to a minute
/// after twenty of them.
const SET: Duration = Duration::from_secs(90);
const CLOSE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(200);
/// What the journal calls the owner of the limits.
const OWNER: &str = "compare";

/// Values to set; `None` leaves the knob as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GpuSetting {
    pub clock_mhz: Option<u64>,
    pub power_mw: Option<u64>,
}

pub(super) struct GpuLimiter {
    pub gpu: Arc<Gpu>,
    actuator: Actuator,
    files: FileKnobs,
    meter: GpuMeter,
    began: Instant,
    limits: Limits,
    last: Option<GpuReading>,
    /// All that the GPU has used since it was found, and how that is known.
    used: Option<GpuEnergy>,
}

impl GpuLimiter {
    /// Takes the journal, and finds the GPU: the one that is named by UUID or index, or the only one.
    ///
    /// # Errors
    /// When another process caps, limits of an earlier run are in the journal, or there is not one GPU: with the remedy.
    pub fn open(config: &HostConfig, named: Option<&str>) -> Result<Self> {
        if config.gpu == GpuMode::Off {
            bail!("--gpu=off, so there is no GPU whose clocks could be set");
        }
        let actuator = Actuator::open(config);
        if let Some(trouble) = actuator.trouble() {
            let why = match trouble.kind {
                TroubleKind::OtherAgent => "a policy may be active on the GPU",
                TroubleKind::RunDirectory => "another agent could not see that this one sets limits",
                TroubleKind::Journal => "the original values could not be saved",
            };
            bail!("no clock is set, because {why}: {}", trouble.detail);
        }
        if let Some(held) = actuator.held().next() {
            bail!("an earlier run has left {} limited; run `energy-agent restore` first", held.knob);
        }
        let (library, procfs) = (config.nvml_library.clone(), config.procfs.clone());
        let stated = config.gpu_clock_before.clone().unwrap_or_default();
        let mut meter = GpuMeter::open(Some(GpuOptions { library, procfs, interval: TICK, stated }));
        let gpu = find(&mut meter, named)?;
        let files = FileKnobs::open(&config.sysfs, &config.cgroupfs);
        let began = Instant::now();
        let mut limiter = Self { gpu, actuator, files, meter, began, limits: Limits::new(), last: None, used: None };
        limiter.reading()?;
        Ok(limiter)
    }

    /// What the clock can be set to.
    ///
    /// # Errors
    /// When it cannot be set here.
    pub fn clock(&self) -> Result<KnobNow> {
        self.usable(&self.clock_knob())
    }

    /// What the power limit can be set to.
    ///
    /// # Errors
    /// When it cannot be set here.
    pub fn power(&self) -> Result<KnobNow> {
        self.usable(&self.power_knob())
    }

    fn clock_knob(&self) -> Knob {
        Knob::GpuClock(Arc::clone(&self.gpu.uuid))
    }

    fn power_knob(&self) -> Knob {
        Knob::GpuPower(Arc::clone(&self.gpu.uuid))
    }

    fn usable(&self, knob: &Knob) -> Result<KnobNow> {
        match self.actuator.knobs().remove(knob) {
            Some(now) if now.state == KnobState::Ok => Ok(now),
            Some(now) => bail!("{knob} cannot be set here: {}", self.why(knob, now.state)),
            None => bail!("{knob} does not exist here"),
        }
    }

    fn why(&self, knob: &Knob, state: KnobState) -> String {
        let cap = self.actuator.caps(&[knob.clone()].into()).into_iter().find(|cap| cap.knob == *knob);
        cap.and_then(|cap| cap.detail).unwrap_or_else(|| state.as_str().replace('_', " "))
    }

    /// A reading that is taken after this call.
    ///
    /// # Errors
    /// When the GPU does not answer.
    pub fn reading(&mut self) -> Result<GpuReading> {
        let asked = Instant::now();
        loop {
            self.tick();
            if let Some(reading) = self.last.take_if(|reading| reading.taken >= asked) {
                return Ok(reading);
            }
            if asked.elapsed() >= APPEAR {
                bail!("GPU {} does not answer; check nvidia-smi", self.gpu.index);
            }
            thread::sleep(TICK / 4);
        }
    }

    /// Sets the limits, and waits until they are in force.
    ///
    /// # Errors
    /// When one of them cannot be set, another program has set it, or a signal has come.
    pub fn set(&mut self, setting: GpuSetting, ended: &Receiver<EndSignal>) -> Result<()> {
        let wanted = [(self.clock_knob(), setting.clock_mhz), (self.power_knob(), setting.power_mw)];
        let policy = PolicyName { name: OWNER.into(), ..PolicyName::default() };
        let limit = |value| Limit { value, policy: policy.clone() };
        self.limits = wanted.into_iter().filter_map(|(knob, value)| Some((knob, limit(value?)))).collect();
        let asked = Instant::now();
        loop {
            none_yet(ended)?;
            self.tick();
            self.check()?;
            if self.is_in_force() {
                return Ok(());
            }
            if asked.elapsed() >= SET {
                let open: Vec<String> = self.limits.keys().map(ToString::to_string).collect();
                bail!("{} could not be set within {} s", open.join(" and "), SET.as_secs());
            }
            thread::sleep(TICK);
        }
    }

    fn is_in_force(&self) -> bool {
        let knobs = self.actuator.knobs();
        let is_set = |(knob, limit): (&Knob, &Limit)| {
            let current = knobs.get(knob).and_then(|now| now.current);
            current == Some(limit.value) && !self.actuator.held().any(|held| held.knob == *knob && held.is_pending())
        };
        let is_restored = |held: &Knob| self.limits.contains_key(held);
        self.limits.iter().all(is_set) && self.actuator.held().all(|held| is_restored(&held.knob))
    }

    /// Does something, and looks at the GPU meanwhile. Returns also what the GPU used between the readings before and after.
    ///
    /// # Errors
    /// When another program has set the limits meanwhile, or they were not obeyed; or what was done failed.
    pub fn during<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<(T, GpuEnergy)> {
        self.reading()?;
        let before = self.used.map_or(Microjoules::ZERO, |used| used.energy);
        let is_done = AtomicBool::new(false);
        let done = thread::scope(|scope| {
            let look = scope.spawn(|| {
                while !is_done.load(Ordering::SeqCst) {
                    self.tick();
                    thread::sleep(TICK);
                }
            });
            let done = work();
            is_done.store(true, Ordering::SeqCst);
            // It panics only where a tick does.
            drop(look.join());
            done
        })?;
        self.check()?;
        self.reading()?;
        match self.used {
            Some(used) if used.energy > before => Ok((done, GpuEnergy { energy: used.energy - before, ..used })),
            _ => bail!("the energy of GPU {} was not measured; `energy-agent doctor` says why", self.gpu.index),
        }
    }

    /// Whether all is still as this process has set it.
    fn check(&mut self) -> Result<()> {
        for change in self.actuator.take_changes() {
            let knob = &change.knob;
            match change.kind {
                KnobChangeKind::Locked | KnobChangeKind::Foreign => bail!("{knob}: {}", change.detail),
                KnobChangeKind::Refused(_) => bail!("{knob} cannot be set: {}", change.detail),
                KnobChangeKind::RestoreFailed => bail!("{knob} cannot be restored: {}", change.detail),
                KnobChangeKind::Resized
                | KnobChangeKind::Reverted
                | KnobChangeKind::Restored
                | KnobChangeKind::Recovered => {}
            }
        }
        if let Some(trouble) = self.actuator.trouble() {
            bail!("the limits can no longer be noted: {}", trouble.detail);
        }
        let knobs = self.actuator.knobs();
        for knob in self.limits.keys() {
            if let Some(state) = knobs.get(knob).map(|now| now.state).filter(|state| *state != KnobState::Ok) {
                bail!("{knob} cannot be set: {}", self.why(knob, state));
            }
        }
        Ok(())
    }

    fn tick(&mut self) {
        let asked = Instant::now();
        let late = self.meter.ask(asked);
        let readings = self.meter.take(asked, late);
        let mut seen = SeenKnobs::default();
        for reading in readings {
            let uuid = &reading.gpu.uuid;
            if let Some(look) = ClockLook::of(&reading.state) {
                seen.clocks_mhz.insert(Arc::clone(uuid), look.mhz);
                seen.looks.insert(Arc::clone(uuid), look);
            }
            if *uuid == self.gpu.uuid {
                if let Some(energy) = reading.energy {
                    let before = self.used.map_or(Microjoules::ZERO, |used| used.energy);
                    self.used = Some(GpuEnergy { energy: before + energy.energy, ..energy });
                }
                self.last = Some(reading);
            }
        }
        let now = self.began.elapsed();
        self.actuator.look(now, seen, &mut self.files, &mut self.meter);
        self.actuator.apply(now, &self.limits, &mut self.files, &mut self.meter);
    }

    /// Restores what was.
    ///
    /// # Errors
    /// When that cannot be done now; it stays in the journal.
    pub fn close(&mut self) -> Result<()> {
        self.limits.clear();
        let until = Instant::now() + CLOSE;
        if self.actuator.close(self.began.elapsed(), until, &mut self.files, &mut self.meter) {
            return Ok(());
        }
        let left: Vec<String> = self.actuator.held().map(|held| held.knob.to_string()).collect();
        bail!("{} could NOT be restored; run `energy-agent restore` once the GPU answers", left.join(" and "))
    }
}

impl Drop for GpuLimiter {
    /// However a sweep ends, what was is restored.
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            eprintln!("error: {error:#}");
        }
    }
}

/// Waits for GPUs, and chooses one.
fn find(meter: &mut GpuMeter, named: Option<&str>) -> Result<Arc<Gpu>> {
    let asked = Instant::now();
    let mut gpus: BTreeMap<u32, Arc<Gpu>> = BTreeMap::new();
    loop {
        let now = Instant::now();
        let late = meter.ask(now);
        for reading in meter.take(now, late) {
            gpus.insert(reading.gpu.index, reading.gpu);
        }
        let is_named =
            |gpu: &&Arc<Gpu>| named.is_some_and(|named| *gpu.uuid == *named || gpu.index.to_string() == named);
        if let Some(gpu) = gpus.values().find(is_named) {
            return Ok(Arc::clone(gpu));
        }
        let up = meter.health().gpus.len();
        let all: Vec<&Arc<Gpu>> = gpus.values().collect();
        match (named, all.as_slice()) {
            (None, [only]) if up == 1 => return Ok(Arc::clone(only)),
            (None, [_, _, ..]) if up == all.len() => {
                let list: Vec<String> = all.iter().map(|gpu| format!("{} ({})", gpu.index, gpu.uuid)).collect();
                bail!("this node has several GPUs: {}; name one with --on-gpu", list.join(", "));
            }
            _ => {}
        }
        if asked.elapsed() >= APPEAR {
            match named {
                Some(named) => bail!("there is no GPU {named:?} here that can be read; nvidia-smi -L lists them"),
                None => bail!("no GPU can be read here; `energy-agent doctor` says why"),
            }
        }
        thread::sleep(TICK / 4);
    }
}
