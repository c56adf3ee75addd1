//! Tries the GPU meter and the agent on this machine's NVML, with two processes of different load, and prints what they
//! saw: `cargo xtask gpu-check`. Reads only; nothing on the GPU is changed.
//!
//! `gpu-check AGENT LOAD [LIBRARY] [SECONDS]`; LOAD is `cuda-load`, or `-` for none.

#![expect(clippy::unwrap_used, reason = "tried by people; it ends at the first thing that is wrong")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use energy_host::meter::gpu::{GpuMeter, GpuOptions};
use energy_model::capping::stated::StatedClocks;
use nvml_wrapper::enum_wrappers::device::{Clock, Sampling, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

const ADDRESS: &str = "127.0.0.1:19202";
const DUTIES: [&str; 2] = ["0.6", "0.2"];
const CALLS: u32 = 50;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [agent, load, rest @ ..] = arguments.as_slice() else {
        panic!("usage: gpu-check AGENT LOAD [LIBRARY] [SECONDS]");
    };
    let library = rest.first().map_or("libnvidia-ml.so.1", String::as_str);
    let seconds: u64 = rest.get(1).map_or(20, |text| text.parse().unwrap());
    let nvml = Nvml::builder().lib_path(OsStr::new(library)).init().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    println!("card {}, driver {}", device.name().unwrap(), nvml.sys_driver_version().unwrap());
    if let Ok(mode) = device.mig_mode() {
        println!("MIG {}", mode.current);
    }
    calls("idle", &device);

    let loads: Vec<Stopped> = if load == "-" { Vec::new() } else { start_loads(load, seconds * 2 + 20) };
    let names: BTreeMap<u32, &str> = loads.iter().zip(DUTIES).map(|(load, duty)| (load.0.id(), duty)).collect();
    println!("\nloads by pid: {names:?}");
    sleep(Duration::from_secs(3));
    calls("loaded", &device);
    meter(library, seconds, &device, &names);
    run_agent(agent, library, seconds, &device, &names);
}

/// A child that is ended with its owner.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn start_loads(load: &str, seconds: u64) -> Vec<Stopped> {
    DUTIES
        .iter()
        .map(|duty| Stopped(Command::new(load).args([duty, seconds.to_string().as_str()]).spawn().unwrap()))
        .collect()
}

/// Each call alone: its cost, or what the driver says instead.
fn calls(when: &str, device: &Device<'_>) {
    println!("\ncalls, {when} (mean of {CALLS}):");
    let time = |name: &str, call: &dyn Fn() -> Result<String, NvmlError>| {
        let began = Instant::now();
        let mut last = call();
        for _ in 1..CALLS {
            last = call();
        }
        let each = began.elapsed() / CALLS;
        let text = last.unwrap_or_else(|error| format!("** {error}"));
        println!("  {name:34} {:9.1} us  {text:.100}", each.as_secs_f64() * 1e6);
    };
    time("total_energy_consumption", &|| device.total_energy_consumption().map(|mj| format!("{mj} mJ")));
    time("power_usage", &|| device.power_usage().map(|mw| format!("{mw} mW")));
    time("samples(Power)", &|| {
        device.samples(Sampling::Power, 0).map(|list| {
            let span = list.last().zip(list.first()).map_or(0, |(last, first)| last.timestamp - first.timestamp);
            format!("{} samples over {span} us", list.len())
        })
    });
    time("process_utilization_stats(0)", &|| {
        device.process_utilization_stats(0).map(|list| format!("{} samples, {:?}", list.len(), list.first()))
    });
    time("running_compute_processes", &|| device.running_compute_processes().map(|list| format!("{list:?}")));
    time("running_graphics_processes", &|| device.running_graphics_processes().map(|list| format!("{list:?}")));
    time("mps_running_compute_processes", &|| device.mps_running_compute_processes().map(|list| format!("{list:?}")));
    time("utilization_rates", &|| device.utilization_rates().map(|rates| format!("{rates:?}")));
    time("memory_info", &|| device.memory_info().map(|memory| format!("{memory:?}")));
    time("temperature", &|| device.temperature(TemperatureSensor::Gpu).map(|celsius| celsius.to_string()));
    time("clock_info(SM)", &|| device.clock_info(Clock::SM).map(|mhz| format!("{mhz} MHz")));
    time("clock_info(Memory)", &|| device.clock_info(Clock::Memory).map(|mhz| format!("{mhz} MHz")));
    time("enforced_power_limit", &|| device.enforced_power_limit().map(|mw| format!("{mw} mW")));
    time("current_throttle_reasons", &|| device.current_throttle_reasons().map(|reasons| format!("{reasons:?}")));
    time("mig_mode", &|| device.mig_mode().map(|mode| format!("{mode:?}")));
    time("supported_event_types", &|| device.supported_event_types().map(|types| format!("{types:?}")));
}

