//! Budgets that ask a real Prometheus: what it answers counts, and what is no answer is said.

use serde_json::{Value, json};

use crate::api::{Api, says};

/// The ten nodes of rack r4, which draw 1500 W each.
fn spec(query: &Value) -> Value {
    let mut spec = json!({"mode": "Recommend", "watts": 30_000, "nodes": {"matchLabels": {"rack": "r4"}}});
    spec.as_object_mut().unwrap().extend(query.as_object().unwrap().clone());
    spec
}

fn message(status: &Value) -> String {
    status["conditions"][0]["message"].as_str().unwrap_or_default().to_owned()
}

pub fn meters(api: &Api) {
    let path = |name: &str| format!("clusterpowerbudgets/{name}");
    api.apply(&path("metered"), &spec(&json!({"meter": {"query": "vector(18000)"}})));
    api.wait_for_status_of("what the meter says", &path("metered"), |status| {
        status["watts"] == 18_000 && says(status, "Ready", "True", "Running")
    });
    let followed = json!({"wattsFrom": {"query": "vector(20000)", "min": 10_000, "max": 25_000}});
    api.apply(&path("priced"), &spec(&followed));
    api.wait_for_status_of("the watts of the query", &path("priced"), |status| status["budgetWatts"] == 20_000);
    for (name, query, why) in [
        (
            "two",
            "label_replace(vector(1), \"a\", \"b\", \"\", \"\") or vector(2)",
            "the query gives 2 series; sum them up",
        ),
        ("nan", "vector(0) / 0", "the query gives NaN"),
        ("none", "nothing_of_this_name", "the query gives no series"),
        ("broken", "sum(", "Prometheus: "),
    ] {
        api.apply(&path(name), &spec(&json!({"meter": {"query": query}})));
        // Before the first answer it says that there is none yet.
        let status = api.wait_for_status_of("a stale meter", &path(name), |status| {
            says(status, "Ready", "False", "MeterStale") && message(status).starts_with(&format!("spec.meter: {why}"))
        });
        // What the nodes say counts in its place.
        assert_eq!(status["watts"], 15_000, "{status}");
        api.delete(&path(name));
    }
    let broken = json!({"wattsFrom": {"query": "vector(0) / 0", "min": 10_000, "max": 25_000}});
    api.apply(&path("unpriced"), &spec(&broken));
    let status = api.wait_for_status_of("the lowest", &path("unpriced"), |status| {
        says(status, "Ready", "False", "WattsFromStale")
            && message(status).starts_with("spec.wattsFrom: the query gives NaN")
    });
    assert_eq!(status["budgetWatts"], 10_000, "{status}");
    // No node has these labels.
    api.apply(&path("nowhere"), &json!({"watts": 1000, "nodes": {"matchLabels": {"rack": "none"}}}));
    api.wait_for_status_of("no nodes", &path("nowhere"), |status| says(status, "Ready", "False", "NoNodes"));
    for name in ["metered", "priced", "unpriced", "nowhere"] {
        api.delete(&path(name));
    }
}
