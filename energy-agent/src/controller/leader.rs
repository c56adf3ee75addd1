//! Which replica leads: a Lease that the leader renews, and that another replica takes when it has not changed for its
//! duration by that replica's own clock. Pure: what to write is returned.

use std::time::{Duration, Instant, SystemTime};

use energy_model::resources::object::KubeObject;
use serde_json::{Value, json};

#[derive(Debug)]
pub struct Leader {
    namespace: String,
    lease: String,
    identity: String,
    duration: Duration,
    /// The Lease's version as it was last seen, and since when.
    seen: Option<(String, Instant)>,
    holder: Option<String>,
    term: Option<LeaderTerm>,
}

/// Leadership, as far as it is known.
#[derive(Debug)]
struct LeaderTerm {
    version: String,
    transitions: i64,
    acquired: SystemTime,
    /// After this, another replica may lead.
    until: Instant,
}

/// What to do about the Lease.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Another one leads.
    Wait,
    Create(Value),
    Replace(Value),
}

impl Leader {
    pub const fn new(namespace: String, lease: String, identity: String, duration: Duration) -> Self {
        Self { namespace, lease, identity, duration, seen: None, holder: None, term: None }
    }

    /// It may write now.
    pub fn leads(&self, now: Instant) -> bool {
        self.term.as_ref().is_some_and(|term| now < term.until)
    }

    /// When it may no longer write; long ago where it does not lead.
    pub fn until(&self) -> Instant {
        self.term.as_ref().map_or_else(Instant::now, |term| term.until)
    }

    /// It led, and nobody else is known to.
    pub const fn has_term(&self) -> bool {
        self.term.is_some()
    }

    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Who leads, as far as is known.
    pub fn holder(&self) -> Option<&str> {
        self.holder.as_deref()
    }

    /// How often the Lease has changed hands; part of the epoch.
    pub fn transitions(&self) -> i64 {
        self.term.as_ref().map_or(0, |term| term.transitions)
    }

    /// What to do about the Lease that was just read; `None`: there is none.
    pub fn plan(&mut self, now: Instant, lease: Option<&KubeObject>, wall: SystemTime) -> Step {
        let Some(lease) = lease else { return Step::Create(self.object(None, 0, wall, wall)) };
        let version = &lease.metadata.resource_version;
        let holder = lease.spec["holderIdentity"].as_str().unwrap_or_default();
        self.holder = Some(holder.to_owned());
        let since = match &self.seen {
            Some((seen, since)) if seen == version => *since,
            _ => {
                self.seen = Some((version.clone(), now));
                now
            }
        };
        // One of this name that ended before it could say so was this replica.
        let is_free = holder.is_empty() || holder == self.identity || now.duration_since(since) >= self.duration;
        if !is_free {
            return Step::Wait;
        }
        let transitions = lease.spec["leaseTransitions"].as_i64().unwrap_or(0).max(0) + 1;
        Step::Replace(self.object(Some(version), transitions, wall, wall))
    }

    /// The Lease with a new time, while it leads or led and nobody else is known to.
    pub fn renewal(&self, wall: SystemTime) -> Option<Value> {
        let LeaderTerm { version, transitions, acquired, .. } = self.term.as_ref()?;
        Some(self.object(Some(version), *transitions, *acquired, wall))
    }

    /// The API server has what was planned; `asked`: when it was sent.
    pub fn wrote(&mut self, asked: Instant, lease: &KubeObject) {
        let acquired = self.term.take().map_or_else(SystemTime::now, |term| term.acquired);
        self.term = Some(LeaderTerm {
            version: lease.metadata.resource_version.clone(),
            transitions: lease.spec["leaseTransitions"].as_i64().unwrap_or(0),
            acquired,
            // Others take it a third of the duration later.
            until: asked + self.duration * 2 / 3,
        });
        self.holder = Some(self.identity.clone());
        self.seen = None;
    }

    /// Somebody else has written the Lease, or a level with a later epoch.
    pub fn lost(&mut self) {
        self.term = None;
    }

