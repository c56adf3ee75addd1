use std::os::unix::fs::symlink;

use energy_model::capping::knob::KnobState;
use proptest::prelude::*;

use super::*;

fn found(value: u64) -> Found {
    Found { min: 0, max: 9000, step: 1, value: Some(value), raw: value.to_string(), state: KnobState::Ok, epoch: 1 }
}

/// A node of its own in a folder, with the state folder of that name.
fn at(node: &Path, state: &str) -> Folders {
    Folders { state: node.join(state), run: node.join("run") }
}

fn open(node: &Path, boot: &str) -> Journal {
    Journal::open(&at(node, "state"), boot).unwrap()
}

fn peek(node: &Path) -> BTreeMap<Knob, JournalEntry> {
    Journal::peek(&at(node, "state"), "b").entries
}

fn file(node: &Path) -> PathBuf {
    node.join("state").join(FILE)
}

/// Why there is none.
fn refused(folders: &Folders, boot: &str) -> String {
    match Journal::open(folders, boot) {
        Err(Refused::Held(why) | Refused::Unusable(why)) => why,
        Ok(journal) => panic!("{journal:?}"),
    }
}

fn policy(name: &str) -> PolicyName {
    PolicyName { namespace: "".into(), name: name.into(), ..PolicyName::default() }
}

/// Notes a write as the actuator does.
fn intend(journal: &mut Journal, knob: &Knob, now: u64, value: u64) {
    let (found, policy) = (found(now), policy("p"));
    journal.intend(&[Intent { knob, found: &found, value, policy: &policy }]).unwrap();
}

#[test]
fn the_original_is_that_of_before_the_first_write_whatever_is_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let knob = Knob::CpuFrequency(4);
    let mut journal = open(folder.path(), "b");
    intend(&mut journal, &knob, 3000, 2000);
    intend(&mut journal, &knob, 2000, 1000);
    drop(journal);
    let journal = open(folder.path(), "b");
    let entry = &journal.entries()[&knob];
    assert_eq!((entry.original, entry.original_raw.as_str()), (Some(3000), "3000"));
    assert_eq!((entry.written, entry.ours.as_slice()), (1000, &[1000, 2000][..]));
}

#[test]
fn what_a_device_made_of_a_value_is_ours_after_a_restart_too() {
    let folder = tempfile::tempdir().unwrap();
    let knob = Knob::RaplLimit("intel-rapl:0".into());
    let mut journal = open(folder.path(), "b");
    intend(&mut journal, &knob, 3000, 2001);
    journal.shown(&knob, 2000).unwrap();
    assert_eq!(peek(folder.path())[&knob].ours, [2001, 2000]);
}

#[test]
fn a_knob_that_was_given_back_is_out_of_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path(), "b");
    intend(&mut journal, &Knob::CpuFrequency(0), 3000, 2000);
    intend(&mut journal, &Knob::CpuFrequency(1), 3000, 2000);
    journal.forget(&[Knob::CpuFrequency(0), Knob::CpuFrequency(7)]).unwrap();
    let left: Vec<_> = peek(folder.path()).into_keys().collect();
    assert_eq!(left, [Knob::CpuFrequency(1)]);
}

#[test]
fn entries_of_another_boot_are_discarded() {
    let folder = tempfile::tempdir().unwrap();
    intend(&mut open(folder.path(), "monday"), &Knob::CpuFrequency(0), 3000, 2000);
    assert!(open(folder.path(), "tuesday").entries().is_empty());
    assert!(open(folder.path(), "monday").entries().is_empty(), "gone for good");
}

#[test]
fn only_one_process_has_the_journal_and_its_pid_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), "b");
    // Wherever it would keep its own.
    for state in ["state", "another"] {
        let refused = refused(&at(folder.path(), state), "b");
        assert!(refused.starts_with(&format!("process {} caps by", std::process::id())), "{refused}");
    }
    drop(first);
    open(folder.path(), "b");
}

