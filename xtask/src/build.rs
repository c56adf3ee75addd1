//! Release builds for the processors that images and packages are made for.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::image::Arch;
use crate::{cargo, checked, root, tools};

const ARM64: &str = "aarch64-unknown-linux-gnu";

/// Builds the agent in release; where it is.
///
/// For another processor than this machine's, Rust's library is built along, which its nightly can do anywhere.
///
/// # Errors
/// When the compiler or the C compiler can't be had, or the build fails.
pub fn release(arch: Arch) -> Result<PathBuf> {
    println!("building in release for {}", arch.name());
    let target = root().join("target");
    let what = ["build", "--release", "--locked", "--package", "energy-agent"];
    if arch == Arch::HOST {
        checked(cargo().args(what))?;
        return Ok(target.join("release/energy-agent"));
    }
    ensure!(arch == Arch::Arm64, "only arm64 can be built on another processor");
    tools::installed(&[
        (&tool(arch, "gcc"), "gcc-aarch64-linux-gnu"),
        (&tool(arch, "strip"), "binutils-aarch64-linux-gnu"),
    ])?;
    let header = Path::new("/usr/aarch64-linux-gnu/include/stdio.h");
    if !header.exists() {
        tools::install(&["libc6-dev-arm64-cross"])?;
    }
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(what).args(["-Zbuild-std=std,panic_abort", "--target", ARM64]);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", tool(arch, "gcc")).current_dir(root());
    for name in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC"] {
        command.env_remove(name);
    }
    checked(&mut command)?;
    Ok(target.join(ARM64).join("release/energy-agent"))
}

/// The name of a program of the C compiler's for this processor.
pub fn tool(arch: Arch, name: &str) -> String {
    match arch {
        _ if arch == Arch::HOST && name == "gcc" => env::var("CC").unwrap_or_else(|_| "cc".to_owned()),
        _ if arch == Arch::HOST => name.to_owned(),
        Arch::Amd64 => format!("x86_64-linux-gnu-{name}"),
        Arch::Arm64 => format!("aarch64-linux-gnu-{name}"),
    }
}
