//! Kernels as Debian builds them, kept below `target/vm/kernels`. Names of packages change with every release of one:
//! they are looked up when a kernel is fetched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build::Arch;
use crate::checked;
use crate::tools::apt;

/// Suites with kernels, from 5.10 to the newest.
const SUITES: [&str; 5] = ["bullseye", "bookworm", "trixie", "trixie-backports", "sid"];
/// From 7.0 on an image's package is empty, and its file is in the other one.
const PACKAGES: [&str; 2] = ["linux-binary-", "linux-image-"];

pub struct Kernel {
    /// As in its package's name, such as `6.1.0-50-cloud-amd64`.
    pub version: String,
    pub image: PathBuf,
}

/// The kernels of these beginnings of versions; those that are kept are not looked for again, unless `refresh`.
pub fn fetch(arch: Arch, wanted: &[String], refresh: bool) -> Vec<(String, Result<Kernel>)> {
    let mut archive = None;
    let mut fetched = Vec::new();
    for wanted in wanted {
        let folder = super::folder().join("kernels").join(arch.name()).join(wanted);
        let kept = if refresh { None } else { kept(&folder) };
        let kernel = match kept {
            Some(kernel) => Ok(kernel),
            None => {
                let archive = archive.get_or_insert_with(|| Archive::open(arch).map_err(|error| format!("{error:#}")));
                match archive {
                    Ok(archive) => archive.fetch(wanted, &folder),
                    Err(error) => Err(anyhow::anyhow!("{error}")),
                }
            }
        };
        fetched.push((wanted.clone(), kernel));
    }
    fetched
}

fn kept(folder: &Path) -> Option<Kernel> {
    let version = fs::read_to_string(folder.join("version")).ok()?;
    let image = folder.join("vmlinuz");
    image.is_file().then_some(Kernel { version, image })
}

/// Debian's lists of packages.
struct Archive {
    options: Vec<String>,
    /// Names of all packages with a kernel of the flavour.
    packages: Vec<String>,
}

impl Archive {
    fn open(arch: Arch) -> Result<Self> {
        let options = apt::of_suites_for(arch, &super::folder().join("apt").join(arch.name()), &SUITES)?;
        // Made for virtual machines: everything that is needed is built in.
        let flavour = format!("-cloud-{}", arch.name());
        let mut packages = Vec::new();
        for prefix in PACKAGES {
            packages.extend(apt::names(&options, prefix)?.into_iter().filter(|name| name.ends_with(&flavour)));
        }
        Ok(Self { options, packages })
    }

    fn fetch(&self, wanted: &str, folder: &Path) -> Result<Kernel> {
        let package = highest(&self.packages, wanted)
            .with_context(|| format!("Debian ({}) has no kernel {wanted}", SUITES.join(", ")))?;
        println!("fetching {package}");
        let unpacked = folder.join("unpacked");
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(&unpacked).with_context(|| unpacked.display().to_string())?;
        apt::fetch(&self.options, |get| {
            get.args(["download", package]).current_dir(folder);
        })?;
        let deb = found(folder, &|name| name.ends_with(".deb")).with_context(|| format!("{package}: no file came"))?;
        checked(Command::new("dpkg-deb").arg("-x").arg(deb).arg(&unpacked))?;
        let image = found(&unpacked, &|name| name.starts_with("vmlinuz"))
            .with_context(|| format!("{package} holds no vmlinuz"))?;
        let kept = folder.join("vmlinuz");
        fs::copy(&image, &kept).with_context(|| image.display().to_string())?;
        fs::remove_dir_all(&unpacked)?;
        let version = version(package).unwrap_or(package);
        fs::write(folder.join("version"), version)?;
        ensure!(kept.is_file(), "{} is not there", kept.display());
        Ok(Kernel { version: version.to_owned(), image: kept })
    }
}

/// The first file below a folder whose name is one that is looked for.
fn found(folder: &Path, is: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let entries: Vec<_> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let named = |path: &PathBuf| path.is_file() && path.file_name().and_then(|name| name.to_str()).is_some_and(is);
    entries
        .iter()
        .find(|path| named(path))
        .cloned()
        .or_else(|| entries.iter().filter(|path| path.is_dir() && !path.is_symlink()).find_map(|path| found(path, is)))
}

fn version(package: &str) -> Option<&str> {
    let version = PACKAGES.iter().find_map(|prefix| package.strip_prefix(prefix))?;
    version.starts_with(|first: char| first.is_ascii_digit()).then_some(version)
}

/// The package of the highest version that begins with `wanted`; of any, for `newest`.
fn highest<'a>(packages: &'a [String], wanted: &str) -> Option<&'a str> {
    let begins = |version: &str| {
        wanted == "newest" || version.strip_prefix(wanted).is_some_and(|rest| rest.starts_with(['.', '-', '+']))
    };
    let candidates = packages.iter().filter_map(|package| Some((version(package)?, package.as_str())));
    let candidates = candidates.filter(|(version, _)| begins(version));
    // Of two packages with one kernel the first of PACKAGES, which is first in the list.
    candidates.rev().max_by_key(|(version, _)| numbers(version)).map(|(_, package)| package)
}

fn numbers(version: &str) -> Vec<u32> {
    version.split(|digit: char| !digit.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_version_wins_and_its_binary_package_goes_first() {
        let packages = [
            "linux-binary-7.2.13+deb14-cloud-amd64",
            "linux-binary-7.10.4+deb13-cloud-amd64",
            "linux-binary-unsigned-7.10.4+deb13-cloud-amd64",
            "linux-image-5.10.0-9-cloud-amd64",
            "linux-image-5.10.0-32-cloud-amd64",
            "linux-image-6.1.0-50-cloud-amd64",
            "linux-image-7.10.4+deb13-cloud-amd64",
            "linux-image-cloud-amd64",
        ]
        .map(str::to_owned);
        assert_eq!(highest(&packages, "5.10"), Some("linux-image-5.10.0-32-cloud-amd64"));
        assert_eq!(highest(&packages, "newest"), Some("linux-binary-7.10.4+deb13-cloud-amd64"));
        assert_eq!(highest(&packages, "7.1"), None, "7.10 is another series");
        assert_eq!(highest(&packages, "6.1.0-50"), Some("linux-image-6.1.0-50-cloud-amd64"));
    }
}
