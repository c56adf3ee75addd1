//! Clocks that somebody else has locked, by what a GPU runs at.

use super::*;
use crate::capping::observation::Why;

impl Bench {
    /// A tick at which the GPU is seen to run so; `None`: no reading.
    fn look(&mut self, mhz: u32, why: Why, limit: Option<&Limit>) -> Action {
        self.managed.observed.look = Some(ClockLook { mhz, why });
        let action = self.tick(limit);
        self.managed.observed.look = None;
        action
    }

    fn looks(&mut self, count: u32, mhz: u32, why: Why, limit: Option<&Limit>) {
        for _ in 0..count {
            self.look(mhz, why, limit);
        }
    }
}

#[test]
fn a_first_write_waits_where_a_gpu_that_works_is_below_its_highest_clock_and_the_lock_stays() {
    let mut gpu = Bench::gpu();
    gpu.looks(20, 600, Why::Unexplained, Some(&limit(450)));
    assert_eq!(gpu.writes, []);
    assert_eq!(gpu.kinds(), [KnobChangeKind::Locked]);
    assert_eq!(gpu.seen().state, KnobState::Yielded);
    assert!(gpu.managed.cap(gpu.now).detail.unwrap().contains("600 MHz"));
    // Idle, behind a power limit or without a reading nothing changes, for hours and under every policy.
    for why in [Why::Idle, Why::Explained] {
        gpu.looks(2000, 345, why, Some(&limit(450)));
    }
    gpu.ticks(2000, Some(&Limit { policy: policy("q"), ..limit(450) }));
    gpu.managed.policy_changed(&policy("q"));
    gpu.ticks(10, Some(&limit(450)));
    assert_eq!((gpu.writes.len(), gpu.seen().state), (0, KnobState::Yielded));
    // It runs faster than that again.
    gpu.look(1980, Why::Unexplained, Some(&limit(450)));
    assert_eq!(gpu.kinds(), [KnobChangeKind::Recovered]);
    // 450 is below a quarter of 1980, and 210 + 19 x 15 = 495 the floor.
    assert_eq!(gpu.writes, [KnobValue::Set(495)]);
}

#[test]
fn a_gpu_at_its_highest_clock_or_with_a_reason_is_capped_at_once() {
    // 1980 / 32 = 61 MHz below the highest are within what a warm GPU loses.
    for (mhz, why) in [(1980, Why::Unexplained), (1920, Why::Unexplained), (1200, Why::Explained), (1980, Why::Idle)] {
        let mut gpu = Bench::gpu();
        gpu.look(mhz, why, Some(&limit(900)));
        assert_eq!(gpu.writes, [KnobValue::Set(900)], "{mhz} {why:?}");
    }
}

#[test]
fn a_gpu_of_which_nothing_can_be_known_is_capped_after_a_while() {
    // Always idle at the moment of the look, or another clock each time.
    let mut idle = Bench::gpu();
    idle.looks(8, 345, Why::Idle, Some(&limit(900)));
    assert_eq!(idle.writes, []);
    idle.looks(2, 345, Why::Idle, Some(&limit(900)));
    assert_eq!(idle.writes, [KnobValue::Set(900)]);
    let mut restless = Bench::gpu();
    for index in 0..10 {
        restless.look(900 + 100 * (index % 3), Why::Unexplained, Some(&limit(705)));
    }
    assert_eq!((restless.writes, restless.changes), (vec![KnobValue::Set(705)], vec![]));
    // It was seen at its highest clock a moment ago.
    let mut known = Bench::gpu();
    known.look(1980, Why::Unexplained, None);
    known.look(345, Why::Idle, Some(&limit(900)));
    assert_eq!(known.writes, [KnobValue::Set(900)]);
}

#[test]
fn a_lock_in_place_of_the_agents_is_left_to_stand() {
    let mut gpu = Bench::gpu();
    gpu.look(1980, Why::Unexplained, Some(&limit(1200)));
    gpu.looks(10, 1200, Why::Unexplained, Some(&limit(1200)));
    // It settles for 3 s after a write; from then on a raise, a cut and the end wait for what the clock says.
    gpu.looks(2, 600, Why::Unexplained, Some(&limit(1200)));
    gpu.look(600, Why::Unexplained, Some(&limit(1500)));
    gpu.look(600, Why::Unexplained, Some(&limit(500)));
    assert_eq!(gpu.look(600, Why::Unexplained, None), Action::Forget);
    gpu.looks(100, 600, Why::Unexplained, None);
    assert_eq!(gpu.writes, [KnobValue::Set(1200)], "neither raised nor reset");
    assert_eq!(gpu.kinds(), [KnobChangeKind::Locked]);
    assert!(gpu.managed.held().is_none());
}

#[test]
fn a_gpu_that_works_little_or_is_held_by_its_power_limit_stays_capped() {
    let mut gpu = Bench::gpu();
    gpu.look(1980, Why::Unexplained, Some(&limit(1200)));
    gpu.looks(100, 600, Why::Explained, Some(&limit(1200)));
    gpu.looks(100, 345, Why::Idle, Some(&limit(1200)));
    // 61 MHz below are no lock.
    gpu.looks(100, 1140, Why::Unexplained, Some(&limit(1200)));
    assert_eq!(gpu.seen().state, KnobState::Ok);
    gpu.tick(None);
    assert_eq!(gpu.writes, [KnobValue::Set(1200), KnobValue::Restore(String::new())]);
}

#[test]
fn what_the_owner_states_is_the_most_and_what_comes_back() {
    let mut gpu = Bench::gpu();
    gpu.device.raw = "345-1200".to_owned();
    gpu.tick(None);
    assert_eq!(gpu.seen().original, Some(1200));
    // What is asked for beyond that is not written.
    gpu.look(1200, Why::Unexplained, Some(&limit(900)));
    assert_eq!((gpu.seen().original, gpu.seen().current), (Some(1200), Some(900)));
    gpu.look(900, Why::Unexplained, Some(&limit(1800)));
    gpu.tick(None);
    let expected = [KnobValue::Set(900), KnobValue::Set(1200), KnobValue::Restore("345-1200".to_owned())];
    assert_eq!(gpu.writes, expected);
    // Open is stated: nothing is taken for a lock.
    let mut gpu = Bench::gpu();
    gpu.device.raw = "open".to_owned();
    gpu.looks(10, 600, Why::Unexplained, Some(&limit(510)));
    gpu.tick(None);
    assert_eq!(gpu.writes, [KnobValue::Set(510), KnobValue::Restore("open".to_owned())]);
}

#[test]
fn a_driver_that_is_loaded_anew_has_no_locks() {
    let mut gpu = Bench::gpu();
    gpu.looks(5, 600, Why::Unexplained, None);
    assert_eq!((gpu.seen().state, gpu.kinds()), (KnobState::Yielded, vec![KnobChangeKind::Locked]));
    gpu.device.epoch = 2;
    gpu.tick(None);
    assert_eq!(gpu.seen().state, KnobState::Ok);
}
