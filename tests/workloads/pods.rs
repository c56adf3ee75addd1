//! Who gets the energy: pods on real cgroups, scraped from the built program. The oracle is the kernel's own cpu.stat,
//! read when a load has ended and the agent has ticked since, so that both have counted the same work.

#![expect(clippy::cast_precision_loss, reason = "tests compare in percent")]
#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use std::fs;
use std::time::{Duration, Instant};

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::cgroup::{Load, Pod, cpu_ns};
use crate::common::page::Page;
use crate::common::patience::Patience;
use crate::common::powercap::Powercap;
use crate::common::repeat::{self, Cause};
use crate::common::tree::Tree;
use crate::common::{alone, one_of_three, say};

const POD_JOULES: &str = "kepler_pod_cpu_joules_total";
const POD_SECONDS: &str = "energy_agent_pod_cpu_seconds_total";
const CONTAINER_JOULES: &str = "kepler_container_cpu_joules_total";

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// A pod's joules and CPU time on a page.
fn used(page: &Page, pod: &Pod) -> (u64, u64) {
    let labels = [("pod_id", pod.uid.as_str())];
    (page.microjoules(POD_JOULES, &labels), page.nanoseconds(POD_SECONDS, &labels))
}

/// Lets a load run to its end in each of two pods, and checks that CPU time and joules are shared out as cpu.stat says.
///
/// Once more where the kernel hid a switch: a task that was found a tick late has got its time but not the energy of that tick.
fn assert_true_shares(agent: &Agent, first: &[&[&str]], second: &[&[&str]]) {
    let mut off = Vec::new();
    for _ in 0..3 {
        let before = repeat::counted(Cause::HiddenSwitch);
        off.push(share_error(agent, first, second));
        if off.last().is_some_and(|off| *off < 0.015) {
            return;
        }
        let hidden = repeat::counted(Cause::HiddenSwitch) - before;
        if hidden == 0 {
            break;
        }
        say("REPEATED", &format!("off by {off:?}, and the kernel hid {hidden} scheduler switches from the agent"));
    }
    panic!("off by {off:?} of the whole");
}

/// CPU time of each pod that shares can be compared by.
const ENOUGH_NS: u64 = 500_000_000;
/// Rounds of the loads on a machine that lets them run hardly at all.
const MOST_ROUNDS: u32 = 20;

/// How far the first pod's share of CPU time or joules is from its share by cpu.stat, whichever is further.
fn share_error(agent: &Agent, first: &[&[&str]], second: &[&[&str]]) -> f64 {
    let pods = [Pod::new(), Pod::new()];
    let used_ns = || pods.each_ref().map(|pod| pod.cgroup.cpu_ns());
    // Loads run for a time, not for an amount of work: on a busy machine they need more of it.
    for _ in 0..MOST_ROUNDS {
        let loads: Vec<Load> = [first, second]
            .iter()
            .zip(&pods)
            .flat_map(|(loads, pod)| loads.iter().map(|arguments| pod.load(arguments)))
            .collect();
        loads.into_iter().for_each(Load::wait);
        if used_ns().iter().all(|used| *used > ENOUGH_NS) {
            break;
        }
    }
    let page = agent.after_ticks(2);
    page.assert_conserved();
    let truth = used_ns();
    let charged = pods.each_ref().map(|pod| used(&page, pod));
    println!("cpu.stat {truth:?} ns, charged (uJ, ns) {charged:?}");
    assert!(truth.iter().all(|truth| *truth > ENOUGH_NS), "the loads did not run: {truth:?}");
    let true_share = share(truth[0], truth[0] + truth[1]);
    let joules = share(charged[0].0, charged[0].0 + charged[1].0);
    let time = share(charged[0].1, charged[0].1 + charged[1].1);
    (joules - true_share).abs().max((time - true_share).abs())
}

