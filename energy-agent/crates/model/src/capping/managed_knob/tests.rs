mod after_a_crash;
mod gone;
mod locks;
mod rivals;

use std::sync::Arc;

use super::*;
use crate::capping::knob::KnobValue;
use crate::capping::observation::KnobNow;

const SECOND: Duration = Duration::from_secs(1);

fn policy(name: &str) -> PolicyName {
    PolicyName { namespace: "".into(), name: name.into(), ..PolicyName::default() }
}

fn limit(value: u64) -> Limit {
    Limit { value, policy: policy("p") }
}

fn error(state: KnobState) -> KnobError {
    KnobError { state, detail: "because".to_owned() }
}

/// A knob with a device behind it that follows each write, once a second.
struct Bench {
    managed: ManagedKnob,
    device: Found,
    now: Duration,
    changes: Vec<KnobChange>,
    /// All that was written.
    writes: Vec<KnobValue>,
    /// What the next writes come to instead.
    refuse: Option<KnobState>,
    /// Writes are taken and change nothing.
    locked: bool,
}

impl Bench {
    /// A clock of 0.8 to 4 GHz, open at 3 GHz.
    fn cpu() -> Self {
        Self::of(Knob::CpuFrequency(0), 800, 4000, 1, Some(3000))
    }

    fn gpu() -> Self {
        Self::of(Knob::GpuClock(Arc::from("GPU-1")), 210, 1980, 15, None)
    }

    fn of(knob: Knob, min: u64, max: u64, step: u64, value: Option<u64>) -> Self {
        let raw = match (&knob, value) {
            (Knob::GpuClock(_), _) => String::new(),
            (_, Some(value)) => value.to_string(),
            (_, None) => "max 100000".to_owned(),
        };
        let device = Found { min, max, step, value, raw, state: KnobState::Ok, epoch: 1 };
        let managed = ManagedKnob::new(knob);
        let now = Duration::from_secs(100);
        Self { managed, device, now, changes: Vec::new(), writes: Vec::new(), refuse: None, locked: false }
    }

    /// Somebody else, or the device itself.
    fn becomes(&mut self, value: Option<u64>) {
        self.device.value = value;
        self.device.raw = value.map_or_else(|| "max 100000".to_owned(), |value| value.to_string());
    }

    /// One tick.
    fn tick(&mut self, limit: Option<&Limit>) -> Action {
        self.now += SECOND;
        self.managed.observed.found = Some(self.device.clone());
        let action = self.managed.decide(self.now, limit, &mut self.changes);
        let value = match action {
            Action::Nothing | Action::Forget => return action,
            Action::Set(value) => KnobValue::Set(value),
            Action::Restore => KnobValue::Restore(self.managed.held().unwrap().original_raw.clone()),
        };
        self.managed.begin(self.now, &value);
        self.writes.push(value.clone());
        let readable = !matches!(self.managed.knob, Knob::GpuClock(_));
        let result = match self.refuse {
            Some(state) => Err(error(state)),
            None if self.locked => Ok(Found { state: KnobState::NotEffective, ..self.device.clone() }),
            None => {
                match &value {
                    KnobValue::Set(value) if readable => self.becomes(Some(*value)),
                    KnobValue::Restore(raw) if readable => self.becomes(raw.parse().ok()),
                    KnobValue::Set(_) | KnobValue::Restore(_) => {}
                }
                Ok(self.device.clone())
            }
        };
        self.managed.done(self.now, &value, result, &mut self.changes);
        action
    }

    fn ticks(&mut self, count: u32, limit: Option<&Limit>) {
        for _ in 0..count {
            self.tick(limit);
        }
    }

    fn kinds(&mut self) -> Vec<KnobChangeKind> {
        std::mem::take(&mut self.changes).into_iter().map(|change| change.kind).collect()
    }

    fn seen(&self) -> KnobNow {
        self.managed.now(self.now).unwrap()
    }
}

#[test]
fn nothing_is_written_without_a_limit() {
    let mut cpu = Bench::cpu();
    cpu.ticks(5, None);
    assert_eq!(cpu.writes, []);
    assert!(cpu.managed.held().is_none());
    assert!(!cpu.managed.is_shown());
}

#[test]
fn a_limit_is_written_once_and_its_end_gives_back_what_was() {
    let mut cpu = Bench::cpu();
    cpu.ticks(3, Some(&limit(2000)));
    assert_eq!(cpu.writes, [KnobValue::Set(2000)]);
    assert_eq!((cpu.seen().original, cpu.seen().current), (Some(3000), Some(2000)));
    cpu.ticks(3, None);
    assert_eq!(cpu.writes[1..], [KnobValue::Restore("3000".to_owned())]);
    assert_eq!(cpu.device.value, Some(3000));
    assert_eq!(cpu.kinds(), [KnobChangeKind::Restored]);
    let cap = cpu.managed.cap(cpu.now);
    assert_eq!((cap.writes.ok, cap.writes.restored, cap.state), (1, 1, KnobState::Ok));
}

