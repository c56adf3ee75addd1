//! What stands between a client and the pages: TLS, users and headers as `--web.config.file` asks for them, followed
//! while the agent runs. A version that is not valid changes nothing; it is logged once.

mod clients;
mod document;
mod tls;
mod turns;
mod users;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use energy_model::advice::Advice;

use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use energy_files::config_file::{self, FileError, MAX_BYTES};
use energy_files::reader::{self, FileReader, NoAnswer};
use energy_files::reload::Reload;
use energy_files::stable_read::{self, Look};
use ring::digest::{Context, SHA256};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_rustls::rustls::ServerConfig;
use tracing::{info, warn};

use self::document::{Pem, WebConfigFile};
pub use self::tls::Validity;
use self::users::{Admission, Users};
use crate::connections::{ClientStanding, Connection};
use crate::self_metrics::SelfMetrics;

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_millis(500);
/// Of this file in metrics.
const FILE: &str = "web_config";

/// What a client has to get past. The default is plain HTTP for everyone.
#[derive(Default)]
pub struct WebConfig {
    /// `None`: plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// `None`: everyone may read.
    users: Option<Users>,
    /// Set in every answer.
    pub headers: HeaderMap,
}

/// Without the keys and hashes.
impl fmt::Debug for WebConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl WebConfig {
    /// The answer to a request that may not pass.
    pub async fn refuse(&self, request: &HeaderMap, connection: &Connection) -> Option<Response> {
        let Some(users) = &self.users else {
            connection.stands(ClientStanding::Passed);
            return None;
        };
        match users.admit(request.get(AUTHORIZATION), connection.standing()).await {
            Admission::Passes => {
                connection.stands(ClientStanding::Passed);
                return None;
            }
            Admission::Unnamed => {}
            Admission::Wrong(held_back) => {
                connection.stands(ClientStanding::Failed);
                connection.is_held_back();
                tokio::time::sleep(held_back.time).await;
            }
        }
        let challenge = [(WWW_AUTHENTICATE, HeaderValue::from_static("Basic"))];
        Some((StatusCode::UNAUTHORIZED, challenge, "401 unauthorized\n").into_response())
    }

    /// For the log and the landing page.
    #[must_use]
    pub fn text(&self) -> String {
        let transport = if self.tls.is_some() { "HTTPS" } else { "HTTP" };
        match self.users.as_ref().map(Users::count) {
            None => transport.to_owned(),
            Some(users) => format!("{transport}, {users} user{} with a password", if users == 1 { "" } else { "s" }),
        }
    }
}

/// What a file asks for, and from when to when its certificate counts, where it names one and the dates can be read.
///
/// # Errors
/// As [`WebConfigSource::open`].
pub fn inspect(file: &Path) -> Result<(WebConfig, Option<Validity>), WebConfigError> {
    let found = at_start(file)?;
    let web_config = found.web_config()?;
    let tls = found.document.iter().find_map(|document| document.tls_server_config.as_ref());
    let pem = tls.and_then(|tls| found.pem(tls.certificate().ok()?).ok());
    Ok((web_config, pem.and_then(Validity::of)))
}

fn at_start(file: &Path) -> Result<FilesRead, WebConfigError> {
    let path = file.to_owned();
    reader::at_start(move || FilesRead::read(&path)).map_err(|fault| WebConfigError::from(fault).of(file))
}

/// Why a web configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebConfigError {
    /// Why a file of it cannot be read, if that is why.
    pub fault: Option<FileError>,
    /// One line with the file, what is wrong, and the remedy where it is not plain.
    pub text: Advice,
}

impl WebConfigError {
    fn of(self, file: &Path) -> Self {
        Self { text: self.text.of(file.display()), ..self }
    }
}

impl From<FileError> for WebConfigError {
    fn from(fault: FileError) -> Self {
        Self { text: fault.to_string().into(), fault: Some(fault) }
    }
}

impl From<WebConfigError> for String {
    fn from(refusal: WebConfigError) -> Self {
        refusal.text.to_string()
    }
}