#[test]
fn a_folder_that_cannot_be_written_is_a_problem_and_an_unknown_boot_an_error_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = Folders { state: "/proc/nothing".into(), run: folder.path().join("run") };
    let journal = Journal::open(&nowhere, "b").unwrap();
    let problem = journal.problem().unwrap();
    assert!(problem.contains("--state.directory") && problem.contains("/proc/nothing"), "{problem}");
    drop(journal);
    let nowhere = Folders { state: folder.path().join("state"), run: "/proc/nothing".into() };
    let journal = Journal::open(&nowhere, "b").unwrap();
    let problem = journal.problem().unwrap();
    assert!(problem.contains("--run.directory") && problem.contains("/proc/nothing"), "{problem}");
    let refused = refused(&at(folder.path(), "state"), "");
    assert!(refused.contains("--path.procfs"), "{refused}");
}

#[test]
fn a_write_that_cannot_be_noted_is_refused_and_leaves_the_journal_as_it_was() {
    for place in ["state/capping-journal.next", "run/capping-record.next"] {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = open(folder.path(), "b");
        intend(&mut journal, &Knob::CpuFrequency(0), 3000, 2000);
        // A folder in the place of the next file can neither be removed as a file nor be written.
        fs::create_dir(folder.path().join(place)).unwrap();
        let (found, policy, knob) = (found(5), policy("p"), Knob::CpuFrequency(1));
        let intent = Intent { knob: &knob, found: &found, value: 1, policy: &policy };
        let refused = format!("{:#}", journal.intend(&[intent]).unwrap_err());
        assert!(refused.contains(place), "{refused}");
        assert_eq!(journal.problem(), Some(&*refused));
        assert_eq!(journal.entries().len(), 1);
        assert_eq!(peek(folder.path()), *journal.entries());
        fs::remove_dir(folder.path().join(place)).unwrap();
        journal.retry();
        assert_eq!(journal.problem(), None);
    }
}

/// A disk that is full or read-only.
#[test]
fn what_was_restored_and_could_not_leave_the_journal_is_over_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path(), "b");
    intend(&mut journal, &Knob::CpuFrequency(0), 3000, 2000);
    intend(&mut journal, &Knob::CpuFrequency(1), 3000, 2000);
    fs::create_dir(folder.path().join("state/capping-journal.next")).unwrap();
    journal.forget(&[Knob::CpuFrequency(0)]).unwrap_err();
    assert_eq!(fs::read_to_string(file(folder.path())).unwrap().lines().count(), 2, "it stays there");
    drop(journal);
    let journal = open(folder.path(), "b");
    assert_eq!(journal.entries().keys().collect::<Vec<_>>(), [&Knob::CpuFrequency(1)]);
    assert!(journal.loss().is_none(), "{:?}", journal.loss());
}

#[test]
fn the_next_agent_with_a_state_folder_of_its_own_knows_what_was_before_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let knob = Knob::RaplLimit("intel-rapl:0".into());
    let [one, two] = ["one", "two"].map(|state| at(folder.path(), state));
    intend(&mut Journal::open(&one, "b").unwrap(), &knob, 145, 95);
    let mut journal = Journal::open(&two, "b").unwrap();
    assert_eq!(journal.entries()[&knob].original, Some(145));
    intend(&mut journal, &knob, 95, 57);
    assert_eq!((journal.entries()[&knob].original, journal.entries()[&knob].written), (Some(145), 57));
    journal.forget(&[knob]).unwrap();
    drop(journal);
    // What the first journal still says is over.
    assert_eq!(fs::read_to_string(one.state.join(FILE)).unwrap().lines().count(), 1);
    let journal = Journal::open(&one, "b").unwrap();
    assert!(journal.entries().is_empty() && journal.loss().is_none(), "{journal:?}");
}

#[test]
fn a_journal_of_a_version_that_kept_no_record_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let knob = Knob::RaplLimit("intel-rapl:0".into());
    let [one, two] = ["one", "two"].map(|state| at(folder.path(), state));
    fs::create_dir(&one.state).unwrap();
    let entry = JournalEntry::new(&knob, &found(145), 95, &policy("p"), "b", 1_700_000_000);
    fs::write(one.state.join(FILE), entry.to_line() + "\n").unwrap();
    // Another one has begun a record since, and took what it found for what was before.
    intend(&mut Journal::open(&two, "b").unwrap(), &knob, 95, 57);
    let journal = Journal::open(&one, "b").unwrap();
    let entry = &journal.entries()[&knob];
    assert_eq!((entry.original, entry.ours.as_slice()), (Some(145), &[95, 57][..]));
    assert!(journal.loss().is_none());
}

