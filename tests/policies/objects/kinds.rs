//! The definitions against a real API server, and what their samples mean.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use axum::http::{Method, Request};
use energy_model::capping::policy::{Mode, Policy, document, object};
use energy_model::resources::cluster_power_budget::{ClusterPowerBudgetSpec, LossLimit, OnStale};
use energy_model::resources::node_frequencies::NodeFrequenciesSpec;
use energy_model::resources::object::KubeObject;
use energy_model::resources::power_level::{OPEN, PowerLevelSpec, name_for_budget, name_for_policy};
use energy_model::resources::{CONTROLLER, GROUP, LEVELS_LEASE, VERSION, definitions, power_capping_policy};
use serde_json::{Value, json};

use super::{ROOT, apply, ask, collection, has_api_server, install, printed, samples};
use crate::common::kubernetes::cluster::Cluster;
use crate::common::kubernetes::server::runtime;

#[test]
fn the_definitions_in_deploy_are_up_to_date() {
    let path = Path::new(ROOT).join("deploy/crds/crds.yaml");
    let expected = printed();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &expected).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == expected,
        "deploy/crds/crds.yaml is old; run UPDATE_DOCS=1 cargo test -p energy-agent --test policies definitions"
    );
    // What is printed is what there is, and no word of it is a truth value to readers of YAML 1.1.
    let definitions: Vec<Value> = serde_saphyr::from_multiple(&expected).unwrap();
    assert_eq!(definitions, definitions::all());
    for word in ["- Off\n", "- No\n", "- Yes\n", "- On\n"] {
        assert!(!expected.contains(word), "{word}");
    }
}

