//! A command at several clocks or power limits of a GPU: which of them is best.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use energy_host::config::HostConfig;
use energy_model::capping::observation::KnobNow;
use energy_model::gpu::{GpuEnergy, GpuReading};
use energy_report::compare::{CompareOptions, RunGroup, compare};
use energy_report::run::{Energy, Part, Run, WHOLE_GPU, Warning};
use energy_report::sweep::{KnobSteps, Objective, SweepRange};

use super::allocation::NodeKubelet;
use super::limiter::{GpuLimiter, GpuSetting};
use super::runs_file::RunsFile;
use super::schedule::order;
use crate::cli::run_problem::RunProblem;
use crate::signals::{EndSignal, none_yet};

/// A run begins within so many degrees of the first, or after so long.
const WARMER: u32 = 2;
const COOLING: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(500);
/// The group without a limit.
pub(super) const OPEN: &str = "open";

/// What is swept.
pub(super) struct Sweep<'a> {
    pub host: &'a HostConfig,
    pub gpu: Option<&'a str>,
    /// At which the kubelet says which pod has which GPU.
    pub resources_socket: &'a Path,
    pub clocks: Option<SweepRange>,
    /// Watts.
    pub power: Option<SweepRange>,
    pub rounds: u32,
    pub objective: Objective,
    pub refine: bool,
    pub seed: u64,
    pub options: &'a CompareOptions,
}

/// Runs of every setting, the open one first.
pub(super) struct Swept {
    pub groups: Vec<RunGroup>,
    pub settings: Vec<GpuSetting>,
    /// The UUID of the GPU.
    pub gpu: String,
}

/// Measures a command once. The map has labels for the run.
pub(super) type MeasureSetting<'a> = dyn FnMut(&BTreeMap<String, String>) -> Result<Run> + 'a;

impl Sweep<'_> {
    /// Measures every setting, and restores what was. Each run is in the file as soon as it was made.
    ///
    /// # Errors
    /// When the GPU is not this command's alone, a limit cannot be set, nothing can be measured, or a signal has come.
    pub fn run(
        &self,
        ended: &Receiver<EndSignal>,
        measure: &mut MeasureSetting<'_>,
        file: RunsFile<'_>,
    ) -> Result<Swept, RunProblem> {
        let kubelet = NodeKubelet::new(self.resources_socket)?;
        let mut limiter = GpuLimiter::open(self.host, self.gpu)?;
        let (settings, steps) = self.settings(&limiter)?;
        let gpu = limiter.gpu.uuid.to_string();
        let mut bench = SweepBench {
            limiter: &mut limiter,
            kubelet: &kubelet,
            first_celsius: None,
            ended,
            measure,
            seed: self.seed,
            count: 0,
        };
        bench.first_celsius = bench.ready()?;
        let mut groups: Vec<RunGroup> =
            settings.iter().map(|setting| RunGroup { name: name(*setting), runs: Vec::new() }).collect();
        let mut settings = settings;
        for thing in order(settings.len(), self.rounds, self.seed, Some(0)) {
            groups[thing].runs.push(bench.once(settings[thing])?);
            file.keep(&groups)?;
        }
        if let Some(steps) = steps.filter(|_| self.refine) {
            while let Some(clock_mhz) = steps.next(&self.tried(&settings, &groups)?) {
                let setting = GpuSetting { clock_mhz: Some(clock_mhz), power_mw: None };
                settings.push(setting);
                let thing = groups.len();
                groups.push(RunGroup { name: name(setting), runs: Vec::new() });
                for _ in 0..self.rounds {
                    groups[thing].runs.push(bench.once(setting)?);
                    file.keep(&groups)?;
                }
            }
        }
        limiter.close()?;
        Ok(Swept { groups, settings, gpu })
    }

    /// The settings, of which the first limits nothing, and the steps of what can be refined.
    fn settings(&self, limiter: &GpuLimiter) -> Result<(Vec<GpuSetting>, Option<KnobSteps>)> {
        let clock =
            self.clocks.map(|range| Ok::<_, anyhow::Error>((range, steps(&limiter.clock()?, 1)))).transpose()?;
        let power =
            self.power.map(|range| Ok::<_, anyhow::Error>((range, steps(&limiter.power()?, 1000)))).transpose()?;
        let values = |found: Option<(SweepRange, KnobSteps)>, unit: &str| -> Result<Vec<Option<u64>>> {
            let Some((range, steps)) = found else { return Ok(vec![None]) };
            Ok(steps.values(range, unit).map_err(anyhow::Error::msg)?.into_iter().map(Some).collect())
        };
        let (clocks, powers) = (values(clock, "MHz")?, values(power, "W")?);
        let mut settings = vec![GpuSetting::default()];
        for watts in powers {
            let power_mw = watts.map(|watts| watts * 1000);
            settings.extend(clocks.iter().map(|clock_mhz| GpuSetting { clock_mhz: *clock_mhz, power_mw }));
        }
        // With two knobs, what lies between is not one line.
        let refined = clock.filter(|_| power.is_none()).map(|(range, steps)| KnobSteps {
            floor: steps.floor,
            max: steps.max.min(range.high),
            step: steps.step,
        });
        Ok((settings, refined))
    }

    /// What each clock cost.
    fn tried(&self, settings: &[GpuSetting], groups: &[RunGroup]) -> Result<Vec<(u64, f64)>> {
        let costs = compare(groups, self.options).map_err(anyhow::Error::msg)?.costs(self.objective);
        Ok(settings.iter().zip(costs).filter_map(|(setting, cost)| Some((setting.clock_mhz?, cost?))).collect())
    }
}

