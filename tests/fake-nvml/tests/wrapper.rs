//! The library as programs load it: through nvml-wrapper, from a folder that is played.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fake_nvml::folder::Folder;
use fake_nvml::returns::Return;
use fake_nvml::state::{Gpu, Instance, Mig, Process, ProcessKind, Sample, State};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, Sampling, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use tempfile::TempDir;

/// A copy of the library in a folder of its own, because a file that is loaded twice is loaded once.
struct Machine {
    dir: TempDir,
    folder: Folder,
}

impl Machine {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::copy(built(), dir.path().join("libfake_nvml.so")).unwrap();
        let folder = Folder::new(dir.path().join("fake-nvml"));
        fs::create_dir(folder.path()).unwrap();
        Self { dir, folder }
    }

    fn with(gpus: Vec<Gpu>) -> (Self, Nvml) {
        let machine = Self::new();
        machine.folder.play(&State { gpus, ..State::default() });
        let nvml = machine.load().unwrap();
        (machine, nvml)
    }

    fn load(&self) -> Result<Nvml, NvmlError> {
        Nvml::builder().lib_path(self.dir.path().join("libfake_nvml.so").as_os_str()).init()
    }

    fn writes(&self) -> String {
        fs::read_to_string(self.folder.path().join("writes.log")).unwrap_or_default()
    }
}

fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().map(|deps| deps.join("libfake_nvml.so")).filter(|path| Path::exists(path)).unwrap()
}

fn gpu(uuid: &str) -> Gpu {
    Gpu { uuid: uuid.to_owned(), ..Gpu::default() }
}

#[test]
fn devices_are_found_and_named() {
    let (_machine, nvml) = Machine::with(vec![gpu("GPU-a"), Gpu { name: "NVIDIA L4".to_owned(), ..gpu("GPU-b") }]);
    assert_eq!(nvml.device_count().unwrap(), 2);
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.82.07");
    let device = nvml.device_by_uuid("GPU-b").unwrap();
    assert_eq!((device.index().unwrap(), device.minor_number().unwrap()), (1, 1));
    assert_eq!(device.name().unwrap(), "NVIDIA L4");
    assert_eq!(nvml.device_by_index(0).unwrap().uuid().unwrap(), "GPU-a");
    let pci = device.pci_info().unwrap();
    assert_eq!((pci.bus_id.as_str(), pci.bus), ("00000000:3B:00.0", 0x3B));
    assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));
}

#[test]
fn figures_are_what_is_played_and_null_is_not_supported() {
    let played = Gpu {
        energy_mj: Some(126_272_101_025),
        power_mw: Some(52_636),
        utilization: Some((60, 7)),
        temperature_celsius: None,
        memory_used_bytes: Some(1 << 30),
        ..gpu("GPU-a")
    };
    let (machine, nvml) = Machine::with(vec![played.clone()]);
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.total_energy_consumption().unwrap(), 126_272_101_025);
    assert_eq!(device.power_usage().unwrap(), 52_636);
    assert_eq!(device.utilization_rates().unwrap().gpu, 60);
    assert_eq!(device.memory_info().unwrap().used, 1 << 30);
    assert!(matches!(device.temperature(TemperatureSensor::Gpu), Err(NvmlError::NotSupported)));
    assert_eq!(device.enforced_power_limit().unwrap(), 700_000);
    assert_eq!(device.clock_info(Clock::SM).unwrap(), 345);
    assert_eq!(device.supported_graphics_clocks(2619).unwrap().len(), 110);
    let fields = device.field_values_for(&[FieldId(83), FieldId(186), FieldId(1)]).unwrap();
    assert!(format!("{fields:?}").contains("U64(126272101025)"), "{fields:?}");
    assert!(fields.last().unwrap().as_ref().unwrap().value.is_err());

    machine.folder.play(&State { gpus: vec![Gpu { power_mw: Some(1), ..played }], ..State::default() });
    assert_eq!(device.power_usage().unwrap(), 1);
    let calls = fs::read_to_string(machine.folder.path().join("calls/nvmlDeviceGetPowerUsage")).unwrap();
    assert_eq!(calls, "00");
}

