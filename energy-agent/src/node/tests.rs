//! The page of a fixed world: what a node shows after a known history of readings, byte for byte.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use clap::Parser;
use energy_export::series;
use energy_export::text::{Format, Writer};
use energy_model::cpu::{Domain, DomainLoad};
use energy_model::gpu::{Evidence, Gpu, GpuEnergy, GpuInstance, GpuProcess, GpuProcessKind, GpuReading, GpuState};
use energy_model::meter_state::MeterName;
use energy_model::process::Process;
use energy_model::sample::{CgroupEvent, CgroupId, KERNEL_THREADS};
use energy_model::sample::{ProcessEvent, ProcessSample, ProcessWork};
use energy_model::units::Microjoules;
use energy_model::workload::names::{Pod, PodContainer};
use energy_model::zone::{Source, Zone, ZoneEnergy, ZoneKind};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    config: Config,
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A cgroup that comes and goes, with one process.
struct Place {
    path: String,
    id: Option<CgroupId>,
    process: Process,
}

/// A node over a tree of files, whose meters are never read: the test gives it what they would have read.
struct World {
    node: Node,
    folder: tempfile::TempDir,
    numbers: Numbers,
    seconds: u64,
    places: Vec<Place>,
    told: KnownPods,
}

const UIDS: [&str; 4] = [
    "11111111-1111-4111-8111-111111111111",
    "22222222-2222-4222-8222-222222222222",
    "33333333-3333-4333-8333-333333333333",
    "44444444-4444-4444-8444-444444444444",
];

fn container_id(pod: usize, container: usize) -> String {
    format!("{:064x}", 0xabc0_0000_u64 + u64::try_from(16 * pod + container).unwrap())
}

