use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;
use crate::capping::observation::KnobState;

fn found(value: u64) -> Found {
    Found { min: 0, max: 9000, step: 1, value: Some(value), raw: value.to_string(), state: KnobState::Ok, epoch: 1 }
}

fn policy(name: &str) -> PolicyName {
    PolicyName { namespace: "".into(), name: name.into() }
}

/// Notes a write as the actuator does.
fn intend(journal: &mut Journal, knob: &Knob, now: u64, value: u64) {
    let (found, policy) = (found(now), policy("p"));
    journal.intend(&[Intent { knob, found: &found, value, policy: &policy }]).unwrap();
}

#[test]
fn the_original_is_that_of_before_the_first_write_whatever_is_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("new");
    let knob = Knob::CpuFrequency(4);
    let mut journal = Journal::open(&directory, "b").unwrap();
    intend(&mut journal, &knob, 3000, 2000);
    intend(&mut journal, &knob, 2000, 1000);
    drop(journal);
    let journal = Journal::open(&directory, "b").unwrap();
    let entry = &journal.entries()[&knob];
    assert_eq!((entry.original, entry.original_raw.as_str()), (Some(3000), "3000"));
    assert_eq!((entry.written, entry.ours.as_slice()), (1000, &[1000, 2000][..]));
}

#[test]
fn what_a_device_made_of_a_value_is_ours_after_a_restart_too() {
    let folder = tempfile::tempdir().unwrap();
    let knob = Knob::RaplLimit("intel-rapl:0".into());
    let mut journal = Journal::open(folder.path(), "b").unwrap();
    intend(&mut journal, &knob, 3000, 2001);
    journal.shown(&knob, 2000).unwrap();
    assert_eq!(Journal::peek(folder.path(), "b").unwrap()[&knob].ours, [2001, 2000]);
}

#[test]
fn a_knob_that_was_given_back_is_out_of_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), "b").unwrap();
    intend(&mut journal, &Knob::CpuFrequency(0), 3000, 2000);
    intend(&mut journal, &Knob::CpuFrequency(1), 3000, 2000);
    journal.forget(&[Knob::CpuFrequency(0), Knob::CpuFrequency(7)]).unwrap();
    let left: Vec<_> = Journal::peek(folder.path(), "b").unwrap().into_keys().collect();
    assert_eq!(left, [Knob::CpuFrequency(1)]);
}

#[test]
fn entries_of_another_boot_are_discarded() {
    let folder = tempfile::tempdir().unwrap();
    intend(&mut Journal::open(folder.path(), "monday").unwrap(), &Knob::CpuFrequency(0), 3000, 2000);
    assert!(Journal::open(folder.path(), "tuesday").unwrap().entries().is_empty());
    assert!(Journal::open(folder.path(), "monday").unwrap().entries().is_empty(), "gone for good");
}

#[test]
fn only_one_process_has_the_journal_and_its_pid_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let first = Journal::open(folder.path(), "b").unwrap();
    let refused = format!("{:#}", Journal::open(folder.path(), "b").unwrap_err());
    assert!(refused.starts_with(&format!("process {} caps by", std::process::id())), "{refused}");
    drop(first);
    Journal::open(folder.path(), "b").unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_or_an_unknown_boot_is_an_error_with_the_remedy() {
    let refused = format!("{:#}", Journal::open(Path::new("/proc/nothing"), "b").unwrap_err());
    assert!(refused.contains("/proc/nothing; set --state.directory"), "{refused}");
    let folder = tempfile::tempdir().unwrap();
    let refused = format!("{:#}", Journal::open(folder.path(), "").unwrap_err());
    assert!(refused.contains("--path.procfs"), "{refused}");
}

