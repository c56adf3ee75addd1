//! `kubectl energy top`: pods or nodes of the whole cluster by watts, from the pages of all agents.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use energy_cluster::kubernetes::{ClusterError, Credentials};
use energy_cluster::proxies::AgentProxies;
use energy_export::parse::{self, ParsedSample};
use energy_model::printable::printable;
use energy_model::snapshot::WorkloadState;

use super::Align::{Left, Right};
use super::{Said, columns};
use crate::config::{ClusterTopArgs, TopSubject};

/// # Errors
/// When there is no agent, or none may be looked for.
pub(super) async fn top(credentials: &Credentials, arguments: &ClusterTopArgs) -> Result<Said> {
    let said = |trouble: ClusterError| anyhow!(trouble.advice.to_string());
    let agents = AgentProxies::new(credentials, &arguments.agents_namespace).await.map_err(said)?;
    let pages = agents.pages().await.map_err(said)?;
    let (mut read, mut wrong) = (BTreeMap::new(), Vec::new());
    for (node, page) in pages {
        let samples = page.map_err(|trouble| trouble.advice.to_string());
        let samples = samples
            .and_then(|page| parse::samples(&page).map_err(|_| "what answers is no agent of this version".to_owned()));
        match samples {
            Ok(samples) => drop(read.insert(node, samples)),
            Err(problem) => wrong.push(format!("node {node}: {problem}")),
        }
    }
    let text = match arguments.subject {
        TopSubject::Pods => pods(&read, arguments.namespace.as_deref()),
        TopSubject::Nodes => nodes(&read),
    };
    Ok(Said { text, wrong })
}

type NodePages = BTreeMap<String, Vec<ParsedSample>>;

fn pods(pages: &NodePages, namespace: Option<&str>) -> String {
    let mut rows: Vec<(Option<f64>, Vec<String>)> = Vec::new();
    for (node, samples) in pages {
        for ((of, name), [watts, gpu_watts]) in pods_of(samples) {
            let of = of.as_str();
            if namespace.is_none_or(|namespace| namespace == of) {
                let all = sum([watts, gpu_watts]);
                rows.push((
                    all,
                    vec![of.to_owned(), name.to_owned(), number(all), number(watts), number(gpu_watts), shown(node)],
                ));
            }
        }
    }
    let headings =
        [("NAMESPACE", Left), ("NAME", Left), ("WATTS", Right), ("CPU", Right), ("GPU", Right), ("NODE", Left)];
    columns(&headings, &sorted(rows))
}

/// Watts of CPUs and of GPUs by namespace and name, or uid where a pod has no name yet.
fn pods_of(samples: &[ParsedSample]) -> BTreeMap<(String, String), [Option<f64>; 2]> {
    let mut pods = BTreeMap::<_, [Option<f64>; 2]>::new();
    for sample in samples.iter().filter(|sample| sample.label("state") != WorkloadState::Terminated.as_str()) {
        let part = match sample.name.as_str() {
            "kepler_pod_cpu_watts" => 0,
            "kepler_pod_gpu_watts" => 1,
            _ => continue,
        };
        let name = match sample.label("pod_name") {
            "" => sample.label("pod_id"),
            name => name,
        };
        let watts = pods.entry((shown(sample.label("pod_namespace")), shown(name))).or_default();
        watts[part] = sum([watts[part], Some(sample.number())]);
    }
    pods
}

