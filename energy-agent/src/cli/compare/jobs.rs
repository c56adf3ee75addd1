//! One Job or Pod on several kinds of nodes, in turns.

use std::collections::BTreeMap;
use std::path::Path;

use energy_cluster::job::JobDocument;
use energy_report::compare::RunGroup;
use energy_report::run::Work;

use super::runs_file::RunsFile;
use super::schedule::order;
use crate::cli::measure_job::JobMeters;
use crate::cli::run_problem::RunProblem;
use crate::config::{JobArgs, Login, NodeLabels};

/// What is run, and where.
pub(super) struct JobTurns<'a> {
    pub file: &'a Path,
    pub job: &'a JobArgs,
    pub login: &'a Login,
    pub on: &'a [NodeLabels],
    pub rounds: u32,
    pub seed: u64,
    /// Done by each run.
    pub work: Option<Work>,
}

/// Why not all runs were made.
pub(super) enum JobCut {
    Problem(RunProblem),
    /// What a run says of its end, and the exit code.
    Ended(String, u8),
}

impl JobTurns<'_> {
    /// Runs the job so many times on the nodes of each choice, in an order that the seed gives. Each is in the file as soon
    /// as it was made.
    ///
    /// # Errors
    /// When a run does not complete, or one cannot be measured.
    pub fn measure_all(&self, file: RunsFile<'_>) -> Result<Vec<RunGroup>, JobCut> {
        let mut meters = JobMeters::open(self.file, self.job, self.login).map_err(JobCut::Problem)?;
        let documents = self.documents(meters.document()).map_err(JobCut::Problem)?;
        let mut groups: Vec<RunGroup> =
            names(self.on).into_iter().map(|name| RunGroup { name, runs: Vec::new() }).collect();
        let order = order(self.on.len(), self.rounds, self.seed, None);
        for (number, thing) in order.iter().enumerate() {
            let name = groups[*thing].name.clone();
            eprintln!("run {} of {}: {name}", number + 1, order.len());
            let done = meters.once(&documents[*thing], number + 1 < order.len()).map_err(JobCut::Problem)?;
            let (is_good, code) = (done.is_good(), done.code());
            if let Some(run) = done.run {
                let mut run = *run;
                run.labels = self.labels(*thing, number + 1);
                run.work.clone_from(&self.work);
                groups[*thing].runs.push(run);
                file.keep(&groups).map_err(JobCut::Problem)?;
            }
            if !is_good {
                let made = format!("run {} of {}, on {name}, did not complete", number + 1, order.len());
                return Err(JobCut::Ended(format!("{made}, so no other is made and nothing is compared"), code));
            }
        }
        Ok(groups)
    }

    fn documents(&self, document: &JobDocument) -> Result<Vec<JobDocument>, RunProblem> {
        let on = |labels: &NodeLabels| {
            let chosen = document.on_nodes(&labels.0);
            chosen.map_err(|why| RunProblem::Usage(format!("{}: {why}", self.file.display())))
        };
        self.on.iter().map(on).collect()
    }

    /// By which prices are found, and the runs grouped again.
    fn labels(&self, thing: usize, number: usize) -> BTreeMap<String, String> {
        let mut labels = self.on[thing].0.clone();
        labels.insert("seed".to_owned(), self.seed.to_string());
        labels.insert("order".to_owned(), number.to_string());
        labels
    }
}

/// The values alone where all choices are values of one label.
fn names(on: &[NodeLabels]) -> Vec<String> {
    let only = |labels: &NodeLabels| match labels.0.iter().collect::<Vec<_>>()[..] {
        [(key, value)] if !value.is_empty() => Some((key.clone(), value.clone())),
        _ => None,
    };
    let pairs: Option<Vec<(String, String)>> = on.iter().map(only).collect();
    match pairs {
        Some(pairs) if pairs.iter().all(|(key, _)| *key == pairs[0].0) => {
            pairs.into_iter().map(|(_, value)| value).collect()
        }
        _ => on.iter().map(ToString::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    #[test]
    fn values_of_one_label_are_names_by_themselves() {
        let names_of = |texts: [&str; 2]| names(&texts.map(|text| text.parse().unwrap()));
        assert_eq!(names_of(["gpu=L4", "gpu=T4"]), ["L4", "T4"]);
        assert_eq!(names_of(["gpu=L4", "zone=a"]), ["gpu=L4", "zone=a"]);
        assert_eq!(names_of(["gpu=L4", "gpu="]), ["gpu=L4", "gpu="]);
        assert_eq!(names_of(["gpu=L4,zone=b", "gpu=L4,zone=a"]), ["gpu=L4,zone=b", "gpu=L4,zone=a"]);
    }
}