/// A storm of processes that each live for 2 to 5 ms of work, beside a loop that never sleeps.
const STORM: &[&[&str]] = &[&["storm", "4", "2000"], &["storm", "4", "5000"]];
const STEADY: &[&[&str]] = &[&["spin", "4"]];

#[test]
fn a_busy_pod_gets_its_watts_and_is_the_sum_of_its_containers() {
    one_of_three(|| {
        let _alone = alone();
        let agent = Agent::start(&["--interval=500ms"]);
        let (pod, other) = (Pod::systemd(), Pod::new());
        let _loads = [
            pod.load(&["spin", "0"]),
            // Beside the container, as a runtime's monitor process is.
            Load::start(&pod.cgroup.dir, &["sleepers", "0", "2000", "8000"]),
            other.load(&["sleepers", "0", "5000", "5000"]),
        ];
        let start = agent.after_ticks(2);
        let mut end = agent.after_ticks(3);
        let last = wait_for("two pages of successive ticks", || {
            let last = std::mem::replace(&mut end, agent.after_ticks(1));
            (end.ticks() == last.ticks() + 1).then_some(last)
        });

        // The pod is the exact sum of its container and of what runs beside it.
        let labels = [("pod_id", pod.uid.as_str())];
        let containers = end.select(CONTAINER_JOULES, &labels);
        let ids: Vec<_> = containers.iter().map(|it| (it.label("container_id"), it.label("runtime"))).collect();
        assert_eq!(ids, [("POD", "unknown"), (pod.container_id.as_str(), "containerd")]);
        assert_eq!(end.microjoules(POD_JOULES, &labels), end.microjoules(CONTAINER_JOULES, &labels));
        assert!(containers.iter().all(|it| it.label("pod_id") == pod.uid && it.label("state") == "running"));
        let other_id = [("container_id", other.container_id.as_str()), ("pod_id", other.uid.as_str())];
        assert_eq!(end.one(CONTAINER_JOULES, &other_id).label("runtime"), "unknown");

        // Watts are the joules of the last interval over its length.
        let joules = end.microjoules(POD_JOULES, &labels) - last.microjoules(POD_JOULES, &labels);
        let watts = end.one("kepler_pod_cpu_watts", &labels).number();
        let expected = joules as f64 / 1e6 / end.number("energy_agent_interval_seconds");
        assert!((watts - expected).abs() < 1e-3 + expected * 1e-6, "{watts} W shown, {expected} W from the joules");
        assert!(watts > 0.0);

        // Its part of the active energy is its part of the CPU time.
        let seconds = |page: &Page| {
            page.nanoseconds(POD_SECONDS, &[]) + page.nanoseconds("energy_agent_system_cpu_seconds_total", &[])
        };
        let active = |page: &Page| page.microjoules("kepler_node_cpu_active_joules_total", &[]);
        let (from, to) = (used(&start, &pod), used(&end, &pod));
        let of_energy = share(to.0 - from.0, active(&end) - active(&start));
        let of_time = share(to.1 - from.1, seconds(&end) - seconds(&start));
        assert!((of_energy - of_time).abs() < 0.015, "{of_energy:.4} of the energy, {of_time:.4} of the time");
    });
}

