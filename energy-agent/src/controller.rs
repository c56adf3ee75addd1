//! `energy-agent controller`: one power budget for many nodes. One task owns the state and goes on in rounds: it asks the
//! agents, or Prometheus for all of them, decides every budget, and writes what has changed, as long as it leads.

mod budget_spec;
mod budget_status;
mod budgets;
mod climatik;
mod event;
mod fleet;
mod hearing;
mod leader;
mod levels;
mod node_status;
mod policy_status;
mod queries;
mod round;
mod samples;
mod shown;
mod sources;
mod statuses;
#[cfg(test)]
mod tests;
mod totals;
mod writer;

use std::env;
use std::fs;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use energy_cluster::kubernetes::Credentials;
use energy_export::budgets::view::View;
use energy_export::budgets::{BudgetPages, serve};
use energy_export::self_metrics::SelfMetrics;
use energy_export::web_config::WebConfigSource;
use energy_files::reload;
use tokio::sync::{oneshot, watch};
use tracing::{error, info};

use self::round::Rounds;
use crate::config::ControllerArgs;
use crate::listen;
use crate::panics;
use crate::signals::{Meaning, Signals};

/// Runs until a signal ends it.
///
/// # Errors
/// When the address is taken, there are no credentials, or a thread has panicked.
pub fn run(config: &ControllerArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let outcome = runtime.block_on(run_until_signal(config));
    runtime.shutdown_background();
    outcome
}

async fn run_until_signal(config: &ControllerArgs) -> Result<()> {
    let listener = listen(config.listen_address).await?;
    let mut signals = Signals::listen()?;
    let own = Arc::new(SelfMetrics::new());
    // Nothing is selected here, so nothing of it can be wrong.
    own.export_valid(true);
    let web_config =
        WebConfigSource::open(config.web_config.as_deref(), Arc::clone(&own)).map_err(anyhow::Error::msg)?;
    let credentials = Credentials::find(config.kubeconfig.as_deref()).context(
        "no credentials for a cluster: run in a pod with a service account, or name a file with --kubeconfig",
    )?;
    let identity = identity(config);
    let (publish, views) = watch::channel(Arc::new(View::blank(&identity)));
    let controller = Rounds::new(config, &credentials, identity, publish)?;
    let (end, ended) = oneshot::channel();
    let mut rounds = tokio::spawn(controller.run(ended));
    let pages = BudgetPages { views, interval: config.interval, own, web_config: web_config.in_force() };
    let address = listener.local_addr().context("listening address")?;
    info!(%address, path = "/budgets", "listening");
    let guard = tokio::spawn(web_config.follow());
    let ending = async {
        loop {
            tokio::select! {
                meaning = signals.next() => match meaning {
                    Meaning::End(name) => break info!("{name}, the controller ends"),
                    Meaning::Reload => reload::reload(),
                },
                () = panics::news() => break error!("a thread has ended, the controller ends"),
                _ = &mut rounds => break error!("the rounds have ended, the controller ends"),
            }
        }
        let _ = end.send(());
    };
    let served = serve(listener, pages, ending).await;
    guard.abort();
    if !rounds.is_finished() {
        // It gives the Lease up.
        let _ = rounds.await;
    }
    served?;
    anyhow::ensure!(!panics::has_happened(), "a thread has panicked, see the log");
    Ok(())
}

/// The name of this replica.
fn identity(config: &ControllerArgs) -> String {
    let variable = || env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    config.identity.clone().or_else(variable).unwrap_or_else(|| {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}-{}", host.trim(), std::process::id())
    })
}
