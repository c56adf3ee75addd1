//! Climatik's kinds as kubectl installs them, and the bridge of the controller: what becomes of their objects, and by which rights.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{Method, Response};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::kubectl::Person;
use super::{ask, has_api_server, install};
use crate::common::agent::wait_for;
use crate::common::kubernetes::cluster::{Cluster, TOKEN, kubeconfig};
use crate::common::kubernetes::controller::{Controller, publish_agent, put, serve_endpoint_slices};
use crate::common::kubernetes::proxy::Proxy;
use crate::common::kubernetes::rights::{Right, granted, right};
use crate::common::kubernetes::server::Server;
use crate::common::manifests::items;

const THEIRS: &str = "/apis/climatik.io/v1alpha1/namespaces";
const OURS: &str = "/apis/power.energy-agent.io/v1alpha1";
const NAMESPACE: &str = "energy-agent";
const NODE: &str = "gpu-node-01";
const GPU: &str = "GPU-1a2b3c4d-0000-0000-0000-000000000000";

struct World {
    cluster: Arc<Cluster>,
    person: Person,
    /// Between the controller and the API server.
    proxy: Proxy,
    /// What the pods of the mirror draw.
    watts: Arc<Mutex<f64>>,
    /// Of the controller.
    config: PathBuf,
    _agent: Server,
    _folders: [TempDir; 2],
}

impl World {
    fn start() -> Self {
        let cluster = Cluster::own();
        install(&cluster);
        serve_endpoint_slices(&cluster);
        put(&cluster, "/api/v1/nodes", &json!({"metadata": {"name": NODE}}));
        let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let user = json!({"token": TOKEN});
        let person = Person::new(kubeconfig(folders[0].path(), &cluster.url, Some(&cluster.authority), &user));
        let watts = Arc::new(Mutex::new(1300.0));
        let agent = agent(Arc::clone(&watts));
        publish_agent(&cluster, NAMESPACE, NODE, &agent.address.to_string());
        let proxy = Proxy::start(&cluster);
        let config = kubeconfig(folders[1].path(), &format!("http://{}", proxy.address()), None, &user);
        Self { cluster, person, proxy, watts, config, _agent: agent, _folders: folders }
    }

    fn kubectl(&self, line: &str) -> String {
        let output = self.person.shell(&format!("kubectl {line}"));
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn get(&self, path: &str) -> Option<Value> {
        self.cluster.get(path)
    }

    fn delete(&self, path: &str) {
        ask(&self.cluster, Method::DELETE, path, &Value::Null).unwrap();
    }

    /// The mirror of a policy of namespace `ml`, once `check` is content with it.
    fn wait_for_mirror(&self, what: &str, name: &str, check: impl Fn(&Value) -> bool) -> Value {
        let path = format!("{OURS}/namespaces/ml/powercappingpolicies/climatik.{name}");
        wait_for(what, || self.get(&path).filter(|mirror| check(mirror)))
    }

    fn wait_for_event(&self, object: &str, note: &str) {
        let namespace = if object.contains("clocks") { "climatik-project" } else { "ml" };
        wait_for(note, || {
            let events = self.get(&format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))?;
            let is = |event: &&Value| {
                event["regarding"]["name"] == object
                    && event["regarding"]["apiVersion"] == "climatik.io/v1alpha1"
                    && event["reason"] == "NotFollowed"
                    && event["note"].as_str().is_some_and(|text| text.contains(note))
            };
            items(&events["items"]).find(is).map(drop)
        });
    }

    fn wait_for_clocks(&self, what: &str, check: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, || self.get(&format!("{OURS}/nodefrequencies/{NODE}")).filter(|object| check(&object["spec"])))
    }
}

