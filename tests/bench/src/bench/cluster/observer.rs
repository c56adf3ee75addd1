//! Looks at all nodes all the time: their power together, what they may draw together, and how late this program itself is. No
//! code is shared with the controller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::node::{Node, Which};

const LOOK: Duration = Duration::from_millis(100);

/// Racks whose limits may never add up to more than this, once they are guarded.
#[derive(Clone, Copy)]
pub struct Guard {
    /// For each node of the rack.
    pub watts_per_node: f64,
}

#[derive(Default)]
pub struct Seen {
    /// Power of all nodes at a moment; watts.
    pub power: Vec<(Instant, f64)>,
    /// How much later than it should a look came; seconds.
    pub late_s: Vec<f64>,
    /// By how much the limits of a rack exceeded what they may add up to, at most; a ratio.
    pub worst: f64,
    is_guarded: bool,
}

pub struct Observer {
    end: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    pub fn start(nodes: &Arc<Vec<Arc<Node>>>, guard: Guard) -> Self {
        let (end, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Seen::default())));
        let (ended, kept, nodes) = (Arc::clone(&end), Arc::clone(&seen), Arc::clone(nodes));
        let thread = thread::spawn(move || {
            let mut due = Instant::now();
            while !ended.load(Ordering::SeqCst) {
                due = (due + LOOK).max(Instant::now());
                thread::sleep(due.saturating_duration_since(Instant::now()));
                let late_s = due.elapsed().as_secs_f64();
                let power = nodes.iter().map(|node| node.watts()).sum();
                let mut seen = lock(&kept);
                seen.late_s.push(late_s);
                seen.power.push((Instant::now(), power));
                if seen.is_guarded {
                    seen.worst = racks(&nodes, guard).fold(seen.worst, f64::max);
                }
            }
        });
        Self { end, seen, thread: Some(thread) }
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// From now on the limits of racks are added up.
    pub fn guard(&self) {
        self.seen().is_guarded = true;
    }
}

impl Seen {
    /// From `since` to the last moment at which the power was above this; `None`: it never was.
    pub fn over_s(&self, since: Instant, watts: f64) -> Option<f64> {
        let mut over = self.power.iter().filter(|(at, power)| *at >= since && *power > watts);
        over.next_back().map(|(at, _)| (*at - since).as_secs_f64())
    }
}

/// What the nodes of each rack may draw by its level, by what they may at most.
fn racks(nodes: &[Arc<Node>], guard: Guard) -> impl Iterator<Item = f64> {
    nodes.chunk_by(|a, b| a.rack == b.rack).map(move |rack| {
        let sum: f64 = rack.iter().map(|node| node.limit_by(Which::Rack)).sum();
        let most: f64 = rack.iter().map(|_| guard.watts_per_node).sum();
        sum / most
    })
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
