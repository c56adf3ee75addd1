//! The rows about the web server: the port, and whether `--web.config.file` can be used by the agent and its clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use energy_host::advice::advice_of;

use energy_export::SERVER_NAME;
use energy_export::web_config::{self, Validity, WebConfigError};
use energy_files::config_file::FileError;
use k8s_openapi::jiff::Timestamp;

use super::{CheckRow, CheckStatus};
use crate::config::Config;

/// A certificate that ends sooner should have been renewed by now, or one of a shorter life in the last third of it. Managers
/// renew at a third of 90 days.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

pub fn rows(config: &Config) -> Vec<CheckRow> {
    vec![web_config(config.web_config.as_deref()), listen_address(config)]
}

fn web_config(file: Option<&Path>) -> CheckRow {
    let name = "web_config";
    let Some(file) = file else {
        return CheckRow::ok(name, "no --web.config.file: plain HTTP, everyone who reaches the port may read");
    };
    let (asked, validity) = match web_config::inspect(file) {
        Ok(found) => found,
        Err(refusal) => return refused(name, &refusal),
    };
    let asked = format!("{}: {}", file.display(), asked.text());
    let Some(Validity { begins, ends }) = validity else { return CheckRow::ok(name, asked) };
    let renew = "renew it; the agent loads new files without a restart";
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if now.as_secs() > ends {
        let detail = format!("{asked}; the certificate expired at {}, clients refuse it", date(ends));
        CheckRow::new(name, CheckStatus::Missing, detail, renew)
    } else if now.as_secs() < begins {
        let detail = format!("{asked}; the certificate is valid from {}, until then clients refuse it", date(begins));
        CheckRow::new(name, CheckStatus::Missing, detail, "set this machine's clock, or create a new certificate")
    } else if ends - now.as_secs() < SOON.as_secs().min(ends.saturating_sub(begins) / 3) {
        CheckRow::new(name, CheckStatus::Fallback, format!("{asked}; the certificate expires at {}", date(ends)), renew)
    } else {
        CheckRow::ok(name, format!("{asked}; the certificate is valid until {}", date(ends)))
    }
}

fn refused(name: &'static str, refusal: &WebConfigError) -> CheckRow {
    let mut row = CheckRow::missing(name, refusal.text.clone());
    row.detail.push_str(" (the agent does not start with it)");
    if row.remedy.is_empty() {
        let remedy = match refusal.fault {
            Some(FileError::Denied) => {
                "make root the owner (chown root, chmod 0400): in a pod the file's mode applies to root too"
            }
            Some(FileError::NotFound) => {
                "name a file that exists; paths in it are relative to its own folder, in a pod they are below a mounted volume"
            }
            _ => {
                "correct it: docs/web-config.yaml is an example with every key, docs/web-config.md lists what is refused"
            }
        };
        remedy.clone_into(&mut row.remedy);
    }
    row
}

fn date(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "a time outside the calendar".to_owned(), |time| time.to_string())
}

fn listen_address(config: &Config) -> CheckRow {
    let (name, address) = ("listen_address", config.listen_address);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let bound = match runtime {
        Ok(runtime) => runtime.block_on(crate::listen(address)).map(|_| ()),
        Err(error) => Err(error.into()),
    };
    match (bound, config.web_config.is_some()) {
        (Ok(()), _) => CheckRow::ok(name, format!("{address} is free")),
        (Err(error), protected) => match agent_status(address) {
            Some(200) => CheckRow::ok(name, format!("{address}: an energy-agent answers there")),
            // What an agent with this file answers to plain HTTP, and to a request without a password.
            Some(400 | 401) if protected => CheckRow::ok(
                name,
                format!("{address}: an agent with the protection of --web.config.file answers there"),
            ),
            _ => CheckRow::missing(name, advice_of(&error)),
        },
    }
}

/// The status of the landing page, if an agent answers at the address.
fn agent_status(address: SocketAddr) -> Option<u16> {
    let ip = if address.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { address.ip() };
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(1)))
        .http_status_as_error(false)
        .proxy(None)
        .build();
    let answer = config.new_agent().get(format!("http://{}/", SocketAddr::new(ip, address.port()))).call().ok()?;
    let server = answer.headers().get("server")?;
    (server == SERVER_NAME).then(|| answer.status().as_u16())
}
