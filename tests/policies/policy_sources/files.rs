//! A file, and folders of them.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::*;
use crate::common::looks::Looks;
use crate::common::mount::Mount;

const FILE: &str = "policies.yaml";
/// What is found changed is read twice; with the look after it, that is three times.
const LOOKS: usize = 4;

fn follow(path: &Path) -> Follower {
    Follower::start(&[&format!("--capping.policy={}", path.display())])
}

fn new_file(text: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(FILE);
    fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn an_edit_counts_and_a_bad_one_keeps_the_last_good_version() {
    let (_folder, path) = new_file(&yaml("a=1 b=2"));
    let follower = follow(&path);
    follower.wait_for(&["a=1", "b=2"]);
    assert!(follower.now().complete);
    replace(&path, &yaml("a=many b=3"));
    follower.wait_for(&["a=1", "b=3"]);
    assert_eq!(follower.refused(Some("a")), Some(true));
    let line = wait_for("a line", || follower.logged("the previous version stays active").pop());
    assert!(line.contains("policies[0].budget.watts") && line.contains(path.to_str().unwrap()), "{line}");
    // Half of a document, then nothing in it.
    for broken in [&yaml("a=4 b=5")[..70], ""] {
        replace(&path, broken);
        wait_for("the refusal", || follower.refused(None));
        assert_eq!(
            (follower.policies(), follower.refused(None)),
            (vec!["a=1".to_owned(), "b=3".to_owned()], Some(true))
        );
        replace(&path, &yaml("a=1 b=3"));
        wait_for("the repair", || follower.now().problems.is_empty().then_some(()));
    }
    replace(&path, &yaml("b=3"));
    follower.wait_for(&["b=3"]);
    fs::remove_file(&path).unwrap();
    follower.wait_for(&[]);
    assert_eq!((follower.wait_for_state(0, "absent").up, follower.now().complete), (true, true));
    fs::write(&path, yaml("c=1")).unwrap();
    follower.wait_for(&["c=1"]);
}

#[test]
fn equal_content_is_not_published_again() {
    let (folder, path) = new_file(&yaml("a=1"));
    let follower = follow(&path);
    follower.wait_for(&["a=1"]);
    let before = follower.publications();
    let looks = Looks::into(folder.path());
    for _ in 0..3 {
        replace(&path, &yaml("a=1"));
        looks.wait(FILE, 2);
    }
    assert_eq!(follower.publications(), before);
    // Another text of the same policies is no change either.
    replace(&path, &format!("# a comment\n{}", yaml("a=1")));
    looks.wait(FILE, LOOKS);
    assert_eq!(follower.publications(), before);
}

#[test]
fn twenty_edits_in_two_seconds_end_at_the_last_with_few_publications() {
    let (folder, path) = new_file(&yaml("a=100"));
    let follower = follow(&path);
    follower.wait_for(&["a=100"]);
    let (before, began) = (follower.publications(), Instant::now());
    for edit in 0..20 {
        replace(&path, &yaml(&format!("a={edit}.5")));
        thread::sleep(Duration::from_millis(90));
    }
    let edited = began.elapsed();
    follower.wait_for(&["a=19.5"]);
    let took = began.elapsed();
    let publications = follower.publications() - before;
    println!("edited in {edited:?}, in force after {took:?}, {publications} publications");
    assert!(publications <= at_most(took), "{publications} in {took:?}");
    Looks::into(folder.path()).wait(FILE, LOOKS);
    assert_eq!(follower.publications() - before, publications);
}

#[test]
fn a_file_that_always_changes_is_told_and_counts_again_when_it_rests() {
    let (_folder, path) = new_file(&yaml("a=1"));
    let follower = follow(&path);
    follower.wait_for(&["a=1"]);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writer = {
        let path = path.clone();
        thread::spawn(move || {
            let mut edit = 0_u64;
            while stopped.try_recv().is_err() {
                edit += 1;
                replace(&path, &yaml(&format!("a={edit}.25")));
                thread::sleep(Duration::from_millis(5));
            }
        })
    };
    let state = follower.wait_for_state(0, "changing");
    assert!(!state.up && state.detail.contains(path.to_str().unwrap()), "{state:?}");
    stop.send(()).unwrap();
    writer.join().unwrap();
    replace(&path, &yaml("a=7"));
    follower.wait_for(&["a=7"]);
    follower.wait_for_state(0, "ok");
}

#[test]
fn what_cannot_be_read_is_no_deletion() {
    let (_folder, path) = new_file(&yaml("a=1"));
    let follower = follow(&path);
    follower.wait_for(&["a=1"]);
    // A link in a circle stands for a file system that answers with an error; root may read everything.
    fs::remove_file(&path).unwrap();
    let _ = symlink(&path, &path);
    let state = follower.wait_for_state(0, "unreadable");
    assert!(!state.up && state.detail.contains("symbolic links"), "{state:?}");
    assert_eq!(follower.policies(), ["a=1"]);
    replace(&path, &yaml("a=2"));
    follower.wait_for(&["a=2"]);
    // In a folder, the file alone.
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.yaml"), yaml("a=1")).unwrap();
    fs::write(folder.path().join("b.yaml"), yaml("b=1")).unwrap();
    let follower = follow(folder.path());
    follower.wait_for(&["a=1", "b=1"]);
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    symlink(folder.path().join("a.yaml"), folder.path().join("a.yaml")).unwrap();
    replace(&folder.path().join("b.yaml"), &yaml("b=2"));
    wait_for("the refusal", || follower.refused(None));
    follower.wait_for(&["a=1", "b=2"]);
    assert_eq!((follower.refused(None), follower.wait_for_state(0, "ok").up), (Some(true), true));
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    follower.wait_for(&["b=2"]);
}

#[test]
fn a_pipe_is_no_document_and_is_not_waited_for() {
    let folder = TempDir::new().unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("pipe.yaml")).status().unwrap().success());
    fs::write(folder.path().join("a.yaml"), yaml("a=1")).unwrap();
    follow(folder.path()).wait_for(&["a=1"]);
    let state = follow(&folder.path().join("pipe.yaml")).wait_for_state(0, "unreadable");
    assert!(state.detail.contains("neither a file nor a folder"), "{state:?}");
}

