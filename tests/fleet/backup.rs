//! etcd is given back what it had some time ago: an open level of an earlier leader, and versions that were used since.

use std::sync::Arc;

use serde_json::json;

use crate::api::{Api, NAMESPACE, says};
use crate::common::agent::wait_for;
use crate::common::kubernetes::cluster::Cluster;
use crate::common::kubernetes::controller::{install_kinds, serve_endpoint_slices};
use crate::common::skip::{API_SERVER, skip};
use crate::gpu_world::World;
use crate::replica::Replica;

const PATH: &str = "clusterpowerbudgets/rack";
const GPU: &str = "GPU-train";

#[test]
fn a_backup_of_etcd_lifts_no_limit() {
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
    let _controller = Replica::start(&cluster, "a", "http://127.0.0.1:1");
    // A writer that is silent for longer than the test takes: what is seen is the epoch alone.
    api.apply(
        PATH,
        &json!({
            "mode": "Enforce", "watts": 400, "nodes": {"matchLabels": {"rack": "p"}},
            "control": {"holdSeconds": 1}, "onControllerLoss": {"afterSeconds": 600},
        }),
    );
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
    let before = epoch();

    cluster.restore();
    wait_for("a level of a later leader, and no open GPU until then", || {
        assert!(world.lock(GPU).is_some() && world.watts(GPU) < 400.0, "{:?}", agent.log());
        (epoch() > before).then_some(())
    });
    // Both hear what is changed now.
    api.patch_budget("rack", &json!({"mode": "Off"}));
    world.wait_until_open(GPU);
    agent.assert_well();
}
