//! Turns the last answer of each source into the active policies: the last good version of each, by its document.
//! Pure; what is missing from an answer is deleted, what could not be asked or understood is kept. A document that is missing
//! may have become another one beside it: its policies are kept while that one is not understood.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use energy_model::capping::policy::document::{PolicyDocument, parse};
use energy_model::capping::policy::{Authority, Mode, Policy, PolicyName, object};
use energy_model::capping::source::{ActivePolicies, Sourced};
use energy_model::capping::status::SourceState;
use energy_model::capping::status::{DocumentPlace, Problem};
use energy_model::meter_state::Reason;

use crate::panics;

/// The text of a document, or why it cannot be read.
pub type DocumentText = Result<Arc<str>, String>;
/// All documents of a source.
pub type Documents = BTreeMap<DocumentPlace, DocumentText>;

/// What was said so far.
#[derive(Clone, Debug)]
pub struct PolicyStore {
    sources: Vec<StoredSource>,
    /// The highest mode that a policy in an object has.
    most: Mode,
}

#[derive(Clone, Debug)]
struct StoredSource {
    state: SourceState,
    answered: bool,
    documents: BTreeMap<DocumentPlace, StoredDocument>,
}

#[derive(Clone, Debug, Default)]
struct StoredDocument {
    content: Option<DocumentText>,
    /// The newest good version of each policy, and those kept from earlier ones.
    policies: BTreeMap<PolicyName, Arc<Policy>>,
    problems: Vec<Complaint>,
}

#[derive(Clone, Debug)]
struct Complaint {
    policy: Option<PolicyName>,
    message: String,
    kept: bool,
}

/// Whether the places are documents of the same folder or ConfigMap.
fn are_beside(one: &DocumentPlace, other: &DocumentPlace) -> bool {
    match (one, other) {
        (DocumentPlace::File(path), DocumentPlace::File(other)) => {
            Path::new(path).parent() == Path::new(other).parent()
        }
        (
            DocumentPlace::ConfigMap { namespace, name, .. },
            DocumentPlace::ConfigMap { namespace: other, name: of, .. },
        ) => (namespace, name) == (other, of),
        (DocumentPlace::File(_), _) | (DocumentPlace::ConfigMap { .. }, _) | (DocumentPlace::Object { .. }, _) => false,
    }
}

impl PolicyStore {
    /// Of sources by these titles, none of which has answered. No object has a higher mode than `most`.
    pub fn new(titles: &[String], most: Mode) -> Self {
        let source = |title: &String| StoredSource {
            state: SourceState {
                source: Arc::from(&**title),
                up: false,
                reason: Reason::Connecting,
                detail: "no answer yet".to_owned(),
            },
            answered: false,
            documents: BTreeMap::new(),
        };
        Self { sources: titles.iter().map(source).collect(), most }
    }

    /// The source of this number answers with all the documents it has. One that is the same as before is not read again.
    pub fn tell(&mut self, source: usize, said: Documents) {
        let Some(source) = self.sources.get_mut(source) else { return };
        let (here, gone) = std::mem::take(&mut source.documents).into_iter().partition(|(at, _)| said.contains_key(at));
        source.documents = here;
        let mut changed = Vec::new();
        for (place, content) in said {
            let entry = source.documents.entry(place.clone()).or_default();
            if entry.content.as_ref() != Some(&content) {
                entry.take(&place, content, self.most);
                changed.push(place);
            }
        }
        source.keep_moved(&gone, &changed, self.most);
        source.answered = true;
        let (documents, policies) =
            (source.documents.len(), source.documents.values().map(|entry| entry.policies.len()).sum::<usize>());
        source.state.up = true;
        source.state.reason = if documents == 0 { Reason::Absent } else { Reason::Ok };
        source.state.detail = match documents {
            0 => "no document found".to_owned(),
            _ => format!("policies: {policies}, documents: {documents}"),
        };
    }

    /// The source of this number cannot be asked: what it said before holds.
    pub fn fail(&mut self, source: usize, reason: Reason, detail: String) {
        if let Some(source) = self.sources.get_mut(source) {
            (source.state.up, source.state.reason, source.state.detail) = (false, reason, detail);
        }
    }

