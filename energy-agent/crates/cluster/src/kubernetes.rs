//! Credentials that this machine has for a cluster into a client, and what goes wrong with one into a word and a
//! sentence.

pub(crate) mod backoff;
mod kubeconfig;
mod plugin;
mod token;
pub mod watch;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use std::{env, fmt, io, mem};

use energy_files::config_file::{self, FileError};
use energy_files::reader::FileReader;
use energy_model::advice::Advice;
use energy_model::json_fault::json_fault;
use energy_model::meter_state::Reason;
use hyper::http::{Request, header};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config, Error};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tower::util::MapRequestLayer;

use self::token::TokenFile;

/// Where a pod finds the credentials of its service account.
/// <https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A server that is there answers sooner; one that is not costs this much per try.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a token file is looked at after its token was refused.
const RENEWAL: Duration = Duration::from_secs(1);

/// For credentials of every kind.
static READER: LazyLock<FileReader> = LazyLock::new(FileReader::default);

/// What keeps the agent from the cluster: why, and for people the object and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterError {
    pub reason: Reason,
    pub advice: Advice,
}

impl ClusterError {
    #[must_use]
    pub fn new(reason: Reason, advice: impl Into<Advice>) -> Self {
        Self { reason, advice: advice.into() }
    }

    /// Neither a service account nor a kubeconfig was found.
    pub(crate) fn no_credentials() -> Self {
        let remedy = "run in a pod with a service account, or name a file with --kubeconfig";
        Self::new(Reason::Config, Advice::new("no credentials for a cluster", remedy))
    }

    /// Whether another client may be what helps: its token, its certificates or the files they are in may have been renewed.
    #[must_use]
    pub(crate) const fn needs_new_client(&self) -> bool {
        !matches!(self.reason, Reason::Unreachable | Reason::Error | Reason::Forbidden | Reason::Absent)
    }
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.advice.fmt(f)
    }
}

/// Credentials that were found, not yet tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The agent runs in a pod.
    ServiceAccount,
    /// Files that are merged as kubectl does; the current context counts.
    Kubeconfig(Vec<PathBuf>),
    /// The same with a context of this name.
    Context(Vec<PathBuf>, String),
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

    /// The same in another context than the current one.
    ///
    /// # Errors
    /// When it is a service account, which has no contexts.
    pub fn in_context(self, context: &str) -> Result<Self, ClusterError> {
        match self {
            Self::Kubeconfig(files) | Self::Context(files, _) => Ok(Self::Context(files, context.to_owned())),
            Self::ServiceAccount => Err(unusable(format!(
                "--context {context:?} is for a kubeconfig, and a service account has no contexts; name a file with --kubeconfig"
            ))),
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    /// When one is missing or unusable, or says not to verify the server.
    pub async fn config(&self) -> Result<Config, ClusterError> {
        let mut config = match self {
            Self::ServiceAccount => self.read(Config::incluster).await?.map_err(|error| {
                let remedy = "set automountServiceAccountToken: true in the agent's pod";
                unusable(Advice::new(format!("service account at {SERVICE_ACCOUNT}: {}", chain(&error)), remedy))
            })?,
            Self::Kubeconfig(files) | Self::Context(files, _) => {
                let context = match self {
                    Self::Context(_, context) => Some(context.clone()),
                    _ => None,
                };
                // kubectl leaves out files of `KUBECONFIG` that are not there, as long as one is.
                let names = files.clone();
                let read = move || {
                    let there: Vec<_> = names.into_iter().filter(|file| file.exists()).collect();
                    (kubeconfig::read(&there, context), there)
                };
                let (read, there) = self.read(read).await?;
                let Some(first) = there.first() else {
                    return Err(unusable(Advice::new("no such file", "correct --kubeconfig or KUBECONFIG").of(self)));
                };
                kubeconfig::config(read.map_err(unusable)?, first).await.map_err(unusable)?
            }
        };
        if config.accept_invalid_certs {
            let what = format!(
                "{self} has insecure-skip-tls-verify, but the agent sends its credentials only to servers that it can verify"
            );
            return Err(unusable(Advice::new(what, "name the cluster's certificate-authority instead")));
        }
        // kube would read this again and again, and wait for it. A certificate that is refused leads to another client.
        config.root_cert_file = None;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // The callers retry by rules of their own.
        config.default_retry = false;
        Ok(config)
    }

    /// Reads files, which must not hold up anything else.
    async fn read<T: Send + 'static>(&self, read: impl FnOnce() -> T + Send + 'static) -> Result<T, ClusterError> {
        READER.read(read).await.map_err(|_| unusable(format!("{self}: {}", FileError::Hangs)))
    }

    /// A client for the cluster; nothing is sent yet.
    ///
    /// # Errors
    /// As [`Self::config`], and when certificates, keys or the token cannot be used.
    pub async fn client(&self) -> Result<Server, ClusterError> {
        let (address, authority) = match self {
            Self::ServiceAccount => (
                "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT".to_owned(),
                format!("the service account's {SERVICE_ACCOUNT}/ca.crt"),
            ),
            Self::Kubeconfig(_) | Self::Context(..) => {
                (format!("server in {self}"), format!("certificate-authority in {self}"))
            }
        };
        Server::new(self.config().await?, &self.to_string(), address, authority).await
    }
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServiceAccount => f.write_str("service account"),
            Self::Kubeconfig(files) | Self::Context(files, _) => {
                let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
                write!(f, "kubeconfig {}", files.join(", "))?;
                if let Self::Context(_, context) = self { write!(f, " (context {context})") } else { Ok(()) }
            }
        }
    }
}

