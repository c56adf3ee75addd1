//! Two loads in containers of their own on a machine with a cycle counter: what the agent charged each with, against what
//! the kernel's perf counted for its cgroup.

use std::fmt;

use anyhow::{Context as _, Result};

/// Part of perf's count by which the agent's may differ: both count the same register, but the way through a switch lies
/// on different sides.
const TOLERANCE: f64 = 0.02;
/// Part by which the loads' energy may be divided otherwise than their cycles. The estimate's energy of each tick is
/// divided by the cycles of that tick, and the loads begin and end within one.
const ENERGY: f64 = 0.05;

/// One load.
#[derive(Debug, PartialEq)]
pub struct Load {
    /// `energy_agent_container_cpu_cycles_total`.
    agent: f64,
    /// By perf.
    kernel: f64,
    /// `kepler_container_cpu_joules_total`.
    joules: f64,
}

impl Load {
    /// `text`: cycles by the agent, by perf, and joules.
    ///
    /// # Errors
    /// When it is something else.
    pub fn read(text: &str) -> Result<Self> {
        let numbers: Option<Vec<f64>> = text.split(' ').map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[agent, kernel, joules]) if kernel > 0.0 => Ok(Self { agent, kernel, joules }),
            _ => None.with_context(|| format!("cycles of a load are missing: {text}")),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let difference = (self.agent / self.kernel - 1.0) * 100.0;
        let (agent, kernel) = (self.agent / 1e9, self.kernel / 1e9);
        write!(out, "  load: {agent:.3} G cycles, by perf {kernel:.3} ({difference:+.2} %), {:.1} J", self.joules)
    }
}

/// Empty where all is well, and where the machine has no counter.
pub fn problems(weight: &str, loads: &[Load]) -> Vec<String> {
    let mut problems = Vec::new();
    if loads.is_empty() {
        return problems;
    }
    let [one, other] = loads else { return vec![format!("{} loads in place of two", loads.len())] };
    if weight != "cycles" {
        problems.push(format!("work was weighed by {weight:?} where perf counts cycles"));
    }
    for load in loads {
        if (load.agent / load.kernel - 1.0).abs() > TOLERANCE {
            problems.push(format!("{} cycles are more than {:.0} % from perf's", load.agent, TOLERANCE * 100.0));
        }
    }
    let (energy, cycles) = (other.joules / one.joules, other.kernel / one.kernel);
    if (energy / cycles - 1.0).abs() > ENERGY {
        problems.push(format!("energy is divided 1 to {energy:.3}, cycles 1 to {cycles:.3}"));
    }
    // Loads that are alike would also agree where nothing was weighed.
    if cycles < 1.5 {
        problems.push(format!("the loads are alike, cycles 1 to {cycles:.3}"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_that_differ_from_perf_or_are_divided_otherwise_are_named() {
        let problems = |weight: &str, one: &str, other: &str| {
            problems(weight, &[Load::read(one).unwrap(), Load::read(other).unwrap()]).join("; ")
        };
        assert_eq!(problems("cycles", "6050 6000 60", "18000 18000 178"), "");
        assert!(problems("runtime", "6000 6000 60", "18000 18000 180").contains("weighed by \"runtime\""));
        assert!(problems("cycles", "6200 6000 60", "18000 18000 180").contains("6200 cycles are more than 2 %"));
        assert!(
            problems("cycles", "6000 6000 60", "18000 18000 160").contains("divided 1 to 2.667, cycles 1 to 3.000")
        );
        assert!(problems("cycles", "6000 6000 60", "6000 6000 60").contains("alike"));
        assert!(Load::read("6000 0 1").is_err() && Load::read("").is_err());
    }
}
