//! A simulated node: what it draws, what it is told, and what it answers at `/power`.

use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fake_nvml::clock::monotonic_us;
use fake_nvml::plant::{Bounds, Plant, Running};
use fake_nvml::state::Clocks;
use serde_json::{Value, json};

/// What a node can be held at, and what its devices may draw together; watts.
pub const FLOOR_W: f64 = 600.0;
pub const MOST_W: f64 = 3000.0;
/// A node follows a level at its next tick.
const TICK_US: u64 = 1_000_000;
pub const OPEN: u32 = 1000;

/// Which of the two budgets of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Hall,
    Rack,
}

pub struct Node {
    pub name: String,
    pub number: u32,
    pub rack: u32,
    state: Mutex<State>,
}

struct State {
    /// All devices of the node as one.
    plant: Plant,
    clocks: Clocks,
    running: Running,
    /// Part of the highest power that the load asks for.
    load: f64,
    /// What the node has heard: permille and epoch of the hall and of the rack.
    heard: [Option<(u32, i64)>; 2],
    /// What it holds since its last tick; watts.
    limit_w: Option<f64>,
    /// When it ticks next; microseconds of the monotonic clock.
    tick_us: u64,
    seq: u64,
}

impl Node {
    /// Node `number` of `rack`, at rest.
    pub fn new(number: u32, rack: u32) -> Self {
        let plant = Plant { idle_w: 400.0, max_w: MOST_W, exponent: 1.5, ..Plant::default() };
        let (clocks, now) = (Clocks::default(), monotonic_us());
        let running = Running::start(now, &plant, &clocks);
        // Nodes tick at any moment of a second.
        let tick_us = now + u64::from(number % 997) * TICK_US / 997;
        let state = State { plant, clocks, running, load: 0.0, heard: [None, None], limit_w: None, tick_us, seq: 0 };
        // Names of nodes may have dots.
        Self { name: format!("node-{number}.rack-{rack}.example"), number, rack, state: Mutex::new(state) }
    }

    /// An address of its own on the loopback.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::from(0x7f01_0000 + self.number + 1)
    }

    /// Half of the nodes are cut first.
    pub const fn tier(&self) -> &'static str {
        if self.number.is_multiple_of(2) { "batch" } else { "serving" }
    }

    /// The load wants so many watts.
    pub fn demand(&self, watts: f64) {
        let mut state = self.now();
        state.load = ((watts - state.plant.idle_w) / (state.plant.max_w - state.plant.idle_w)).clamp(0.0, 1.0);
    }

    /// `None`: the level is gone.
    pub fn hear(&self, which: Which, level: Option<(u32, i64)>) {
        self.now().heard[usize::from(which == Which::Rack)] = level;
    }

    /// What it draws at this moment.
    pub fn watts(&self) -> f64 {
        self.now().running.power_w
    }

    /// What it may draw by the level of one budget.
    pub fn limit_by(&self, which: Which) -> f64 {
        self.now().heard[usize::from(which == Which::Rack)].map_or(MOST_W, |(permille, _)| limit(permille))
    }

    /// The answer to `GET /power`.
    pub fn report(&self) -> Value {
        let mut state = self.now();
        state.seq += 1;
        let names = ["hall".to_owned(), format!("rack-{}", self.rack)];
        let levels: Vec<Value> = state
            .heard
            .iter()
            .zip(&names)
            .filter_map(|(heard, name)| heard.map(|(permille, epoch)| (name, permille, epoch)))
            .map(|(name, permille, epoch)| json!({"budget": name, "permille": permille, "epoch": epoch}))
            .collect();
        let mut report = json!({
            "node": self.name, "seq": state.seq, "watts": state.running.mean_w(&state.plant), "floor_watts": FLOOR_W,
            "most_watts": MOST_W, "levels": levels,
        });
        if let Some(limit_w) = state.limit_w {
            report["limit_watts"] = json!(limit_w);
            if state.running.limited {
                let hall = state.heard[0].map_or(OPEN, |(permille, _)| permille);
                let rack = state.heard[1].map_or(OPEN, |(permille, _)| permille);
                report["limited_by"] = json!(names[usize::from(rack < hall)]);
            }
        }
        report
    }

    /// The state, brought up to this moment.
    fn now(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance(monotonic_us());
        state
    }
}

impl State {
    fn advance(&mut self, now_us: u64) {
        while self.tick_us <= now_us {
            self.run_to(self.tick_us);
            let lowest = self.heard.iter().flatten().map(|(permille, _)| *permille).min().unwrap_or(OPEN);
            self.limit_w = (lowest < OPEN).then(|| limit(lowest));
            self.tick_us += TICK_US;
        }
        self.run_to(now_us);
    }

    fn run_to(&mut self, at_us: u64) {
        let Self { plant, clocks, running, load, limit_w, .. } = self;
        running.advance(at_us, plant, clocks, Bounds { locked_mhz: None, limit_w: *limit_w }, |_| *load);
    }
}

/// The limit of a level: a share of what lies between floor and most.
pub fn limit(permille: u32) -> f64 {
    FLOOR_W + f64::from(permille) / 1000.0 * (MOST_W - FLOOR_W)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_node_draws_what_its_load_wants_and_no_more_than_its_limit_a_tick_later() {
        let node = Node::new(300, 18);
        assert_eq!(node.address(), Ipv4Addr::new(127, 1, 1, 45));
        node.demand(2000.0);
        thread::sleep(Duration::from_millis(300));
        assert!((node.watts() - 2000.0).abs() < 1.0, "{}", node.watts());
        node.hear(Which::Hall, Some((800, 3)));
        // Half of what lies between 600 and 3000 W.
        node.hear(Which::Rack, Some((500, 3)));
        assert!((node.limit_by(Which::Rack) - 1800.0).abs() < 1e-9);
        thread::sleep(Duration::from_millis(1300));
        assert!((1700.0..=1800.0).contains(&node.watts()), "{}", node.watts());
        assert_eq!(node.report()["limited_by"], "rack-18");
        node.hear(Which::Rack, None);
        thread::sleep(Duration::from_millis(1300));
        assert!((node.watts() - 2000.0).abs() < 1.0, "{}", node.watts());
    }
}
