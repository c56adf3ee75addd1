//! A small file tree below a fake root, written as text (`tests/cases/*.tree`) and built in a temporary folder, with the
//! later moments that the text describes.
//!
//! | line | meaning |
//! | --- | --- |
//! | `d PATH` | folder |
//! | `f PATH [mode=OCTAL] = VALUE` | file with VALUE and a line feed |
//! | `l PATH -> TARGET` | symbolic link |
//! | `x PATH errno=NAME` | reading PATH fails; `EACCES` takes the mode bits away (which do not stop root), any other name leads to a file that answers `EIO` |
//! | `w PATH accept-but-keep` | a write succeeds and leaves the old value, as long as a `Kept` looks at it; see [`Tree::keeps`] |
//! | `@ t=SECONDS` | later moment; the lines that follow happen then |
//! | `! text` | expectation, for people |

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::collections::VecDeque;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

pub struct Tree {
    root: TempDir,
    /// Lines of the later moments, with the time of each since the start.
    later: VecDeque<(Duration, Vec<String>)>,
    now: Duration,
    /// Text of the `!` lines.
    pub expectations: Vec<String>,
    /// Paths of the `w` lines.
    pub keeps: Vec<String>,
}

impl Tree {
    /// An empty tree.
    pub fn new() -> Self {
        let root = TempDir::new().unwrap();
        // A test may hand the tree to a process of another user.
        fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        Self { root, later: VecDeque::new(), now: Duration::ZERO, expectations: Vec::new(), keeps: Vec::new() }
    }

    /// The tree of a field case, named by the beginning of its file name, such as `FC-007`.
    pub fn case(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases");
        let mut files: Vec<PathBuf> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "tree"))
            .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(name))
            .collect();
        assert_eq!(files.len(), 1, "one case begins with {name} in {}", folder.display());
        Self::parse(&fs::read_to_string(files.remove(0)).unwrap())
    }

    /// Builds the first moment of `text`.
    pub fn parse(text: &str) -> Self {
        let mut tree = Self::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(moment) = line.strip_prefix("@ t=") {
                let seconds: f64 = moment.split_whitespace().next().unwrap().parse().unwrap();
                tree.later.push_back((Duration::from_secs_f64(seconds), Vec::new()));
            } else if let Some(expectation) = line.strip_prefix("! ") {
                tree.expectations.push(expectation.to_owned());
            } else if let Some((_, lines)) = tree.later.back_mut() {
                lines.push(line.to_owned());
            } else {
                tree.apply(line);
            }
        }
        tree
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn sysfs(&self) -> PathBuf {
        self.root().join("sys")
    }

    pub fn procfs(&self) -> PathBuf {
        self.root().join("proc")
    }

    /// Applies the next moment; the time since the one before, or `None` after the last.
    pub fn advance(&mut self) -> Option<Duration> {
        let (moment, lines) = self.later.pop_front()?;
        for line in lines {
            self.apply(&line);
        }
        let elapsed = moment - self.now;
        self.now = moment;
        Some(elapsed)
    }

    /// Carries out one line of the format.
    pub fn apply(&mut self, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "d" => fs::create_dir_all(self.root().join(rest)).unwrap(),
            "f" => {
                // The value may be empty, and a mode has an equals sign of its own.
                let (left, value) = rest.split_once(" = ").unwrap_or_else(|| (rest.strip_suffix(" =").unwrap(), ""));
                let (path, mode) = left.split_once(" mode=").unwrap_or((left, "644"));
                self.write(path, format!("{value}\n"));
                let mode = u32::from_str_radix(mode, 8).unwrap();
                fs::set_permissions(self.root().join(path), Permissions::from_mode(mode)).unwrap();
            }
            "l" => {
                let (path, target) = rest.split_once(" -> ").unwrap();
                symlink(target, self.place(path)).unwrap();
            }
            "x" => {
                let (path, errno) = rest.split_once(" errno=").unwrap();
                if !errno.contains("on write") {
                    self.fail(path, errno.trim());
                }
            }
            "w" => self.keeps.push(rest.split_whitespace().next().unwrap().to_owned()),
            _ if verb.starts_with('#') => {}
            _ => panic!("not a line of a tree: {line}"),
        }
    }

    /// Sets the content of a file, made where missing and kept in place where not, as sysfs does.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let full = self.root().join(path);
        match fs::symlink_metadata(&full) {
            Ok(metadata) if metadata.is_file() => {
                fs::set_permissions(&full, Permissions::from_mode(0o644)).unwrap();
            }
            _ => drop(self.place(path)),
        }
        fs::write(full, content).unwrap();
    }

    /// A symbolic link to a place on this machine.
    pub fn link(&self, path: &str, target: &Path) {
        symlink(target, self.place(path)).unwrap();
    }

    /// Makes reading a file fail.
    pub fn fail(&self, path: &str, errno: &str) {
        if errno == "EACCES" {
            if !self.root().join(path).is_file() {
                self.write(path, "");
            }
            fs::set_permissions(self.root().join(path), Permissions::from_mode(0o000)).unwrap();
        } else {
            // The first page of a process is never mapped, so that reading there gives EIO.
            symlink("/proc/self/mem", self.place(path)).unwrap();
        }
    }

    /// Takes a file, link or folder away, if it is there.
    pub fn remove(&self, path: &str) {
        let full = self.root().join(path);
        match fs::symlink_metadata(&full) {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(full).unwrap(),
            Ok(_) => fs::remove_file(full).unwrap(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{path}"),
        }
    }

    /// The full path, with its folder made and nothing at its end.
    fn place(&self, path: &str) -> PathBuf {
        let full = self.root().join(path);
        fs::create_dir_all(full.parent().unwrap()).unwrap();
        self.remove(path);
        full
    }
}

/// A sysfs of the running kernel's types, in which one is called otherwise: what needs it has to do without.
pub fn sysfs_without_type(name: &str) -> TempDir {
    let root = TempDir::new().unwrap();
    fs::create_dir_all(root.path().join("kernel/btf")).unwrap();
    let mut btf = fs::read("/sys/kernel/btf/vmlinux").unwrap();
    let entry = format!("\0{name}\0");
    let at = btf.windows(entry.len()).position(|window| window == entry.as_bytes()).expect(name);
    btf[at + 1] = b'x';
    fs::write(root.path().join("kernel/btf/vmlinux"), btf).unwrap();
    root
}
