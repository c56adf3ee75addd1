//! Random bytes, cut files and absurd values in everything that the agent reads again and again: the package's counter, the
//! GPUs' driver, policies, the web configuration and the selection. The agent lives, each page adds up and no counter
//! falls; when everything is good again, every state says so.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use fake_nvml::state::Gpu;
use fastrand::Rng;
use serde_json::Value;

use super::Place;
use super::machine::{FIRST_UJ, RANGE_UJ, replace};
use super::node::{Node, policies};
use super::patience::until;
use super::tally::Tally;
use crate::bench::page::{Page, conserved, fallen};

const ACTIONS: u32 = 60;
const WEB: &str = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n";
/// What counts without it, too: a part of it changes nothing.
const SELECTION: &str = "SOURCE.GPU: enabled\nSOURCE.COUNTER: enabled\n";

/// A file and what it should hold.
struct Target {
    name: &'static str,
    file: PathBuf,
    good: Vec<u8>,
}

/// # Errors
/// When the agent does not live through it, a page is wrong, or a state does not recover.
pub fn round(place: &Place, rng: &mut Rng) -> Result<Tally> {
    let mut node = Node::new(place, rng)?;
    node.policies(&policies(rng))?;
    let (web, selection) = (place.folder.join("web.yaml"), place.folder.join("selection.yaml"));
    replace(&web, WEB.as_bytes())?;
    replace(&selection, SELECTION.as_bytes())?;
    let flags = [format!("--web.config.file={}", web.display()), format!("--export.config={}", selection.display())];
    let mut agent = node.agent(&flags)?;
    let mut scraper = agent.ready()?;
    let policies = node.policy_file();
    let target = |name, file: PathBuf| -> Result<Target> { Ok(Target { name, good: fs::read(&file)?, file }) };
    let configuration =
        [target("policy files", policies)?, target("web files", web)?, target("selections", selection)?];
    let good = node.state.clone();
    let mut tally = Tally::default();
    let mut last: Option<Page> = None;
    for _ in 0..ACTIONS {
        match rng.usize(..6) {
            0 => {
                node.rest();
                let content = number(rng);
                spoil(rng, &node.machine.package("energy_uj"), &content)?;
                tally.add("counters", 1);
            }
            1 => {
                let content = number(rng);
                spoil(rng, &node.machine.package("max_energy_range_uj"), &content)?;
                tally.add("ranges", 1);
            }
            2 => {
                node.state = good.clone();
                if rng.bool() {
                    node.state.gpus.iter_mut().for_each(|gpu| absurd(rng, gpu));
                }
                node.driver.play(&node.state);
                tally.add("states of the driver", 1);
            }
            at => {
                let target = &configuration[at - 3];
                let content = bytes(rng, &target.good);
                spoil(rng, &target.file, &content)?;
                tally.add(target.name, 1);
            }
        }
        thread::sleep(Duration::from_millis(rng.u64(..150)));
        agent.is_well()?;
        let page = scraper.page()?;
        check(&page, last.as_ref())?;
        last = Some(page);
        tally.add("pages", 1);
    }
    let range = format!("{RANGE_UJ}\n");
    replace_any(&node.machine.package("max_energy_range_uj"), range.as_bytes())?;
    replace_any(&node.machine.package("energy_uj"), format!("{FIRST_UJ}\n").as_bytes())?;
    for target in &configuration {
        replace_any(&target.file, &target.good)?;
    }
    node.driver.play(&good);
    let address = agent.address()?;
    until("every state to be good again", || {
        let page = scraper.page()?;
        check(&page, last.as_ref())?;
        let valid = |name| page.value(name, "", "", 0).map(|value| value == 1);
        let states = [valid("energy_agent_web_config_valid")?, valid("energy_agent_export_config_valid")?];
        Ok((states == [true, true] && problems(&address)?.is_empty()).then_some(()))
    })?;
    agent.end_well()?;
    node.is_as_before()?;
    Ok(tally)
}

