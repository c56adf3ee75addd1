//! `/power` of all nodes: one listener on the loopback; the address at which a request comes says whose report is wanted.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

use super::node::Node;

/// Serves until the runtime ends; the port.
///
/// # Errors
/// When no port can be had.
pub fn start(runtime: &Handle, nodes: &Arc<Vec<Arc<Node>>>) -> Result<u16> {
    // All of 127.0.0.0/8 is this machine's; one socket for thousands of addresses has to be bound to all.
    let listener = runtime.block_on(TcpListener::bind("0.0.0.0:0")).context("a port for the nodes")?;
    let port = listener.local_addr()?.port();
    let nodes = Arc::clone(nodes);
    runtime.spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            if let Some(node) = node_of(&stream, peer, &nodes) {
                tokio::spawn(serve(stream, node));
            }
        }
    });
    Ok(port)
}

/// `None` for strangers.
fn node_of(stream: &TcpStream, peer: SocketAddr, nodes: &[Arc<Node>]) -> Option<Arc<Node>> {
    let IpAddr::V4(local) = stream.local_addr().ok()?.ip() else { return None };
    let number = u32::from(local).checked_sub(0x7f01_0001)?;
    let node = nodes.get(usize::try_from(number).ok()?)?;
    peer.ip().is_loopback().then(|| Arc::clone(node))
}

async fn serve(stream: TcpStream, node: Arc<Node>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let node = Arc::clone(&node);
        async move {
            let mut response = Response::new(Full::new(Bytes::from(node.report().to_string())));
            if request.uri().path() != "/power" {
                *response.status_mut() = StatusCode::NOT_FOUND;
            }
            Ok::<_, Infallible>(response)
        }
    });
    let _ = stream.set_nodelay(true);
    // A controller that is killed leaves its connections broken.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
