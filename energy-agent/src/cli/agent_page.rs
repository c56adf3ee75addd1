//! The metrics page of a running agent, as `top` and `report` ask for it.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use energy_export::parse::{self, ParsedSample};
use energy_export::text::Format;
use energy_report::samples::{LAST_TICK, RawSeries};

use super::client::{self, Authorization};
use crate::config::Login;

/// A page of 5,000 pods has some 40 MB; whatever sends more is no agent.
const PAGE_BYTES: u64 = 256 * 1024 * 1024;

/// Where a running agent shows its page, and how to log in.
pub(crate) struct AgentPage {
    pub url: String,
    client: ureq::Agent,
    authorization: Authorization,
}

impl AgentPage {
    /// The page at `HOST`, `HOST:PORT`, `:PORT` or a URL.
    ///
    /// # Errors
    /// When the address is none, or a file of the login cannot be used.
    pub(crate) fn new(address: &str, login: &Login) -> Result<Self> {
        let (url, authorization) = (url(address)?, Authorization::of(login)?);
        Ok(Self { url, client: client::client(login, client::TIMEOUT)?, authorization })
    }

    /// Its samples now.
    ///
    /// # Errors
    /// When nothing answers there, or what answers is no agent; with the remedy.
    pub(crate) fn fetch(&self) -> Result<Vec<ParsedSample>> {
        let url = &self.url;
        let mut request = self.client.get(url).header("Accept", Format::Text.content_type());
        if let Some(authorization) = self.authorization.header()? {
            request = request.header("Authorization", authorization);
        }
        let mut answer = match request.call() {
            Ok(answer) => answer,
            Err(ureq::Error::StatusCode(401)) => {
                bail!(
                    "{url} answers 401; log in with --basic-auth.username and --basic-auth.password-file, or --bearer-token-file"
                )
            }
            Err(ureq::Error::StatusCode(400)) if url.starts_with("http:") => {
                bail!("{url} answers 400; for an agent with TLS use https://")
            }
            Err(ureq::Error::StatusCode(code)) => bail!("{url} answers {code}; is this the agent's metrics path?"),
            Err(error) if client::is_of_tls(&error) => {
                let remedy = "--tls.ca-file names the agent's authority, --tls.cert-file a client certificate";
                bail!("no TLS with {url}: {error}; {remedy}")
            }
            Err(error) => bail!("no answer from {url}: {error}; is the agent running? energy-agent run"),
        };
        let page = answer.body_mut().with_config().limit(PAGE_BYTES).read_to_string();
        let page = page.with_context(|| format!("reading {url}"))?;
        let samples =
            parse::samples(&page).with_context(|| format!("{url} is not the metrics page of an energy-agent"))?;
        if !samples.iter().any(|sample| sample.name == "energy_agent_ticks_total") {
            bail!("{url} is not the metrics page of an energy-agent");
        }
        Ok(samples)
    }
}

/// When the values of a page were read: the page's own time, so that a page that is read twice counts once.
pub(crate) fn time(page: &[ParsedSample]) -> f64 {
    let tick = page.iter().find(|sample| sample.name == LAST_TICK);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    tick.map_or_else(now, ParsedSample::number)
}

/// A sample of a page of this time, as one point of its series.
pub(crate) fn series(sample: &ParsedSample, at: f64) -> RawSeries {
    RawSeries {
        name: sample.name.clone(),
        labels: sample.labels.iter().cloned().collect(),
        points: vec![(at, sample.number())],
    }
}

/// The metrics page that `HOST`, `HOST:PORT`, `:PORT` or a URL stands for.
fn url(address: &str) -> Result<String> {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
        Some((scheme, _)) => bail!("address {address:?}: scheme {scheme:?} is not supported, only http and https"),
        None => ("http", address),
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.len() > 1 { path } else { "/metrics" };
    let host = if host.starts_with(':') { format!("127.0.0.1{host}") } else { host.to_owned() };
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if host.is_empty()
        || host.contains(char::is_whitespace)
        || (host.contains(':') && !has_port && !host.ends_with(']'))
    {
        bail!("address {address:?}: expected HOST:PORT or a URL such as http://127.0.0.1:9102/metrics");
    }
    let port = if has_port || address.contains("://") { "" } else { ":9102" };
    Ok(format!("{scheme}://{host}{port}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_short_or_a_url() {
        for (address, expected) in [
            ("127.0.0.1:9102", "http://127.0.0.1:9102/metrics"),
            (":8080", "http://127.0.0.1:8080/metrics"),
            ("node-a", "http://node-a:9102/metrics"),
            ("[::1]", "http://[::1]:9102/metrics"),
            ("[::1]:80", "http://[::1]:80/metrics"),
            ("http://node-a:9102/", "http://node-a:9102/metrics"),
            ("http://node-a/energy", "http://node-a/energy"),
            ("https://node-a:9102", "https://node-a:9102/metrics"),
        ] {
            assert_eq!(url(address).unwrap(), expected);
        }
        for address in ["", "ftp://node-a", "node-a:port", "a b", "http://"] {
            assert!(format!("{:#}", url(address).unwrap_err()).contains(&format!("{address:?}")));
        }
    }
}