/// The GPU and the command, ready to be measured once more.
struct SweepBench<'a, 'm> {
    limiter: &'a mut GpuLimiter,
    kubelet: &'a NodeKubelet,
    first_celsius: Option<u32>,
    ended: &'a Receiver<EndSignal>,
    measure: &'a mut MeasureSetting<'m>,
    seed: u64,
    count: u32,
}

impl SweepBench<'_, '_> {
    fn once(&mut self, setting: GpuSetting) -> Result<Run> {
        self.limiter.set(setting, self.ended)?;
        self.ready()?;
        self.count += 1;
        let mut labels = BTreeMap::from([
            ("gpu-setting".to_owned(), name(setting)),
            ("seed".to_owned(), self.seed.to_string()),
            ("order".to_owned(), self.count.to_string()),
        ]);
        labels.extend(setting.clock_mhz.map(|mhz| ("gpu-clock-mhz".to_owned(), mhz.to_string())));
        labels.extend(setting.power_mw.map(|mw| ("gpu-power-watts".to_owned(), (mw / 1000).to_string())));
        let measure = &mut self.measure;
        let (mut run, used) = self.limiter.during(|| measure(&labels))?;
        none_yet(self.ended)?;
        if run.outcome.as_ref().is_some_and(|outcome| !outcome.succeeded) {
            bail!("the command failed at {}; the sweep ends, and what was set is restored", name(setting));
        }
        charge_whole(&mut run, &self.limiter.gpu.uuid, used);
        Ok(run)
    }

    /// Waits until the GPU is as cool as at the first start. Returns its temperature.
    ///
    /// # Errors
    /// When the GPU is not this command's alone, does not answer, or a signal has come.
    fn ready(&mut self) -> Result<Option<u32>> {
        let asked = Instant::now();
        let mut is_told = false;
        loop {
            none_yet(self.ended)?;
            let reading = self.limiter.reading()?;
            check_that_it_is_free(&reading)?;
            self.kubelet.check_that_no_pod_has(&reading.gpu)?;
            let celsius = reading.state.temperature_celsius;
            let (Some(now), Some(first)) = (celsius, self.first_celsius) else { return Ok(celsius) };
            if now <= first + WARMER || asked.elapsed() >= COOLING {
                return Ok(celsius);
            }
            if !is_told {
                let index = reading.gpu.index;
                let most = COOLING.as_secs();
                eprintln!(
                    "GPU {index} is at {now} °C; the next run begins at {} °C, or after {most} s",
                    first + WARMER
                );
                is_told = true;
            }
            thread::sleep(LOOK);
        }
    }
}

/// # Errors
/// When others use the GPU.
fn check_that_it_is_free(reading: &GpuReading) -> Result<()> {
    let index = reading.gpu.index;
    if !reading.instances.is_empty() {
        bail!("GPU {index} is divided into MIG instances, which share its clock; a sweep would slow down all of them");
    }
    if !reading.processes.is_empty() {
        let pids: Vec<String> = reading.processes.iter().map(|process| process.pid.to_string()).collect();
        bail!(
            "GPU {index} is used by process {}: a sweep would slow it down, and its work would be measured; stop it first",
            pids.join(", ")
        );
    }
    Ok(())
}

/// The GPU was the command's alone, so that all its energy counts: at a low clock, work that takes longer costs more idle power.
fn charge_whole(run: &mut Run, uuid: &str, used: GpuEnergy) {
    run.energy.retain(|energy| energy.part != Part::Gpu);
    run.energy.push(Energy {
        part: Part::Gpu,
        zone: uuid.to_owned(),
        node: String::new(),
        source: used.source.as_str().to_owned(),
        estimated: false,
        microjoules: used.energy.0,
        peak_watts: None,
    });
    let message =
        "the GPU was this command's alone, so all its energy is the run's, from the reading before to the one after";
    run.warnings.push(Warning { code: WHOLE_GPU.to_owned(), message: message.to_owned() });
}

fn steps(knob: &KnobNow, unit: u64) -> KnobSteps {
    let max = knob.original.map_or(knob.max, |original| original.min(knob.max));
    KnobSteps { floor: knob.min.div_ceil(unit), max: max / unit, step: (knob.step / unit).max(1) }
}

/// `1200 MHz`, `1200 MHz 350 W`.
pub(super) fn name(setting: GpuSetting) -> String {
    let clock = setting.clock_mhz.map(|mhz| format!("{mhz} MHz"));
    let power = setting.power_mw.map(|mw| format!("{} W", mw / 1000));
    let parts: Vec<String> = clock.into_iter().chain(power).collect();
    if parts.is_empty() { OPEN.to_owned() } else { parts.join(" ") }
}
