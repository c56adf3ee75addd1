//! A node to look at without a cluster, a GPU or RAPL: the one on which the dashboards are tested, kept alive until Ctrl-C.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{cargo, checked, output, root, tools};

/// The test program that holds the demo, and the demo's name in it.
const PROGRAM: &str = "pages";
const DEMO: &str = "dashboards::demo::demo";

/// Builds the demo, starts it and waits for its end.
///
/// # Errors
/// When this is not root, a build fails or the demo does.
pub fn run() -> Result<()> {
    let user = output(Command::new("id").arg("-u"))?;
    ensure!(user.trim() == "0", "the demo makes cgroups and loads eBPF, which only root may: run it as root");
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if !tools::on_path("prometheus") {
        path = tools::path_with(&tools::unpacked("prometheus")?.join("usr/bin"))?;
    }
    println!("building the agent and the demo's node; the first time takes some minutes");
    let program = built()?;
    // In a group of its own, so that Ctrl-C ends only this program. Its standard input then ends, and it cleans up.
    let mut demo = Command::new(program)
        .args([DEMO, "--exact", "--ignored", "--nocapture", "--quiet"])
        .env("PATH", path)
        .current_dir(root().join("energy-agent"))
        .stdin(Stdio::piped())
        // It speaks on standard error: the other stream is the test harness's.
        .stdout(Stdio::null())
        .stderr(io::stdout())
        .process_group(0)
        .spawn()
        .context("starting the demo")?;
    // `wait` would close it.
    let open = demo.stdin.take();
    let status = demo.wait()?;
    drop(open);
    ensure!(status.success(), "the demo ended with {status}; its last lines say why");
    Ok(())
}

/// The test program, built.
fn built() -> Result<PathBuf> {
    let arguments = ["test", "--workspace", "--locked", "--no-run", "--test", PROGRAM, "--example", "load"];
    checked(cargo().args(arguments))?;
    let said = output(cargo().args(arguments).arg("--message-format=json"))?;
    let messages = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = messages.filter(|message| message["target"]["name"] == PROGRAM);
    programs.find_map(|message| Some(message["executable"].as_str()?.into())).context("cargo named no test program")
}
