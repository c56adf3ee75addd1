//! The layers of the source: which crate may use which, no circle of imports, no function that is exported without a user, and
//! one name for one type.
//! Also that the files which the chart keeps beside it are copies of ours.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use regex::Regex;

/// The crates of the agent below `energy-agent/`, and which of the others each may use.
const LAYERS: [(&str, &[&str]); 8] = [
    ("crates/budget", &[]),
    ("crates/model", &["energy-ebpf"]),
    ("crates/files", &[]),
    ("crates/host", &["energy-ebpf", "energy-files", "energy-model"]),
    ("crates/cluster", &["energy-files", "energy-model"]),
    ("crates/export", &["energy-files", "energy-model"]),
    ("crates/report", &[]),
    (
        ".",
        &[
            "energy-budget",
            "energy-cluster",
            "energy-export",
            "energy-files",
            "energy-host",
            "energy-model",
            "energy-report",
        ],
    ),
];
/// What the model is free of.
const IMPURE: [&str; 9] = ["aya", "hyper", "kube", "libc", "nvml-wrapper", "rustix", "tokio", "tonic", "tracing"];

static COMMENT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"//[^\n]*").unwrap());

/// Crates that share one vocabulary. A run file has words of its own: its node, GPU or limit is a record of what was, not the
/// agent's. So has the law of budgets, to which a node is a few numbers.
const VOCABULARIES: [&[&str]; 3] = [
    &["crates/model", "crates/files", "crates/host", "crates/cluster", "crates/export", "."],
    &["crates/report"],
    &["crates/budget"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn agent() -> PathBuf {
    root().join("energy-agent")
}

/// Every Rust file below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file without comments and without its tests.
fn code(path: &Path) -> String {
    static TESTS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"#\[cfg\(test\)\]\s*mod \w+ \{").unwrap());
    let text = fs::read_to_string(path).unwrap();
    let text = COMMENT.replace_all(&text, "");
    TESTS.splitn(&text, 2).next().unwrap_or_default().to_owned()
}

fn is_test(module: &str) -> bool {
    module.split("::").any(|part| ["tests", "properties"].contains(&part))
}

#[test]
fn dependencies_of_crates_go_one_way() {
    for (folder, allowed) in LAYERS {
        let path = agent().join(folder).join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        let used: BTreeSet<&str> = manifest["dependencies"].as_table().unwrap().keys().map(String::as_str).collect();
        let ours: BTreeSet<&str> = used.iter().copied().filter(|name| name.starts_with("energy-")).collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert!(ours.is_subset(&allowed), "{folder} uses {ours:?}, {allowed:?} are allowed");
        if ["crates/budget", "crates/model", "crates/report"].contains(&folder) {
            let impure: Vec<_> = IMPURE.iter().filter(|name| used.contains(**name)).collect();
            assert!(impure.is_empty(), "{folder} uses {impure:?}");
        }
    }
}

/// kube is built for one version of Kubernetes, which a feature of k8s-openapi names. Built with the whole workspace, a crate
/// gets it from others; built alone, it must have it itself.
#[test]
fn every_crate_that_uses_kube_builds_alone() {
    let packages = output(&["metadata", "--no-deps", "--format-version=1", "--locked"]);
    let packages: serde_json::Value = serde_json::from_str(&packages).unwrap();
    let names = packages["packages"].as_array().unwrap().iter().map(|package| package["name"].as_str().unwrap());
    let mut built = 0;
    for name in names {
        let tree = output(&["tree", "--package", name, "--edges=normal,features", "--locked"]);
        if tree.contains("kube v") {
            built += 1;
            assert!(tree.contains("k8s-openapi feature \"v1_"), "{name} uses kube without a version of Kubernetes");
        }
    }
    assert!(built >= 3, "{built} crates use kube");
}

