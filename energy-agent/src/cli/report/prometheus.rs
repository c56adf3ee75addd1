//! The HTTP API of Prometheus, as far as a report needs it: instant queries, and raw samples by range selectors.
//! <https://prometheus.io/docs/prometheus/latest/querying/api/>

use std::time::Duration;

use energy_model::printable::cut;
use energy_report::energy::Window;
use energy_report::samples::{Labels, RawSeries, Samples};
use serde::Deserialize;
use serde_json::Value;

use crate::cli::client::{self, Authorization};
use crate::cli::run_problem::RunProblem;
use crate::config::Login;

/// Prometheus gives up on a query after two minutes.
const TIMEOUT: Duration = Duration::from_secs(130);
/// An hour of 1,000 series, scraped each second, is some 90 MB.
const ANSWER_BYTES: u64 = 512 * 1024 * 1024;
/// Raw samples are asked for in slices of this length.
const SLICE_S: f64 = 3600.0;

/// A server, and how to log in.
pub(crate) struct Prometheus {
    pub url: String,
    client: ureq::Agent,
    authorization: Authorization,
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    data: Value,
    #[serde(default)]
    error: String,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    metric: Labels,
    value: Option<(f64, String)>,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

impl Prometheus {
    /// # Errors
    /// When the URL is none, or a file of the login cannot be used.
    pub(crate) fn new(url: &str, login: &Login) -> Result<Self, RunProblem> {
        let url = url.trim_end_matches('/').trim_end_matches("/api/v1").to_owned();
        if !["http://", "https://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme)) {
            return Err(RunProblem::Usage(format!(
                "--prometheus {url:?}: expected a URL such as http://prometheus:9090"
            )));
        }
        let (client, authorization) = (client::client(login, TIMEOUT)?, Authorization::of(login)?);
        Ok(Self { url, client, authorization })
    }

    /// Labels and value of each series that a query gives at a time.
    pub(crate) fn query(&self, query: &str, at: f64) -> Result<Vec<(Labels, f64)>, RunProblem> {
        let series = self.series(query, at)?;
        let number = |(_, value): (f64, String)| value.parse::<f64>().ok();
        Ok(series.into_iter().filter_map(|series| Some((series.metric, number(series.value?)?))).collect())
    }

    /// The one number that a query gives at a time.
    pub(crate) fn number(&self, query: &str, at: f64) -> Result<f64, RunProblem> {
        let data = self.ask("query", &[("query", query), ("time", &format!("{at:.3}"))])?;
        // A scalar is time and value; a vector is a list of series.
        let value = match data["resultType"].as_str() {
            Some("scalar") => data["result"][1].as_str(),
            _ if data["result"].as_array().is_some_and(|series| series.len() == 1) => {
                data["result"][0]["value"][1].as_str()
            }
            _ => None,
        };
        let number =
            value.and_then(|value| value.parse::<f64>().ok()).filter(|number| number.is_finite() && *number > 0.0);
        number.ok_or_else(|| {
            let count = data["result"].as_array().map_or(0, Vec::len);
            RunProblem::NotMeasured(format!(
                "--work-query gives {count} series and no number above 0 at the end of the run; it has to give one, as in \
                 sum(images_total{{pod=\"train\"}})"
            ))
        })
    }

    /// Adds the raw samples of a selector in a window: an instant query of a range selector, which has no step.
    pub(crate) fn samples(&self, selector: &str, window: Window, samples: &mut Samples) -> Result<(), RunProblem> {
        let mut from = window.from;
        while from < window.to {
            let to = (from + SLICE_S).min(window.to);
            // The beginning of a range does not belong to it (Prometheus 3); a sample that comes twice is taken once.
            let milliseconds = ((to - from) * 1000.0).ceil() + 1.0;
            for series in self.series(&format!("{selector}[{milliseconds:.0}ms]"), to)? {
                let mut labels = series.metric;
                let name = labels.remove("__name__").unwrap_or_default();
                let number = |(at, value): (f64, String)| value.parse::<f64>().ok().map(|value| (at, value));
                samples.add(RawSeries { name, labels, points: series.values.into_iter().filter_map(number).collect() });
            }
            from = to;
        }
        Ok(())
    }

