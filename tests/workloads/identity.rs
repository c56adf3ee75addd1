//! What holds on every scraped page, whatever happens: nothing measured is lost or invented, and no counter falls. Pods
//! come and go all the time, and one of two agents reads RAPL counters that misbehave.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::Pod;
use crate::common::page::Page;
use crate::common::powercap::{Powercap, RANGE};

/// How long pods come and go.
const CHURN: Duration = Duration::from_secs(30);
/// Length of one step, in which a counter may stand still.
const STEP: Duration = Duration::from_millis(150);

/// Numbers without a pattern, the same in each run.
struct Noise(u64);

impl Noise {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Starts and removes pods, one after another and some at a time, until `end`; how many there were.
fn churn(end: Instant) -> u32 {
    let mut noise = Noise(1);
    let mut count = 0;
    while Instant::now() < end {
        let work_us = (10_000 + noise.below(150_000)).to_string();
        let pods = [Pod::new(), Pod::systemd()];
        let loads = pods.each_ref().map(|pod| pod.load(&["burn", &work_us]));
        for (load, pod) in loads.into_iter().zip(&pods) {
            load.wait();
            pod.remove();
            count += 1;
        }
    }
    count
}

/// The pages of one agent, checked as they come.
struct Watch {
    agent: Agent,
    last: Page,
    pages: u32,
}

impl Watch {
    fn start(flags: &[&str]) -> Self {
        let flags = [&["--interval=250ms", "--export.terminated-retention=2s"], flags].concat();
        let agent = Agent::start(&flags);
        let last = agent.scrape();
        Self { agent, last, pages: 0 }
    }

    fn look(&mut self) {
        let page = self.agent.scrape();
        page.assert_conserved();
        page.assert_not_below(&self.last);
        self.pages += 1;
        self.last = page;
    }

    fn finish(mut self) -> Page {
        let last = self.agent.after_ticks(2);
        last.assert_conserved();
        last.assert_not_below(&self.last);
        assert!(self.pages > 20, "only {} pages", self.pages);
        assert!(last.microjoules("energy_agent_retired_cpu_joules_total", &[]) > 0, "nothing was retired");
        assert_eq!(last.count("energy_agent_unknown_cgroups_total"), 0);
        self.agent.assert_well();
        last
    }
}

#[test]
fn energy_is_conserved_and_no_counter_falls_while_pods_come_and_go_and_zones_fail() {
    let powercap = Powercap::two_sockets();
    let [wraps, fails, resets, nonsense] = &powercap.zones;
    wraps.set(RANGE - 100_000_000);
    // Most ended pods are retired at once.
    let mut estimate = Watch::start(&["--meter.cpu=estimate", "--export.terminated-max=3"]);
    let mut rapl = Watch::start(&["--meter.trust-guest", &powercap.sysfs_flag()]);
    let ticked = rapl.agent.after_ticks(1);
    assert_eq!(ticked.microjoules("kepler_node_cpu_joules_total", &[]), 0, "nothing was used yet");

    let start = Instant::now();
    let churning = thread::spawn(move || churn(start + CHURN));
    let mut noise = Noise(2);
    let mut was_reset = false;
    while !churning.is_finished() {
        let seconds = start.elapsed().as_secs();
        for zone in &powercap.zones {
            // Up to 10 J in a step, and every third time nothing.
            zone.count(if noise.below(3) == 0 { 0 } else { noise.below(10_000_000) });
        }
        for zone in [wraps, resets] {
            zone.add(0);
        }
        match seconds {
            5..9 => fails.fail(),
            _ => fails.add(0),
        }
        match seconds {
            10..12 => nonsense.show("-7\n"),
            12..14 => nonsense.show("no number\n"),
            _ => nonsense.add(0),
        }
        if seconds >= 16 && !was_reset {
            resets.set(5);
            was_reset = true;
        }
        estimate.look();
        rapl.look();
        thread::sleep(STEP);
    }
    let pods = churning.join().unwrap();
    assert!(pods > 20, "only {pods} pods");

    let last = estimate.finish();
    assert_eq!(last.divided().into_iter().collect::<Vec<_>>(), [("package", "estimate")]);

    let last = rapl.finish();
    let shown = |zone: &crate::common::powercap::Zone| last.microjoules("kepler_node_cpu_joules_total", &zone.labels());
    println!(
        "{pods} pods; shown {:?}, used {:?}",
        powercap.zones.each_ref().map(shown),
        powercap.zones.each_ref().map(|zone| zone.used.get())
    );
    // A counter may wrap, or be unreadable for a while and go on counting: no energy is lost.
    for zone in [wraps, fails, nonsense] {
        assert_eq!(shown(zone), zone.used.get(), "{}", zone.path);
    }
    // A reset costs what was used in the interval around it, and no more: 250 ms are at most three steps of 10 J.
    let (shown, used) = (shown(resets), resets.used.get());
    assert!(shown <= used && used - shown < 40_000_000, "{shown} uJ shown, {used} uJ used");
    assert_eq!(last.count("energy_agent_zone_wraps_total"), 1);
    assert_eq!(last.count("energy_agent_zone_resets_total"), 1);
    assert!(last.count("energy_agent_zone_read_errors_total") >= 10);
}

#[test]
fn a_zone_that_leaves_and_comes_back_goes_on_where_it_was() {
    let powercap = Powercap::two_sockets();
    let [_, _, package, dram] = &powercap.zones;
    let agent = Agent::start(&["--interval=200ms", "--meter.trust-guest", &powercap.sysfs_flag()]);
    let shown = |page: &Page| page.microjoules("kepler_node_cpu_joules_total", &dram.labels());
    dram.add(4_000_000);
    let before = agent.after_ticks(2);
    assert_eq!(shown(&before), 4_000_000);
    dram.remove();
    package.add(1_000_000);
    let away = agent.after_ticks(3);
    assert_eq!(shown(&away), 4_000_000, "the total stays");
    assert!(!away.has("kepler_node_cpu_watts", &dram.labels()), "its power is not known");
    assert_eq!(away.microjoules("kepler_node_cpu_joules_total", &package.labels()), 1_000_000);
    // Back with another value: nobody knows how it came to that.
    dram.set(900_000_000);
    wait_for("the zone to be read again", || {
        Some(()).filter(|()| agent.scrape().has("kepler_node_cpu_watts", &dram.labels()))
    });
    dram.add(2_000_000);
    let back = agent.after_ticks(2);
    assert_eq!(shown(&back), 6_000_000);
    back.assert_conserved();
    back.assert_not_below(&before);
}
