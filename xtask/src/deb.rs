//! The Debian package: the program, its systemd unit and its settings.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::image::Arch;
use crate::{build, checked, output, root};

#[derive(Args)]
pub struct Options {
    /// Processor of the nodes.
    #[arg(long, value_enum, default_value_t = Arch::HOST)]
    arch: Arch,
    /// Program to pack in place of a release build.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Package to write; target/deb/energy-agent_VERSION_ARCH.deb when not given.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Builds the package.
///
/// # Errors
/// When the build fails or this machine has no dpkg-deb.
pub fn make(options: &Options) -> Result<()> {
    let Options { arch, program, output: wanted } = options;
    let program = program.clone().map_or_else(|| build::release(*arch), Ok)?;
    let folder = root().join("target/deb");
    let stage = folder.join(format!("stage-{}-{}", arch.name(), std::process::id()));
    let files = root().join("deploy/debian");
    let put = |from: &Path, to: &str, mode: u32| -> Result<()> {
        let to = stage.join(to);
        fs::create_dir_all(to.parent().unwrap_or(&stage))?;
        fs::copy(from, &to).with_context(|| from.display().to_string())?;
        Ok(fs::set_permissions(&to, fs::Permissions::from_mode(mode))?)
    };
    put(&program, "usr/bin/energy-agent", 0o755)?;
    let agent = stage.join("usr/bin/energy-agent");
    checked(Command::new(build::tool(*arch, "strip")).arg(&agent))?;
    put(&files.join("energy-agent.service"), "lib/systemd/system/energy-agent.service", 0o644)?;
    put(&files.join("default"), "etc/default/energy-agent", 0o644)?;
    put(&root().join("LICENSE"), "usr/share/doc/energy-agent/copyright", 0o644)?;
    for name in ["postinst", "prerm", "postrm"] {
        put(&files.join(name), &format!("DEBIAN/{name}"), 0o755)?;
    }
    fs::write(stage.join("DEBIAN/conffiles"), "/etc/default/energy-agent\n")?;
    let control = format!(
        "Package: energy-agent\nVersion: {version}\nArchitecture: {arch}\nSection: admin\nPriority: optional\n\
         Maintainer: energy-agent <energy-agent@localhost>\nDepends: libc6 (>= {libc}), libgcc-s1\n\
         Description: energy use of containers, pods and services\n \
         Says which workload of this machine used how many joules, by eBPF and the\n \
         energy counters of CPUs and GPUs, for Prometheus; and holds pods to power\n budgets.\n",
        version = env!("CARGO_PKG_VERSION"),
        arch = arch.name(),
        libc = libc_version(*arch, &agent)?,
    );
    fs::write(stage.join("DEBIAN/control"), control)?;
    let default = folder.join(format!("energy-agent_{}_{}.deb", env!("CARGO_PKG_VERSION"), arch.name()));
    let package = wanted.clone().unwrap_or(default);
    checked(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&stage).arg(&package))?;
    fs::remove_dir_all(&stage)?;
    println!("{}", package.display());
    Ok(())
}

/// The C library that the program needs: the highest version of a symbol it uses.
fn libc_version(arch: Arch, program: &Path) -> Result<String> {
    let symbols = output(Command::new(build::tool(arch, "objdump")).arg("-T").arg(program))?;
    let version = |symbol: &str| {
        let (major, minor) = symbol.split_once("GLIBC_")?.1.split([')', ' ']).next()?.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.split('.').next()?.parse::<u32>().ok()?))
    };
    let (major, minor) = symbols.lines().filter_map(version).max().context("the program uses no symbol of glibc")?;
    Ok(format!("{major}.{minor}"))
}
