//! Asks all that follow files to look at them now, as SIGHUP does.

use std::future::pending;
use std::sync::LazyLock;

use tokio::sync::watch;

static RELOADS: LazyLock<watch::Sender<()>> = LazyLock::new(|| watch::Sender::new(()));

/// Tells all that follow files to look at them now.
pub fn reload() {
    RELOADS.send_replace(());
}

/// Notices when files are to be read again.
#[derive(Debug)]
pub struct Reload(watch::Receiver<()>);

impl Reload {
    #[must_use]
    pub fn subscribe() -> Self {
        Self(RELOADS.subscribe())
    }

    /// Comes back when the files are to be read again.
    pub async fn asked(&mut self) {
        if self.0.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}
