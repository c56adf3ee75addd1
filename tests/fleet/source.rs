//! Power of nodes from a real Prometheus: a simulated agent and GPUs that only DCGM exporter knows, both as pages that are
//! scraped, and an agent of the program itself.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use crate::api::{Api, GROUP, NAMESPACE, says};
use crate::common::agent::{Agent, wait_for};
use crate::common::kubernetes::cluster::Cluster;
use crate::common::kubernetes::controller::{install_kinds, serve_endpoint_slices};
use crate::common::kubernetes::server::Server;
use crate::common::prometheus::Prometheus;
use crate::common::skip::{API_SERVER, skip};
use crate::gpu_world::{GpuPod, World};
use crate::replica::Replica;

/// What two nodes with agents say that can be held between 200 and 1000 W; the second one always the same.
fn agent_page(watts: f64, limit: Option<f64>) -> String {
    let limit = limit
        .map(|limit| format!("energy_agent_node_limit_watts{{budget=\"rack\",node_name=\"a.example\"}} {limit}\n"));
    format!(
        "energy_agent_node_power_watts{{node_name=\"b.example\"}} 900\n\
         energy_agent_node_power_range_watts{{bound=\"floor\",node_name=\"b.example\"}} 200\n\
         energy_agent_node_power_range_watts{{bound=\"most\",node_name=\"b.example\"}} 1000\n\
         energy_agent_node_power_watts{{node_name=\"a.example\"}} {watts}\n\
         energy_agent_node_power_range_watts{{bound=\"floor\",node_name=\"a.example\"}} 200\n\
         energy_agent_node_power_range_watts{{bound=\"most\",node_name=\"a.example\"}} 1000\n{}",
        limit.unwrap_or_default()
    )
}

/// 300 and 350 W; an instance of MIG repeats the power of its GPU.
const DCGM_PAGE: &str = "\
    DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-0\",Hostname=\"g.example\"} 300\n\
    DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-0\",GPU_I_ID=\"1\",Hostname=\"g.example\"} 300\n\
    DCGM_FI_DEV_POWER_USAGE{gpu=\"1\",UUID=\"GPU-1\",Hostname=\"g.example\"} 350\n";

/// A page that the test can change, of a server of its own.
struct ScrapedPage {
    text: Arc<Mutex<String>>,
    server: Server,
}

impl ScrapedPage {
    fn serve(text: &str) -> Self {
        let text = Arc::new(Mutex::new(text.to_owned()));
        let served = Arc::clone(&text);
        let server = Server::start(
            None,
            Arc::new(move |_| {
                let text = served.lock().unwrap().clone();
                Box::pin(async move {
                    Response::builder()
                        .header("content-type", "text/plain; version=0.0.4")
                        .body(Body::from(text))
                        .unwrap()
                })
            }),
        );
        Self { text, server }
    }

    fn set(&self, text: String) {
        *self.text.lock().unwrap() = text;
    }
}

/// Tests of one program have one API server, and budgets belong to no namespace: this controller needs one of its own.
struct Fleet {
    api: Api,
    agent: ScrapedPage,
    _gpus: ScrapedPage,
    controller: Replica,
    /// Until it is away.
    prometheus: Option<Prometheus>,
    world: World,
    /// On its GPU.
    _pods: [GpuPod; 1],
    real: Agent,
}

impl Fleet {
    fn start() -> Self {
        let cluster = Cluster::own();
        let api = Api(Arc::clone(&cluster));
        install_kinds(&api.0);
        serve_endpoint_slices(&api.0);
        let mut world = World::in_cluster(Arc::clone(&cluster));
        let pods = world.busy(["train"]);
        let resources = format!("--capping.resources-namespace={NAMESPACE}");
        let real = world.spawn(&["--capping=on", "--capping.resources=enforce", &resources]);
        real.wait_until_ready();
        let (agent, gpus) = (ScrapedPage::serve(&agent_page(900.0, None)), ScrapedPage::serve(DCGM_PAGE));
        let nodes = [
            ("a.example".to_owned(), json!({"rack": "p"})),
            ("b.example".to_owned(), json!({"rack": "q"})),
            ("g.example".to_owned(), json!({"rack": "p"})),
            (world.node.name.clone(), json!({"real": "yes"})),
        ];
        // The controller asks no agent: nobody listens at these addresses.
        let agents =
            [("a.example".to_owned(), "127.0.0.1".to_owned()), (world.node.name.clone(), "127.0.0.1".to_owned())];
        api.create_nodes(&nodes, &agents, 1);
        let targets = [&agent.server.address.to_string(), &gpus.server.address.to_string(), &real.address];
        let prometheus = Prometheus::scraping(
            &json!([{"job_name": "energy", "static_configs": [{"targets": targets}]}]).to_string(),
        );
        let flags = ["--controller.source=prometheus", "--prometheus.scrape-interval=3s"];
        let controller = Replica::start_with(&cluster, "p", &prometheus.url(), &flags);
        Self { api, agent, _gpus: gpus, controller, prometheus: Some(prometheus), world, _pods: pods, real }
    }

