//! Release builds of the agent for what is shipped: the static program, the image and the package.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::{cargo, checked, ebpf, forget_package, root, tools};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What to ship, and for whom.
#[derive(Args)]
pub struct Options {
    /// Processor of the nodes.
    #[arg(long, value_enum, default_value_t = Arch::HOST)]
    pub arch: Arch,
    /// Program to take in place of a release build. Its size is not limited.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// File to write; named by version and processor in a folder of target/ when not given.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Options {
    /// A release build for this processor, written to this file.
    pub const fn to(arch: Arch, output: PathBuf) -> Self {
        Self { arch, program: None, output: Some(output) }
    }

    /// The program named, or else a release build.
    ///
    /// # Errors
    /// As [`release`].
    pub fn program(&self, linking: Linking) -> Result<PathBuf> {
        self.program.clone().map_or_else(|| release(self.arch, linking), Ok)
    }

    /// It was built by this command, as users get it.
    pub const fn is_release(&self) -> bool {
        self.program.is_none()
    }

    /// The file named, or else `default`.
    pub fn output(&self, default: PathBuf) -> PathBuf {
        self.output.clone().unwrap_or(default)
    }
}

/// A processor as Go, and so OCI and Debian, name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    pub const HOST: Self = if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 };

    pub const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    pub const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}

/// Where the program's C library is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linking {
    /// On the machine, or beside the program in an image.
    Dynamic,
    /// In the program.
    Static,
}

/// Builds the agent in release; where it is, until the next build for that processor.
///
/// For another processor than this machine's, Rust's library is built along, which its nightly can do anywhere.
///
/// # Errors
/// When the compiler or the C compiler cannot be installed, or the build fails.
pub fn release(arch: Arch, linking: Linking) -> Result<PathBuf> {
    release_of("energy-agent", arch, linking)
}

/// The same of any package of the workspace with one program of its name.
///
/// # Errors
/// As [`release`].
pub fn release_of(package: &str, arch: Arch, linking: Linking) -> Result<PathBuf> {
    let how = if linking == Linking::Static { ", static" } else { "" };
    println!("building {package} in release for {}{how}", arch.name());
    let target = root().join("target");
    let what = ["build", "--release", "--locked", "--package", package, "--bin", package];
    if (arch, linking) == (Arch::HOST, Linking::Dynamic) {
        checked(cargo().args(what))?;
        return Ok(target.join("release").join(package));
    }
    let mut command = if arch == Arch::HOST { cargo() } else { cross(arch)? };
    // With a target named, the flags don't reach build scripts and macros, which can't be static.
    command.args(what).args(["--target", arch.target()]);
    if linking == Linking::Static {
        command.env("RUSTFLAGS", "-C target-feature=+crt-static");
    }
    checked(&mut command)?;
    Ok(target.join(arch.target()).join("release").join(package))
}

/// A cargo that builds for another processor.
fn cross(arch: Arch) -> Result<Command> {
    ensure!(arch == Arch::Arm64, "only arm64 can be built on another processor");
    tools::installed(&[
        (&tool(arch, "gcc"), "gcc-aarch64-linux-gnu"),
        (&tool(arch, "strip"), "binutils-aarch64-linux-gnu"),
    ])?;
    if !Path::new("/usr/aarch64-linux-gnu/include/stdio.h").exists() {
        tools::install(&["libc6-dev-arm64-cross"])?;
    }
    ebpf::nightly_with_source()?;
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "-Zbuild-std=std,panic_abort"]).current_dir(root());
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", tool(arch, "gcc"));
    for name in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC"] {
        command.env_remove(name);
    }
    forget_package(&mut command);
    Ok(command)
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

/// A size for people; a package is small enough for tenths of a megabyte.
pub fn megabytes(bytes: u64) -> String {
    format!("{}.{}", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}
