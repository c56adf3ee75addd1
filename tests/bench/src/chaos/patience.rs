//! Waiting for what has to come. The deadline only tells a hang from a slow machine.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks every 20 ms until there is something.
///
/// # Errors
/// When looking fails, or nothing comes.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited {PATIENCE:?} for {what}");
        }
        thread::sleep(Duration::from_millis(20));
    }
}
