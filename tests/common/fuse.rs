//! A file system of this process, by the kernel's FUSE: a folder of small files that can stop answering. It is the honest
//! stand-in for a network file system whose server is away: `open`, `stat` and `read` of other processes hang in the kernel.
//!
//! The protocol: <https://docs.kernel.org/filesystems/fuse/fuse.html>, structures as in `linux/fuse.h`, version 7.31.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

const ROOT: u64 = 1;
/// Of `errno.h`.
const NO_ENTRY: i32 = -2;
const NOT_IMPLEMENTED: i32 = -38;

/// What becomes of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answering {
    Now,
    /// When it answers again.
    Later,
    /// Never.
    Never,
}

/// Mounted while it lives.
pub struct SlowFiles {
    mount: TempDir,
    state: Arc<Mutex<State>>,
}

struct State {
    device: File,
    answering: Answering,
    waiting: VecDeque<Request>,
    asked: usize,
    /// The node of a file is its place plus 2.
    files: BTreeMap<String, Vec<u8>>,
}

struct Request {
    opcode: u32,
    unique: u64,
    node: u64,
    body: Vec<u8>,
}

impl SlowFiles {
    /// With these files, of which none comes later.
    pub fn new(files: &[(&str, &str)]) -> Self {
        let mount = TempDir::new().unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.expect("this test needs the kernel's fuse module (modprobe fuse) and root");
        let status = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o", "fd=0,rootmode=40000,user_id=0,group_id=0,allow_other", "slow-files"])
            .arg(mount.path())
            .stdin(Stdio::from(device.try_clone().unwrap()))
            .status()
            .unwrap();
        assert!(status.success(), "mount -t fuse: {status}");
        let mut requests = device.try_clone().unwrap();
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect();
        let state = State { device, answering: Answering::Now, waiting: VecDeque::new(), asked: 0, files };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 17];
            // An error: it is not mounted any more.
            while let Ok(length) = requests.read(&mut buffer) {
                let mut state = shared.lock().unwrap();
                let request = Request::parse(&buffer[..length]);
                state.take(request);
            }
        });
        Self { mount, state }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    /// Another content of a file that is there.
    pub fn write(&self, name: &str, text: &str) {
        *self.state.lock().unwrap().files.get_mut(name).unwrap() = text.as_bytes().to_vec();
    }

    pub fn set(&self, answering: Answering) {
        let mut state = self.state.lock().unwrap();
        state.answering = answering;
        if answering == Answering::Now {
            while let Some(request) = state.waiting.pop_front() {
                state.answer(&request);
            }
        }
    }

    /// Requests that were not answered at once.
    pub fn asked_in_vain(&self) -> usize {
        self.state.lock().unwrap().asked
    }
}

impl Drop for SlowFiles {
    fn drop(&mut self) {
        // Forced: those who wait get an error.
        let _ = Command::new("umount").args(["-f", "-l"]).arg(self.mount.path()).status();
    }
}

impl Request {
    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        Self { opcode: word(4), unique: long(8), node: long(16), body: bytes[40..].to_vec() }
    }
}

impl State {
    fn take(&mut self, request: Request) {
        // INIT is part of mounting; FORGET, BATCH_FORGET and INTERRUPT have no answer.
        match (request.opcode, self.answering) {
            (2 | 42 | 36, _) => {}
            (26, _) | (_, Answering::Now) => self.answer(&request),
            (_, Answering::Later) => {
                self.asked += 1;
                self.waiting.push_back(request);
            }
            (_, Answering::Never) => self.asked += 1,
        }
    }

    fn answer(&mut self, request: &Request) {
        let body = match request.opcode {
            // LOOKUP
            1 => self.lookup(&request.body).ok_or(NO_ENTRY),
            // GETATTR
            3 => self.attributes(request.node).map(|attributes| [vec![0; 16], attributes].concat()).ok_or(NO_ENTRY),
            // OPEN, OPENDIR; FOPEN_DIRECT_IO: every read comes here.
            14 | 27 => Ok(words(&[0, 0, 1, 0])),
            // READ
            15 => self.read(request).ok_or(NO_ENTRY),
            // RELEASE, FLUSH, RELEASEDIR
            18 | 25 | 29 => Ok(Vec::new()),
            // INIT: version 7.31, most bytes of a write.
            26 => Ok(words(&[7, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            // READDIR
            28 => Ok(self.list(request)),
            _ => Err(NOT_IMPLEMENTED),
        };
        let (error, body) = body.map_or_else(|error| (error, Vec::new()), |body| (0, body));
        let length = u32::try_from(16 + body.len()).unwrap();
        let head = [&length.to_ne_bytes()[..], &i32::to_ne_bytes(error), &request.unique.to_ne_bytes()].concat();
        // A call that was interrupted meanwhile needs no answer.
        let _ = self.device.write(&[head, body].concat());
    }

    fn lookup(&self, name: &[u8]) -> Option<Vec<u8>> {
        let name = std::str::from_utf8(name.strip_suffix(b"\0")?).ok()?;
        let node = u64::try_from(self.files.keys().position(|known| known == name)?).unwrap() + 2;
        // Node, generation, and that neither may be kept.
        Some([node.to_ne_bytes().to_vec(), vec![0; 32], self.attributes(node)?].concat())
    }

    fn file(&self, node: u64) -> Option<&[u8]> {
        self.files.values().nth(usize::try_from(node.checked_sub(2)?).unwrap()).map(Vec::as_slice)
    }

    fn attributes(&self, node: u64) -> Option<Vec<u8>> {
        let (size, mode) = match node {
            ROOT => (0, 0o40_755),
            node => (self.file(node)?.len(), 0o100_644),
        };
        let longs = [node, u64::try_from(size).unwrap(), 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
        // Nanoseconds of three times, mode, links, user, group, device, block size, flags.
        Some([longs, words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])].concat())
    }

    fn read(&self, request: &Request) -> Option<Vec<u8>> {
        let file = self.file(request.node)?;
        let offset = usize::try_from(u64::from_ne_bytes(request.body[8..16].try_into().unwrap())).unwrap();
        let size = usize::try_from(u32::from_ne_bytes(request.body[16..20].try_into().unwrap())).unwrap();
        let rest = file.get(offset..).unwrap_or_default();
        Some(rest[..rest.len().min(size)].to_vec())
    }

    fn list(&self, request: &Request) -> Vec<u8> {
        let offset = usize::try_from(u64::from_ne_bytes(request.body[8..16].try_into().unwrap())).unwrap();
        let mut entries = Vec::new();
        for (place, name) in self.files.keys().enumerate().skip(offset) {
            let (node, next) = (u64::try_from(place).unwrap() + 2, u64::try_from(place).unwrap() + 1);
            // 8: a regular file.
            let head = [node.to_ne_bytes().to_vec(), next.to_ne_bytes().to_vec()].concat();
            let length = u32::try_from(name.len()).unwrap();
            let mut entry = [head, words(&[length, 8]), name.as_bytes().to_vec()].concat();
            entry.resize(entry.len().next_multiple_of(8), 0);
            entries.extend(entry);
        }
        entries
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
