//! Who looks, and who holds.

use std::thread;
use std::time::Duration;

use super::*;

/// A lock that somebody who only looks has at this moment.
fn looking(run: &Path) -> File {
    private::folder(run, &FILES).unwrap();
    let file = private::open_to_lock(&path(run)).unwrap();
    file.try_lock_shared().unwrap();
    file
}

#[test]
fn a_look_in_the_same_moment_is_no_agent_that_caps() {
    let folder = tempfile::tempdir().unwrap();
    let looking = looking(folder.path());
    let look = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(looking);
    });
    let taken = NodeLock::take(folder.path(), folder.path());
    look.join().unwrap();
    assert!(taken.as_ref().is_ok_and(NodeLock::is_in_place), "{taken:?}");
}

#[test]
fn a_lock_that_is_held_is_told_with_its_holder_and_looked_at_by_many() {
    let folder = tempfile::tempdir().unwrap();
    let held = NodeLock::take(folder.path(), folder.path()).unwrap();
    let Err(NotLocked::Held(why)) = NodeLock::take(folder.path(), folder.path()) else { panic!("it was taken twice") };
    assert!(why.what.starts_with(&format!("process {} caps by ", std::process::id())), "{why}");
    assert!(matches!(look(folder.path()), Ok(LockState::Held(Some(_)))));
    drop(held);
    let _looking = looking(folder.path());
    assert!(matches!(look(folder.path()), Ok(LockState::Free)));
}