/// Both folders, with a link of this name to somebody's file.
fn linked(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    for name in ["state", "run"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    symlink(&victim, folder.path().join(name)).unwrap();
    (folder, victim)
}

#[test]
fn a_link_left_in_the_folders_is_not_written_through() {
    for name in ["state/capping-journal.next", "state/capping-journal.damaged", "run/capping-record.next"] {
        let (folder, victim) = linked(name);
        fs::write(file(folder.path()), "not a journal\n").unwrap();
        intend(&mut open(folder.path(), "b"), &Knob::CpuFrequency(0), 3000, 2000);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine", "{name}");
    }
    // Nor is one read or locked.
    for name in ["state/capping-journal.jsonl", "run/capping-record.jsonl", "run/capping.lock"] {
        let (folder, victim) = linked(name);
        let journal = open(folder.path(), "b");
        let shown = format!("{:?} {:?}", journal.loss(), journal.problem());
        assert!(shown.contains(name), "{shown}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine", "{name}");
    }
}

/// The journal as it is after three knobs were noted, one line of which is not what it was.
fn spoilt(folder: &Path) -> Vec<u8> {
    let mut journal = open(folder, "b");
    for number in 0..3 {
        intend(&mut journal, &Knob::CpuFrequency(number), 3000, 2000);
    }
    drop(journal);
    let whole = fs::read_to_string(file(folder)).unwrap();
    let spoilt = whole.replacen("\"original\":3000", "\"original\":3001", 1);
    let bytes = [b"\xff\xfe\x00\n{}\n", spoilt.as_bytes(), b"{\"crc\":\"0000"].concat();
    fs::write(file(folder), &bytes).unwrap();
    bytes
}

#[test]
fn damaged_lines_are_in_the_record_of_the_boot() {
    let folder = tempfile::tempdir().unwrap();
    spoilt(folder.path());
    let journal = open(folder.path(), "b");
    let left: Vec<_> = journal.entries().keys().cloned().collect();
    assert_eq!(left, [0, 1, 2].map(Knob::CpuFrequency));
    let Loss { causes, recovered, lines } = journal.loss();
    assert_eq!((recovered.as_slice(), *lines), (&[Knob::CpuFrequency(0)][..], 0));
    assert_eq!(*causes, [format!("4 lines of {} are damaged", file(folder.path()).display())]);
    assert!(!folder.path().join("state/capping-journal.damaged").exists());
    // It is whole again.
    drop(journal);
    let journal = open(folder.path(), "b");
    assert!(journal.loss().is_none() && journal.entries().len() == 3, "{journal:?}");
}

#[test]
fn damaged_lines_without_a_record_cost_nothing_but_themselves_and_are_kept_in_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = spoilt(folder.path());
    fs::remove_dir_all(folder.path().join("run")).unwrap();
    let journal = open(folder.path(), "b");
    let left: Vec<_> = journal.entries().keys().cloned().collect();
    assert_eq!(left, [Knob::CpuFrequency(1), Knob::CpuFrequency(2)]);
    assert_eq!(fs::read(folder.path().join("state/capping-journal.damaged")).unwrap(), bytes);
    assert_eq!(journal.loss().lines, 4);
    // Until it has been reported.
    drop(journal);
    let mut journal = open(folder.path(), "b");
    assert_eq!(journal.loss().lines, 4);
    journal.loss_is_told();
    drop(journal);
    assert!(open(folder.path(), "b").loss().is_none());
}

#[test]
fn a_journal_that_somebody_removes_or_changes_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path(), "b");
    intend(&mut journal, &Knob::CpuFrequency(0), 3000, 2000);
    assert_eq!(journal.look_after().unwrap(), None);
    let text = fs::read_to_string(file(folder.path())).unwrap();
    let removals: [&dyn Fn(); 4] = [
        &|| fs::remove_file(file(folder.path())).unwrap(),
        &|| fs::write(file(folder.path()), "").unwrap(),
        &|| fs::remove_dir_all(folder.path().join("state")).unwrap(),
        &|| fs::remove_dir_all(folder.path().join("run")).unwrap(),
    ];
    for remove in removals {
        remove();
        let changed = journal.look_after().unwrap().unwrap();
        assert!(changed.starts_with(&folder.path().display().to_string()), "{changed}");
        assert_eq!(fs::read_to_string(file(folder.path())).unwrap(), text);
        assert_eq!(peek(folder.path()), *journal.entries());
        assert_eq!(journal.look_after().unwrap(), None);
        let refused = refused(&at(folder.path(), "another"), "b");
        assert!(refused.starts_with("process "), "the lock as well: {refused}");
    }
}

