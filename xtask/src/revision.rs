//! The commit that is built: what packages, images and archives say of themselves, and the time that their files get.

use std::process::Command;

use crate::{output, root};

/// Of a tree without git: nothing, and the beginning of time.
pub struct Revision {
    pub hash: String,
    /// Seconds since 1970.
    pub epoch: String,
    /// As in `Sun, 29 Nov 2026 17:19:22 +0000`.
    pub mail_date: String,
    /// As in `2026-11-29T17:19:22+00:00`.
    pub iso_date: String,
}

impl Revision {
    pub fn of_head() -> Self {
        let log = |format: &str| {
            let mut git = Command::new("git");
            output(git.args(["log", "-1", "--date=unix", format]).current_dir(root())).ok()
        };
        Self {
            hash: log("--format=%H").unwrap_or_else(|| "unknown".to_owned()),
            epoch: log("--format=%ct").unwrap_or_else(|| "0".to_owned()),
            mail_date: log("--format=%cD").unwrap_or_else(|| "Thu, 01 Jan 1970 00:00:00 +0000".to_owned()),
            iso_date: log("--format=%cI").unwrap_or_else(|| "1970-01-01T00:00:00+00:00".to_owned()),
        }
    }
}
