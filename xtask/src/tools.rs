//! Programs and sources from Debian packages, unpacked below `target/tools` without installing anything on the machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::{checked, output, root};

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
    let apt = folder.join("apt");
    fs::create_dir_all(apt.join("lists/partial"))?;
    fs::create_dir_all(apt.join("cache/archives/partial"))?;
    let mirror = debian_mirror()?;
    fs::write(
        apt.join("sources.list"),
        format!("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n"),
    )?;
    let options = [
        format!("Dir::Etc::sourcelist={}", apt.join("sources.list").display()),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={}", apt.join("lists").display()),
        format!("Dir::Cache={}", apt.join("cache").display()),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    println!("reading the package list of Debian {suite}");
    checked(apt_get(&options).arg("update").stdout(Stdio::null()))?;
    unpack(name, packages, &options)
}

fn unpack(name: &str, packages: &[&str], options: &[&str]) -> Result<PathBuf> {
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
    let files = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
    let debs: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect();
    ensure!(debs.len() >= packages.len(), "apt-get download left {} of {} packages", debs.len(), packages.len());
    for deb in debs {
        checked(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&folder))?;
        fs::remove_file(deb)?;
    }
    fs::write(folder.join("complete"), "")?;
    Ok(folder)
}

fn apt_get(options: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
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
