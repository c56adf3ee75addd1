//! What roles allow, and as what the API server authorizes a request.

use std::collections::BTreeSet;

use super::proxy::Asked;
use crate::common::manifests::{deploy, items, parsed};

/// API group, resource with its subresource, verb.
pub type Right = (String, String, String);

/// What the roles of a file below `deploy` allow.
pub fn granted(file: &str) -> BTreeSet<Right> {
    let text = std::fs::read_to_string(deploy().join(file)).unwrap();
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
pub fn right(asked: &Asked) -> Right {
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
