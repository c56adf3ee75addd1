//! Single requests to the API server: objects read, created, replaced under their version, patched and deleted. Each says by
//! its error what the caller may do next; none is tried again here.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use energy_model::resources::object::KubeObject;
use hyper::http::{Method, Request};
use serde_json::Value;
use tokio::time::timeout;

use crate::kubernetes::watch::{self, Age, Query};
use crate::kubernetes::{ClusterError, Credentials, Server};

/// Asks as one account.
pub struct Api {
    credentials: Credentials,
    server: Mutex<Option<Server>>,
    /// A request that takes longer has failed.
    patience: Duration,
}

/// Why an object is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiError {
    /// Somebody else has written it since (409), or it exists already.
    Conflict,
    /// The object does not exist (404).
    Absent,
    /// The server refuses what is to be written (400, 422): it will never take it.
    Invalid(ClusterError),
    /// No answer, no rights, or no credentials.
    Failed(ClusterError),
}

impl Api {
    #[must_use]
    pub const fn new(credentials: Credentials, patience: Duration) -> Self {
        Self { credentials, server: Mutex::new(None), patience }
    }

    /// # Errors
    /// [`ApiError::Absent`] if the object does not exist.
    pub async fn get(&self, path: &str) -> Result<KubeObject, ApiError> {
        self.ask(Method::GET, path, "application/json", None).await
    }

    /// # Errors
    /// [`ApiError::Conflict`] where it exists.
    pub async fn create(&self, collection: &str, object: &Value) -> Result<KubeObject, ApiError> {
        self.ask(Method::POST, collection, "application/json", Some(object)).await
    }

    /// # Errors
    /// [`ApiError::Conflict`] where `object` does not have the version that the server has.
    pub async fn replace(&self, path: &str, object: &Value) -> Result<KubeObject, ApiError> {
        self.ask(Method::PUT, path, "application/json", Some(object)).await
    }

    /// A merge patch of the status; `metadata.resourceVersion` in it makes the patch fail if somebody else has changed the
    /// object.
    ///
    /// # Errors
    /// As [`Self::replace`].
    pub async fn patch_status(&self, path: &str, patch: &Value) -> Result<KubeObject, ApiError> {
        let path = format!("{path}/status?fieldManager=energy-agent-controller");
        self.ask(Method::PATCH, &path, "application/merge-patch+json", Some(patch)).await
    }

    /// A merge patch by a person, in the name of this field manager; `metadata.resourceVersion` in it has the same effect.
    ///
    /// # Errors
    /// As [`Self::replace`].
    pub async fn patch(&self, path: &str, manager: &str, patch: &Value) -> Result<KubeObject, ApiError> {
        let path = format!("{path}?fieldManager={manager}");
        self.ask(Method::PATCH, &path, "application/merge-patch+json", Some(patch)).await
    }

    /// Server-side apply: this manager then owns the fields of `object` and no others. Creates the object if there is none.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] where another manager owns one of them.
    pub async fn apply(&self, path: &str, manager: &str, object: &Value) -> Result<KubeObject, ApiError> {
        let path = format!("{path}?fieldManager={manager}");
        self.ask(Method::PATCH, &path, "application/apply-patch+yaml", Some(object)).await
    }

    /// # Errors
    /// [`ApiError::Absent`] if the object no longer exists.
    pub async fn delete(&self, path: &str) -> Result<(), ApiError> {
        self.ask(Method::DELETE, path, "application/json", None).await.map(drop)
    }

    /// All objects of a kind as they are stored now, not as a cache has them.
    ///
    /// # Errors
    /// [`ApiError::Failed`].
    pub async fn list(&self, query: &Query) -> Result<Vec<KubeObject>, ApiError> {
        let server = self.server().await.map_err(ApiError::Failed)?;
        match timeout(self.patience, watch::list::<KubeObject>(&server, query, Age::Latest)).await {
            Err(_) => Err(ApiError::Failed(server.silence("list", &query.object, self.patience))),
            Ok(listed) => listed.map(|(objects, _)| objects).map_err(ApiError::Failed),
        }
    }

    async fn ask(&self, method: Method, path: &str, kind: &str, body: Option<&Value>) -> Result<KubeObject, ApiError> {
        let verb = verb(&method);
        let server = self.server().await.map_err(ApiError::Failed)?;
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header("content-type", kind).body(body);
        let request = request.map_err(|error| {
            let error = kube::Error::HttpError(error);
            ApiError::Failed(server.trouble(&error, verb, path))
        })?;
        match timeout(self.patience, server.client.request::<KubeObject>(request)).await {
            Err(_) => Err(ApiError::Failed(server.silence(verb, path, self.patience))),
            Ok(Ok(object)) => Ok(object),
            Ok(Err(error)) => {
                let code = if let kube::Error::Api(status) = &error { status.code } else { 0 };
                let trouble = server.trouble(&error, verb, path);
                if trouble.needs_new_client() {
                    self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
                }
                Err(match code {
                    409 => ApiError::Conflict,
                    404 => ApiError::Absent,
                    400 | 422 => ApiError::Invalid(trouble),
                    _ => ApiError::Failed(trouble),
                })
            }
        }
    }

    async fn server(&self) -> Result<Server, ClusterError> {
        let kept = self.server.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(server) = kept.filter(|server| !server.is_expiring()) {
            return Ok(server);
        }
        let server = self.credentials.client().await?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server.clone());
        Ok(server)
    }
}

/// In the words of RBAC.
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

impl ApiError {
    /// For people.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Conflict => "somebody else has written it".to_owned(),
            Self::Absent => "it is not there".to_owned(),
            Self::Invalid(trouble) | Self::Failed(trouble) => trouble.to_string(),
        }
    }
}
