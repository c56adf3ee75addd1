//! Refusals on their way to becoming Events: once each, and only where they concern a pod. Every node reads the objects of all
//! tenants, and thousands of nodes would post thousands of Events about one of them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use energy_model::capping::status::Problem;

/// Refusals that no Event has told so far.
#[derive(Debug, Default)]
pub struct Untold(Vec<Problem>);

impl Untold {
    /// A source said `before`, and says `now`.
    pub fn note(&mut self, before: &[Problem], now: &[Problem]) {
        let [known, there]: [HashSet<&Problem>; 2] = [before, now].map(|problems| problems.iter().collect());
        let is_gone = |problem: &Problem| known.contains(problem) && !there.contains(problem);
        self.0.retain(|problem| !is_gone(problem));
        self.0.extend(now.iter().filter(|problem| !known.contains(problem)).cloned());
    }

    /// Those to tell now, on a node with pods in these namespaces. The others wait until there is one, as pods come later.
    pub fn take(&mut self, namespaces: &BTreeSet<Arc<str>>) -> Vec<Problem> {
        self.0.extract_if(.., |problem| problem.concerns(namespaces)).collect()
    }
}

#[cfg(test)]
mod tests {
    use energy_model::capping::policy::{Authority, PolicyName};
    use energy_model::capping::status::DocumentPlace;

    use super::*;

    fn problem(authority: Authority, namespace: &str, message: &str) -> Problem {
        let (policy, kind) = (Some(PolicyName { authority, namespace: namespace.into(), name: "p".into() }), "x");
        let place = DocumentPlace::Object { kind, namespace: namespace.to_owned(), name: "p".to_owned() };
        Problem { policy, place, message: message.to_owned(), kept: false }
    }

    #[test]
    fn a_refusal_is_told_once_and_only_where_its_namespace_has_pods() {
        let tenants = problem(Authority::Tenant, "ml", "no");
        let all = [problem(Authority::Admin, "", "no"), problem(Authority::Budget, "", "no"), tenants.clone()];
        let mut untold = Untold::default();
        untold.note(&[], &all);
        assert_eq!(untold.take(&BTreeSet::from(["other".into()])), all[..2]);
        // A pod comes.
        let here = BTreeSet::from(["ml".into()]);
        assert_eq!(untold.take(&here), [tenants]);
        untold.note(&all, &all);
        assert_eq!(untold.take(&here), []);
    }

    #[test]
    fn what_is_mended_before_a_pod_comes_is_told_no_more() {
        let (old, new) = (problem(Authority::Tenant, "ml", "old"), problem(Authority::Tenant, "ml", "new"));
        let mut untold = Untold::default();
        untold.note(&[], std::slice::from_ref(&old));
        // Of another source.
        untold.note(&[], &[problem(Authority::Budget, "", "no")]);
        untold.note(&[old], std::slice::from_ref(&new));
        assert_eq!(untold.take(&BTreeSet::from(["ml".into()])), [problem(Authority::Budget, "", "no"), new]);
    }
}