/// FC-093: the kubelet's swap of a mounted ConfigMap.
#[test]
fn every_swap_of_a_mounted_configmap_is_seen() {
    let mount = Mount::new("..2025_01_01_00_00_00.111", &yaml("a=1"));
    let [folder, file] = [mount.folder(), &mount.file()].map(follow);
    for (version, watts) in [("..2025_01_01_00_10_00.222", 2), ("..2025_01_01_00_20_00.333", 3)] {
        mount.swap(version, &yaml(&format!("a={watts}")));
        for follower in [&folder, &file] {
            follower.wait_for(&[&format!("a={watts}")]);
        }
    }
    let before = [&folder, &file].map(Follower::publications);
    let version = "..2025_01_01_00_30_00.444";
    mount.swap(version, &yaml("a=3"));
    // Of both followers together.
    Looks::into(&mount.folder().join(version)).wait(FILE, 3 * LOOKS);
    assert_eq!([&folder, &file].map(Follower::publications), before, "equal content is no news");
    for follower in [&folder, &file] {
        // No swap looked like a deletion.
        let kept = follower.published.lock().unwrap();
        let empty = kept.iter().skip_while(|now| now.policies.is_empty()).any(|now| now.policies.is_empty());
        assert!(!empty, "{kept:#?}");
    }
}

/// FC-095: as many policies as a ConfigMap can hold.
#[test]
fn a_mebibyte_of_policies_is_taken_and_more_is_refused() {
    let all: String = (0..9000).map(|policy| {
        format!("- {{name: p-{policy:05}, selector: {{namespaces: [ns-{policy:05}]}}, budget: {{watts: {}, components: [gpu]}}}}\n", 200 + policy % 300)
    }).collect();
    let text = format!("version: 1\npolicies:\n{all}");
    assert!(text.len() < 1_048_576, "{}", text.len());
    let (_folder, path) = new_file(&text);
    let began = Instant::now();
    let follower = follow(&path);
    wait_for("the policies", || (follower.now().policies.len() == 9000).then_some(()));
    println!("{} bytes in force after {:?}", text.len(), began.elapsed());
    replace(&path, &format!("{text}{}", "#".repeat(1_048_576)));
    wait_for("the refusal", || follower.refused(None));
    assert!(follower.now().problems[0].message.contains("1 MiB"));
    assert_eq!((follower.now().policies.len(), follower.refused(None)), (9000, Some(true)));
}
