//! Creates the object of a run, and deletes it.

use std::time::Duration;

use energy_model::advice::Advice;
use energy_model::meter_state::Reason;
use hyper::http::{self, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Error;
use kube::api::{DeleteParams, GetParams, ListParams, Preconditions, PropagationPolicy};
use kube::core::Request;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use super::course::created;
use super::document::{JobDocument, JobKind, RUN_LABEL};
use crate::kubernetes::{ClusterError, Credentials, Server};

/// A server that is there answers sooner.
const ANSWER: Duration = Duration::from_secs(30);
/// A server that is away for longer does not get the request to delete.
const DELETE_TRIES: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(500);
/// How long the garbage collector and the kubelet may take before the next run begins: a pod has 30 s to end.
const REMOVAL: Duration = Duration::from_secs(120);

/// An object that was created for a run.
pub struct Submitted {
    pub kind: JobKind,
    pub namespace: String,
    pub name: String,
    /// When the server created it; seconds since the Unix epoch.
    pub created: Option<f64>,
    pub(super) uid: String,
    /// The value of the run's label.
    pub(super) run: String,
    pub(super) credentials: Credentials,
    server: Server,
}

/// Why an object was not created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The file is at fault; what the server says of it.
    Refused(String),
    Cluster(ClusterError),
}

