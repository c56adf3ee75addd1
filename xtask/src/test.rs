//! Every test, with what they need set up first.

use std::env;
use std::process::Command;

use anyhow::Result;

use crate::{cargo, checked, kube_api, root, tools};

/// Test programs that use a Kubernetes API server.
const WITH_API_SERVER: [&str; 12] = [
    "capping",
    "capping_cpu",
    "dashboards",
    "deploy",
    "end_to_end",
    "idle_policy",
    "kepler",
    "kepler_dashboards",
    "kubelet",
    "kubernetes",
    "policy_sources",
    "selection",
];

/// Runs the whole suite, or what `arguments` select.
///
/// # Errors
/// When a tool can't be had or a test fails.
pub fn test(arguments: &[String]) -> Result<()> {
    let mut command = cargo_test();
    command.args(arguments);
    // A newcomer who asks for one test does not wait for what it does not use. Flags alone, as --no-fail-fast, leave out none.
    let names: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let asked_for = |test: &str| names.is_empty() || names.iter().any(|name| name.contains(test));
    let mut programs = Vec::new();
    if !tools::on_path("promtool") {
        programs.push(tools::unpacked("prometheus")?.join("usr/bin"));
    }
    if asked_for("end_to_end") && !tools::on_path("runc") {
        programs.push(tools::unpacked("runc")?.join("usr/sbin"));
    }
    if ["deploy", "image", "end_to_end"].into_iter().any(asked_for) && !tools::kubectl_is_recent() {
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
        match tools::python("deploy", &packages, &root().join("tests/deploy/requirements.txt")) {
            Ok(python) => drop(command.env("TEST_PYTHON", python)),
            Err(error) => println!("schema and Helm chart of deploy/ are not checked: {error:#}"),
        }
    }
    if asked_for("dashboards") {
        match tools::npm("dashboards", &root().join("tests/dashboards/grafana")) {
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
    checked(&mut command)
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
    // A failure is told when the tests are to run.
    let _ = cargo_test().arg("--no-run").args(for_cargo).status();
    build.finish()
}

/// Runs the unit tests, property tests among them, with `cases` random inputs for each property.
///
/// # Errors
/// When a property does not hold; the input that breaks it is printed and kept beside the source.
pub fn fuzz(cases: u32) -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--release", "--locked", "--package", "energy-agent", "--lib"]);
    checked(command.env("PROPTEST_CASES", cases.to_string()))
}