#[test]
fn processes_and_their_samples_are_listed() {
    let process = |pid, kind| Process { pid, kind, memory_bytes: Some(4000), ..Process::default() };
    let played = Gpu {
        processes: Some(vec![
            process(17, ProcessKind::Compute),
            process(301, ProcessKind::Mps),
            process(9, ProcessKind::Graphics),
        ]),
        samples: Some(vec![
            Sample { pid: 17, at_us: 1000, sm: 80, memory: 1 },
            Sample { pid: 301, at_us: 2000, sm: 255, memory: 0 },
        ]),
        power_samples: Some(vec![(1000, 10_000), (2000, 180_000)]),
        ..gpu("GPU-a")
    };
    let (machine, nvml) = Machine::with(vec![played]);
    let device = nvml.device_by_index(0).unwrap();
    let pids = |list: Vec<nvml_wrapper::struct_wrappers::device::ProcessInfo>| -> Vec<u32> {
        list.iter().map(|process| process.pid).collect()
    };
    assert_eq!(pids(device.running_compute_processes().unwrap()), [17, 301]);
    assert_eq!(pids(device.mps_running_compute_processes().unwrap()), [301]);
    assert_eq!(pids(device.running_graphics_processes().unwrap()), [9]);
    let samples = device.process_utilization_stats(1000).unwrap();
    assert_eq!((samples.len(), samples[0].pid, samples[0].sm_util), (1, 301, 255));
    assert_eq!(device.samples(Sampling::Power, 1000).unwrap().len(), 1);
    machine.folder.play(&State { gpus: vec![gpu("GPU-a")], ..State::default() });
    assert!(matches!(device.process_utilization_stats(None), Err(NvmlError::NotFound)));
    assert!(device.running_compute_processes().unwrap().is_empty());
}

#[test]
fn mig_devices_are_devices() {
    let instance = Instance { uuid: "MIG-b".to_owned(), gpu_instance: 5, slices: 2, ..Instance::default() };
    let mig = Mig { enabled: true, instances: vec![instance] };
    let process = Process { pid: 12, gpu_instance: Some(5), ..Process::default() };
    let (_machine, nvml) = Machine::with(vec![Gpu { mig: Some(mig), processes: Some(vec![process]), ..gpu("GPU-a") }]);
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(device.mig_mode().map(|mode| mode.current), Ok(1)));
    let child = device.mig_device_by_index(0).unwrap();
    assert_eq!(child.uuid().unwrap(), "MIG-b");
    assert_eq!(child.mig_parent_device().unwrap().uuid().unwrap(), "GPU-a");
    assert_eq!(child.attributes().unwrap().gpu_instance_slice_count, 2);
    assert_eq!(child.running_compute_processes().unwrap()[0].gpu_instance_id, Some(5));
    assert!(matches!(device.mig_device_by_index(1), Err(NvmlError::NotFound)));
}