    /// How long the server keeps samples, in seconds; `None` where it does not say.
    pub(crate) fn retention(&self) -> Option<f64> {
        let data = self.ask("status/runtimeinfo", &[]).ok()?;
        let text = data["storageRetention"].as_str()?.to_owned();
        // `15d`, or `15d or 10GiB`.
        let age = text.split(" or ").find_map(|part| humantime::parse_duration(part).ok())?;
        Some(age.as_secs_f64())
    }

    fn series(&self, query: &str, at: f64) -> Result<Vec<Series>, RunProblem> {
        let mut data = self.ask("query", &[("query", query), ("time", &format!("{at:.3}"))])?;
        serde_json::from_value(data["result"].take()).map_err(|_| self.is_no_prometheus())
    }

    fn ask(&self, path: &str, form: &[(&str, &str)]) -> Result<Value, RunProblem> {
        let Self { url, .. } = self;
        let place = format!("{url}/api/v1/{path}");
        let authorization = self.authorization.header()?;
        // A query may be longer than a URL may be.
        let sent = if form.is_empty() {
            let mut request = self.client.get(&place).config().http_status_as_error(false).build();
            if let Some(authorization) = &authorization {
                request = request.header("Authorization", authorization);
            }
            request.call()
        } else {
            let mut request = self.client.post(&place).config().http_status_as_error(false).build();
            if let Some(authorization) = &authorization {
                request = request.header("Authorization", authorization);
            }
            request.send_form(form.iter().copied())
        };
        let mut answer = sent.map_err(|error| {
            if client::is_of_tls(&error) {
                let remedy = "--tls.ca-file names its authority, --tls.cert-file a client certificate";
                return RunProblem::NotMeasured(format!("no TLS with {url}: {error}; {remedy}"));
            }
            let remedy = "is the URL right, and can it be reached from here? In a cluster: kubectl port-forward";
            RunProblem::NotMeasured(format!("no answer from Prometheus at {url}: {error}; {remedy}"))
        })?;
        let status = answer.status().as_u16();
        match status {
            401 => {
                let remedy = "log in with --bearer-token-file, or --basic-auth.username and --basic-auth.password-file";
                return Err(RunProblem::NotMeasured(format!("Prometheus at {url} answers 401; {remedy}")));
            }
            403 => {
                let text = format!("Prometheus at {url} answers 403: this user may not query it; ask for the right to");
                return Err(RunProblem::NotMeasured(text));
            }
            _ => {}
        }
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES).read_to_vec();
        let body = body.map_err(|error| RunProblem::NotMeasured(format!("reading an answer of {url}: {error}")))?;
        let answer: Answer = serde_json::from_slice(&body).map_err(|_| self.is_no_prometheus())?;
        if answer.status != "success" {
            let text = format!("Prometheus at {url} refuses a query ({status}): {}", cut(&answer.error));
            return Err(RunProblem::NotMeasured(text));
        }
        Ok(answer.data)
    }

    fn is_no_prometheus(&self) -> RunProblem {
        let url = &self.url;
        RunProblem::NotMeasured(format!(
            "{url} is not the API of a Prometheus server; --prometheus is its address without /api/v1"
        ))
    }
}

/// A text as a value in a query.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// Texts as a value that matches exactly one of them.
pub(crate) fn any_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let escaped: Vec<String> = texts.into_iter().map(regex::escape).collect();
    quoted(&escaped.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_ends_no_matcher() {
        assert_eq!(quoted("a\"} or b{c=\"\\"), "\"a\\\"} or b{c=\\\"\\\\\"");
        assert_eq!(any_of(["a.b", "c|d"]), "\"a\\\\.b|c\\\\|d\"");
    }
}