#[test]
fn a_pod_that_lives_300_ms_keeps_its_energy_in_a_series_of_its_own_until_it_is_retired() {
    one_of_three(|| {
        let _alone = alone();
        let agent = Agent::start(&["--interval=500ms", "--export.terminated-retention=3s"]);
        let neighbour = Pod::new();
        let _steady = neighbour.load(&["spin", "0"]);
        let before = agent.after_ticks(2);
        let pod = Pod::new();
        pod.load(&["burn", "300000"]).wait();
        let truth = cpu_ns(&pod.container);
        pod.remove();
        let removed = Instant::now();

        // Two scrapers at different times see the same last total.
        let first = agent.after_ticks(2);
        let second = agent.after_ticks(2);
        let labels = [("pod_id", pod.uid.as_str()), ("state", "terminated")];
        for page in [&first, &second] {
            page.assert_conserved();
            page.one(POD_JOULES, &labels);
            page.one(CONTAINER_JOULES, &[("container_id", &pod.container_id), ("state", "terminated")]);
        }
        assert!(!first.has("kepler_pod_cpu_watts", &labels), "what ended draws nothing, which is no measured zero");
        let (joules, seconds) = used(&first, &pod);
        assert_eq!(used(&second, &pod), (joules, seconds));

        // All its time, and its part of the energy.
        let all_seconds = |page: &Page| {
            page.nanoseconds(POD_SECONDS, &[]) + page.nanoseconds("energy_agent_system_cpu_seconds_total", &[])
        };
        let active = |page: &Page| page.microjoules("kepler_node_cpu_active_joules_total", &[]);
        let of_time = share(truth, all_seconds(&first) - all_seconds(&before));
        let of_energy = share(joules, active(&first) - active(&before));
        println!(
            "cpu.stat {truth} ns, charged {seconds} ns and {joules} uJ: {of_time:.4} of time, {of_energy:.4} of energy"
        );
        assert!(truth > 30_000_000, "the pod did not run");
        assert!(share(seconds, truth) > 0.95 && share(seconds, truth) < 1.02, "{seconds} ns of {truth} ns");
        assert!(of_energy / of_time > 0.95, "only {:.1} % of its energy", of_energy / of_time * 100.0);

        // Its series end no sooner than promised, and its energy is in the retired energy on the same page.
        let mut last = second;
        let mut patience = Patience::new();
        let gone = loop {
            let page = agent.after_ticks(1);
            page.assert_conserved();
            page.assert_not_below(&last);
            if !page.has(POD_JOULES, &[("pod_id", &pod.uid)]) {
                break page;
            }
            // Four seconds after it came to its end; this catches a series that never ends.
            patience.check("the end of its series");
            last = page;
        };
        assert!(removed.elapsed() > Duration::from_secs(3), "its series ended after {:?}", removed.elapsed());
        assert!(!gone.has(POD_SECONDS, &labels) && !gone.has(CONTAINER_JOULES, &[("container_id", &pod.container_id)]));
        let retired = |page: &Page| page.microjoules("energy_agent_retired_cpu_joules_total", &[]);
        assert_eq!(retired(&gone) - retired(&last), ended_between(&last, &gone));
    });
}

/// Energy of all pods and units on the first page that the second no longer has.
fn ended_between(last: &Page, gone: &Page) -> u64 {
    let mut ended = 0;
    for (name, key) in [(POD_JOULES, "pod_id"), ("energy_agent_system_cpu_joules_total", "unit")] {
        for sample in last.select(name, &[]) {
            if !gone.has(name, &[(key, sample.label(key))]) {
                ended += crate::common::page::decimal(&sample.value, 6);
            }
        }
    }
    ended
}

#[test]
fn a_fork_storm_and_a_steady_loop_get_joules_as_cpu_stat_has_them() {
    let _alone = alone();
    let agent = Agent::start(&[]);
    assert_true_shares(&agent, STORM, STEADY);
}

#[test]
fn without_ebpf_cgroup_files_share_the_energy_as_well() {
    let _alone = alone();
    let agent = Agent::start(&["--ebpf=off", "--interval=500ms"]);
    assert_true_shares(&agent, STORM, STEADY);
    let page = agent.scrape();
    assert_eq!(page.one("energy_agent_attribution_info", &[]).label("meter"), "cgroupfs");
    page.one("energy_agent_meter_up", &[("meter", "ebpf"), ("reason", "off")]);
    assert!(!page.has("energy_agent_usage_map_drops_total", &[]), "absent without eBPF");
    assert!(!page.has("energy_agent_pod_context_switches_total", &[]), "cgroup files count no switches");
    assert_eq!(agent.logged(" WARN ").iter().filter(|line| line.contains("BPF")).count(), 0, "it was asked for");
}

