//! What cgroups did since the previous reading, from the map and the slots (pure).

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use energy_ebpf::{Key, Slot, Usage};
use energy_model::sample::{CgroupEvent, CgroupId, Work};
use energy_model::table;

use super::running_total::RunningTotal;

/// Readings that a removed cgroup's entry must stand still before it is given up. Its last tasks may still be on their
/// way out when the removal is reported.
const QUIET_READINGS: u32 = 3;
/// Times the map is asked again about slots that moved while it was read; each time takes less than the one before.
const SETTLE_ROUNDS: u32 = 4;

/// What has been charged so far, per map key.
#[derive(Debug, Default)]
pub struct CgroupTally {
    entries: HashMap<Key, RunningTotal<Usage>>,
    /// Removed cgroups, and for how many readings they have done nothing.
    gone: HashMap<CgroupId, u32>,
}

impl CgroupTally {
    /// What the map holds for a key, in the reading in progress; a later value replaces an earlier one.
    pub fn set(&mut self, key: Key, usage: Usage) {
        self.entries.entry(key).or_default().set(usage);
    }

    /// The slots, as they are after the map was last asked about what moved. `before` are the slots before the map was
    /// read; `read` gives them anew.
    ///
    /// What a slot holds moves into the map in one go, seconds of run time at times. The map is asked again about each
    /// slot that moved (`moved_slot` does so for another map), and the slots are read after that, never before: what moves in between is then seen nowhere and
    /// charged at the next reading. The other way round it would be seen twice.
    pub fn settle(
        &mut self,
        mut before: Vec<Slot>,
        mut read: impl FnMut() -> Vec<Slot>,
        look_up: impl Fn(&Key) -> Result<Option<Usage>>,
        mut moved_slot: impl FnMut(&Slot) -> Result<()>,
    ) -> Result<Vec<Slot>> {
        let mut slots = read();
        for _ in 0..SETTLE_ROUNDS {
            let mut moved = HashSet::new();
            for (slot, _) in before.iter().zip(&slots).filter(|(before, now)| before.seq != now.seq) {
                moved.extend([slot.cgroup, slot.parked_cgroup].map(|cgroup| Key { cgroup, domain: slot.domain }));
                moved_slot(slot)?;
            }
            if moved.is_empty() {
                break;
            }
            for key in moved {
                if let Some(usage) = look_up(&key)? {
                    self.set(key, usage);
                }
            }
            before = std::mem::replace(&mut slots, read());
        }
        Ok(slots)
    }

    /// Adds what a slot holds to the total of the reading in progress.
    pub fn add(&mut self, key: Key, usage: Usage) {
        self.entries.entry(key).or_default().add(usage);
    }

    /// Ends the reading: what each key did since the previous one.
    pub fn close(&mut self) -> Vec<Work> {
        let mut work = Vec::new();
        for (key, total) in &mut self.entries {
            let done = total.close();
            if done == Usage::default() {
                continue;
            }
            if let Some(quiet) = self.gone.get_mut(&key.cgroup) {
                *quiet = 0;
            }
            let Usage { runtime_ns, switches, cycles } = done;
            let (cgroup, domain) = (key.cgroup, u32::try_from(key.domain).ok());
            work.push(Work { cgroup, domain, runtime_ns, cycles, switches });
        }
        table::fit(&mut self.entries);
        work
    }

    /// A cgroup was removed: its entries are to be given up when they have come to rest.
    pub fn removed(&mut self, cgroup: CgroupId) {
        self.gone.entry(cgroup).or_insert(0);
    }

    /// Notes the removals among the events, whether or not anybody knows the cgroup.
    pub fn follow(&mut self, events: &[CgroupEvent]) {
        for event in events {
            match event {
                CgroupEvent::Removed { id } => self.removed(*id),
                CgroupEvent::Created { .. } | CgroupEvent::CreatedDeep { .. } => {}
            }
        }
    }

