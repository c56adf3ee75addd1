//! Who a process is: the name of its thread-group leader and its binary, from /proc while it lives, else from the events
//! of its exec. Reads neither environments nor command lines.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use energy_model::process::{Comm, Identity, Process};
use energy_model::sample::ProcessEvent;
use energy_model::table;

/// `USER_HZ`: /proc/PID/stat counts starts in hundredths of a second on every Linux.
const START_TICK_NS: u64 = 10_000_000;
/// Ticks for which an event's name and binary are kept for a process that has not been charged yet.
const KEEP_TICKS: u64 = 10;
/// Number of the field `starttime`.
const STAT_START: usize = 22;
/// What the kernel appends to the link of a binary whose file is gone.
const DELETED: &str = " (deleted)";

/// What /proc shows for a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessLook {
    /// Its name, and its binary.
    Alive { comm: String, exe: Exe },
    /// There is no such process (any more); its id is free or another's.
    Gone,
    /// This /proc does not show the kernel side's ids: it is of another PID namespace.
    Unknown,
}

/// The link `/proc/PID/exe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exe {
    Link(String),
    /// It may not be read.
    Refused,
    /// There is none (any more): the process is on its way out.
    None,
}

/// What recent events say about a process.
#[derive(Debug, Default)]
struct RecentEvents {
    comm: Option<Comm>,
    exe: Option<String>,
    exited: bool,
    tick: u64,
}

/// Finds names of processes.
#[derive(Debug)]
pub struct ProcessNames {
    procfs: PathBuf,
    told: HashMap<Process, RecentEvents>,
    tick: u64,
    /// Some process was found in /proc under the id and start that the kernel side has, so one that is not there is gone.
    proven: bool,
    /// Living processes whose binary is not known.
    pub exe_errors: u64,
}

impl ProcessNames {
    #[must_use]
    pub fn new(procfs: &Path) -> Self {
        Self { procfs: procfs.to_owned(), told: HashMap::new(), tick: 0, proven: false, exe_errors: 0 }
    }

    /// Begins a tick with what the events say.
    pub fn follow(&mut self, events: &[(Process, ProcessEvent)]) {
        self.tick += 1;
        let tick = self.tick;
        self.told.retain(|_, told| tick - told.tick < KEEP_TICKS);
        table::fit(&mut self.told);
        for (process, event) in events {
            let told = self.told.entry(*process).or_default();
            told.tick = tick;
            match event {
                ProcessEvent::Exited => told.exited = true,
                ProcessEvent::Renamed(comm) => told.comm = Some(*comm),
                ProcessEvent::Executed(path) => told.exe = Some(path.clone()),
            }
        }
    }

    /// Whether an event said lately that it ended.
    #[must_use]
    pub fn has_exited(&self, process: Process) -> bool {
        self.told.get(&process).is_some_and(|told| told.exited)
    }

    /// Who a process is. `charged` is the name it was first charged under, `before` what it was called until now.
    pub fn identify(&mut self, process: Process, charged: Comm, before: Option<&Identity>) -> Identity {
        let look = if self.has_exited(process) { ProcessLook::Gone } else { self.look(process) };
        let told = self.told.get(&process);
        let told_comm = told.and_then(|told| told.comm);
        let told_exe = told.and_then(|told| told.exe.as_deref());
        let (comm, exe) = match &look {
            ProcessLook::Alive { comm, exe: Exe::Link(exe) } => (Some(comm.as_str()), Some(exe.as_str())),
            ProcessLook::Alive { comm, exe: Exe::Refused | Exe::None } => (Some(comm.as_str()), None),
            ProcessLook::Gone | ProcessLook::Unknown => (None, None),
        };
        let comm = match (comm, told_comm, before) {
            (Some(comm), ..) => comm.into(),
            (None, Some(comm), _) => name(comm).into(),
            (None, None, Some(before)) => Arc::clone(&before.comm),
            (None, None, None) => name(charged).into(),
        };
        let exe: Arc<str> = match (exe.or(told_exe), before) {
            (Some(exe), _) => exe.into(),
            (None, Some(before)) => Arc::clone(&before.exe),
            (None, None) => "".into(),
        };
        let unreadable = matches!(look, ProcessLook::Alive { exe: Exe::Refused, .. } | ProcessLook::Unknown);
        self.exe_errors += u64::from(exe.is_empty() && unreadable);
        Identity { comm, exe }
    }