fn check(page: &Page, last: Option<&Page>) -> Result<()> {
    if page.all("kepler_node_cpu_active_joules_total").next().is_some()
        && let Some(off) = conserved(page)?
    {
        bail!("{off}");
    }
    if let Some(fell) = last.map(|last| fallen(last, page)).transpose()?.flatten() {
        bail!("{fell}");
    }
    Ok(())
}

/// What `/policies` says was refused.
fn problems(address: &str) -> Result<Vec<Value>> {
    let mut answer = ureq::get(format!("http://{address}/policies?format=json")).call()?;
    let text = answer.body_mut().read_to_string()?;
    let answer: Value = serde_json::from_str(&text).with_context(|| format!("/policies: {text}"))?;
    Ok(answer["problems"].as_array().context("/policies without problems")?.clone())
}

/// Puts something bad in the place of a file.
fn spoil(rng: &mut Rng, file: &Path, content: &[u8]) -> Result<()> {
    match rng.u32(..10) {
        0 => {
            let _ = remove(file);
        }
        // The first page of a process is never mapped: reading there gives EIO.
        1 => {
            let _ = remove(file);
            symlink("/proc/self/mem", file)?;
        }
        2 => {
            let _ = remove(file);
            fs::create_dir(file)?;
        }
        _ => replace_any(file, content)?,
    }
    Ok(())
}

fn replace_any(file: &Path, content: &[u8]) -> Result<()> {
    if file.is_dir() {
        fs::remove_dir(file)?;
    }
    replace(file, content)
}

fn remove(file: &Path) -> std::io::Result<()> {
    if file.is_dir() { fs::remove_dir(file) } else { fs::remove_file(file) }
}

/// Random bytes, or what is left of something good.
fn bytes(rng: &mut Rng, good: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    match rng.u32(..6) {
        0 => {
            bytes.resize(rng.usize(..5000), 0);
            rng.fill(&mut bytes);
        }
        1 => return vec![b"[{-:&*!|>\t\n"[rng.usize(..10)]; rng.usize(..20_000)],
        2 => bytes.truncate(rng.usize(..bytes.len())),
        3 => bytes.resize(2 << 20, b' '),
        4 => bytes.extend_from_slice(&good.repeat(rng.usize(1..4))),
        _ => {
            for _ in 0..rng.usize(1..6) {
                let at = rng.usize(..bytes.len());
                bytes[at] ^= 1 << rng.u32(..8);
            }
        }
    }
    bytes
}

/// What a counter should never show.
fn number(rng: &mut Rng) -> Vec<u8> {
    match rng.u32(..8) {
        0 => Vec::new(),
        1 => b"0\n".to_vec(),
        2 => format!("{}\n", u64::MAX).into_bytes(),
        3 => format!("-{}\n", rng.u64(..)).into_bytes(),
        4 => format!("{}0{}\n", u64::MAX, rng.u64(..)).into_bytes(),
        5 => b"1e30\n".to_vec(),
        6 => bytes(rng, b"262143328850\n"),
        _ => format!("{}\n", rng.u64(..RANGE_UJ)).into_bytes(),
    }
}

/// A GPU whose driver answers at random.
fn absurd(rng: &mut Rng, gpu: &mut Gpu) {
    let mut any = |most: u64| match rng.u32(..4) {
        0 => None,
        1 => Some(most),
        _ => Some(rng.u64(..=most)),
    };
    let small = |number: Option<u64>| number.and_then(|number| u32::try_from(number).ok());
    let most = u64::from(u32::MAX);
    gpu.plant = None;
    gpu.energy_mj = any(u64::MAX);
    gpu.power_mw = small(any(most));
    gpu.power_instant_mw = small(any(most));
    gpu.utilization = small(any(most)).zip(small(any(most)));
    gpu.memory_total_bytes = any(u64::MAX);
    gpu.memory_used_bytes = any(u64::MAX);
    gpu.temperature_celsius = small(any(most));
    gpu.sm_clock_mhz = small(any(most));
    gpu.memory_clock_mhz = small(any(most));
    gpu.throttle_reasons = any(u64::MAX);
}
