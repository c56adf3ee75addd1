//! A day in the life of two replicas: one hall of fifty nodes and a rack within it, with all that can go wrong.

use axum::http::Method;
use serde_json::{Value, json};

use crate::agents;
use crate::api::{Api, says};
use crate::common::agent::wait_for;
use crate::common::kubernetes::cluster::Cluster;
use crate::common::kubernetes::controller::{install_kinds, serve_endpoint_slices};
use crate::common::kubernetes::proxy::{Answer, Asked, Gate};
use crate::common::prometheus::Prometheus;
use crate::common::skip::{API_SERVER, skip};
use crate::dice::{Dice, kills};
use crate::nodes::Nodes;
use crate::observer::{Guarded, Observer};
use crate::replica::Replica;
use crate::{policies, queries, rights};

const COUNT: u8 = 50;
/// What 50 nodes draw at first: 50 * 1500 W.
const AT_REST: f64 = 75_000.0;

struct World {
    api: Api,
    nodes: Nodes,
    prometheus: Prometheus,
    a: Replica,
    b: Replica,
    /// What those asked for that were killed.
    asked: Vec<Asked>,
}

impl World {
    fn leader_and_other(&mut self) -> (&mut Replica, &mut Replica) {
        let holder = wait_for("a leader", || Some(self.api.holder()).filter(|holder| !holder.is_empty()));
        if holder == self.a.name { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) }
    }

    fn epoch(&self, budget: &str) -> i64 {
        self.api.level(budget).map_or(0, |level| level["spec"]["epoch"].as_i64().unwrap())
    }

    /// Waits until the hall's nodes draw less than this.
    fn wait_for_power(&self, what: &str, watts: f64) {
        wait_for(what, || (self.nodes.power() <= watts).then_some(()));
    }

    fn wait_for_epoch(&self, above: i64) {
        wait_for("a later epoch", || (self.epoch("hall") > above).then_some(()));
    }
}

#[test]
fn a_hall_is_kept_within_its_budget_whatever_happens_to_its_controllers() {
    if std::env::var_os("TEST_KUBE_API").is_none() {
        return skip(&API_SERVER);
    }
    let _turn = crate::turn();
    let cluster = Cluster::shared();
    let (api, prometheus) = (Api(cluster.clone()), Prometheus::scraping("[]"));
    let a = Replica::start(&cluster, "a", &prometheus.url());
    // The kinds are not there yet: that is said, and looked for again after some seconds.
    a.wait_for_log("install the kinds: energy-agent policy crd");
    install_kinds(&api.0);
    serve_endpoint_slices(&api.0);
    let nodes = Nodes::start(COUNT);
    nodes.all_demand(AT_REST / 50.0);
    api.create_nodes(&nodes.objects(), &nodes.addresses(), nodes.port);
    let b = Replica::start(&cluster, "b", &prometheus.url());
    let mut world = World { api, nodes, prometheus, a, b, asked: Vec::new() };
    let observer =
        Observer::start(&world.api, &world.nodes, Guarded { budget: "rack-r0", rack: "r0", watts: 20_000.0 });

    recommend(&world);
    enforce(&world);
    step_and_cut(&world);
    silent_nodes(&world);
    node_is_removed(&world);
    pages(&mut world);
    queries::meters(&world.api);
    policies::one_budget_for_a_service(&world.api, &world.nodes);
    policies::refused(&world.api, &world.nodes);
    policies::many_edits(&world.api, || world.a.budgets()["rounds"].as_u64().unwrap());
    agents::real_agent(&world.api, |name| node_of([&world.a, &world.b], name));
    leader_is_killed(&mut world, &cluster);
    both_are_killed(&mut world, &cluster);
    leader_is_paused(&mut world);
    lease_is_deleted(&mut world);
    random_kills(&mut world, &cluster);
    levels_are_restored(&world);
    server_is_away(&mut world);
    ends(&world);
    rights::compare(&[world.asked, world.a.proxy.asked(), world.b.proxy.asked()].concat());
    assert_eq!(observer.end(), Vec::<String>::new());
}