#[test]
fn nothing_is_set_to_what_it_is_or_above_what_it_was() {
    let mut cpu = Bench::cpu();
    cpu.ticks(2, Some(&limit(3000)));
    cpu.ticks(2, Some(&limit(3500)));
    assert_eq!(cpu.writes, []);
    cpu.tick(Some(&limit(2000)));
    cpu.tick(Some(&limit(3500)));
    assert_eq!(cpu.writes, [KnobValue::Set(2000), KnobValue::Set(3000)]);
}

#[test]
fn a_limit_below_the_floor_is_the_floor_and_shown_as_clamped() {
    // FC-082; a quarter of 4000 is more than the device's least.
    let mut cpu = Bench::cpu();
    cpu.ticks(3, Some(&limit(1)));
    assert_eq!(cpu.writes, [KnobValue::Set(1000)]);
    assert!(cpu.managed.cap(cpu.now).clamped);
    assert_eq!(cpu.seen().min, 1000);
}

#[test]
fn raises_are_put_off_beyond_twenty_writes_a_minute_and_cuts_never() {
    let mut cpu = Bench::cpu();
    for round in 0..20 {
        cpu.tick(Some(&limit(2000 - round)));
    }
    assert_eq!(cpu.writes.len(), 20);
    cpu.ticks(10, Some(&limit(2500)));
    assert_eq!(cpu.writes.len(), 20, "put off");
    assert_eq!(cpu.managed.cap(cpu.now).writes.deferred, 1, "one value, once");
    cpu.tick(Some(&limit(1500)));
    assert_eq!(cpu.writes.last(), Some(&KnobValue::Set(1500)), "a cut");
    cpu.tick(None);
    assert_eq!(cpu.writes.last(), Some(&KnobValue::Restore("3000".to_owned())), "back is back");
    // A minute after the first writes.
    let mut cpu = Bench::cpu();
    for round in 0..20 {
        cpu.tick(Some(&limit(2000 - round)));
    }
    cpu.ticks(41, Some(&limit(2500)));
    assert_eq!(cpu.writes.last(), Some(&KnobValue::Set(2500)));
}

#[test]
fn another_policy_or_a_changed_one_need_not_wait() {
    for changed in [false, true] {
        let mut cpu = Bench::cpu();
        cpu.tick(Some(&limit(2000)));
        cpu.becomes(Some(2600));
        cpu.ticks(2, Some(&limit(2000)));
        if changed {
            cpu.managed.policy_changed(&policy("other"));
            cpu.tick(Some(&limit(2000)));
            assert_eq!(cpu.writes.len(), 1);
            cpu.managed.policy_changed(&policy("p"));
            cpu.tick(Some(&limit(2000)));
        } else {
            cpu.tick(Some(&Limit { policy: policy("q"), ..limit(2000) }));
        }
        assert_eq!(cpu.writes, [KnobValue::Set(2000), KnobValue::Set(2000)], "changed: {changed}");
    }
}

#[test]
fn a_value_that_went_back_is_set_again_and_left_alone_when_it_happens_all_the_time() {
    // systemd reverts cpu.max at daemon-reload.
    let mut quota = Bench::of(Knob::CpuQuota("pod".into()), 10, 2000, 10, None);
    quota.tick(Some(&limit(500)));
    quota.becomes(None);
    quota.ticks(2, Some(&limit(500)));
    assert_eq!(quota.writes, [KnobValue::Set(500), KnobValue::Set(500)]);
    assert_eq!(quota.kinds(), [KnobChangeKind::Reverted]);
    for _ in 0..5 {
        quota.becomes(None);
        quota.tick(Some(&limit(500)));
    }
    assert_eq!(quota.writes.len(), 6, "five times in a minute");
    assert_eq!(quota.kinds().last(), Some(&KnobChangeKind::Foreign));
    assert_eq!(quota.seen().state, KnobState::Yielded);
    assert!(quota.managed.held().is_none());
}

