//! Makes the eBPF object that is kept in the repository, so that a build needs stable Rust alone, and writes down what
//! it was made from, so that a test notices when that has changed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{checked, output, root, tools};

const OBJECT: &str = "energy-ebpf/energy-ebpf.bpf.o";
const RECORD: &str = "energy-ebpf/energy-ebpf.bpf.sum";
const TARGET: &str = "bpfel-unknown-none";
const LINKER: &str = "0.10.4";

/// Builds the object with nightly Rust and bpf-linker, which are installed (below `target/tools`) where they are missing.
///
/// # Errors
/// When the tools cannot be installed or the build fails; with `check`, when the result is not the kept object.
pub fn make(check: bool) -> Result<()> {
    let rustc = nightly_with_source()?;
    let linker = bpf_linker()?;
    let mut build = Command::new("cargo");
    build
        .args(["+nightly", "build", "--locked", "--release", "--package", "energy-ebpf"])
        .args(["-Z", "build-std=core", "--target", TARGET])
        .current_dir(root())
        .env("PATH", tools::path_with(&linker)?)
        .env("CARGO_TARGET_DIR", root().join("target/ebpf"))
        .env_remove("RUSTFLAGS")
        // Set by the cargo that runs us, for the stable toolchain.
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    checked(&mut build)?;
    let built = fs::read(root().join("target/ebpf").join(TARGET).join("release/energy-ebpf"))?;
    let kept = fs::read(root().join(OBJECT)).unwrap_or_default();
    if check {
        if built != kept {
            bail!("{OBJECT} is not what {rustc} makes of the sources: run `cargo xtask ebpf` and commit the result");
        }
        println!("{OBJECT} is what {rustc} makes of the sources");
        return Ok(());
    }
    fs::write(root().join(OBJECT), &built)?;
    let record = format!(
        "# What {OBJECT} was made from, written by `cargo xtask ebpf`; a test compares it with the tree.\n# {rustc}, bpf-linker {LINKER}\n{}",
        ingredients(&root())?
    );
    fs::write(root().join(RECORD), record)?;
    println!("{OBJECT}: {} bytes, {}", built.len(), if built == kept { "unchanged" } else { "changed" });
    Ok(())
}

/// One line for the object and for each thing it is made from: sources by checksum, locked crates by version.
fn ingredients(root: &Path) -> Result<String> {
    let mut files = vec![PathBuf::from(OBJECT), PathBuf::from("energy-ebpf/Cargo.toml")];
    files.extend(sources(root, Path::new("energy-ebpf/src"))?);
    let mut lines = String::new();
    for file in files {
        let content = fs::read(root.join(&file)).with_context(|| file.display().to_string())?;
        let mut digest = String::new();
        for byte in Sha256::digest(&content) {
            write!(digest, "{byte:02x}")?;
        }
        writeln!(lines, "{digest} {}", file.display())?;
    }
    let lock = fs::read_to_string(root.join("Cargo.lock"))?;
    let lock: toml::Table = lock.parse().context("Cargo.lock")?;
    for package in lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock without packages")? {
        let text = |key| package.get(key).and_then(toml::Value::as_str).unwrap_or_default();
        let name = text("name");
        // The crates whose code ends up in the object or writes it.
        if name.starts_with("aya-ebpf") || name.starts_with("aya-log-") {
            writeln!(lines, "crate {name} {}", text("version"))?;
        }
    }
    Ok(lines)
}

