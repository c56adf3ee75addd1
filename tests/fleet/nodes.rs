//! Simulated nodes: each serves `/power` at an address of its own, follows the levels that are for it, and draws what its
//! load wants as far as its limit lets it.

use std::convert::Infallible;
use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::common::kubernetes::server::runtime;

pub const FLOOR: f64 = 500.0;
pub const MOST: f64 = 3000.0;
/// What the devices of a policy's pods can be held at, and may draw.
pub const PODS_FLOOR: f64 = 300.0;
pub const PODS_MOST: f64 = 2000.0;
/// What is drawn of a limit by a node that would draw more.
const UNDER_LIMIT: f64 = 0.97;

pub struct Nodes {
    pub nodes: Vec<Arc<Node>>,
    pub port: u16,
}

pub struct Node {
    pub name: String,
    pub rack: String,
    pub tier: &'static str,
    pub address: Ipv4Addr,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    demand: f64,
    silent: bool,
    nonsense: bool,
    /// Its power is not known.
    unmeasured: bool,
    seq: u64,
    /// By budget: permille and epoch.
    levels: Vec<(String, u32, i64)>,
    /// What the pods of a policy want here; 0 where there are none.
    pods_demand: f64,
    /// Of the policy's level.
    pods_permille: Option<u32>,
    /// A policy of this name that the agent refuses.
    refuses: Option<String>,
}

impl Node {
    pub fn set_demand(&self, watts: f64) {
        self.state.lock().unwrap().demand = watts;
    }

    pub fn set_silent(&self, silent: bool) {
        self.state.lock().unwrap().silent = silent;
    }

    pub fn set_nonsense(&self, nonsense: bool) {
        self.state.lock().unwrap().nonsense = nonsense;
    }

    pub fn set_unmeasured(&self, unmeasured: bool) {
        self.state.lock().unwrap().unmeasured = unmeasured;
    }

    pub fn follow(&self, levels: Vec<(String, u32, i64)>, pods_permille: Option<u32>) {
        let mut state = self.state.lock().unwrap();
        (state.levels, state.pods_permille) = (levels, pods_permille);
    }

    pub fn set_pods_demand(&self, watts: f64) {
        self.state.lock().unwrap().pods_demand = watts;
    }

    pub fn pods_power(&self) -> f64 {
        self.state.lock().unwrap().pods_power()
    }

    pub fn set_refuses(&self, policy: Option<&str>) {
        self.state.lock().unwrap().refuses = policy.map(str::to_owned);
    }

    pub fn power(&self) -> f64 {
        self.state.lock().unwrap().power()
    }

    fn report(&self) -> Option<String> {
        let mut state = self.state.lock().unwrap();
        if state.silent {
            return None;
        }
        if state.nonsense {
            return Some(json!({"node": self.name, "watts": -5, "floor_watts": 1e12, "most_watts": 1e13}).to_string());
        }
        state.seq += 1;
        let levels: Vec<Value> = state
            .levels
            .iter()
            .map(|(budget, permille, epoch)| json!({"budget": budget, "permille": permille, "epoch": epoch}))
            .collect();
        let mut report = json!({
            "node": self.name, "seq": state.seq, "watts": state.power(), "floor_watts": FLOOR, "most_watts": MOST,
            "levels": levels, "something_newer": true,
        });
        if state.unmeasured {
            report["watts"] = Value::Null;
        }
        if let Some((limit, budget)) = state.limit() {
            report["limit_watts"] = json!(limit);
            if state.demand > limit {
                report["limited_by"] = json!(budget);
            }
        }
        if state.pods_demand > 0.0 {
            let limit = state.pods_limit();
            report["policies"] = json!([{
                "namespace": "ml", "name": "serve", "pods": 2, "watts": state.pods_power(),
                "capped_pods": if limit.is_some_and(|limit| state.pods_demand > limit) { 2 } else { 0 },
                "floor_watts": PODS_FLOOR, "most_watts": PODS_MOST, "limit_watts": limit,
            }]);
        }
        if let Some(name) = &state.refuses {
            report["policies"] = json!([{"namespace": "ml", "name": name, "refused": "spec.newer: not understood"}]);
        }
        Some(report.to_string())
    }
}

impl State {
    fn pods_limit(&self) -> Option<f64> {
        let permille = self.pods_permille.filter(|permille| *permille < 1000)?;
        Some(PODS_FLOOR + f64::from(permille) / 1000.0 * (PODS_MOST - PODS_FLOOR))
    }

    fn pods_power(&self) -> f64 {
        match self.pods_limit() {
            Some(limit) if self.pods_demand > limit => (UNDER_LIMIT * limit).max(PODS_FLOOR),
            _ => self.pods_demand,
        }
    }

    /// The lowest value, and its node.
    fn limit(&self) -> Option<(f64, &str)> {
        let limits = self.levels.iter().filter(|(_, permille, _)| *permille < 1000);
        limits
            .map(|(budget, permille, _)| (FLOOR + f64::from(*permille) / 1000.0 * (MOST - FLOOR), budget.as_str()))
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
    }

    fn power(&self) -> f64 {
        match self.limit() {
            Some((limit, _)) if self.demand > limit => (UNDER_LIMIT * limit).max(FLOOR),
            _ => self.demand,
        }
    }
}

impl Nodes {
    /// Ten to a rack; the names have dots, as names of nodes may.
    pub fn start(count: u8) -> Self {
        let mut port = 0;
        let nodes = (0..count)
            .map(|number| {
                let address = Ipv4Addr::new(127, 1, 0, number + 1);
                let listener = runtime().block_on(TcpListener::bind((address, port))).unwrap();
                port = listener.local_addr().unwrap().port();
                let node = Arc::new(Node {
                    name: format!("node-{number}.rack-{}.example", number / 10),
                    rack: format!("r{}", number / 10),
                    tier: if number % 2 == 0 { "batch" } else { "serving" },
                    address,
                    state: Mutex::default(),
                });
                runtime().spawn(serve(listener, Arc::clone(&node)));
                node
            })
            .collect();
        Self { nodes, port }
    }

    pub fn all_demand(&self, watts: f64) {
        self.nodes.iter().for_each(|node| node.set_demand(watts));
    }

    pub fn power(&self) -> f64 {
        self.nodes.iter().map(|node| node.power()).sum()
    }

    /// Name and labels of each.
    pub fn objects(&self) -> Vec<(String, Value)> {
        let labels = |node: &Arc<Node>| json!({"hall": "h", "rack": node.rack, "pool": node.tier});
        self.nodes.iter().map(|node| (node.name.clone(), labels(node))).collect()
    }

    pub fn addresses(&self) -> Vec<(String, String)> {
        self.nodes.iter().map(|node| (node.name.clone(), node.address.to_string())).collect()
    }
}

async fn serve(listener: TcpListener, node: Arc<Node>) {
    while let Ok((stream, _)) = listener.accept().await {
        let node = Arc::clone(&node);
        let service = service_fn(move |request: Request<Incoming>| {
            let node = Arc::clone(&node);
            async move {
                assert_eq!(request.uri().path(), "/power");
                let Some(report) = node.report() else {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                    return pending().await;
                };
                Ok::<_, Infallible>(Response::new(Body::from(report)))
            }
        });
        let http = hyper::server::conn::http1::Builder::new();
        runtime().spawn(http.serve_connection(TokioIo::new(stream), service));
    }
}
