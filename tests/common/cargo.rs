//! Cargo, for what a test needs built.

use std::env;
use std::process::Command;

/// Without the variables that describe the test's own package: build scripts that look at them (ring's does) would run again,
/// and all that depends on them be compiled again, now and at the next build by hand.
pub fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}