/// Recommend says what it would do, and nothing is written for nodes.
fn recommend(world: &World) {
    world.api.create_budget(
        "hall",
        &json!({
            "mode": "Recommend", "watts": 60_000, "nodes": {"matchLabels": {"hall": "h"}},
            "tiers": [{"name": "batch", "matchLabels": {"pool": "batch"}}],
            "control": {"holdSeconds": 1},
        }),
    );
    let status = world.api.wait_for_status("what it would do", "hall", |status| {
        says(status, "Limiting", "True", "WouldLimit") && status["nodes"] == 50 && status["silentNodes"] == 0
    });
    assert_eq!(
        (&status["watts"], &status["percent"], &status["silentNodes"]),
        (&json!(75_000), &json!(125), &json!(0))
    );
    assert!(says(&status, "InBudget", "False", "OverBudget") && says(&status, "Ready", "True", "Running"), "{status}");
    // 57 kW are the target: 1530 W for the 25 that serve leave 18750 W for the 25 of batch, 750 W each: 250 of 2500 W.
    assert_eq!(status["levelPermille"], 100, "{status}");
    assert_eq!(world.api.level("hall"), None);
}

/// Enforce: the level is written, and the nodes follow.
fn enforce(world: &World) {
    // Half of what the rack could draw, and kept whatever is drawn.
    world.api.create_budget("rack-r0", &json!({
        "mode": "Enforce", "watts": 20_000, "nodes": {"matchLabels": {"rack": "r0"}}, "oversubscriptionPercent": 100,
        "control": {"holdSeconds": 1},
    }));
    world.api.patch_budget("hall", &json!({"mode": "Enforce"}));
    world.wait_for_power("the hall within its budget", 60_000.0);
    world.api.wait_for_status("within its budget", "hall", |status| {
        says(status, "InBudget", "True", "UnderBudget") && says(status, "Limiting", "True", "Limited")
    });
    let level = world.api.level("hall").unwrap();
    let owner = &level["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["name"]), (&json!("ClusterPowerBudget"), &json!("hall")));
    assert_eq!(level["spec"]["leaseName"], "energy-agent-levels");
    // The rack: 5000 W are floors, 15000 of 25000 W are left.
    // It is lower while a node is late with its answer.
    let levels = json!([{"tier": "", "permille": 600}]);
    wait_for("the level of the rack", || world.api.level("rack-r0").filter(|rack| rack["spec"]["levels"] == levels));
}

/// A load step to 133 % of the budget, then a budget that is cut; tiers are cut in their order.
fn step_and_cut(world: &World) {
    world.api.patch_budget("hall", &json!({"watts": 90_000}));
    world.wait_for_status_open();
    // 50 * 2400 W are 133 % of 90 kW; the rack stands at 20 kW.
    world.nodes.all_demand(2400.0);
    world.wait_for_power("the step to be over", 90_000.0);
    let levels = || {
        let level = world.api.level("hall").unwrap();
        let of = |tier: &str| {
            let levels = level["spec"]["levels"].as_array().unwrap();
            levels.iter().find(|level| level["tier"] == tier).unwrap()["permille"].as_u64().unwrap()
        };
        (of("batch"), of(""))
    };
    assert!(levels().0 < 1000 && levels().1 == 1000, "batch is cut first: {:?}", levels());
    world.api.patch_budget("hall", &json!({"watts": 40_000}));
    world.wait_for_power("the cut budget to be kept", 40_000.0);
    wait_for("batch at its floor, and the others cut", || (levels().0 == 0 && levels().1 < 1000).then_some(()));
    // Less than the floors of 50 * 500 W: that is said, and nothing hunts.
    world.api.patch_budget("hall", &json!({"watts": 20_000}));
    world.api.wait_for_status("floors", "hall", |status| says(status, "InBudget", "False", "FloorsExceedBudget"));
    let rounds =
        || [&world.a, &world.b].map(|replica| replica.budgets()["rounds"].as_u64().unwrap()).iter().sum::<u64>();
    let before = rounds();
    wait_for("more rounds", || (rounds() > before + 10).then_some(()));
    assert_eq!(world.api.events("hall", "FloorsExceedBudget"), 1);
    world.api.patch_budget("hall", &json!({"watts": 90_000}));
    world.nodes.all_demand(AT_REST / 50.0);
    world.wait_for_status_open();
}

impl World {
    /// The hall's level is open again, step by step.
    fn wait_for_status_open(&self) {
        self.api.wait_for_status("open", "hall", |status| says(status, "Limiting", "False", "Open"));
    }
}

/// Some nodes fall silent, and then too many; one reports nonsense.
fn silent_nodes(world: &World) {
    world.nodes.nodes[20].set_nonsense(true);
    for node in &world.nodes.nodes[21..25] {
        node.set_silent(true);
    }
    // 45 * 1500 W and 5 * 3000 W, which is what an open node may draw.
    world.api.wait_for_status("five silent nodes", "hall", |status| {
        status["silentNodes"] == 5 && status["watts"] == 82_500 && says(status, "Ready", "True", "Running")
    });
    for node in &world.nodes.nodes[20..35] {
        node.set_silent(true);
    }
    world.api.wait_for_status("too many", "hall", |status| says(status, "Ready", "False", "TooManySilent"));
    // 35 * 1500 and 15 * 3000 W are 97.5 kW: the others are held, as the silent may draw what they may.
    wait_for("the others to be held", || {
        let others: f64 = world.nodes.nodes.iter().filter(|node| !world.is_silent(node)).map(|node| node.power()).sum();
        (others + 15.0 * 3000.0 <= 90_000.0).then_some(())
    });
    for node in &world.nodes.nodes {
        node.set_silent(false);
        node.set_nonsense(false);
    }
    world.api.wait_for_status("all heard", "hall", |status| says(status, "Ready", "True", "Running"));
    world.wait_for_status_open();
}

/// A node that is cut off counts with what it may draw until its object is gone.
fn node_is_removed(world: &World) {
    let node = world.nodes.nodes.last().unwrap();
    let counted = |what: &str, nodes: u32, silent: u32, watts: u32| {
        world.api.wait_for_status(what, "hall", |status| {
            status["nodes"] == nodes && status["silentNodes"] == silent && status["watts"] == watts
        });
    };
    // One that does not know its power may draw all that it is allowed.
    node.set_unmeasured(true);
    let power = || {
        let leader = [&world.a, &world.b].map(Replica::budgets).into_iter().find(|page| page["leads"] == true)?;
        let hall = leader["budgets"].as_array()?.iter().find(|budget| budget["name"] == "hall")?;
        hall["power_watts"].as_f64()
    };
    wait_for("the node without power with its most", || power().filter(|watts| (watts - 76_500.0).abs() < 1.0));
    node.set_unmeasured(false);
    node.set_silent(true);
    counted("the silent node with its most", 50, 1, 49 * 1500 + 3000);
    let path = format!("/api/v1/nodes/{}", node.name);
    let object = world.api.ask(Method::GET, &path, None).unwrap();
    world.api.ask(Method::DELETE, &path, None).unwrap();
    counted("49 nodes", 49, 0, 49 * 1500);
    node.set_silent(false);
    world
        .api
        .create("/api/v1/nodes", &json!({"metadata": {"name": node.name, "labels": object["metadata"]["labels"]}}));
    counted("the node again", 50, 0, 50 * 1500);
}

impl World {
    fn is_silent(&self, node: &crate::nodes::Node) -> bool {
        self.nodes.nodes[20..35].iter().any(|silent| silent.name == node.name)
    }
}

/// What the leader's pages say, and what the other's do.
fn pages(world: &mut World) {
    let (leader, other) = world.leader_and_other();
    let document = leader.budgets();
    assert_eq!((&document["leads"], &document["leader"]), (&json!(true), &json!(leader.name)));
    let budgets = document["budgets"].as_array().unwrap();
    let parents: Vec<(&Value, &Value)> = budgets.iter().map(|budget| (&budget["name"], &budget["parent"])).collect();
    assert_eq!(parents, [(&json!("rack-r0"), &json!("hall")), (&json!("hall"), &Value::Null)]);
    assert_eq!(document["nodes"].as_array().unwrap().len(), 50);
    let page = leader.page("/budgets", "text/html");
    assert!(page.contains("<h2>hall</h2>") && page.contains("node-0.rack-0.example"), "{page}");
    let metrics = leader.page("/metrics", "text/plain");
    for line in [
        "energy_agent_controller_leader 1",
        "energy_agent_budget_watts{budget=\"hall\",mode=\"Enforce\"} 90000",
        "energy_agent_cluster_nodes{state=\"reporting\"} 50",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert_eq!(other.budgets()["leads"], false);
    assert!(other.page("/metrics", "text/plain").contains("energy_agent_controller_leader 0"));
    assert_eq!((leader.page("/healthz", ""), other.page("/readyz", "")), ("ok\n".to_owned(), "ok\n".to_owned()));
}

/// What the leader's page says of a node.
fn node_of(replicas: [&Replica; 2], name: &str) -> Option<Value> {
    let leader = replicas.into_iter().map(Replica::budgets).find(|document| document["leads"] == true)?;
    leader["nodes"].as_array()?.iter().find(|node| node["name"] == name).cloned()
}

/// kill -9: the other one goes on from the levels there are.
fn leader_is_killed(world: &mut World, cluster: &Cluster) {
    world.nodes.all_demand(2400.0);
    world.wait_for_power("the load to be held", 90_000.0);
    world.a.wait_for_log("ClusterPowerBudgets are followed again");
    let epoch = world.epoch("hall");
    let name = world.api.holder();
    let fresh = Replica::start(cluster, &format!("{name}2"), &world.prometheus.url());
    let dead = if world.a.name == name {
        std::mem::replace(&mut world.a, fresh)
    } else {
        std::mem::replace(&mut world.b, fresh)
    };
    world.asked.extend(dead.proxy.asked());
    dead.kill();
    world.wait_for_epoch(epoch);
    assert_ne!(world.api.holder(), name);
    assert!(world.nodes.power() <= 90_000.0, "the limits stand");
}

/// kill -9 of both: the levels stand for longer than the Lease does, and the next leader goes on from them.
fn both_are_killed(world: &mut World, cluster: &Cluster) {
    let epoch = world.epoch("hall");
    for place in [&mut world.a, &mut world.b] {
        place.send("KILL");
        world.asked.extend(place.proxy.asked());
    }
    let held = world.api.level("hall").unwrap();
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(world.api.level("hall").unwrap(), held, "nobody writes");
    assert!(world.nodes.power() <= 90_000.0, "the limits stand");
    for (place, name) in [(&mut world.a, "a3"), (&mut world.b, "b3")] {
        *place = Replica::start(cluster, name, &world.prometheus.url());
    }
    world.wait_for_epoch(epoch);
    assert!(["a3", "b3"].contains(&world.api.holder().as_str()), "{}", world.api.holder());
    assert!(world.nodes.power() <= 90_000.0, "the next leader goes on from there");
}

/// SIGSTOP for longer than the Lease, while a level is on its way: the other one leads, the late level is refused, and the woken
/// one writes nothing.
fn leader_is_paused(world: &mut World) {
    let epoch = world.epoch("hall");
    let (leader, _) = world.leader_and_other();
    let name = leader.name.clone();
    let gate = Gate::default();
    leader.proxy.faults().of_path = vec![("powerlevels/", Answer::Late(gate.clone()))];
    let asked = leader.proxy.asked().len();
    world.api.patch_budget("hall", &json!({"watts": 60_000}));
    let paused = if world.a.name == name { &world.a } else { &world.b };
    wait_for("a level on its way", || paused.proxy.asked()[asked..].iter().any(is_level).then_some(()));
    paused.send("STOP");
    paused.proxy.faults().of_path.clear();
    let refused = paused.proxy.refused().len();
    world.wait_for_epoch(epoch);
    gate.open();
    let late = wait_for("an answer to the late level", || {
        paused.proxy.refused()[refused..].iter().find(|(asked, _)| is_level(asked)).cloned()
    });
    // Its version is old, or its epoch.
    assert!([409, 422].contains(&late.1), "{late:?}");
    let before = paused.proxy.accepted().len();
    paused.send("CONT");
    // Said of the Lease, or of the level.
    wait_for("the woken one to wait", || paused.log().iter().any(|line| line.contains(" waits")).then_some(()));
    // It looks at the Lease again and again.
    let looks = paused.proxy.lists();
    wait_for("the woken one to look at the Lease", || (paused.proxy.lists() > looks + 5).then_some(()));
    assert_eq!(
        paused.proxy.accepted()[before..].iter().map(|asked| &asked.path).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
    world.api.patch_budget("hall", &json!({"watts": 90_000}));
}

fn is_level(asked: &Asked) -> bool {
    asked.method == "PUT" && asked.path.contains("/powerlevels/")
}

/// kill -9 of a replica at moments that no one has chosen, while the load and the budget change.
fn random_kills(world: &mut World, cluster: &Cluster) {
    let mut dice = Dice::new();
    for kill in 0..kills() {
        let demand = 1500.0 + f64::from(dice.below(1500));
        world.nodes.all_demand(demand);
        world.api.patch_budget("hall", &json!({"watts": 85_000 + 1000 * dice.below(6)}));
        dice.wait();
        let place = if dice.below(2) == 0 { &mut world.a } else { &mut world.b };
        let fresh = Replica::start(cluster, &format!("k{kill}"), &world.prometheus.url());
        let dead = std::mem::replace(place, fresh);
        world.asked.extend(dead.proxy.asked());
        dead.kill();
    }
    world.api.patch_budget("hall", &json!({"watts": 90_000}));
    world.nodes.all_demand(2400.0);
    wait_for("a leader", || node_of([&world.a, &world.b], "node-0.rack-0.example"));
    world.wait_for_power("the hall within its budget after all kills", 90_000.0);
}

/// Somebody deletes the Lease: it comes back, and the epoch goes on from the levels'.
fn lease_is_deleted(world: &mut World) {
    let epoch = world.epoch("hall");
    world.api.delete_lease();
    world.wait_for_epoch(epoch);
    world.leader_and_other();
}

/// An older PowerLevel, as from a backup: refused as long as the newer is there, and replaced where it is not.
fn levels_are_restored(world: &World) {
    let level = world.api.level("hall").unwrap();
    let epoch = world.epoch("hall");
    let mut older = level.clone();
    older["spec"]["epoch"] = json!(epoch - 1);
    let refused = world.api.ask(Method::PUT, &world.api.level_path("hall"), Some(&older)).unwrap_err();
    assert!(refused.0 == 422 && refused.1.contains("an earlier leader may not write any more"), "{refused:?}");
    // The whole object is an older one, and open.
    world.api.ask(Method::DELETE, &world.api.level_path("hall"), None).unwrap();
    older["metadata"] = json!({"name": "budget.hall", "ownerReferences": level["metadata"]["ownerReferences"]});
    older["spec"]["levels"] = json!([{"tier": "", "permille": 1000}]);
    // The controller may have been faster.
    let _ = world.api.ask(Method::POST, &world.api.levels_path(), Some(&older));
    wait_for("the level to be as before", || {
        let now = world.api.level("hall")?;
        (now["spec"]["epoch"] == epoch && now["spec"]["levels"].as_array().unwrap().len() == 2).then_some(())
    });
    world.wait_for_power("the hall within its budget again", 90_000.0);
}

/// The API server is away for both: nothing changes, and they go on when it is back.
fn server_is_away(world: &mut World) {
    let epoch = world.epoch("hall");
    for replica in [&world.a, &world.b] {
        replica.proxy.go_away();
    }
    let (leader, _) = world.leader_and_other();
    let rounds = leader.budgets()["rounds"].as_u64().unwrap();
    wait_for("rounds without the API server, and no lead", || {
        let now = leader.budgets();
        (now["rounds"].as_u64().unwrap() > rounds + 8 && now["leads"] == false).then_some(())
    });
    assert!(world.nodes.power() <= 90_000.0, "the limits stand");
    assert_eq!(world.epoch("hall"), epoch);
    for replica in [&world.a, &world.b] {
        replica.proxy.come_back();
    }
    wait_for("a leader", || {
        [&world.a, &world.b].iter().any(|replica| replica.budgets()["leads"] == true).then_some(())
    });
    world.api.patch_budget("hall", &json!({"watts": 80_000}));
    world.wait_for_power("the hall within its new budget", 80_000.0);
}

/// Off and deletion take the levels away.
fn ends(world: &World) {
    world.api.patch_budget("hall", &json!({"mode": "Off"}));
    wait_for("no level of a budget that is off", || world.api.level("hall").is_none().then_some(()));
    world.api.delete_budget("rack-r0");
    wait_for("no level of a budget that is gone", || world.api.level("rack-r0").is_none().then_some(()));
    world.api.delete_budget("hall");
}
