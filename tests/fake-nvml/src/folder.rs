//! The folder that is the machine: what is played (`state.json`), what driver and devices hold (`driver.json`), what was
//! written (`writes.log`) and which calls were made (`calls/SYMBOL`, one character a call: the GPU's index, `.` for none).

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::plant::Running;
use crate::returns::Return;
use crate::state::State;

/// The variable that names the folder; without it, it is `fake-nvml` beside the library.
pub const VARIABLE: &str = "FAKE_NVML_STATE";

/// What stays when a program ends, until the driver is loaded again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Held {
    pub generation: u64,
    /// By UUID.
    pub gpus: BTreeMap<String, HeldGpu>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldGpu {
    pub locked_mhz: Option<(u32, u32)>,
    pub locked_memory_mhz: Option<(u32, u32)>,
    pub power_limit_mw: Option<u32>,
    pub persistence: bool,
    pub running: Option<Running>,
}

pub struct Folder {
    path: PathBuf,
    seen: Option<Version>,
    calls: HashMap<&'static str, File>,
    pub count_calls: bool,
}

/// Tells one file of a name from the next.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version(u64, i64, i64, u64);

impl Folder {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None, calls: HashMap::new(), count_calls: true }
    }

    /// The folder that belongs to this library.
    #[must_use]
    pub fn of_this_library() -> Self {
        Self::new(std::env::var_os(VARIABLE).map_or_else(|| beside_library().join("fake-nvml"), PathBuf::from))
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Brings `state` up to date: `None` while there is no `state.json`.
    pub fn refresh(&mut self, state: &mut Option<State>) {
        let path = self.path.join("state.json");
        let Ok(file) = fs::metadata(&path) else {
            *state = None;
            self.seen = None;
            return;
        };
        let version = Version(file.ino(), file.mtime(), file.mtime_nsec(), file.size());
        if self.seen == Some(version) {
            return;
        }
        match fs::read(&path).map_err(|error| error.to_string()).and_then(|text| parse(&text)) {
            Ok(new) => *state = Some(new),
            // The state before stays, as a reader may have met a writer that does not rename.
            Err(error) => eprintln!("fake-nvml: {}: {error}", path.display()),
        }
        self.seen = Some(version);
    }

    /// Replaces `state.json` in one step.
    ///
    /// # Panics
    /// When the folder cannot be written.
    pub fn play(&self, state: &State) {
        let text = serde_json::to_vec_pretty(state).expect("a state is JSON");
        replace(&self.path.join("state.json"), &text);
    }

    /// What the driver holds, after `change`.
    ///
    /// # Panics
    /// When the folder cannot be written.
    pub fn held<T>(&self, generation: u64, change: impl FnOnce(&mut Held) -> T) -> T {
        let lock =
            OpenOptions::new().create(true).append(true).open(self.path.join("lock")).expect("the lock file opens");
        lock.lock().expect("the lock file locks");
        let path = self.path.join("driver.json");
        let before: Held = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let mut held =
            if before.generation == generation { before.clone() } else { Held { generation, ..Held::default() } };
        let result = change(&mut held);
        if held != before {
            replace(&path, &serde_json::to_vec(&held).expect("a state is JSON"));
        }
        result
    }

    /// Records a write to a device.
    pub fn wrote(&self, uuid: &str, call: &str, arguments: &[u32], answer: Return, at_us: u64) {
        let line = json!({
            "at_us": at_us, "process": std::process::id(), "uuid": uuid, "call": call, "arguments": arguments, "answer": answer,
        });
        let file = OpenOptions::new().create(true).append(true).open(self.path.join("writes.log"));
        if let Err(error) = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())) {
            eprintln!("fake-nvml: {}: {error}", self.path.display());
        }
    }

    /// Counts a call.
    pub fn called(&mut self, symbol: &'static str, gpu: Option<usize>) {
        if !self.count_calls {
            return;
        }
        let mark = gpu
            .and_then(|index| u32::try_from(index).ok())
            .map_or('.', |index| char::from_digit(index, 36).unwrap_or('+'));
        let folder = self.path.join("calls");
        if !self.calls.contains_key(symbol) {
            let file = fs::create_dir_all(&folder)
                .and_then(|()| OpenOptions::new().create(true).append(true).open(folder.join(symbol)));
            match file {
                Ok(file) => _ = self.calls.insert(symbol, file),
                Err(_) => return,
            }
        }
        if let Some(file) = self.calls.get_mut(symbol) {
            _ = file.write_all(&[u8::try_from(mark).unwrap_or(b'+')]);
        }
    }
}

fn parse(text: &[u8]) -> Result<State, String> {
    let state: State = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let names = [&state.errors].into_iter().chain(state.gpus.iter().map(|gpu| &gpu.errors)).flat_map(BTreeMap::keys);
    let hangs = [&state.hangs].into_iter().chain(state.gpus.iter().map(|gpu| &gpu.hangs)).flat_map(BTreeMap::keys);
    let stray = names.chain(hangs).find(|name| *name != "*" && !crate::export::is_symbol(name)).cloned();
    stray.map_or(Ok(state), |name| Err(format!("there is no call {name}")))
}

fn replace(path: &Path, text: &[u8]) {
    let next = path.with_extension(format!("{}.next", std::process::id()));
    fs::write(&next, text).and_then(|()| fs::rename(&next, path)).unwrap_or_else(|error| {
        panic!("writing {}: {error}", path.display());
    });
}

fn beside_library() -> PathBuf {
    // SAFETY: the address is one of a function in this library, and `info` is valid for writing.
    let file = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let address: *const libc::c_void = (beside_library as fn() -> PathBuf as *const ()).cast();
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return PathBuf::from(".");
        }
        // It lives as long as the library is loaded.
        CStr::from_ptr(info.dli_fname)
    };
    let path = Path::new(OsStr::from_bytes(file.to_bytes()));
    path.parent().map_or_else(|| PathBuf::from("."), Path::to_owned)
}
