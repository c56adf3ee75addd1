//! What budgets ask Prometheus for: the building's meter, and budgets that follow a price, carbon or cooling.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use energy_cluster::objects::ObjectKey;
use energy_cluster::prometheus::PromqlClient;
use energy_model::resources::cluster_power_budget::{Meter, WattsFrom};
use energy_model::resources::object::KubeObject;
use futures_util::StreamExt as _;
use futures_util::stream;

/// Queries at the same time.
const AT_ONCE: usize = 16;

/// Answers of this round, by the name of the budget; an error says why there is none.
#[derive(Debug, Default)]
pub struct Readings {
    pub meters: BTreeMap<String, Result<f64, String>>,
    pub watts: BTreeMap<String, Result<f64, String>>,
}

/// Asks for all budgets at once, for no longer than `patience`.
pub async fn ask(
    prometheus: Option<&PromqlClient>,
    budgets: &BTreeMap<ObjectKey, Arc<KubeObject>>,
    patience: Duration,
) -> Readings {
    let one = |BudgetQuery { kind, budget, query }: BudgetQuery| {
        let prometheus = prometheus.cloned();
        async move {
            let answer = match prometheus {
                Some(prometheus) => prometheus.value(&query, patience).await,
                None => Err("there is no --controller.prometheus to ask".to_owned()),
            };
            (kind, budget, answer)
        }
    };
    let mut readings = Readings::default();
    let answers: Vec<_> = stream::iter(queries(budgets)).map(one).buffer_unordered(AT_ONCE).collect().await;
    for (kind, budget, answer) in answers {
        match kind {
            QueryKind::Meter => readings.meters.insert(budget, answer),
            QueryKind::Watts => readings.watts.insert(budget, answer),
        };
    }
    readings
}

struct BudgetQuery {
    kind: QueryKind,
    budget: String,
    query: String,
}

#[derive(Clone, Copy)]
enum QueryKind {
    Meter,
    Watts,
}

/// All that budgets ask.
fn queries(budgets: &BTreeMap<ObjectKey, Arc<KubeObject>>) -> Vec<BudgetQuery> {
    let mut queries = Vec::new();
    for object in budgets.values() {
        let budget = &object.metadata.name;
        if let Ok(Meter { query }) = serde_json::from_value(object.spec["meter"].clone()) {
            queries.push(BudgetQuery { kind: QueryKind::Meter, budget: budget.clone(), query });
        }
        if let Ok(WattsFrom { query, .. }) = serde_json::from_value(object.spec["wattsFrom"].clone()) {
            queries.push(BudgetQuery { kind: QueryKind::Watts, budget: budget.clone(), query });
        }
    }
    queries
}
