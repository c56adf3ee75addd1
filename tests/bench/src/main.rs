//! What energy-agent costs and how exact it is, and what holds when it is attacked; `cargo xtask bench` and
//! `cargo xtask chaos` start this.

mod bench;
mod chaos;
#[path = "../../../xtask/src/command.rs"]
mod command;

use std::process::ExitCode;

use clap::Parser;

use command::{cargo, checked, output, root};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Cli {
    /// Measure what energy-agent has to reach, as ratios within one run; about an hour.
    ///
    /// Needs root and cgroup v2, and a machine that is otherwise quiet. A missed goal is a result, not an error.
    Bench(bench::Options),
    /// Attack the agent for a minute or longer, and check that what it promises holds; docs/reliability.md.
    ///
    /// Needs root and cgroup v2. The last lines say what was broken and how to run it again.
    Chaos(chaos::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse() {
        Cli::Bench(options) => bench::run(&options),
        Cli::Chaos(options) => chaos::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