/// As far as it is looked at.
#[derive(Deserialize)]
struct RunObject {
    metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct RunObjects {
    items: Vec<RunObject>,
}

impl Submitted {
    /// Creates the object in `namespace`, else in that of the file, else in that of the credentials.
    ///
    /// # Errors
    /// When the server refuses it or cannot be asked.
    pub async fn create(
        credentials: Credentials,
        document: &JobDocument,
        namespace: Option<&str>,
        run: &str,
    ) -> Result<Self, SubmitError> {
        let server = credentials.client().await.map_err(SubmitError::Cluster)?;
        let namespace = namespace.or(document.namespace()).unwrap_or(server.client.default_namespace()).to_owned();
        let (kind, path) = (document.kind, document.kind.path(&namespace));
        let object = format!("{} in namespace {namespace}", kind.resource());
        // Servers from 1.25 on refuse a misspelt field then; older ones ignore the parameter.
        let request = http::Request::post(format!("{path}?fieldManager=energy-agent&fieldValidation=Strict"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(document.object_of_run(run, &namespace).to_string().into_bytes())
            .map_err(|error| SubmitError::Cluster(server.trouble(&Error::HttpError(error), "create", &object)))?;
        let answer = timeout(ANSWER, server.client.request::<RunObject>(request)).await;
        let trouble = match answer {
            Ok(Ok(made)) => return Ok(Self::of(made, kind, namespace, run, credentials, server)),
            Ok(Err(Error::Api(status))) if [400, 404, 409, 422].contains(&status.code) => {
                return Err(SubmitError::Refused(refusal(&status, kind)));
            }
            Ok(Err(error)) => server.trouble(&error, "create", &object),
            Err(_) => server.silence("create", &object, ANSWER),
        };
        if trouble.reason == Reason::Forbidden || trouble.reason == Reason::Unauthorized {
            return Err(SubmitError::Cluster(trouble));
        }
        // The answer was lost: the object may be there.
        match find(&server, &path, run).await {
            Some(made) => Ok(Self::of(made, kind, namespace, run, credentials, server)),
            None => {
                let look = format!("kubectl delete {kind}s --namespace {namespace} --selector {RUN_LABEL}={run}");
                let remedy = format!("if it was created all the same, delete it: {look}");
                Err(SubmitError::Cluster(ClusterError { advice: trouble.advice.and_remedy(&remedy), ..trouble }))
            }
        }
    }

    fn of(
        made: RunObject,
        kind: JobKind,
        namespace: String,
        run: &str,
        credentials: Credentials,
        server: Server,
    ) -> Self {
        let ObjectMeta { name, uid, creation_timestamp, .. } = made.metadata;
        Self {
            kind,
            namespace,
            name: name.unwrap_or_default(),
            created: created(creation_timestamp.as_ref()),
            uid: uid.unwrap_or_default(),
            run: run.to_owned(),
            credentials,
            server,
        }
    }

    /// How people delete it.
    #[must_use]
    pub fn how_to_delete(&self) -> String {
        format!("kubectl delete {} {} --namespace {}", self.kind, self.name, self.namespace)
    }

    /// Deletes the object and, through the garbage collector, its pods. An object of the same name that is another's stays.
    ///
    /// # Errors
    /// When the server refuses, or does not answer for a while.
    pub async fn delete(&self) -> Result<(), ClusterError> {
        let end = Instant::now() + DELETE_TRIES;
        loop {
            match self.try_to_delete().await {
                Err(error) if error.reason == Reason::Unreachable && Instant::now() < end => sleep(PAUSE).await,
                done => return done,
            }
        }
    }

    async fn try_to_delete(&self) -> Result<(), ClusterError> {
        let object = self.object();
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            preconditions: Some(Preconditions { uid: Some(self.uid.clone()), ..Preconditions::default() }),
            ..DeleteParams::default()
        };
        let request = Request::new(self.kind.path(&self.namespace))
            .delete(&self.name, &parameters)
            .map_err(|error| self.server.trouble(&Error::BuildRequest(error), "delete", &object))?;
        match timeout(ANSWER, self.server.client.request_text(request)).await {
            Err(_) => Err(self.server.silence("delete", &object, ANSWER)),
            Ok(Ok(_)) => Ok(()),
            // Somebody else was faster, or another object has the name by now.
            Ok(Err(Error::Api(status))) if [404, 409].contains(&status.code) => Ok(()),
            Ok(Err(error)) => Err(self.server.trouble(&error, "delete", &object)),
        }
    }

    /// After [`Self::delete`]: waits until the object is gone, so that another of its name can be created.
    ///
    /// # Errors
    /// When it stays, or the server cannot be asked.
    pub async fn wait_until_gone(&self) -> Result<(), ClusterError> {
        let (object, end) = (self.object(), Instant::now() + REMOVAL);
        loop {
            let request = Request::new(self.kind.path(&self.namespace))
                .get(&self.name, &GetParams::default())
                .map_err(|error| self.server.trouble(&Error::BuildRequest(error), "get", &object))?;
            let trouble = match timeout(ANSWER, self.server.client.request::<RunObject>(request)).await {
                Ok(Err(Error::Api(status))) if status.code == 404 => return Ok(()),
                Ok(Ok(other)) if other.metadata.uid.as_deref() != Some(&self.uid) => return Ok(()),
                Ok(Ok(_)) => {
                    let (kind, name, seconds) = (self.kind, &self.name, REMOVAL.as_secs());
                    let what = format!("{kind} {name} is deleted and still there after {seconds} s");
                    ClusterError::new(Reason::Error, Advice::new(what, "`kubectl get` shows what it waits for"))
                }
                Ok(Err(error)) => self.server.trouble(&error, "get", &object),
                Err(_) => self.server.silence("get", &object, ANSWER),
            };
            if Instant::now() >= end || trouble.reason == Reason::Forbidden {
                return Err(trouble);
            }
            sleep(PAUSE).await;
        }
    }

    fn object(&self) -> String {
        format!("{} in namespace {}", self.kind.resource(), self.namespace)
    }
}

/// The object that has the run's label.
async fn find(server: &Server, path: &str, run: &str) -> Option<RunObject> {
    let labelled = ListParams::default().labels(&format!("{RUN_LABEL}={run}"));
    let request = Request::new(path).list(&labelled).ok()?;
    let list = timeout(ANSWER, server.client.request::<RunObjects>(request)).await.ok()?.ok()?;
    list.items.into_iter().next()
}

/// What the server says of an object that it does not take, and the remedy where it says none.
fn refusal(status: &kube::core::Status, kind: JobKind) -> String {
    let remedy = match status.code {
        409 => format!("; delete that {kind}, or write metadata.generateName in place of metadata.name"),
        404 => "; create the namespace, or name another with --namespace".to_owned(),
        _ => String::new(),
    };
    format!("the API server refuses it: {}{remedy}", status.message)
}
