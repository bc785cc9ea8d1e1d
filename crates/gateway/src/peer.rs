//! Client's end of a connection. A client may close its writing side after its request, as `nc -N` does, and
//! still read; it must be served. To TCP it looks like a client that is gone. The difference shows only when
//! something is written: a client that is gone answers with a reset.
//!
//! So while an answer is computed for a client that has closed its writing side, an interim response is written
//! at intervals: 100, which every HTTP/1.1 client skips. On a stream, its comments have the same effect. If a
//! write fails, the connection ends, and with it the client's requests.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
    sync::Notify,
};
use tokio_util::sync::CancellationToken;

use crate::limits::{PEER_FIRST_LOOK, PEER_LOOK};

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// State of a client that its requests share. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer(Arc<PeerState>);

#[derive(Debug, Default)]
struct PeerState {
    asked: Notify,
    awaits: Mutex<u32>, // answers that have not begun
    shut_down: CancellationToken,
}

impl Peer {
    /// Counts an HTTP/1.1 request whose answer has not begun, until dropped.
    pub(crate) fn asks(&self) -> AwaitGuard {
        *locked(&self.0.awaits) += 1;
        self.0.asked.notify_one();
        AwaitGuard(self.clone())
    }

    /// Resolves when the client has closed its writing side, or is gone.
    pub(crate) async fn shut_down(&self) {
        self.0.shut_down.cancelled().await;
    }

    /// Whether the client has closed its writing side.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.0.shut_down.is_cancelled()
    }

    /// Resolves when the client is gone while it waits for an answer. Must be polled by the task that serves
    /// the connection, so that no other write comes in between.
    pub(crate) async fn gone(&self, socket: Socket) {
        self.0.asked.notified().await;
        while !self.is_shut_down() {
            // By then most requests have been answered.
            tokio::time::sleep(PEER_LOOK).await;
            match std::future::poll_fn(|context| socket.poll_peek(context)).await {
                // The rest of this request, or the next one. The end of the stream follows it.
                Ok(1..) if !socket.is_read_closed() => {}
                Ok(_) | Err(_) => self.0.shut_down.cancel(),
            }
        }
        // A client that is gone answers the first write with a reset, so the next write fails.
        let mut pause = PEER_FIRST_LOOK;
        loop {
            if *locked(&self.0.awaits) > 0 && socket.is_broken_by(INTERIM) {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PEER_LOOK);
        }
    }
}

/// Guard of [`Peer::asks`].
#[derive(Debug)]
pub(crate) struct AwaitGuard(Peer);

impl Drop for AwaitGuard {
    fn drop(&mut self) {
        *locked(&self.0.0.awaits) -= 1;
    }
}

/// Socket of a connection, written from two places of the same task.
#[derive(Debug, Clone)]
pub(crate) struct Socket(Arc<Mutex<TcpStream>>);

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> Socket {
        Socket(Arc::new(Mutex::new(stream)))
    }

    fn poll_peek(&self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut byte = [0];
        locked(&self.0).poll_peek(context, &mut ReadBuf::new(&mut byte))
    }

    /// Whether the other end has closed its writing side or is gone, regardless of unread bytes.
    fn is_read_closed(&self) -> bool {
        let ready = locked(&self.0).ready(Interest::READABLE).now_or_never();
        ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
    }

    /// Writes all of `bytes`, if there is room. Returns whether the connection has failed.
    fn is_broken_by(&self, bytes: &[u8]) -> bool {
        let stream = locked(&self.0);
        match stream.take_error() {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return true,
        }
        match stream.try_write(bytes) {
            Ok(written) => written < bytes.len(),
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.0)).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *locked(&self.0)).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *locked(&self.0)).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        locked(&self.0).is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.0)).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.0)).poll_shutdown(context)
    }
}
