//! The kubelet's PodResources service over a real socket, and its messages.

use std::path::PathBuf;
use std::thread;

use hyper::http::{HeaderMap, Response};
use tempfile::TempDir;
use tokio::net::UnixListener;

/// A message field of wire type 2.
pub fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    assert!(length < 1 << 14);
    // A varint of one byte, or of two.
    let low = u8::try_from(length % 128).unwrap();
    let length = if length < 128 { vec![low] } else { vec![low | 128, u8::try_from(length / 128).unwrap()] };
    [&[number << 3 | 2], &length[..], content].concat()
}

/// A pod with one container that has these devices of `nvidia.com/gpu`, as the kubelet lists it.
pub fn listed(namespace: &str, pod: &str, container: &str, devices: &[&str]) -> Vec<u8> {
    let devices: Vec<u8> = devices.iter().flat_map(|id| field(2, &device("nvidia.com/gpu", id))).collect();
    listed_pod(namespace, pod, container, &[field(2, &device("example.com/fpga", "fpga-1")), devices].concat())
}

/// A resource of a device plugin with one device.
pub fn device(resource: &str, id: &str) -> Vec<u8> {
    [field(1, resource.as_bytes()), field(2, id.as_bytes())].concat()
}

/// A pod with one container that has what these fields of it say.
pub fn listed_pod(namespace: &str, pod: &str, container: &str, has: &[u8]) -> Vec<u8> {
    let container = [&field(1, container.as_bytes()), has].concat();
    field(1, &[field(1, pod.as_bytes()), field(2, namespace.as_bytes()), field(3, &container)].concat())
}

/// A device of a claim, for [`listed_pod`]: the names of its driver, pool and device. Those of the claim itself and for the
/// container runtime are a tenant's GPU-a.
pub fn claim(driver: &str, pool: &str, device: &str) -> Vec<u8> {
    let cdi = field(1, b"example.com/gpu=GPU-a");
    let names = [(2, driver), (3, pool), (4, device)].map(|(number, name)| field(number, name.as_bytes()));
    let claim = [field(1, &cdi), names.concat()].concat();
    field(5, &[field(2, b"GPU-a"), field(3, b"gpu.nvidia.com"), field(4, &claim)].concat())
}

/// The kubelet's socket.
pub struct Kubelet {
    dir: TempDir,
}

impl Kubelet {
    /// Answers every call of `List` with this message.
    pub fn start(message: Vec<u8>) -> Self {
        let kubelet = Self { dir: TempDir::new().unwrap() };
        let socket = kubelet.socket();
        let (ready, listening) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = UnixListener::bind(socket).unwrap();
                ready.send(()).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer(stream, message.clone()));
                }
            });
        });
        listening.recv().unwrap();
        kubelet
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("kubelet.sock")
    }
}

async fn answer(stream: tokio::net::UnixStream, message: Vec<u8>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.uri().path(), "/v1.PodResourcesLister/List");
        let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        let mut body = respond.send_response(head, false).unwrap();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        body.send_data([&[0], &length[..], &message].concat().into(), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        body.send_trailers(trailers).unwrap();
    }
}
