//! Timeout for clients that do not read their answers, for every protocol. TCP alone keeps such a connection as
//! long as the client's system responds, and the running request with it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Connection whose client must read something within a time, while there is something to read.
#[derive(Debug)]
pub(crate) struct ReadDeadline<S> {
    stream: S,
    within: Duration,
    end: Option<Pin<Box<Sleep>>>, // None: nothing is waiting to be read
}

impl<S> ReadDeadline<S> {
    pub(crate) fn new(stream: S, within: Duration) -> ReadDeadline<S> {
        ReadDeadline { stream, within, end: None }
    }

    /// Result of a write, or a timeout if nothing was read for too long.
    fn seen<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.end = None;
            return written;
        }
        let within = self.within;
        let end = self.end.get_or_insert_with(|| Box::pin(sleep(within)));
        end.as_mut().poll(context).map(|()| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the client took nothing of its answer in time"))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadDeadline<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.seen(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.seen(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.seen(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.seen(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::{sleep, timeout},
    };

    use super::ReadDeadline;

    const WITHIN: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_let_go_and_who_takes_little_is_not() {
        let (mut client, server) = duplex(16);
        let mut server = ReadDeadline::new(server, WITHIN);
        // Data that is read at once, or written after an idle hour, is not late.
        server.write_all(&[0; 16]).await.unwrap();
        client.read_exact(&mut [0; 16]).await.unwrap();
        sleep(WITHIN * 60).await;
        let writing = tokio::spawn(async move {
            let written = server.write_all(&[0; 64]).await;
            (server, written)
        });
        for _ in 0..48 {
            sleep(WITHIN - Duration::from_secs(1)).await;
            client.read_u8().await.unwrap();
        }
        let (mut server, written) = writing.await.unwrap();
        written.unwrap();
        let late = timeout(WITHIN + Duration::from_secs(1), server.write_all(&[0; 64])).await;
        assert_eq!(late.expect("it waits for ever").unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