/// An agent whose pods of the mirror of `chat` draw these watts.
fn agent(watts: Arc<Mutex<f64>>) -> Server {
    Server::start(
        None,
        Arc::new(move |_| {
            let report = json!({
                "node": NODE, "seq": 1, "watts": 2000.0, "floor_watts": 500.0, "most_watts": 3000.0,
                "policies": [{
                    "namespace": "ml", "name": "climatik.chat", "pods": 2, "watts": *watts.lock().unwrap(),
                    "capped_pods": 0, "floor_watts": 300.0, "most_watts": 2000.0,
                }],
            });
            Box::pin(async move { Response::new(Body::from(report.to_string())) })
        }),
    )
}

#[test]
fn objects_of_climatik_are_taken_and_followed_by_the_bridge_with_the_rights_of_its_component() {
    if !has_api_server() {
        return;
    }
    let world = World::start();
    kinds_and_samples(&world);
    let flags = ["--climatik.bridge", "--controller.interval=500ms"];
    let _controller = Controller::spawn(&world.config, NAMESPACE, &flags);
    policy(&world);
    refusals(&world);
    clocks(&world);
    nothing_is_written_without_a_reason(&world);
    rights(&world);
}

/// As its README looks for them.
fn kinds_and_samples(world: &World) {
    world.kubectl("apply --server-side -f deploy/components/climatik/kinds.yaml");
    world.kubectl("wait --for=condition=established --timeout=60s crd/powercappingpolicies.climatik.io crd/nodefrequencies.climatik.io");
    let kinds = world.kubectl("get crds --output=name | grep climatik.io");
    assert_eq!(
        kinds.lines().collect::<Vec<_>>(),
        [
            "customresourcedefinition.apiextensions.k8s.io/nodefrequencies.climatik.io",
            "customresourcedefinition.apiextensions.k8s.io/powercappingpolicies.climatik.io",
        ]
    );
    // What somebody else has by the name of a mirror.
    let own = json!({
        "apiVersion": "power.energy-agent.io/v1alpha1", "kind": "PowerCappingPolicy", "metadata": {"name": "climatik.taken"},
        "spec": {"selector": {"matchLabels": {"app": "own"}}, "budget": {"watts": 300, "components": ["gpu"]}},
    });
    put(&world.cluster, &format!("{OURS}/namespaces/ml/powercappingpolicies"), &own);
    world.kubectl("apply -f deploy/examples/climatik.yaml");
}

