//! apt, and the mirrors that it asks: one that does not answer or breaks off is asked again after a while.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::build::Arch;
use crate::output;

/// Before each further try. apt itself has tried three times in seven seconds by then.
const PAUSES: [Duration; 3] = [Duration::from_secs(10), Duration::from_secs(30), Duration::from_secs(60)];

/// Options by which apt knows these suites of the Debian archive and no others, with its lists in `folder`, fetched anew.
///
/// # Errors
/// When there is no Debian mirror in apt's sources, or it does not answer.
pub fn of_suites(folder: &Path, suites: &[&str]) -> Result<Vec<String>> {
    of_suites_for(Arch::HOST, folder, suites)
}

/// The same for packages of another processor.
///
/// # Errors
/// As [`of_suites`].
pub fn of_suites_for(arch: Arch, folder: &Path, suites: &[&str]) -> Result<Vec<String>> {
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
        format!("APT::Architecture={}", arch.name()),
        format!("APT::Architectures={}", arch.name()),
    ];
    println!("reading the package lists of Debian {}", suites.join(", "));
    patiently(|| update(&options))?;
    Ok(options)
}

/// Runs an `apt-get` that fetches packages; `complete` adds what is to be done.
///
/// # Errors
/// apt's own words.
pub fn fetch(options: &[String], complete: impl Fn(&mut Command)) -> Result<()> {
    let get = || {
        let mut command = apt("apt-get", options);
        complete(&mut command);
        run(&mut command)
    };
    patiently(|| {
        get().or_else(|_| {
            // A fresh machine has no package lists yet, and old ones name files that are gone.
            let updated = update(options);
            get().or_else(|error| updated.and(Err(error)))
        })
    })
}

/// The names of all packages that begin so.
///
/// # Errors
/// When apt does not know them.
pub fn names(options: &[String], prefix: &str) -> Result<Vec<String>> {
    let names = output(apt("apt-cache", options).args(["pkgnames", prefix]))?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// Reads the package lists; without the option, apt calls it a success when no mirror answers.
fn update(options: &[String]) -> Result<()> {
    run(apt("apt-get", options).args(["-o", "APT::Update::Error-Mode=any", "update"]))
}

fn apt(program: &str, options: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(["-qq", "-o", "APT::Sandbox::User=root"]);
    for option in options {
        command.args(["-o", option]);
    }
    command
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().context("starting apt-get")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let said: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("E: ")).collect();
        bail!("{} (apt-get: {})", said.join("; "), output.status);
    }
    Ok(())
}

/// Tries again while it is a mirror, the way to it, or another apt that fails.
fn patiently(attempt: impl Fn() -> Result<()>) -> Result<()> {
    for pause in PAUSES {
        match attempt() {
            Err(error) if passes(&error.to_string()) => {
                println!("{error:#}; trying again in {} s", pause.as_secs());
                sleep(pause);
            }
            outcome => return outcome,
        }
    }
    attempt()
}

/// Whether what apt says may be otherwise in a minute.
fn passes(said: &str) -> bool {
    ["Failed to fetch", "Unable to fetch", "Could not get lock"].iter().any(|words| said.contains(words))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_that_is_away_passes_and_a_name_that_nobody_has_does_not() {
        // apt 2.6.1, of a port that nobody listens on, and beside another apt.
        for said in [
            "Failed to fetch http://127.0.0.1:9/debian/dists/sid/InRelease  Could not connect to 127.0.0.1:9 \
             (127.0.0.1). - connect (111: Connection refused)",
            "Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?",
            "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 25 (apt-get)",
        ] {
            assert!(passes(said), "{said}");
        }
        assert!(!passes("Unable to locate package busybox-static-x"));
    }
}
