//! The part of a kubelet that tells its pods: `/pods` over TLS, to whom has the token.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use super::server::{Authority, Server};

pub struct Kubelet {
    pub server: Server,
    pub authority: Authority,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    pods: Vec<Value>,
    /// Paths that were asked for.
    asked: Vec<String>,
}

impl Kubelet {
    pub fn start(token: &str) -> Self {
        let authority = Authority::new();
        let state = Arc::new(Mutex::new(State::default()));
        let (kept, token) = (Arc::clone(&state), format!("Bearer {token}"));
        let server = Server::start(
            Some(&authority),
            Arc::new(move |request| {
                let mut state = state.lock().unwrap();
                state.asked.push(request.uri().path().to_owned());
                let known =
                    request.headers().get("authorization").is_some_and(|given| given.as_bytes() == token.as_bytes());
                let (code, body) = match request.uri().path() {
                    _ if !known => (401, "Unauthorized".to_owned()),
                    "/pods" | "/pods/" => {
                        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": state.pods});
                        (200, list.to_string())
                    }
                    _ => (404, "404 page not found".to_owned()),
                };
                let response = Response::builder().status(code).header("content-type", "application/json");
                let response = response.body(Body::from(body)).unwrap();
                Box::pin(async move { response })
            }),
        );
        Self { server, authority, state: kept }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.server.address)
    }

    /// From now on it has these pods.
    pub fn tell(&self, pods: &[Value]) {
        pods.clone_into(&mut self.state.lock().unwrap().pods);
    }

    pub fn asked(&self) -> usize {
        self.state.lock().unwrap().asked.len()
    }
}
