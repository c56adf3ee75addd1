use std::fmt::Write as _;

use energy_model::capping::policy::Amount;

use super::*;

/// `a=100 b=200` are two policies with their watts, `b=?` one that is refused, `=1` one without a name, `!` no YAML.
fn yaml(text: &str) -> String {
    if text == "!" {
        return "version: 1\npolicies: [".to_owned();
    }
    let mut yaml = "version: 1\npolicies:\n".to_owned();
    for (name, watts) in text.split_whitespace().map(|word| word.split_once('=').unwrap()) {
        let name = if name.is_empty() { "nam: a".to_owned() } else { format!("name: {name}") };
        let watts = if watts.starts_with('?') { "many" } else { watts };
        writeln!(yaml, "- {{{name}, selector: {{selectAll: true}}, budget: {{watts: {watts}, components: [cpu]}}}}")
            .unwrap();
    }
    if text.is_empty() { "version: 1\npolicies: []".to_owned() } else { yaml }
}

fn policy_name(namespace: &str, name: &str) -> PolicyName {
    PolicyName { namespace: namespace.into(), name: name.into(), ..PolicyName::default() }
}

fn file(name: &str) -> DocumentPlace {
    DocumentPlace::File(format!("/policies/{name}"))
}

fn map(name: &str, key: &str) -> DocumentPlace {
    DocumentPlace::ConfigMap { namespace: "energy".to_owned(), name: name.to_owned(), key: key.to_owned() }
}

fn said(documents: &[(DocumentPlace, &str)]) -> Documents {
    documents.iter().map(|(place, text)| (place.clone(), Ok(Arc::from(yaml(text))))).collect()
}

/// Name, watts and source of the active policies.
fn in_force(book: &PolicyStore) -> Vec<String> {
    let text = |(name, sourced): (&PolicyName, &Sourced)| match sourced.policy.budget.amount {
        Amount::Watts(watts) => format!("{name}={watts} {}", sourced.source),
        Amount::PercentOfPeak { .. } => unreachable!(),
    };
    book.in_force().policies.iter().map(text).collect()
}

/// Whose, and whether an earlier version is kept.
fn problems(book: &PolicyStore) -> Vec<(String, bool)> {
    let text = |problem: &Problem| {
        let policy = problem.policy.as_ref().map_or_else(|| "-".to_owned(), PolicyName::to_string);
        (policy, problem.kept)
    };
    let mut problems: Vec<_> = book.in_force().problems.iter().map(text).collect();
    problems.dedup();
    problems
}

fn problem(policy: &str, kept: bool) -> (String, bool) {
    (policy.to_owned(), kept)
}

fn one_file() -> PolicyStore {
    PolicyStore::new(&["file /policies".to_owned()], Mode::Enforce)
}

#[test]
fn a_refused_policy_keeps_its_last_good_version_and_the_others_go_on() {
    // FC-078.
    let mut book = one_file();
    book.tell(0, said(&[(file("p"), "a=1 b=2")]));
    book.tell(0, said(&[(file("p"), "a=? b=3 c=?")]));
    assert_eq!(in_force(&book), ["a=1 file /policies/p", "b=3 file /policies/p"]);
    assert_eq!(problems(&book), [problem("a", true), problem("c", false)]);
    // Kept over another bad edit, and until a good one.
    book.tell(0, said(&[(file("p"), "a=?? b=3")]));
    assert_eq!(in_force(&book), ["a=1 file /policies/p", "b=3 file /policies/p"]);
    book.tell(0, said(&[(file("p"), "a=4")]));
    assert_eq!((in_force(&book), problems(&book)), (vec!["a=4 file /policies/p".to_owned()], vec![]));
}