    /// The Lease without a holder, so that another replica need not wait for its end.
    pub fn farewell(&self, wall: SystemTime) -> Option<Value> {
        let mut lease = self.renewal(wall)?;
        lease["spec"]["holderIdentity"] = json!("");
        Some(lease)
    }

    fn object(&self, version: Option<&str>, transitions: i64, acquired: SystemTime, wall: SystemTime) -> Value {
        let time = |at| humantime::format_rfc3339_micros(at).to_string();
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": self.namespace, "name": self.lease},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self.duration.as_secs().max(1),
                "acquireTime": time(acquired),
                "renewTime": time(wall),
                "leaseTransitions": transitions,
            },
        });
        if let Some(version) = version {
            lease["metadata"]["resourceVersion"] = json!(version);
        }
        lease
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn leader(identity: &str) -> Leader {
        Leader::new("ns".to_owned(), "lease".to_owned(), identity.to_owned(), 15 * SECOND)
    }

    fn lease(version: &str, holder: &str, transitions: i64) -> KubeObject {
        let lease = json!({
            "metadata": {"name": "lease", "resourceVersion": version},
            "spec": {"holderIdentity": holder, "leaseTransitions": transitions, "renewTime": "1999-01-01T00:00:00Z"},
        });
        serde_json::from_value(lease).unwrap()
    }

    #[test]
    fn a_lease_is_taken_when_it_has_not_changed_for_its_duration_by_the_own_clock() {
        let (mut b, start, wall) = (leader("b"), Instant::now(), SystemTime::now());
        // The time in it is years old, which says nothing.
        assert_eq!(b.plan(start, Some(&lease("1", "a", 3)), wall), Step::Wait);
        assert_eq!(b.plan(start + 14 * SECOND, Some(&lease("1", "a", 3)), wall), Step::Wait);
        // It was renewed.
        assert_eq!(b.plan(start + 15 * SECOND, Some(&lease("2", "a", 3)), wall), Step::Wait);
        assert_eq!(b.plan(start + 29 * SECOND, Some(&lease("2", "a", 3)), wall), Step::Wait);
        let Step::Replace(taken) = b.plan(start + 30 * SECOND, Some(&lease("2", "a", 3)), wall) else { panic!() };
        assert_eq!(
            (
                &taken["metadata"]["resourceVersion"],
                &taken["spec"]["holderIdentity"],
                &taken["spec"]["leaseTransitions"]
            ),
            (&json!("2"), &json!("b"), &json!(4))
        );
        assert!(!b.leads(start + 30 * SECOND), "not before the server has it");
        b.wrote(start + 30 * SECOND, &lease("3", "b", 4));
        assert!(b.leads(start + 39 * SECOND) && !b.leads(start + 40 * SECOND), "ten of fifteen seconds");
        assert_eq!((b.transitions(), b.holder()), (4, Some("b")));
    }

    #[test]
    fn a_lease_that_was_given_up_or_is_gone_is_taken_at_once() {
        let (now, wall) = (Instant::now(), SystemTime::now());
        assert!(matches!(leader("b").plan(now, Some(&lease("1", "", 3)), wall), Step::Replace(_)));
        assert!(matches!(leader("b").plan(now, Some(&lease("1", "b", 3)), wall), Step::Replace(_)));
        let Step::Create(lease) = leader("b").plan(now, None, wall) else { panic!() };
        assert_eq!(lease["metadata"]["resourceVersion"], Value::Null);
    }

    #[test]
    fn a_leader_that_has_lost_renews_nothing() {
        let (mut a, now, wall) = (leader("a"), Instant::now(), SystemTime::now());
        a.wrote(now, &lease("1", "a", 0));
        assert_eq!(a.renewal(wall).unwrap()["metadata"]["resourceVersion"], "1");
        assert_eq!(a.farewell(wall).unwrap()["spec"]["holderIdentity"], "");
        a.lost();
        assert_eq!((a.renewal(wall), a.leads(now), a.has_term()), (None, false, false));
    }
}
