//! A real Kubernetes API server and its etcd for the tests: Go sources and programs from Debian packages, built and kept
//! below `target/tools`. Nothing is installed on the machine, and tests run without it where it cannot be installed.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{checked, root, tools};

/// Longest time for a build, downloads included; a slow machine with two CPUs takes 5 minutes.
const LIMIT: &str = "20m";

/// Debian's unstable suite alone has the libraries of a current API server. It moves: a build is kept once it is done.
const LIBRARIES_FROM: &str = "sid";
/// The first release with etcd 3.5, which the libraries ask for.
const ETCD_FROM: &str = "trixie";

/// What the API server consists of. The folder names are those of its import paths.
const OPENAPI_OF: [&str; 10] = [
    "k8s.io/api/core/v1",
    "k8s.io/api/apps/v1",
    "k8s.io/api/batch/v1",
    "k8s.io/api/coordination/v1",
    "k8s.io/api/events/v1",
    "k8s.io/apimachinery/pkg/apis/meta/v1",
    "k8s.io/apimachinery/pkg/runtime",
    "k8s.io/apimachinery/pkg/api/resource",
    "k8s.io/apimachinery/pkg/util/intstr",
    "k8s.io/apimachinery/pkg/version",
];

/// The two programs, and the variables by which tests find them.
pub fn programs() -> [(&'static str, PathBuf); 2] {
    [
        ("TEST_KUBE_API", tools::folder("kube-api").join("kube-api")),
        ("TEST_ETCD", tools::folder("etcd-server").join("usr/bin/etcd")),
    ]
}

/// Whether both programs are there, made from the sources as they are now.
pub fn is_built() -> bool {
    let kept = fs::read_to_string(tools::folder("kube-api").join("sources")).unwrap_or_default();
    programs().iter().all(|(_, path)| path.is_file()) && sources_sum().is_ok_and(|sum| sum == kept)
}

/// Builds what is missing; ends at once if nothing is.
///
/// # Errors
/// When a package can't be fetched or the build fails.
pub fn build() -> Result<()> {
    fs::create_dir_all(tools::folder("kube-api"))?;
    let lock = File::create(tools::folder("kube-api").join("lock"))?;
    lock.lock()?;
    if is_built() {
        return Ok(());
    }
    tools::unpacked_from("etcd-server", ETCD_FROM)?;
    let names = fs::read_to_string(sources().join("packages.txt")).context("tests/kube-api/packages.txt")?;
    let names: Vec<&str> = names.lines().collect();
    let libraries = tools::unpacked_together("kube-api-libraries", &names, LIBRARIES_FROM)?;
    compile(&libraries)?;
    fs::write(tools::folder("kube-api").join("sources"), sources_sum()?)?;
    // 1.5 GB that nobody needs again until the sources change.
    fs::remove_dir_all(&libraries)?;
    Ok(())
}

fn compile(libraries: &Path) -> Result<()> {
    println!("building the Kubernetes API server of the tests");
    let go_root = fs::read_dir(libraries.join("usr/lib"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.join("bin/go").is_file())
        .context("the Debian packages hold no Go compiler")?;
    let work = libraries.join("work");
    let package = work.join("src/kube-api");
    fs::create_dir_all(package.join("openapi"))?;
    fs::copy(sources().join("main.go"), package.join("main.go"))?;
    let search = env::join_paths([work.clone(), libraries.join("usr/share/gocode")])?;
    let path = tools::path_with(&go_root.join("bin"))?;
    let here = |program: &Path| {
        let mut command = Command::new(program);
        command.current_dir(&package).env("PATH", &path).env("GOROOT", &go_root).env("GOPATH", &search);
        command.env("GOCACHE", libraries.join("go-build")).env("CGO_ENABLED", "0");
        // Debian's libraries are no modules, and nothing is to be fetched from elsewhere.
        command.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local").env("GOPROXY", "off").env("GOSUMDB", "off");
        command
    };
    let go = |output: &Path, what: &str| {
        let mut command = here(&go_root.join("bin/go"));
        command.args(["build", "-trimpath", "-ldflags=-s -w", "-o"]).arg(output).arg(what);
        checked(&mut command)
    };
    let generator = libraries.join("openapi-gen");
    go(&generator, "k8s.io/kube-openapi/cmd/openapi-gen")?;
    let flags = ["--output-dir=openapi", "--output-pkg=kube-api/openapi", "--output-file=generated.go"];
    let no_files = ["--report-filename=/dev/null", "--go-header-file=/dev/null"];
    checked(here(&generator).args(flags).args(no_files).args(OPENAPI_OF))?;
    let [(_, server), _] = programs();
    go(&server, "kube-api")
}

fn sources() -> PathBuf {
    root().join("tests/kube-api")
}

/// What the build was made from.
fn sources_sum() -> Result<String> {
    let mut sum = Sha256::new();
    for name in ["main.go", "packages.txt"] {
        sum.update(fs::read(sources().join(name))?);
    }
    Ok(format!("{:x}", sum.finalize()))
}

/// A build that goes on in the background.
pub struct Build {
    child: Child,
    log: PathBuf,
}

impl Build {
    /// Starts it, limited in time.
    ///
    /// # Errors
    /// When coreutils' `timeout` can't be started.
    pub fn start() -> Result<Self> {
        println!("building a Kubernetes API server for the tests beside the rest, once; it takes a few minutes");
        let log = root().join("target/tools/kube-api.log");
        fs::create_dir_all(root().join("target/tools"))?;
        let output = File::create(&log)?;
        let child = Command::new("timeout")
            .args(["--kill-after=10s", LIMIT])
            .arg(env::current_exe()?)
            .arg("kube-api")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("starting timeout")?;
        Ok(Self { child, log })
    }

    /// Waits for it.
    ///
    /// # Errors
    /// When it did not come to an end or failed; says why in one line.
    pub fn finish(mut self) -> Result<()> {
        let status = self.child.wait()?;
        if status.success() {
            return Ok(());
        }
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let reason = match status.code() {
            Some(124 | 137) => format!("not done after {LIMIT}"),
            _ => {
                let said = text.lines().rfind(|line| line.starts_with("error: "));
                said.unwrap_or("ended early").chars().take(200).collect()
            }
        };
        bail!("{reason} (log: {})", self.log.display())
    }
}