#[test]
fn a_broken_document_keeps_all_it_had_and_a_good_one_without_a_policy_removes_it() {
    let mut book = one_file();
    book.tell(0, said(&[(file("p"), "a=1 b=2"), (file("q"), "c=3")]));
    // Also one that may be a bad version of any.
    for (broken, policy) in [("!", "-"), ("=5", "policies[0]")] {
        book.tell(0, said(&[(file("p"), broken), (file("q"), "c=4")]));
        assert_eq!(in_force(&book), ["a=1 file /policies/p", "b=2 file /policies/p", "c=4 file /policies/q"]);
        let problems = problems(&book);
        assert!(!problems.is_empty() && problems.iter().all(|one| *one == problem(policy, true)), "{problems:?}");
    }
    book.tell(0, said(&[(file("p"), "b=2"), (file("q"), "")]));
    assert_eq!((in_force(&book), problems(&book)), (vec!["b=2 file /policies/p".to_owned()], vec![]));
}

#[test]
fn one_that_was_never_good_is_not_in_force() {
    let mut book = one_file();
    book.tell(0, said(&[(file("p"), "!"), (file("q"), "a=?")]));
    assert_eq!(in_force(&book), Vec::<String>::new());
    assert_eq!(problems(&book), [problem("-", false), problem("a", false)]);
    assert!(book.in_force().complete);
}

#[test]
fn a_document_that_cannot_be_read_is_no_deletion_and_one_that_is_gone_is() {
    let mut book = one_file();
    book.tell(0, said(&[(file("p"), "a=1"), (file("q"), "b=2")]));
    let mut documents = said(&[(file("q"), "b=2")]);
    documents.insert(file("p"), Err("Permission denied".to_owned()));
    book.tell(0, documents);
    assert_eq!(in_force(&book), ["a=1 file /policies/p", "b=2 file /policies/q"]);
    assert_eq!(problems(&book), [problem("-", true)]);
    book.tell(0, said(&[(file("q"), "b=2")]));
    assert_eq!((in_force(&book), problems(&book)), (vec!["b=2 file /policies/q".to_owned()], vec![]));
    // What comes back later is new: it has no earlier version.
    book.tell(0, said(&[(file("p"), "a=?"), (file("q"), "b=2")]));
    assert_eq!(problems(&book), [problem("a", false)]);
}

/// Each is a document by its key, in one ConfigMap; the active policies after the first and the second.
#[test]
fn a_document_that_moves_within_its_object_and_is_refused_loses_no_policy_fc_135() {
    for (before, after, kept) in [
        // Renamed, and broken, or one policy of it, on the way.
        (&[("a", "x=1 y=2")][..], &[("b", "!")][..], &["x=1 b", "y=2 b"][..]),
        (&[("a", "x=1 y=2")], &[("b", "x=? y=3")], &["x=1 b", "y=3 b"]),
        // Put into another one.
        (&[("a", "x=1"), ("b", "y=2")], &[("b", "!")], &["x=1 b", "y=2 b"]),
        // Divided into two, of which one is right.
        (&[("a", "x=1 y=2")], &[("b", "!"), ("c", "y=3")], &["x=1 b", "y=3 c"]),
        (&[("a", "x=1 y=2")], &[("b", "!"), ("c", "!")], &["x=1 b", "y=2 b"]),
        // Right, so that what is missing is deleted.
        (&[("a", "x=1 y=2")], &[("b", "y=2")], &["y=2 b"]),
        (&[("a", "x=1"), ("b", "y=2")], &[("b", "y=2")], &["y=2 b"]),
        // The other was refused before already: it is nothing that this one became.
        (&[("a", "x=1"), ("b", "!")], &[("b", "!")], &[]),
    ] {
        let of = |documents: &[(&str, &str)]| {
            let documents: Vec<_> = documents.iter().map(|(key, text)| (map("m", key), *text)).collect();
            said(&documents)
        };
        let mut book = one_file();
        book.tell(0, of(before));
        // The same answer again changes nothing.
        for _ in 0..2 {
            book.tell(0, of(after));
            let kept: Vec<String> = kept.iter().map(|one| one.replace(' ', " ConfigMap energy/m key ")).collect();
            assert_eq!(in_force(&book), kept, "{before:?} {after:?}");
            assert!(problems(&book).iter().all(|(_, is_kept)| *is_kept != kept.is_empty() || after.len() > 1));
        }
        // And another object has nothing to do with it.
        let mut book = one_file();
        book.tell(0, of(before));
        book.tell(0, said(&[(map("other", "b"), "!")]));
        assert_eq!(in_force(&book), Vec::<String>::new());
    }
}

