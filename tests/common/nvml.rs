//! GPUs that a test plays: the fake NVML library of `tests/fake-nvml` over a folder of its own.

use std::fs;
use std::path::PathBuf;

use fake_nvml::folder::{Folder, Held};
use fake_nvml::returns::Return;
use serde_json::Value;
use tempfile::TempDir;

pub use fake_nvml::state::{Gpu, Instance, Mig, Process, ProcessKind, Sample, State};

pub struct FakeNvml {
    dir: TempDir,
    folder: Folder,
    /// What is played after the next [`Self::play`].
    pub state: State,
}

impl FakeNvml {
    /// A machine without a loaded driver until the first [`Self::play`].
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("nvml-").unwrap();
        let folder = Folder::new(dir.path().join("fake-nvml"));
        fs::create_dir(folder.path()).unwrap();
        fs::copy(library(), dir.path().join("libfake_nvml.so")).unwrap();
        Self { dir, folder, state: State::default() }
    }

    /// A library of an older driver: these symbols are not in it.
    pub fn without(self, symbols: &[&str]) -> Self {
        let path = self.dir.path().join("libfake_nvml.so");
        let mut bytes = fs::read(&path).unwrap();
        for symbol in symbols {
            assert!(fake_nvml::export::is_symbol(symbol), "{symbol}");
            let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
            let places: Vec<_> =
                bytes.windows(name.len()).enumerate().filter(|(_, window)| *window == name).map(|(at, _)| at).collect();
            assert!(!places.is_empty(), "{symbol}");
            for at in places {
                bytes[at + 1] = b'x';
            }
        }
        fs::write(path, bytes).unwrap();
        self
    }

    pub fn gpu(mut self, gpu: Gpu) -> Self {
        self.state.gpus.push(gpu);
        self
    }

    /// Gives this state to the library.
    pub fn play(&self) {
        self.folder.play(&self.state);
    }

    /// Changes the state and plays it.
    pub fn set(&mut self, change: impl FnOnce(&mut State)) {
        change(&mut self.state);
        self.play();
    }

    /// The GPU of that index, to be changed before [`Self::play`].
    pub fn at(&mut self, index: usize) -> &mut Gpu {
        &mut self.state.gpus[index]
    }

    /// Lets a GPU's counter count.
    pub fn add_energy(&mut self, index: usize, millijoules: u64) {
        *self.at(index).energy_mj.as_mut().unwrap() += millijoules;
        self.play();
    }

    /// Makes a call fail on every GPU and everywhere else.
    pub fn fail(&mut self, symbol: &str, error: Return) {
        check(symbol);
        self.set(|state| _ = state.errors.insert(symbol.to_owned(), error));
    }

    /// Makes a call fail on one GPU.
    pub fn fail_at(&mut self, index: usize, symbol: &str, error: Return) {
        check(symbol);
        self.at(index).errors.insert(symbol.to_owned(), error);
        self.play();
    }

    /// Makes a call hang for that long, or until [`Self::heal`].
    pub fn hang(&mut self, symbol: &str, seconds: f64) {
        check(symbol);
        self.set(|state| _ = state.hangs.insert(symbol.to_owned(), seconds));
    }

    /// Ends all errors and hangs.
    pub fn heal(&mut self) {
        self.set(|state| {
            state.errors.clear();
            state.hangs.clear();
            for gpu in &mut state.gpus {
                gpu.errors.clear();
                gpu.hangs.clear();
            }
        });
    }

    /// Takes the driver away until the next [`Self::play`].
    pub fn unload(&self) {
        fs::remove_file(self.folder.path().join("state.json")).unwrap();
    }

    pub fn library(&self) -> PathBuf {
        self.dir.path().join("libfake_nvml.so")
    }

    pub fn flag(&self) -> String {
        format!("--nvml.library={}", self.library().display())
    }

    /// How often a call was made.
    pub fn calls(&self, symbol: &str) -> usize {
        check(symbol);
        fs::read(self.folder.path().join("calls").join(symbol)).map_or(0, |marks| marks.len())
    }

    /// What was written to devices, oldest first.
    pub fn writes(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("writes.log")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What the driver holds: locked clocks, limits, and where the plants are.
    pub fn held(&self) -> Held {
        self.folder.held(self.state.generation, |held| held.clone())
    }

    /// Writes a power limit behind the agent's back.
    pub fn limit_power(&self, uuid: &str, limit_mw: u32) {
        self.folder.held(self.state.generation, |held| {
            held.gpus.entry(uuid.to_owned()).or_default().power_limit_mw = Some(limit_mw);
        });
    }

    /// Writes a lock behind the agent's back, as an administrator does.
    pub fn lock_clocks(&self, uuid: &str, locked_mhz: Option<(u32, u32)>) {
        self.folder.held(self.state.generation, |held| {
            held.gpus.entry(uuid.to_owned()).or_default().locked_mhz = locked_mhz;
        });
    }

    /// How often a call was made on the GPU of that index (below 36).
    pub fn calls_at(&self, symbol: &str, index: u32) -> usize {
        check(symbol);
        let mark = u8::try_from(char::from_digit(index, 36).unwrap()).unwrap();
        let marks = fs::read(self.folder.path().join("calls").join(symbol)).unwrap_or_default();
        marks.into_iter().filter(|it| *it == mark).count()
    }
}

/// A GPU of that UUID, idle and healthy. It draws no power while a test does not count any: a counter that stands still beside
/// power is broken.
pub fn gpu(uuid: &str) -> Gpu {
    Gpu { uuid: uuid.to_owned(), power_mw: Some(0), ..Gpu::default() }
}

/// A compute process.
pub fn process(pid: u32) -> Process {
    Process { pid, memory_bytes: Some(1 << 30), ..Process::default() }
}

/// A sample of this moment.
pub fn sample(pid: u32, sm: u32) -> Sample {
    Sample { pid, at_us: now_us(), sm, memory: 0 }
}

/// NVML's time: microseconds since 1970.
pub fn now_us() -> u64 {
    fake_nvml::clock::wall_us()
}

fn check(symbol: &str) {
    assert!(symbol == "*" || fake_nvml::export::is_symbol(symbol), "there is no call {symbol}");
}

/// Cargo puts it beside the tests that depend on it.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("libfake_nvml.so");
    assert!(library.exists(), "{} is missing: cargo build -p fake-nvml", library.display());
    library
}