impl From<String> for WebConfigError {
    fn from(text: String) -> Self {
        Self { fault: None, text: text.into() }
    }
}

impl From<Advice> for WebConfigError {
    fn from(text: Advice) -> Self {
        Self { fault: None, text }
    }
}

/// Follows the file and those that it names.
pub struct WebConfigSource {
    file: Option<PathBuf>,
    /// Of what the files had when they were last looked at.
    seen: Sum,
    /// Why the last version is not active.
    problem: Option<WebConfigError>,
    /// Why they cannot be looked at.
    unseen: Option<String>,
    publish: watch::Sender<Arc<WebConfig>>,
    own: Arc<SelfMetrics>,
}

type Sum = [u8; 32];

impl WebConfigSource {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// One line with the file, what is wrong, and the remedy where it is not plain.
    pub fn open(file: Option<&Path>, own: Arc<SelfMetrics>) -> Result<Self, String> {
        let mut web_config = WebConfig::default();
        let mut seen = Sum::default();
        if let Some(file) = file {
            let found = at_start(file)?;
            web_config = found.web_config()?;
            own.web_config_valid(true);
            own.count_lost_readings(FILE);
            if found.document.as_ref().is_ok_and(WebConfigFile::asks_for_http2) {
                info!("http2 in --web.config.file has no effect, the agent serves HTTP/1.1");
            }
            seen = found.sum;
        }
        let (publish, _) = watch::channel(Arc::new(web_config));
        Ok(Self { file: file.map(Path::to_owned), seen, problem: None, unseen: None, publish, own })
    }

    #[must_use]
    pub fn in_force(&self) -> watch::Receiver<Arc<WebConfig>> {
        self.publish.subscribe()
    }

    /// Follows the files until the program ends.
    pub async fn follow(mut self) {
        let Some(file) = self.file.clone() else { return };
        let reader = FileReader::default();
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reload = Reload::subscribe();
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                () = reload.asked() => {}
            }
            let path = file.clone();
            let is_seen = |found: &FilesRead| found.sum == self.seen;
            match stable_read::look(&reader, is_seen, move || FilesRead::read(&path)).await {
                Look::Same => self.unseen(None),
                Look::Found(found) => {
                    self.seen = found.sum;
                    self.update(&found);
                    self.unseen(None);
                }
                Look::Changing => {
                    let problem = format!("{}: it changes at each reading; write it less often", file.display());
                    self.unseen(Some(problem));
                }
                Look::Lost(lost) => {
                    if lost == NoAnswer::GivenUp {
                        self.own.lost_reading(FILE);
                    }
                    self.unseen(Some(format!("{} or a file that it names: {}", file.display(), FileError::Hangs)));
                }
            }
        }
    }

    fn update(&mut self, found: &FilesRead) {
        let before = Arc::clone(&self.publish.borrow());
        match found.web_config().and_then(|now| not_lifted(&before, now)) {
            Ok(now) => {
                info!(protection = now.text(), "web configuration loaded again");
                self.publish.send_replace(Arc::new(now));
                self.problem = None;
            }
            Err(refusal) if self.problem.as_ref() == Some(&refusal) => {}
            Err(refusal) => {
                warn!(problem = %refusal.text, "the previous web configuration stays active: {}", before.text());
                self.problem = Some(refusal);
            }
        }
    }

    /// Why the files cannot be looked at now, if they cannot.
    fn unseen(&mut self, problem: Option<String>) {
        match (&problem, &self.unseen) {
            (Some(problem), None) => {
                warn!(%problem, "the previous web configuration stays active: {}", self.publish.borrow().text());
            }
            (None, Some(_)) => info!("the web configuration can be read again"),
            _ => {}
        }
        self.unseen = problem;
        self.own.web_config_valid(self.problem.is_none() && self.unseen.is_none());
    }
}