fn nodes(pages: &NodePages) -> String {
    let mut rows: Vec<(Option<f64>, Vec<String>)> = Vec::new();
    for (node, samples) in pages {
        let of = |name: &str, is: &dyn Fn(&ParsedSample) -> bool| {
            sum(samples.iter().filter(|sample| sample.name == name && is(sample)).map(|sample| Some(sample.number())))
        };
        // Other zones overlap these.
        let cpu = of("kepler_node_cpu_watts", &|sample| ["package", "dram"].contains(&sample.label("zone")));
        let gpu = of("kepler_node_gpu_watts", &|_| true);
        let limits = samples.iter().filter(|sample| {
            sample.name == "energy_agent_policy_budget_watts" && sample.label("authority") == "budget"
        });
        let lowest = limits.min_by(|a, b| a.number().total_cmp(&b.number()));
        let all = sum([cpu, gpu]);
        rows.push((
            all,
            vec![
                shown(node),
                number(all),
                number(cpu),
                number(gpu),
                number(lowest.map(ParsedSample::number)),
                lowest.map_or_else(|| "-".to_owned(), |sample| shown(sample.label("policy"))),
            ],
        ));
    }
    let headings =
        [("NODE", Left), ("WATTS", Right), ("CPU", Right), ("GPU", Right), ("MAY DRAW", Right), ("BUDGET", Left)];
    columns(&headings, &sorted(rows))
}

/// The highest first; names from A to Z.
fn sorted(mut rows: Vec<(Option<f64>, Vec<String>)>) -> Vec<Vec<String>> {
    rows.sort_by(|(a, left), (b, right)| b.partial_cmp(a).unwrap_or(Ordering::Equal).then_with(|| left.cmp(right)));
    rows.into_iter().map(|(_, row)| row).collect()
}

/// `None` where nothing was measured.
fn sum(watts: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    watts.into_iter().flatten().reduce(|a, b| a + b)
}

fn number(watts: Option<f64>) -> String {
    watts.map_or_else(|| "-".to_owned(), |watts| format!("{watts:.1}"))
}

fn shown(text: &str) -> String {
    printable(text).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    fn pages() -> NodePages {
        let a = "kepler_node_cpu_watts{zone=\"package\",node_name=\"a\"} 40\nkepler_node_cpu_watts{zone=\"psys\",node_name=\"a\"} 90\n\
             kepler_node_gpu_watts{gpu_uuid=\"g\"} 500\nkepler_pod_cpu_watts{pod_id=\"u1\",pod_name=\"train\",pod_namespace=\"ml\",zone=\"package\"} 30\n\
             kepler_pod_gpu_watts{pod_id=\"u1\",pod_name=\"train\",pod_namespace=\"ml\",gpu_uuid=\"g\"} 480\n\
             energy_agent_policy_budget_watts{policy=\"hall\",authority=\"budget\"} 700\n\
             energy_agent_policy_budget_watts{policy=\"rack\",authority=\"budget\"} 600\n\
             energy_agent_policy_budget_watts{policy=\"small\",authority=\"tenant\"} 100\n";
        let b = "kepler_node_cpu_watts{zone=\"package\",node_name=\"b\"} 60\n\
             kepler_pod_cpu_watts{pod_id=\"u2\",pod_name=\"web\",pod_namespace=\"shop\",zone=\"package\"} 55.5\n\
             kepler_pod_cpu_watts{pod_id=\"u3\",zone=\"package\"} 1\n\
             kepler_pod_cpu_watts{pod_id=\"u4\",pod_name=\"old\",pod_namespace=\"shop\",zone=\"package\",state=\"terminated\"} 9\n";
        [("a", a), ("b", b)].map(|(node, page)| (node.to_owned(), parse::samples(page).unwrap())).into()
    }

    #[test]
    fn pods_and_nodes_are_listed_by_all_their_watts() {
        let expected = "\
NAMESPACE   NAME    WATTS    CPU     GPU   NODE
ml          train   510.0   30.0   480.0   a
shop        web      55.5   55.5       -   b
            u3        1.0    1.0       -   b
";
        assert_eq!(super::pods(&pages(), None), expected);
        assert_eq!(super::pods(&pages(), Some("shop")).lines().count(), 2);
        let expected = "\
NODE   WATTS    CPU     GPU   MAY DRAW   BUDGET
a      540.0   40.0   500.0      600.0   rack
b       60.0   60.0       -          -   -
";
        assert_eq!(super::nodes(&pages()), expected);
    }
}