/// A client for one server, and what people have to know about it when it fails.
#[derive(Clone)]
pub struct Server {
    pub client: Client,
    pub url: String,
    token: Option<TokenFile>,
    /// When the credentials do that a plugin has handed out.
    expires: Option<Timestamp>,
    /// Where its address is set.
    address: String,
    /// Where the authority is set that has to have signed its certificate.
    authority: String,
}

impl Server {
    /// A client made of `config`, whose origin is named in the error. A token file is read at each request, a credential
    /// plugin runs once.
    ///
    /// # Errors
    /// When certificates, keys or the token cannot be used, or there is none.
    pub async fn new(
        mut config: Config,
        origin: &str,
        address: String,
        authority: String,
    ) -> Result<Self, ClusterError> {
        let unusable = |advice: Advice| {
            unusable(advice.or_remedy("correct the certificates, key or token that it names").of(origin))
        };
        let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let account = &mut config.auth_info;
        // These come first in kube too.
        let basic = account.username.is_some() && account.password.is_some();
        let other = basic || account.token.is_some() || account.auth_provider.is_some();
        let token = match account.token_file.take().filter(|_| !other) {
            Some(file) => {
                let named = file.clone();
                let token = READER.read(move || TokenFile::open(file.into())).await;
                let token = token.unwrap_or_else(|_| Err(format!("token file {named}: {}", FileError::Hangs)));
                Some(token.map_err(|problem| unusable(problem.into()))?)
            }
            None => None,
        };
        if account.auth_provider.as_ref().is_some_and(|provider| provider.config.contains_key("cmd-path")) {
            let what = "auth-provider with cmd-path, which Kubernetes no longer supports";
            return Err(unusable(Advice::new(what, "name the plugin with exec")));
        }
        let mut expires = None;
        if token.is_none() && !other && account.exec.is_some() {
            let mut own = mem::take(account);
            // Nothing else may wait for it.
            let ran = spawn_blocking(move || plugin::run(&mut own).map(|expires| (own, expires))).await;
            (*account, expires) = ran.map_err(|error| unusable(error.to_string().into()))?.map_err(unusable)?;
        }
        if config.cluster_url.scheme_str() == Some("http") {
            // Nothing is verified then. Without an authority the system's would be read, and an image made from scratch has
            // none, which is an error.
            config.root_cert.get_or_insert_default();
        }
        let builder = ClientBuilder::try_from(config).map_err(|error| unusable(unfit(&error).into()))?;
        let client = match token.clone() {
            None => builder.build(),
            Some(token) => {
                let authorize = move |mut request: Request<Body>| {
                    request.headers_mut().insert(header::AUTHORIZATION, token.header());
                    request
                };
                builder.with_layer(&MapRequestLayer::new(authorize)).build()
            }
        };
        Ok(Self { client, url, token, expires, address, authority })
    }

    /// Whether its credentials expire within a minute, so that another client is to be made.
    #[must_use]
    pub(crate) fn is_expiring(&self) -> bool {
        self.expires.is_some_and(|expires| Timestamp::now() + SignedDuration::from_mins(1) >= expires)
    }