impl World {
    fn new(flags: &[&str], count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["sys", "proc/2", "proc/sys/kernel/random", "cgroup/system.slice", "state", "run", "gone"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("cgroup/cgroup.controllers"), "").unwrap();
        // kthreadd: the host's processes are in sight.
        fs::write(at("proc/2/stat"), "2 (kthreadd) S 0 0 0 0 -1 2129984 0").unwrap();
        fs::write(at("proc/sys/kernel/random/boot_id"), "boot").unwrap();
        let paths = [
            ("--path.sysfs", "sys"),
            ("--path.procfs", "proc"),
            ("--path.cgroupfs", "cgroup"),
            ("--state.directory", "state"),
            ("--run.directory", "run"),
            ("--pods.resources-socket", "no.sock"),
        ];
        let mut line = vec!["energy-agent".to_owned()];
        line.extend(paths.iter().map(|(flag, name)| format!("{flag}={}", at(name).display())));
        line.extend(flags.iter().map(|&flag| flag.to_owned()));
        let config = Line::parse_from(line).config;
        let mut node = Node::open(&config, None, None).unwrap();
        node.sampler.metered_domains = [0, 1].map(|socket| Domain { socket: Some(socket), die: None }).to_vec();
        let mut paths = vec!["system.slice/a.service".to_owned(), "system.slice/b.service".to_owned()];
        paths.push(format!("system.slice/docker-{}.scope", "d".repeat(64)));
        for (pod, uid) in UIDS[..count].iter().enumerate() {
            paths.push(format!("kubepods/burstable/pod{uid}"));
            paths.extend(
                [0, 1].map(|container| format!("kubepods/burstable/pod{uid}/{}", container_id(pod, container))),
            );
        }
        let places = (100..).zip(paths).map(|(pid, path)| Place {
            path,
            id: None,
            process: Process { pid, start_ns: pid * 1_000_000_000 },
        });
        let state = MeterState::up(MeterName::Pods, "");
        let told = KnownPods { pods: Arc::new(pods()), state };
        Self { node, numbers: Numbers(7), seconds: 0, places: places.collect(), told, folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A second in which something of everything happens.
    fn tick(&mut self) -> Snapshot {
        self.seconds += 1;
        let (events, exits) = self.come_and_go();
        let work = self.work();
        let sample = Sample {
            elapsed: Duration::from_millis(990 + self.numbers.below(20)),
            zones: self.zones(),
            domains: [0, 1].map(|_| self.load()).to_vec(),
            processes: ProcessSample { work: self.process_work(&work), events: exits, events_complete: true },
            work,
            events,
            events_complete: true,
            gpus: self.gpus(),
        };
        let now = self.node.started + Duration::from_secs(self.seconds);
        self.node.late_ticks += u64::from(self.seconds.is_multiple_of(50));
        let snapshot = self.node.account_for(&sample, &self.told, now);
        let processes = self.node.process_rows(snapshot.elapsed, &self.node.gpus.powers(now));
        Snapshot { taken: UNIX_EPOCH, processes, ..snapshot }
    }

    /// Cgroups and their processes that began and ended.
    fn come_and_go(&mut self) -> (Vec<CgroupEvent>, Vec<(Process, ProcessEvent)>) {
        let (mut events, mut exits) = (Vec::new(), Vec::new());
        for index in 0..self.places.len() {
            let folder = self.at("cgroup").join(&self.places[index].path);
            let is_empty = !self.has_containers(index);
            let place = &mut self.places[index];
            let proc = self.folder.path().join("proc").join(place.process.pid.to_string());
            match place.id {
                None if self.numbers.one_in(8) => {
                    fs::create_dir_all(&folder).unwrap();
                    let id = fs::metadata(&folder).unwrap().ino();
                    place.id = Some(id);
                    place.process.start_ns += 5_000_000_000;
                    events.push(CgroupEvent::Created { id, path: format!("/{}", place.path) });
                    fs::create_dir_all(&proc).unwrap();
                    let start = place.process.start_ns / 10_000_000;
                    let fields: Vec<String> =
                        (4..=30).map(|n| if n == 22 { start.to_string() } else { n.to_string() }).collect();
                    let pid = place.process.pid;
                    fs::write(proc.join("stat"), format!("{pid} (job-{pid}) S {}\n", fields.join(" "))).unwrap();
                    fs::write(proc.join("cgroup"), format!("0::/{}\n", place.path)).unwrap();
                }
                Some(id) if is_empty && self.numbers.one_in(25) => {
                    // Kept elsewhere, so that no other cgroup gets its inode number.
                    let kept = format!("{id}-at-{}", self.seconds);
                    fs::rename(&folder, self.folder.path().join("gone").join(kept)).unwrap();
                    place.id = None;
                    events.push(CgroupEvent::Removed { id });
                    fs::remove_dir_all(&proc).unwrap();
                    exits.push((place.process, ProcessEvent::Exited));
                }
                _ => {}
            }
        }
        (events, exits)
    }

    /// A pod's own cgroup, behind which its containers are in the list, ends after them.
    fn has_containers(&self, index: usize) -> bool {
        let is_pod = index >= 3 && index.is_multiple_of(3);
        is_pod && self.places[index + 1..index + 3].iter().any(|place| place.id.is_some())
    }

    fn work(&mut self) -> Vec<Work> {
        let mut work = Vec::new();
        let living = self.places.iter().filter_map(|place| place.id);
        for cgroup in living.chain([KERNEL_THREADS]) {
            for domain in [Some(0), Some(1)] {
                if self.numbers.one_in(2) {
                    let runtime_ns = self.numbers.below(200_000_000);
                    let cycles = runtime_ns * 3 + self.numbers.below(1000);
                    work.push(Work { cgroup, domain, runtime_ns, cycles, switches: self.numbers.below(50) });
                }
            }
        }
        work
    }

    fn process_work(&mut self, work: &[Work]) -> Vec<ProcessWork> {
        let mut all = Vec::new();
        for Work { cgroup, domain, runtime_ns, .. } in work {
            let Some(place) = self.places.iter().find(|place| place.id == Some(*cgroup)) else { continue };
            let runtime_ns = runtime_ns / (1 + self.numbers.below(3));
            let (process, cgroup, domain) = (place.process, *cgroup, *domain);
            all.push(ProcessWork { process, cgroup, domain, runtime_ns, comm: [0x62_6f6a, 0] });
        }
        all
    }

    fn zones(&mut self) -> Vec<ZoneEnergy> {
        let mut zones = Vec::new();
        for (kind, socket) in [
            (ZoneKind::Package, Some(0)),
            (ZoneKind::Package, Some(1)),
            (ZoneKind::Dram, Some(0)),
            (ZoneKind::Psys, None),
        ] {
            let path = format!("{}-{socket:?}", kind.as_str());
            let zone = Zone { kind, socket, die: None, source: Source::Rapl, path };
            let energy = Microjoules(20_000_000 + self.numbers.below(90_000_000));
            let gap = self.numbers.one_in(15);
            if !self.numbers.one_in(30) {
                zones.push(ZoneEnergy { zone: Arc::new(zone), energy, gap });
            }
        }
        zones
    }

    fn load(&mut self) -> DomainLoad {
        DomainLoad {
            cpus: 4,
            busy_ns: self.numbers.below(3_000_000_000),
            dropped_ns: if self.numbers.one_in(20) { 5_000_000 } else { 0 },
            cycles: !self.numbers.one_in(10),
        }
    }

    /// Two GPUs of two sources, one of them at times without a reading or an energy, and one in instances.
    fn gpus(&mut self) -> Vec<GpuReading> {
        let mut readings = Vec::new();
        for (index, source) in [(0, Source::NvmlIntegrated), (1, Source::Nvml), (2, Source::Nvml)] {
            let kinds = [GpuProcessKind::Compute, GpuProcessKind::Mps, GpuProcessKind::MpsServer];
            let mut processes = Vec::new();
            for pid in 100..115 {
                if self.numbers.one_in(6) {
                    let kind = kinds[usize::try_from(self.numbers.below(6)).unwrap().saturating_sub(3)];
                    let (work, memory_bytes) = (self.numbers.below(20_000_000), Some(self.numbers.below(1 << 30)));
                    let work = if index == 2 { 0 } else { work };
                    let instance = (index == 2).then(|| u32::try_from(self.numbers.below(3)).unwrap());
                    processes.push(GpuProcess { pid, work, memory_bytes, kind, instance });
                }
            }
            let instance = |id: u32| GpuInstance {
                id,
                uuid: format!("MIG-{id}").into(),
                index: id,
                slices: 1 + id,
                activity_ppm: Some(200_000 * id),
            };
            let energy = Microjoules(50_000_000 + self.numbers.below(200_000_000));
            let energy = GpuEnergy { energy, source, gap: self.numbers.one_in(12) };
            let state = GpuState {
                utilization_ppm: Some(u32::try_from(self.numbers.below(1_000_000)).unwrap()),
                memory_utilization_ppm: Some(125_000 * index),
                memory_used_bytes: Some(1 << 30),
                ..GpuState::default()
            };
            let reading = GpuReading {
                gpu: Arc::new(Gpu {
                    uuid: format!("GPU-{index}").into(),
                    index,
                    minor: Some(index),
                    name: "Test GPU".into(),
                }),
                taken: self.node.started + Duration::from_secs(self.seconds),
                energy: (!self.numbers.one_in(14)).then_some(energy),
                module: None,
                elapsed: Duration::from_millis(900 + self.numbers.below(200)),
                state,
                processes,
                evidence: if index == 2 { Evidence::None } else { Evidence::Samples },
                instances: if index == 2 { (0..3).map(instance).collect() } else { Vec::new() },
            };
            if !(index == 1 && self.numbers.one_in(3) || self.numbers.one_in(40)) {
                readings.push(reading);
            }
        }
        readings
    }
}

/// The first three pods have names, and the first two a request.
fn pods() -> Pods {
    let pod = |(index, uid): (usize, &&str)| {
        let container = |number: usize| PodContainer {
            name: format!("c{number}").into(),
            id: Some(container_id(index, number).into()),
            past_ids: Vec::new(),
        };
        let pod = Pod {
            uid: Arc::from(*uid),
            config_hash: None,
            namespace: "shop".into(),
            name: format!("pod-{index}").into(),
            labels: [("app".to_owned(), format!("app-{index}"))].into(),
            containers: vec![container(0), container(1)],
            cpu_request_milli: [500, 250, 0][index],
            priority: 0,
        };
        (Arc::from(*uid), Arc::new(pod))
    };
    Pods { by_uid: UIDS[..3].iter().enumerate().map(pod).collect(), ..Pods::default() }
}

/// The page without HELP and TYPE, and without what says which build this is.
fn page(snapshot: &Snapshot) -> String {
    let mut writer = Writer::new(Format::Text);
    series::write(&mut writer, snapshot, &Level::ALL);
    let (text, duplicates) = writer.finish();
    assert!(duplicates.is_empty(), "{duplicates:?}");
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.contains("build_info"));
    lines.fold(String::new(), |text, line| text + line + "\n")
}

const FLAGS: [&str; 9] = [
    "--node.name=node",
    "--ebpf=off",
    "--gpu=off",
    "--pods.source=none",
    "--export.terminated-retention=20s",
    "--pods.labels=app",
    "--attribution.idle=learned",
    "--attribution.idle-policy=usage",
    "--gpu.dcgm-names",
];

/// A change of this page is a change of what users see. Where it is meant, the file is written anew by
/// `FIXED_WORLD=$PWD/energy-agent/src/node/fixed_world.txt cargo test -p energy-agent --lib fixed_world`.
#[tokio::test]
async fn the_page_of_a_fixed_world_stays_as_it_is() {
    let mut world = World::new(&FLAGS, 2);
    for _ in 1..180 {
        world.tick();
    }
    let now = page(&world.tick());
    if let Ok(file) = env::var("FIXED_WORLD") {
        return fs::write(file, now).unwrap();
    }
    let kept = include_str!("fixed_world.txt");
    let other = kept.lines().zip(now.lines()).find(|(kept, now)| kept != now);
    assert!(other.is_none(), "{other:?}");
    assert_eq!(kept.lines().count(), now.lines().count());
}
