//! Interrupts as work: busy time that was charged to no task, as far as the kernel says that it served interrupts,
//! becomes work of the kernel (pure).
//!
//! A kernel with `CONFIG_IRQ_TIME_ACCOUNTING` leaves interrupts out of the run time of the task they interrupt. Others
//! leave them in, and there is next to nothing left over to be charged here.

use energy_model::cpu::DomainLoad;
use energy_model::sample::{KERNEL_THREADS, Work};

/// Both accounts are rounded to ticks of 10 ms at either end of the interval; per CPU.
const NOISE_NS_PER_CPU: i64 = 20_000_000;

/// Keeps what rounding took too much, so that it does not add up.
#[derive(Debug, Default)]
pub struct Interrupts {
    /// By domain, never above 0: time charged beyond the busy time, to be set off against the next intervals; nanoseconds.
    ahead_ns: Vec<i64>,
}

impl Interrupts {
    /// Adds the kernel's work on interrupts to `work`. `loads` and `interrupt_ns` (how long the CPUs served interrupts by
    /// the kernel's account) are by domain.
    pub fn charge(&mut self, loads: &[DomainLoad], interrupt_ns: &[u64], work: &mut Vec<Work>) {
        self.ahead_ns.resize(loads.len(), 0);
        for (index, ((load, interrupt_ns), ahead_ns)) in
            loads.iter().zip(interrupt_ns).zip(&mut self.ahead_ns).enumerate()
        {
            let domain = u32::try_from(index).ok();
            let charged_ns = work
                .iter()
                .filter(|work| work.domain == domain)
                .fold(load.dropped_ns, |sum, work| sum.saturating_add(work.runtime_ns));
            let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
            let left_ns = signed(load.busy_ns).saturating_sub(signed(charged_ns)).saturating_add(*ahead_ns);
            let runtime_ns = u64::try_from(left_ns).unwrap_or(0).min(*interrupt_ns);
            *ahead_ns = left_ns.clamp(-NOISE_NS_PER_CPU.saturating_mul(i64::from(load.cpus)), 0);
            if runtime_ns > 0 {
                work.push(Work { cgroup: KERNEL_THREADS, domain, runtime_ns, cycles: 0, switches: 0 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Milliseconds of the kernel on one CPU of domain 0, when a task was charged `charged`.
    fn charged(interrupts: &mut Interrupts, busy: u64, irq: u64, charged: u64) -> u64 {
        let load = DomainLoad { cpus: 1, busy_ns: busy * MS, dropped_ns: 0, cycles: false };
        let task = Work { cgroup: 7, domain: Some(0), runtime_ns: charged * MS, cycles: 5, switches: 1 };
        let mut work = vec![task, Work { domain: Some(1), ..task }];
        interrupts.charge(&[load], &[irq * MS], &mut work);
        let kernel = work.iter().filter(|work| work.cgroup == KERNEL_THREADS && work.domain == Some(0));
        kernel.map(|work| work.runtime_ns / MS).sum()
    }

    #[test]
    fn busy_time_that_no_task_had_is_the_interrupts_up_to_what_they_took() {
        for (busy, irq, task, kernel) in
            [(900, 300, 600, 300), (900, 300, 700, 200), (900, 300, 400, 300), (900, 0, 600, 0)]
        {
            assert_eq!(charged(&mut Interrupts::default(), busy, irq, task), kernel);
        }
    }

    #[test]
    fn interrupts_within_the_run_time_of_tasks_are_not_charged_again() {
        // Busy time rounds to 10 ms, run time does not: 800, 810, 800, 810 busy of 805 that tasks were charged with.
        let mut interrupts = Interrupts::default();
        let kernel: Vec<u64> =
            [800, 810, 800, 810].into_iter().map(|busy| charged(&mut interrupts, busy, 100, 805)).collect();
        assert_eq!(kernel, [0, 0, 0, 0]);
    }

    #[test]
    fn dropped_time_is_not_the_interrupts() {
        let load = DomainLoad { cpus: 1, busy_ns: 900 * MS, dropped_ns: 800 * MS, cycles: false };
        let mut work = Vec::new();
        Interrupts::default().charge(&[load], &[300 * MS], &mut work);
        assert_eq!(work.iter().map(|work| work.runtime_ns / MS).collect::<Vec<_>>(), [100]);
    }
}
