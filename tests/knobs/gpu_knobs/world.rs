//! A meter over played GPUs, ticking.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_host::meter::gpu::{GpuMeter, GpuOptions, Written};
use energy_model::capping::knob::{Found, Knob, KnobError, KnobValue};
use energy_model::capping::stated::StatedClocks;
use energy_model::gpu::GpuReading;

use crate::common::nvml::FakeNvml;

const TICK: Duration = Duration::from_millis(50);
/// Longer than anything takes on three busy machines.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub struct World {
    pub nvml: FakeNvml,
    pub meter: GpuMeter,
}

impl World {
    /// Opens the meter, and ticks until the knobs of every GPU are known.
    pub fn start(nvml: FakeNvml) -> Self {
        nvml.play();
        let library = nvml.library().display().to_string();
        let options =
            GpuOptions { library, procfs: PathBuf::from("/proc"), interval: TICK, stated: StatedClocks::default() };
        let mut world = Self { meter: GpuMeter::open(Some(options)), nvml };
        let knobs = 2 * world.nvml.state.gpus.len();
        world.until("every GPU to be probed", |world| world.meter.knobs().len() == knobs);
        world
    }

    pub fn tick(&mut self) -> Vec<GpuReading> {
        let began = Instant::now();
        let late = self.meter.ask(began);
        let readings = self.meter.take(began, late);
        std::thread::sleep(TICK.saturating_sub(began.elapsed()));
        readings
    }

    /// A reading of each GPU. A reading that takes longer than the tick waits comes with a later tick.
    pub fn read_each(&mut self) -> Vec<GpuReading> {
        let deadline = Instant::now() + PATIENCE;
        let mut readings = Vec::new();
        while readings.len() < self.nvml.state.gpus.len() {
            assert!(Instant::now() < deadline, "only {} GPUs are read", readings.len());
            for reading in self.tick() {
                readings.retain(|other: &GpuReading| other.gpu.uuid != reading.gpu.uuid);
                readings.push(reading);
            }
        }
        readings
    }

    /// Ticks until it holds.
    pub fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "waiting for {what}: {:?}", self.meter.knobs());
            self.tick();
        }
    }

    pub fn send(&mut self, knob: &Knob, value: KnobValue) {
        let deadline = Instant::now() + PATIENCE;
        while !self.meter.write(knob, value.clone()) {
            assert!(Instant::now() < deadline, "{knob} takes no write");
            self.tick();
        }
    }

    /// Sends a write and waits for what becomes of it, without a tick.
    pub fn write(&mut self, knob: &Knob, value: KnobValue) -> Result<Found, KnobError> {
        self.send(knob, value.clone());
        self.meter.settle(Instant::now() + PATIENCE);
        let mut written = self.meter.take_written();
        assert_eq!(written.len(), 1, "{written:?}");
        let Written { knob: of, value: what, result } = written.remove(0);
        assert_eq!((&of, what), (knob, value));
        result
    }

    pub fn found(&self, knob: &Knob) -> Found {
        self.meter.knobs()[knob].clone()
    }
}

pub fn clock(uuid: &str) -> Knob {
    Knob::GpuClock(Arc::from(uuid))
}

pub fn power(uuid: &str) -> Knob {
    Knob::GpuPower(Arc::from(uuid))
}

/// What the driver received, in order: GPU, call, arguments.
pub fn received(nvml: &FakeNvml) -> Vec<(String, String, Vec<u64>)> {
    let line = |line: serde_json::Value| {
        let arguments = line["arguments"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect();
        (line["uuid"].as_str().unwrap().to_owned(), line["call"].as_str().unwrap().to_owned(), arguments)
    };
    nvml.writes().into_iter().map(line).collect()
}

/// A field case by the name of its file.
pub fn case(name: &str) -> serde_json::Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases").join(format!("{name}.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}
