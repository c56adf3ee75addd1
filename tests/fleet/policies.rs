//! PowerCappingPolicies of tenants: one budget for the pods of a service on several nodes, and what their status says.

use serde_json::{Value, json};

use crate::api::{Api, says};
use crate::common::agent::wait_for;
use crate::nodes::{Node, Nodes};

const PATH: &str = "namespaces/ml/powercappingpolicies/serve";
const LEVEL: &str = "namespaces/ml/powerlevels/policy.serve";

fn spec(mode: &str, watts: u32) -> Value {
    json!({
        "mode": mode, "selector": {"matchLabels": {"app": "serve"}},
        "budget": {"watts": watts, "scope": "Total", "components": ["gpu"]},
    })
}

fn power(nodes: &[std::sync::Arc<Node>]) -> f64 {
    nodes.iter().map(|node| node.pods_power()).sum()
}

/// Four nodes with two pods each, whose GPUs would draw 1500 W.
pub fn one_budget_for_a_service(api: &Api, nodes: &Nodes) {
    let nodes = &nodes.nodes[45..49];
    nodes.iter().for_each(|node| node.set_pods_demand(1500.0));
    api.apply(PATH, &spec("Recommend", 4000));
    let status = api.wait_for_status_of("what it would do", PATH, |status| {
        says(status, "Limiting", "True", "WouldLimit") && status["nodes"] == 4
    });
    assert_eq!((&status["watts"], &status["pods"], &status["cappedPods"]), (&json!(6000), &json!(8), &json!(0)));
    assert!(says(&status, "Ready", "True", "Running") && says(&status, "InBudget", "False", "OverBudget"), "{status}");
    assert_eq!(api.find(LEVEL), None);

    api.apply(PATH, &spec("Enforce", 4000));
    let level = wait_for("the level of the policy", || api.find(LEVEL));
    let owner = &level["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["name"]), (&json!("PowerCappingPolicy"), &json!("serve")));
    // 95 % of 4000 W are 950 W each: 650 of the 1700 W between floor and most.
    assert_eq!(level["spec"]["levels"], json!([{"tier": "", "permille": 382}]), "{level}");
    wait_for("the service within its budget", || (power(nodes) <= 4000.0).then_some(()));
    let status = api.wait_for_status_of("limited pods", PATH, |status| {
        status["cappedPods"] == 8 && says(status, "InBudget", "True", "UnderBudget")
    });
    assert!(says(&status, "Limiting", "True", "Limited"), "{status}");

    // Floors of 1200 W.
    api.apply(PATH, &spec("Enforce", 1000));
    api.wait_for_status_of("floors", PATH, |status| says(status, "InBudget", "False", "FloorsExceedBudget"));
    // Somebody else writes the level: this one leaves it alone, and shows it.
    let mut foreign = spec("Enforce", 4000);
    foreign["control"] = json!({"controllerName": "example.com/mine"});
    api.apply(PATH, &foreign);
    api.wait_for_status_of("the other one's level", PATH, |status| {
        status["observedGeneration"] == api.find(PATH).unwrap()["metadata"]["generation"]
    });
    assert!(api.find(LEVEL).is_some());
    api.delete(PATH);
    wait_for("no level of a policy that is gone", || api.find(LEVEL).is_none().then_some(()));
    nodes.iter().for_each(|node| node.set_pods_demand(0.0));
}

/// What the API server cannot judge, and what an agent of another version does not understand.
pub fn refused(api: &Api, nodes: &Nodes) {
    let long = format!("namespaces/ml/powercappingpolicies/{}", "x".repeat(250));
    api.apply(&long, &spec("Enforce", 4000));
    let status = api.wait_for_status_of("a refusal", &long, |status| says(status, "Ready", "False", "Refused"));
    assert_eq!(
        status["conditions"][0]["message"],
        "the name has more than 246 characters; give it a shorter one; nothing is limited by it"
    );
    let odd = "namespaces/ml/powercappingpolicies/odd";
    nodes.nodes[7].set_refuses(Some("odd"));
    api.apply(odd, &spec("Enforce", 4000));
    let status = api.wait_for_status_of("a refusal", odd, |status| says(status, "Ready", "False", "Refused"));
    let message = status["conditions"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("spec.newer: not understood (said by 1 nodes)"), "{message}");
    // Once it is understood, it is in force, and no pod has its labels.
    nodes.nodes[7].set_refuses(None);
    api.wait_for_status_of("no pods", odd, |status| says(status, "Ready", "True", "NoPods"));
    api.delete(&long);
    api.delete(odd);
}

/// A hundred edits a second: the last one counts, and the controller goes on.
pub fn many_edits(api: &Api, rounds: impl Fn() -> u64) {
    let paths: Vec<String> =
        (0..10).map(|number| format!("namespaces/ml/powercappingpolicies/edited-{number}")).collect();
    let (before, begin) = (rounds(), std::time::Instant::now());
    for watts in 1..=20 {
        for path in &paths {
            api.apply(path, &spec("Recommend", 1000 * watts));
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    for path in &paths {
        api.wait_for_status_of("the last version", path, |status| {
            Some(&status["observedGeneration"])
                == api.find(path).as_ref().map(|object| &object["metadata"]["generation"])
        });
        api.delete(path);
    }
    // 200 edits; without a pause between decisions that would be as many rounds.
    assert!(rounds() - before < 150, "{} decisions for 200 edits in {seconds:.1} s", rounds() - before);
}
