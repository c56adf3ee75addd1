//! `kubectl energy`: what a cluster draws, its budgets, and their release in an emergency.

mod budgets;
mod release;
mod top;

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use energy_cluster::api::{Api, ApiError};
use energy_cluster::kinds;
use energy_cluster::kubernetes::{ClusterError, Credentials};
use energy_model::meter_state::Reason;
use energy_model::printable::printable;
use energy_model::resources::object::KubeObject;

use self::release::Direction;
use crate::config::{KubectlArgs, KubectlCommand};

/// For one request. Who waits longer has another problem.
const PATIENCE: Duration = Duration::from_secs(10);

/// Exit code 0: done. 1: some of it was not, and standard error says what.
///
/// # Errors
/// When there is no cluster, or it does not answer.
pub fn run(arguments: &KubectlArgs) -> Result<ExitCode> {
    let credentials = Credentials::find(arguments.kubeconfig.as_deref())
        .context("no cluster: there is neither a kubeconfig nor a service account; name a file with --kubeconfig")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let said = runtime.block_on(async {
        let api = || Api::new(credentials.clone(), PATIENCE);
        match &arguments.command {
            KubectlCommand::Top(arguments) => top::top(&credentials, arguments).await,
            KubectlCommand::Budgets => {
                Ok(Said { text: budgets::table(&all_budgets(&api()).await?), wrong: Vec::new() })
            }
            KubectlCommand::Release(chosen) => release::change(&api(), chosen, Direction::Release).await,
            KubectlCommand::Resume(chosen) => release::change(&api(), chosen, Direction::Resume).await,
        }
    });
    runtime.shutdown_background();
    said?.tell()
}

/// What came of a command.
struct Said {
    text: String,
    /// What could not be done, one line each.
    wrong: Vec<String>,
}

impl Said {
    fn tell(self) -> Result<ExitCode> {
        match io::stdout().lock().write_all(self.text.as_bytes()) {
            // Whoever read the lines has enough: `kubectl energy top | head`.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written?,
        }
        for line in &self.wrong {
            eprintln!("error: {}", printable(line));
        }
        Ok(if self.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

async fn all_budgets(api: &Api) -> Result<Vec<KubeObject>> {
    api.list(&kinds::budgets()).await.map_err(|error| match error {
        ApiError::Failed(ClusterError { reason: Reason::Absent, advice }) => {
            anyhow!("{}; install the kinds: energy-agent policy crd | kubectl apply --server-side -f -", advice.what)
        }
        error => anyhow!(error.message()),
    })
}

/// Lines of aligned columns, the first with the headings. Columns of numbers are to the right.
fn columns(headings: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].0.len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).zip(headings).map(|((cell, width), (_, align))| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("   ").trim_end().to_owned() + "\n"
    };
    let heads: Vec<String> = headings.iter().map(|(name, _)| (*name).to_owned()).collect();
    line(&heads) + &rows.iter().map(|row| line(row)).collect::<String>()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}