/// The meter alone, as the tick uses it.
fn meter(library: &str, seconds: u64, device: &Device<'_>, names: &BTreeMap<u32, &str>) {
    println!("\nthe meter, {seconds} readings a second apart:");
    let options = GpuOptions {
        library: library.to_owned(),
        procfs: PathBuf::from("/proc"),
        interval: Duration::from_secs(1),
        stated: StatedClocks::default(),
    };
    let mut meter = GpuMeter::open(Some(options));
    sleep(Duration::from_secs(2));
    let mut work: BTreeMap<u32, u64> = BTreeMap::new();
    let (mut total_uj, mut first_mj, mut last_mj) = (0, None, None);
    for _ in 0..seconds {
        let began = Instant::now();
        let late = meter.ask(began);
        let asked = began.elapsed();
        let readings = meter.take(began, late);
        let waited = began.elapsed();
        for reading in readings.iter().filter(|reading| reading.gpu.index == 0) {
            last_mj = device.total_energy_consumption().ok();
            first_mj = first_mj.or(last_mj);
            total_uj += reading.energy.map_or(0, |energy| energy.energy.0);
            for process in &reading.processes {
                *work.entry(process.pid).or_default() += process.work;
            }
            println!(
                "  asked in {asked:?}, there after {waited:?}: {:?} in {:?}, {:?}, {:?} {:?}",
                reading.energy, reading.elapsed, reading.state, reading.evidence, reading.processes
            );
        }
        sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
    }
    println!("  {:?}\n  {:?}", meter.state(), meter.health());
    println!("  meter {total_uj} uJ, counter {:?} mJ", first_mj.zip(last_mj).map(|(first, last)| last - first));
    for (pid, work) in work {
        println!("  pid {pid} (duty {}): work {work}", names.get(&pid).unwrap_or(&"?"));
    }
}

/// The built agent against the card's own counter, and what it costs.
fn run_agent(agent: &str, library: &str, seconds: u64, device: &Device<'_>, names: &BTreeMap<u32, &str>) {
    println!("\nthe agent, {seconds} s:");
    let state = env::temp_dir().join("gpu-check-state");
    let agent = Command::new(agent)
        .args([&format!("--web.listen-address={ADDRESS}"), &format!("--nvml.library={library}")])
        .arg(format!("--state.directory={}", state.display()))
        .stderr(Stdio::inherit())
        .spawn()
        .map(Stopped)
        .unwrap();
    let pid = agent.0.id();
    sleep(Duration::from_secs(5));
    let began = Instant::now();
    let (first, first_mj, first_cpu) = (page(), device.total_energy_consumption(), threads(pid));
    sleep(Duration::from_secs(seconds));
    let (last, last_mj, last_cpu) = (page(), device.total_energy_consumption(), threads(pid));
    println!("  over {:?}", began.elapsed());
    if let (Ok(first), Ok(last)) = (first_mj, last_mj) {
        println!("  card's counter: {} mJ (read up to a tick later than the agent)", last - first);
    }
    for (series, value) in &last {
        let gained = value - first.get(series).copied().unwrap_or_default();
        let about_gpus = series.contains("gpu") || series.contains("nvml");
        if about_gpus && (*value > 0.0 || series.contains("_up{")) {
            println!("  {series} {value} (+{gained:.6})");
        }
    }
    let ticks = |page: &BTreeMap<String, f64>| page.get("energy_agent_ticks_total").copied().unwrap_or_default();
    let ticks = ticks(&last) - ticks(&first);
    println!("  CPU a tick by thread ({ticks} ticks), us:");
    for (thread, ns) in last_cpu {
        let before = first_cpu.get(&thread).copied().unwrap_or_default();
        println!("    {thread:24} {:9.1}", Duration::from_nanos(ns - before).as_secs_f64() * 1e6 / ticks);
    }
    println!("  loads by pid: {names:?}");
}

/// CPU time of each thread of a process; nanoseconds.
fn threads(pid: u32) -> BTreeMap<String, u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let read = |path: PathBuf, file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
    tasks
        .map(|task| {
            let path = task.unwrap().path();
            let name = format!("{} {}", read(path.clone(), "comm").trim(), path.file_name().unwrap().display());
            let schedstat = read(path, "schedstat");
            (name, schedstat.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or_default())
        })
        .collect()
}

/// All series of the agent.
fn page() -> BTreeMap<String, f64> {
    let mut stream = TcpStream::connect(ADDRESS).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {ADDRESS}\r\nAccept: text/plain\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        })
        .collect()
}
