//! etcd is given back what it had some time ago: an open level of an earlier leader, and versions that were used since. Then
//! controller and API server are lost together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::{Api, NAMESPACE, says};
use crate::common::agent::{Agent, wait_for};
use crate::common::kubernetes::cluster::Cluster;
use crate::common::kubernetes::controller::{install_kinds, serve_endpoint_slices};
use crate::common::skip::{API_SERVER, skip};
use crate::gpu_world::World;
use crate::replica::Replica;

const PATH: &str = "clusterpowerbudgets/rack";
const GPU: &str = "GPU-train";

#[test]
fn a_backup_of_etcd_lifts_no_limit_and_a_loss_of_all_does_what_the_budget_says() {
    if std::env::var_os("TEST_KUBE_API").is_none() {
        return skip(&API_SERVER);
    }
    let _turn = crate::turn();
    let cluster = Cluster::own();
    let api = Api(Arc::clone(&cluster));
    install_kinds(&api.0);
    serve_endpoint_slices(&api.0);
    let mut world = World::in_cluster(Arc::clone(&cluster));
    let _pods = world.busy(["train"]);
    let demand = |world: &mut World, load: f64| {
        world.change(GPU, |gpu| gpu.processes.iter_mut().flatten().for_each(|process| process.load = load));
    };
    demand(&mut world, 0.0);
    let resources = format!("--capping.resources-namespace={NAMESPACE}");
    let mut agent = world.spawn(&["--capping=on", "--capping.resources=enforce", &resources]);
    agent.wait_until_ready();
    let (host, port) = agent.address.rsplit_once(':').unwrap();
    let nodes = [(world.node.name.clone(), json!({"rack": "p"}))];
    api.create_nodes(&nodes, &[(world.node.name.clone(), host.to_owned())], port.parse().unwrap());
    let controller = Replica::start(&cluster, "a", "http://127.0.0.1:1");
    api.apply(PATH, &budget(&json!({"afterSeconds": 600})));
    api.wait_for_status_of("an open budget", PATH, |status| says(status, "Limiting", "False", "Open"));
    let old = wait_for("an open level", || api.level("rack"))["spec"]["epoch"].as_i64().unwrap();
    cluster.back_up();

    // The next leader limits.
    api.delete_lease();
    let epoch = || api.level("rack").map_or(0, |level| level["spec"]["epoch"].as_i64().unwrap());
    wait_for("a later epoch", || (epoch() > old).then_some(()));
    demand(&mut world, 1.0);
    world.wait_for_lock(GPU);
    world.wait("the node within its budget", || world.watts(GPU) < 400.0);
    let _next = all_are_lost(&api, &world, &agent, controller);
    let before = epoch();

    cluster.restore();
    wait_for("a level of a later leader, and no open GPU until then", || {
        assert!(world.lock(GPU).is_some() && world.watts(GPU) < 400.0, "{:?}", agent.log());
        (epoch() > before).then_some(())
    });
    agent.assert_well();
    agent.end("TERM");
    assert!(world.is_open(GPU));
}

fn budget(loss: &Value) -> Value {
    json!({
        "mode": "Enforce", "watts": 400, "nodes": {"matchLabels": {"rack": "p"}},
        "control": {"holdSeconds": 1}, "onControllerLoss": loss,
    })
}

/// Neither a controller nor the API server: the limit stands for as long as the budget says, and then what it says. With both
/// back it is limited again.
fn all_are_lost(api: &Api, world: &World, agent: &Agent, controller: Replica) -> Replica {
    api.patch_budget("rack", &json!({"onControllerLoss": {"limit": "Release", "afterSeconds": 30}}));
    wait_for("the level to say so", || api.level("rack").filter(|level| level["spec"]["staleAfterSeconds"] == 30));
    // That has arrived on the node after a while: the level that it follows is as old.
    agent.after_ticks(8);
    let lost = Instant::now();
    controller.kill();
    world.node.proxy.go_away();
    world.wait("an open GPU", || {
        let is_open = world.is_open(GPU);
        assert!(is_open || world.watts(GPU) < 400.0);
        is_open
    });
    // The last sign of life of the writer was up to 20 s old.
    assert!(lost.elapsed() >= Duration::from_secs(9), "open after {:?}", lost.elapsed());
    world.node.proxy.come_back();
    let next = Replica::start(&api.0, "b", "http://127.0.0.1:1");
    world.wait_for_lock(GPU);
    world.wait("the node within its budget", || world.watts(GPU) < 400.0);
    // From here on the writer may be silent for longer than the test takes: what counts is its epoch.
    api.patch_budget("rack", &json!({"onControllerLoss": {"limit": "StaticShare", "afterSeconds": 600}}));
    wait_for("the level to say so", || api.level("rack").filter(|level| level["spec"]["staleAfterSeconds"] == 600));
    agent.after_ticks(8);
    next
}
