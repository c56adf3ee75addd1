//! All that a release consists of, in one folder: programs, package, image, chart, source, licences, bill of materials, notes and
//! checksums. Archives have neither times nor owners nor an order of their own: the same source gives the same bytes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::build::{self, Arch, VERSION};
use crate::revision::Revision;
use crate::{checked, deb, image, inventory, licences, output, root, sbom, static_program};

const THIRD_PARTY: &str = "THIRD-PARTY.txt";

#[derive(Args)]
pub struct Options {
    /// Processor of the nodes.
    #[arg(long, value_enum, default_value_t = Arch::HOST)]
    arch: Arch,
    /// Leave out what has to be compiled: static program, package and image.
    #[arg(long)]
    without_programs: bool,
    /// Folder to write.
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Makes the folder, in place of an older one.
///
/// # Errors
/// When a build fails, or a tool is missing.
pub fn make(options: &Options) -> Result<()> {
    let folder = options.output.clone().unwrap_or_else(|| root().join("target/release-files"));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let revision = Revision::of_head();
    let linked = inventory::linked(options.arch)?;
    let third_party = licences::text(&linked)?;
    fs::write(folder.join(THIRD_PARTY), &third_party)?;
    let document = serde_json::to_string_pretty(&sbom::document(&linked))? + "\n";
    fs::write(folder.join(format!("energy-agent-{VERSION}.cdx.json")), document)?;
    fs::write(folder.join("NOTES.md"), notes(&fs::read_to_string(root().join("CHANGELOG.md"))?))?;
    // As `helm package` names it.
    let chart = Archive { name: "energy-agent", from: &root().join("deploy/helm"), revision: &revision };
    chart.pack(&folder.join(format!("energy-agent-{VERSION}.tgz")))?;
    source(&folder)?;
    if !options.without_programs {
        programs(options.arch, &folder, &revision)?;
    }
    checksums(&folder)?;
    println!("{}", folder.display());
    Ok(())
}

fn programs(arch: Arch, folder: &Path, revision: &Revision) -> Result<()> {
    let name = format!("energy-agent-{VERSION}-linux-{}", arch.name());
    let stage = folder.join("stage");
    let inside = stage.join(&name);
    static_program::make(&build::Options::to(arch, inside.join("energy-agent")))?;
    for file in ["LICENSE", "README.md", "CHANGELOG.md", "deploy/debian/energy-agent.service"] {
        let from = root().join(file);
        fs::copy(&from, inside.join(from.file_name().unwrap_or_default())).with_context(|| file.to_owned())?;
    }
    fs::copy(folder.join(THIRD_PARTY), inside.join(THIRD_PARTY))?;
    symlink("energy-agent", inside.join("kubectl-energy"))?;
    Archive { name: &name, from: &stage, revision }.pack(&folder.join(format!("{name}.tar.gz")))?;
    fs::remove_dir_all(&stage)?;
    deb::make(&build::Options::to(arch, folder.join(format!("energy-agent_{VERSION}_{}.deb", arch.name()))))?;
    image::make(&build::Options::to(arch, folder.join(format!("energy-agent-{VERSION}-image-{}.tar", arch.name()))))
}

/// A folder as an archive.
struct Archive<'a> {
    name: &'a str,
    /// The folder that it lies in.
    from: &'a Path,
    revision: &'a Revision,
}

impl Archive<'_> {
    fn pack(&self, to: &Path) -> Result<()> {
        let mut tar = Command::new("tar");
        tar.args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
        tar.args(["--mode=u=rwX,go=rX", "--use-compress-program=gzip -9n"]);
        tar.arg(format!("--mtime=@{}", self.revision.epoch)).arg("--file").arg(to);
        checked(tar.arg("--directory").arg(self.from).arg(self.name))
    }
}

/// The source as git has it, without what is not committed. A tree without git is an unpacked archive itself.
fn source(folder: &Path) -> Result<()> {
    let git = || {
        let mut git = Command::new("git");
        git.current_dir(root());
        git
    };
    if output(git().args(["rev-parse", "HEAD"])).is_err() {
        println!("no git here: the source is left out");
        return Ok(());
    }
    let file = folder.join(format!("energy-agent-{VERSION}-source.tar.gz"));
    let mut archive = git();
    archive.args(["-c", "tar.tar.gz.command=gzip -9n", "archive", "--format=tar.gz"]);
    archive.arg(format!("--prefix=energy-agent-{VERSION}/")).arg("--output").arg(file);
    checked(archive.arg("HEAD"))
}

/// The section of this version, or of what is not released yet.
fn notes(changes: &str) -> String {
    let section = |title: &str| {
        let (_, rest) = changes.split_once(&format!("\n## {title}"))?;
        let rest = rest.split_once('\n')?.1;
        Some(rest.split("\n## ").next().unwrap_or_default().trim().to_owned())
    };
    let text = section(VERSION).or_else(|| section("Unreleased")).unwrap_or_default();
    format!("# energy-agent {VERSION}\n\n{text}\n")
}

/// Of every file, for `sha256sum --check`.
fn checksums(folder: &Path) -> Result<()> {
    let mut names: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(PathBuf::from(entry?.file_name()))).collect::<Result<_>>()?;
    names.sort();
    let sums = output(Command::new("sha256sum").args(&names).current_dir(folder))?;
    Ok(fs::write(folder.join("SHA256SUMS"), sums + "\n")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notes_are_the_section_of_this_version_or_else_of_the_next() {
        let older = "\n## 0.0.9\n\n- old\n";
        let unreleased = format!("# Changes\n\n## Unreleased\n\n- new\n{older}");
        assert_eq!(notes(&unreleased), format!("# energy-agent {VERSION}\n\n- new\n"));
        let released =
            format!("# Changes\n\n## Unreleased\n\n- next\n\n## {VERSION} (2026-12-01)\n\n- this\n  more\n{older}");
        assert_eq!(notes(&released), format!("# energy-agent {VERSION}\n\n- this\n  more\n"));
    }
}
