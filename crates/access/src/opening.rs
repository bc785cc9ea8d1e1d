//! Deadline for the first bytes of a connection. The HTTP server waits without limit for the bytes that tell
//! HTTP/1 from HTTP/2. So a client that sends nothing, or part of the HTTP/2 preface, would keep its place for
//! ever.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::sleep,
};

use crate::crowd::Crowd;

/// HTTP/2 client preface. An HTTP/1 request differs from it within its first line.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Connection that must send its first bytes before a deadline.
#[derive(Debug)]
pub struct OpeningStream<S> {
    stream: S,
    awaited: Option<PrefaceDeadline>, // None: the protocol is known
}

struct PrefaceDeadline {
    deadline: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    came: usize, // bytes of the preface so far
}

impl fmt::Debug for PrefaceDeadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").field("came", &self.came).finish_non_exhaustive()
    }
}

impl<S> OpeningStream<S> {
    /// Starts the deadline now.
    pub fn new(stream: S, within: Duration) -> OpeningStream<S> {
        OpeningStream {
            stream,
            awaited: Some(PrefaceDeadline { deadline: Box::pin(sleep(within)), came: 0 }),
        }
    }

    /// Like [`OpeningStream::new`], but the connection may also be evicted when its port is nearly full.
    pub(crate) fn before(stream: S, within: Duration, crowd: Crowd) -> OpeningStream<S> {
        OpeningStream {
            stream,
            awaited: Some(PrefaceDeadline { deadline: Box::pin(crowd.within(within)), came: 0 }),
        }
    }

    /// Underlying stream, without the deadline.
    pub(crate) fn into_inner(self) -> S {
        self.stream
    }
}

impl PrefaceDeadline {
    /// Whether the protocol is known after these bytes.
    fn is_known(&mut self, bytes: &[u8]) -> bool {
        let rest = &PREFACE[self.came..];
        let same = bytes.iter().zip(rest).take_while(|(byte, expected)| byte == expected).count();
        self.came += same;
        self.came == PREFACE.len() || same < bytes.len()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for OpeningStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(awaited) = &mut self.awaited {
            if awaited.is_known(&buffer.filled()[before..]) {
                self.awaited = None;
            } else if read.is_pending() && awaited.deadline.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "it did not begin in time")));
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for OpeningStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::{OpeningStream, PREFACE};

    /// Whether a connection is still read after its client has sent `words` and nothing else for an hour.
    async fn lives(words: &[u8]) -> bool {
        let (mut client, server) = duplex(1024);
        let mut server = OpeningStream::new(server, Duration::from_secs(60));
        client.write_all(words).await.unwrap();
        let mut read = [0; 1024];
        let all = async {
            loop {
                if let Err(error) = server.read(&mut read).await {
                    return error;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(3600), all).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_must_say_what_it_speaks() {
        for words in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n", &PREFACE[..23]] {
            assert!(!lives(words).await, "{words:?}");
        }
        for words in [&b"G"[..], b"POST", b"PRI * HTTP/2.1", PREFACE, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore"]
        {
            assert!(lives(words).await, "{words:?}");
        }
    }
}