    /// What follows from it all.
    pub fn in_force(&self) -> ActivePolicies {
        // A ConfigMap that is followed by name and by label is one.
        let mut documents: BTreeMap<&DocumentPlace, &StoredDocument> = BTreeMap::new();
        for (place, entry) in self.sources.iter().flat_map(|source| &source.documents) {
            documents.entry(place).or_insert(entry);
        }
        let mut policies: BTreeMap<PolicyName, Sourced> = BTreeMap::new();
        let mut problems = Vec::new();
        for (place, entry) in documents {
            let source: Arc<str> = Arc::from(place.to_string());
            problems.extend(entry.problems.iter().map(|Complaint { policy, message, kept }| Problem {
                policy: policy.clone(),
                place: place.clone(),
                message: message.clone(),
                kept: *kept,
            }));
            for (name, policy) in &entry.policies {
                if let Some(first) = policies.get(name) {
                    let message = format!(
                        "{} also has a policy with this name, which comes first and is active; remove or rename one",
                        first.source
                    );
                    let place = place.clone();
                    problems.push(Problem { policy: Some(name.clone()), place, message, kept: false });
                } else {
                    let (policy, source) = (Arc::clone(policy), Arc::clone(&source));
                    policies.insert(name.clone(), Sourced { policy, source });
                }
            }
        }
        ActivePolicies {
            policies,
            problems,
            sources: self.sources.iter().map(|source| source.state.clone()).collect(),
            complete: self.sources.iter().all(|source| source.answered),
        }
    }
}

impl StoredSource {
    /// A document that is gone may have been renamed, or put into another one of its folder or ConfigMap. Where that one has
    /// changed and cannot be understood, it keeps the policies that are in no other document.
    fn keep_moved(&mut self, gone: &BTreeMap<DocumentPlace, StoredDocument>, changed: &[DocumentPlace], most: Mode) {
        for place in changed {
            let present: BTreeSet<PolicyName> =
                self.documents.values().flat_map(|entry| entry.policies.keys().cloned()).collect();
            let beside = gone.iter().filter(|(was, _)| are_beside(was, place)).flat_map(|(_, entry)| &entry.policies);
            let moved: Vec<_> = beside.filter(|(name, _)| !present.contains(*name)).collect();
            let Some(entry) = self.documents.get_mut(place).filter(|entry| !entry.problems.is_empty()) else {
                continue;
            };
            if let (false, Some(content)) = (moved.is_empty(), entry.content.clone()) {
                entry.policies.extend(moved.into_iter().map(|(name, policy)| (name.clone(), Arc::clone(policy))));
                entry.take(place, content, most);
            }
        }
    }
}

impl StoredDocument {
    /// Another version of the document.
    fn take(&mut self, place: &DocumentPlace, content: DocumentText, most: Mode) {
        let read = |text: &str| match place {
            DocumentPlace::File(_) => parse(text, ""),
            DocumentPlace::ConfigMap { namespace, .. } => parse(text, namespace),
            DocumentPlace::Object { namespace, name, .. } => of_object(namespace, name, text, most),
        };
        let refused = |message| PolicyDocument { policies: Vec::new(), problems: vec![(None, message)] };
        let document = match &content {
            // No text may stop the others.
            Ok(text) => panics::caught(|| read(text))
                .unwrap_or_else(|_| refused("cannot be read: the agent's policy reader failed".to_owned())),
            Err(problem) => refused(problem.clone()),
        };
        self.content = Some(content);
        let mut earlier = std::mem::take(&mut self.policies);
        for policy in document.policies {
            let same = earlier.remove(&policy.name).filter(|earlier| **earlier == policy);
            self.policies.insert(policy.name.clone(), same.unwrap_or_else(|| Arc::new(policy)));
        }
        // One without a name goes by its place, and may be a bad version of any.
        let is_unknown = |policy: &Option<PolicyName>| policy.as_ref().is_none_or(|policy| policy.name.contains('['));
        let broken = document.problems.iter().any(|(policy, _)| is_unknown(policy));
        let refused: BTreeSet<&PolicyName> =
            document.problems.iter().filter_map(|(policy, _)| policy.as_ref()).collect();
        earlier.retain(|name, _| broken || refused.contains(name));
        self.problems = document
            .problems
            .iter()
            .map(|(policy, message)| Complaint {
                policy: policy.clone(),
                message: message.clone(),
                kept: match policy {
                    Some(name) if !is_unknown(policy) => earlier.contains_key(name),
                    _ => !earlier.is_empty(),
                },
            })
            .collect();
        self.policies.append(&mut earlier);
    }
}

/// What is in a PowerCappingPolicy, whose spec is `text`.
fn of_object(namespace: &str, name: &str, text: &str, most: Mode) -> PolicyDocument {
    let name = PolicyName { authority: Authority::Tenant, namespace: namespace.into(), name: name.into() };
    let spec = serde_json::from_str(text).unwrap_or_default();
    match object::policy(name.clone(), &spec) {
        Ok(mut policy) => {
            policy.mode = policy.mode.min(most);
            PolicyDocument { policies: vec![policy], problems: Vec::new() }
        }
        // One for an object, however much is wrong with it.
        Err(problems) => PolicyDocument { policies: Vec::new(), problems: vec![(Some(name), problems.join("; "))] },
    }
}

#[cfg(test)]
mod tests;
