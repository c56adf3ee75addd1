//! Tells the service manager when the agent is ready, and again and again that it is alive: as long as ticks go on and the
//! web server's thread does.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use energy_export::page::Published;
use tokio::sync::watch;

use crate::notify::Manager;

/// Says ready after the first tick; then alive, unless no tick comes.
pub async fn tell(manager: &Manager, mut snapshots: watch::Receiver<Arc<Published>>, interval: Duration) -> Infallible {
    let _ = snapshots.wait_for(|published| published.snapshot.ticks > 0).await;
    manager.ready();
    let Some(pause) = manager.alive_every() else { return pending().await };
    loop {
        if !snapshots.borrow().is_stale(interval) {
            manager.alive();
        }
        tokio::time::sleep(pause).await;
    }
}
