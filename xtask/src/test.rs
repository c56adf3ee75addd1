//! Every test, with what they need set up first.

use std::env;
use std::fs::{self, File};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{cargo, checked, kube_api, output, root, tools};

/// Test programs wait for most of their time: for clocks, plants, servers, other programs. So the whole suite runs three cargos
/// side by side. These are the programs of two of them, the first has all others.
const BESIDE: [&[&str]; 2] = [&["policies", "pages"], &["knobs", "program"]];

/// The test program that runs when all others have ended: most of its tests compare with the kernel's own counts.
const LAST: &str = "workloads";

/// Tests of that program that look at counts of the whole machine (unknown cgroups, requests for unknown pods): cgroups of
/// other tests would count too, so these run after all others and one at a time.
const ALONE: [&str; 4] =
    ["identity::energy_is_conserved", "kubelet::", "kubernetes::churn::", "tenants::nodes::a_cgroup_that_lies_deeper"];

/// Modules of test programs that use a Kubernetes API server.
const WITH_API_SERVER: [&str; 17] = [
    "capping",
    "capping_cpu",
    "controller",
    "dashboards",
    "deploy",
    "end_to_end",
    "idle_policy",
    "job",
    "kepler",
    "kepler_dashboards",
    "kubelet",
    "kubernetes",
    "objects",
    "pod_resources",
    "policy_sources",
    "report",
    "selection",
];

/// Runs the whole suite, or what `arguments` select.
///
/// # Errors
/// When a tool cannot be installed or a test fails.
pub fn test(arguments: &[String]) -> Result<()> {
    let mut command = cargo_test();
    command.args(arguments);
    // A newcomer who asks for one test does not wait for what it does not use. Flags alone, as --no-fail-fast, leave out none.
    let names: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let asked_for = |module: &str| names.is_empty() || names.iter().any(|name| names_module(name, module));
    let mut programs = Vec::new();
    if !tools::on_path("promtool") {
        programs.push(tools::unpacked("prometheus")?.join("usr/bin"));
    }
    if asked_for("end_to_end") && !tools::on_path("runc") {
        programs.push(tools::unpacked("runc")?.join("usr/sbin"));
    }
    if ["deploy", "image", "end_to_end", "objects"].into_iter().any(asked_for) && !tools::kubectl_is_recent() {
        programs.push(tools::kubectl()?);
    }
    if asked_for("image") {
        let programs = ["buildah", "skopeo", "umoci", "runc"].map(|program| (program, program));
        tools::installed(&programs)?;
    }
    if asked_for("deb") {
        tools::installed(&[("systemctl", "systemd"), ("lintian", "lintian")])?;
    }
    if asked_for("deploy") {
        let packages = ["kubernetes-validate==1.37.0", "pydantic==2.*", "httpx==0.28.*"];
        match tools::python("deploy", &packages, &root().join("tests/program/deploy/requirements.txt")) {
            Ok(python) => drop(command.env("TEST_PYTHON", python)),
            Err(error) => println!("schema and Helm chart of deploy/ are not checked: {error:#}"),
        }
    }
    if asked_for("dashboards") {
        match tools::npm("dashboards", &root().join("tests/pages/dashboards/grafana")) {
            Ok((folder, node)) => drop(command.env("TEST_GRAFANA_SCHEMA", folder).env("TEST_NODE", node)),
            Err(error) => println!("dashboards are not checked by Grafana's types: {error:#}"),
        }
    }
    programs.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    command.env("PATH", env::join_paths(programs)?);
    let wanted = WITH_API_SERVER.into_iter().any(asked_for);
    if let Err(error) = if wanted { prepare_kube_api(arguments) } else { Ok(()) } {
        println!("no Kubernetes API server, the tests use their own stub in its place: {error:#}");
    }
    if kube_api::is_built() {
        command.envs(kube_api::programs());
    }
    if arguments.is_empty() { everything(&command) } else { checked(&mut command) }
}

/// Whether an argument selects tests of this module: it has the module's name in it, or is the test program that holds it.
fn names_module(argument: &str, module: &str) -> bool {
    argument.contains(module) || root().join("tests").join(argument).join(format!("{module}.rs")).exists()
}

