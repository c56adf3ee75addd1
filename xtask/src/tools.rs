//! Programs and sources from Debian packages, and packages of Python and Node, below `target/tools`: nothing is installed on
//! the machine.

pub mod apt;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::build::Arch;
use crate::{checked, output, root};

/// Minor version of the oldest kubectl that the manifests are tested with.
const OLDEST_KUBECTL: u32 = 30;
/// The first Debian release that has it; in the one before it is 1.20.
const KUBECTL_FROM: &str = "trixie";

/// Where a package of this name was or would be unpacked.
pub fn folder(package: &str) -> PathBuf {
    root().join("target/tools").join(package)
}

/// Unpacks a package of this machine's own release; returns the folder that stands for `/`.
///
/// # Errors
/// When apt can't find or fetch it.
pub fn unpacked(package: &str) -> Result<PathBuf> {
    unpack(package, &[package], &[])
}

/// Unpacks a package of another Debian suite, found through this machine's own mirror.
///
/// # Errors
/// When there is no Debian mirror in apt's sources, or apt can't find or fetch the package.
pub fn unpacked_from(package: &str, suite: &str) -> Result<PathBuf> {
    unpacked_together(package, &[package], suite)
}

/// Unpacks a package of another Debian suite that is built for `arch`, as [`unpacked_from`] does.
///
/// # Errors
/// As [`unpacked_from`].
pub fn unpacked_for(arch: Arch, package: &str, suite: &str) -> Result<PathBuf> {
    let name = format!("{package}-{}", arch.name());
    let folder = folder(&name);
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    unpack(&name, &[package], &apt::of_suites_for(arch, &folder.join("apt"), &[suite])?)
}

/// Unpacks packages of another Debian suite into one folder of this name.
///
/// # Errors
/// As [`unpacked_from`].
pub fn unpacked_together(name: &str, packages: &[&str], suite: &str) -> Result<PathBuf> {
    let folder = folder(name);
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    let options = apt::of_suites(&folder.join("apt"), &[suite])?;
    unpack(name, packages, &options)
}

/// Unpacks a package of this machine's own release and all those it needs that are not installed; the programs in it find
/// their libraries by LD_LIBRARY_PATH.
///
/// # Errors
/// When apt can't find or fetch one.
pub fn unpacked_with_dependencies(package: &str) -> Result<PathBuf> {
    let folder = folder(package);
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    let archives = folder.join("archives");
    fs::create_dir_all(archives.join("partial"))?;
    println!("fetching the Debian package {package} and what it needs");
    let options = [format!("Dir::Cache::archives={}", archives.display())];
    apt::fetch(&options, |get| {
        // Nothing is installed, and only this folder written.
        get.args([
            "-o",
            "Debug::NoLocking=1",
            "install",
            "--download-only",
            "--yes",
            "--no-install-recommends",
            package,
        ]);
    })?;
    unpack_all(&archives, &folder)?;
    fs::remove_dir_all(archives)?;
    fs::write(folder.join("complete"), "")?;
    Ok(folder)
}

fn unpack(name: &str, packages: &[&str], options: &[String]) -> Result<PathBuf> {
    let folder = folder(name);
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    fs::create_dir_all(&folder)?;
    println!("fetching the Debian package{} {name}", if packages.len() > 1 { "s for" } else { "" });
    apt::fetch(options, |get| {
        get.arg("download").args(packages).current_dir(&folder);
    })
    .with_context(|| format!("Debian packages for {name}"))?;
    let count = unpack_all(&folder, &folder)?;
    ensure!(count >= packages.len(), "apt-get download left {count} of {} packages", packages.len());
    fs::write(folder.join("complete"), "")?;
    Ok(folder)
}