    fn wait_for_rounds(&self, count: u64) {
        let rounds = || self.controller.budgets()["rounds"].as_u64().unwrap();
        let before = rounds();
        wait_for("rounds", || (rounds() > before + count).then_some(()));
    }

    fn node(&self, name: &str) -> Option<Value> {
        self.controller.budgets()["nodes"].as_array()?.iter().find(|node| node["name"] == name).cloned()
    }
}

fn budget(mode: &str, watts: u32) -> Value {
    json!({
        "mode": mode, "watts": watts, "nodes": {"matchLabels": {"rack": "p"}},
        "unreportedNodeWatts": 100, "control": {"holdSeconds": 1},
    })
}

const PATH: &str = "clusterpowerbudgets/rack";

#[test]
fn budgets_are_kept_by_what_prometheus_says_of_agents_and_gpus() {
    if std::env::var_os("TEST_KUBE_API").is_none() {
        return skip(&API_SERVER);
    }
    let _turn = crate::turn();
    let fleet = Fleet::start();
    counted(&fleet);
    enforced(&fleet);
    real_agent(&fleet);
    policies_are_left_alone(&fleet);
    prometheus_is_away(fleet);
}

/// Recommend: the agent's 900 W, and 650 W of GPUs that can't be lowered.
fn counted(fleet: &Fleet) {
    fleet.api.apply(PATH, &budget("Recommend", 1300));
    let status = fleet.api.wait_for_status_of("both nodes", PATH, |status| {
        status["watts"] == 1550 && says(status, "Limiting", "True", "WouldLimit")
    });
    assert_eq!(
        (&status["nodes"], &status["silentNodes"], &status["percent"]),
        (&json!(2), &json!(0), &json!(119)),
        "{status}"
    );
    assert!(says(&status, "Ready", "True", "Running") && says(&status, "InBudget", "False", "OverBudget"), "{status}");
    // 95 % of 1300 W without the 650 W leave 585 W: 385 of the 800 W between floor and most.
    assert_eq!(status["levelPermille"], 481, "{status}");
    // The page follows the status.
    let node = wait_for("the GPUs on the page", || {
        fleet.node("g.example").filter(|node| node["state"] == "reporting" && node["power_watts"] == 650.0)
    });
    assert!(node["floor_watts"].is_null() && node["limit_watts"].is_null(), "{node}");
}

/// Enforce: the level is written, and what the node then says is within the budget.
fn enforced(fleet: &Fleet) {
    fleet.api.apply(PATH, &budget("Enforce", 1300));
    let level = wait_for("the level", || fleet.api.level("rack"));
    assert_eq!(level["spec"]["levels"], json!([{"tier": "", "permille": 481}]), "{level}");
    // 200 W and 481 thousandths of 800 W.
    fleet.agent.set(agent_page(580.0, Some(584.8)));
    fleet.api.wait_for_status_of("within its budget", PATH, |status| {
        status["watts"] == 1230 && status["limitedNodes"] == 1 && says(status, "InBudget", "True", "UnderBudget")
    });
}