/// A sample by kind and name.
fn sample(name: &str) -> KubeObject {
    let found = samples().into_iter().find(|sample| sample["metadata"]["name"] == name).unwrap();
    serde_json::from_value(found).unwrap()
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn the_samples_are_read_as_they_are_meant() {
    let hall: ClusterPowerBudgetSpec = sample("hall-2").spec().unwrap();
    assert_eq!((hall.mode, hall.watts, hall.loss_limit()), (Mode::Enforce, 4_200_000, LossLimit::StaticShare));
    let zone = ("topology.kubernetes.io/zone", "hall-2");
    for (node, tier) in
        [(&[zone, ("pool", "batch")][..], "batch"), (&[zone, ("pool", "serving")], "serving"), (&[zone], "")]
    {
        assert!(hall.nodes.selects(&labels(node)));
        assert_eq!(hall.tier_of(&labels(node)), tier);
    }
    assert!(!hall.nodes.selects(&labels(&[("pool", "batch")])));
    let protect = hall.protect.clone().unwrap();
    assert!(protect.covers(1_000_000, &labels(&[])) && !protect.covers(999_999, &labels(&[("app", "a")])));
    assert_eq!((hall.targets[0].watts, hall.watts_from.unwrap().on_stale), (3_500_000, OnStale::Min));

    let rack: ClusterPowerBudgetSpec = sample("rack-r17").spec().unwrap();
    // As the API server's defaults: 99, 95 and 90 %, 30 s, 60 s.
    assert_eq!(
        (rack.mode, rack.loss_limit(), rack.on_controller_loss.after_seconds),
        (Mode::Recommend, LossLimit::Hold, 60)
    );
    let control = &rack.control;
    assert_eq!(
        (control.engage_percent, control.target_percent, control.release_percent, control.hold_seconds),
        (99, 95, 90, 30)
    );
    assert_eq!(control.controller_name, CONTROLLER);

    let level: PowerLevelSpec = sample(&name_for_budget("hall-2")).spec().unwrap();
    assert_eq!((level.epoch, &*level.lease_name, level.fallback_permille), (17, LEVELS_LEASE, 310));
    // A tier that is not named has the lowest.
    assert_eq!(["batch", "serving", "", "other"].map(|tier| level.permille(tier)), [420, OPEN, OPEN, 420]);
    assert_eq!(name_for_policy("vllm-cap"), "policy.vllm-cap");

    let clocks: NodeFrequenciesSpec = sample("gpu-node-01").spec().unwrap();
    let (gpu, core) = (&clocks.gpu_frequencies[0], &clocks.cpu_frequencies[0]);
    assert_eq!((gpu.graphics_frequency, gpu.expiration_time.as_deref()), (1200, Some("2026-11-29T00:00:00Z")));
    assert_eq!((core.core_id, core.frequency), (0, 2400));

    let policy = power_capping_policy::policy(&sample("vllm-cap")).unwrap();
    assert_eq!(policy.name.to_string(), "PowerCappingPolicy ml-serving/vllm-cap");
    // A word of a newer version is no spec of this one.
    let newer = KubeObject { spec: json!({"mode": "Later"}), ..KubeObject::default() };
    assert!(newer.spec::<ClusterPowerBudgetSpec>().unwrap_err().starts_with("spec: unknown variant `Later`"));
}

/// The policies of the documentation as objects of a namespace: their fields but for the names.
fn as_object(policy: &Value) -> Value {
    let mut spec = policy.clone();
    let map = spec.as_object_mut().unwrap();
    map.remove("name");
    map.remove("namespace");
    spec["selector"].as_object_mut().unwrap().remove("namespaces");
    if spec["selector"].as_object().unwrap().is_empty() {
        spec["selector"] = json!({"selectAll": true});
    }
    spec
}

/// Every policy of the documentation, but those of whole nodes, which no namespace has.
fn documented() -> Vec<(Value, Policy)> {
    let text = fs::read_to_string(Path::new(ROOT).join("docs/policies-example.yaml")).unwrap();
    let document: Value = serde_saphyr::from_str(&text).unwrap();
    let policies = document::parse(&text, "").policies;
    let items = document["policies"].as_array().unwrap().clone();
    assert_eq!(items.len(), policies.len());
    let of_pods = |(_, policy): &(Value, Policy)| !policy.actuators.cpu.rapl_limit;
    items.into_iter().zip(policies).filter(of_pods).collect()
}

#[test]
fn a_documented_policy_is_the_same_as_an_object_that_the_api_server_has_completed() {
    let real = has_api_server();
    let cluster = real.then(Cluster::shared);
    cluster.iter().for_each(|cluster| install(cluster));
    let documented = documented();
    assert!(documented.len() >= 3, "{documented:#?}");
    for (item, mut expected) in documented {
        let mut spec = as_object(&item);
        if let Some(cluster) = &cluster {
            let name = format!("same-{}", expected.name.name);
            let object = json!({
                "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "PowerCappingPolicy",
                "metadata": {"name": name, "namespace": "samples"}, "spec": spec,
            });
            spec = apply(cluster, &object)["spec"].clone();
        }
        let name = energy_model::capping::policy::PolicyName {
            authority: energy_model::capping::policy::Authority::Tenant,
            namespace: "samples".into(),
            name: expected.name.name.clone(),
        };
        expected.name = name.clone();
        expected.selector.namespaces.clear();
        expected.selector.select_all |= item["selector"].get("namespaces").is_some()
            && expected.selector.match_labels.is_empty()
            && expected.selector.match_expressions.is_empty();
        assert_eq!(object::policy(name, &spec).unwrap(), expected);
    }
}

#[test]
fn the_api_server_takes_the_samples_and_refuses_others_with_what_to_write() {
    if !has_api_server() {
        return;
    }
    let cluster = Cluster::shared();
    install(&cluster);
    for sample in samples() {
        apply(&cluster, &sample);
    }
    // Again is no change.
    samples().iter().for_each(|sample| drop(apply(&cluster, sample)));
    let level = |change: &dyn Fn(&mut Value)| {
        let mut level = samples().into_iter().find(|sample| sample["kind"] == "PowerLevel").unwrap();
        let path = format!("{}/{}", collection(&level), level["metadata"]["name"].as_str().unwrap());
        change(&mut level["spec"]);
        ask(&cluster, Method::PATCH, &path, &json!({"spec": level["spec"]})).unwrap_err().0
    };
    let told = level(&|spec| spec["epoch"] = json!(16));
    assert!(told.contains("an earlier leader may not write any more"), "{told}");
    let told = level(&|spec| spec["for"]["uid"] = json!("other"));
    assert!(told.contains("a level is for one object; delete it, and make one for the other"), "{told}");

    for (kind, change, expected) in [
        (
            "PowerCappingPolicy",
            json!({"budget": {"watts": 400.5}}),
            "spec.budget.watts: Invalid value: 400.5: write a whole number, such as 400; a fraction is not taken",
        ),
        (
            "PowerCappingPolicy",
            json!({"budget": {"watts": 250_000}}),
            "more than 20000 W within a node; write watts, not milliwatts",
        ),
        ("PowerCappingPolicy", json!({"budget": {"watts": null}}), "write watts or percentOfPeak, one of both"),
        ("PowerCappingPolicy", json!({"budget": {"percentOfPeak": 80}}), "write watts or percentOfPeak, one of both"),
        (
            "PowerCappingPolicy",
            json!({"budget": {"lookbackHours": 2}}),
            "lookbackHours is only valid with percentOfPeak",
        ),
        (
            "PowerCappingPolicy",
            json!({"budget": {"scope": "PerCluster"}}),
            "supported values: \"PerPod\", \"PerNode\", \"Total\"",
        ),
        ("PowerCappingPolicy", json!({"mode": false}), "spec.mode in body must be of type string"),
        ("PowerCappingPolicy", json!({"mode": "enforce"}), "supported values: \"Off\", \"Recommend\", \"Enforce\""),
        (
            "PowerCappingPolicy",
            json!({"selector": {"matchLabels": null}}),
            "an empty selector would match every pod; write selectAll true for that, and only for that",
        ),
        (
            "PowerCappingPolicy",
            json!({"selector": {"selectAll": true}}),
            "write selectAll true for that, and only for that",
        ),
        (
            "PowerCappingPolicy",
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}),
            "In and NotIn need values, Exists and DoesNotExist take none",
        ),
        (
            "PowerCappingPolicy",
            json!({"control": {"releasePercent": 96}}),
            "need releasePercent < targetPercent <= engagePercent",
        ),
        ("PowerCappingPolicy", json!({"control": {"algorithm": "table"}}), "algorithm table needs a table"),
        ("PowerCappingPolicy", json!({"control": {"controllerName": "a/b"}}), "only valid with budget.scope Total"),
        ("PowerCappingPolicy", json!({"actuators": {"cpu": {}}}), "budget.components does not name cpu; add it there"),
        (
            "PowerCappingPolicy",
            json!({"budget": {"components": ["cpu"]}, "actuators": {"cpu": {"use": ["RaplLimit"]}}}),
            "RaplLimit limits the whole node, which is more than a namespace; write Frequency or Quota",
        ),
        (
            "ClusterPowerBudget",
            json!({"nodes": {"matchLabels": null}}),
            "give matchLabels, or set selectAll: true to select every node",
        ),
        ("ClusterPowerBudget", json!({"watts": 99}), "should be greater than or equal to 100"),
        (
            "ClusterPowerBudget",
            json!({"watts": 400.5}),
            "spec.watts: Invalid value: 400.5: write a whole number, such as 400",
        ),
        ("ClusterPowerBudget", json!({"protect": {}}), "write priorityAtLeast or matchLabels, or remove protect"),
        (
            "ClusterPowerBudget",
            json!({"targets": [{"id": "a", "from": "2026-12-01T17:00:00Z", "to": "2026-12-01T17:00:00Z", "watts": 100}]}),
            "to has to be later than from",
        ),
        (
            "ClusterPowerBudget",
            json!({"wattsFrom": {"query": "a", "min": 200, "max": 100}}),
            "min has to be at most max",
        ),
    ] {
        let name = if kind == "PowerCappingPolicy" { "train" } else { "rack-r17" };
        let good = samples().into_iter().find(|sample| sample["metadata"]["name"] == name).unwrap();
        let path = format!("{}/{name}", collection(&good));
        let (told, code) =
            ask(&cluster, Method::PATCH, &path, &json!({"spec": change})).expect_err(&change.to_string());
        assert!(code == 422 && told.contains(expected), "{change}: {code} {told}");
    }
}

