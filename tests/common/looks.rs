//! Looks at files, counted: a test that says "nothing changes" first waits until somebody has looked.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::agent::wait_for;

/// Openings of the files of a folder.
pub struct Looks(OwnedFd);

impl Looks {
    /// From now on.
    pub fn into(folder: &Path) -> Self {
        let looks = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&looks, folder, WatchFlags::OPEN).unwrap();
        Self(looks)
    }

    /// Waits until the file of this name has been opened `count` times more. All before the last opening has been acted on where
    /// one reader looks again and again.
    pub fn wait(&self, name: &str, count: usize) {
        self.seen(name);
        let mut looks = 0;
        wait_for(&format!("{count} looks at {name}"), || {
            looks += self.seen(name);
            (looks >= count).then_some(())
        });
    }

    /// Openings since the last call.
    fn seen(&self, name: &str) -> usize {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut seen = 0;
        loop {
            match reader.next() {
                Ok(event) => {
                    seen += usize::from(event.file_name().is_some_and(|file| file.to_bytes() == name.as_bytes()));
                }
                Err(Errno::AGAIN) => return seen,
                Err(error) => panic!("watching {name}: {error}"),
            }
        }
    }
}