#[test]
fn calls_fail_and_hang_as_played() {
    let (machine, nvml) = Machine::with(vec![gpu("GPU-a"), gpu("GPU-b")]);
    let mut state = State { gpus: vec![gpu("GPU-a"), gpu("GPU-b")], ..State::default() };
    let (a, b) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    state.gpus[0].errors.insert("*".to_owned(), Return::GpuIsLost);
    state.gpus[1].hangs.insert("nvmlDeviceGetPowerUsage".to_owned(), 0.3);
    machine.folder.play(&state);
    assert!(matches!(a.power_usage(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    assert_eq!(nvml.device_count().unwrap(), 2);
    let began = Instant::now();
    assert_eq!(b.power_usage().unwrap(), 70_000);
    assert!(began.elapsed() >= Duration::from_millis(300));

    state.gpus.swap(0, 1);
    machine.folder.play(&state);
    assert_eq!((b.index().unwrap(), b.uuid().unwrap()), (0, "GPU-b".to_owned()));
}

#[test]
fn a_driver_comes_late_and_is_loaded_anew() {
    let machine = Machine::new();
    assert!(matches!(machine.load(), Err(NvmlError::DriverNotLoaded)));
    machine.folder.play(&State { gpus: vec![gpu("GPU-a")], ..State::default() });
    let nvml = machine.load().unwrap();
    let mut device = nvml.device_by_index(0).unwrap();
    device
        .set_gpu_locked_clocks(nvml_wrapper::enums::device::GpuLockedClocksSetting::Numeric {
            min_clock_mhz: 345,
            max_clock_mhz: 1200,
        })
        .unwrap();
    device.set_power_management_limit(300_000).unwrap();
    assert!(matches!(device.set_power_management_limit(100_000), Err(NvmlError::InvalidArg)));
    assert_eq!(device.power_management_limit().unwrap(), 300_000);
    let writes = machine.writes();
    assert!(writes.contains(r#""arguments":[345,1200],"at_us""#), "{writes}");
    assert_eq!(writes.lines().count(), 3);

    machine.folder.play(&State { gpus: vec![gpu("GPU-a")], generation: 2, ..State::default() });
    assert!(matches!(device.power_usage(), Err(NvmlError::Unknown)));
    nvml.shutdown().unwrap();
    let nvml = machine.load().unwrap();
    assert_eq!(nvml.device_by_index(0).unwrap().power_management_limit().unwrap(), 700_000);
}

#[test]
fn xids_are_told_to_those_who_listen() {
    let (machine, nvml) = Machine::with(vec![Gpu { xids: vec![13], ..gpu("GPU-a") }]);
    let device = nvml.device_by_index(0).unwrap();
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, nvml.create_event_set().unwrap()).unwrap();
    assert!(matches!(set.wait(1), Err(NvmlError::Timeout)));
    machine.folder.play(&State { gpus: vec![Gpu { xids: vec![13, 79], ..gpu("GPU-a") }], ..State::default() });
    assert!(format!("{:?}", set.wait(1000).unwrap()).contains("79"));
    assert!(matches!(set.wait(1), Err(NvmlError::Timeout)));
}

#[test]
fn a_plant_integrates_what_its_clocks_and_limits_let_it_draw() {
    let process = Process { pid: 5, load: 1.0, ..Process::default() };
    let plant = fake_nvml::plant::Plant { exponent: 2.0, delay_s: 0.0, average_s: 0.2, ..Default::default() };
    let (_machine, nvml) =
        Machine::with(vec![Gpu { plant: Some(plant), processes: Some(vec![process]), ..gpu("GPU-a") }]);
    let mut device = nvml.device_by_index(0).unwrap();
    let power_within = |device: &nvml_wrapper::Device, mw: std::ops::RangeInclusive<u32>| {
        // The mean of 0.2 s comes as near as this in 50 looks; a slow machine takes more time for each.
        for _ in 0..3000 {
            if mw.contains(&device.power_usage().unwrap()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{:?} is not in {mw:?}", device.power_usage());
    };
    power_within(&device, 699_900..=700_000);
    // The counter is read within two spans of time: what it counts is 700 W of one that lies between them.
    let outer = Instant::now();
    let before = device.total_energy_consumption().unwrap();
    let inner = Instant::now();
    std::thread::sleep(Duration::from_millis(500));
    let inner = inner.elapsed().as_secs_f64();
    let joules = f64::from(u32::try_from(device.total_energy_consumption().unwrap() - before).unwrap()) / 1000.0;
    let outer = outer.elapsed().as_secs_f64();
    assert!(joules > 0.96 * 700.0 * inner && joules < 1.04 * 700.0 * outer, "{joules} J in {inner} to {outer} s");
    // 227.5 W at 990 MHz, worked out by hand; the limit of 220 W is 966 MHz, so 960: 70 + 630 * (960/1980)^2 = 218.1 W.
    device
        .set_gpu_locked_clocks(nvml_wrapper::enums::device::GpuLockedClocksSetting::Numeric {
            min_clock_mhz: 345,
            max_clock_mhz: 1000,
        })
        .unwrap();
    power_within(&device, 227_400..=227_600);
    assert_eq!(device.clock_info(Clock::SM).unwrap(), 990);
    assert_eq!(device.current_throttle_reasons().unwrap().bits(), 2);
    device.set_power_management_limit(220_000).unwrap();
    power_within(&device, 218_000..=218_200);
    assert_eq!(device.current_throttle_reasons().unwrap().bits(), 4);
    let samples = device.process_utilization_stats(None).unwrap();
    assert_eq!((samples[0].pid, samples[0].sm_util), (5, 100));
}

#[test]
fn a_device_may_take_a_limit_or_a_lock_and_go_on_as_before() {
    let process = Process { pid: 5, load: 1.0, ..Process::default() };
    let mut played = Gpu { plant: Some(Default::default()), processes: Some(vec![process]), ..gpu("GPU-a") };
    played.limits.as_mut().unwrap().keep = true;
    played.clocks.ignore_locks = true;
    let (machine, nvml) = Machine::with(vec![played]);
    let mut device = nvml.device_by_index(0).unwrap();
    device.set_power_management_limit(300_000).unwrap();
    assert_eq!(device.power_management_limit().unwrap(), 700_000);
    device
        .set_gpu_locked_clocks(nvml_wrapper::enums::device::GpuLockedClocksSetting::Numeric {
            min_clock_mhz: 345,
            max_clock_mhz: 1200,
        })
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(device.clock_info(Clock::SM).unwrap(), 1980, "the lock would hold it at 1200");
    assert_eq!(machine.writes().lines().count(), 2);
}
