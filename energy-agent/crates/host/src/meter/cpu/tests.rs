use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A fake sysfs and procfs in one folder.
struct Node(TempDir);

impl Node {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn file(self, path: &str, text: &str) -> Self {
        self.write(path, text.as_bytes());
        self
    }

    fn write(&self, path: &str, content: &[u8]) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn cpu(self, cpu: u32, socket: &str, die: &str) -> Self {
        let folder = format!("devices/system/cpu/cpu{cpu}/topology");
        self.file(&format!("{folder}/physical_package_id"), socket).file(&format!("{folder}/die_id"), die)
    }

    fn topology(&self) -> Topology {
        Topology::read(self.0.path(), self.0.path())
    }

    fn stat(&self) -> CpuStat {
        CpuStat::open(self.0.path()).unwrap()
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn domain(socket: u32, die: Option<u32>) -> Domain {
    Domain { socket: Some(socket), die }
}

#[test]
fn cpu_lists_may_have_holes() {
    assert_eq!(parse_list("0-3\n").unwrap(), [0, 1, 2, 3]);
    assert_eq!(parse_list("0-2,5,7-8\n").unwrap(), [0, 1, 2, 5, 7, 8]);
    assert_eq!(parse_list("1-3").unwrap(), [1, 2, 3]);
    assert_eq!(parse_list("\n").unwrap(), [0u32; 0]);
}

#[test]
fn a_broken_list_names_file_and_value() {
    let node = Node::new().file("online", "0-3,x7\n");
    let path = node.0.path().join("online");
    let error = format!("{:#}", read_list(&path).unwrap_err());
    assert!(error.contains(path.to_str().unwrap()) && error.contains("x7"), "{error}");
    for text in ["3-1", "-1", "0-4294967295", "99999999999", "1-2-3"] {
        assert!(parse_list(text).is_err(), "{text}");
    }
}

/// FC-066: possible and online differ, have holes, or lack CPU 0.
#[test]
fn every_list_of_the_field_case_gives_the_online_cpus() {
    for (possible, online, count, size) in
        [("0-127", "0-3", 4, 128), ("0-11,16-31", "0-11,16-27", 24, 32), ("0-31", "0-15", 16, 32), ("0-3", "1-3", 3, 4)]
    {
        let node = Node::new()
            .file("devices/system/cpu/possible", possible)
            .file("devices/system/cpu/online", &format!("{online}\n"));
        let topology = node.topology();
        assert_eq!(topology.online().len(), count);
        assert_eq!(slots(node.0.path()).unwrap(), size);
        assert_eq!(topology.domain_of(3), Some(0));
        assert_eq!(topology.domain_of(100), None);
    }
}

/// FC-066: per-socket mapping uses ids from topology files, not list position.
#[test]
fn sockets_come_from_the_topology_files() {
    let node = Node::new()
        .file("devices/system/cpu/online", "0-3")
        .cpu(0, "1", "0")
        .cpu(1, "0", "0")
        .cpu(2, "1", "0")
        .cpu(3, "0", "0");
    let topology = node.topology();
    assert_eq!(topology.domains, [domain(1, None), domain(0, None)]);
    assert_eq!([0, 1, 2, 3].map(|cpu| topology.domain_of(cpu)), [Some(0), Some(1), Some(0), Some(1)]);
}

#[test]
fn dies_are_domains_only_where_a_socket_has_several_with_own_counters() {
    let node =
        || Node::new().file("devices/system/cpu/online", "0-2").cpu(0, "0", "0").cpu(1, "0", "1").cpu(2, "1", "0");
    assert_eq!(node().topology().domains, [domain(0, Some(0)), domain(0, Some(1)), domain(1, None)]);
    let amd = node().file("cpuinfo", "processor : 0\nvendor_id : AuthenticAMD\n");
    assert_eq!(amd.topology().domains, [domain(0, None), domain(1, None)]);
}

/// FC-062: an ARM board shows cpufreq but no topology.
#[test]
fn without_topology_the_node_is_one_domain() {
    let node = Node::new()
        .file("devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2400000")
        .file("stat", "cpu  9 9 9 9\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n");
    let topology = node.topology();
    assert_eq!(topology.domains, [Domain { socket: None, die: None }]);
    assert_eq!(topology.online(), [0, 1]);
    assert_eq!(topology.domain_of(1), Some(0));
    assert_eq!(Node::new().topology().domains, [Domain { socket: None, die: None }]);
}

/// FC-066: CPU 2 goes offline and returns; a CPU on a new socket is appended.
#[test]
fn hotplug_keeps_the_indexes_and_counts_a_returned_cpu_again() {
    let stat = |cpus: &[(u32, u64)]| {
        cpus.iter().fold("cpu  0 0 0 0\n".to_owned(), |text, (cpu, idle)| text + &format!("cpu{cpu} 0 0 0 {idle}\n"))
    };
    let node = Node::new()
        .file("devices/system/cpu/online", "0,2")
        .file("stat", &stat(&[(0, 100), (2, 100)]))
        .cpu(0, "0", "0")
        .cpu(2, "1", "0")
        .cpu(4, "2", "0");
    let mut topology = node.topology();
    let mut meter = node.stat();
    assert_eq!(meter.read(SECOND, &topology).unwrap(), None);

    node.write("devices/system/cpu/online", b"0");
    node.write("stat", stat(&[(0, 150)]).as_bytes());
    topology.refresh();
    let load = meter.read(SECOND, &topology).unwrap().unwrap();
    assert_eq!(
        load.domains.iter().map(|load| (load.cpus, load.busy_ns)).collect::<Vec<_>>(),
        [(1, 500_000_000), (0, 0)]
    );

    node.write("devices/system/cpu/online", b"0,2,4");
    node.write("stat", stat(&[(0, 200), (2, 120), (4, 0)]).as_bytes());
    topology.refresh();
    assert_eq!(topology.domains, [domain(0, None), domain(1, None), domain(2, None)]);
    meter.read(SECOND, &topology).unwrap();
    node.write("stat", stat(&[(0, 250), (2, 145), (4, 100)]).as_bytes());
    let load = meter.read(SECOND, &topology).unwrap().unwrap();
    let busy: Vec<u64> = load.domains.iter().map(|load| load.busy_ns).collect();
    assert_eq!(busy, [500_000_000, 750_000_000, 0]);
}

/// Fault 15 of other exporters: stolen time is not busy, and guest time is already in user time.
#[test]
fn steal_is_not_busy() {
    let node = Node::new().file("stat", "cpu0 0 0 0 0 0 0 0 0 0 0\n");
    let topology = node.topology();
    let mut meter = node.stat();
    meter.read(SECOND, &topology).unwrap();
    // 20 user (all of it guest), 10 system, 25 idle, 5 iowait, 40 steal: 30 of 100 ticks are ours.
    node.write("stat", b"cpu0 20 0 10 25 5 0 0 40 20 0\n");
    let load = meter.read(SECOND, &topology).unwrap().unwrap();
    assert_eq!(load.domains[0].busy_ns, 300_000_000);
    assert!((load.usage_ratio - 0.3).abs() < 1e-9);
}

#[test]
fn interrupts_hard_and_soft_are_a_part_of_the_busy_time() {
    let node = Node::new().file("stat", "cpu0 0 0 0 0 0 0 0 0 0 0\n");
    let topology = node.topology();
    let mut meter = node.stat();
    meter.read(SECOND, &topology).unwrap();
    node.write("stat", b"cpu0 10 0 10 65 0 5 10 0 0 0\n");
    let load = meter.read(SECOND, &topology).unwrap().unwrap();
    assert_eq!((load.domains[0].busy_ns, load.interrupt_ns), (350_000_000, vec![150_000_000]));
}

#[test]
fn idle_time_that_steps_back_is_never_negative_work() {
    let node = Node::new().file("stat", "cpu0 0 0 0 1000 50\n");
    let topology = node.topology();
    let mut meter = node.stat();
    meter.read(SECOND, &topology).unwrap();
    node.write("stat", b"cpu0 0 0 0 900 90\n");
    let load = meter.read(SECOND, &topology).unwrap().unwrap();
    assert_eq!(load.domains[0].busy_ns, 600_000_000);
    node.write("stat", b"cpu0 0 0 0 1300 90\n");
    assert_eq!(meter.read(SECOND, &topology).unwrap().unwrap().domains[0].busy_ns, 0);
}

#[test]
fn a_tick_counted_early_is_not_busy_time_of_the_next_interval() {
    let node = Node::new().file("stat", "cpu0 0 0 0 0\n");
    let topology = node.topology();
    let mut meter = node.stat();
    meter.read(SECOND, &topology).unwrap();
    for idle in [101, 200, 301, 400] {
        node.write("stat", format!("cpu0 0 0 0 {idle}\n").as_bytes());
        assert_eq!(meter.read(SECOND, &topology).unwrap().unwrap().domains[0].busy_ns, 0);
    }
}

/// FC-067: no CPU number is too large, and every second of 256 busy CPUs is counted.
#[test]
fn all_of_256_busy_cpus_are_counted() {
    let mut node = Node::new().file("devices/system/cpu/possible", "0-255").file("devices/system/cpu/online", "0-255");
    for cpu in 0..256 {
        node = node.cpu(cpu, if cpu < 128 { "0" } else { "1" }, "0");
    }
    let stat = |user: u64| {
        (0..256).fold(String::new(), |text, cpu| text + &format!("cpu{cpu} {user} 0 0 77777777 0 0 0 0 0 0\n"))
            + &format!("intr {}\n", "0 ".repeat(20_000))
    };
    node.write("stat", stat(0).as_bytes());
    let topology = node.topology();
    let mut meter = node.stat();
    meter.read(SECOND, &topology).unwrap();
    node.write("stat", stat(100).as_bytes());
    let load = meter.read(SECOND, &topology).unwrap().unwrap();
    for domain in &load.domains {
        assert_eq!((domain.cpus, domain.busy_ns), (128, 128_000_000_000));
    }
    assert!((load.usage_ratio - 1.0).abs() < 1e-9);
}

#[test]
fn this_machine_is_understood() {
    let topology = Topology::read(Path::new("/sys"), Path::new("/proc"));
    assert!(topology.online().iter().all(|&cpu| topology.domain_of(cpu).is_some()));
    let mut meter = CpuStat::open(Path::new("/proc")).unwrap();
    assert_eq!(meter.read(SECOND, &topology).unwrap(), None);
    let load = meter.read(Duration::from_millis(1), &topology).unwrap().unwrap();
    let cpus: u32 = load.domains.iter().map(|load| load.cpus).sum();
    assert_eq!(usize::try_from(cpus).unwrap(), topology.online().len());
    assert_eq!(cpu_info(Path::new("/proc")).len(), topology.online().len());
}

#[test]
fn cpuinfo_of_x86_and_arm_is_understood() {
    let x86 = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Xeon: Gold\nstepping\t: 7\n\
               physical id\t: 1\ncore id\t\t: 4\nflags\t\t: fpu hypervisor sse\n\nprocessor\t: 1\nvendor_id\t: GenuineIntel\n";
    let node = Node::new().file("cpuinfo", x86);
    let cpus = cpu_info(node.0.path());
    assert_eq!(cpus.len(), 2);
    assert_eq!(
        (cpus[0].model_name.as_str(), cpus[0].physical_id.as_str(), cpus[0].core_id.as_str()),
        ("Xeon: Gold", "1", "4")
    );
    assert_eq!((cpus[1].processor.as_str(), cpus[1].core_id.as_str()), ("1", ""));
    assert!(is_guest(node.0.path(), node.0.path()));
    let model = CpuModel::read(node.0.path());
    assert_eq!((model.family, model.model, model.stepping), (Some(6), Some(85), Some(7)));

    let arm = "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\nprocessor\t: 1\n";
    let node = Node::new().file("cpuinfo", arm);
    assert_eq!(cpu_info(node.0.path())[0].vendor_id, "0x41");
    assert_eq!(CpuModel::read(node.0.path()).model, Some(0xd0c));
    assert!(!is_guest(node.0.path(), node.0.path()));
    assert_eq!(cpu_info(Path::new("/nonexistent")), []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_file_content_is_survived(
        online in prop::collection::vec(any::<u8>(), 0..40),
        list in "[0-9,-]{0,20}",
        stat in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "(cpu[0-9]{0,10} [0-9 ]{0,60}\n){0,6}".prop_map(String::into_bytes),
        ],
        info in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let node = Node::new();
        node.write("devices/system/cpu/online", &online);
        node.write("devices/system/cpu/possible", list.as_bytes());
        node.write("stat", &stat);
        node.write("cpuinfo", &info);
        let mut topology = node.topology();
        let mut meter = node.stat();
        for _ in 0..2 {
            topology.refresh();
            if let Some(load) = meter.read(SECOND, &topology).unwrap() {
                prop_assert!((0.0..=1.0).contains(&load.usage_ratio));
            }
            node.write("devices/system/cpu/online", list.as_bytes());
        }
        let _ = cpu_info(node.0.path());
        let _ = slots(node.0.path());
        let _ = is_guest(node.0.path(), node.0.path());
    }
}