    /// Looks a process up in /proc. One that vanishes meanwhile is gone; nothing here is an error.
    pub fn look(&mut self, process: Process) -> ProcessLook {
        let absent = if self.proven { ProcessLook::Gone } else { ProcessLook::Unknown };
        let folder = self.procfs.join(process.pid.to_string());
        let Ok(line) = fs::read(folder.join("stat")) else { return absent };
        let Some(stat) = Stat::parse(&line) else { return absent };
        // The id may have been used again, and in another PID namespace it is another's anyway.
        if stat.number(STAT_START) != Some(process.start_ns / START_TICK_NS) {
            return absent;
        }
        self.proven = true;
        let exe = match fs::read_link(folder.join("exe")) {
            Ok(link) => {
                let link = link.to_string_lossy();
                Exe::Link(link.strip_suffix(DELETED).unwrap_or(&link).to_owned())
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Exe::Refused,
            Err(_) => Exe::None,
        };
        ProcessLook::Alive { comm: String::from_utf8_lossy(stat.comm).into_owned(), exe }
    }
}

/// A name as the kernel keeps it: at most 15 bytes, cut anywhere in a character, which is then U+FFFD (FC-036).
#[must_use]
pub fn name(comm: Comm) -> String {
    let bytes = [comm[0].to_ne_bytes(), comm[1].to_ne_bytes()].concat();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A line of `/proc/PID/stat`, <https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html>.
struct Stat<'a> {
    comm: &'a [u8],
    /// What follows the name, from the field 3 on.
    rest: &'a [u8],
}

impl<'a> Stat<'a> {
    /// The name may contain spaces, parentheses and line feeds: it ends at the last parenthesis (FC-034).
    fn parse(line: &'a [u8]) -> Option<Self> {
        let open = line.iter().position(|byte| *byte == b'(')?;
        let close = line.iter().rposition(|byte| *byte == b')')?;
        Some(Self { comm: line.get(open + 1..close)?, rest: &line[close + 1..] })
    }

    /// A field behind the name by its number in the manual page.
    fn field(&self, number: usize) -> Option<&'a str> {
        let rest = str::from_utf8(self.rest).ok()?;
        rest.split_ascii_whitespace().nth(number.checked_sub(3)?)
    }

