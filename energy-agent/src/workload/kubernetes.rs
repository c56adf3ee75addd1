//! Credentials that this machine has for a cluster into a client, and what goes wrong with one into a word and a
//! sentence.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Error};

/// Where a pod finds the credentials of its service account.
/// <https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A server that is there answers sooner; one that is not costs this much per try.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What keeps the agent from the cluster: a word from a fixed set, and for people the object and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// `forbidden`, `unauthorized`, `tls`, `unreachable`, `config` or `error`; bounded for use as a label.
    pub reason: &'static str,
    pub message: String,
}

/// Credentials that were found, not yet tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The agent runs in a pod.
    ServiceAccount,
    /// Files that are merged as kubectl does; the current context counts.
    Kubeconfig(Vec<PathBuf>),
}

impl Credentials {
    /// The kubeconfig given, else `KUBECONFIG`, else the service account of the pod, else `~/.kube/config`; `None`
    /// outside a cluster.
    #[must_use]
    pub fn find(kubeconfig: Option<&Path>) -> Option<Self> {
        if let Some(file) = kubeconfig {
            return Some(Self::Kubeconfig(vec![file.to_owned()]));
        }
        if let Some(files) = env::var_os("KUBECONFIG").filter(|files| !files.is_empty()) {
            return Some(Self::Kubeconfig(
                env::split_paths(&files).filter(|file| !file.as_os_str().is_empty()).collect(),
            ));
        }
        if env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            return Some(Self::ServiceAccount);
        }
        let home = env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
        home.filter(|file| file.is_file()).map(|file| Self::Kubeconfig(vec![file]))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// When one is missing or unusable, or tells not to verify the server.
    pub async fn config(&self) -> Result<Config, Trouble> {
        let mut config = match self {
            Self::ServiceAccount => Config::incluster().map_err(|error| {
                let remedy = "set automountServiceAccountToken: true in the agent's pod";
                unusable(format!("service account at {SERVICE_ACCOUNT}: {}; {remedy}", chain(&error)))
            })?,
            Self::Kubeconfig(files) => read(files).await?,
        };
        if config.accept_invalid_certs {
            return Err(unusable(format!(
                "{self} says insecure-skip-tls-verify, and the agent gives its credentials to no server that it cannot \
                 verify; name the cluster's certificate-authority instead"
            )));
        }
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // The callers retry by rules of their own.
        config.default_retry = false;
        Ok(config)
    }

    /// A client for the cluster; nothing is sent yet.
    ///
    /// # Errors
    /// As [`Self::config`], and when certificates, keys or the token cannot be used.
    pub async fn client(&self) -> Result<Client, Trouble> {
        client(self.config().await?, &self.to_string())
    }
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServiceAccount => f.write_str("service account"),
            Self::Kubeconfig(files) => {
                let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
                write!(f, "kubeconfig {}", files.join(", "))
            }
        }
    }
}

/// A client made of `config`, whose origin is named in the error.
///
/// # Errors
/// When certificates, keys or the token cannot be used.
pub fn client(config: Config, origin: &str) -> Result<Client, Trouble> {
    Client::try_from(config).map_err(|error| {
        unusable(format!("{origin}: {}; correct the certificates, key or token that it names", chain(&error)))
    })
}

/// kubectl leaves out files of `KUBECONFIG` that are not there, as long as one is.
async fn read(files: &[PathBuf]) -> Result<Config, Trouble> {
    let mut merged: Option<Kubeconfig> = None;
    for file in files.iter().filter(|file| files.len() == 1 || file.exists()) {
        let of = |error: &kube::config::KubeconfigError| unusable(format!("{}: {}", file.display(), chain(error)));
        let next = Kubeconfig::read_from(file).map_err(|error| of(&error))?;
        merged = Some(match merged {
            Some(first) => first.merge(next).map_err(|error| of(&error))?,
            None => next,
        });
    }
    let names = Credentials::Kubeconfig(files.to_vec());
    let merged = merged.ok_or_else(|| unusable(format!("{names}: no such file; correct or unset KUBECONFIG")))?;
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(merged, &options)
        .await
        .map_err(|error| unusable(format!("{names}: {}", chain(&error))))
}

fn unusable(message: String) -> Trouble {
    Trouble { reason: "config", message }
}

/// What a failed request means. `verb` and `object` say what was asked for, in the words of RBAC: `list`, `pods at
/// cluster scope`.
#[must_use]
pub fn trouble(error: &Error, verb: &str, object: &str) -> Trouble {
    let text = chain(error);
    let (reason, message) = match error {
        Error::Api(status) => match status.code {
            401 => (
                "unauthorized",
                format!(
                    "{verb} {object}: credentials refused (401 {}); renew the token or certificate",
                    status.message
                ),
            ),
            403 => (
                "forbidden",
                format!(
                    "no permission to {verb} {object} (403 {}); the agent needs get, list and watch on {object}: add them \
                     to its role and bind it to the agent's account",
                    status.message
                ),
            ),
            code => ("error", format!("{verb} {object}: {code} {} {}", status.reason, status.message)),
        },
        Error::Auth(_) | Error::RustlsTls(_) => ("config", format!("credentials: {text}")),
        Error::HyperError(_) | Error::Service(_) | Error::ReadEvents(_) if is_tls(&text) => (
            "tls",
            format!("{text}; the server's certificate must be signed by the configured authority and name its address"),
        ),
        Error::HyperError(_) | Error::Service(_) | Error::ReadEvents(_) => ("unreachable", text),
        _ => ("error", format!("{verb} {object}: {text}")),
    };
    Trouble { reason, message }
}

/// What rustls says when certificates or handshakes fail; its own error type is out of reach behind kube.
fn is_tls(text: &str) -> bool {
    ["certificate", "fatal alert", "corrupt message", "TLS", "tls handshake"].iter().any(|word| text.contains(word))
}

/// The error and its causes, each said once.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// A request that was not answered in time.
#[must_use]
pub fn silence(verb: &str, object: &str, after: Duration) -> Trouble {
    Trouble { reason: "unreachable", message: format!("{verb} {object}: no answer within {} s", after.as_secs()) }
}

/// Path of a file of the service account.
#[must_use]
pub fn service_account(file: &str) -> PathBuf {
    Path::new(SERVICE_ACCOUNT).join(file)
}

/// Whether the agent runs in a pod, as far as its environment tells.
#[must_use]
pub fn in_cluster() -> bool {
    env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}
