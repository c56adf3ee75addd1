//! The crates that are linked into the agent, by `cargo metadata` and Cargo.lock, for licences and the SBOM.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::build::Arch;
use crate::{cargo, output, root};

/// The target of the eBPF object, whose crates are linked with it.
const EBPF: &str = "bpfel-unknown-none";

/// A crate of another project. Ordered by name and version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Linked {
    pub name: String,
    pub version: String,
    /// An expression of SPDX.
    pub licence: String,
    pub repository: String,
    /// Where its source is.
    pub folder: PathBuf,
    /// SHA-256 of its package, as Cargo.lock has it.
    pub checksum: String,
    /// Names and versions of what it uses itself.
    pub uses: BTreeSet<(String, String)>,
}

/// All crates of other projects that the agent for `arch` is linked with, and those in the eBPF object.
///
/// # Errors
/// When cargo cannot say, or a crate names no licence.
pub fn linked(arch: Arch) -> Result<BTreeSet<Linked>> {
    let checksums = checksums()?;
    let mut found = of("energy-agent", arch.target(), &checksums)?;
    found.extend(of("energy-ebpf", EBPF, &checksums)?);
    Ok(found)
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    source: Option<String>,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// `dev`, `build`, or nothing.
    kind: Option<String>,
}

impl Package {
    /// A macro runs in the compiler: neither it nor what it uses is part of the program.
    fn is_macro(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }

    fn name_and_version(&self) -> (String, String) {
        (self.name.clone(), self.version.clone())
    }
}

fn of(package: &str, target: &str, checksums: &BTreeMap<(String, String), String>) -> Result<BTreeSet<Linked>> {
    let said = output(cargo().args(["metadata", "--format-version=1", "--locked", "--filter-platform", target]))?;
    let metadata: Metadata = serde_json::from_str(&said).context("cargo metadata")?;
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let nodes: BTreeMap<&str, &Node> = metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let uses = |id: &str| -> Vec<&Package> {
        let deps = nodes.get(id).into_iter().flat_map(|node| &node.deps);
        let normal = deps.filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        normal.filter_map(|dep| packages.get(dep.pkg.as_str()).copied()).filter(|package| !package.is_macro()).collect()
    };
    let first = metadata.packages.iter().find(|candidate| candidate.name == package && candidate.source.is_none());
    let first = first.with_context(|| format!("no package {package} in the workspace"))?;
    let (mut open, mut seen) = (vec![first], BTreeSet::from([first.id.as_str()]));
    let mut linked = BTreeSet::new();
    while let Some(package) = open.pop() {
        let used = uses(&package.id);
        open.extend(used.iter().filter(|package| seen.insert(package.id.as_str())));
        // Ours have no source.
        if package.source.is_none() {
            continue;
        }
        let key = package.name_and_version();
        let licence = package.license.as_deref().with_context(|| format!("{} names no licence", package.name))?;
        linked.insert(Linked {
            // An older way to write a choice.
            licence: licence.replace('/', " OR "),
            repository: package.repository.clone().unwrap_or_default(),
            folder: package.manifest_path.parent().map(PathBuf::from).unwrap_or_default(),
            checksum: checksums.get(&key).cloned().with_context(|| format!("{} is not in Cargo.lock", package.name))?,
            uses: used.iter().map(|package| package.name_and_version()).collect(),
            name: key.0,
            version: key.1,
        });
    }
    Ok(linked)
}

/// By name and version.
fn checksums() -> Result<BTreeMap<(String, String), String>> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(Deserialize)]
    struct Locked {
        name: String,
        version: String,
        checksum: Option<String>,
    }
    let lock: Lock = toml::from_str(&fs::read_to_string(root().join("Cargo.lock"))?).context("Cargo.lock")?;
    let packages = lock.package.into_iter();
    Ok(packages.filter_map(|package| Some(((package.name, package.version), package.checksum?))).collect())
}
