//! A total that is computed afresh at each reading becomes differences that never fall (pure).

use energy_ebpf::Usage;

/// Something that is added up: the run time of a process, or all that a cgroup did.
pub(crate) trait Addend: Copy + Default {
    #[must_use]
    fn plus(self, more: Self) -> Self;
    /// What it has more than `charged`; nothing where that is more.
    #[must_use]
    fn beyond(self, charged: Self) -> Self;
}

impl Addend for u64 {
    fn plus(self, more: Self) -> Self {
        self + more
    }

    fn beyond(self, charged: Self) -> Self {
        self.saturating_sub(charged)
    }
}

impl Addend for Usage {
    fn plus(self, more: Self) -> Self {
        Self {
            runtime_ns: self.runtime_ns + more.runtime_ns,
            switches: self.switches + more.switches,
            cycles: self.cycles + more.cycles,
        }
    }

    fn beyond(self, charged: Self) -> Self {
        Self {
            runtime_ns: self.runtime_ns.beyond(charged.runtime_ns),
            switches: self.switches.beyond(charged.switches),
            cycles: self.cycles.beyond(charged.cycles),
        }
    }
}

/// The total of one entry of a map, and what has been charged of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunningTotal<A> {
    charged: A,
    /// As it is found in the reading in progress; nothing between readings.
    total: A,
}

impl<A: Addend> RunningTotal<A> {
    /// What the map holds, in the reading in progress; a later value replaces an earlier one.
    pub const fn set(&mut self, total: A) {
        self.total = total;
    }

    /// Adds what a slot holds.
    pub fn add(&mut self, part: A) {
        self.total = self.total.plus(part);
    }

    /// Ends the reading: what came since the previous one. A total below what was charged before (a slot was caught on its
    /// way into the map) charges nothing now, and the rest when it shows up.
    pub fn close(&mut self) -> A {
        let new = std::mem::take(&mut self.total).beyond(self.charged);
        self.charged = self.charged.plus(new);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_that_dips_charges_nothing_and_then_only_what_is_new() {
        let mut total = RunningTotal::<u64>::default();
        let mut read = |map, slot| {
            total.set(map);
            total.add(slot);
            total.close()
        };
        assert_eq!((read(100, 7), read(100, 0), read(112, 0)), (107, 0, 5));
    }

    #[test]
    fn an_entry_that_a_reading_does_not_find_charges_nothing_and_keeps_what_it_was_charged() {
        let mut total = RunningTotal::<u64>::default();
        total.set(100);
        assert_eq!(total.close(), 100);
        assert_eq!(total.close(), 0);
        total.set(130);
        assert_eq!(total.close(), 30);
    }

    #[test]
    fn each_part_of_a_usage_is_charged_by_itself() {
        let mut total = RunningTotal::<Usage>::default();
        total.set(Usage { runtime_ns: 100, switches: 4, cycles: 300 });
        total.close();
        // The cycles of the slot have not reached the map, its switches have.
        total.set(Usage { runtime_ns: 100, switches: 5, cycles: 290 });
        assert_eq!(total.close(), Usage { runtime_ns: 0, switches: 1, cycles: 0 });
    }
}
