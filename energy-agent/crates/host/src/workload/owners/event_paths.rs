//! Paths of cgroup events, which are the kernel's, as paths below the hierarchy's root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use energy_model::sample::CgroupId;

use crate::workload::tree::is_partial;

/// What paths of events begin with before the hierarchy's root.
#[derive(Debug, PartialEq, Eq)]
pub enum AboveRoot {
    Nothing,
    /// The root is a cgroup below the kernel's; its path there shows with the first event.
    Unknown,
    Path(String),
}

impl AboveRoot {
    pub fn of(root: &Path) -> Self {
        if is_partial(root) { Self::Unknown } else { Self::Nothing }
    }

    /// The path of an event below the hierarchy's root.
    pub fn below<'a>(&mut self, root: &Path, id: CgroupId, path: &'a str) -> &'a str {
        if *self == Self::Unknown {
            let starts = path.match_indices('/').map(|(at, _)| at);
            let is_it = |at: &usize| {
                let folder = root.join(path[*at..].trim_start_matches('/'));
                fs::metadata(folder).is_ok_and(|folder| folder.ino() == id)
            };
            if let Some(at) = starts.filter(|at| path.len() > at + 1).find(is_it) {
                *self = Self::Path(path[..at].to_owned());
            }
        }
        self.strip(path)
    }

    /// A path of the kernel's below the hierarchy's root; as it is where it lies elsewhere.
    pub fn strip<'a>(&self, path: &'a str) -> &'a str {
        let Self::Path(above) = self else { return path };
        path.strip_prefix(above.as_str()).filter(|below| below.starts_with('/')).unwrap_or(path)
    }
}