#[test]
fn a_pod_that_is_resized_is_held_from_its_new_limit_which_comes_back_fc_121() {
    let mut quota = Bench::of(Knob::CpuQuota("pod".into()), 10, 4000, 10, Some(1000));
    quota.tick(Some(&limit(50)));
    quota.becomes(Some(2000));
    assert_eq!(quota.tick(Some(&limit(50))), Action::Forget);
    assert_eq!((quota.seen().original, quota.seen().state), (Some(2000), KnobState::Ok));
    assert_eq!(quota.tick(Some(&limit(100))), Action::Set(100));
    assert_eq!(quota.kinds(), [KnobChangeKind::Resized]);
    // To less than what it is held at: nothing is to be written, or given back.
    quota.becomes(Some(70));
    quota.ticks(3, Some(&limit(100)));
    quota.ticks(3, None);
    assert_eq!((quota.writes.len(), quota.device.value), (2, Some(70)));
    // While it could not be given back.
    quota.becomes(Some(2000));
    quota.tick(Some(&limit(100)));
    quota.refuse = Some(KnobState::Error);
    quota.ticks(2, None);
    quota.refuse = None;
    quota.becomes(Some(3000));
    quota.ticks(60, None);
    assert_eq!((quota.device.value, quota.managed.is_restore_pending()), (Some(3000), false));
    // With another period, though the part of a CPU is the same.
    quota.tick(Some(&limit(100)));
    (quota.device.value, quota.device.raw) = (Some(3000), "30000 10000".to_owned());
    quota.ticks(2, Some(&limit(100)));
    assert_eq!(quota.managed.held().unwrap().original_raw, "30000 10000");
}

#[test]
fn a_resize_between_a_write_and_its_reading_back_is_no_value_of_the_agents() {
    let mut quota = Bench::of(Knob::CpuQuota("pod".into()), 10, 4000, 10, Some(1000));
    quota.becomes(Some(1000));
    quota.tick(Some(&limit(100)));
    quota.becomes(Some(2000));
    let shown = Found { state: KnobState::NotEffective, ..quota.device.clone() };
    quota.managed.begin(quota.now, &KnobValue::Set(80));
    quota.managed.done(quota.now, &KnobValue::Set(80), Ok(shown), &mut quota.changes);
    quota.ticks(2, Some(&limit(80)));
    assert_eq!(quota.device.value, Some(80));
    quota.ticks(2, None);
    assert_eq!(quota.device.value, Some(2000));
}

#[test]
fn a_quota_that_somebody_writes_again_and_again_is_left_to_them_for_a_minute() {
    let mut quota = Bench::of(Knob::CpuQuota("pod".into()), 10, 4000, 10, None);
    for millicpus in 2001..=2006 {
        quota.ticks(2, Some(&limit(500)));
        quota.becomes(Some(millicpus));
    }
    quota.tick(Some(&limit(500)));
    assert_eq!(quota.kinds(), [[KnobChangeKind::Resized].repeat(5), vec![KnobChangeKind::Foreign]].concat());
    assert_eq!((quota.writes.len(), quota.seen().state), (6, KnobState::Yielded));
    quota.ticks(55, Some(&limit(500)));
    assert_eq!((quota.writes.len(), quota.device.value), (6, Some(2006)));
    quota.ticks(245, Some(&limit(500)));
    assert_eq!((quota.writes.len(), quota.device.value), (7, Some(500)), "a higher one stands for a minute");
    quota.ticks(300, None);
    assert_eq!((quota.writes.len(), quota.device.value), (8, Some(2006)), "what they have set last comes back");
}

#[test]
fn a_refusal_is_told_once_and_tried_again_after_one_two_four_minutes_up_to_ten() {
    let mut cpu = Bench::cpu();
    cpu.refuse = Some(KnobState::Rejected);
    let mut tried = Vec::new();
    for second in 0_u32..2400 {
        if cpu.tick(Some(&limit(2000))) != Action::Nothing {
            tried.push(second);
        }
    }
    assert_eq!(tried, [0, 60, 180, 420, 900, 1500, 2100]);
    assert_eq!(cpu.kinds(), [KnobChangeKind::Refused(KnobState::Rejected)]);
    let cap = cpu.managed.cap(cpu.now);
    assert_eq!((cap.state, cap.writes.failed, cap.writes.ok), (KnobState::Rejected, 7, 0));
    assert!(cpu.managed.held().is_none(), "nothing was written");
    cpu.refuse = None;
    cpu.ticks(600, Some(&limit(2000)));
    assert_eq!(cpu.kinds(), [KnobChangeKind::Recovered]);
    assert_eq!(cpu.managed.cap(cpu.now).state, KnobState::Ok);
}