    /// Waits after its refusal of the credentials, and less long when the token file holds another token.
    pub async fn wait(&self, pause: Duration) {
        let end = Instant::now() + pause;
        while let left = end.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            sleep(left.min(RENEWAL)).await;
            if self.token.as_ref().is_some_and(TokenFile::is_renewed) {
                return;
            }
        }
    }

    /// A request that was not answered in time.
    #[must_use]
    pub fn silence(&self, verb: &str, object: &str, after: Duration) -> ClusterError {
        let what = format!("{verb} {object}: no answer from {} within {} s", self.url, after.as_secs());
        ClusterError::new(Reason::Unreachable, Advice::new(what, self.reach()))
    }

    fn reach(&self) -> String {
        format!("check that the server is up and reachable from this node, else correct {}", self.address)
    }

    /// What a failed request means. `verb` and `object` say what was asked for, in the words of RBAC: `list`, `pods at
    /// cluster scope`.
    #[must_use]
    pub fn trouble(&self, error: &Error, verb: &str, object: &str) -> ClusterError {
        let (text, url) = (chain(error), &self.url);
        let text = text.strip_prefix("ServiceError: ").unwrap_or(&text);
        let (reason, what, remedy) = match error {
            Error::Api(status) => match status.code {
                401 => (
                    Reason::Unauthorized,
                    format!("{verb} {object}: credentials refused (401 {})", status.message),
                    "renew the token or certificate".to_owned(),
                ),
                403 => {
                    let needed = if ["list", "watch"].contains(&verb) { "list and watch" } else { verb };
                    (
                        Reason::Forbidden,
                        format!("no permission to {verb} {object} (403 {})", status.message),
                        format!(
                            "the agent needs {needed} on {object}: add that to its role and bind it to the agent's account"
                        ),
                    )
                }
                404 => {
                    let what = format!("{verb} {object}: the API server at {url} has no such kind");
                    (Reason::Absent, what, String::new())
                }
                code => {
                    let what = format!("{verb} {object}: {code} {} {}", status.reason, status.message);
                    (Reason::Error, what, String::new())
                }
            },
            Error::Auth(_) | Error::RustlsTls(_) => (Reason::Config, format!("credentials: {text}"), String::new()),
            Error::HyperError(_) | Error::Service(_) | Error::ReadEvents(_) if is_tls(error) => (
                Reason::Tls,
                format!("{verb} {object} at {url}: {text}"),
                format!(
                    "the server's certificate must be signed by the configured authority and name this address: correct {}",
                    self.authority
                ),
            ),
            Error::HyperError(_) | Error::Service(_) | Error::ReadEvents(_) => {
                (Reason::Unreachable, format!("{verb} {object} at {url}: {text}"), self.reach())
            }
            Error::SerdeError(error) => {
                let what = format!("{verb} {object}: this is not the answer of an API server: {}", json_fault(error));
                (Reason::Error, what, String::new())
            }
            _ => (Reason::Error, format!("{verb} {object}: {text}"), String::new()),
        };
        ClusterError::new(reason, Advice::new(what, remedy))
    }
}

/// The certificates of an authority.
///
/// # Errors
/// When the file cannot be read or has none.
pub async fn authority(file: &Path) -> Result<Vec<Vec<u8>>, ClusterError> {
    let path = file.to_owned();
    let read = READER.read(move || config_file::bytes(&path, config_file::MAX_BYTES)).await;
    let bytes =
        read.unwrap_or(Err(FileError::Hangs)).map_err(|fault| unusable(format!("{}: {fault}", file.display())))?;
    let found = CertificateDer::pem_slice_iter(&bytes).map(|found| found.map(|certificate| certificate.to_vec()));
    match found.collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(unusable(format!("{}: no certificate in PEM", file.display()))),
    }
}

/// Why no client can be made, without what the files have: the libraries repeat lines of a PEM.
const fn unfit(error: &Error) -> &'static str {
    match error {
        Error::RustlsTls(_) => "the client's certificates or key, or those of the authority, cannot be used",
        Error::Auth(_) => "the credentials cannot be used",
        Error::ProxyProtocolUnsupported { .. } | Error::ProxyProtocolDisabled { .. } => "its proxy is not supported",
        _ => "no client can be created from it",
    }
}

fn unusable(advice: impl Into<Advice>) -> ClusterError {
    ClusterError::new(Reason::Config, advice)
}

/// Whether a certificate or the handshake failed. An I/O error wraps what rustls says, and hyper-rustls wraps that error in
/// another one: for a connection that was cut off in the handshake too, which rustls has no error for.
fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let cut_off = within.and_then(|within| within.downcast_ref::<io::Error>());
    error.is::<rustls::Error>()
        || cut_off.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof)
        || within.is_some_and(|within| is_tls(within))
        || error.source().is_some_and(is_tls)
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