/// All files below a folder, in order.
fn sources(root: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            files.extend(sources(root, &path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn nightly(program: &str) -> Command {
    let mut command = Command::new(program);
    command.arg("+nightly").env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Nightly Rust that can build its own library, installed where it is missing; its version.
///
/// # Errors
/// When it cannot be installed.
pub fn nightly_with_source() -> Result<String> {
    let rustc = nightly_rustc()?;
    ensure_library_source(&rustc)?;
    Ok(rustc)
}

fn nightly_rustc() -> Result<String> {
    if let Ok(version) = output(nightly("rustc").arg("--version")) {
        return Ok(version);
    }
    println!("installing nightly Rust by rustup");
    checked(Command::new("rustup").args([
        "toolchain",
        "install",
        "nightly",
        "--profile",
        "minimal",
        "--component",
        "rust-src",
    ]))
    .context(
        "nightly Rust is needed to make the eBPF object and to build for another processor (not to build energy-agent)",
    )?;
    output(nightly("rustc").arg("--version"))
}

/// `-Z build-std` compiles `core` from source: rustup's component, or Debian's package of the same release.
fn ensure_library_source(rustc: &str) -> Result<()> {
    let sysroot = PathBuf::from(output(nightly("rustc").args(["--print", "sysroot"]))?);
    let library = sysroot.join("lib/rustlib/src/rust/library");
    if library.join("core/Cargo.toml").exists() {
        return Ok(());
    }
    println!("adding the source of the standard library to nightly Rust");
    let component = Command::new("rustup").args(["component", "add", "rust-src", "--toolchain", "nightly"]).output();
    if component.is_ok_and(|result| result.status.success()) && library.join("core/Cargo.toml").exists() {
        return Ok(());
    }
    let release = rustc.split_whitespace().nth(1).unwrap_or_default();
    let release = release.split(['.', '-']).take(2).collect::<Vec<_>>().join(".");
    for suite in ["forky", "sid"] {
        let Ok(folder) = tools::unpacked_from("rust-src", suite) else { continue };
        let found = fs::read_dir(folder.join("usr/src"))?
            .flatten()
            .find(|entry| entry.file_name().to_string_lossy().starts_with(&format!("rustc-{release}.")));
        if let Some(source) = found {
            fs::create_dir_all(sysroot.join("lib/rustlib/src/rust"))?;
            checked(Command::new("cp").arg("-r").arg(source.path().join("library")).arg(&library))?;
            return Ok(());
        }
        fs::remove_dir_all(folder)?;
    }
    bail!("no source of the standard library for {rustc}: rustup component add rust-src --toolchain nightly")
}

/// Folder with a bpf-linker of the version that the kept object is made with.
fn bpf_linker() -> Result<PathBuf> {
    let install = root().join("target/tools/bpf-linker");
    let wanted = format!("bpf-linker {LINKER}");
    let version = |program: &Path| output(Command::new(program).arg("--version")).unwrap_or_default();
    for folder in [Some(install.join("bin")), env::home_dir().map(|home| home.join(".cargo/bin"))].into_iter().flatten()
    {
        if version(&folder.join("bpf-linker")) == wanted {
            return Ok(folder);
        }
    }
    println!("installing {wanted} below target/tools (about two minutes)");
    checked(
        nightly("cargo")
            .args(["install", &format!("bpf-linker@{LINKER}"), "--locked", "--quiet", "--root"])
            .arg(&install)
            .env_remove("CARGO")
            .env_remove("RUSTC"),
    )?;
    Ok(install.join("bin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_object_is_made_from_these_sources() {
        let record = fs::read_to_string(root().join(RECORD)).unwrap();
        let recorded: Vec<&str> = record.lines().filter(|line| !line.starts_with('#')).collect();
        let present = ingredients(&root()).unwrap();
        let present: Vec<&str> = present.lines().collect();
        assert_eq!(recorded, present, "{OBJECT} is stale: run `cargo xtask ebpf` and commit the result");
    }

    #[test]
    fn a_changed_source_is_noticed() {
        let copy = tempfile::tempdir().unwrap();
        let mut files = sources(&root(), Path::new("energy-ebpf/src")).unwrap();
        files.extend(["Cargo.lock", OBJECT, "energy-ebpf/Cargo.toml"].map(PathBuf::from));
        for file in files {
            fs::create_dir_all(copy.path().join(&file).parent().unwrap()).unwrap();
            fs::copy(root().join(&file), copy.path().join(&file)).unwrap();
        }
        let before = ingredients(copy.path()).unwrap();
        assert_eq!(before, ingredients(&root()).unwrap());
        fs::write(copy.path().join("energy-ebpf/src/programs/slot.rs"), "// changed").unwrap();
        assert_ne!(before, ingredients(copy.path()).unwrap());
    }
}
