//! The body of an answer as it is sent: in pieces, so that the table of connections sees who reads and who does not.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{self, Body};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::connections::Connection;

/// The next piece is handed over when the client has taken most of the one before.
const PIECE: usize = 128 * 1024;

/// What is not yet handed over of an answer.
struct Remaining {
    rest: Bytes,
    connection: Arc<Connection>,
}

/// Holds the bytes as long as the server has some of them to send.
struct InFlight {
    bytes: Bytes,
    connection: Arc<Connection>,
}

/// The same answer, with its body in the table of connections until it is sent.
pub async fn tracked(response: Response, connection: &Arc<Connection>) -> Response {
    let (parts, body) = response.into_parts();
    // All bodies here are in one piece; an error cannot come from them.
    let bytes = body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    connection.reads(&bytes);
    let unread = InFlight { bytes, connection: Arc::clone(connection) };
    let rest = Bytes::from_owner(unread);
    Response::from_parts(parts, Body::new(Remaining { rest, connection: Arc::clone(connection) }))
}

impl AsRef<[u8]> for InFlight {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.connection.has_read();
    }
}

impl HttpBody for Remaining {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        self.connection.reads_on();
        let length = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(u64::try_from(self.rest.len()).unwrap_or(u64::MAX))
    }
}
