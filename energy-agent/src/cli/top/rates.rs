//! Differences between two pages, over the time between the ticks they show.

use std::collections::HashMap;
use std::hash::Hash;

/// What the previous page said.
#[derive(Debug)]
pub struct PreviousPage<K> {
    tick: Option<f64>,
    counters: HashMap<K, f64>,
    /// By second, between the last two ticks.
    rates: HashMap<K, f64>,
}

impl<K> Default for PreviousPage<K> {
    fn default() -> Self {
        Self { tick: None, counters: HashMap::new(), rates: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> PreviousPage<K> {
    /// Takes the counters of a page whose values were read at `tick`. A page of the same tick changes nothing.
    pub fn advance(&mut self, tick: Option<f64>, counters: HashMap<K, f64>) {
        let elapsed = match (self.tick, tick) {
            (Some(before), Some(now)) => now - before,
            _ => 0.0,
        };
        if elapsed == 0.0 && self.tick == tick && self.tick.is_some() {
            return;
        }
        // After a restart or a step of the clock there is nothing to compare with.
        self.rates.clear();
        if elapsed > 0.0 {
            let rate = |(key, now): (&K, &f64)| {
                let grown = now - self.counters.get(key)?;
                (grown >= 0.0).then(|| (key.clone(), grown / elapsed))
            };
            self.rates = counters.iter().filter_map(rate).collect();
        }
        (self.tick, self.counters) = (tick, counters);
    }

    pub fn rate(&self, key: &K) -> Option<f64> {
        self.rates.get(key).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_ticks_and_a_counter_that_did_not_fall() {
        let mut memory = PreviousPage::default();
        let mut at = |tick, value| {
            memory.advance(Some(tick), [("a", value)].into());
            memory.rate(&"a")
        };
        assert_eq!(at(100.0, 10.0), None);
        // 3 in 2 seconds.
        assert_eq!(at(102.0, 13.0), Some(1.5));
        assert_eq!(at(102.0, 13.0), Some(1.5), "the same tick again");
        assert_eq!(at(104.0, 1.0), None, "a restarted agent counts from 0");
        assert_eq!(at(50.0, 9.0), None, "the clock was set");
    }
}
