//! The container image: from scratch, without a daemon and without a network, as an OCI archive that every runtime loads.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, Arch, Linking, Options, VERSION};
use crate::revision::Revision;
use crate::{checked, inventory, licences, output, root, sbom, tools};

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
    // `kubectl exec POD -- kubectl-energy budgets`: the plugin of kubectl where there is none.
    symlink("energy-agent", binaries.join("kubectl-energy"))?;
    let mut bytes = fs::metadata(&agent)?.len();
    for name in LIBRARIES.into_iter().chain([loader(arch)]) {
        let option = format!("-print-file-name={name}");
        let found = PathBuf::from(output(Command::new(build::tool(arch, "gcc")).arg(option))?);
        // A compiler that does not find the file prints its name only.
        ensure!(found.is_absolute(), "the C compiler for {} knows no {name}", arch.name());
        bytes += fs::copy(&found, libraries.join(name)).with_context(|| found.display().to_string())?;
        fs::set_permissions(libraries.join(name), fs::Permissions::from_mode(0o755))?;
    }
    for (name, text) in papers(arch)? {
        let file = root.join("usr/share/doc/energy-agent").join(name);
        fs::create_dir_all(file.parent().unwrap_or(root))?;
        bytes += u64::try_from(text.len())?;
        fs::write(&file, text)?;
    }
    Ok(bytes)
}

/// The licences of all that is in the image, and its bill of materials.
fn papers(arch: Arch) -> Result<Vec<(String, String)>> {
    let linked = inventory::linked(arch)?;
    let ours = fs::read_to_string(crate::root().join("LICENSE"))?;
    let mut papers = vec![
        ("LICENSE".to_owned(), ours),
        ("THIRD-PARTY.txt".to_owned(), licences::text(&linked)?),
        ("energy-agent.cdx.json".to_owned(), sbom::document(&linked).to_string()),
    ];
    // Debian keeps those of its libraries here; where the build machine is another system, the libraries are its own.
    for package in ["libc6", "libgcc-s1"] {
        let cross = format!("{package}-{}-cross", arch.name());
        let package = if arch == Arch::HOST { package } else { &cross };
        let file = Path::new("/usr/share/doc").join(package).join("copyright");
        match fs::read_to_string(&file) {
            Ok(text) => papers.push((format!("{package}-copyright"), text)),
            Err(error) => println!("no licence of {package} in the image: {}: {error}", file.display()),
        }
    }
    Ok(papers)
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
    let revision = Revision::of_head();
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
        ("revision", revision.hash),
        ("created", revision.iso_date),
        // With the C library and GCC's that lie beside the program.
        ("licenses", "Apache-2.0 AND LGPL-2.1-or-later AND GPL-3.0-or-later WITH GCC-exception-3.1".to_owned()),
    ];
    let mut build = buildah();
    build.args(["bud", "--quiet", "--isolation", "chroot", "--arch", arch.name(), "--timestamp", &revision.epoch]);
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
