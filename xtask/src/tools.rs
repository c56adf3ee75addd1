//! Programs and sources from Debian packages, unpacked below `target/tools` without installing anything on the machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

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

/// Unpacks packages of another Debian suite into one folder of this name.
///
/// # Errors
/// As [`unpacked_from`].
pub fn unpacked_together(name: &str, packages: &[&str], suite: &str) -> Result<PathBuf> {
    let folder = folder(name);
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    let options = apt_of(&folder.join("apt"), &[suite])?;
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
    let options = ["Debug::NoLocking=1".to_owned(), format!("Dir::Cache::archives={}", archives.display())];
    let install = ["install", "--download-only", "--yes", "--no-install-recommends", package];
    let fetch = || checked(apt_get(&options).args(install).stdout(Stdio::null()));
    if fetch().is_err() {
        // A fresh machine has no package lists yet.
        checked(apt_get(&[]).arg("update").stdout(Stdio::null()))?;
        fetch()?;
    }
    unpack_all(&archives, &folder)?;
    fs::remove_dir_all(archives)?;
    fs::write(folder.join("complete"), "")?;
    Ok(folder)
}

/// Options by which apt knows these suites of the Debian archive and no others, with its lists in `folder`, fetched anew.
///
/// # Errors
/// As [`unpacked_from`].
pub fn apt_of(folder: &Path, suites: &[&str]) -> Result<Vec<String>> {
    fs::create_dir_all(folder.join("lists/partial"))?;
    fs::create_dir_all(folder.join("cache/archives/partial"))?;
    let mirror = debian_mirror()?;
    let keys = "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg";
    let lines: String = suites.iter().map(|suite| format!("deb [{keys}] {mirror} {suite} main\n")).collect();
    fs::write(folder.join("sources.list"), lines)?;
    let options = vec![
        format!("Dir::Etc::sourcelist={}", folder.join("sources.list").display()),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={}", folder.join("lists").display()),
        format!("Dir::Cache={}", folder.join("cache").display()),
    ];
    println!("reading the package lists of Debian {}", suites.join(", "));
    checked(apt_get(&options).arg("update").stdout(Stdio::null()))?;
    Ok(options)
}

fn unpack(name: &str, packages: &[&str], options: &[String]) -> Result<PathBuf> {
    let folder = folder(name);
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    fs::create_dir_all(&folder)?;
    println!("fetching the Debian package{} {name}", if packages.len() > 1 { "s for" } else { "" });
    let fetch = || checked(apt_get(options).arg("download").args(packages).current_dir(&folder).stdout(Stdio::null()));
    if fetch().is_err() {
        // A fresh machine has no package lists yet.
        checked(apt_get(options).arg("update").stdout(Stdio::null()))?;
        fetch().with_context(|| format!("Debian packages for {name}"))?;
    }
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

/// `apt-get` with these options of its configuration.
pub fn apt_get(options: &[String]) -> Command {
    apt("apt-get", options)
}

/// `apt-cache` likewise.
pub fn apt_cache(options: &[String]) -> Command {
    apt("apt-cache", options)
}

fn apt(program: &str, options: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(["-qq", "-o", "APT::Sandbox::User=root"]);
    for option in options {
        command.args(["-o", option]);
    }
    command
}

/// The mirror of the Debian archive that this machine uses.
fn debian_mirror() -> Result<String> {
    let lines = output(Command::new("apt-get").args(["indextargets", "--format", "$(SITE) $(REPO_URI)"]))?;
    let mirror = lines
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(_, uri)| uri.trim_end_matches('/'))
        .find(|uri| uri.ends_with("/debian"));
    mirror.map(str::to_owned).context("apt's sources name no Debian mirror (a URI ending in /debian)")
}

/// Installs the Debian packages of those programs that are not on PATH: pairs of program and package.
///
/// # Errors
/// When they can't be had; names them.
pub fn installed(programs: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> =
        programs.iter().filter(|(program, _)| !on_path(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// Installs Debian packages on this machine.
///
/// # Errors
/// When they can't be had, or only root may; names them.
pub fn install(packages: &[&str]) -> Result<()> {
    println!("installing {}", packages.join(", "));
    let options = ["Dpkg::Use-Pty=0".to_owned()];
    let get = || {
        let mut command = apt_get(&options);
        command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
        checked(command.env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null()).stderr(Stdio::null()))
    };
    if get().is_err() {
        // A fresh machine has no package lists yet.
        checked(apt_get(&options).arg("update").stdout(Stdio::null()))?;
        get().with_context(|| format!("install the packages {} on this machine", packages.join(", ")))?;
    }
    Ok(())
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
/// When this machine has no Python with `venv`, or the packages can't be had.
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
    checked(Command::new(&python).args(pip).args(packages))?;
    checked(Command::new(&python).args(pip).args(["--no-deps", "--requirement"]).arg(hashed))?;
    fs::write(complete, wanted)?;
    Ok(python)
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