#[test]
fn a_device_that_was_out_of_reach_is_written_again_within_seconds() {
    let mut bench = Bench::gpu();
    bench.refuse = Some(KnobState::Unreachable);
    assert_eq!(bench.tick(Some(&limit(1200))), Action::Set(1200));
    // It stays wanted meanwhile, for it may have been set.
    assert_eq!(bench.managed.now(bench.now).unwrap().current, Some(1200));
    bench.refuse = None;
    let actions: Vec<Action> = (0..3).map(|_| bench.tick(Some(&limit(1200)))).collect();
    assert_eq!(actions.iter().filter(|action| **action == Action::Set(1200)).count(), 1, "{actions:?}");
}

#[test]
fn a_write_without_effect_is_not_repeated_every_loop() {
    // FC-086.
    let mut rapl = Bench::of(Knob::RaplLimit("intel-rapl:0".into()), 0, 145_000_000, 1, Some(145_000_000));
    rapl.locked = true;
    rapl.ticks(60, Some(&limit(90_000_000)));
    assert_eq!(rapl.writes.len(), 1);
    assert_eq!(rapl.seen().state, KnobState::NotEffective);
    assert_eq!(rapl.seen().current, Some(145_000_000));
    assert_eq!(rapl.kinds(), [KnobChangeKind::Refused(KnobState::NotEffective)]);
    assert_eq!(rapl.tick(None), Action::Forget, "it is as it was");
    assert_eq!(rapl.writes.len(), 1);
}

#[test]
fn what_a_device_makes_of_a_value_is_not_a_foreign_one() {
    let mut rapl = Bench::of(Knob::RaplLimit("intel-rapl:0".into()), 0, 145_000_000, 1, Some(145_000_000));
    rapl.tick(Some(&limit(90_060_000)));
    // Registers hold eighths of a watt.
    let shown = Found { value: Some(90_000_000), raw: "90000000".to_owned(), ..rapl.device.clone() };
    rapl.managed.done(rapl.now, &KnobValue::Set(90_060_000), Ok(shown), &mut rapl.changes);
    rapl.becomes(Some(90_000_000));
    rapl.ticks(5, Some(&limit(90_060_000)));
    assert_eq!((rapl.writes.len(), rapl.kinds()), (1, vec![]));
}

#[test]
fn a_clock_that_the_kernel_holds_lower_is_nobodys_and_is_given_back() {
    let mut cpu = Bench::cpu();
    cpu.tick(Some(&limit(2000)));
    cpu.managed.observed.lowered = true;
    cpu.becomes(Some(1700));
    cpu.ticks(5, Some(&limit(2000)));
    assert_eq!((cpu.writes.len(), cpu.kinds()), (1, vec![]));
    cpu.tick(None);
    assert_eq!(cpu.device.value, Some(3000));
}

