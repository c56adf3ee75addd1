//! What `cargo xtask release` makes without compiling: the same bytes each time, and true.

#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::shipped;

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_release_made_twice_has_the_same_bytes_and_holds_what_its_papers_say() {
    let folder = TempDir::new().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    for target in [&one, &two] {
        shipped::make_release(target);
    }
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&one), sums(&two));
    said(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&one));
    let found = |name: &str| one.join(format!("energy-agent-{}{name}", env!("CARGO_PKG_VERSION")));

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let packed = said(Command::new("tar").arg("-tzf").arg(found(".tgz")));
    let packed: BTreeSet<&str> = packed.lines().filter(|line| !line.ends_with('/')).collect();
    for name in ["Chart.yaml", "values.schema.json", "files/rules.yaml", "templates/_helpers.tpl"] {
        assert!(packed.contains(format!("energy-agent/{name}").as_str()), "{name} is not in {packed:?}");
    }

    // Cargo.lock says which package of a crate was taken, and the program is known to use it.
    let lock: toml::Table = fs::read_to_string(root.join("Cargo.lock")).unwrap().parse().unwrap();
    let aya =
        lock["package"].as_array().unwrap().iter().find(|package| package["name"].as_str() == Some("aya")).unwrap();
    let bill: Value = serde_json::from_slice(&fs::read(found(".cdx.json")).unwrap()).unwrap();
    let components = bill["components"].as_array().unwrap();
    let of = |name: &str| components.iter().find(|component| component["name"] == name);
    assert_eq!(of("aya").unwrap()["hashes"][0]["content"].as_str(), aya["checksum"].as_str());
    assert_eq!(of("aya").unwrap()["version"].as_str(), aya["version"].as_str());
    // Of the eBPF object.
    assert!(of("aya-ebpf").is_some());
    // Only tests use this one, and this one runs in the compiler.
    assert!(of("proptest").is_none() && of("serde_derive").is_none());
    let licences = fs::read_to_string(one.join("THIRD-PARTY.txt")).unwrap();
    for component in components {
        let line = format!("\n{} {}: ", component["name"].as_str().unwrap(), component["version"].as_str().unwrap());
        assert!(licences.contains(&line), "{line}");
    }
    assert!(licences.contains("Permission is hereby granted, free of charge"));
}