/// As `kubectl get` asks.
fn table(cluster: &Cluster, path: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let request = Request::get(path).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body(Vec::new());
    let table: Value = runtime().block_on(cluster.client.request(request.unwrap())).unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap();
    let shown: Vec<usize> = (0..columns.len()).filter(|index| columns[*index]["priority"] == 0).collect();
    let names = shown.iter().map(|index| columns[*index]["name"].as_str().unwrap().to_uppercase()).collect();
    let text = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
    let rows = table["rows"].as_array().unwrap().iter();
    let rows = rows.map(|row| shown.iter().map(|index| text(&row["cells"][*index])).collect());
    (names, rows.collect())
}

#[test]
fn kubectl_shows_the_columns_that_people_need() {
    if !has_api_server() {
        return;
    }
    let cluster = Cluster::shared();
    install(&cluster);
    samples().iter().for_each(|sample| drop(apply(&cluster, sample)));
    let status = json!({"status": {
        "watts": 3_988_400, "percent": 95, "levelPermille": 420, "nodes": 512, "silentNodes": 2,
        "conditions": [
            {"type": "InBudget", "status": "True", "reason": "Held", "message": "", "lastTransitionTime": "2026-11-28T23:54:00Z"},
            {"type": "Ready", "status": "True", "reason": "Held", "message": "", "lastTransitionTime": "2026-11-28T23:54:00Z"},
        ],
    }});
    let hall = format!("/apis/{GROUP}/{VERSION}/clusterpowerbudgets/hall-2");
    ask(&cluster, Method::PATCH, &format!("{hall}/status"), &status).unwrap();
    let (columns, rows) = table(&cluster, &hall);
    assert_eq!(
        columns,
        ["NAME", "MODE", "BUDGET", "POWER", "%", "LEVEL", "NODES", "SILENT", "INBUDGET", "READY", "AGE"]
    );
    let row = &rows[0][..10];
    assert_eq!(row, ["hall-2", "Enforce", "4200000", "3988400", "95", "420", "512", "2", "True", "True"]);
    let (columns, _) = table(&cluster, &format!("/apis/{GROUP}/{VERSION}/namespaces/ml/powercappingpolicies"));
    assert_eq!(columns, ["NAME", "MODE", "BUDGET", "SCOPE", "POWER", "PODS", "CAPPED", "READY", "AGE"]);
    let (columns, _) = table(&cluster, &format!("/apis/{GROUP}/{VERSION}/nodefrequencies"));
    assert_eq!(columns, ["NAME", "POWER", "LIMIT", "LIMITED-BY", "GPUS", "LOWERED", "APPLIED", "REPORTED"]);
}
