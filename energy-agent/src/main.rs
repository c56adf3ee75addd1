//! The command: flags, logging, and which part of the library to run.

use std::ffi::OsString;
use std::fmt::{self, Debug};
use std::io::{self, IsTerminal, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::error::ErrorKind;
use energy_agent::config::{
    Capping, Cli, Command, Config, ControllerArgs, KubectlPlugin, LogFormat, LogLevel, unknown_variables,
};
use energy_agent::logging::Log;
use energy_agent::selection_source::at_start;
use energy_agent::{Ended, cli, panics};
use energy_export::web_config::WebConfigSource;
use energy_host::static_build::look_up_names_without_modules;
use energy_model::printable::{printable, printable_lines};
use tracing::field::Field;
use tracing::warn;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// How long the last lines of the log may take at the end.
const LAST_LINES: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    look_up_names_without_modules();
    if is_plugin() {
        let plugin = KubectlPlugin::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
        return ended(cli::kubectl::run(&plugin.arguments));
    }
    let cli = Cli::read(std::env::args_os()).unwrap_or_else(|error| usage_error(error));
    // The others say it in their logs.
    if !matches!(&cli.command, None | Some(Command::Run(_) | Command::Controller(_))) {
        unknown_variables().iter().for_each(|unknown| eprintln!("warning: {}", printable(&unknown.to_string())));
    }
    ended(match &cli.command {
        None => run(&cli.run),
        Some(Command::Run(config)) => run(config),
        Some(Command::Top(arguments)) => cli::top::run(arguments).map(|()| ExitCode::SUCCESS),
        Some(Command::Report(arguments)) => Ok(cli::report::run(arguments)),
        Some(Command::Policy(command)) => cli::policy::run(command),
        Some(Command::Doctor(arguments)) => cli::doctor::run(arguments),
        Some(Command::Measure(arguments)) => Ok(cli::measure::run(arguments)),
        Some(Command::Compare(arguments)) => Ok(cli::compare::run(arguments)),
        Some(Command::Controller(arguments)) => controller(arguments),
        Some(Command::Kubectl(arguments)) => cli::kubectl::run(arguments),
        Some(Command::Restore(arguments)) => cli::restore::run(arguments),
        Some(Command::Completion { shell }) => cli::completion::run(*shell),
        Some(Command::Man { folder }) => cli::completion::write_man_pages(folder),
    })
}

/// kubectl runs a plugin by the name of its file.
fn is_plugin() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|name| Path::new(&name).file_name().is_some_and(|name| name == "kubectl-energy"))
}

fn ended(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {}", printable_lines(&format!("{error:#}")));
        ExitCode::FAILURE
    })
}

fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let web_config = WebConfigSource::open(config.web_config.as_deref(), Arc::default());
    if let Err(problem) = at_start(config).map(drop).and(web_config.map(drop)) {
        Cli::command_line().error(ErrorKind::ValueValidation, problem).exit();
    }
    if config.capping == Capping::On && !config.has_policies() {
        let problem = "--capping=on needs policies: name them with --capping.policy, --capping.configmap or \
                       --capping.configmap-selector, or follow objects with --capping.resources";
        Cli::command_line().error(ErrorKind::MissingRequiredArgument, problem).exit();
    }
    let mut log = Log::to_stderr().context("the log")?;
    log_to(config.log_level, config.log_format, log.clone());
    unknown_variables().iter().for_each(|unknown| warn!("{unknown}"));
    panics::watch();
    let code = match energy_agent::run(config) {
        Ok(Ended::InOrder) => ExitCode::SUCCESS,
        Ok(Ended::WithLimits) => ExitCode::FAILURE,
        Ok(Ended::Unfinished(why)) => {
            // Another program, as what hangs has the journal. It takes the place of this one, and its process too.
            let say = format!("error: {why}; this process continues as energy-agent restore\n");
            let _ = log.write(say.as_bytes());
            log.flush(LAST_LINES);
            let _ = log.write(format!("error: energy-agent restore: {}\n", restore()).as_bytes());
            ExitCode::FAILURE
        }
        Err(error) => {
            let _ = log.write(format!("error: {}\n", printable_lines(&format!("{error:#}"))).as_bytes());
            ExitCode::FAILURE
        }
    };
    log.flush(LAST_LINES);
    Ok(code)
}

