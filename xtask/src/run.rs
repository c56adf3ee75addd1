//! The first command of a newcomer: build, start the exporter, say what was found, and show who draws how much.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{cargo, checked, root};

/// Runs the agent with `flags` until the table is left or Ctrl-C.
///
/// # Errors
/// When the build fails or the agent does not start; the agent's own message is shown.
pub fn run(flags: &[String]) -> Result<()> {
    if flag(flags, "--web.config.file").is_some() {
        bail!(
            "the table can't log in by itself: start `energy-agent` with these flags, and beside it `energy-agent top https://...`"
        );
    }
    println!("building for a first look, some minutes on two cores; `cargo build --release` optimises fully");
    checked(cargo().args(["build", "--profile", "quick", "--locked", "--package", "energy-agent"]))?;
    let program = root().join("target/quick/energy-agent");
    // What is there and what is not; a 1 says that nothing can be attributed, which the table explains.
    let _ = Command::new(&program).arg("doctor").args(flags).status()?;

    let log = root().join("target/energy-agent.log");
    let mut state = Vec::new();
    if flag(flags, "--state.directory").is_none() {
        state.push(format!("--state.directory={}", root().join("target/state").display()));
    }
    let output = File::create(&log).with_context(|| log.display().to_string())?;
    let child = Command::new(&program)
        .arg("run")
        .args(flags)
        .args(state)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .with_context(|| program.display().to_string())?;
    let mut agent = Agent(child);
    let address = address(flags);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_ready(&address) {
        if let Some(status) = agent.0.try_wait()? {
            bail!("energy-agent ended with {status}:\n{}", fs::read_to_string(&log)?);
        }
        if Instant::now() > deadline {
            bail!("http://{address}/readyz does not answer; log: {}\n{}", log.display(), fs::read_to_string(&log)?);
        }
        thread::sleep(Duration::from_millis(50));
    }
    let metrics =
        format!("http://{address}{}", flag(flags, "--web.telemetry-path").unwrap_or_else(|| "/metrics".to_owned()));
    println!("metrics   {metrics}");
    println!("overview  http://{address}/");
    println!("log       {}", log.display());
    println!("more      {} --help, docs/\n", program.display());
    let mut top = Command::new(&program);
    top.args(["top", &metrics]);
    if !std::io::stdout().is_terminal() {
        println!("not a terminal: a table every 5 seconds, Ctrl-C ends\n");
        top.args(["--interval", "5s"]);
    }
    checked(&mut top)
}

/// Whether the agent says so. One request does not need a library that this program then waits for.
fn is_ready(address: &str) -> bool {
    let ask = || -> io::Result<bool> {
        let mut connection = TcpStream::connect(address)?;
        connection.set_read_timeout(Some(Duration::from_secs(2)))?;
        connection.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
        let mut status = [0; 12];
        connection.read_exact(&mut status)?;
        Ok(status.ends_with(b" 200"))
    };
    ask().unwrap_or(false)
}

/// Where the agent is to be reached from this machine.
fn address(flags: &[String]) -> String {
    let address = flag(flags, "--web.listen-address").unwrap_or_else(|| ":9102".to_owned());
    match address.rsplit_once(':') {
        Some(("" | "0.0.0.0" | "[::]", port)) => format!("127.0.0.1:{port}"),
        _ => address,
    }
}

/// What the agent will take a flag for: the last one given, else the variable of the same name.
fn flag(flags: &[String], name: &str) -> Option<String> {
    let variable = format!("ENERGY_AGENT_{}", name.trim_start_matches('-').to_uppercase().replace(['.', '-'], "_"));
    let given = flags.iter().enumerate().rev().find_map(|(at, flag)| match flag.strip_prefix(name)? {
        "" => flags.get(at + 1).cloned(),
        value => value.strip_prefix('=').map(str::to_owned),
    });
    given.or_else(|| std::env::var(variable).ok())
}

/// The exporter, ended in an orderly way when this ends.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_follows_the_agents_flag() {
        let flags = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(address(&[]), "127.0.0.1:9102");
        assert_eq!(address(&flags("--web.listen-address=:9200")), "127.0.0.1:9200");
        assert_eq!(address(&flags("--web.listen-address 10.0.0.1:80 --interval=1s")), "10.0.0.1:80");
    }

    #[test]
    fn a_flag_is_what_the_agent_takes_it_for() {
        let flags = ["--web.telemetry-path=/a", "--web.telemetry-path", "/b"].map(str::to_owned);
        assert_eq!(flag(&flags, "--web.telemetry-path").as_deref(), Some("/b"));
        assert_eq!(flag(&flags[..1], "--web.telemetry-path").as_deref(), Some("/a"));
        assert_eq!(flag(&flags, "--web.telemetry"), None);
    }
}
