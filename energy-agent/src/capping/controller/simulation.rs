//! The controller against the plant of the fake driver: GPUs of 70 W + 630 W * load * (clock / 1980 MHz)^e with steps of
//! 15 MHz, which follow a write after 0.1 s. It ranks laws; it predicts no hardware.
//!
//! `cargo test -p energy-agent --lib capping::controller::simulation -- --nocapture` prints the table.

use std::collections::VecDeque;

use fake_nvml::plant::{Bounds, Plant, Running};
use fake_nvml::state::Clocks;
use fake_nvml::units::float;

use super::world::{World, clock_of, limit_of, policy};
use crate::units::{Watts, ratio};

/// Resolution of what is measured.
const SLICE_US: u64 = 10_000;
const SLICES: u64 = 100;
const SECOND_US: u64 = SLICE_US * SLICES;
/// Of each GPU; watts.
const BUDGET: f64 = 400.0;
const EXPONENTS: [f64; 5] = [1.2, 1.5, 2.0, 2.5, 3.0];

/// What a run comes to.
#[derive(Debug, Default)]
struct Score {
    /// Share of the time in which the power of the moment is above the budget.
    over: f64,
    /// The same of the mean of a second, which the budget is about.
    mean_over: f64,
    /// Energy above the budget as a part of the budget's.
    energy_over: f64,
    /// Most writes of one device within a minute; restores are not counted.
    writes: usize,
    /// From the first moment above the budget to the first of 10 s without another; ticks.
    settle: f64,
    /// Work done, as a part of what is done by a clock that always fits.
    work: f64,
    /// Knobs that are lowered at the end.
    lowered: usize,
}

/// Lets GPUs share a budget of 400 W each; `load` is theirs at a time in microseconds.
fn run(exponent: f64, count: u32, seconds: u64, load: impl Fn(u32, u64) -> f64) -> Score {
    let plant = Plant { exponent, ..Plant::default() };
    let clocks = Clocks::default();
    let budget = BUDGET * f64::from(count);
    let names: Vec<String> = (0..count).map(|number| format!("GPU-{number}")).collect();
    let mut world = World::new().policy(policy("cap", budget)).pod("train");
    for name in &names {
        world = world.gpu(name, &["train"]);
    }
    let mut gpus: Vec<Running> = names.iter().map(|_| Running::start(0, &plant, &clocks)).collect();
    let mut bounds = vec![Bounds { locked_mhz: None, limit_w: Some(700.0) }; gpus.len()];
    let mut writes = vec![VecDeque::new(); gpus.len()];
    let mut score = Score::default();
    let (mut over, mut over_ws, mut work, mut best) = (0_u64, 0.0, 0.0, 0.0);
    let (mut first, mut last, mut settled) = (None, 0, false);
    let (mut recent, mut mean_over) = (VecDeque::from([0.0; 100]), 0_u64);
    for second in 0..seconds {
        let before: Vec<f64> = gpus.iter().map(|gpu| gpu.energy_uj).collect();
        for slice in 1..=SLICES {
            let at = second * SECOND_US + slice * SLICE_US;
            let start = at - SLICE_US;
            let mut sum = 0.0;
            for ((number, gpu), bounds) in (0_u32..).zip(&mut gpus).zip(&bounds) {
                gpu.advance(at, &plant, &clocks, *bounds, |at| load(number, at));
                sum += gpu.power_w;
                work += load(number, start) * f64::from(gpu.clock_mhz) / 1980.0;
            }
            best += fitting(&plant, budget, count, |number| load(number, start));
            recent.push_back(sum);
            recent.pop_front();
            mean_over += u64::from(recent.iter().sum::<f64>() / 100.0 > budget + 0.1);
            // A watt is what a step of the clock cannot hit.
            if sum > budget + 0.1 {
                over += 1;
                over_ws += (sum - budget) * 0.01;
                first = first.or(Some(start));
                if !settled {
                    last = at;
                }
            } else if first.is_some() && at > last + 10 * SECOND_US {
                settled = true;
            }
        }
        for (((name, gpu), before), bounds) in names.iter().zip(&gpus).zip(&before).zip(&bounds) {
            let clock = gpu.clock_mhz;
            world.draw(name, (gpu.energy_uj - before) / 1e6);
            let device = world.seen.gpus.iter_mut().find(|device| *device.uuid == **name).unwrap();
            device.clock_mhz = Some(clock);
            let _ = bounds;
        }
        world.tick();
        for ((name, bounds), writes) in names.iter().zip(&mut bounds).zip(&mut writes) {
            let clock = world.limit(&clock_of(name)).map(|mhz| (345, u32::try_from(mhz).unwrap()));
            let limit = world.limit(&limit_of(name));
            let limit_w = Some(limit.map_or(700.0, |mw| ratio(mw, 1000)));
            for changed in [clock.is_some() && clock != bounds.locked_mhz, limit.is_some() && limit_w != bounds.limit_w]
            {
                if changed {
                    writes.push_back(second);
                }
            }
            while writes.front().is_some_and(|at| at + 60 <= second) {
                writes.pop_front();
            }
            score.writes = score.writes.max(writes.len());
            *bounds = Bounds { locked_mhz: clock, limit_w };
        }
    }
    score.over = ratio(over, seconds * SLICES);
    score.mean_over = ratio(mean_over, seconds * SLICES);
    score.energy_over = over_ws / (budget * float(seconds));
    score.settle = first.map_or(0.0, |first| float(last.saturating_sub(first)) / 1e6);
    score.work = if best > 0.0 { work / best } else { 1.0 };
    score.lowered = world.outcome.limits.len();
    score
}

