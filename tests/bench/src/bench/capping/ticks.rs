//! What capping costs a tick: the tick thread's CPU time with a policy that selects every pod beside none.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::node::Node;
use crate::bench::agent::ticks as count_ticks;
use crate::bench::{Finding, Scale, median};

/// # Errors
/// When a world cannot be made or the agent does not run.
pub fn ticks(scale: Scale) -> Result<Vec<Finding>> {
    super::build()?;
    let sizes = scale.of([200, 1000], [20, 50]);
    sizes.into_iter().map(|pods| cost(scale, pods)).collect()
}

fn cost(scale: Scale, pods: usize) -> Result<Finding> {
    let mut node = Node::new("ticks")?;
    for number in 0..pods {
        node.pod(&format!("pod-{number}"))?;
        node.world.with_quota(node.pods.last().context("no pod was made")?)?;
    }
    let policy =
        "- name: bench\n  mode: Enforce\n  selector: {selectAll: true}\n  budget: {watts: 1000, components: [cpu]}\n";
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..scale.of(3, 1) {
        node.agent = None;
        node.policies(&policy.replace("Enforce", "Off"))?;
        node.start(&["--meter.cpu=estimate", "--gpu=off"])?;
        without.push(tick_us(&node, scale)?);
        node.agent = None;
        node.policies(policy)?;
        node.start(&["--meter.cpu=estimate", "--gpu=off"])?;
        node.wait_for_budgets(pods)?;
        let page = node.agent.as_ref().context("no agent was started")?.scraper()?.page()?;
        let kept = page.all("energy_agent_policy_state").filter(|series| series.label("state") == "open").count();
        ensure!(kept == pods, "{kept} of {pods} budgets can be kept");
        with.push(tick_us(&node, scale)?);
    }
    let (with, without) = (median(&with), median(&without));
    let (cost_us, goal_us) = ((with - without).max(0.0), 10_000.0);
    Ok(Finding {
        what: format!("capping: CPU time of a tick over {pods} pods with a budget each"),
        measured: format!("{:.2} ms", cost_us / 1000.0),
        goal: "under 10 ms".to_owned(),
        reached: cost_us < goal_us,
        how: format!(
            "the tick thread's CPU time per tick with one active policy that selects every pod ({with:.0} us) less that with it \
            off ({without:.0} us), medians; 10 ms a second are 1 % of a core; quotas of idle pods are read in turns, none is written"
        ),
    })
}

/// Microseconds of the tick thread's CPU time per tick.
fn tick_us(node: &Node, scale: Scale) -> Result<f64> {
    let agent = node.agent.as_ref().context("no agent was started")?;
    // The first ticks look everything up.
    let read = || -> Result<(u64, u64)> {
        Ok((agent.thread_cpu_ns(|name| name == "tick")?, count_ticks(&agent.fresh_page()?)?))
    };
    read()?;
    let (began_ns, first) = read()?;
    thread::sleep(scale.seconds(15, 2));
    let (ended_ns, last) = read()?;
    let count = u32::try_from(last - first)?;
    Ok(Duration::from_nanos(ended_ns - began_ns).as_secs_f64() * 1e6 / f64::from(count.max(1)))
}
