//! How nodes are heard of in a round: every agent is asked for its report, or Prometheus for all of them by one query.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use energy_cluster::agents::{Agents, Answered, Asked};
use energy_cluster::prometheus::PromqlClient;
use tracing::info;

use super::fleet::Fleet;
use super::samples::{QUERY, Samples};
use crate::config::{ControllerArgs, NodeSource};

/// What nobody does who takes figures from Prometheus.
pub const NO_POLICIES: &str = "with --controller.source=prometheus PowerCappingPolicies and NodeFrequencies have no status, and levels of \
     policies with scope Total stay as they are: Prometheus does not know what nodes say of pods and clocks";

#[derive(Clone)]
pub enum Hearing {
    Agents(Agents),
    Prometheus(PromqlClient),
}

/// What came of a round.
pub enum HeardRound {
    Reports { asked: Vec<Asked>, answered: Vec<Answered> },
    Samples(Result<Samples, String>),
}

impl Hearing {
    /// # Errors
    /// When a file cannot be used, or there is no server to ask.
    pub fn new(config: &ControllerArgs, prometheus: Option<&PromqlClient>) -> Result<Self> {
        match config.source {
            NodeSource::Agents => {
                let agents = Agents::new(&config.agents_tls()).map_err(anyhow::Error::msg).context("--agents.*")?;
                Ok(Self::Agents(agents))
            }
            NodeSource::Prometheus => {
                let prometheus = prometheus.cloned().context(
                    "--controller.source=prometheus needs a server: name it with --controller.prometheus, such as http://prometheus:9090",
                )?;
                info!("{NO_POLICIES}");
                Ok(Self::Prometheus(prometheus))
            }
        }
    }

    /// Nodes say which policies their pods have, and what their GPUs are limited to.
    pub const fn knows_pods(&self) -> bool {
        matches!(self, Self::Agents(_))
    }

    /// One round, of no more than `patience`. `asked`: the nodes with agents.
    pub async fn round(&self, asked: Vec<Asked>, patience: Duration) -> HeardRound {
        match self {
            Self::Agents(agents) => {
                let mut answered = Vec::new();
                agents.ask(asked.clone(), patience, |answer| answered.push(answer)).await;
                HeardRound::Reports { asked, answered }
            }
            Self::Prometheus(prometheus) => {
                let series = prometheus.series(QUERY, patience).await;
                HeardRound::Samples(series.map(|series| Samples::new(&series)))
            }
        }
    }
}

impl HeardRound {
    /// Why nothing is known of any node, for people.
    pub fn trouble(&self) -> Option<&str> {
        match self {
            Self::Samples(Err(why)) => Some(why),
            Self::Samples(Ok(_)) | Self::Reports { .. } => None,
        }
    }

    pub fn tell(self, fleet: &mut Fleet, now: Instant) {
        match self {
            Self::Reports { asked, answered } => fleet.take(now, &asked, answered),
            Self::Samples(samples) => fleet.take_samples(now, samples),
        }
    }
}