#[test]
fn what_cannot_be_given_back_is_tried_ever_again_and_never_forgotten() {
    let mut cpu = Bench::cpu();
    cpu.tick(Some(&limit(2000)));
    cpu.refuse = Some(KnobState::Error);
    let mut tried = Vec::new();
    for second in 0_u32..200 {
        if cpu.tick(None) != Action::Nothing {
            tried.push(second);
        }
    }
    assert_eq!(tried, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    assert_eq!(cpu.kinds(), [KnobChangeKind::RestoreFailed]);
    assert!(cpu.managed.is_restore_pending());
    assert_eq!(cpu.managed.cap(cpu.now).state, KnobState::Error);
    cpu.refuse = None;
    cpu.ticks(60, None);
    assert_eq!(cpu.device.value, Some(3000));
    assert!(!cpu.managed.is_restore_pending());
    assert_eq!(cpu.kinds(), [KnobChangeKind::Restored]);
}

#[test]
fn a_knob_that_cannot_be_read_keeps_its_original() {
    let mut cpu = Bench::cpu();
    cpu.tick(Some(&limit(2000)));
    let well = cpu.device.clone();
    cpu.device = Found { value: None, raw: String::new(), state: KnobState::Unreachable, epoch: 0, ..well.clone() };
    cpu.refuse = Some(KnobState::Unreachable);
    cpu.ticks(5, Some(&limit(1500)));
    cpu.ticks(5, None);
    assert_eq!(cpu.managed.held().unwrap().original, Some(3000));
    (cpu.device, cpu.refuse) = (well, None);
    cpu.ticks(60, None);
    assert_eq!(cpu.device.value, Some(3000));
}

#[test]
fn a_device_that_began_anew_has_a_new_original() {
    let mut power = Bench::of(Knob::GpuPower("GPU-1".into()), 200, 700, 1, Some(500));
    power.tick(Some(&limit(300)));
    (power.device.epoch, power.device.value, power.device.raw) = (2, Some(700), "700".to_owned());
    power.ticks(3, Some(&limit(300)));
    assert_eq!(power.writes, [KnobValue::Set(300), KnobValue::Set(300)]);
    assert_eq!(power.seen().original, Some(700));
    // A limit that outlives the driver is still the agent's.
    power.device.epoch = 3;
    power.ticks(3, Some(&limit(300)));
    assert_eq!((power.writes.len(), power.seen().original), (2, Some(700)));
}

#[test]
fn a_driver_that_was_loaded_anew_has_forgotten_the_lock() {
    let mut gpu = Bench::gpu();
    gpu.ticks(3, Some(&limit(1200)));
    gpu.device.epoch = 2;
    gpu.ticks(3, Some(&limit(1200)));
    assert_eq!(gpu.writes, [KnobValue::Set(1200), KnobValue::Set(1200)]);
    gpu.tick(None);
    assert_eq!(gpu.writes[2..], [KnobValue::Restore(String::new())]);
}

#[test]
fn a_lock_that_the_driver_does_not_have_is_not_reset() {
    // FC-085: the reset is called only where the lock succeeded.
    let mut gpu = Bench::gpu();
    gpu.refuse = Some(KnobState::Unsupported);
    gpu.tick(Some(&limit(1200)));
    gpu.ticks(3, None);
    assert_eq!(gpu.writes, [KnobValue::Set(1200)]);
}

#[test]
fn a_lock_that_is_not_obeyed_is_set_once_more_and_then_without_effect() {
    // FC-085: success is no proof.
    let mut gpu = Bench::gpu();
    gpu.managed.observed.clock_mhz = Some(1410);
    gpu.ticks(30, Some(&limit(1200)));
    assert_eq!(gpu.writes, [KnobValue::Set(1200), KnobValue::Set(1200)]);
    assert_eq!(gpu.kinds(), [KnobChangeKind::Reverted, KnobChangeKind::Refused(KnobState::NotEffective)]);
    assert_eq!(gpu.managed.cap(gpu.now).state, KnobState::NotEffective);
    gpu.ticks(600, Some(&limit(1200)));
    assert!(gpu.writes.len() < 8, "{}", gpu.writes.len());
    assert_eq!(gpu.kinds(), [], "said already");
    // One step above is how clocks are.
    gpu.managed.observed.clock_mhz = Some(1215);
    gpu.ticks(6, Some(&limit(1200)));
    assert_eq!(gpu.kinds(), [KnobChangeKind::Recovered]);
}

#[test]
fn a_write_that_is_on_its_way_is_waited_for() {
    let mut gpu = Bench::gpu();
    gpu.managed.observed.found = Some(gpu.device.clone());
    let set = gpu.managed.decide(gpu.now, Some(&limit(1200)), &mut gpu.changes);
    assert_eq!(set, Action::Set(1200));
    gpu.managed.begin(gpu.now, &KnobValue::Set(1200));
    for _ in 0..10 {
        assert_eq!(gpu.tick(None), Action::Nothing);
    }
    gpu.managed.done(gpu.now, &KnobValue::Set(1200), Ok(gpu.device.clone()), &mut gpu.changes);
    assert_eq!(gpu.tick(None), Action::Restore);
}

#[test]
fn a_first_write_without_an_answer_may_have_been_made_and_is_restored() {
    let mut gpu = Bench::gpu();
    gpu.managed.observed.found = Some(gpu.device.clone());
    assert_eq!(gpu.managed.decide(gpu.now, Some(&limit(1200)), &mut gpu.changes), Action::Set(1200));
    gpu.managed.begin(gpu.now, &KnobValue::Set(1200));
    // The device answers otherwise for 30 s.
    let actions: Vec<Action> = (0..30).map(|_| gpu.tick(None)).collect();
    assert_eq!(actions[..29], [Action::Nothing].repeat(29));
    assert_eq!(actions[29], Action::Restore);
}

#[test]
fn a_failure_to_restore_ends_with_what_was_to_be_restored() {
    let mut power = Bench::of(Knob::GpuPower("GPU-1".into()), 200, 700, 1, Some(500));
    power.tick(Some(&limit(300)));
    power.refuse = Some(KnobState::Error);
    power.ticks(2, None);
    assert_eq!(power.managed.cap(power.now).state, KnobState::Error);
    // The device began anew: there is nothing to restore.
    (power.device.epoch, power.device.value, power.device.raw) = (2, Some(700), "700".to_owned());
    assert_eq!(power.tick(None), Action::Forget);
    assert_eq!(power.managed.cap(power.now).state, KnobState::Ok);
}
