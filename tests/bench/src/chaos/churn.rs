//! Pods and processes that come and go with load, and a package whose counter moves by known amounts: every page adds up
//! to the microjoule, no counter falls, and at the end all that was counted is on the page.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;

use super::Place;
use super::agent::Agent;
use super::machine::{Machine, RANGE_UJ};
use super::tally::Tally;
use crate::bench::page::{Page, conserved, fallen};
use crate::bench::world::{Pod, World};

const ACTIONS: u32 = 100;
const PODS_MAX: usize = 8;

/// # Errors
/// When a page does not add up, a counter falls, or energy is lost.
pub fn round(place: &Place, rng: &mut Rng) -> Result<Tally> {
    let machine = Machine::new(place.folder.join("sys"), rng)?;
    // It wraps within the round.
    let mut raw_uj = RANGE_UJ - 5_000_000;
    machine.count(raw_uj)?;
    let world = World::of(place.programs.clone())?;
    let flags = [
        format!("--path.sysfs={}", machine.sysfs.display()),
        format!("--state.directory={}", place.folder.join("state").display()),
        format!("--export.terminated-max={}", rng.u32(1..50)),
        "--export.terminated-retention=2s".to_owned(),
        "--export.levels=node,pod,container,process".to_owned(),
        "--meter.cpu=rapl".to_owned(),
        "--meter.trust-guest".to_owned(),
        "--pods.source=none".to_owned(),
        "--gpu=off".to_owned(),
        "--interval=100ms".to_owned(),
    ];
    let mut agent = Agent::spawn(&place.programs, &place.folder, &world.agent, &flags)?;
    let mut scraper = agent.ready()?;
    let mut tally = Tally::default();
    let (mut pods, mut added_uj) = (VecDeque::<Pod>::new(), 0);
    let mut last: Option<Page> = None;
    for _ in 0..ACTIONS {
        match rng.u32(..6) {
            0 | 1 if pods.len() < PODS_MAX => {
                let mut pod = world.pod(rng.usize(1..4))?;
                for container in 0..pod.containers.len() {
                    let work = work(rng);
                    pod.run(container, &work.iter().map(String::as_str).collect::<Vec<_>>())?;
                }
                pods.push_back(pod);
                tally.add("pods came", 1);
            }
            0..=2 => {
                if let Some(pod) = pods.remove(rng.usize(..pods.len().max(1))) {
                    pod.end()?;
                    tally.add("went", 1);
                }
            }
            // A kilowatt is what the agent takes a package for at most.
            3 | 4 => {
                let energy_uj = rng.u64(..1_000_000);
                (raw_uj, added_uj) = ((raw_uj + energy_uj) % RANGE_UJ, added_uj + energy_uj);
                machine.count(raw_uj)?;
                tally.add("steps of the counter", 1);
            }
            _ => thread::sleep(Duration::from_millis(rng.u64(..150))),
        }
        let page = scraper.page()?;
        check(&page, last.as_ref())?;
        tally.add("pages", 1);
        last = Some(page);
    }
    let page = agent.fresh_page(&mut scraper)?;
    check(&page, last.as_ref())?;
    let shown_uj = page.value("kepler_node_cpu_joules_total", "zone", "package", 6)?;
    ensure!(shown_uj == added_uj, "the counter went on by {added_uj} uJ, the page shows {shown_uj} uJ");
    agent.end_well()?;
    Ok(tally)
}

fn check(page: &Page, last: Option<&Page>) -> Result<()> {
    if page.value("kepler_node_cpu_joules_total", "", "", 6)? > 0
        && let Some(off) = conserved(page)?
    {
        anyhow::bail!("{off}");
    }
    if let Some(fell) = last.map(|last| fallen(last, page)).transpose()?.flatten() {
        anyhow::bail!("{fell}");
    }
    Ok(())
}

/// Arguments of `load`.
fn work(rng: &mut Rng) -> Vec<String> {
    let (kind, numbers) = match rng.u32(..5) {
        0 => ("spin", vec![0, 1]),
        1 => ("burn", vec![rng.u32(1000..800_000)]),
        2 => ("sleepers", vec![0, rng.u32(100..5000), rng.u32(1000..20_000)]),
        3 => ("storm", vec![0, rng.u32(100..3000)]),
        _ => ("napping", vec![0, rng.u32(1..6), rng.u32(100..5000), rng.u32(1000..50_000)]),
    };
    [kind.to_owned()].into_iter().chain(numbers.iter().map(u32::to_string)).collect()
}