#[test]
fn a_write_that_cannot_be_noted_is_refused_and_leaves_the_journal_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), "b").unwrap();
    intend(&mut journal, &Knob::CpuFrequency(0), 3000, 2000);
    // A folder in the place of the next file can neither be removed as a file nor be written.
    fs::create_dir(folder.path().join("capping-journal.next")).unwrap();
    let (found, policy, knob) = (found(5), policy("p"), Knob::CpuFrequency(1));
    let intent = Intent { knob: &knob, found: &found, value: 1, policy: &policy };
    let refused = format!("{:#}", journal.intend(&[intent]).unwrap_err());
    assert!(refused.contains("capping-journal.next"), "{refused}");
    assert_eq!(journal.entries().len(), 1);
    assert_eq!(Journal::peek(folder.path(), "b").unwrap(), *journal.entries());
}

#[test]
fn a_link_left_in_the_folder_is_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    for name in ["capping-journal.next", "capping-journal.damaged"] {
        fs::write(&victim, "mine").unwrap();
        let directory = folder.path().join(name.replace('.', "-"));
        fs::create_dir(&directory).unwrap();
        symlink(&victim, directory.join(name)).unwrap();
        fs::write(directory.join(FILE), "not a journal\n").unwrap();
        intend(&mut Journal::open(&directory, "b").unwrap(), &Knob::CpuFrequency(0), 3000, 2000);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine", "{name}");
    }
    let directory = folder.path().join("lock");
    fs::create_dir(&directory).unwrap();
    symlink(&victim, directory.join(LOCK)).unwrap();
    Journal::open(&directory, "b").unwrap_err();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
}

#[test]
fn damaged_lines_cost_nothing_but_themselves_and_are_kept_in_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), "b").unwrap();
    for number in 0..3 {
        intend(&mut journal, &Knob::CpuFrequency(number), 3000, 2000);
    }
    drop(journal);
    let path = folder.path().join(FILE);
    let whole = fs::read_to_string(&path).unwrap();
    let spoilt = whole.replacen("\"original\":3000", "\"original\":3001", 1);
    let bytes = [b"\xff\xfe\x00\n{}\n", spoilt.as_bytes(), b"{\"crc\":\"0000"].concat();
    fs::write(&path, &bytes).unwrap();
    let journal = Journal::open(folder.path(), "b").unwrap();
    let left: Vec<_> = journal.entries().keys().cloned().collect();
    assert_eq!(left, [Knob::CpuFrequency(1), Knob::CpuFrequency(2)]);
    assert_eq!(fs::read(folder.path().join("capping-journal.damaged")).unwrap(), bytes);
}

#[test]
fn a_kind_of_a_newer_version_stays_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    // The checksum by python3: zlib.crc32(b'"boot":"b","actuator":"fan_speed","device":"fan0"}').
    let line = "{\"crc\":\"794f8d70\",\"boot\":\"b\",\"actuator\":\"fan_speed\",\"device\":\"fan0\"}\n";
    fs::write(&path, line).unwrap();
    let mut journal = Journal::open(folder.path(), "b").unwrap();
    intend(&mut journal, &Knob::CpuFrequency(0), 3000, 2000);
    assert!(fs::read_to_string(&path).unwrap().ends_with(line));
    drop(journal);
    Journal::open(folder.path(), "another").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "", "not beyond its boot");
}

proptest! {
    #[test]
    fn every_beginning_of_a_journal_gives_its_whole_lines(count in 1_u32..5, cut: prop::sample::Index) {
        let lines: Vec<String> = (0..count)
            .map(|number| Entry::new(&Knob::CpuFrequency(number), &found(3000), 1, &policy("p"), "b", 0).to_line())
            .collect();
        let text = lines.join("\n") + "\n";
        let cut = cut.index(text.len() + 1);
        let content = Content::parse(&text.as_bytes()[..cut], "b");
        // A line is whole with its last brace, with or without the line feed.
        let mut end = 0;
        let whole = lines.iter().take_while(|line| { end += line.len() + 1; end - 1 <= cut }).count();
        let expected: Vec<_> = (0..u32::try_from(whole).unwrap()).map(Knob::CpuFrequency).collect();
        prop_assert_eq!(content.entries.into_keys().collect::<Vec<_>>(), expected);
        prop_assert!(content.damaged <= 1);
    }

    #[test]
    fn no_content_makes_the_journal_panic(bytes: Vec<u8>) {
        let _ = Content::parse(&bytes, "b");
    }
}
