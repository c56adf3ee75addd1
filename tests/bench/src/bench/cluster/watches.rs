//! What every node follows: the levels of its hall and its rack, each by a watch of its own by name, as an agent does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::StreamExt as _;
use kube::Client;
use kube::core::WatchEvent;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::node::{Node, Which};
use super::server::{GROUP, NAMESPACE};

/// Connections that are being opened at the same time.
const AT_ONCE: usize = 32;
const PAUSE: Duration = Duration::from_millis(500);

/// What has come.
#[derive(Default)]
pub struct Heard {
    /// Watches that are open.
    pub open: AtomicUsize,
    /// Levels of the hall as they came to nodes, and when.
    levels: Mutex<Vec<(u32, Instant)>>,
}

impl Heard {
    /// When this level of the hall came to each node by now.
    pub fn of_hall(&self, permille: u32) -> Vec<Instant> {
        let levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        levels.iter().filter(|(level, _)| *level == permille).map(|(_, at)| *at).collect()
    }
}

/// Opens the watches, in the background.
pub fn start(runtime: &Handle, client: &Client, nodes: &Arc<Vec<Arc<Node>>>) -> Arc<Heard> {
    let (heard, gate) = (Arc::new(Heard::default()), Arc::new(Semaphore::new(AT_ONCE)));
    for node in nodes.iter() {
        for which in [Which::Hall, Which::Rack] {
            let (client, node) = (client.clone(), Arc::clone(node));
            let (heard, gate) = (Arc::clone(&heard), Arc::clone(&gate));
            runtime.spawn(async move {
                loop {
                    // A server ends watches after their time.
                    let _ = follow(&client, &node, which, &heard, &gate).await;
                    sleep(PAUSE).await;
                }
            });
        }
    }
    heard
}

async fn follow(client: &Client, node: &Node, which: Which, heard: &Heard, gate: &Semaphore) -> Result<()> {
    let name = match which {
        Which::Hall => "budget.hall".to_owned(),
        Which::Rack => format!("budget.rack-{}", node.rack),
    };
    let path = format!(
        "{GROUP}/namespaces/{NAMESPACE}/powerlevels?watch=true&timeoutSeconds=3600&fieldSelector=metadata.name%3D{name}"
    );
    let request = hyper::http::Request::get(path).body(Vec::new())?;
    let opened = {
        let _permit = gate.acquire().await?;
        client.request_events::<Value>(request).await?
    };
    heard.open.fetch_add(1, Ordering::SeqCst);
    let mut events = std::pin::pin!(opened);
    while let Some(event) = events.next().await {
        match event {
            Ok(WatchEvent::Added(level) | WatchEvent::Modified(level)) => {
                let told = permille(&level, node);
                if let Some(told) = told.filter(|_| which == Which::Hall) {
                    heard.levels.lock().unwrap_or_else(PoisonError::into_inner).push((told.0, Instant::now()));
                }
                node.hear(which, told);
            }
            Ok(WatchEvent::Deleted(_)) => node.hear(which, None),
            Ok(WatchEvent::Bookmark(_)) => {}
            Ok(WatchEvent::Error(_)) | Err(_) => break,
        }
    }
    heard.open.fetch_sub(1, Ordering::SeqCst);
    Ok(())
}

/// The level for the node's tier, and its epoch.
fn permille(level: &Value, node: &Node) -> Option<(u32, i64)> {
    let spec = &level["spec"];
    let levels = spec["levels"].as_array()?;
    let of = |tier: &str| levels.iter().find(|level| level["tier"] == *tier);
    let level = of(node.tier()).or_else(|| of(""))?;
    Some((u32::try_from(level["permille"].as_u64()?).ok()?, spec["epoch"].as_i64()?))
}
