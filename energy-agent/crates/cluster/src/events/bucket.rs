//! How many events may be sent: of each object and policy some at once, then one every few minutes, as client-go has it, and of
//! all together not too many.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use energy_model::capping::change::About;
use energy_model::capping::policy::PolicyName;

/// Of one object and policy. <https://github.com/kubernetes/client-go/blob/v0.33.0/tools/record/events_cache.go>
const ONE: Rate = Rate { burst: 25, every: Duration::from_secs(300) };
/// Of the node.
const ALL: Rate = Rate { burst: 200, every: Duration::from_secs(1) };
/// How many objects are remembered.
const MOST: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: u32,
    every: Duration,
}

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    /// When it is full again.
    full: Instant,
}

impl Bucket {
    fn may(&self, rate: Rate, now: Instant) -> bool {
        self.full.max(now) + rate.every <= now + rate.every * rate.burst
    }

    fn take(&mut self, rate: Rate, now: Instant) {
        self.full = self.full.max(now) + rate.every;
    }
}

#[derive(Debug)]
pub struct Buckets {
    all: Bucket,
    each: HashMap<(About, Option<PolicyName>), Bucket>,
}

impl Buckets {
    pub fn new(now: Instant) -> Self {
        Self { all: Bucket { full: now }, each: HashMap::new() }
    }

    /// Whether one more may be sent about this object. `now` does not go backwards.
    pub fn take(&mut self, about: &About, policy: Option<&PolicyName>, now: Instant) -> bool {
        if self.each.len() >= MOST {
            self.each.retain(|_, bucket| bucket.full > now);
        }
        if self.each.len() >= MOST {
            self.each.clear();
        }
        let one = self.each.entry((about.clone(), policy.cloned())).or_insert(Bucket { full: now });
        let may = one.may(ONE, now) && self.all.may(ALL, now);
        if may {
            one.take(ONE, now);
            self.all.take(ALL, now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str) -> PolicyName {
        PolicyName { name: name.into(), ..PolicyName::default() }
    }

    #[test]
    fn a_flapping_policy_uses_up_its_own_events_only() {
        let begin = Instant::now();
        let mut buckets = Buckets::new(begin);
        let mut taken = |name: &str, seconds| {
            let now = begin + Duration::from_secs(seconds);
            (0..100).filter(|_| buckets.take(&About::Node, Some(&policy(name)), now)).count()
        };
        assert_eq!([0, 299, 300, 900].map(|seconds| taken("a", seconds)), [25, 0, 1, 2]);
        assert_eq!(taken("b", 900), 25);
    }

    #[test]
    fn all_together_are_not_too_many_and_what_is_remembered_is_bounded() {
        let begin = Instant::now();
        let mut buckets = Buckets::new(begin);
        let mut taken = 0;
        for number in 0..10_000 {
            taken += u32::from(buckets.take(&About::Node, Some(&policy(&number.to_string())), begin));
            assert!(buckets.each.len() <= MOST);
        }
        assert_eq!(taken, 200);
    }
}
