//! The ConfigMap with what each class of work costs on each model: `--export-profile`.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use energy_report::compare::profile::profiles;
use energy_report::run::Run;

/// The manifest, for `kubectl apply` and for a review in git.
///
/// # Errors
/// When a run says too little.
pub(super) fn config_map<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Result<String> {
    let profiles = profiles(runs, day).map_err(anyhow::Error::msg)?;
    let json = serde_json::to_string_pretty(&profiles)?;
    let lines: String = json.lines().map(|line| format!("    {line}\n")).collect();
    Ok(format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: energy-profiles\ndata:\n  profiles.json: |\n{lines}"
    ))
}

/// `2026-11-29`.
fn day(seconds: f64) -> String {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + time).to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}