/// A file that is cut off must not open the door: what was asked for at the start can be changed, but goes only with a
/// restart. Whether the port speaks TLS is what its clients have to know beforehand.
fn not_lifted(before: &WebConfig, mut now: WebConfig) -> Result<WebConfig, WebConfigError> {
    match (before.tls.is_some(), now.tls.is_some()) {
        (true, false) => {
            return Err(Advice::new("tls_server_config was removed", "restart the agent to serve plain HTTP").into());
        }
        (false, true) => {
            return Err(Advice::new("tls_server_config was added", "restart the agent to serve HTTPS").into());
        }
        _ => {}
    }
    match (&before.users, &mut now.users) {
        (Some(_), None) => {
            return Err(Advice::new("basic_auth_users was removed", "restart the agent to let everyone read").into());
        }
        (Some(before), Some(now)) => now.remember(before),
        (None, _) => {}
    }
    Ok(now)
}

/// The file, and the bytes of those that it names.
struct FilesRead {
    file: PathBuf,
    document: Result<WebConfigFile, WebConfigError>,
    bytes: BTreeMap<PathBuf, Result<Vec<u8>, FileError>>,
    /// The same for the same bytes and the same errors; keys are not kept to compare with.
    sum: Sum,
}

impl PartialEq for FilesRead {
    fn eq(&self, other: &Self) -> bool {
        self.sum == other.sum
    }
}

impl FilesRead {
    fn read(file: &Path) -> Self {
        let folder = file.parent().unwrap_or(Path::new(""));
        let text = config_file::text(file, MAX_BYTES).map_err(WebConfigError::from);
        let read = |text: &String| WebConfigFile::read(text, folder).map_err(WebConfigError::from);
        let document = text.as_ref().map_err(Clone::clone).and_then(read);
        let named = document.iter().filter_map(|document| document.tls_server_config.as_ref());
        let bytes = named
            .flat_map(|tls| tls.files())
            .map(|file| (file.to_owned(), config_file::bytes(file, MAX_BYTES)))
            .collect();
        let sum = sum(&text.unwrap_or_else(|refusal| refusal.text.to_string()), &bytes);
        Self { file: file.to_owned(), document, bytes, sum }
    }

    fn web_config(&self) -> Result<WebConfig, WebConfigError> {
        self.build().map_err(|refusal| refusal.of(&self.file))
    }

    fn build(&self) -> Result<WebConfig, WebConfigError> {
        let document = self.document.as_ref().map_err(Clone::clone)?;
        let tls = document.tls_server_config.as_ref();
        let tls = tls.map(|asked| tls::server(asked, |pem| self.pem(pem))).transpose()?;
        let hashes = document.basic_auth_users.clone().filter(|hashes| !hashes.is_empty());
        Ok(WebConfig {
            tls: tls.map(Arc::new),
            users: hashes.map(Users::new).transpose()?,
            headers: document.headers()?,
        })
    }

    fn pem<'a>(&'a self, pem: Pem<'a>) -> Result<&'a [u8], WebConfigError> {
        match pem {
            Pem::Text(text) => Ok(text.as_bytes()),
            Pem::File(path) => match self.bytes.get(path) {
                Some(Ok(bytes)) => Ok(bytes),
                Some(Err(fault)) => Err(WebConfigError::from(fault.clone()).of(path)),
                None => Err(format!("{}: not read", path.display()).into()),
            },
        }
    }
}

fn sum(text: &str, bytes: &BTreeMap<PathBuf, Result<Vec<u8>, FileError>>) -> Sum {
    let mut context = Context::new(&SHA256);
    let mut add = |part: &[u8]| {
        context.update(&part.len().to_le_bytes());
        context.update(part);
    };
    add(text.as_bytes());
    for (path, bytes) in bytes {
        add(path.as_os_str().as_encoded_bytes());
        match bytes {
            Ok(bytes) => add(bytes),
            Err(fault) => add(fault.to_string().as_bytes()),
        }
    }
    let digest = context.finish();
    let mut sum = Sum::default();
    sum.copy_from_slice(digest.as_ref());
    sum
}
