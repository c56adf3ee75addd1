//! The roles of deploy/controller, compared with what the replicas asked the API server for.

use std::collections::BTreeSet;

use crate::common::kubernetes::proxy::Asked;
use crate::common::manifests::{deploy, items, parsed};

/// API group, resource with its subresource, verb.
type Right = (String, String, String);

fn granted() -> BTreeSet<Right> {
    let text = std::fs::read_to_string(deploy().join("controller/rbac.yaml")).unwrap();
    let mut rights = BTreeSet::new();
    for role in parsed(&text) {
        for rule in items(&role["rules"]) {
            for resource in items(&rule["resources"]) {
                for verb in items(&rule["verbs"]) {
                    let words = [&rule["apiGroups"][0], resource, verb].map(|word| word.as_str().unwrap().to_owned());
                    rights.insert(words.into());
                }
            }
        }
    }
    rights
}

/// What the API server authorizes a request as.
fn right(asked: &Asked) -> Right {
    let path = asked.path.split('?').next().unwrap();
    let (group, rest) = match path.strip_prefix("/api/v1/") {
        Some(rest) => ("", rest),
        None => {
            let mut parts = path.strip_prefix("/apis/").unwrap().splitn(3, '/');
            let (group, _, rest) = (parts.next().unwrap(), parts.next(), parts.next().unwrap());
            (group, rest)
        }
    };
    let mut parts: Vec<&str> = rest.split('/').collect();
    if parts[0] == "namespaces" {
        parts.drain(..2);
    }
    let resource = if parts.len() == 3 { format!("{}/{}", parts[0], parts[2]) } else { parts[0].to_owned() };
    let verb = match (asked.method.as_str(), parts.len()) {
        ("GET", 1) if asked.is_watch => "watch",
        ("GET", 1) => "list",
        ("GET", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        other => panic!("{other:?}"),
    };
    (group.to_owned(), resource, verb.to_owned())
}

/// Nothing was asked for that the roles do not allow, and they allow nothing else.
pub fn compare(asked: &[Asked]) {
    let (asked, granted): (BTreeSet<Right>, _) = (asked.iter().map(right).collect(), granted());
    assert_eq!(asked.difference(&granted).collect::<Vec<_>>(), Vec::<&Right>::new(), "asked for, and not allowed");
    // Read only when somebody else has written it, which the watch may tell sooner.
    let rare: Right = ["power.energy-agent.io", "powerlevels", "get"].map(str::to_owned).into();
    let unused: Vec<&Right> = granted.difference(&asked).filter(|right| **right != rare).collect();
    assert_eq!(unused, Vec::<&Right>::new(), "allowed, and never asked for");
}
