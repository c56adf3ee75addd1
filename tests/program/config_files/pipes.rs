//! What is no regular file, in the place of one.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Command;

use tempfile::TempDir;

use super::*;

/// What it is, and how to make it.
type Make<'a> = (&'a str, &'a dyn Fn(&Path));

/// Puts something else in the place of a file, in one step.
fn replace(path: &Path, make: impl FnOnce(&Path)) {
    let new = path.with_extension("new");
    make(&new);
    fs::rename(new, path).unwrap();
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_pipe_a_socket_or_a_device_is_not_waited_for_and_a_file_counts_again() {
    let folder = TempDir::new().unwrap();
    let [web_file, policies, export_file] =
        ["web.yaml", "policies.yaml", "export"].map(|name| folder.path().join(name));
    let write = |frame: &str, watts: u32, metric: &str| {
        for (path, text) in [(&web_file, web(frame)), (&policies, policy(watts)), (&export_file, export(metric))] {
            replace(path, |new| fs::write(new, text).unwrap());
        }
    };
    write("deny", 100, INFO);
    let mut agent = agent(&web_file, &policies, &export_file);
    let active = |agent: &Agent| (frame(agent), budget(agent), exported(agent));
    let states = |agent: &Agent| {
        let page = agent.scrape();
        ["web_config_valid", "policy_source_up", "export_config_valid"]
            .map(|state| page.count(&format!("energy_agent_{state}")))
    };
    // The owner of the socket goes away, its file stays.
    let socket = |path: &Path| drop(UnixListener::bind(path).unwrap());
    let makes: [Make<'_>; 4] = [
        ("a pipe", &pipe),
        ("a socket", &socket),
        ("a device", &|path| symlink("/dev/zero", path).unwrap()),
        ("a pipe by a link", &|path| {
            let target = path.with_extension("pipe");
            let _ = fs::remove_file(&target);
            pipe(&target);
            symlink(target, path).unwrap();
        }),
    ];
    let versions = [("deny", 100, INFO), ("sameorigin", 200, BUSY)];
    for (number, (what, make)) in makes.iter().enumerate() {
        let (frame, watts, metric) = versions[number % 2];
        let before = (frame.to_owned(), Some(f64::from(watts)), vec![metric]);
        assert_eq!(active(&agent), before, "{what}");
        [&web_file, &policies, &export_file].into_iter().for_each(|path| replace(path, *make));
        wait_for(what, || (states(&agent) == [0, 0, 0]).then_some(()));
        assert_eq!(active(&agent), before, "{what}");
        let (frame, watts, metric) = versions[(number + 1) % 2];
        write(frame, watts, metric);
        let after = (frame.to_owned(), Some(f64::from(watts)), vec![metric]);
        wait_for(&format!("a file after {what}"), || (active(&agent) == after).then_some(()));
        wait_for("the states", || (states(&agent) == [1, 1, 1]).then_some(()));
    }
    agent.assert_logged("web.yaml: a pipe, not a regular file", 2);
    agent.assert_well();
}

#[test]
fn in_a_folder_each_of_them_stops_its_own_document_alone() {
    let (folder, keys) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let at = |name: &str| folder.path().join(name);
    let named = |name: &str, watts: u32| policy(watts).replace("cap", name);
    fs::write(keys.path().join("EXPORT_METRICS"), INFO).unwrap();
    fs::write(at("a.yaml"), policy(100)).unwrap();
    for name in ["pipe", "socket", "device", "sparse", "loop"] {
        fs::write(at(&format!("{name}.yaml")), named(name, 50)).unwrap();
    }
    let web_file = keys.path().join(".web.yaml");
    fs::write(&web_file, web("deny")).unwrap();
    let mut agent = agent(&web_file, folder.path(), keys.path());
    let policies = |agent: &Agent| -> Vec<String> {
        let status = agent.policies();
        let policies = status["policies"].as_array().unwrap().iter();
        policies.map(|policy| policy["name"].as_str().unwrap().to_owned()).collect()
    };
    let all = ["cap", "device", "loop", "pipe", "socket", "sparse"];
    assert_eq!(policies(&agent), all);
    replace(&at("pipe.yaml"), pipe);
    replace(&at("socket.yaml"), |path| drop(UnixListener::bind(path).unwrap()));
    replace(&at("device.yaml"), |path| symlink("/dev/zero", path).unwrap());
    replace(&at("sparse.yaml"), |path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap());
    replace(&at("loop.yaml"), |path| symlink(at("loop.yaml"), path).unwrap());
    replace(&keys.path().join("EXPORT_METRICS"), pipe);
    let problems = wait_for("all of them to be refused", || {
        let status = agent.policies();
        let problems: Vec<String> = status["problems"]
            .as_array()
            .unwrap()
            .iter()
            .map(|problem| format!("{} {}", problem["message"].as_str().unwrap(), problem["kept"]))
            .collect();
        (problems.len() == 5).then_some(problems)
    });
    for (name, said) in [
        ("device.yaml: ", "a device, not a regular file"),
        ("loop.yaml: ", "Too many levels of symbolic links (os error 40)"),
        ("pipe.yaml: ", "a pipe, not a regular file"),
        ("socket.yaml: ", "a socket, not a regular file"),
        ("", "larger than 1 MiB; divide it"),
    ] {
        let said = format!("{name}{said} true");
        assert!(problems.iter().any(|problem| problem.ends_with(&said)), "{said} is not in {problems:#?}");
    }
    assert_eq!(policies(&agent), all, "last good versions stay");
    wait_for("the selection's state", || (agent.scrape().count("energy_agent_export_config_valid") == 0).then_some(()));
    // The others count as before.
    fs::write(at("a.yaml"), policy(200)).unwrap();
    wait_for("an edit beside them", || (budget(&agent) == Some(200.0)).then_some(()));
    assert_eq!(exported(&agent), [INFO]);
    for name in ["pipe", "socket", "device", "sparse", "loop"] {
        fs::remove_file(at(&format!("{name}.yaml"))).unwrap();
    }
    wait_for("deletions", || (policies(&agent) == ["cap"]).then_some(()));
    replace(&keys.path().join("EXPORT_METRICS"), |path| fs::write(path, BUSY).unwrap());
    wait_for("the selection", || (exported(&agent) == [BUSY]).then_some(()));
    agent.assert_well();
}
