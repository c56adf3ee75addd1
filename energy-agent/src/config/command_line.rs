//! The declared flags as people and programs meet them: under headings, each command with those that it uses, booleans that
//! take a value, and empty variables that count as unset.

use std::env;
use std::ffi::OsString;

use clap::builder::{BoolishValueParser, OsStr, Resettable};
use clap::{Arg, ArgAction, Command, CommandFactory as _, FromArgMatches as _};

use super::{Cli, KubectlPlugin};

/// Flags of `run` that change what `doctor` finds.
const OF_DOCTOR: [&str; 18] = [
    "web.listen-address",
    "web.config.file",
    "path",
    "meter",
    "ebpf",
    "state",
    "run",
    "gpu",
    "nvml",
    "node",
    "attribution.idle",
    "kubeconfig",
    "pods.source",
    "pods.kubelet-url",
    "pods.kubelet-ca",
    "capping",
    "export.levels",
    "format",
];

/// Those that change what `restore` does.
const OF_RESTORE: [&str; 7] = ["path", "state", "run", "gpu", "nvml", "capping.gpu-clock-before", "dry-run"];

const ALL_ACCEPTED: &str = "All flags and variables of `energy-agent run` are accepted too, so that both can be started in the same way. \
    Those that change nothing here are not listed.";

impl Cli {
    /// All commands and their flags.
    #[must_use]
    pub fn command_line() -> Command {
        let whole = Self::command().mut_args(|arg| under_heading(taken(arg)));
        whole.mut_subcommands(|command| match command.get_name() {
            "run" | "controller" | "measure" | "compare" => command.mut_args(|arg| under_heading(taken(arg))),
            "doctor" => listing(command, &OF_DOCTOR),
            "restore" => listing(command, &OF_RESTORE),
            _ => command.mut_args(taken),
        })
    }

    /// # Errors
    /// What is wrong with the arguments or a variable; or the help, if that was asked for.
    pub fn read(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let mut matches = Self::command_line().try_get_matches_from(arguments)?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut Self::command_line()))
    }
}

impl KubectlPlugin {
    /// # Errors
    /// As for [`Cli::read`].
    pub fn read(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let mut command = Self::command().mut_args(taken);
        let mut matches = command.try_get_matches_from_mut(arguments)?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    }
}

/// `command`, whose help lists no flags but these: names, and first parts of names.
fn listing(command: Command, used: &'static [&str]) -> Command {
    let is_used = move |flag: &str| used.contains(&flag) || used.contains(&flag.split('.').next().unwrap_or_default());
    // These alone stand for the mode: not for where policies are, nor for names of metrics.
    let is_of_mode = |flag: &str| ["capping.", "gpu."].iter().any(|first| flag.starts_with(first));
    let is_listed = move |flag: &str| is_used(flag) && (!is_of_mode(flag) || used.contains(&flag));
    command.after_help(ALL_ACCEPTED).mut_args(move |arg| {
        let is_hidden = arg.get_long().is_some_and(|flag| !is_listed(flag));
        under_heading(taken(arg)).hide(is_hidden)
    })
}

/// A variable that is empty is unset. A flag with a variable that says yes or no may also say which: `--flag=no`.
fn taken(arg: Arg) -> Arg {
    let has_variable = arg.get_env().is_some();
    let is_empty = arg.get_env().and_then(env::var_os).is_some_and(|value| value.is_empty());
    let arg = if is_empty { arg.env(Resettable::<OsStr>::Reset) } else { arg };
    if !has_variable || !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
    arg.action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .default_value("false")
        .default_missing_value("true")
        .value_parser(BoolishValueParser::new())
        .value_name("BOOL")
        .hide_default_value(true)
        .hide_possible_values(true)
}

fn under_heading(arg: Arg) -> Arg {
    // Some have a heading of their own.
    match arg.get_long().and_then(heading) {
        Some(heading) if arg.get_help_heading().is_none() => arg.help_heading(heading),
        _ => arg,
    }
}

/// By the first part of a flag's name.
fn heading(flag: &str) -> Option<&'static str> {
    Some(match flag.split('.').next()? {
        "web" => "Web server",
        "log" => "Log",
        "path" | "state" | "run" => "Folders",
        "interval" | "meter" | "ebpf" => "Meters",
        "gpu" | "nvml" => "GPUs",
        "node" | "kubeconfig" | "pods" => "Kubernetes",
        "attribution" => "Attribution",
        "capping" => "Capping",
        "export" => "Export",
        "controller" => "Controller",
        "climatik" => "Climatik",
        "agents" => "Agents",
        "tls" | "basic-auth" | "bearer-token-file" => "Login to an agent",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_of_all_commands_agree() {
        Cli::command_line().debug_assert();
    }

    #[test]
    fn every_flag_of_the_exporter_has_a_heading() {
        let run = Cli::command_line();
        let without = run.get_arguments().filter(|arg| arg.get_help_heading().is_none());
        assert_eq!(without.map(Arg::get_id).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn every_name_in_the_lists_is_a_flags() {
        let whole = Cli::command_line();
        for (command, used) in [("doctor", &OF_DOCTOR[..]), ("restore", &OF_RESTORE)] {
            let command = whole.find_subcommand(command).unwrap();
            let flags: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
            for name in used {
                let stands_for = |flag: &&str| flag == name || flag.split('.').next() == Some(*name);
                assert!(flags.iter().any(stands_for), "{name}");
            }
        }
    }

    #[test]
    fn a_boolean_says_yes_alone_and_what_it_is_given() {
        let names = |arguments: &[&str]| Cli::read([&["energy-agent"], arguments].concat()).unwrap().run.gpu_dcgm_names;
        assert!(!names(&[]));
        for yes in ["--gpu.dcgm-names", "--gpu.dcgm-names=yes", "--gpu.dcgm-names=1", "--gpu.dcgm-names=true"] {
            assert!(names(&[yes]), "{yes}");
        }
        for no in ["--gpu.dcgm-names=no", "--gpu.dcgm-names=0", "--gpu.dcgm-names=false"] {
            assert!(!names(&[no]), "{no}");
        }
        assert!(Cli::read(["energy-agent", "--gpu.dcgm-names=perhaps"]).is_err());
    }
}
