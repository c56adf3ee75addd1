//! Time and energy over budgets that have ended. When a policy or pod comes back, its counters go on from there, so that
//! they do not fall.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::capping::policy::PolicyName;

/// By policy, and uid of the pod or nothing for the node.
pub type BudgetKey = (PolicyName, Option<Arc<str>>);

/// Time and energy over the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    pub time: Duration,
    pub energy_uj: u64,
}

/// Budgets that are remembered; those that ended first are forgotten first.
pub const MOST: usize = 4096;

#[derive(Debug, Default)]
pub struct Past {
    /// With the number of their end.
    budgets: BTreeMap<BudgetKey, (u64, Excess)>,
    order: BTreeMap<u64, BudgetKey>,
    ended: u64,
}

impl Past {
    /// A budget has ended.
    pub fn keep(&mut self, key: &BudgetKey, excess: Excess) {
        if excess == Excess::default() {
            return;
        }
        self.ended += 1;
        if let Some((number, _)) = self.budgets.insert(key.clone(), (self.ended, excess)) {
            self.order.remove(&number);
        }
        self.order.insert(self.ended, key.clone());
        while self.order.len() > MOST {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.budgets.remove(&oldest);
        }
    }

    /// A budget begins, perhaps again.
    pub fn take(&mut self, key: &BudgetKey) -> Excess {
        let Some((number, excess)) = self.budgets.remove(key) else { return Excess::default() };
        self.order.remove(&number);
        excess
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> BudgetKey {
        (PolicyName { namespace: "".into(), name: number.to_string().into(), ..PolicyName::default() }, None)
    }

    #[test]
    fn those_that_ended_last_are_remembered() {
        let mut past = Past::default();
        let excess = |energy_uj| Excess { time: Duration::from_secs(1), energy_uj };
        past.keep(&key(0), excess(1));
        past.keep(&key(1), excess(2));
        // It came again and ended again: the first but one now.
        assert_eq!(past.take(&key(0)), excess(1));
        assert_eq!(past.take(&key(0)), Excess::default());
        past.keep(&key(0), excess(3));
        for number in 2..=MOST {
            past.keep(&key(number), excess(4));
        }
        // What was never over its budget takes no place.
        past.keep(&key(MOST + 1), Excess::default());
        assert_eq!((past.budgets.len(), past.order.len()), (MOST, MOST));
        assert_eq!([0, 1, MOST].map(|number| past.take(&key(number)).energy_uj), [3, 0, 4]);
    }
}