/// What cargo prints.
fn output(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn only_the_machine_has_unsafe_code() {
    for (folder, _) in LAYERS {
        let text = fs::read_to_string(agent().join(folder).join("src/lib.rs")).unwrap();
        let forbids = text.contains("\n#![forbid(unsafe_code)]\n");
        assert_eq!(forbids, folder != "crates/host", "{folder}/src/lib.rs");
    }
}

/// The paths of a tree of imports, such as `crate::a::{b, c::D}`.
fn paths(tree: &str) -> Vec<String> {
    let Some((before, inner)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let inner = inner.trim_end().trim_end_matches('}');
    let (mut depth, mut parts, mut part) = (0, Vec::new(), String::new());
    for character in inner.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(character);
    }
    parts.push(part);
    let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.flat_map(paths).map(|path| format!("{}{path}", before.trim())).collect()
}

/// Which module of a crate uses which others.
fn imports(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let modules: BTreeMap<String, PathBuf> = sources(source)
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(source).unwrap().with_extension("").display().to_string().replace('/', "::");
            (if name == "lib" { String::new() } else { name }, path)
        })
        .filter(|(name, _)| !is_test(name) && name != "main")
        .collect();
    let nearest = |mut parts: Vec<String>| {
        while !parts.is_empty() && !modules.contains_key(&parts.join("::")) {
            parts.pop();
        }
        parts.join("::")
    };
    let named = Regex::new(r"\buse\s+([^;]*);|\b((?:crate|super|self)(?:::\w+)+)").unwrap();
    let mut imports = BTreeMap::new();
    for (module, path) in &modules {
        let own: Vec<String> = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let mut used = BTreeSet::new();
        for found in named.captures_iter(&code(path)) {
            let tree = found.get(1).or(found.get(2)).unwrap().as_str();
            for path in paths(tree) {
                let mut parts: Vec<String> = path.split("::").map(|part| part.trim().to_owned()).collect();
                let mut base = own.clone();
                match parts[0].as_str() {
                    "crate" => base.clear(),
                    "self" => {}
                    "super" => {
                        while parts.len() > 1 && parts[1] == "super" {
                            parts.remove(0);
                            base.pop();
                        }
                        base.pop();
                    }
                    _ => continue,
                }
                base.extend(parts.into_iter().skip(1));
                used.insert(nearest(base));
            }
        }
        used.remove(module);
        imports.insert(module.clone(), used);
    }
    imports
}

/// A module and one below it are one thing in two files.
fn is_one(a: &str, b: &str) -> bool {
    let below = |inner: &str, outer: &str| outer.is_empty() || inner.starts_with(&format!("{outer}::"));
    below(a, b) || below(b, a)
}