#[test]
fn a_source_that_is_away_keeps_all_and_shows() {
    let mut book = PolicyStore::new(&["file /policies".to_owned(), "ConfigMap energy/p".to_owned()], Mode::Enforce);
    assert!(!book.in_force().complete);
    book.tell(0, Documents::new());
    book.fail(1, Reason::Unreachable, "no answer".to_owned());
    assert!(!book.in_force().complete, "what the ConfigMap says is not known");
    book.tell(1, said(&[(map("p", "k"), "a=1")]));
    book.fail(1, Reason::Forbidden, "no permission to watch".to_owned());
    let now = book.in_force();
    assert_eq!(in_force(&book), ["a=1 ConfigMap energy/p key k"]);
    assert!(now.complete);
    let states: Vec<_> = now.sources.iter().map(|state| (&*state.source, state.up, state.reason.as_str())).collect();
    assert_eq!(states, [("file /policies", true, "absent"), ("ConfigMap energy/p", false, "forbidden")]);
    assert!(now.problems.is_empty());
    book.tell(1, Documents::new());
    assert_eq!(in_force(&book), Vec::<String>::new());
}

#[test]
fn of_two_policies_of_one_name_the_first_source_counts_and_the_other_is_named() {
    let titles = ["file /policies", "ConfigMap energy/z", "ConfigMaps energy with p=1"].map(str::to_owned);
    // Whatever answers first.
    for order in [[0, 1, 2], [2, 1, 0]] {
        let mut book = PolicyStore::new(&titles, Mode::Enforce);
        for source in order {
            let documents = match source {
                0 => said(&[(file("p"), "a=1")]),
                1 => said(&[(map("z", "k"), "a=2 b=2")]),
                // The ConfigMap `z` has the label as well.
                _ => said(&[(map("m", "k"), "b=3"), (map("z", "k"), "a=2 b=2")]),
            };
            book.tell(source, documents);
        }
        assert_eq!(in_force(&book), ["a=1 file /policies/p", "b=3 ConfigMap energy/m key k"]);
        let problems = book.in_force().problems;
        let [a, b] = &*problems else { panic!("{problems:#?}") };
        for (problem, name, first) in [(a, "a", "file /policies/p"), (b, "b", "ConfigMap energy/m key k")] {
            assert_eq!((problem.policy.as_ref(), problem.kept), (Some(&policy_name("", name)), false));
            assert_eq!(problem.place.to_string(), "ConfigMap energy/z key k");
            assert!(problem.message.starts_with(first), "{}", problem.message);
        }
        // The second takes over when the first is gone.
        book.tell(0, Documents::new());
        assert_eq!(in_force(&book), ["a=2 ConfigMap energy/z key k", "b=3 ConfigMap energy/m key k"]);
    }
}

#[test]
fn equal_content_changes_nothing_and_an_unchanged_policy_stays_the_same_object() {
    let mut book = one_file();
    book.tell(0, said(&[(file("p"), "a=1 b=2")]));
    let before = book.in_force();
    book.tell(0, said(&[(file("p"), "a=1 b=2")]));
    assert_eq!(book.in_force(), before);
    book.tell(0, said(&[(file("p"), "b=3  a=1")]));
    let (name, now) = (policy_name("", "a"), book.in_force());
    assert!(Arc::ptr_eq(&before.policies[&name].policy, &now.policies[&name].policy));
}
