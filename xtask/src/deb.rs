//! The Debian package: the program, its systemd unit and its settings.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::build::{self, Arch, Linking, Options, VERSION};
use crate::revision::Revision;
use crate::{checked, inventory, licences, output, root, sbom};

/// Whoever builds the package: nobody else has an address.
const MAINTAINER: &str = "energy-agent <energy-agent@localhost>";
const DOC: &str = "usr/share/doc/energy-agent";

/// Builds the package.
///
/// # Errors
/// When the build fails or this machine has no dpkg-deb.
pub fn make(options: &Options) -> Result<()> {
    let (arch, revision) = (options.arch, Revision::of_head());
    let program = options.program(Linking::Dynamic)?;
    let folder = root().join("target/deb");
    let stage = Stage(folder.join(format!("stage-{}-{}", arch.name(), std::process::id())));
    let files = root().join("deploy/debian");
    stage.put(&program, "usr/bin/energy-agent", 0o755)?;
    let agent = stage.0.join("usr/bin/energy-agent");
    checked(Command::new(build::tool(arch, "strip")).arg(&agent))?;
    // A plugin of kubectl is found by its name.
    symlink("energy-agent", stage.0.join("usr/bin/kubectl-energy"))?;
    stage.put(&files.join("energy-agent.service"), "usr/lib/systemd/system/energy-agent.service", 0o644)?;
    stage.put(&files.join("default"), "etc/default/energy-agent", 0o644)?;
    stage.put(&files.join("copyright"), &format!("{DOC}/copyright"), 0o644)?;
    stage.put(&files.join("lintian-overrides"), "usr/share/lintian/overrides/energy-agent", 0o644)?;
    stage.write(&format!("{DOC}/changelog"), changelog(&revision).as_bytes(), 0o644)?;
    let linked = inventory::linked(arch)?;
    stage.write(&format!("{DOC}/THIRD-PARTY.txt"), licences::text(&linked)?.as_bytes(), 0o644)?;
    let long = ["changelog", "THIRD-PARTY.txt"].map(|name| stage.0.join(DOC).join(name));
    checked(Command::new("gzip").args(["-9", "--no-name"]).args(long))?;
    stage.write(&format!("{DOC}/energy-agent.cdx.json"), sbom::document(&linked).to_string().as_bytes(), 0o644)?;
    let runs_here = if arch == Arch::HOST { program } else { build::release(Arch::HOST, Linking::Dynamic)? };
    stage.documents(&runs_here)?;
    let control = control(arch, &libc_version(arch, &agent)?, &stage)?;
    for name in ["postinst", "prerm", "postrm"] {
        stage.put(&files.join(name), &format!("DEBIAN/{name}"), 0o755)?;
    }
    stage.write("DEBIAN/conffiles", b"/etc/default/energy-agent\n", 0o644)?;
    stage.write("DEBIAN/control", control.as_bytes(), 0o644)?;
    // Folders are for all, whatever the umask says.
    checked(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(&stage.0))?;
    let package = options.output(folder.join(format!("energy-agent_{VERSION}_{}.deb", arch.name())));
    // Files get the time of the commit, so that the same source gives the same package.
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", &revision.epoch).args(["--root-owner-group", "--build"]);
    checked(build.arg(&stage.0).arg(&package))?;
    fs::remove_dir_all(&stage.0)?;
    println!("{}: {} MB", package.display(), build::megabytes(fs::metadata(&package)?.len()));
    Ok(())
}

/// The folder that becomes the package.
struct Stage(PathBuf);

impl Stage {
    fn put(&self, from: &Path, to: &str, mode: u32) -> Result<()> {
        let text = fs::read(from).with_context(|| from.display().to_string())?;
        self.write(to, &text, mode)
    }

    /// Man pages and completions, as `program` writes them.
    fn documents(&self, program: &Path) -> Result<()> {
        let pages = self.0.join("usr/share/man/man1");
        checked(Command::new(program).arg("man").arg(&pages))?;
        let pages: Vec<PathBuf> = fs::read_dir(&pages)?.map(|page| Ok(page?.path())).collect::<Result<_>>()?;
        checked(Command::new("gzip").args(["-9", "--no-name"]).args(pages))?;
        symlink("energy-agent-kubectl.1.gz", self.0.join("usr/share/man/man1/kubectl-energy.1.gz"))?;
        for (shell, file) in [
            ("bash", "bash-completion/completions/energy-agent"),
            ("zsh", "zsh/vendor-completions/_energy-agent"),
            ("fish", "fish/vendor_completions.d/energy-agent.fish"),
        ] {
            let script = output(Command::new(program).args(["completion", shell]))?;
            self.write(&format!("usr/share/{file}"), format!("{script}\n").as_bytes(), 0o644)?;
        }
        Ok(())
    }

    fn write(&self, to: &str, text: &[u8], mode: u32) -> Result<()> {
        let to = self.0.join(to);
        fs::create_dir_all(to.parent().unwrap_or(&self.0))?;
        fs::write(&to, text).with_context(|| to.display().to_string())?;
        Ok(fs::set_permissions(&to, fs::Permissions::from_mode(mode))?)
    }
}

/// What the package says of itself; `stage` has all that it installs.
fn control(arch: Arch, libc: &str, stage: &Stage) -> Result<String> {
    let used = output(Command::new("du").args(["--apparent-size", "--block-size=1024", "--summarize"]).arg(&stage.0))?;
    let kibibytes = used.split_whitespace().next().unwrap_or_default();
    Ok(format!(
        "Package: energy-agent\nVersion: {VERSION}\nArchitecture: {}\nSection: admin\nPriority: optional\n\
         Maintainer: {MAINTAINER}\nInstalled-Size: {kibibytes}\nDepends: libc6 (>= {libc}), libgcc-s1\n\
         Description: energy use of containers, pods and services\n \
         Measures the energy of each workload of this machine, by eBPF and the\n \
         energy counters of CPUs and GPUs, for Prometheus, and keeps pods within power\n budgets.\n",
        arch.name(),
    ))
}

/// One entry, for what the package was built from.
fn changelog(revision: &Revision) -> String {
    let Revision { hash, mail_date, .. } = revision;
    format!(
        "energy-agent ({VERSION}) unstable; urgency=medium\n\n  * Built from revision\n    {hash}.\n\n -- {MAINTAINER}  {mail_date}\n"
    )
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