/// A way from a node back to it.
fn circle(graph: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn walk(
        node: &str,
        graph: &BTreeMap<String, BTreeSet<String>>,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(start) = way.iter().position(|passed| passed == node) {
            return Some(way[start..].to_vec());
        }
        if !done.insert(node.to_owned()) {
            return None;
        }
        way.push(node.to_owned());
        let found = graph.get(node).into_iter().flatten().find_map(|next| walk(next, graph, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|node| walk(node, graph, &mut Vec::new(), &mut done))
}

#[test]
fn no_circle_of_imports_between_files_or_folders() {
    for (folder, _) in LAYERS {
        let imports = imports(&agent().join(folder).join("src"));
        assert!(imports.len() > 5, "{folder} has {} modules", imports.len());
        let files: BTreeMap<String, BTreeSet<String>> = imports
            .iter()
            .map(|(module, used)| (module.clone(), used.iter().filter(|used| !is_one(module, used)).cloned().collect()))
            .collect();
        assert_eq!(circle(&files), None, "files of {folder}");
        // Folders side by side, at each depth.
        for depth in 1..4 {
            let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for (module, used) in &files {
                for used in used {
                    let (a, b): (Vec<&str>, Vec<&str>) = (module.split("::").collect(), used.split("::").collect());
                    let side_by_side = a.len() >= depth && b.len() >= depth && a[..depth - 1] == b[..depth - 1];
                    if side_by_side && a[depth - 1] != b[depth - 1] {
                        folders.entry(a[..depth].join("::")).or_default().insert(b[..depth].join("::"));
                    }
                }
            }
            assert_eq!(circle(&folders), None, "folders of {folder} at depth {depth}");
        }
    }
}

/// Words of all files below these folders, but for comments.
fn words(folders: &[PathBuf]) -> BTreeSet<String> {
    let word = Regex::new(r"\b[A-Za-z_]\w*\b").unwrap();
    let mut words = BTreeSet::new();
    for path in folders.iter().flat_map(|folder| sources(folder.as_path())) {
        let text = COMMENT.replace_all(&fs::read_to_string(&path).unwrap(), "").into_owned();
        words.extend(word.find_iter(&text).map(|word| word.as_str().to_owned()));
    }
    words
}

/// By name: a function, constant or module that no other crate mentions is the crate's own. Types are left to the compiler, as
/// they may be part of another item's signature.
#[test]
fn nothing_is_exported_that_no_other_crate_uses() {
    let exported = Regex::new(r"(?m)^[ \t]*pub (?:const |async |unsafe )*(?:fn|const|static|mod|trait) (\w+)").unwrap();
    let all: Vec<PathBuf> = LAYERS.iter().map(|(folder, _)| agent().join(folder).join("src")).collect();
    let mut unused = Vec::new();
    for (folder, _) in LAYERS.iter().filter(|(folder, _)| *folder != ".") {
        let own = agent().join(folder).join("src");
        let mut others: Vec<PathBuf> = all.iter().filter(|source| **source != own).cloned().collect();
        others.extend(["tests", "xtask"].map(|name| root().join(name)));
        let used = words(&others);
        for path in sources(&own) {
            let module = path.strip_prefix(&own).unwrap().with_extension("").display().to_string().replace('/', "::");
            if is_test(&module) {
                continue;
            }
            for found in exported.captures_iter(&code(&path)).filter(|found| !used.contains(&found[1])) {
                unused.push(format!("{folder}/src/{}: {}", path.strip_prefix(&own).unwrap().display(), &found[1]));
            }
        }
    }
    assert!(unused.is_empty(), "pub, and no other crate uses it; make it pub(crate):\n{}", unused.join("\n"));
}

/// The files of a crate that only its tests are made of: `#[cfg(test)] mod NAME;`, and what lies below.
fn test_files(source: &Path) -> Vec<PathBuf> {
    let declared = Regex::new(r#"#\[cfg\(test\)\]\s*(?:#\[path = "([^"]+)"\]\s*)?mod (\w+);"#).unwrap();
    let mut files = Vec::new();
    for path in sources(source) {
        let folder = path.parent().unwrap();
        let below = if path.ends_with("lib.rs") { folder.to_owned() } else { path.with_extension("") };
        for found in declared.captures_iter(&fs::read_to_string(&path).unwrap()) {
            files.push(found.get(1).map_or_else(|| below.join(&found[2]), |path| folder.join(path.as_str())));
        }
    }
    files.into_iter().map(|file| file.with_extension("")).collect()
}

/// A reader who meets a name in two places takes it for one thing. The types of the eBPF programs count too, as the agent uses them.
#[test]
fn no_two_types_have_one_name() {
    let declared = Regex::new(
        r"(?m)^(?:[ \t]*(?:pub(?:\([a-z: ]+\))? )?(?:struct|enum|union|trait)|(?:pub(?:\([a-z: ]+\))? )?type) (\w+)",
    )
    .unwrap();
    assert_eq!(VOCABULARIES.concat().len(), LAYERS.len());
    for crates in VOCABULARIES {
        let mut folders: Vec<PathBuf> = crates.iter().map(|folder| agent().join(folder).join("src")).collect();
        folders.push(root().join("energy-ebpf/src"));
        let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for source in folders {
            let tests = test_files(&source);
            let files = sources(&source).into_iter();
            for path in files.filter(|path| !tests.iter().any(|test| path.with_extension("").starts_with(test))) {
                for found in declared.captures_iter(&code(&path)) {
                    types.entry(found[1].to_owned()).or_default().push(path.display().to_string());
                }
            }
        }
        assert!(types.len() > 10, "{} types in {crates:?}", types.len());
        types.retain(|_, places| places.len() > 1);
        assert!(types.is_empty(), "give each type a name of its own:\n{types:#?}");
    }
}

/// The Helm chart works without the rest of the repository, so it has copies: rules of alerts, roles, dashboards.
#[test]
fn the_chart_has_true_copies_of_rules_roles_and_dashboards() {
    let chart = root().join("deploy/helm/energy-agent/files");
    let mut copies = vec![(root().join("deploy/prometheus/rules.yaml"), chart.join("rules.yaml"))];
    for folder in ["controller", "resources"] {
        copies.push((root().join(format!("deploy/{folder}/rbac.yaml")), chart.join(format!("{folder}-rbac.yaml"))));
    }
    let others = copies.len();
    let dashboards = fs::read_dir(root().join("dashboards")).unwrap().map(|entry| entry.unwrap().path());
    let copy = |path: PathBuf| (path.clone(), chart.join("dashboards").join(path.file_name().unwrap()));
    let boards = dashboards.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    copies.extend(boards.map(copy));
    assert_eq!(
        copies.len() - others,
        fs::read_dir(chart.join("dashboards")).unwrap().count(),
        "a copy has no original"
    );
    for (original, copy) in copies {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::copy(&original, &copy).unwrap();
        }
        let again = "run UPDATE_DOCS=1 cargo test -p energy-agent --test pages house";
        let is_same = fs::read(&copy).is_ok_and(|text| text == fs::read(&original).unwrap());
        assert!(is_same, "{} is not {}; {again}", copy.display(), original.display());
    }
}
