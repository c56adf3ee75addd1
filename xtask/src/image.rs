//! The container image: from scratch, without a daemon and without a network, as an OCI archive that every runtime loads.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, Arch, Linking, Options, VERSION};
use crate::{checked, output, root, tools};

/// What a node has to keep; bytes.
const LIMIT: u64 = 25_000_000;
/// The C library, and what the NVIDIA driver's library is linked with beside it.
const LIBRARIES: [&str; 6] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1"];

/// Builds the image.
///
/// # Errors
/// When a tool cannot be installed, the build fails, or the image is too large.
pub fn make(options: &Options) -> Result<()> {
    tools::installed(&[("buildah", "buildah"), ("skopeo", "skopeo")])?;
    let arch = options.arch;
    let program = options.program(Linking::Dynamic)?;
    let folder = root().join("target/image");
    let stage = folder.join(format!("stage-{}-{}", arch.name(), std::process::id()));
    let image = format!("localhost/energy-agent:{VERSION}");
    let archive = options.output(folder.join(format!("energy-agent-{VERSION}-{}.tar", arch.name())));
    fs::create_dir_all(&stage)?;
    let bytes = lay_out(arch, &program, &stage.join("root"))?;
    ensure!(
        !options.is_release() || bytes <= LIMIT,
        "the image would have {} MB, more than {} MB; see what grew in {}",
        build::megabytes(bytes),
        build::megabytes(LIMIT),
        stage.display()
    );
    pack(arch, &image, &stage, &archive)?;
    fs::remove_dir_all(&stage)?;
    let packed = fs::metadata(&archive)?.len();
    let name = archive.display();
    println!("{name}: {image}, {} MB on a node, {} MB to load", build::megabytes(bytes), build::megabytes(packed));
    Ok(())
}

/// Puts the files of the image into `root`; how many bytes they have.
fn lay_out(arch: Arch, program: &Path, root: &Path) -> Result<u64> {
    let (binaries, libraries) = (root.join("usr/bin"), root.join("lib"));
    for folder in [&binaries, &libraries] {
        fs::create_dir_all(folder)?;
    }
    // The loader is asked for in one of the two, and looks for libraries in the other.
    symlink("lib", root.join("lib64"))?;
    // What a pod mounts, so that the root can be read-only.
    fs::create_dir_all(root.join("var/lib/energy-agent"))?;
    let agent = binaries.join("energy-agent");
    let strip = build::tool(arch, "strip");
    checked(Command::new(strip).arg("-o").arg(&agent).arg(program))?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
    let mut bytes = fs::metadata(&agent)?.len();
    for name in LIBRARIES.into_iter().chain([loader(arch)]) {
        let option = format!("-print-file-name={name}");
        let found = PathBuf::from(output(Command::new(build::tool(arch, "gcc")).arg(option))?);
        // A compiler that does not find the file prints its name only.
        ensure!(found.is_absolute(), "the C compiler for {} knows no {name}", arch.name());
        bytes += fs::copy(&found, libraries.join(name)).with_context(|| found.display().to_string())?;
        fs::set_permissions(libraries.join(name), fs::Permissions::from_mode(0o755))?;
    }
    Ok(bytes)
}

const fn loader(arch: Arch) -> &'static str {
    match arch {
        Arch::Amd64 => "ld-linux-x86-64.so.2",
        Arch::Arm64 => "ld-linux-aarch64.so.1",
    }
}

/// Makes an OCI archive of the stage.
fn pack(arch: Arch, image: &str, stage: &Path, archive: &Path) -> Result<()> {
    // The same sources give the same layer.
    let git = |arguments: &[&str]| output(Command::new("git").args(arguments).current_dir(root()));
    let made_at = git(&["log", "-1", "--format=%ct"]).unwrap_or_else(|_| "0".to_owned());
    let revision = git(&["rev-parse", "HEAD"]).unwrap_or_else(|_| "unknown".to_owned());
    let buildah = || {
        let mut command = Command::new("buildah");
        command.args(["--storage-driver", "vfs", "--root"]).arg(stage.join("storage"));
        command.arg("--runroot").arg(stage.join("run"));
        command
    };
    let labels = [
        ("title", "energy-agent".to_owned()),
        ("description", "Energy metering per pod, container and service, and power budgets".to_owned()),
        ("version", VERSION.to_owned()),
        ("revision", revision),
        ("licenses", "Apache-2.0".to_owned()),
    ];
    let mut build = buildah();
    build.args(["bud", "--quiet", "--isolation", "chroot", "--arch", arch.name(), "--timestamp", &made_at]);
    for (name, value) in labels {
        build.arg(format!("--label=org.opencontainers.image.{name}={value}"));
    }
    build.arg("--tag").arg(image).arg("--file").arg(root().join("deploy/Containerfile")).arg(stage);
    output(&mut build)?;
    let _ = fs::remove_file(archive);
    if let Some(folder) = archive.parent() {
        fs::create_dir_all(folder)?;
    }
    let target = format!("oci-archive:{}:{image}", archive.display());
    checked(buildah().args(["push", "--quiet", image, &target]))
}