/// A mirror that recommends, and enforces where the policy is annotated; the status that Climatik's recommenders wait for.
fn policy(world: &World) {
    let mirror = world.wait_for_mirror("a mirror", "chat", |_| true);
    let spec = &mirror["spec"];
    assert_eq!(
        (&spec["mode"], &spec["budget"]["watts"], &spec["budget"]["scope"], &spec["budget"]["components"]),
        (&json!("Recommend"), &json!(1200), &json!("Total"), &json!(["gpu"]))
    );
    assert_eq!(spec["selector"], json!({"matchLabels": {"app": "chat"}, "selectAll": false}));
    let control = &spec["control"];
    assert_eq!(
        (&control["engagePercent"], &control["targetPercent"], &control["releasePercent"]),
        (&json!(90), &json!(85), &json!(80))
    );
    assert_eq!(spec["actuators"]["gpu"]["minClockMHz"], 450);
    let theirs = || world.get(&format!("{THEIRS}/ml/powercappingpolicies/chat")).unwrap();
    let owner = &mirror["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["apiVersion"], &owner["name"]), (&json!("climatik.io/v1alpha1"), &json!("chat")));
    assert_eq!(owner["uid"], theirs()["metadata"]["uid"]);

    // 1300 W are above 90 % of 1200 W, and 1000 W are not.
    wait_for("an action to be required", || (theirs()["status"]["cappingActionRequired"] == true).then_some(()));
    assert!(theirs()["status"]["lastUpdated"].is_string());
    *world.watts.lock().unwrap() = 1000.0;
    wait_for("no action to be required", || (theirs()["status"]["cappingActionRequired"] == false).then_some(()));
    let columns = world.kubectl("get powercappingpolicies.climatik.io --namespace=ml chat --no-headers");
    let columns: Vec<&str> = columns.split_whitespace().take(4).collect();
    assert_eq!(columns, ["chat", "1200", "90", "false"]);

    world.kubectl("annotate powercappingpolicies.climatik.io --namespace=ml chat power.energy-agent.io/mode=Enforce");
    world.wait_for_mirror("to be enforced", "chat", |mirror| mirror["spec"]["mode"] == "Enforce");
    let level = format!("{OURS}/namespaces/ml/powerlevels/policy.climatik.chat");
    wait_for("a level for the mirror", || world.get(&level));
    world.kubectl("annotate powercappingpolicies.climatik.io --namespace=ml chat power.energy-agent.io/mode-");
    world.wait_for_mirror("to recommend", "chat", |mirror| mirror["spec"]["mode"] == "Recommend");
    // Whoever edits the mirror edits the wrong object.
    world.kubectl("patch pcp --namespace=ml climatik.chat --type=merge --patch='{\"spec\": {\"mode\": \"Enforce\"}}'");
    world.wait_for_mirror("to recommend again", "chat", |mirror| {
        mirror["spec"]["mode"] == "Recommend" && mirror["metadata"]["generation"].as_i64() >= Some(5)
    });
}

/// What can't be followed is said on the object; the version before stays in force.
fn refusals(world: &World) {
    let policies = format!("{THEIRS}/ml/powercappingpolicies");
    let theirs = |name: &str, watts: u32, selector: &Value| {
        json!({
            "apiVersion": "climatik.io/v1alpha1", "kind": "PowerCappingPolicy", "metadata": {"name": name},
            "spec": {"powerCapLimit": watts, "cappingThreshold": 90, "selector": selector},
        })
    };
    let labels = json!({"matchLabels": {"app": "x"}});
    put(&world.cluster, &policies, &theirs("taken", 100, &labels));
    world.wait_for_event("taken", "climatik.taken is somebody else's and stays as it is");
    let own = world.wait_for_mirror("somebody's policy", "taken", |_| true);
    assert_eq!((&own["spec"]["budget"]["watts"], own["metadata"]["ownerReferences"].is_null()), (&json!(300), true));
    put(&world.cluster, &policies, &theirs("all", 100, &json!({})));
    world.wait_for_event("all", "would select every pod; write matchLabels");
    // What only the API server refuses.
    let odd = json!({"matchLabels": {"app": "x".repeat(64)}});
    put(&world.cluster, &policies, &theirs("odd", 100, &odd));
    world.wait_for_event("odd", "spec.selector.matchLabels.app");
    let limit = |watts: u32| {
        let patch = json!({"spec": {"powerCapLimit": watts}});
        ask(&world.cluster, Method::PATCH, &format!("{policies}/chat"), &patch).unwrap();
    };
    limit(0);
    world.wait_for_event("chat", "spec.powerCapLimit: 0 W; write 1 to 10000000");
    let mirror = world.wait_for_mirror("the version before", "chat", |_| true);
    assert_eq!(mirror["spec"]["budget"]["watts"], 1200);
    for name in ["taken", "all", "odd"] {
        world.delete(&format!("{policies}/{name}"));
    }
    limit(1100);
    world.wait_for_mirror("the next good version", "chat", |mirror| mirror["spec"]["budget"]["watts"] == 1100);
}

/// Clocks of one namespace, beside those of other managers; they go with the objects that ask for them.
fn clocks(world: &World) {
    let spec = world.wait_for_clocks("the clocks", |spec| spec["gpuFrequencies"].is_array());
    let spec = &spec["spec"];
    assert_eq!(spec["gpuFrequencies"], json!([{"uuid": GPU, "graphicsFrequency": 1200}]));
    assert_eq!(spec["cpuFrequencies"], json!([{"coreId": 0, "frequency": 2400}]));
    // A recommender of another manager has a GPU of its own.
    let apply = |gpu: &str, megahertz: u32| {
        format!(
            "apply --server-side --field-manager=mine -f - <<< '{{\"apiVersion\": \"power.energy-agent.io/v1alpha1\", \
             \"kind\": \"NodeFrequencies\", \"metadata\": {{\"name\": \"{NODE}\"}}, \
             \"spec\": {{\"gpuFrequencies\": [{{\"uuid\": \"{gpu}\", \"graphicsFrequency\": {megahertz}}}]}}}}'"
        )
    };
    let refused = world.person.shell(&format!("kubectl {}", apply(GPU, 900)));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("energy-agent-climatik"));
    world.kubectl(&apply("GPU-mine", 900));

    let collection = format!("{THEIRS}/climatik-project/nodefrequencies");
    let theirs = |name: &str, node: &str, gpu: &str| {
        json!({
            "apiVersion": "climatik.io/v1alpha1", "kind": "NodeFrequencies", "metadata": {"name": name},
            "spec": {"nodeName": node, "gpuFrequencies": [{"uuid": gpu, "graphicsFrequency": 700}]},
        })
    };
    put(&world.cluster, &collection, &theirs("bad-clocks", "../pods", GPU));
    world.wait_for_event("bad-clocks", "spec.nodeName: not the name of a node");
    world.delete(&format!("{collection}/bad-clocks"));
    // The clock of somebody else's GPU.
    put(&world.cluster, &collection, &theirs("more-clocks", NODE, "GPU-mine"));
    world.wait_for_event("gpu-node-01-clocks", "another manager has set the clock");
    world.delete(&format!("{collection}/more-clocks"));
    // Tenants have no clocks: other namespaces are not followed.
    put(&world.cluster, &format!("{THEIRS}/ml/nodefrequencies"), &theirs("tenant", NODE, "GPU-tenant"));

    world.delete(&format!("{collection}/gpu-node-01-clocks"));
    let left = world.wait_for_clocks("only the other manager's clock", |spec| {
        items(&spec["gpuFrequencies"]).all(|gpu| gpu["uuid"] == "GPU-mine")
    });
    assert_eq!(left["spec"]["gpuFrequencies"], json!([{"uuid": "GPU-mine", "graphicsFrequency": 900}]));
    assert_eq!(items(&left["spec"]["cpuFrequencies"]).count(), 0);
}

