//! Whether what shows is the agent's, what was before, or somebody else's.

use std::time::Duration;

use super::change::{KnobChange, KnobChangeKind};
use super::{Action, KnobEvent, ManagedKnob, Theirs, text};
use crate::capping::knob::{Found, Knob};

impl ManagedKnob {
    /// Takes what shows. `Some`: the knob is the agent's no longer, or not for now.
    pub(super) fn examine(&mut self, now: Duration, found: &Found, changes: &mut Vec<KnobChange>) -> Option<Action> {
        let held = self.phase.held()?;
        let (readable, is_quota) = (self.knob.is_readable(), matches!(self.knob, Knob::CpuQuota(_)));
        let is_ours = found.value.is_some_and(|value| held.is_ours(value));
        let (wanted, confirmed) = (self.wanted.is_some(), held.is_confirmed());
        if held.epoch.is_some_and(|epoch| epoch != found.epoch) {
            if readable && (!is_ours || is_quota) {
                // The device began anew: what it shows now is what it was before anything was written.
                if wanted {
                    self.report(KnobChangeKind::Reverted, "the device was reset".to_owned(), changes);
                }
                self.phase.on(KnobEvent::Open);
                return Some(Action::Forget);
            }
            if !readable && confirmed && wanted {
                self.report(KnobChangeKind::Reverted, "the driver was loaded again".to_owned(), changes);
            }
            if !readable {
                self.phase.on(KnobEvent::Undone);
            }
            self.phase.on(KnobEvent::Epoch(found.epoch));
            return None;
        }
        // A quota in another period is another limit.
        let is_back = found.raw == held.original_raw || (!is_quota && found.value == held.original);
        // A run that was killed may not have noted what the device made of its value.
        // The kernel keeps a quota as it is written, and one in another period is a thousandth of a CPU off at most.
        let off = |ours: u64| if is_quota { 1 } else { found.step.max(ours / 64) };
        let close = |value: u64| held.ours.iter().any(|&ours| value.abs_diff(ours) <= off(ours));
        let is_rounded = !confirmed && found.value.is_some_and(close);
        let written = held.written;
        self.phase.on(KnobEvent::Epoch(found.epoch));
        if !readable {
            return None;
        }
        if is_ours {
            self.phase.on(KnobEvent::Shown);
            return None;
        }
        if is_back {
            self.phase.on(KnobEvent::Undone);
            if confirmed && wanted {
                let often = self.rival.reverted(now);
                let shown = format!("it went back to {}", text(&self.knob, found.value));
                if often {
                    return Some(self.give_way(now, &format!("{shown} repeatedly"), changes));
                }
                self.report(KnobChangeKind::Reverted, shown, changes);
            }
            return None;
        }
        if self.observed.lowered || is_rounded {
            return None;
        }
        let [shown, written] = [found.value, Some(written)].map(|value| text(&self.knob, value));
        let detail = format!("it is {shown}, but {written} was written");
        if is_quota {
            return Some(self.resized(now, &detail, changes));
        }
        Some(self.give_way(now, &detail, changes))
    }

    /// The kubelet resizes pods in place: a quota that somebody else writes is the pod's new limit. That is restored later,
    /// and the budget holds the pod below it from the next tick on.
    fn resized(&mut self, now: Duration, detail: &str, changes: &mut Vec<KnobChange>) -> Action {
        if self.wanted.is_some() && self.rival.reverted(now) {
            return self.give_way(now, &format!("{detail}, repeatedly"), changes);
        }
        self.report(KnobChangeKind::Resized, detail.to_owned(), changes);
        self.phase.on(KnobEvent::Open);
        self.refusal = None;
        Action::Forget
    }

    /// Somebody else writes it: their value is left alone, and is the original if it is ever written again.
    fn give_way(&mut self, now: Duration, detail: &str, changes: &mut Vec<KnobChange>) -> Action {
        let Some(held) = self.phase.held() else { return Action::Nothing };
        let (policy, written) = (held.policy.clone(), held.written);
        let shown = self.observed.found.as_ref().and_then(|found| found.value);
        let until = self.rival.wrote(now, shown, written);
        let theirs = Theirs::Value { until, policy, shown, written };
        // Without a limit nothing is written over it.
        let rule = self.wanted.as_ref().and_then(|_| theirs.rule(&self.knob, now));
        let rule = rule.unwrap_or_else(|| "it stays".to_owned());
        self.report(KnobChangeKind::Foreign, format!("{detail}; {rule}"), changes);
        self.phase.on(KnobEvent::Yield(theirs));
        Action::Forget
    }
}
