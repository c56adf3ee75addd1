//! Which boot of the machine this is.

use std::fs;
use std::path::Path;

/// Names this boot of the machine; empty where it cannot be read.
#[must_use]
pub fn boot_id(procfs: &Path) -> String {
    fs::read_to_string(procfs.join("sys/kernel/random/boot_id")).unwrap_or_default().trim().to_owned()
}
