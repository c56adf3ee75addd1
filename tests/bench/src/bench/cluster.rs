//! Budgets over thousands of nodes: the shipped controller and a real API server on this machine, beside nodes that are simulated in
//! this program. Each node has a `/power` of its own on the loopback, watches by name for its two levels, and a plant.

mod node;
mod observer;
mod replica;
mod serve;
mod server;
mod watches;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fake_nvml::units::{count, float, whole};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle};

use self::node::{MOST_W, Node, OPEN};
use self::observer::{Guard, Observer};
use self::replica::Replica;
use self::server::{ApiServer, GROUP, NAMESPACE};
use self::watches::Heard;
use super::world::{World, cpu_ns};
use super::{Finding, Scale, quantile};
use crate::{output, root};

/// Nodes and racks of the full measurement, and of `--quick`.
const NODES: (u32, u32) = (5000, 100);
const RACKS: (u32, u32) = (300, 6);
/// Watts for each node. Budgets of racks hold whatever the controller does: limits never add up to more.
const REST_W: f64 = 1500.0;
const HALL_W: f64 = 2000.0;
const CUT_W: f64 = 1700.0;
const RACK_W: f64 = 2800.0;
/// A step to 133 % of the hall's budget.
const STEP_W: f64 = 2660.0;
/// Between two polls of a controller by its default.
const ROUND: Duration = Duration::from_secs(5);
/// Of a node in this program: its two watches, and the connection by which the leader asks it.
const OPEN_FILES: u64 = 3;
const MIB: f64 = 1_048_576.0;

/// # Errors
/// When the API server is not built, or something does not start.
pub fn cluster(scale: Scale, nodes: Option<u32>) -> Result<Vec<Finding>> {
    let number = nodes.unwrap_or(scale.of(NODES.0, NODES.1));
    let racks = nodes.map_or(scale.of(RACKS.0, RACKS.1), |nodes| nodes.div_ceil(17)).clamp(1, number);
    open_files(u64::from(number) * OPEN_FILES + 1000)?;
    let folder = root().join("target/bench/cluster");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let hall = Hall::start(&folder, number, racks)?;
    hall.measure(scale)
}

/// All that runs.
struct Hall {
    world: World,
    folder: std::path::PathBuf,
    server: ApiServer,
    nodes: Arc<Vec<Arc<Node>>>,
    heard: Arc<Heard>,
    racks: u32,
}

