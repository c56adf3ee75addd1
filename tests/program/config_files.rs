//! Files that configure the agent, while they cannot be read, hang, or hold something else than they should: the previous
//! version stays active, the state says so, and no word of a file shows anywhere.

#![expect(clippy::unwrap_used, reason = "a test panics, its helpers too")]

mod hangs;
mod pipes;
mod secrets;

use std::path::Path;

use crate::common::agent::{Agent, wait_for};

const INFO: &str = "kepler_node_cpu_info";
const BUSY: &str = "kepler_node_cpu_usage_ratio";

/// A web configuration that shows in each answer which version of it is active.
fn web(frame: &str) -> String {
    format!("http_server_config: {{headers: {{X-Frame-Options: {frame}}}}}\n")
}

fn export(metric: &str) -> String {
    format!("EXPORT_METRICS: {metric}\n")
}

fn policy(watts: u32) -> String {
    let selector = "selector: {selectAll: true}";
    format!(
        "version: 1\npolicies:\n- {{name: cap, {selector}, budget: {{watts: {watts}, scope: PerNode, components: [cpu]}}}}\n"
    )
}

/// Starts an agent that follows all three.
fn agent(web: &Path, policies: &Path, export: &Path) -> Agent {
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let agent = Agent::start(&[
        "--ebpf=off",
        "--gpu=off",
        "--interval=1s",
        "--capping=on",
        &flag("web.config.file", web),
        &flag("capping.policy", policies),
        &flag("export.config", export),
    ]);
    wait_for("the first policy", || (budget(&agent) == Some(100.0)).then_some(()));
    agent
}

/// Which web configuration is active.
fn frame(agent: &Agent) -> String {
    let answer = ureq::get(format!("http://{}/healthz", agent.address)).call().unwrap();
    answer.headers()["x-frame-options"].to_str().unwrap().to_owned()
}

/// Watts of the policy that is active.
fn budget(agent: &Agent) -> Option<f64> {
    agent.policies()["policies"][0]["subjects"][0]["budget_watts"].as_f64()
}

/// The metrics of nodes that are exported.
fn exported(agent: &Agent) -> Vec<&'static str> {
    let page = agent.scrape();
    [INFO, BUSY].into_iter().filter(|name| page.has(name, &[])).collect()
}