    fn number(&self, number: usize) -> Option<u64> {
        self.field(number)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELL: Process = Process { pid: 500, start_ns: 1_000_000_000 };

    fn comm(bytes: &[u8]) -> Comm {
        let mut words = [0; 16];
        words[..bytes.len()].copy_from_slice(bytes);
        let (words, _) = words.as_chunks::<8>();
        [words[0], words[1]].map(u64::from_ne_bytes)
    }

    /// A /proc with one process, started 100 ticks after boot.
    fn proc(stat: &str, exe: Option<&str>) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("500");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("stat"), stat).unwrap();
        if let Some(exe) = exe {
            std::os::unix::fs::symlink(exe, folder.join("exe")).unwrap();
        }
        root
    }

    fn stat(comm: &str, start: u64) -> String {
        let fields: Vec<String> = (4..=30).map(|n| if n == 22 { start.to_string() } else { n.to_string() }).collect();
        format!("500 ({comm}) S {}\n", fields.join(" "))
    }

    fn identity(comm: &str, exe: &str) -> Identity {
        Identity { comm: comm.into(), exe: exe.into() }
    }

    #[test]
    fn a_stat_line_is_read_around_any_name() {
        // FC-034
        let case = include_str!("../../../../../tests/cases/FC-034-stat-names.tsv");
        let mut rows = 0;
        for row in case.lines().filter(|row| !row.starts_with('#')) {
            let text = |field: &str| field.replace("\\n", "\n").replace("\\\"", "\"");
            let fields: Vec<String> = row.split('\t').map(text).collect();
            let [line, _pid, comm, state, ppid, utime, stime, start] = &fields[..] else { panic!("{row}") };
            let stat = Stat::parse(line.as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(stat.comm), *comm);
            let got: Vec<_> = [3, 4, 14, 15, 22].iter().map(|number| stat.field(*number).unwrap()).collect();
            assert_eq!(got, [state, ppid, utime, stime, start]);
            rows += 1;
        }
        assert!(rows >= 6, "{rows}");
        assert!(Stat::parse(b"").is_none() && Stat::parse(b"1 sh S").is_none() && Stat::parse(b") (").is_none());
    }

    #[test]
    fn a_name_cut_within_a_character_ends_in_one_replacement_character() {
        // FC-036
        let case = include_str!("../../../../../tests/cases/FC-036-cut-utf8.tsv");
        let mut rows = 0;
        for row in case.lines().filter(|row| !row.starts_with('#') && row.contains('\t')) {
            let (hex, expected) = row.split_once('\t').unwrap();
            let bytes: Vec<u8> =
                (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
            let mut parts = expected.split("\\u");
            let mut text = parts.next().unwrap().to_owned();
            for part in parts {
                text.push(char::from_u32(u32::from_str_radix(&part[..4], 16).unwrap()).unwrap());
                text.push_str(&part[4..]);
            }
            assert_eq!(name(comm(&bytes)), text);
            rows += 1;
        }
        assert_eq!(rows, 3);
    }

    #[test]
    fn a_living_process_is_called_what_proc_calls_it() {
        let root = proc(&stat("python3", 100), Some("/usr/bin/python3.11 (deleted)"));
        let mut names = ProcessNames::new(root.path());
        assert_eq!(names.identify(SHELL, comm(b"bash"), None), identity("python3", "/usr/bin/python3.11"));
        assert_eq!(names.exe_errors, 0);
    }

    #[test]
    fn the_name_of_whoever_has_the_pid_now_is_not_taken() {
        // FC-038: pid 500 is in use again, by a process that started at 730500 ticks.
        let root = proc(&stat("other", 730_500), Some("/bin/other"));
        let mut names = ProcessNames::new(root.path());
        assert_eq!(names.identify(SHELL, comm(b"bash"), None), identity("bash", ""));
        names.proven = true;
        assert_eq!(names.look(SHELL), ProcessLook::Gone);
    }

    #[test]
    fn a_process_that_lived_a_moment_is_called_what_its_exec_said() {
        let root = tempfile::tempdir().unwrap();
        let mut names = ProcessNames::new(root.path());
        let events = [
            (SHELL, ProcessEvent::Renamed(comm(b"sleep"))),
            (SHELL, ProcessEvent::Executed("/bin/sleep".to_owned())),
            (SHELL, ProcessEvent::Exited),
        ];
        names.follow(&events);
        assert!(names.has_exited(SHELL));
        assert_eq!(names.identify(SHELL, comm(b"bash"), None), identity("sleep", "/bin/sleep"));
        assert_eq!(names.exe_errors, 0, "it vanished, which is no error");
        (0..KEEP_TICKS).for_each(|_| names.follow(&[]));
        assert!(!names.has_exited(SHELL) && names.told.is_empty());
    }

    #[test]
    fn an_exec_renames_a_process_that_proc_does_not_show() {
        // FC-039, from another PID namespace.
        let root = tempfile::tempdir().unwrap();
        let mut names = ProcessNames::new(root.path());
        let before = names.identify(SHELL, comm(b"bash"), None);
        assert_eq!((before.clone(), names.exe_errors), (identity("bash", ""), 1));
        names.follow(&[(SHELL, ProcessEvent::Executed("/bin/python3".into()))]);
        names.follow(&[(SHELL, ProcessEvent::Renamed(comm(b"python3")))]);
        assert_eq!(names.identify(SHELL, comm(b"bash"), Some(&before)), identity("python3", "/bin/python3"));
    }

    #[test]
    fn a_process_without_a_readable_binary_keeps_its_name() {
        let root = proc(&stat("sh", 100), None);
        let mut names = ProcessNames::new(root.path());
        assert_eq!(names.identify(SHELL, comm(b"sh"), None), identity("sh", ""));
    }
}