/// An agent of the program has the metrics that are asked for, and follows the level that comes of them.
fn real_agent(fleet: &Fleet) {
    let (api, world) = (&fleet.api, &fleet.world);
    let node = wait_for("the agent's power", || {
        let node = fleet.node(&world.node.name)?;
        (node["state"] == "reporting" && node["power_watts"].as_f64()? > 650.0).then_some(node)
    });
    let (floor, most) = (node["floor_watts"].as_f64().unwrap(), node["most_watts"].as_f64().unwrap());
    // The card may draw 700 W; what was seen above that counts, and a late reading shows more.
    assert!(floor > 0.0 && floor < most && most >= 700.0, "{node}");
    let path = "clusterpowerbudgets/real";
    api.apply(
        path,
        &json!({"mode": "Enforce", "watts": 500, "nodes": {"matchLabels": {"real": "yes"}}, "control": {"holdSeconds": 1}}),
    );
    world.wait_for_lock("GPU-train");
    world.wait("the node within its budget", || world.watts("GPU-train") < 500.0);
    api.wait_for_status_of("within its budget", path, |status| {
        says(status, "InBudget", "True", "UnderBudget") && status["limitedNodes"] == 1
    });
    api.delete(path);
    world.wait_until_open("GPU-train");
}

/// Prometheus says nothing of pods: a level of a policy that is there stays, and that is said.
fn policies_are_left_alone(fleet: &Fleet) {
    let (api, policy) = (&fleet.api, "namespaces/ml/powercappingpolicies/serve");
    api.apply(
        policy,
        &json!({
            "mode": "Enforce", "selector": {"matchLabels": {"app": "serve"}},
            "budget": {"watts": 400, "scope": "Total", "components": ["gpu"]},
        }),
    );
    let uid = api.find(policy).unwrap()["metadata"]["uid"].clone();
    let level = json!({
        "apiVersion": "power.energy-agent.io/v1alpha1", "kind": "PowerLevel", "metadata": {"name": "policy.serve"},
        "spec": {
            "for": {"kind": "PowerCappingPolicy", "name": "serve", "uid": uid, "generation": 1}, "epoch": 1,
            "leaseName": "energy-agent-levels", "staleAfterSeconds": 60, "fallbackPermille": 300,
            "levels": [{"tier": "", "permille": 300}],
        },
    });
    let before = api.create(&format!("{GROUP}/namespaces/ml/powerlevels"), &level);
    wait_for("a word about policies", || {
        let troubles = fleet.controller.budgets()["problems"].to_string();
        troubles.contains("PowerCappingPolicies and NodeFrequencies have no status").then_some(())
    });
    fleet.wait_for_rounds(5);
    assert_eq!(api.find("namespaces/ml/powerlevels/policy.serve"), Some(before));
    assert!(api.find(policy).unwrap()["status"].is_null());
}

/// Nodes count with what they may draw; a level that might be raised is not, and one that would be cut for that is not either.
fn prometheus_is_away(mut fleet: Fleet) {
    let (api, open) = (fleet.api.clone(), "clusterpowerbudgets/open");
    // 900 of 950 W, and 1000 W that the node may draw.
    let spec = json!({"mode": "Enforce", "watts": 950, "nodes": {"matchLabels": {"rack": "q"}}});
    api.apply(open, &spec);
    api.wait_for_status_of("an open budget", open, |status| {
        status["watts"] == 900 && says(status, "Limiting", "False", "Open")
    });
    let levels = || ["rack", "open"].map(|budget| api.level(budget).unwrap()["spec"].clone());
    let before = wait_for("both levels", || api.level("open").map(|_| levels()));
    fleet.prometheus = None;
    fleet.controller.wait_for_log("Prometheus does not say what nodes draw");
    // The limit of 584.8 W, and 650 W of GPUs.
    api.wait_for_status_of("silent nodes", PATH, |status| {
        status["silentNodes"] == 2 && status["watts"] == 1234 && says(status, "Ready", "False", "TooManySilent")
    });
    api.wait_for_status_of("more than the budget", open, |status| {
        status["silentNodes"] == 1 && status["watts"] == 1000 && says(status, "Ready", "False", "TooManySilent")
    });
    api.apply(PATH, &budget("Enforce", 5000));
    api.wait_for_status_of("the higher budget", PATH, |status| status["budgetWatts"] == 5000);
    fleet.wait_for_rounds(10);
    let now = levels();
    for (before, now) in before.iter().zip(&now) {
        assert_eq!(
            (&before["levels"], &before["fallbackPermille"]),
            (&now["levels"], &now["fallbackPermille"]),
            "{now}"
        );
    }
    assert_eq!(now.map(|spec| spec["levels"][0]["permille"].clone()), [json!(481), json!(1000)]);
    fleet.real.assert_well();
}
