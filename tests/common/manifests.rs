//! The manifests of deploy/, as kubectl renders them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// The folders that are there to be applied: the base and every overlay.
pub fn folders() -> Vec<String> {
    let entries = std::fs::read_dir(deploy().join("overlays")).unwrap().flatten();
    let mut folders: Vec<String> =
        entries.map(|entry| format!("overlays/{}", entry.file_name().to_str().unwrap())).collect();
    folders.push("base".to_owned());
    folders.sort();
    folders
}

/// The objects of a folder of deploy/, such as `overlays/capping`.
pub fn rendered(folder: &str) -> Vec<Value> {
    parsed(&text(folder))
}

/// The same as text.
pub fn text(folder: &str) -> String {
    let output = Command::new("kubectl").arg("kustomize").arg(deploy().join(folder)).output();
    let output = output.unwrap_or_else(|error| panic!("kubectl: {error}; `cargo xtask test` provides it"));
    assert!(output.status.success(), "{folder}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The one object of a file of deploy/examples.
pub fn example(name: &str) -> Value {
    let text = std::fs::read_to_string(deploy().join("examples").join(name)).unwrap();
    let mut objects = parsed(&text);
    assert_eq!(objects.len(), 1, "{name}");
    objects.remove(0)
}

/// Documents of YAML.
pub fn parsed(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// The one object of this kind and name.
pub fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    let object = found.next().unwrap_or_else(|| panic!("no {kind} {name}"));
    assert!(found.next().is_none(), "two {kind} {name}");
    object
}

/// The items of a list; none where there is no list.
pub fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
