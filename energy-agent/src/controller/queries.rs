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
use tokio::time::{Instant, timeout_at};

/// Queries at the same time.
const AT_ONCE: usize = 16;

/// Answers of this round, by the name of the budget; an error says why there is none. A budget that is not here was not asked
/// about.
#[derive(Debug, Default)]
pub struct Readings {
    pub meters: BTreeMap<String, Result<f64, String>>,
    pub watts: BTreeMap<String, Result<f64, String>>,
}

/// Asks for all budgets at once, for no longer than `patience` in all.
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
    let queries = queries(budgets);
    let mut readings = Readings::default();
    for BudgetQuery { kind, budget, .. } in &queries {
        readings.add(*kind, budget.clone(), Err(format!("Prometheus has not answered within {patience:?}")));
    }
    let deadline = Instant::now() + patience;
    let mut answers = stream::iter(queries).map(one).buffer_unordered(AT_ONCE);
    while let Ok(Some((kind, budget, answer))) = timeout_at(deadline, answers.next()).await {
        readings.add(kind, budget, answer);
    }
    readings
}

impl Readings {
    fn add(&mut self, kind: QueryKind, budget: String, answer: Result<f64, String>) {
        match kind {
            QueryKind::Meter => self.meters.insert(budget, answer),
            QueryKind::Watts => self.watts.insert(budget, answer),
        };
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use std::net::TcpListener;

    use energy_cluster::https::ClientTls;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_prometheus_that_hangs_costs_a_round_one_patience_for_all_queries() {
        // Connections are taken, and nobody answers.
        let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", hanging.local_addr().unwrap());
        let prometheus = PromqlClient::new(&url, &ClientTls::default()).unwrap();
        let budget = |number: usize| {
            let name = format!("b{number}");
            let object = json!({"metadata": {"name": name}, "spec": {"meter": {"query": "pdu"}, "wattsFrom": {"query": "price"}}});
            ((String::new(), name), Arc::new(serde_json::from_value(object).unwrap()))
        };
        let budgets: BTreeMap<_, _> = (0..40).map(budget).collect();
        let readings = ask(Some(&prometheus), &budgets, Duration::from_millis(500)).await;
        let late = |readings: &BTreeMap<String, Result<f64, String>>| {
            readings.values().filter(|reading| reading.as_ref().is_err_and(|why| why.contains("within 500ms"))).count()
        };
        assert_eq!((late(&readings.meters), late(&readings.watts)), (40, 40), "{readings:?}");
        hanging.set_nonblocking(true).unwrap();
        let asked = std::iter::from_fn(|| hanging.accept().ok()).count();
        assert!((1..=2 * AT_ONCE).contains(&asked), "{asked} of 80 queries were sent");
    }
}
