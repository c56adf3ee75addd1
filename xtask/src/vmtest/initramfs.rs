//! The files of a virtual machine as one cpio archive, which a kernel unpacks into its root.
//!
//! Format: <https://docs.kernel.org/driver-api/early-userspace/buffer-format.html>.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// The archive with the programs, the scripts that run them, and the folders that `init` mounts on.
///
/// # Errors
/// When one can't be read.
pub fn of(programs: &[(&str, PathBuf)], scripts: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["bin", "proc", "sys", "dev", "tmp"] {
        archive.add(folder, FOLDER, &[])?;
    }
    let scripts = [("init", "init.sh"), ("capping.sh", "capping.sh"), ("cycles.sh", "cycles.sh")]
        .map(|(name, file)| (name.to_owned(), scripts.join(file)));
    let programs = programs.iter().map(|(name, file)| (format!("bin/{name}"), file.clone()));
    for (name, file) in programs.chain(scripts) {
        archive.add(&name, PROGRAM, &fs::read(&file).with_context(|| file.display().to_string())?)?;
    }
    archive.add("TRAILER!!!", 0, &[])?;
    Ok(archive.bytes)
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entries += 1;
        let size = u32::try_from(content.len()).context("a file of 4 GiB")?;
        let name_size = u32::try_from(name.len() + 1).context("a long name")?;
        // Inode, mode, owner, group, links, time, size, two device numbers of two parts, size of the name, sum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let mut header = "070701".to_owned();
        for field in fields {
            write!(header, "{field:08x}")?;
        }
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    /// Names' ends and contents are on multiples of four.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
