//! Follows the levels for the nodes, and adds up what they may draw: with code of its own, from what the API server says.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::http::Method;
use serde_json::Value;

use crate::api::Api;
use crate::nodes::{FLOOR, MOST, Node, Nodes};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

pub struct Observer {
    end: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    /// Limits that added up to more than they may, and epochs that went back.
    violations: Vec<String>,
    /// By uid of the level.
    epochs: BTreeMap<String, i64>,
    looks: u32,
}

/// A budget whose limits may never add up to more than this, and the rack of its nodes.
pub struct Guarded {
    pub budget: &'static str,
    pub rack: &'static str,
    pub watts: f64,
}

impl Observer {
    pub fn start(api: &Api, nodes: &Nodes, guarded: Guarded) -> Self {
        let (end, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Seen::default())));
        let (ended, kept, api, nodes) = (Arc::clone(&end), Arc::clone(&seen), api.clone(), nodes.nodes.clone());
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::SeqCst) {
                if let Ok(list) = api.ask(Method::GET, &api.all_levels_path(), None) {
                    let levels = list["items"].as_array().cloned().unwrap_or_default();
                    let pods = of_policy(&levels);
                    nodes.iter().for_each(|node| node.follow(followed(node, &levels), pods));
                    kept.lock().unwrap().look(&nodes, &levels, &guarded);
                }
                thread::sleep(LOOK);
            }
        });
        Self { end, seen, thread: Some(thread) }
    }

    /// What it has seen that must not be.
    pub fn end(mut self) -> Vec<String> {
        self.end.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
        let seen = self.seen.lock().unwrap();
        assert!(seen.looks > 20, "the observer has looked {} times only", seen.looks);
        seen.violations.clone()
    }
}

impl Seen {
    fn look(&mut self, nodes: &[Arc<Node>], levels: &[Value], guarded: &Guarded) {
        self.looks += 1;
        for level in levels {
            let uid = level["metadata"]["uid"].as_str().unwrap().to_owned();
            let epoch = level["spec"]["epoch"].as_i64().unwrap();
            let before = self.epochs.insert(uid, epoch).unwrap_or(0);
            if epoch < before {
                self.violations.push(format!("epoch {epoch} after {before}: {level}"));
            }
            if level["metadata"]["name"] == format!("budget.{}", guarded.budget) {
                let limits = nodes.iter().filter(|node| node.rack == guarded.rack).map(|node| limit(node, level));
                let sum: f64 = limits.sum();
                if sum > guarded.watts + 0.5 {
                    self.violations.push(format!("limits of {sum} W for {} W: {level}", guarded.watts));
                }
            }
        }
    }
}

fn permille(node: &Node, level: &Value) -> u32 {
    let levels = level["spec"]["levels"].as_array().unwrap();
    let of = |tier: &str| levels.iter().find(|level| level["tier"] == tier);
    let level = of(node.tier).or_else(|| of("")).unwrap();
    u32::try_from(level["permille"].as_u64().unwrap()).unwrap()
}

fn limit(node: &Node, level: &Value) -> f64 {
    FLOOR + f64::from(permille(node, level)) / 1000.0 * (MOST - FLOOR)
}

/// The level of the policy whose pods some nodes have.
fn of_policy(levels: &[Value]) -> Option<u32> {
    let level = levels.iter().find(|level| level["metadata"]["name"] == "policy.serve")?;
    let permille = level["spec"]["levels"][0]["permille"].as_u64().unwrap();
    Some(u32::try_from(permille).unwrap())
}

/// The levels of the budgets that select the node: the hall, and its rack.
fn followed(node: &Node, levels: &[Value]) -> Vec<(String, u32, i64)> {
    let mine = levels.iter().filter(|level| {
        let budget = level["spec"]["for"]["name"].as_str().unwrap();
        let is_budget = level["spec"]["for"]["kind"] == "ClusterPowerBudget";
        is_budget && (budget == "hall" || budget == format!("rack-{}", node.rack))
    });
    mine.map(|level| {
        let budget = level["spec"]["for"]["name"].as_str().unwrap().to_owned();
        (budget, permille(node, level), level["spec"]["epoch"].as_i64().unwrap())
    })
    .collect()
}
