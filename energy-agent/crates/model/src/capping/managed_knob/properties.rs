//! Whatever happens in between: a knob that nobody else writes comes back to what it was, and nothing is written that
//! must not be.

use proptest::prelude::*;

use super::*;
use crate::capping::knob::KnobValue;

const ORIGINAL: u64 = 3000;
const FLOOR: u64 = 1000;

#[derive(Clone, Copy, Debug)]
enum Event {
    Limit(u64),
    Open,
    /// Writes fail from now on, or work again.
    Fail(bool),
    /// Something puts back what was there before the agent.
    Revert,
    /// The agent is killed before or after its next write reaches the device, and started again.
    Kill {
        written: bool,
    },
    Pass(u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_u64..5000).prop_map(Event::Limit),
        2 => Just(Event::Open),
        1 => any::<bool>().prop_map(Event::Fail),
        1 => Just(Event::Revert),
        2 => any::<bool>().prop_map(|written| Event::Kill { written }),
        1 => (1_u32..700).prop_map(Event::Pass),
    ]
}

/// A clock, its file, and the journal on disk.
struct World {
    managed: ManagedKnob,
    device: u64,
    entry: Option<JournalEntry>,
    fails: bool,
    kill: Option<bool>,
    now: Duration,
}

impl World {
    fn found(&self) -> Found {
        let value = self.device;
        Found {
            min: 800,
            max: 4000,
            step: 1,
            value: Some(value),
            raw: value.to_string(),
            state: KnobState::Ok,
            epoch: 1,
        }
    }

    fn restart(&mut self) {
        self.managed = self.entry.as_ref().map_or_else(|| ManagedKnob::new(Knob::CpuFrequency(0)), ManagedKnob::adopt);
        self.now = Duration::from_secs(1);
    }

    fn tick(&mut self, limit: Option<&Limit>) {
        self.now += Duration::from_secs(1);
        let found = self.found();
        self.managed.observed.found = Some(found.clone());
        let value = match self.managed.decide(self.now, limit, &mut Vec::new()) {
            Action::Nothing => return,
            Action::Forget => return self.entry = None,
            Action::Restore => KnobValue::Restore(self.managed.held().unwrap().original_raw.clone()),
            Action::Set(value) => {
                assert!((FLOOR..=ORIGINAL).contains(&value), "{value}");
                assert_ne!(value, self.device, "it is that already");
                let policy = &limit.unwrap().policy;
                match &mut self.entry {
                    Some(entry) => entry.intend(value, found.value, policy),
                    None => self.entry = Some(JournalEntry::new(&self.managed.knob, &found, value, policy, "b", 0)),
                }
                assert_eq!(
                    self.entry.as_ref().unwrap().original,
                    Some(ORIGINAL),
                    "what the agent wrote is no original"
                );
                KnobValue::Set(value)
            }
        };
        let kill = self.kill.take();
        if kill == Some(false) {
            return self.restart();
        }
        self.managed.begin(self.now, &value);
        if !self.fails {
            self.device = match &value {
                KnobValue::Set(value) => *value,
                KnobValue::Restore(raw) => raw.parse().unwrap(),
            };
        }
        if kill == Some(true) {
            return self.restart();
        }
        let error = KnobError { state: KnobState::Error, detail: String::new() };
        let result = if self.fails { Err(error) } else { Ok(self.found()) };
        if self.managed.done(self.now, &value, result, &mut Vec::new()) {
            self.entry = None;
        }
    }
}

proptest! {
    #[test]
    fn what_nobody_else_writes_comes_back(events in prop::collection::vec(event(), 1..60)) {
        let mut world = World {
            managed: ManagedKnob::new(Knob::CpuFrequency(0)),
            device: ORIGINAL,
            entry: None,
            fails: false,
            kill: None,
            now: Duration::ZERO,
        };
        let mut limit = None;
        for event in events {
            match event {
                Event::Limit(value) => {
                    let policy = PolicyName { namespace: "".into(), name: "p".into(), ..PolicyName::default() };
                    limit = Some(Limit { value, policy });
                }
                Event::Open => limit = None,
                Event::Fail(fails) => world.fails = fails,
                Event::Revert => world.device = ORIGINAL,
                Event::Kill { written } => world.kill = Some(written),
                Event::Pass(seconds) => (0..seconds).for_each(|_| world.tick(limit.as_ref())),
            }
            world.tick(limit.as_ref());
            let stays = world.device == ORIGINAL || world.entry.is_some();
            prop_assert!(stays, "lowered, and the journal does not know it");
        }
        (world.fails, world.kill) = (false, None);
        // The longest wait between two tries to restore is a minute.
        (0..62).for_each(|_| world.tick(None));
        prop_assert_eq!(world.device, ORIGINAL);
        prop_assert!(world.managed.held().is_none() && world.entry.is_none());
    }
}
