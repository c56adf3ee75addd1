//! Plain files under the eyes of the kernel's fanotify: what is written to them is noted, and where a tree says so the old
//! value is put back, as firmware does that takes a limit and keeps its own.
//!
//! Whoever opens such a file, in this process or another, waits until this has looked at it, so that a read that follows
//! a write never sees the value that was written.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::tree::Tree;

pub struct Kept {
    files: Arc<Mutex<BTreeMap<PathBuf, Watched>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Watched {
    file: File,
    content: String,
    keep: bool,
    written: Vec<String>,
}

impl Kept {
    /// Keeps the files of the tree's `w` lines.
    pub fn lines_of(tree: &Tree) -> Self {
        Self::start(tree.keeps.iter().map(|path| (tree.root().join(path), true)))
    }

    /// Only notes what is written.
    pub fn noting(files: &[PathBuf]) -> Self {
        Self::start(files.iter().map(|file| (file.clone(), false)))
    }

    fn start(files: impl Iterator<Item = (PathBuf, bool)>) -> Self {
        // SAFETY: takes flags only; the descriptor is owned from here on.
        let group =
            unsafe { libc::fanotify_init(libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC, libc::O_CLOEXEC.unsigned_abs()) };
        assert!(
            group >= 0,
            "fanotify: {}; needs root and CONFIG_FANOTIFY_ACCESS_PERMISSIONS",
            io::Error::last_os_error()
        );
        // SAFETY: a descriptor just made, which nobody else has.
        let group = unsafe { OwnedFd::from_raw_fd(group) };
        let mut watched = BTreeMap::new();
        for (path, keep) in files {
            let path = path.canonicalize().unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let content = fs::read_to_string(&path).unwrap();
            watched.insert(path.clone(), Watched { file, content, keep, written: Vec::new() });
            let name = CString::new(path.as_os_str().as_bytes()).unwrap();
            // SAFETY: `name` ends with a zero byte and lives until the call returns.
            let marked = unsafe {
                libc::fanotify_mark(
                    group.as_raw_fd(),
                    libc::FAN_MARK_ADD,
                    libc::FAN_OPEN_PERM,
                    libc::AT_FDCWD,
                    name.as_ptr(),
                )
            };
            assert_eq!(marked, 0, "{}: {}", path.display(), io::Error::last_os_error());
        }
        let files = Arc::new(Mutex::new(watched));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (files, stop) = (Arc::clone(&files), Arc::clone(&stop));
            move || answer(&mut File::from(group), &files, &stop)
        });
        Self { files, stop, thread: Some(thread) }
    }

    /// What has been written to a file so far that differed from what it held, in order and without the line feed.
    pub fn written(&self, path: &Path) -> Vec<String> {
        let mut files = self.files.lock().unwrap();
        let watched = files.get_mut(&path.canonicalize().unwrap()).unwrap();
        watched.look();
        watched.written.clone()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // The last open that is waited for.
        let first = self.files.lock().unwrap().keys().next().cloned();
        if let Some(path) = first {
            drop(File::open(path));
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Looks at each file that is about to be opened, and lets the opener go on. The layout of event and answer is the
/// kernel's: `struct fanotify_event_metadata` and `struct fanotify_response`, fanotify(7).
fn answer(group: &mut File, files: &Mutex<BTreeMap<PathBuf, Watched>>, stop: &AtomicBool) {
    let mut buffer = [0; 4096];
    while !stop.load(Ordering::SeqCst) {
        let length = group.read(&mut buffer).unwrap();
        let mut events = &buffer[..length];
        while events.len() >= 24 {
            let number = |at: usize| i32::from_ne_bytes(events[at..at + 4].try_into().unwrap());
            let (event_length, event_fd) = (usize::try_from(number(0)).unwrap(), number(16));
            // SAFETY: the kernel has made this descriptor for the reader of the event, who has to close it.
            let opened = unsafe { OwnedFd::from_raw_fd(event_fd) };
            let path = fs::read_link(format!("/proc/self/fd/{event_fd}")).unwrap();
            if let Some(watched) = files.lock().unwrap().get_mut(&path) {
                watched.look();
            }
            let response = [event_fd.to_ne_bytes(), libc::FAN_ALLOW.to_ne_bytes()].concat();
            group.write_all(&response).unwrap();
            drop(opened);
            events = &events[event_length..];
        }
    }
}

impl Watched {
    fn look(&mut self) {
        let mut content = vec![0; 4096];
        let length = self.file.read_at(&mut content, 0).unwrap();
        let content = String::from_utf8(content[..length].to_vec()).unwrap();
        if content == self.content {
            return;
        }
        self.written.push(content.trim_end().to_owned());
        if self.keep {
            self.file.set_len(0).unwrap();
            self.file.write_all_at(self.content.as_bytes(), 0).unwrap();
        } else {
            self.content = content;
        }
    }
}
