//! What kube-state-metrics says of the world's pods: who owns each, and who owns a ReplicaSet.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;

use crate::common::kubernetes::server::Server;

/// A page of metrics for pods, of which each is a pair of namespace and name: those of `web` belong to Deployments, those of
/// `ml` to StatefulSets, those of `batch` to Jobs.
fn page(pods: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (namespace, pod) in pods {
        let (kind, owner) = match *namespace {
            "web" => ("ReplicaSet", format!("{pod}-7d4b9")),
            "ml" => ("StatefulSet", pod.trim_end_matches("-0").trim_end_matches("-1").to_owned()),
            _ => ("Job", (*pod).to_owned()),
        };
        let owned = format!(r#"owner_kind="{kind}",owner_name="{owner}",owner_is_controller="true""#);
        writeln!(text, r#"kube_pod_owner{{namespace="{namespace}",pod="{pod}",uid="u-{pod}",{owned}}} 1"#).unwrap();
        if kind == "ReplicaSet" {
            let owned = format!(r#"owner_kind="Deployment",owner_name="{pod}",owner_is_controller="true""#);
            writeln!(text, r#"kube_replicaset_owner{{namespace="{namespace}",replicaset="{owner}",{owned}}} 1"#)
                .unwrap();
        }
    }
    text
}

/// Serves the page.
pub fn server(pods: &[(&str, &str)]) -> Server {
    let page = page(pods);
    Server::start(
        None,
        Arc::new(move |_| {
            let page = Body::from(page.clone());
            Box::pin(async {
                Response::builder().header("content-type", "text/plain; version=0.0.4").body(page).unwrap()
            })
        }),
    )
}
