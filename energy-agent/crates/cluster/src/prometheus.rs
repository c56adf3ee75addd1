//! Values by PromQL, from a Prometheus server or what answers as one.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use energy_model::json_fault::json_fault;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use crate::https::{self, ClientTls};

/// An answer with one value is short.
const MOST_BYTES: usize = 1 << 20;
/// One about ten thousand nodes has some 10 MiB.
const MOST_BYTES_OF_SERIES: usize = 16 << 20;
/// Letters of an error that are shown.
const MOST_LETTERS: usize = 300;

#[derive(Clone)]
pub struct PromqlClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Of its API's queries.
    uri: Uri,
    authorization: Option<HeaderValue>,
}

#[derive(Deserialize)]
struct PromqlAnswer<D> {
    #[serde(default)]
    error: String,
    data: Option<D>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct QueryData {
    result_type: String,
    result: Value,
}

#[derive(Deserialize)]
struct VectorData {
    result: Vec<VectorSeries>,
}

/// One series of an answer, at the time of the query.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct VectorSeries {
    /// Labels; `__name__` is the metric.
    #[serde(rename = "metric")]
    pub labels: HashMap<String, String>,
    /// Unix time of the query in seconds, and the number as text.
    value: (f64, String),
}

impl VectorSeries {
    /// Empty: it has no such label.
    #[must_use]
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// Unix time of the query, in seconds of its server's clock.
    #[must_use]
    pub const fn asked_s(&self) -> f64 {
        self.value.0
    }

    /// `None`: no finite number.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        self.value.1.parse().ok().filter(|value: &f64| value.is_finite())
    }
}

impl PromqlClient {
    /// `url`: such as `http://prometheus:9090`; `https://` needs an authority.
    ///
    /// # Errors
    /// When it is no such URL, or a file cannot be used.
    pub fn new(url: &str, tls: &ClientTls) -> Result<Self, String> {
        let uri = api(url)?;
        if uri.scheme_str() == Some("https") && tls.authority.is_none() {
            return Err("https:// needs --prometheus.ca-file: the authority that has signed its certificate".to_owned());
        }
        let client = Client::builder(TokioExecutor::new()).build(https::connector(tls)?);
        Ok(Self { client, uri, authorization: None })
    }

    /// From now on, it asks with this header.
    pub fn log_in(&mut self, authorization: Option<HeaderValue>) {
        self.authorization = authorization;
    }

    /// The value of the one series that the query gives.
    ///
    /// # Errors
    /// For people: no answer, a refusal, no series or several, or no number.
    pub async fn value(&self, query: &str, patience: Duration) -> Result<f64, String> {
        let QueryData { result_type, result } = self.data(query, patience, MOST_BYTES).await?;
        let value = match (result_type.as_str(), result.as_array().map(Vec::as_slice)) {
            ("scalar", _) => &result[1],
            ("vector", Some([one])) => &one["value"][1],
            ("vector", Some([])) => return Err("the query gives no series".to_owned()),
            ("vector", Some(several)) => return Err(format!("the query gives {} series; sum them up", several.len())),
            _ => return Err("the query gives no instant value".to_owned()),
        };
        let text = value.as_str().unwrap_or_default();
        let value: f64 = text.parse().map_err(|_| "the query gives no number".to_owned())?;
        if value.is_finite() { Ok(value) } else { Err(format!("the query gives {value}")) }
    }

    /// All series of an instant vector.
    ///
    /// # Errors
    /// For people: no answer, a refusal, or no vector.
    pub async fn series(&self, query: &str, patience: Duration) -> Result<Vec<VectorSeries>, String> {
        let VectorData { result } = self.data(query, patience, MOST_BYTES_OF_SERIES).await?;
        Ok(result)
    }

    async fn data<D: DeserializeOwned>(&self, query: &str, patience: Duration, most: usize) -> Result<D, String> {
        let asked = timeout(patience, self.ask(query, most)).await;
        let answer = asked.map_err(|_| format!("Prometheus did not answer within {patience:?}"))??;
        let PromqlAnswer { error, data } = answer;
        data.ok_or_else(|| format!("Prometheus: {}", error.chars().take(MOST_LETTERS).collect::<String>()))
    }

    async fn ask<D: DeserializeOwned>(&self, query: &str, most: usize) -> Result<PromqlAnswer<D>, String> {
        let body = format!("query={}", encoded(query));
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        let request = match &self.authorization {
            Some(authorization) => request.header(header::AUTHORIZATION, authorization),
            None => request,
        };
        let request = request.body(Full::from(body)).map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await.map_err(|error| {
            let remedy = if https::is_of_tls(&error) {
                "; --prometheus.ca-file names the authority of its certificate"
            } else {
                ""
            };
            format!("{}: {}{remedy}", self.uri, https::chain(&error))
        })?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), most).collect().await;
        let body = body.map_err(|error| format!("{}: {error}", self.uri))?.to_bytes();
        if status == StatusCode::UNAUTHORIZED {
            let remedy =
                "log in with --prometheus.username and --prometheus.password-file, or --prometheus.bearer-token-file";
            return Err(format!("{} answered 401; {remedy}", self.uri));
        }
        // A refused query is explained in the same form, with the status 400 or 422.
        serde_json::from_slice(&body).map_err(|error| format!("{} answered {status}: {}", self.uri, json_fault(&error)))
    }
}

/// Where its API answers queries.
///
/// # Errors
/// When it is no such URL.
pub fn api(url: &str) -> Result<Uri, String> {
    let uri: Uri = format!("{}/api/v1/query", url.trim_end_matches('/')).parse().map_err(|error| format!("{error}"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
        return Err("expected http://HOST:PORT or https://HOST:PORT".to_owned());
    }
    Ok(uri)
}

/// Percent encoding of everything but letters, digits and `-_.~`.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a String takes every write");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    #[test]
    fn a_query_is_encoded_byte_by_byte() {
        assert_eq!(encoded("sum(a{b=\"\u{e9}\"}) + 1.5"), "sum%28a%7Bb%3D%22%C3%A9%22%7D%29%20%2B%201.5");
    }

    #[test]
    fn a_series_has_labels_and_a_value_that_is_a_number_or_none() {
        let answer = r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"__name__":"a","node_name":"n1"},"value":[1700000000.25,"12.5"]},
            {"metric":{},"value":[1700000000.25,"NaN"]}]}}"#;
        let answer: PromqlAnswer<VectorData> = serde_json::from_str(answer).unwrap();
        let [first, second] = &answer.data.unwrap().result[..] else { panic!() };
        assert_eq!((first.label("__name__"), first.label("node_name"), first.label("x")), ("a", "n1", ""));
        assert_eq!((first.value(), second.value()), (Some(12.5), None));
        assert_eq!(format!("{}", first.asked_s()), "1700000000.25");
    }

    #[test]
    fn urls_of_http_are_taken_and_tls_needs_an_authority() {
        assert_eq!(api("http://prometheus:9090/").unwrap(), "http://prometheus:9090/api/v1/query");
        for url in ["ftp://prometheus:9090", "prometheus:9090", "http://", ""] {
            assert!(api(url).is_err(), "{url}");
        }
        let refusal = PromqlClient::new("https://prometheus:9090", &ClientTls::default()).err().unwrap();
        assert!(refusal.contains("--prometheus.ca-file"), "{refusal}");
    }
}