#[test]
fn rights_of_other_users_are_taken_away_and_folders_of_other_users_are_not_used() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), "b"));
    let names = ["state", "run", "state/capping-journal.jsonl", "run/capping-record.jsonl", "run/capping.lock"];
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o7777;
    let private = [0o700, 0o700, 0o600, 0o600, 0o600];
    assert_eq!(names.map(mode), private);
    for name in names {
        let open = if folder.path().join(name).is_dir() { 0o777 } else { 0o644 };
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(open)).unwrap();
    }
    let journal = open(folder.path(), "b");
    assert_eq!((names.map(mode), journal.problem()), (private, None));
    drop(journal);
    for name in ["state", "run"] {
        chown(folder.path().join(name), Some(65534), None).unwrap();
        let journal = open(folder.path(), "b");
        let problem = journal.problem().unwrap();
        assert!(problem.contains(&format!("{name} belongs to user 65534")), "{problem}");
        drop(journal);
        chown(folder.path().join(name), Some(0), None).unwrap();
    }
    // Nor is a journal that another user has put there.
    let mut journal = open(folder.path(), "b");
    intend(&mut journal, &Knob::CpuFrequency(0), 3000, 2000);
    drop(journal);
    fs::remove_dir_all(folder.path().join("run")).unwrap();
    chown(file(folder.path()), Some(65534), None).unwrap();
    let journal = open(folder.path(), "b");
    assert!(journal.entries().is_empty());
    assert!(journal.loss().causes[0].contains("belongs to user 65534"), "{:?}", journal.loss());
}

#[test]
fn a_folder_that_other_programs_use_keeps_its_rights() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("theirs"), "").unwrap();
    for (mode, usable) in [(0o755, true), (0o777, false), (0o1777, false)] {
        fs::set_permissions(&state, fs::Permissions::from_mode(mode)).unwrap();
        let journal = open(folder.path(), "b");
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o7777, mode);
        assert_eq!(journal.problem().is_none(), usable, "{:?}", journal.problem());
    }
}

#[test]
fn a_kind_of_a_newer_version_stays_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("state")).unwrap();
    let path = file(folder.path());
    // The checksum by python3: zlib.crc32(b'"boot":"b","actuator":"fan_speed","device":"fan0"}').
    let line = "{\"crc\":\"794f8d70\",\"boot\":\"b\",\"actuator\":\"fan_speed\",\"device\":\"fan0\"}\n";
    fs::write(&path, line).unwrap();
    let mut journal = open(folder.path(), "b");
    intend(&mut journal, &Knob::CpuFrequency(0), 3000, 2000);
    assert!(fs::read_to_string(&path).unwrap().ends_with(line));
    drop(journal);
    drop(open(folder.path(), "another"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "", "not beyond its boot");
}

proptest! {
    #[test]
    fn every_beginning_of_a_journal_gives_its_whole_lines(count in 1_u32..5, cut: prop::sample::Index) {
        let lines: Vec<String> = (0..count)
            .map(|number| JournalEntry::new(&Knob::CpuFrequency(number), &found(3000), 1, &policy("p"), "b", 0).to_line())
            .collect();
        let text = lines.join("\n") + "\n";
        let cut = cut.index(text.len() + 1);
        let content = JournalContent::parse(&text.as_bytes()[..cut], "b");
        // A line is whole with its last brace, with or without the line feed.
        let mut end = 0;
        let whole = lines.iter().take_while(|line| { end += line.len() + 1; end - 1 <= cut }).count();
        let expected: Vec<_> = (0..u32::try_from(whole).unwrap()).map(Knob::CpuFrequency).collect();
        prop_assert_eq!(content.entries.into_keys().collect::<Vec<_>>(), expected);
        prop_assert!(content.damaged <= 1);
    }

    #[test]
    fn no_content_makes_the_journal_panic(bytes: Vec<u8>) {
        let _ = JournalContent::parse(&bytes, "b");
    }
}