/// Unpacks every package file of `from` into `folder` and removes it; how many there were.
fn unpack_all(from: &Path, folder: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(from)?.flatten() {
        let deb = entry.path();
        if deb.extension().is_some_and(|extension| extension == "deb") {
            checked(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(folder))?;
            fs::remove_file(deb)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Installs the Debian packages of those programs that are not on PATH: pairs of program and package.
///
/// # Errors
/// When they cannot be installed; the error names them.
pub fn installed(programs: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> =
        programs.iter().filter(|(program, _)| !on_path(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// Installs Debian packages on this machine.
///
/// # Errors
/// When they cannot be installed, or only by root; the error names them.
pub fn install(packages: &[&str]) -> Result<()> {
    println!("installing {}", packages.join(", "));
    apt::fetch(&["Dpkg::Use-Pty=0".to_owned()], |get| {
        get.args(["install", "--yes", "--no-remove", "--no-install-recommends"]).args(packages);
        get.env("DEBIAN_FRONTEND", "noninteractive");
    })
    .with_context(|| format!("install the packages {} on this machine", packages.join(", ")))
}

/// Whether a kubectl is on PATH that knows all that is in deploy/.
pub fn kubectl_is_recent() -> bool {
    let mut command = Command::new("kubectl");
    let Ok(said) = output(command.args(["version", "--client", "--output=json"])) else { return false };
    let said: Value = serde_json::from_str(&said).unwrap_or_default();
    // Some builds have a plus sign after the number.
    let minor = said["clientVersion"]["minor"].as_str().unwrap_or_default().trim_end_matches('+').parse();
    said["clientVersion"]["major"] == "1" && minor.is_ok_and(|minor: u32| minor >= OLDEST_KUBECTL)
}

/// The folder of a kubectl that is recent.
///
/// # Errors
/// As [`unpacked_from`].
pub fn kubectl() -> Result<PathBuf> {
    // Named with the suite: apt would not go back behind another vendor's package that is installed and has a higher number.
    let folder = unpacked_together("kubectl", &[&format!("kubectl/{KUBECTL_FROM}")], KUBECTL_FROM)?;
    Ok(folder.join("usr/bin"))
}

/// A Python of its own with these packages, those of the file `hashed` checked by hash; made anew when they change.
///
/// # Errors
/// When this machine has no Python with `venv`, or the packages cannot be installed.
pub fn python(name: &str, packages: &[&str], hashed: &Path) -> Result<PathBuf> {
    let folder = folder(&format!("python-{name}"));
    let (python, complete) = (folder.join("bin/python"), folder.join("complete"));
    let wanted =
        packages.join("\n") + "\n" + &fs::read_to_string(hashed).with_context(|| hashed.display().to_string())?;
    if fs::read_to_string(&complete).is_ok_and(|made_of| made_of == wanted) {
        return Ok(python);
    }
    println!("fetching Python packages for the tests of {name}");
    checked(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    if !packages.is_empty() {
        checked(Command::new(&python).args(pip).args(packages))?;
    }
    checked(Command::new(&python).args(pip).args(["--no-deps", "--requirement"]).arg(hashed))?;
    fs::write(complete, wanted)?;
    Ok(python)
}

/// npm packages as the lock file in `source` has them, by hash, and the Node that runs them; fetched anew when they change.
///
/// # Errors
/// As [`python`], which installs Node, and when the packages cannot be installed.
pub fn npm(name: &str, source: &Path) -> Result<(PathBuf, PathBuf)> {
    let node = python(&format!("{name}-node"), &[], &source.join("requirements.txt"))?.with_file_name("node");
    let folder = folder(&format!("npm-{name}"));
    let complete = folder.join("complete");
    let lock = source.join("package-lock.json");
    let wanted = fs::read_to_string(&lock).with_context(|| lock.display().to_string())?;
    if fs::read_to_string(&complete).is_ok_and(|made_of| made_of == wanted) {
        return Ok((folder, node));
    }
    println!("fetching npm packages for the tests of {name}");
    fs::create_dir_all(&folder)?;
    for file in ["package.json", "package-lock.json"] {
        fs::copy(source.join(file), folder.join(file))?;
    }
    let cache = folder.join("cache");
    let mut install = Command::new(node.with_file_name("npm"));
    install.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--cache"]).arg(&cache);
    checked(install.current_dir(&folder))?;
    let _ = fs::remove_dir_all(cache);
    fs::write(complete, wanted)?;
    Ok((folder, node))
}

/// Whether a program is on PATH.
pub fn on_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// PATH with a folder in front.
///
/// # Errors
/// When the folder's name can't be part of PATH.
pub fn path_with(folder: &Path) -> Result<std::ffi::OsString> {
    ensure!(folder.is_dir(), "{} is no folder", folder.display());
    let old = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths([folder.to_owned()].into_iter().chain(env::split_paths(&old)))?)
}
