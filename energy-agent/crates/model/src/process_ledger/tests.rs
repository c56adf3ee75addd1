use super::*;
use crate::zone::{Source, ZoneKind};

const PACKAGE: EnergyKey = EnergyKey { zone: ZoneKind::Package, source: Source::Rapl };

/// A ledger, and what it was charged with altogether.
struct World {
    ledger: ProcessLedger,
    charged: u64,
    seconds: u64,
}

const fn process(pid: u64, start_ns: u64) -> Process {
    Process { pid, start_ns }
}

impl World {
    fn new(living: usize, terminated: usize) -> Self {
        let ended = Retention { time: Duration::from_secs(120), max: terminated };
        let limits = RowLimits { living, ended };
        Self { ledger: ProcessLedger::new(limits), charged: 0, seconds: 0 }
    }

    fn now(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// A second in which these processes ran a nanosecond for each microjoule they are charged with; new ones are admitted.
    fn tick(&mut self, work: &[(Process, u64)], rest: u64) {
        self.seconds += 1;
        let now = self.now();
        let unit = Arc::new(Workload::Unit { unit: "a.service".into() });
        for (process, _) in work {
            if self.ledger.wants(*process, false) {
                let identity = Identity { comm: "sh".into(), exe: "/bin/sh".into() };
                self.ledger.admit(*process, identity, Arc::clone(&unit), Duration::from_secs(self.seconds - 1), now);
            }
        }
        let charge = |part, energy| Charge { key: PACKAGE, part, energy: Microjoules(energy) };
        let mut charges = vec![charge(Part::Rest, rest), charge(Part::Kernel, 1)];
        charges.extend(work.iter().map(|(process, energy)| charge(Part::Process(*process), *energy)));
        self.charged += charges.iter().map(|charge| charge.energy.0).sum::<u64>();
        let ran = |&(process, runtime_ns): &(Process, u64)| Ran { process, workload: Arc::clone(&unit), runtime_ns };
        let ran: Vec<_> = work.iter().map(ran).collect();
        self.ledger.apply(&charges, &ran, 1, now);
        let total: u64 = self.rows().iter().map(|row| row.energy[0].total.0).sum();
        assert_eq!(total, self.charged, "the rows are all that was charged");
    }

    fn rows(&self) -> Vec<ProcessRow> {
        self.ledger.rows(Duration::from_secs(1), |_| true, &GpuPowers::default())
    }

    /// pid, state, energy and run time of the rows of single processes.
    fn single(&self) -> Vec<(u32, &'static str, u64, u64)> {
        let rows = self.rows().into_iter();
        rows.filter_map(|row| Some((row.pid?, row.state.as_str(), row.energy[0].total.0, row.runtime_ns))).collect()
    }

    /// When the counters of each were 0.
    fn created(&self) -> Vec<(Option<u32>, u64)> {
        self.rows().iter().map(|row| (row.pid, row.created.as_secs())).collect()
    }

    fn other(&self) -> (u64, u64) {
        let other = self.rows().into_iter().find(|row| row.kind == ProcessKind::Other).unwrap();
        (other.energy[0].total.0, other.runtime_ns)
    }

    fn end(&mut self, process: Process) {
        self.ledger.end(process, self.now());
    }
}

#[test]
fn a_counter_was_0_when_the_interval_began_in_which_the_process_came() {
    let (first, second) = (Process { pid: 7, start_ns: 1 }, Process { pid: 8, start_ns: 2 });
    let mut world = World::new(10, 10);
    world.tick(&[(first, 5)], 0);
    world.tick(&[(first, 5)], 0);
    world.tick(&[(first, 5), (second, 5)], 0);
    // The kernel and what has no row of its own count from the start of the agent.
    assert_eq!(world.created(), [(None, 0), (None, 0), (Some(7), 0), (Some(8), 2)]);
}

#[test]
fn a_process_keeps_its_last_total_for_two_minutes_and_then_it_is_others() {
    let mut world = World::new(10, 10);
    let shell = process(10, 1);
    world.tick(&[(shell, 100)], 5);
    world.end(shell);
    world.tick(&[(shell, 3)], 0);
    assert_eq!(world.single(), [(10, "terminated", 103, 103)], "its last moments count");
    (0..119).for_each(|_| world.tick(&[], 0));
    assert_eq!((world.single().len(), world.other()), (1, (5, 0)));
    world.tick(&[], 0);
    assert_eq!((world.single(), world.other()), (vec![], (108, 103)));
    world.tick(&[(shell, 2)], 0);
    assert_eq!((world.single(), world.other()), (vec![], (110, 105)), "it gets no second series");
}

#[test]
fn a_pid_that_is_used_again_is_a_new_series_from_zero_and_the_old_total_is_others_at_once() {
    // FC-038
    let (old, new) = (process(4242, 100_000), process(4242, 730_500));
    let mut world = World::new(10, 10);
    world.tick(&[(old, 900)], 0);
    world.tick(&[(new, 5)], 0);
    assert_eq!((world.single(), world.other()), (vec![(4242, "running", 5, 5)], (900, 900)));
    world.tick(&[(new, 20), (old, 1)], 0);
    assert_eq!((world.single(), world.other()), (vec![(4242, "running", 25, 25)], (901, 901)));
    // One between them is heard of late.
    world.tick(&[(process(4242, 500_000), 4)], 0);
    assert_eq!((world.single(), world.other()), (vec![(4242, "running", 25, 25)], (905, 905)));
}

#[test]
fn more_processes_than_rows_share_the_row_of_others_until_there_is_room() {
    let mut world = World::new(2, 10);
    let all = [process(10, 1), process(11, 1), process(12, 1)];
    world.tick(&all.map(|process| (process, 10)), 0);
    assert_eq!((world.single().len(), world.other()), (2, (10, 10)));
    // The reused id proves an end, which makes room.
    world.tick(&[(process(10, 2), 1)], 0);
    assert_eq!(world.single()[0], (10, "running", 1, 1));
    world.end(all[1]);
    world.tick(&[(all[2], 7)], 0);
    let seen = world.single();
    assert_eq!(seen[1..], [(11, "terminated", 10, 10), (12, "running", 7, 7)]);
    assert_eq!(world.other(), (20, 20));
}

#[test]
fn of_too_many_ended_processes_the_oldest_go_first() {
    let mut world = World::new(10, 2);
    for pid in 1..=4 {
        world.tick(&[(process(pid, 1), pid)], 0);
        world.end(process(pid, 1));
    }
    world.tick(&[], 0);
    let pids: Vec<_> = world.single().iter().map(|row| row.0).collect();
    assert_eq!((pids, world.other()), (vec![3, 4], (3, 3)));
}

#[test]
fn only_the_living_have_power_and_only_where_the_interval_is_whole() {
    let mut world = World::new(10, 10);
    world.tick(&[(process(1, 1), 2_000_000), (process(2, 1), 5)], 0);
    world.end(process(2, 1));
    world.tick(&[(process(1, 1), 2_000_000)], 0);
    let watts = |powered: bool| -> Vec<Option<f64>> {
        let rows = world.ledger.rows(Duration::from_secs(1), |_| powered, &GpuPowers::default());
        rows.iter().filter(|row| row.pid.is_some()).map(|row| row.energy[0].power.map(|power| power.0)).collect()
    };
    assert_eq!(watts(true), [Some(2.0), None]);
    assert_eq!(watts(false), [None, None]);
}

#[test]
fn a_renamed_process_keeps_its_total() {
    // FC-039
    let mut world = World::new(10, 10);
    let shell = process(500, 1);
    world.tick(&[(shell, 100)], 0);
    world.ledger.rename(shell, Identity { comm: "python3".into(), exe: "/bin/python3".into() });
    world.tick(&[(shell, 1)], 0);
    let row = world.rows().pop().unwrap();
    assert_eq!((&*row.comm, &*row.exe, row.energy[0].total), ("python3", "/bin/python3", Microjoules(101)));
}
