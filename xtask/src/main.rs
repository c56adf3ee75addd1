//! The commands that develop energy-agent: `cargo xtask --help` lists them.

mod book;
mod build;
mod command;
mod deb;
mod demo;
mod deny;
mod ebpf;
mod gpu;
mod grafana;
mod image;
mod inventory;
mod kube_api;
mod licences;
mod measure;
mod pictures;
mod release;
mod revision;
mod run;
mod sbom;
mod static_program;
mod test;
mod tools;
mod vmtest;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use command::{cargo, checked, forget_package, output, root};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, run, test and measure energy-agent")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build quickly, start the exporter with what this machine offers, and show a live table.
    Run {
        /// Flags for the agent, such as --web.listen-address=:9200.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// Run every test, after setting up what they need.
    Test {
        /// Arguments for cargo test, such as a test's name.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Throw random text, weights and histories at the parsers and the arithmetic, many times longer than `test` does.
    Fuzz {
        /// Random inputs for each property.
        #[arg(default_value_t = 20_000)]
        cases: u32,
    },
    /// Make the eBPF object that is kept in the repository again.
    Ebpf {
        /// Only compare: fail if the result differs from the kept object.
        #[arg(long)]
        check: bool,
    },
    /// Boot Debian's kernels in virtual machines and compare the agent's CPU time of a container with the kernel's.
    ///
    /// QEMU, kernels and a busybox are fetched as Debian packages into target/, once; nothing is installed.
    Vmtest(vmtest::Options),
    /// Build the static program: one file for any Linux, without GPUs.
    Static(build::Options),
    /// Build the Debian package with its systemd unit.
    Deb(build::Options),
    /// Build the container image, an OCI archive; no daemon and no network is needed.
    Image(build::Options),
    /// Make everything that a release consists of: programs, package, image, chart, source, licences, SBOM, notes, checksums.
    Release(release::Options),
    /// Check the licences and sources of all crates by cargo-deny, which is built at its first use.
    Deny,
    /// Build the Kubernetes API server of the tests, unless it is there; `test` does this by itself. About four minutes.
    KubeApi,
    /// Show dashboards, a capped pod and its report on a simulated node: no cluster, GPU or RAPL is needed; needs root.
    Demo,
    /// Build the documentation as pages that can be searched, by mdBook, and check their links: target/book/html.
    Book,
    /// Write the dashboards to target/dashboards as Grafana's importer and grafana.com take them.
    Dashboards,
    /// Draw the dashboards over a node that is played for some minutes, for the documentation; needs root and Chromium.
    Pictures {
        /// Length of the play.
        #[arg(long, default_value_t = 240)]
        seconds: u64,
        /// Only draw again what was recorded the last time.
        #[arg(long)]
        redraw: bool,
    },
    /// Measure what energy-agent has to reach, as ratios within one run; about an hour.
    ///
    /// Needs root and cgroup v2, and a machine that is otherwise quiet. A missed goal is a result, not an error.
    #[command(disable_help_flag = true)]
    Bench {
        /// As `cargo xtask bench --help` says.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Attack the agent for a minute or longer, and check that what it promises holds; docs/reliability.md.
    ///
    /// Needs root and cgroup v2. The last lines say what was broken and how to run it again.
    #[command(disable_help_flag = true)]
    Chaos {
        /// As `cargo xtask chaos --help` says.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Kill controllers and an agent at random moments under cluster budgets; no limit may rise above its budget.
    ///
    /// A hall of fifty simulated nodes, two replicas of the controller, a real agent with GPUs and a real API server. The test
    /// suite does the same with five kills. A hundred take about ten minutes.
    Fleet {
        /// Of each: controllers, and the agent.
        #[arg(long, default_value_t = 100)]
        kills: u32,
    },
    /// Compare the agent with the counter of this machine's first NVIDIA GPU while two CUDA processes run on it.
    ///
    /// Prints what each call of the driver costs or does not offer, the processes' shares, and the cost of a tick.
    /// Changes nothing on the GPU.
    GpuCheck {
        /// Name or path of the NVML library.
        #[arg(long, default_value = "libnvidia-ml.so.1")]
        library: String,
        /// Length of each of the two measurements.
        #[arg(long, default_value_t = 20)]
        seconds: u64,
    },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Task::Run { flags } => run::run(&flags),
        Task::Test { arguments } => test::test(&arguments),
        Task::Fuzz { cases } => test::fuzz(cases),
        Task::Ebpf { check } => ebpf::make(check),
        Task::Vmtest(options) => vmtest::run(&options),
        Task::Static(options) => static_program::make(&options),
        Task::Deb(options) => deb::make(&options),
        Task::Image(options) => image::make(&options),
        Task::Release(options) => release::make(&options),
        Task::Deny => deny::check(),
        Task::KubeApi => kube_api::build(),
        Task::Demo => demo::run(),
        Task::Book => book::build(),
        Task::Dashboards => grafana::write(),
        Task::Pictures { seconds, redraw } => pictures::draw(seconds, redraw),
        Task::Bench { arguments } => measure::bench(&arguments),
        Task::Chaos { arguments } => measure::chaos(&arguments),
        Task::Fleet { kills } => test::fleet(kills),
        Task::GpuCheck { library, seconds } => gpu::check(&library, seconds),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
