//! What the program is built from, for `--version` and `energy_agent_build_info`: revision, branch and day of the commit, and the
//! compiler. Nothing is asked over a network. Of these the first that knows counts:
//!
//! 1. the variables ENERGY_AGENT_REVISION, ENERGY_AGENT_BRANCH and ENERGY_AGENT_DATE, for packagers;
//! 2. git, in a release build. A debug build does not ask it, because it would be built again after every commit;
//! 3. the file revision.txt, which `git archive` fills in.

use std::process::Command;
use std::{env, fs};

const ARCHIVED: &str = "revision.txt";
const NAMES: [&str; 3] = ["ENERGY_AGENT_REVISION", "ENERGY_AGENT_BRANCH", "ENERGY_AGENT_DATE"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={ARCHIVED}");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let found = if is_release { from_git() } else { None };
    let found = found.or_else(from_archive).unwrap_or_default();
    for (name, found) in NAMES.into_iter().zip(found) {
        println!("cargo:rerun-if-env-changed={name}");
        let value = env::var(name).ok().or(found).filter(|value| !value.is_empty());
        println!("cargo:rustc-env={name}={}", value.unwrap_or_else(|| "unknown".to_owned()));
    }
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = said(&compiler, &["--version"]).unwrap_or_default();
    // As in "rustc 1.95.0 (59807616e 2026-04-14)".
    println!("cargo:rustc-env=ENERGY_AGENT_RUSTC={}", version.split_whitespace().nth(1).unwrap_or("unknown"));
}

/// What a program prints, if it succeeds.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// In the order of [`NAMES`].
fn from_git() -> Option<[Option<String>; 3]> {
    let git = |arguments: &[&str]| said("git", arguments);
    // An unpacked archive may lie in somebody else's repository.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // Grows with every commit and every change of the branch.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if fs::exists(&log).unwrap_or(false) {
        println!("cargo:rerun-if-changed={log}");
    }
    let branch = git(&["rev-parse", "--abbrev-ref", "HEAD"]).filter(|branch| branch != "HEAD");
    Some([git(&["rev-parse", "HEAD"]), branch, git(&["log", "-1", "--format=%cs"])])
}

fn from_archive() -> Option<[Option<String>; 3]> {
    let text = fs::read_to_string(ARCHIVED).ok().filter(|text| !text.starts_with('$'))?;
    let mut words = text.split_whitespace().map(str::to_owned);
    Some([words.next(), None, words.next()])
}
