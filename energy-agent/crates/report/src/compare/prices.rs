//! What an hour of hardware costs.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::run::Run;

/// The file of prices.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HourlyPrices {
    #[serde(default)]
    pub currency: String,
    /// By `LABEL=VALUE`: an hour of the node. By the model of a GPU: an hour of one.
    pub per_hour: BTreeMap<String, f64>,
}

impl HourlyPrices {
    /// # Errors
    /// When a price is negative or no number.
    pub fn check(&self) -> Result<(), String> {
        match self.per_hour.iter().find(|(_, price)| !price.is_finite() || **price < 0.0) {
            Some((key, price)) => Err(format!("the price of {key:?} is {price}; a price is a number from 0 on")),
            None => Ok(()),
        }
    }

    /// Price of an hour of what the run used: by one of its labels, else by the GPUs that it held.
    ///
    /// # Errors
    /// When two of its labels have different prices.
    pub(super) fn per_hour(&self, run: &Run) -> Result<Option<f64>, String> {
        let of_label = |(key, value): (&String, &String)| {
            let label = format!("{key}={value}");
            self.per_hour.get(&label).map(|price| (label, *price))
        };
        let found: Vec<(String, f64)> = run.labels.iter().filter_map(of_label).collect();
        if let [(first, price), others @ ..] = found.as_slice() {
            return match others.iter().find(|(_, other)| (other - price).abs() > 0.0) {
                Some((other, _)) => {
                    Err(format!("two prices hold for a run: that of {first} and that of {other}; keep one"))
                }
                None => Ok(Some(*price)),
            };
        }
        let price = |model: Option<&str>| self.per_hour.get(model?).copied();
        let prices: Option<Vec<f64>> = held(run).map(price).collect();
        Ok(prices.filter(|prices| !prices.is_empty()).map(|prices| prices.iter().sum()))
    }
}

/// Models of the GPUs that the run held.
pub(super) fn held(run: &Run) -> impl Iterator<Item = Option<&str>> {
    let all = || run.nodes.iter().flat_map(|node| &node.gpus);
    let model = move |uuid: &String| all().find(|gpu| gpu.uuid == *uuid)?.model.as_deref();
    run.gpus.iter().map(move |used| model(&used.uuid))
}
