//! Licences, sources and banned crates of everything in Cargo.lock, by cargo-deny and `.cargo/deny.toml`.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{cargo, checked, output, root, tools};

/// Built from source once; another version may judge differently.
const VERSION: &str = "0.20.2";

/// # Errors
/// When cargo-deny cannot be installed, or a crate breaks a rule; it prints which.
pub fn check() -> Result<()> {
    let folder = tools::folder("cargo-deny");
    let program = folder.join("bin/cargo-deny");
    let wanted = format!("cargo-deny {VERSION}");
    if !output(Command::new(&program).arg("--version")).is_ok_and(|version| version == wanted) {
        println!("building cargo-deny {VERSION}, once; about a minute");
        let mut install = cargo();
        install.args(["install", "cargo-deny", "--version", VERSION, "--locked", "--force"]);
        // It looks at files for a second: a quick build matters more than quick code. The advisories that its default
        // features fetch are not asked for.
        install.args(["--debug", "--no-default-features", "--quiet", "--root"]).arg(&folder);
        checked(&mut install).context("installing cargo-deny")?;
    }
    let mut check = Command::new(program);
    check.args(["--locked", "check", "licenses", "bans", "sources"]).current_dir(root());
    checked(&mut check).context("`cargo xtask deny`: see .cargo/deny.toml")
}
