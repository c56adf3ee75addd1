//! What is worth a line in the log: a change of state, and of states that come and go only the first of each kind for a
//! while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The same trouble is not said again within this time.
const QUIET: Duration = Duration::from_secs(600);

/// When which kind of trouble was said.
#[derive(Clone, Debug)]
pub struct LogLimit<K> {
    said: BTreeMap<K, Instant>,
}

impl<K> Default for LogLimit<K> {
    fn default() -> Self {
        Self { said: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> LogLimit<K> {
    /// Whether trouble of this kind, which comes now, is to be said.
    pub fn is(&mut self, kind: K, now: Instant) -> bool {
        let is = self.said.get(&kind).is_none_or(|said| now.saturating_duration_since(*said) >= QUIET);
        if is {
            self.said.insert(kind, now);
        }
        is
    }
}