    /// Keys of removed cgroups that have come to rest, for removal from the kernel's map; they are forgotten here.
    /// `held` says whether some CPU's slot still holds something of the cgroup.
    pub(crate) fn give_up(&mut self, held: impl Fn(CgroupId) -> bool) -> Vec<Key> {
        let mut rested = HashSet::new();
        self.gone.retain(|cgroup, quiet| {
            *quiet = if held(*cgroup) { 0 } else { *quiet + 1 };
            let keep = *quiet <= QUIET_READINGS;
            if !keep {
                rested.insert(*cgroup);
            }
            keep
        });
        table::fit(&mut self.gone);
        if rested.is_empty() {
            return Vec::new();
        }
        self.entries.extract_if(|key, _| rested.contains(&key.cgroup)).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const POD: Key = Key { cgroup: 7, domain: 0 };

    fn ran(runtime_ns: u64) -> Usage {
        Usage { runtime_ns, cycles: 2 * runtime_ns, switches: 1 }
    }

    fn charged(tally: &mut CgroupTally, parts: &[u64]) -> u64 {
        for part in parts {
            tally.add(POD, ran(*part));
        }
        tally.close().iter().map(|work| work.runtime_ns).sum()
    }

    #[test]
    fn a_total_that_dips_charges_nothing_and_then_only_what_is_new() {
        let mut tally = CgroupTally::default();
        assert_eq!(charged(&mut tally, &[100, 20]), 120);
        // The slot's 20 were caught on their way into the map.
        assert_eq!(charged(&mut tally, &[100]), 0);
        assert_eq!(charged(&mut tally, &[130]), 10);
    }

    /// What is charged when `before` and then what `read` gives are (seq, run time) of two CPUs whose slots hold the pod.
    fn settled(map: &Cell<u64>, before: [(u64, u64); 2], mut read: impl FnMut() -> [(u64, u64); 2]) -> u64 {
        let slots = |states: [(u64, u64); 2]| {
            states
                .map(|(seq, ran_ns)| Slot { seq, closed: ran(ran_ns), cgroup: POD.cgroup, ..Slot::default() })
                .to_vec()
        };
        let mut tally = CgroupTally::default();
        tally.set(POD, ran(map.get()));
        let settled = tally
            .settle(slots(before), || slots(read()), |key| Ok((*key == POD).then(|| ran(map.get()))), |_| Ok(()))
            .unwrap();
        for slot in settled {
            tally.add(POD, slot.closed);
        }
        tally.close().iter().map(|work| work.runtime_ns).sum()
    }

    #[test]
    fn what_moves_into_the_map_during_a_reading_is_charged_once() {
        // CPU 0 moved its 5 after the map was read, CPU 1 moves its 5000 just after the slots were read.
        let map = Cell::new(100);
        let mut states = [[(2, 0), (0, 5_000)], [(2, 0), (2, 0)], [(2, 0), (2, 0)]].into_iter();
        let read = || {
            map.set(5_105);
            states.next().unwrap()
        };
        assert_eq!(settled(&map, [(0, 5), (0, 5_000)], read), 5_105);
    }

    #[test]
    fn what_a_slot_kept_of_the_cgroup_before_is_charged_once_when_it_moves_into_the_map() {
        // The slot is another's; it kept 5 of the pod's, which move into the map after that was read.
        let before = Slot { parked_cgroup: POD.cgroup, parked: ran(5), cgroup: 8, ..Slot::default() };
        let after = Slot { seq: 2, parked_cgroup: 8, cgroup: 9, ..Slot::default() };
        let mut tally = CgroupTally::default();
        tally.set(POD, ran(100));
        let map = |key: &Key| Ok((*key == POD).then(|| ran(105)));
        assert_eq!(tally.settle(vec![before], || vec![after], map, |_| Ok(())).unwrap()[0].seq, 2);
        assert_eq!(charged(&mut tally, &[]), 105);
    }

    #[test]
    fn a_slot_that_never_stands_still_is_charged_late_and_not_twice() {
        // Its 10 move before each reading of the slots, five in all; the map is asked for the last time after the fourth.
        let (map, mut seq) = (Cell::new(0), 0);
        let read = || {
            map.set(map.get() + 10);
            seq += 2;
            [(seq, 10), (0, 0)]
        };
        assert_eq!(settled(&map, [(0, 10), (0, 0)], read), 40 + 10);
    }

    #[test]
    fn a_removed_cgroup_is_given_up_once_it_rests_and_no_slot_holds_it() {
        let mut tally = CgroupTally::default();
        charged(&mut tally, &[100]);
        tally.follow(&[CgroupEvent::Removed { id: POD.cgroup }]);
        for _ in 0..10 {
            assert_eq!(tally.give_up(|_| true), []);
            tally.removed(POD.cgroup);
        }
        assert_eq!(charged(&mut tally, &[150]), 50, "work after the removal still counts");
        let mut waits = 0;
        while tally.give_up(|_| false).is_empty() && waits < 10 {
            tally.removed(POD.cgroup);
            waits += 1;
        }
        assert_eq!(waits, 3, "told again, it waits no longer");
        assert_eq!(tally.give_up(|_| false), [], "it is forgotten");
    }

    #[test]
    fn two_cpus_of_a_package_add_up_and_packages_stay_apart() {
        let mut tally = CgroupTally::default();
        tally.add(POD, ran(5));
        tally.add(POD, ran(6));
        tally.add(Key { domain: 1, ..POD }, ran(7));
        let mut work = tally.close();
        work.sort_by_key(|work| work.domain);
        let seen: Vec<_> = work.iter().map(|work| (work.domain, work.runtime_ns, work.cycles, work.switches)).collect();
        assert_eq!(seen, [(Some(0), 11, 22, 2), (Some(1), 7, 14, 1)]);
    }
}
