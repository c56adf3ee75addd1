//! A TCP connection into one with TLS, in bounded time; a client that speaks plain HTTP gets an answer that says so.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tracing::debug;

use crate::SERVER_NAME;

/// A handshake that takes longer is given up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that TLS keeps for a client that does not read, beside what the kernel keeps.
const BUFFER_BYTES: usize = 16 * 1024;
/// Of a request in plain HTTP this much is read before the end.
const DRAINED_BYTES: u64 = 64 * 1024;

/// `None` where no TLS connection with this client is possible. Attacks and scans fail here all day: no line in the log.
pub async fn handshake(stream: TcpStream, tls: &Arc<ServerConfig>) -> Option<TlsStream<TcpStream>> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, accept(stream, tls)).await {
        Ok(accepted) => accepted,
        Err(_) => {
            debug!("TLS handshake took too long");
            None
        }
    }
}

async fn accept(mut stream: TcpStream, tls: &Arc<ServerConfig>) -> Option<TlsStream<TcpStream>> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        // A method; a TLS record begins with 22.
        Ok(1) if first[0].is_ascii_uppercase() => {
            answer_plain_http(&mut stream).await;
            None
        }
        Ok(1) => TlsAcceptor::from(Arc::clone(tls))
            .accept(stream)
            .await
            .inspect_err(|error| debug!(%error, "TLS handshake"))
            .ok()
            .map(|mut stream| {
                stream.get_mut().1.set_buffer_limit(Some(BUFFER_BYTES));
                stream
            }),
        _ => None,
    }
}

/// In the words of Go's server, which scrapers' operators know.
async fn answer_plain_http(stream: &mut TcpStream) {
    let body = "Client sent an HTTP request to an HTTPS server.\n";
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nServer: {SERVER_NAME}\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    if stream.write_all(answer.as_bytes()).await.is_ok() && stream.shutdown().await.is_ok() {
        // Closing with bytes unread would reset the connection, and the client might not see the answer.
        let _ = tokio::io::copy(&mut stream.take(DRAINED_BYTES), &mut tokio::io::sink()).await;
    }
}
