//! What became of a pod of busy loops that was held to a power budget by `cpu.max`: the quota that the agent wrote against
//! what the kernel counted meanwhile.

use anyhow::{Context as _, Result};

/// What the budget leaves of a CPU: 40 W where a busy one draws 100 W.
const BUDGET_CPUS: f64 = 0.4;
/// More than the quota by this part is too much. Where the emulator stalls, a task overruns its quota, which the kernel
/// takes from the next periods: some of them may be after the end.
const OVERRUN: f64 = 0.05;
/// Busy loops use at least this part of what they are given.
const USED: f64 = 0.8;

/// A time in which the quota stood.
#[derive(Debug, PartialEq)]
pub struct Held {
    /// As `cpu.max` says.
    pub quota_us: f64,
    pub period_us: f64,
    /// From `cpu.stat`.
    pub usage_us: f64,
    pub throttled: f64,
    pub took_us: f64,
    /// What the agent says it has read back; CPUs.
    pub found_cpus: f64,
}

impl Held {
    /// `text`: quota, period, time used, times throttled and hundredths of a second that it took.
    ///
    /// # Errors
    /// When it is something else.
    pub fn read(text: &str, found_cpus: f64) -> Result<Self> {
        let numbers: Option<Vec<f64>> = text.split(' ').map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[quota_us, period_us, usage_us, throttled, took_cs]) => {
                Ok(Self { quota_us, period_us, usage_us, throttled, took_us: took_cs * 1e4, found_cpus })
            }
            _ => None.with_context(|| format!("the pod was not held: {text}")),
        }
    }

    /// CPUs that it was given.
    pub fn quota(&self) -> f64 {
        self.quota_us / self.period_us
    }

    /// CPUs that it used.
    pub fn used(&self) -> f64 {
        self.usage_us / self.took_us
    }

    /// Empty where all is well.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let periods = self.took_us / self.period_us;
        // One period may lie partly before and partly after.
        let most_us = self.quota_us * (periods + 1.0);
        let (quota, used) = (self.quota(), self.used());
        if quota > BUDGET_CPUS {
            problems.push(format!("a quota of {quota:.3} CPUs is no budget of {BUDGET_CPUS}"));
        }
        if self.usage_us > most_us * (1.0 + OVERRUN) {
            problems.push(format!("{used:.3} CPUs were used under a quota of {quota:.3}"));
        }
        if self.usage_us < most_us * USED {
            problems.push(format!("only {used:.3} CPUs were used under a quota of {quota:.3}"));
        }
        if self.throttled < periods / 2.0 {
            problems.push(format!("throttled {} times in {periods:.0} periods", self.throttled));
        }
        if (self.found_cpus - quota).abs() > 0.001 {
            problems.push(format!("the agent shows {} CPUs, cpu.max {quota}", self.found_cpus));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_held_pod_may_not_do_is_said() {
        let problems = |text: &str| Held::read(text, 0.37).unwrap().problems().join("; ");
        // 0.37 CPUs for 15 s are 5.55 s.
        assert_eq!(problems("37000 100000 5550000 148 1500"), "");
        assert!(problems("37000 100000 6300000 148 1500").contains("0.420 CPUs were used"));
        assert!(problems("37000 100000 3000000 148 1500").contains("only 0.200 CPUs"));
        assert!(problems("37000 100000 5550000 20 1500").contains("throttled 20 times in 150 periods"));
        assert!(problems("41000 100000 6150000 148 1500").contains("is no budget"));
        assert!(problems("36000 100000 5400000 148 1500").contains("the agent shows 0.37 CPUs"));
        assert!(Held::read("max 100000 5550000 0 1500", 0.37).unwrap_err().to_string().contains("was not held"));
    }
}
