//! What `cargo xtask image`, `deb` and `static` make.

use std::path::Path;
use std::process::Output;

use super::cargo::cargo;

/// Runs one of them; `program` stands for a release build.
pub fn xtask(what: &str, program: Option<&str>, output: &Path) -> Output {
    let mut command = cargo();
    command.args(["run", "--quiet", "--locked", "--package", "xtask", "--", what, "--output"]).arg(output);
    command.args(program.map(|program| ["--program", program]).into_iter().flatten());
    command.output().unwrap()
}

/// The same, which has to succeed.
pub fn make(what: &str, program: Option<&str>, output: &Path) {
    let made = xtask(what, program, output);
    assert!(made.status.success(), "cargo xtask {what}: {}", String::from_utf8_lossy(&made.stderr));
}

/// Makes the files of a release that need no compiler.
pub fn make_release(folder: &Path) {
    let mut command = cargo();
    command.args(["run", "--quiet", "--locked", "--package", "xtask", "--", "release", "--without-programs"]);
    let made = command.arg("--output").arg(folder).output().unwrap();
    assert!(made.status.success(), "cargo xtask release: {}", String::from_utf8_lossy(&made.stderr));
}
