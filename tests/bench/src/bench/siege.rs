//! What the kubelet's probes and a scraper wait while thousands of clients from the scraper's own address do nothing, read
//! nothing or guess passwords: the attack `clients` of `cargo xtask chaos`, on the release build.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fastrand::Rng;

use super::agent::Scraper;
use super::footprint::mib;
use super::world::release;
use super::{Finding, Scale, median, quantile};
use crate::chaos::Place;
use crate::chaos::clients::{self, PODS, PROBES, Siege};
use crate::chaos::tally::Tally;
use crate::root;

const GOAL_MS: f64 = 1000.0;

/// # Errors
/// When the world cannot be made, a probe is not answered in the kubelet's time, or a guess passes.
pub fn siege(scale: Scale) -> Result<Vec<Finding>> {
    let folder = root().join("target/bench/siege");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let time = scale.seconds(120, 5);
    let siege = Siege::begin(&Place { programs: release(), folder, time }, &mut Rng::with_seed(1))?;
    let header = clients::scraper_header();
    let mut kept = Scraper::connect_with(&siege.address, header.clone())?;
    let (mut probes, mut scrapes, mut anew) = (Vec::new(), Vec::new(), Vec::new());
    let began = Instant::now();
    while began.elapsed() < time {
        let round = Instant::now();
        for path in PROBES {
            probes.push(milliseconds(siege.probe(path)?));
        }
        scrapes.push(milliseconds(kept.get(true).context("scraping")?.took));
        let connecting = Instant::now();
        Scraper::connect_with(&siege.address, header.clone())?.get(true).context("scraping on a new connection")?;
        anew.push(milliseconds(connecting.elapsed()));
        thread::sleep(Duration::from_millis(500).saturating_sub(round.elapsed()));
    }
    let mut tally = Tally::default();
    let peak_kib = u32::try_from(siege.end(&mut tally)?)?;
    let beside = format!(
        "beside 2,000 connections that send nothing, 200 clients that do not read and 200 that guess the scraper's password, all from \
        its address; page of {PODS} pods; {}; VmHWM of the agent {}",
        tally.text(),
        mib(peak_kib)
    );
    let waits = [
        ("probe", "a new connection each", probes),
        ("scrape", "gzipped, on a kept connection", scrapes),
        ("scrape anew", "gzipped, a new connection each", anew),
    ];
    let finding = |(what, how, waits): (&str, &str, Vec<f64>)| {
        let p99 = quantile(&waits, 99);
        Finding {
            what: format!("{what} p99 under attack"),
            measured: format!("{p99:.0} ms"),
            goal: "under 1 s".to_owned(),
            reached: p99 < GOAL_MS,
            how: format!("{how}; {} of them, p50 {:.1} ms; {beside}", waits.len(), median(&waits)),
        }
    };
    Ok(waits.map(finding).into())
}

fn milliseconds(wait: Duration) -> f64 {
    wait.as_secs_f64() * 1000.0
}
