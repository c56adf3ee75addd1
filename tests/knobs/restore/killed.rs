//! An agent's actuator that is killed at any moment.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use energy_host::capping::journal::Journal;
use energy_model::capping::knob::{Knob, Limits};

use super::node::{Driver, Node, config, limits};
use crate::common::agent::wait_for;

/// Variables for the child: root, state and run directory, and knobs.
const CHILD: &str = "TEST_ENERGY_AGENT_CAPS";
const KILLS: u32 = 100;

/// Numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64, <https://www.jstatsoft.org/article/view/v008i14>.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Caps and gives back for ever, as fast as it can.
fn cap(child: &str) -> ! {
    let mut words = child.split(' ');
    let places = [(); 3].map(|()| words.next().unwrap().to_owned());
    let quota = words.next().map(|cgroup| Knob::CpuQuota(cgroup.into()));
    let mut driver = Driver::open(&config(&places));
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15 ^ u64::from(std::process::id()));
    loop {
        // Each knob with a value of its own, or none.
        let mut wanted = BTreeMap::new();
        let values = [
            (Some(Knob::CpuFrequency(0)), 800_000 + numbers.below(900_000)),
            (Some(Knob::CpuFrequency(4)), 800_000 + numbers.below(2_000_000)),
            (Some(Knob::RaplLimit("intel-rapl:0".into())), 40_000_000 + numbers.below(100_000_000)),
            (quota.clone(), 100 + numbers.below(900)),
        ];
        for (knob, value) in values {
            if let Some(knob) = knob.filter(|_| numbers.below(8) > 0) {
                wanted.insert(knob, value);
            }
        }
        driver.tick(&limits(wanted));
        // A minute later, nothing is put off.
        driver.now += Duration::from_secs(60);
        if numbers.below(20) == 0 {
            driver.tick(&Limits::new());
        }
    }
}

#[test]
fn originals_come_back_whenever_the_agent_is_killed() {
    if let Ok(child) = env::var(CHILD) {
        cap(&child);
    }
    let node = Node::new();
    let mut told = node.places().join(" ");
    for knob in node.before.keys() {
        if let Knob::CpuQuota(cgroup) = knob {
            told = format!("{told} {cgroup}");
        }
    }
    let mut numbers = Numbers(42);
    let (mut torn, mut capped) = (0, 0);
    for kill in 1..=KILLS {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["restore::killed::originals_come_back_whenever_the_agent_is_killed", "--exact", "--nocapture"])
            .env(CHILD, &told)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if kill % 2 == 0 {
            // On a busy machine most others are killed before they have written anything, which counts as well.
            wait_for("something to be lowered", || (node.contents() != node.before).then_some(()));
        }
        thread::sleep(Duration::from_micros(2000 + numbers.below(40_000)));
        assert_eq!(child.try_wait().unwrap(), None, "it runs until it is killed");
        child.kill().unwrap();
        child.wait().unwrap();
        torn += heal(&node);
        let now = node.contents();
        capped += u32::from(now != node.before);
        // Now and then the next run is killed as well before anything is given back.
        if numbers.below(3) == 0 && kill < KILLS {
            continue;
        }
        let outcome = node.restore(&[]);
        assert_eq!(outcome.code, Some(0), "kill {kill}: {outcome:#?}\n{now:#?}");
        assert_eq!(node.contents(), node.before, "kill {kill}: {outcome:#?}\n{now:#?}");
    }
    println!("{KILLS} kills, {capped} while something was lowered, {torn} within a write to a plain file");
    assert!(capped > KILLS / 4, "{capped}");
}

/// A plain file that was just truncated is empty; the kernel's attributes never are, they show the old value.
fn heal(node: &Node) -> u32 {
    let boot = fs::read_to_string(node.config.host.procfs.join("sys/kernel/random/boot_id")).unwrap();
    let journal = Journal::peek(&node.config.host.folders(), boot.trim()).entries;
    let mut torn = 0;
    for (knob, content) in node.contents() {
        if content.is_empty() {
            torn += 1;
            let old = journal.get(&knob).and_then(|entry| entry.ours.get(1)).map(|old| format!("{old}\n"));
            fs::write(node.file(&knob), old.as_ref().unwrap_or(&node.before[&knob])).unwrap();
        }
    }
    torn
}