/// What the CPUs had nothing to do, by /proc/stat, in the hundredths of a second that it is told in.
fn idle_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    // user nice system idle iowait
    let fields: Vec<u64> = text.split_whitespace().skip(1).take(5).map(|field| field.parse().unwrap()).collect();
    (fields[3] + fields[4]) * 10_000_000
}

/// FC-041: a CPU that has nothing to do is nobody's work, the kernel's neither.
#[test]
fn the_idle_task_is_charged_to_nobody() {
    one_of_three(|| {
        let _alone = alone();
        let case: serde_json::Value = serde_json::from_str(include_str!("../cases/FC-041-idle-task.json")).unwrap();
        let app_us = case["run_ms"]["app (pod A)"].as_u64().unwrap() * 1000;
        // All of the machine's, whatever a quota leaves to this process.
        let stat = fs::read_to_string("/proc/stat").unwrap();
        let is_one =
            |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let cpus = u64::try_from(stat.lines().filter(is_one).count()).unwrap();
        let agent = Agent::start(&["--interval=500ms"]);
        let pod = Pod::new();
        let (start, idle_before, before) = (Instant::now(), idle_ns(), agent.after_ticks(2));
        pod.load(&["burn", &app_us.to_string()]).wait();
        // And then nothing for a while, as in most of the case's window.
        let page = agent.after_ticks(5);
        let (idle, wall) = (idle_ns() - idle_before, u64::try_from(start.elapsed().as_nanos()).unwrap());
        page.assert_conserved();
        let kernel = [("unit", "kernel")];
        let system = |page: &Page, labels| page.nanoseconds("energy_agent_system_cpu_seconds_total", labels);
        let all = |page: &Page| page.nanoseconds(POD_SECONDS, &[]) + system(page, &[]);
        let (charged, of_kernel) = (all(&page) - all(&before), system(&page, &kernel) - system(&before, &kernel));
        let of_pod = used(&page, &pod).1;
        println!("{idle} ns idle, {charged} ns charged, {of_kernel} of them to the kernel, {of_pod} to the pod");
        assert!(charged + idle < (wall + wall / 20) * cpus, "{charged} ns charged, {idle} ns idle of {cpus} x {wall}");
        let truth = pod.cgroup.cpu_ns();
        assert!(of_pod.abs_diff(truth) < truth / 20, "{of_pod} of {truth} ns");
        // The kernel's threads have work of their own, more of it on a machine that is busy otherwise.
        let work = wall * cpus / 20;
        assert!(of_kernel + of_pod <= charged && of_kernel < idle / 2 + work, "{of_kernel} ns of the kernel");
        assert_eq!(page.select("energy_agent_system_cpu_seconds_total", &kernel).len(), 1);
    });
}

/// FC-062: the agent runs on a kernel without BTF, and says so once.
#[test]
fn a_kernel_without_btf_is_told_once_and_shares_stay_right() {
    let _alone = alone();
    let tree = Tree::case("FC-062-no-btf");
    let agent = Agent::start(&["--interval=500ms", &format!("--path.sysfs={}", tree.sysfs().display())]);
    assert_true_shares(&agent, STEADY, &[&["sleepers", "4", "3000", "3000"]]);
    let page = agent.scrape();
    assert_eq!(page.one("energy_agent_attribution_info", &[]).label("meter"), "cgroupfs");
    assert_eq!(page.one("energy_agent_meter_up", &[("meter", "ebpf")]).label("reason"), "absent");
    let btf = tree.sysfs().join("kernel/btf/vmlinux");
    let told = agent.logged(btf.to_str().unwrap());
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0].contains(" WARN ") && told[0].contains("CONFIG_DEBUG_INFO_BTF"), "{told:?}");
}