/// Three cargos like this one, each with its share of the test programs. What the others print follows when the first has ended.
fn everything(like: &Command) -> Result<()> {
    // Tests that cannot run here add themselves to this list.
    let skipped = root().join("target/tests-skipped.txt");
    fs::create_dir_all(root().join("target"))?;
    fs::write(&skipped, "").with_context(|| skipped.display().to_string())?;
    let cargo = |flags: &[&str], programs: &[String]| {
        let mut command = cargo_test();
        command.args(flags).args(programs.iter().flat_map(|program| ["--test", program]));
        command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("TEST_SKIPPED", &skipped);
        command
    };
    checked(&mut cargo(&["--no-run"], &[]))?;
    let mut others: Vec<String> = programs()?.into_iter().filter(|name| name != LAST).collect();
    let mut beside = Vec::new();
    for names in BESIDE {
        let (these, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(|name| names.contains(&name.as_str()));
        ensure!(these.len() == names.len(), "not every one of {names:?} is a test program");
        others = rest;
        let log = root().join(format!("target/tests-{}.log", names.join("-")));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        println!("{} run beside the others; what they print is in {}", names.join(", "), log.display());
        let mut command = cargo(&["--no-fail-fast"], &these);
        let child = command.stdout(file.try_clone()?).stderr(file).spawn().context("starting cargo")?;
        beside.push((log, child));
    }
    let first = checked(&mut cargo(&["--no-fail-fast", "--lib", "--bins"], &others));
    let mut failed = Vec::new();
    for (log, mut child) in beside {
        let ended = child.wait()?;
        println!("{}", String::from_utf8_lossy(&fs::read(&log)?));
        failed.extend((!ended.success()).then(|| log.display().to_string()));
    }
    let last = last(&cargo);
    let skipped = fs::read_to_string(&skipped)?;
    println!("{} tests were skipped or ran in part\n{skipped}", skipped.lines().count());
    ensure!(failed.is_empty(), "some of the tests failed that ran beside the others: {}", failed.join(", "));
    first.and(last)
}

/// The last program: what may run side by side, then the others one by one.
fn last(cargo: &dyn Fn(&[&str], &[String]) -> Command) -> Result<()> {
    let program = ["--no-fail-fast", "--test", LAST, "--"];
    let all = output(&mut cargo(&["--test", LAST, "--", "--list"], &[]))?;
    for name in ALONE {
        ensure!(all.lines().any(|line| line.contains(name)), "no test of {LAST} is called {name}");
    }
    let skipped: Vec<&str> = ALONE.iter().flat_map(|name| ["--skip", name]).collect();
    let beside = checked(&mut cargo(&[&program[..], &["--test-threads=4"], &skipped].concat(), &[]));
    let alone = checked(&mut cargo(&[&program[..], &["--test-threads=1"], &ALONE].concat(), &[]));
    beside.and(alone)
}

/// Every test program of the workspace.
fn programs() -> Result<Vec<String>> {
    let said = output(cargo().args(["metadata", "--no-deps", "--format-version=1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&said).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let tests = targets.filter(|target| target["kind"][0] == "test").filter_map(|target| target["name"].as_str());
    Ok(tests.map(str::to_owned).collect())
}

fn cargo_test() -> Command {
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked"]);
    command
}

/// Builds the API server while cargo builds the tests.
fn prepare_kube_api(arguments: &[String]) -> Result<()> {
    if kube_api::is_built() {
        return Ok(());
    }
    let build = kube_api::Build::start()?;
    let for_cargo = arguments.iter().take_while(|argument| *argument != "--");
    // A failure is reported when the tests are to run.
    let _ = cargo_test().arg("--no-run").args(for_cargo).status();
    build.finish()
}

/// Kills controllers and an agent this often, at random moments, in the tests of a fleet of nodes.
///
/// # Errors
/// When a tool cannot be installed, or a limit rose above its budget.
pub fn fleet(kills: u32) -> Result<()> {
    ensure!(kills > 0, "--kills 0 kills nobody");
    prepare_kube_api(&[])?;
    let mut command = cargo_test();
    command.args(["--test", "fleet", "--", "--nocapture", "a_hall_is_kept"]).env("TEST_FLEET_KILLS", kills.to_string());
    checked(command.envs(kube_api::programs()))
}

/// Runs the unit tests, property tests among them, with `cases` random inputs for each property.
///
/// # Errors
/// When a property does not hold; the input that breaks it is printed and kept beside the source.
pub fn fuzz(cases: u32) -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--release", "--locked", "--workspace", "--lib"]);
    checked(command.env("PROPTEST_CASES", cases.to_string()))
}
