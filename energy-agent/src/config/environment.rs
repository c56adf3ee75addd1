//! Variables that look like those of flags and are none: a typing error that would otherwise change nothing in silence.

use std::collections::BTreeSet;
use std::{env, fmt};

use clap::{Arg, Command, CommandFactory as _};
use energy_model::nearest::nearest;

use super::Cli;

const PREFIX: &str = "ENERGY_AGENT_";

/// Those of a build (build.rs): cargo sets them for tests too.
const OF_BUILD: [&str; 4] = ["BRANCH", "DATE", "REVISION", "RUSTC"];

/// A variable that no flag has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    name: String,
    /// The one that was probably meant.
    nearest: Option<String>,
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, nearest } = self;
        write!(f, "{name} is ignored: no flag has this variable; ")?;
        match nearest {
            Some(nearest) => write!(f, "did you mean {nearest}?"),
            None => f.write_str("remove it, `energy-agent --help` lists the variables"),
        }
    }
}

/// Those in the environment of this process.
#[must_use]
pub fn unknown_variables() -> Vec<UnknownVariable> {
    let mut known = BTreeSet::new();
    gather(&Cli::command(), &mut known);
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    unknown(env::vars_os().map(|(name, value)| (text(name), text(value))), &known)
}

/// The variables of all commands: what is set for the agent of a container is there for `kubectl exec` too.
fn gather(command: &Command, known: &mut BTreeSet<String>) {
    let of_flags = command.get_arguments().filter_map(Arg::get_env);
    known.extend(of_flags.map(|name| name.to_string_lossy().into_owned()));
    command.get_subcommands().for_each(|command| gather(command, known));
}

fn unknown(variables: impl Iterator<Item = (String, String)>, known: &BTreeSet<String>) -> Vec<UnknownVariable> {
    let mut found = Vec::new();
    for (name, value) in variables {
        let Some(own) = name.strip_prefix(PREFIX) else { continue };
        if known.contains(&name) || OF_BUILD.contains(&own) || is_of_a_service(own, &value) {
            continue;
        }
        let nearest = nearest(own, known.iter().filter_map(|known| known.strip_prefix(PREFIX)));
        found.push(UnknownVariable { nearest: nearest.map(|own| format!("{PREFIX}{own}")), name });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Whether the kubelet sets it for a Service called `energy-agent` or `energy-agent-...` in the pod's namespace.
/// <https://kubernetes.io/docs/tutorials/services/connect-applications-service/#environment-variables>
fn is_of_a_service(own: &str, value: &str) -> bool {
    let is_link = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let is_part = own.contains("PORT_") && ["_PROTO", "_PORT", "_ADDR"].iter().any(|end| own.ends_with(end));
    own.ends_with("SERVICE_HOST") || own.contains("SERVICE_PORT") || is_part || (own.contains("PORT") && is_link)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(variables: &[(&str, &str)]) -> Vec<String> {
        let mut known = BTreeSet::new();
        gather(&Cli::command(), &mut known);
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        unknown(variables, &known).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_misspelt_variable_is_named_with_the_one_that_was_meant() {
        let found = warnings(&[
            ("ENERGY_AGENT_WEB_LISTEN_ADRESS", ":9102"),
            ("ENERGY_AGENT_INTERVAL", "1s"),
            ("ENERGY_AGENT_CONTROLLER_INTERVAL", "5s"),
            ("ENERGY_AGENT_ZZZZZZZZZZZZZZZZZZ", ""),
            ("HOME", "/root"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("did you mean ENERGY_AGENT_WEB_LISTEN_ADDRESS?"), "{found:?}");
        assert!(found[1].ends_with("`energy-agent --help` lists the variables"), "{found:?}");
    }

    #[test]
    fn what_the_kubelet_sets_for_services_is_no_typing_error() {
        let found = warnings(&[
            ("ENERGY_AGENT_SERVICE_HOST", "10.0.0.1"),
            ("ENERGY_AGENT_SERVICE_PORT", "9102"),
            ("ENERGY_AGENT_SERVICE_PORT_METRICS", "9102"),
            ("ENERGY_AGENT_PORT", "tcp://10.0.0.1:9102"),
            ("ENERGY_AGENT_PORT_9102_TCP", "tcp://10.0.0.1:9102"),
            ("ENERGY_AGENT_PORT_9102_TCP_PROTO", "tcp"),
            ("ENERGY_AGENT_PORT_9102_TCP_PORT", "9102"),
            ("ENERGY_AGENT_PORT_9102_TCP_ADDR", "10.0.0.1"),
            ("ENERGY_AGENT_CONTROLLER_SERVICE_HOST", "10.0.0.2"),
        ]);
        assert_eq!(found, [""; 0]);
        assert_eq!(warnings(&[("ENERGY_AGENT_PORT", "9102")]).len(), 1, "somebody's own");
    }
}