fn controller(config: &ControllerArgs) -> anyhow::Result<ExitCode> {
    let mut log = Log::to_stderr().context("the log")?;
    log_to(config.log_level, config.log_format, log.clone());
    unknown_variables().iter().for_each(|unknown| warn!("{unknown}"));
    panics::watch();
    let outcome = energy_agent::controller::run(config);
    if let Err(error) = &outcome {
        let _ = log.write(format!("error: {}\n", printable_lines(&format!("{error:#}"))).as_bytes());
    }
    log.flush(LAST_LINES);
    Ok(if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Becomes `energy-agent restore` with the flags of this program; comes back only if that cannot be.
fn restore() -> io::Error {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "run") {
        arguments.remove(0);
    }
    process::Command::new("/proc/self/exe").arg("restore").args(arguments).exec()
}

/// A field of a line in the log, as the library writes it. A value may be somebody else's text: it begins no line of its
/// own, and steers no terminal.
fn field(line: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let value = format!("{value:?}");
    match field.name() {
        "message" => write!(line, "{}", printable(&value)),
        // Where a line of another logger comes from.
        name if name.starts_with("log.") => Ok(()),
        name if line.has_ansi_escapes() => write!(line, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{}", printable(&value)),
        name => write!(line, "{name}={}", printable(&value)),
    }
}

/// Prints what clap has to say; for an unknown flag also the ones there are. Exit code 2.
fn usage_error(mut error: clap::Error) -> ! {
    if error.kind() == ErrorKind::UnknownArgument {
        let whole = Cli::command_line();
        // A subcommand can only come first.
        let named = std::env::args().nth(1).and_then(|name| whole.find_subcommand(name));
        let (name, command) = named.map_or(("run", &whole), |command| (command.get_name(), command));
        let listed = command.get_arguments().filter(|flag| !flag.is_hide_set());
        let flags: Vec<String> = listed.filter_map(|flag| flag.get_long()).map(|flag| format!("--{flag}")).collect();
        let _ = error.print();
        eprintln!("\nflags of `energy-agent {name}`: {}", flags.join(" "));
        std::process::exit(usage_code(2));
    }
    error = error.with_cmd(&Cli::command_line());
    let _ = error.print();
    std::process::exit(usage_code(error.exit_code()))
}

/// `measure` has a code of its own for what is wrong before its command runs; with --job there is no command.
fn usage_code(code: i32) -> i32 {
    let own = || std::env::args().skip(1).take_while(|argument| argument != "--");
    let is_command = own().next().is_some_and(|name| name == "measure") && !own().any(|flag| flag.starts_with("--job"));
    if is_command && code != 0 { i32::from(cli::measure::FAILED) } else { code }
}

fn log_to(level: LogLevel, format: LogFormat, log: Log) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // The client of the API server would log every failed try; what matters of it the agent says itself, once.
    let libraries = if level >= LevelFilter::DEBUG { level } else { LevelFilter::OFF };
    let quiet = ["kube_client", "kube_core", "tower", "tower_http", "hyper", "hyper_util", "rustls"];
    let targets = Targets::new().with_default(level).with_targets(quiet.map(|library| (library, libraries)));
    let log = tracing_subscriber::fmt::layer().with_writer(move || log.clone()).with_target(false);
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text => {
            let log = log.with_ansi(io::stderr().is_terminal()).fmt_fields(debug_fn(field).delimited(" "));
            registry.with(log.with_filter(targets)).init();
        }
        LogFormat::Json => registry.with(log.json().flatten_event(true).with_filter(targets)).init(),
    }
}
