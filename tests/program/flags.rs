//! Flags and variables as people meet them: what help shows, what counts as set, and what a typing error is answered with.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use std::fs;
use std::process::{Command, Output};

use crate::common::agent::{Agent, PROGRAM};

/// What the program says, without variables of this machine.
fn said(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env_clear().envs(variables.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn help(command: &str) -> String {
    let output = said(&[command, "--help"], &[]);
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).to_owned()
}

/// The flags below each heading, in the order of the page.
fn by_heading(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in page.lines() {
        let flag = line.split([' ', ',']).find(|word| word.starts_with("--"));
        if let Some(heading) = line.strip_suffix(':').filter(|line| !line.starts_with(' ')) {
            found.push((heading, Vec::new()));
        } else if line.trim_start().starts_with('-')
            && let (Some(flag), Some((_, flags))) = (flag, found.last_mut())
        {
            flags.push(flag.split(['[', '=']).next().unwrap());
        }
    }
    found.retain(|(_, flags)| !flags.is_empty());
    found
}

#[test]
fn flags_are_listed_under_headings() {
    let page = help("run");
    let found = by_heading(&page);
    let headings: Vec<&str> = found.iter().map(|(heading, _)| *heading).collect();
    for heading in ["Web server", "Folders", "Meters", "GPUs", "Kubernetes", "Attribution", "Capping", "Export"] {
        assert_eq!(headings.iter().filter(|other| **other == heading).count(), 1, "{heading}: {headings:?}");
    }
    let rest = found.iter().find(|(heading, _)| *heading == "Options").unwrap();
    assert_eq!(rest.1, ["--help"]);
    let of = |name: &str| &found.iter().find(|(heading, _)| *heading == name).unwrap().1;
    assert!(of("Web server").contains(&"--web.listen-address"));
    assert!(of("GPUs").contains(&"--nvml.library"));
}

#[test]
fn each_command_lists_only_flags_that_change_what_it_does() {
    for (command, listed, not) in [
        ("restore", ["--dry-run", "--state.directory"], ["--web.listen-address", "--export.levels"]),
        ("doctor", ["--format", "--meter.cpu"], ["--capping.policy", "--export.terminated-max"]),
        ("top", ["--interval", "--once"], ["--meter.cpu", "--state.directory"]),
        ("measure", ["--runs", "--meter.cpu"], ["--web.listen-address", "--export.levels"]),
        ("controller", ["--controller.interval", "--kubeconfig"], ["--meter.cpu", "--state.directory"]),
    ] {
        let page = help(command);
        let flags: Vec<&str> = by_heading(&page).into_iter().flat_map(|(_, flags)| flags).collect();
        for flag in listed {
            assert!(flags.contains(&flag), "{command} {flag}: {flags:?}");
        }
        for flag in not {
            assert!(!flags.contains(&flag), "{command} {flag}: {flags:?}");
        }
    }
    // Both can still be started in the same way as the agent.
    let output = said(&["restore", "--dry-run", "--export.levels=node", "--state.directory=/proc/nothing"], &[]);
    assert_ne!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_boolean_variable_says_yes_or_no_in_many_ways_and_an_empty_one_is_unset() {
    let code = |value: &str| {
        // It takes all variables of the agent, and ends.
        let restore = ["restore", "--dry-run", "--state.directory=/proc/nothing", "--run.directory=/proc/nothing"];
        said(&restore, &[("ENERGY_AGENT_GPU_DCGM_NAMES", value)]).status.code().unwrap()
    };
    for value in ["1", "0", "yes", "no", "true", "false", "on", "off", ""] {
        assert_ne!(code(value), 2, "{value:?} is refused");
    }
    assert_eq!(code("perhaps"), 2, "a word that is neither");
    let output = said(&["doctor", "--format=json"], &[("ENERGY_AGENT_INTERVAL", ""), ("ENERGY_AGENT_METER_CPU", "")]);
    assert_ne!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_variable_that_no_flag_has_is_warned_of_with_the_one_that_was_meant() {
    let misspelt = [("ENERGY_AGENT_WEB_LISTEN_ADRESS", ":1")];
    let output = said(&["policy", "schema"], &misspelt);
    let warning = "warning: ENERGY_AGENT_WEB_LISTEN_ADRESS is ignored: no flag has this variable; did you mean \
                   ENERGY_AGENT_WEB_LISTEN_ADDRESS?\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), warning));
    assert!(serde_json::from_slice::<serde_json::Value>(&output.stdout).is_ok(), "nothing else on standard output");

    let agent = Agent::spawn(&["env", "ENERGY_AGENT_WEB_LISTEN_ADRESS=:1", PROGRAM], &["--interval=200ms"]);
    let told = agent.assert_logged("ENERGY_AGENT_WEB_LISTEN_ADRESS", 1);
    assert!(told[0].contains(" WARN ") && told[0].contains("ENERGY_AGENT_WEB_LISTEN_ADDRESS?"), "{told:?}");
}

#[test]
fn shells_complete_commands_and_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let output = said(&["completion", shell], &[]);
        assert!(output.status.success(), "{output:?}");
        let script = text(&output.stdout);
        for word in ["restore", "capping.policy"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("energy-agent");
    fs::write(&file, said(&["completion", "bash"], &[]).stdout).unwrap();
    let asked = "source \"$0\"; COMP_WORDS=(energy-agent rest) COMP_CWORD=1; _energy__agent energy-agent rest energy-agent; \
                 echo \"${COMPREPLY[@]}\"";
    let answer = Command::new("bash").args(["-c", asked]).arg(&file).output().unwrap();
    assert_eq!(text(&answer.stdout).trim(), "restore", "{answer:?}");
}

#[test]
fn man_pages_are_written_for_all_commands() {
    let folder = tempfile::tempdir().unwrap();
    let output = said(&["man", folder.path().to_str().unwrap()], &[]);
    assert!(output.status.success(), "{output:?}");
    for (name, flag) in [("energy-agent", "web.listen"), ("energy-agent-restore", "dry"), ("energy-agent-top", "once")]
    {
        let page = fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".TH ") && page.contains(flag), "{name}: {page}");
    }
}

/// What README.md says of them.
#[test]
fn every_flag_of_run_and_controller_is_also_a_variable() {
    for (command, least) in [("run", 40), ("controller", 20)] {
        let page = help(command);
        let flags: Vec<&str> = by_heading(&page).into_iter().flat_map(|(_, flags)| flags).collect();
        assert!(flags.len() > least, "{command}: {flags:?}");
        for flag in flags.into_iter().filter(|flag| *flag != "--help") {
            let name = flag.trim_start_matches('-').to_uppercase().replace(['.', '-'], "_");
            assert!(page.contains(&format!("[env: ENERGY_AGENT_{name}=")), "{command} {flag}");
        }
    }
}