/// Work of a moment at one clock of all that fits the budget.
fn fitting(plant: &Plant, budget: f64, count: u32, load: impl Fn(u32) -> f64) -> f64 {
    let loads: f64 = (0..count).map(load).sum();
    let idle = plant.idle_w * f64::from(count);
    let part = ((budget - idle) / ((plant.max_w - plant.idle_w) * loads.max(1e-9))).powf(1.0 / plant.exponent);
    loads * part.min(1.0)
}

/// Evenly distributed over 0 to 1, the same for the same numbers.
fn noise(seed: u32, part: u64) -> f64 {
    let mut state = part.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(u64::from(seed) << 32 | 0x1234_5678);
    for _ in 0..3 {
        state ^= state >> 30;
        state = state.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        state ^= state >> 27;
    }
    ratio(state >> 32, 1 << 32)
}

/// Loaded for `on` of every `on + off` seconds, from second 10.3.
fn bursts(on: f64, off: f64) -> impl Fn(u32, u64) -> f64 {
    move |_, at| {
        let at = float(at) / 1e6 - 10.3;
        if at >= 0.0 && at % (on + off) < on { 1.0 } else { 0.0 }
    }
}

fn scenarios() -> Vec<(String, u64, Box<dyn Fn(u32, u64) -> f64>)> {
    let mut all: Vec<(String, u64, Box<dyn Fn(u32, u64) -> f64>)> = Vec::new();
    for phase in [0_u64, 30, 50, 70, 95] {
        let from = 10 * SECOND_US + phase * SLICE_US;
        all.push((format!("step at .{phase:02}"), 130, Box::new(move |_, at| if at >= from { 1.0 } else { 0.0 })));
    }
    for (on, off) in [
        (2.0, 8.0),
        (5.0, 5.0),
        (20.0, 20.0),
        (10.0, 50.0),
        (10.0, 62.0),
        (10.0, 80.0),
        (30.0, 60.0),
        (30.0, 90.0),
        (10.0, 122.0),
        (20.0, 70.0),
        (37.7, 41.3),
        (60.0, 240.0),
    ] {
        all.push((format!("bursts {on}/{off}"), 1800, Box::new(bursts(on, off))));
    }
    all.push(("noise .9-1 4 Hz".to_owned(), 900, Box::new(|number, at| 0.9 + 0.1 * noise(number, at / 250_000))));
    all.push(("noise .7-1 1 Hz".to_owned(), 900, Box::new(|number, at| 0.7 + 0.3 * noise(number, at / 1_000_000))));
    all.push(("noise .2-1 3 s".to_owned(), 1800, Box::new(|number, at| 0.2 + 0.8 * noise(number, at / 3_000_000))));
    all.push((
        "stairs 45 s".to_owned(),
        1800,
        Box::new(|_, at| [0.3, 1.0, 0.6, 0.9, 0.1, 0.8, 1.0, 0.5][usize::try_from(at / 45_000_000 % 8).unwrap()]),
    ));
    all.push((
        "own bursts".to_owned(),
        1800,
        Box::new(|number, at| {
            let at = float(at) / 1e6 - 7.0 * f64::from(number);
            if at >= 0.0 && at % 50.0 < 25.0 { 1.0 } else { 0.05 }
        }),
    ));
    all
}

#[test]
fn table() {
    for count in [1, 8] {
        for (name, seconds, load) in scenarios() {
            for exponent in EXPONENTS {
                let score = run(exponent, count, seconds, &load);
                let bad = if score.mean_over > 0.02 && seconds > 500 || score.writes > 20 || score.settle > 3.0 {
                    " <<<"
                } else {
                    ""
                };
                println!(
                    "{count} {name:16} e {exponent:.1} over {:5.2} mean {:5.2} % energy {:5.2} % writes {:2} settle {:5.2} work {:5.1} % left {}{bad}",
                    score.over * 100.0,
                    score.mean_over * 100.0,
                    score.energy_over * 100.0,
                    score.writes,
                    score.settle,
                    score.work * 100.0,
                    score.lowered
                );
            }
        }
    }
    let _ = Watts(0.0);
}