impl Hall {
    /// Starts the API server and the nodes, with all their watches open.
    fn start(folder: &Path, number: u32, racks: u32) -> Result<Self> {
        let world = World::new()?;
        let servers = world.agent.join("servers");
        fs::create_dir_all(&servers)?;
        let runtime = runtime()?;
        let server = ApiServer::start(&runtime, folder, &servers)?;
        let program = root().join("target/release/energy-agent");
        server.install_kinds(&output(Command::new(program).args(["policy", "crd"]))?)?;
        // Nodes of a rack stand beside each other.
        let nodes: Arc<Vec<Arc<Node>>> = Arc::new(
            (0..number)
                .map(|node| {
                    Arc::new(Node::new(
                        node,
                        u32::try_from(u64::from(node) * u64::from(racks) / u64::from(number)).unwrap_or(0),
                    ))
                })
                .collect(),
        );
        nodes.iter().for_each(|node| node.demand(REST_W));
        let port = serve::start(&runtime, &nodes)?;
        println!("  {number} nodes in {racks} racks: objects");
        let objects = |part: &[Arc<Node>]| -> Result<()> {
            for node in part {
                let labels = json!({"hall": "h", "rack": format!("r{}", node.rack), "pool": node.tier()});
                server.create("/api/v1/nodes", &json!({"metadata": {"name": node.name, "labels": labels}}))?;
            }
            Ok(())
        };
        thread::scope(|scope| -> Result<()> {
            let parts: Vec<_> =
                nodes.chunks(nodes.len().div_ceil(8)).map(|part| scope.spawn(move || objects(part))).collect();
            parts.into_iter().try_for_each(|part| part.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        })?;
        for (slice, part) in nodes.chunks(100).enumerate() {
            create_slice(&server, slice, part, port)?;
        }
        println!("  {number} nodes in {racks} racks: watches");
        let heard = watches::start(&runtime, &server.client, &nodes);
        let deadline = Instant::now() + Duration::from_secs(600);
        while heard.open.load(Ordering::SeqCst) < nodes.len() * 2 {
            ensure!(Instant::now() < deadline, "only {} watches are open", heard.open.load(Ordering::SeqCst));
            thread::sleep(Duration::from_millis(100));
        }
        Ok(Self { world, folder: folder.to_owned(), server, nodes, heard, racks })
    }

    fn measure(&self, scale: Scale) -> Result<Vec<Finding>> {
        let each = f64::from(count(self.nodes.len()));
        let observer = Observer::start(&self.nodes, Guard { watts_per_node: RACK_W });
        println!("  levels to nodes");
        let mut findings = vec![self.levels_to_nodes(scale)?];

        self.create_budgets()?;
        let start = |name: &str| Replica::start(name, &self.server.kubeconfig, &self.folder, &self.world.agent);
        let (mut leader, mut other) = (start("a")?, start("b")?);
        wait("a leader", || leader.leads() || other.leads())?;
        if other.leads() {
            std::mem::swap(&mut leader, &mut other);
        }
        wait("all nodes to report", || {
            let known =
                leader.page().and_then(|page| page.value("energy_agent_cluster_nodes", "state", "reporting", 0));
            known.is_ok_and(|known| known == u64::try_from(self.nodes.len()).unwrap_or_default())
        })?;
        wait("the levels of all racks", || {
            self.nodes.iter().all(|node| node.limit_by(node::Which::Rack) <= RACK_W + 0.5)
        })?;
        observer.guard();

        println!("  quiet");
        let mut decisions = Vec::new();
        let quiet = self.watch(&leader, scale.seconds(60, 8), &mut decisions)?;
        findings.extend(quiet.cost(self.nodes.len()));

        println!("  a load step");
        let stepped = Instant::now();
        self.nodes.iter().for_each(|node| node.demand(STEP_W));
        let engaged = self.watch(&leader, scale.seconds(60, 8), &mut decisions)?;
        let step = observer.seen().over_s(stepped, HALL_W * each);
        findings.push(within(
            "cluster: load step to 133 %, until the total is within the budget",
            step,
            10.0,
            &self.told(&observer, stepped, HALL_W),
        ));

        println!("  a budget that is cut");
        let cut = Instant::now();
        self.server
            .patch(&format!("{GROUP}/clusterpowerbudgets/hall"), &json!({"spec": {"watts": whole(CUT_W * each)}}))?;
        let after_cut = self.watch(&leader, scale.seconds(30, 6), &mut decisions)?;
        let over = observer.seen().over_s(cut, CUT_W * each);
        findings.push(within(
            "cluster: budget cut by 15 %, until the total is within it",
            over,
            5.0,
            &self.told(&observer, cut, CUT_W),
        ));

        println!("  every rack over its budget");
        self.nodes.iter().for_each(|node| node.demand(MOST_W));
        self.server.patch(
            &format!("{GROUP}/clusterpowerbudgets/hall"),
            &json!({"spec": {"watts": whole(MOST_W * 1.2 * each)}}),
        )?;
        let worst = self.watch(&leader, scale.seconds(60, 6), &mut decisions)?;
        findings.extend([
            writes("quiet", &quiet, 0.3),
            writes("with the hall limited", &engaged, 0.7),
            writes("after a budget was cut", &after_cut, 0.7),
            writes("with the hall open and every rack over its budget", &worst, 12.0),
        ]);
        findings.push(Finding {
            what: "cluster: decision about all budgets, p99".to_owned(),
            measured: format!("{:.1} ms", quantile(&decisions, 99) * 1000.0),
            goal: "at most 20 ms".to_owned(),
            reached: quantile(&decisions, 99) <= 0.020,
            how: format!(
                "energy_agent_controller_decision_seconds of {} rounds, {} budgets",
                decisions.len(),
                self.racks + 1
            ),
        });

        println!("  the leader is killed");
        let killed = Instant::now();
        leader.kill()?;
        wait("the other replica to lead", || other.leads())?;
        findings.push(within(
            "cluster: the leader is killed, until the other replica leads",
            Some(killed.elapsed().as_secs_f64()),
            20.0,
            "by its own metric; a leader that wakes up late writes nothing by a test of tests/fleet",
        ));
        thread::sleep(ROUND * 2);
        let (worst, looks) = {
            let seen = observer.seen();
            (seen.worst, seen.power.len())
        };
        findings.push(Finding {
            what: "cluster: limits of a rack added up, by what they may".to_owned(),
            measured: format!("at most {:.1} %", worst * 100.0),
            goal: "never above 100 %".to_owned(),
            reached: worst <= 1.0005,
            how: format!("of each rack with oversubscriptionPercent 100, by the levels that its nodes have heard, at each of {looks} looks"),
        });
        Ok(findings)
    }

    /// How long a level is on its way to the last node, measured with levels that this program writes.
    fn levels_to_nodes(&self, scale: Scale) -> Result<Finding> {
        let collection = format!("{GROUP}/namespaces/{NAMESPACE}/powerlevels");
        let object = |permille: u32| {
            json!({
                "apiVersion": "power.energy-agent.io/v1alpha1", "kind": "PowerLevel",
                "metadata": {"name": "budget.hall", "namespace": NAMESPACE},
                "spec": {
                    "for": {"kind": "ClusterPowerBudget", "name": "hall", "uid": "bench", "generation": 1},
                    "epoch": 1, "leaseName": "energy-agent-levels", "staleAfterSeconds": 60,
                    "levels": [{"tier": "", "permille": permille}], "lowestPermille": permille, "fallbackPermille": 1000,
                },
            })
        };
        let path = format!("{collection}/budget.hall");
        self.server.create(&collection, &object(OPEN))?;
        let mut last = Vec::new();
        for permille in 900..900 + scale.of(50, 5) {
            let written = Instant::now();
            self.server.patch(&path, &object(permille))?;
            wait("a level at all nodes", || self.heard.of_hall(permille).len() >= self.nodes.len())?;
            let at = self.heard.of_hall(permille).into_iter().max().context("no node")?;
            last.push((at - written).as_secs_f64());
            thread::sleep(Duration::from_millis(500));
        }
        self.server.delete(&path)?;
        let p99 = quantile(&last, 99);
        Ok(Finding {
            what: "cluster: from the write of a level to the last node, p99".to_owned(),
            measured: format!("{p99:.2} s"),
            goal: "at most 1 s".to_owned(),
            reached: p99 <= 1.0,
            how: format!(
                "{} writes, each to {} watches by name; median {:.2} s; the nodes' program shares the CPUs",
                last.len(),
                self.nodes.len(),
                quantile(&last, 50)
            ),
        })
    }

    fn create_budgets(&self) -> Result<()> {
        let budget = |name: &str, spec: Value| {
            let object = json!({
                "apiVersion": "power.energy-agent.io/v1alpha1", "kind": "ClusterPowerBudget",
                "metadata": {"name": name}, "spec": spec,
            });
            self.server.create(&format!("{GROUP}/clusterpowerbudgets"), &object).map(drop)
        };
        let watts = |each: f64, nodes: usize| whole(each * f64::from(count(nodes)));
        budget(
            "hall",
            json!({
                "mode": "Enforce", "watts": watts(HALL_W, self.nodes.len()), "nodes": {"matchLabels": {"hall": "h"}},
                "tiers": [{"name": "batch", "matchLabels": {"pool": "batch"}}],
            }),
        )?;
        for rack in self.nodes.chunk_by(|a, b| a.rack == b.rack) {
            let number = rack[0].rack;
            let spec = json!({
                "mode": "Enforce", "watts": watts(RACK_W, rack.len()), "oversubscriptionPercent": 100,
                "nodes": {"matchLabels": {"rack": format!("r{number}")}},
            });
            budget(&format!("rack-{number}"), spec)?;
        }
        Ok(())
    }

    /// Lets time pass, and looks at what it costs.
    fn watch(&self, leader: &Replica, time: Duration, decisions: &mut Vec<f64>) -> Result<Passed> {
        let servers = self.world.agent.join("servers");
        let begin = (Instant::now(), leader.cpu_ns()?, cpu_ns(&servers)?, self.server.writes()?, reports(leader)?);
        let mut round = None;
        while begin.0.elapsed() < time {
            thread::sleep(Duration::from_millis(500));
            let page = leader.page()?;
            let now = page.value("energy_agent_controller_rounds_total", "", "", 0)?;
            if round.replace(now).is_some_and(|before| before != now) {
                decisions.push(float(page.value("energy_agent_controller_decision_seconds", "", "", 9)?) / 1e9);
            }
        }
        let seconds = begin.0.elapsed().as_secs_f64();
        Ok(Passed {
            seconds,
            controller_cores: float(leader.cpu_ns()? - begin.1) / 1e9 / seconds,
            server_cores: float(cpu_ns(&servers)? - begin.2) / 1e9 / seconds,
            writes: since(self.server.writes()?, &begin.3),
            reports: reports(leader)? - begin.4,
            resident: float(leader.resident_bytes()?) / MIB,
        })
    }

    /// How the total went since then against a budget of so many watts for each node, and how late this program was, for people.
    fn told(&self, observer: &Observer, since: Instant, budget_w: f64) -> String {
        let seen = observer.seen();
        let budget = budget_w * f64::from(count(self.nodes.len()));
        let looks: Vec<(f64, f64)> = seen
            .power
            .iter()
            .zip(&seen.late_s)
            .filter(|((at, _), _)| *at >= since)
            .map(|((_, power), late)| (100.0 * power / budget, *late))
            .collect();
        let highest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let (percents, late): (Vec<f64>, Vec<f64>) = looks.into_iter().unzip();
        format!(
            "true power of the plants every 100 ms: {:.1} % of the budget at first, {:.1} % at most, {:.1} % at the end; \
            the nodes' program itself was late by {:.0} ms (p99), {:.0} ms at most",
            percents.first().copied().unwrap_or(f64::NAN),
            highest(&percents),
            percents.last().copied().unwrap_or(f64::NAN),
            quantile(&late, 99) * 1000.0,
            highest(&late) * 1000.0
        )
    }
}

/// What a time cost.
struct Passed {
    seconds: f64,
    controller_cores: f64,
    server_cores: f64,
    /// By what they wrote.
    writes: BTreeMap<String, u64>,
    /// Answers of agents.
    reports: u64,
    /// MiB.
    resident: f64,
}

impl Passed {
    fn cost(&self, nodes: usize) -> [Finding; 2] {
        let each_us = self.controller_cores * self.seconds * 1e6 / float(self.reports.max(1));
        [
            Finding {
                what: "cluster: CPU of the controller".to_owned(),
                measured: format!("{:.3} cores", self.controller_cores),
                goal: "at most 0.15 cores".to_owned(),
                reached: self.controller_cores <= 0.15,
                how: format!(
                    "its cpu.stat over {:.0} s while nothing is limited; {nodes} nodes polled every 5 s, {each_us:.0} us for each answer; \
                    API server and etcd meanwhile {:.2} cores",
                    self.seconds, self.server_cores
                ),
            },
            Finding {
                what: "cluster: memory of the controller".to_owned(),
                measured: format!("{:.0} MiB", self.resident),
                goal: "at most 150 MiB".to_owned(),
                reached: self.resident <= 150.0,
                how: "VmRSS".to_owned(),
            },
        ]
    }
}

fn writes(when: &str, passed: &Passed, goal: f64) -> Finding {
    let each_second = float(passed.writes.values().sum()) / passed.seconds;
    let parts: Vec<String> = passed.writes.iter().map(|(what, number)| format!("{number} {what}")).collect();
    Finding {
        what: format!("cluster: writes to the API server, {when}"),
        measured: format!("{each_second:.2} a second"),
        goal: format!("at most {goal} a second"),
        reached: each_second <= goal,
        how: format!("by the API server's own count over {:.0} s: {}", passed.seconds, parts.join(", ")),
    }
}

/// What was written since an earlier count.
fn since(now: BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let new = now.into_iter().map(|(what, number)| {
        let number = number.saturating_sub(before.get(&what).copied().unwrap_or_default());
        (what, number)
    });
    new.filter(|(_, number)| *number > 0).collect()
}

fn within(what: &str, seconds: Option<f64>, goal: f64, how: &str) -> Finding {
    Finding {
        what: what.to_owned(),
        measured: seconds.map_or("never above it".to_owned(), |seconds| format!("{seconds:.1} s")),
        goal: format!("at most {goal} s"),
        reached: seconds.is_some_and(|seconds| seconds <= goal),
        how: how.to_owned(),
    }
}

fn reports(replica: &Replica) -> Result<u64> {
    replica.page()?.value("energy_agent_controller_reports_total", "result", "ok", 0)
}

fn create_slice(server: &ApiServer, slice: usize, nodes: &[Arc<Node>], port: u16) -> Result<()> {
    let endpoints: Vec<Value> = nodes
        .iter()
        .map(|node| json!({"addresses": [node.address().to_string()], "nodeName": node.name, "conditions": {"ready": true}}))
        .collect();
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("energy-agent-{slice}"), "labels": {"kubernetes.io/service-name": "energy-agent"}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "metrics", "port": port, "protocol": "TCP"}],
    });
    server.create(&format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"), &object).map(drop)
}

/// Lets this program and what it starts have so many; root may have more than its hard limit says.
fn open_files(need: u64) -> Result<()> {
    let most = getrlimit(Resource::Nofile).maximum.map(|most| most.max(need));
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).with_context(|| {
        format!("so many nodes need {need} open files; raise `ulimit -H -n`, or choose fewer with --nodes")
    })
}

/// Of all nodes and all requests of this program, on a thread of its own for as long as the program runs.
fn runtime() -> Result<Handle> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || -> Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        sender.send(runtime.handle().clone())?;
        runtime.block_on(std::future::pending::<Result<()>>())
    });
    receiver.recv().context("starting the runtime")
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !is_so() {
        ensure!(Instant::now() < deadline, "waited 300 s for {what}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