#[test]
fn a_chosen_cycle_counter_is_the_weight_and_shares_stay_right() {
    let _alone = alone();
    let agent = Agent::start(&["--ebpf.cycles-event=cpu-clock", "--interval=500ms"]);
    assert_true_shares(&agent, STEADY, &[&["sleepers", "4", "3000", "3000"]]);
    let page = agent.scrape();
    assert_eq!(page.one("energy_agent_attribution_info", &[]).label("weight"), "cpu_clock");
    assert!(page.has("energy_agent_pod_cpu_cycles_total", &[]));
}

#[test]
fn a_map_that_is_too_small_shows_as_unattributed_energy() {
    let _alone = alone();
    let mut agent = Agent::start(&["--ebpf.map-entries=4", "--interval=500ms"]);
    let before = agent.scrape();
    let pods: Vec<Pod> = (0..12).map(|_| Pod::new()).collect();
    let loads: Vec<Load> = pods.iter().map(|pod| pod.load(&["sleepers", "2", "2000", "2000"])).collect();
    loads.into_iter().for_each(Load::wait);
    let page = agent.after_ticks(2);
    page.assert_conserved();
    page.assert_not_below(&before);
    assert!(page.count("energy_agent_usage_map_drops_total") > 0);
    let grown = |name: &str| page.microjoules(name, &[]) - before.microjoules(name, &[]);
    let truth: u64 = pods.iter().map(|pod| pod.cgroup.cpu_ns()).sum();
    let charged: u64 = pods.iter().map(|pod| used(&page, pod).1).sum();
    // What was dropped of the pods' time is at most what was dropped in all.
    let unattributed =
        share(grown("energy_agent_node_cpu_unattributed_joules_total"), grown("kepler_node_cpu_active_joules_total"));
    println!("pods: {charged} of {truth} ns charged; {unattributed:.3} of the active energy unattributed");
    assert!(charged < truth / 10 * 9, "twelve pods do not fit into four entries: {charged} of {truth} ns charged");
    assert!(unattributed > 0.1, "{unattributed:.3}");
    agent.assert_well();
}

#[test]
fn two_sockets_each_pay_for_what_ran_on_them() {
    one_of_three(|| {
        let _alone = alone();
        let powercap = Powercap::two_sockets();
        let agent = Agent::start(&["--interval=500ms", "--meter.trust-guest", &powercap.sysfs_flag()]);
        let pod = Pod::new();
        let load = pod.load(&["spin", "2"]);
        for _ in 0..20 {
            powercap.zones.iter().zip([3_000_000, 500_000, 2_000_000, 400_000]).for_each(|(zone, uj)| zone.add(uj));
            std::thread::sleep(Duration::from_millis(100));
        }
        load.wait();
        let page = agent.after_ticks(2);
        page.assert_conserved();
        // 20 steps of 3 J, 0.5 J, 2 J and 0.4 J.
        let shown =
            powercap.zones.each_ref().map(|zone| page.microjoules("kepler_node_cpu_joules_total", &zone.labels()));
        assert_eq!(shown, [60_000_000, 10_000_000, 40_000_000, 8_000_000]);
        // Workloads have packages and dram of both sockets added up, each for itself.
        let labels = [("pod_id", pod.uid.as_str())];
        let zones: Vec<_> =
            page.select(POD_JOULES, &labels).iter().map(|it| (it.label("zone"), it.label("source"))).collect();
        assert_eq!(zones, [("package", "rapl"), ("dram", "rapl")]);
        assert!(page.microjoules(POD_JOULES, &labels) > 0);
    });
}

/// FC-107: without the host's process ids, cgroups tell who ran.
#[test]
fn in_a_pid_namespace_of_its_own_the_agent_still_knows_who_ran() {
    let _alone = alone();
    let launcher = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", PROGRAM];
    let agent = Agent::spawn(&launcher, &["--interval=500ms"]);
    agent.wait_until_ready();
    assert_true_shares(&agent, STEADY, &[&["sleepers", "4", "3000", "3000"]]);
    let page = agent.scrape();
    assert_eq!(page.one("energy_agent_attribution_info", &[]).label("meter"), "ebpf");
}