/// Some rounds in which nothing has changed.
fn nothing_is_written_without_a_reason(world: &World) {
    let written = || {
        let about = |path: &str| path.contains("climatik") || path.contains("/nodefrequencies/gpu");
        let mut paths: Vec<String> = world.proxy.accepted().iter().map(|asked| asked.path.clone()).collect();
        // The controller's own status of these objects.
        paths.retain(|path| about(path) && !(path.contains("power.energy-agent.io") && path.contains("/status")));
        paths
    };
    let before = written();
    let rounds = || world.proxy.accepted().iter().filter(|asked| asked.path.contains("/leases/")).count();
    let begin = rounds();
    wait_for("some rounds", || (rounds() >= begin + 6).then_some(()));
    assert_eq!(written(), before);
}

/// The component allows what the bridge asks for and nothing else.
fn rights(world: &World) {
    let mut granted = granted("components/climatik/rbac.yaml");
    // What the controller asks for without the bridge is compared elsewhere.
    let is_bridge = |(group, resource, verb): &Right| match (resource.as_str(), verb.as_str()) {
        ("powercappingpolicies", "create" | "update") | ("nodefrequencies", "create" | "patch") => true,
        _ => group == "climatik.io",
    };
    let asked: BTreeSet<Right> = world.proxy.asked().iter().map(right).filter(is_bridge).collect();
    // Server-side apply of an object that is not there needs it.
    let create: Right = ["power.energy-agent.io", "nodefrequencies", "create"].map(str::to_owned).into();
    assert!(granted.remove(&create));
    assert_eq!(asked, granted);
}
