//! Connections of a port: bounded in number, with TLS if it is on, and closed if the client stays silent.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, mpsc},
    time::sleep,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::{
    crowd::{Crowd, Idle},
    guesses::client_of,
    opening::OpeningStream,
    rate::locked,
    tls::ServerTls,
};

/// Pause after a failed accept, which means that the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bounds of a port.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum connections at once. When the port is nearly full, idle ones are evicted; further ones wait in
    /// the listener's backlog.
    pub connections_max: usize,
    /// Maximum connections of one address; more are closed. Loopback addresses have no such limit, because a
    /// proxy may connect from there.
    pub of_address_max: usize,
    /// Time for the TLS handshake, and again for the first bytes after it.
    pub first: Duration,
}

/// Accepted connection. Counts against the limits until dropped.
#[derive(Debug)]
pub struct Connection {
    stream: OpeningStream<Stream>,
    from: SocketAddr,
    permit: Permit,
}

/// Transport of a connection.
#[derive(Debug)]
pub enum Stream {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Place among the connections of a port and of its address. Dropping it frees both.
#[derive(Debug)]
pub struct Permit {
    _place: OwnedSemaphorePermit,
    address: Option<IpAddr>, // None: the address has no limit
    addresses: Addresses,
    crowd: Crowd,
}

/// Number of connections of each address.
type Addresses = Arc<Mutex<HashMap<IpAddr, usize>>>;

impl Permit {
    /// Takes a place of the address. None: the address has reached its limit.
    fn of(
        place: OwnedSemaphorePermit,
        from: IpAddr,
        addresses: &Addresses,
        of_address_max: usize,
        crowd: Crowd,
    ) -> Option<Permit> {
        let address = Some(client_of(from)).filter(|address| !address.is_loopback());
        if let Some(address) = address {
            let mut counts = locked(addresses);
            let count = counts.entry(address).or_insert(0);
            if *count >= of_address_max {
                return None;
            }
            *count += 1;
        }
        Some(Permit { _place: place, address, addresses: Arc::clone(addresses), crowd })
    }

    /// Marks the connection as idle until the result is dropped. While the port is nearly full, it may be asked
    /// to leave.
    pub fn idle(&self) -> Idle {
        self.crowd.idle()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(address) = self.address else { return };
        let mut counts = locked(&self.addresses);
        let left = counts.get_mut(&address).map(|count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == Some(0) {
            counts.remove(&address);
        }
    }
}

impl Connection {
    /// Address of the client.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Splits the connection, for callers that manage the socket themselves.
    pub fn into_parts(self) -> (Stream, Permit) {
        (self.stream.into_inner(), self.permit)
    }
}

/// Accepts connections on `listener` until the receiver is dropped. Must run in an async runtime.
pub fn connections(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    limits: Limits,
) -> mpsc::Receiver<Connection> {
    connections_until(listener, tls, limits, std::future::pending())
}

/// Like [`connections`], but accepts nothing after `stop` resolves. The receiver ends after the connections
/// accepted before.
pub fn connections_until(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    limits: Limits,
    stop: impl Future<Output = ()> + Send + 'static,
) -> mpsc::Receiver<Connection> {
    let (accepted, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        // A second sender, to notice that the receiver is dropped while `accept` owns the first.
        let closed = accepted.clone();
        tokio::select! {
            () = closed.closed() => {}
            () = accept(listener, tls, limits, accepted, stop) => {}
        }
    });
    receiver
}

async fn accept(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    limits: Limits,
    accepted: mpsc::Sender<Connection>,
    stop: impl Future<Output = ()>,
) {
    let mut stop = std::pin::pin!(stop);
    let (crowd, addresses) = (Crowd::new(limits.connections_max), Addresses::default());
    loop {
        let place = tokio::select! {
            () = &mut stop => return,
            place = crowd.place() => place,
        };
        let connected = tokio::select! {
            biased;
            () = &mut stop => return,
            connected = listener.accept() => connected,
        };
        let (stream, from) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                // Trying again at once would busy-loop.
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(permit) = Permit::of(place, from.ip(), &addresses, limits.of_address_max, crowd.clone())
        else {
            tracing::debug!(%from, "this address has as many connections as it may");
            continue;
        };
        // Tokens are small writes that must not wait for each other.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let accepted = accepted.clone();
        let (hurry, crowd) = (crowd.clone(), crowd.clone());
        let connection = move |stream| Connection {
            stream: OpeningStream::before(stream, limits.first, crowd),
            from,
            permit,
        };
        let Some(tls) = &tls else {
            if accepted.send(connection(Stream::Plain(stream))).await.is_err() {
                return;
            }
            continue;
        };
        // In a task, because a client may take long for its handshake.
        let shaking = TlsAcceptor::from(tls.config()).accept(stream);
        tokio::spawn(async move {
            tokio::select! {
                shaken = shaking => match shaken {
                    Ok(stream) => {
                        // An error means that the receiver is gone.
                        let _ = accepted.send(connection(Stream::Tls(Box::new(stream)))).await;
                    }
                    Err(error) => tracing::debug!(%from, %error, "a TLS handshake failed"),
                },
                () = hurry.within(limits.first) => tracing::debug!(%from, "a TLS handshake took too long"),
            }
        });
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
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

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo { local_addr: None, remote_addr: Some(self.from) }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};

    use super::*;

    #[tokio::test]
    async fn an_address_has_so_many_connections() {
        let (crowd, addresses) = (Crowd::new(8), Addresses::default());
        let take = async |from: &str| {
            let place = crowd.place().await;
            Permit::of(place, from.parse().unwrap(), &addresses, 2, crowd.clone())
        };
        let held = [take("192.0.2.1").await, take("192.0.2.1").await];
        assert!(held.iter().all(Option::is_some) && take("192.0.2.1").await.is_none());
        // An IPv6 network has the limit of one address.
        let network = [take("2001:db8::1").await, take("2001:db8::2").await];
        assert!(network.iter().all(Option::is_some) && take("2001:db8::3").await.is_none());
        let near = [take("127.0.0.1").await, take("127.0.0.1").await, take("::1").await];
        assert!(near.iter().all(Option::is_some));
        drop(held);
        assert!(take("192.0.2.1").await.is_some());
        drop((network, near));
        assert!(locked(&addresses).is_empty() && crowd.free() == 8);
    }

    #[tokio::test]
    async fn a_port_bears_so_many_connections_and_the_next_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { connections_max: 2, of_address_max: 1, first: Duration::from_secs(60) };
        let mut accepted = connections(listener, None, limits);
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let (long, short) = (Duration::from_secs(20), Duration::from_millis(100));
        let first = timeout(long, accepted.recv()).await.unwrap().unwrap();
        let _second = timeout(long, accepted.recv()).await.unwrap().unwrap();
        assert!(timeout(short, accepted.recv()).await.is_err());
        drop(first);
        assert!(timeout(long, accepted.recv()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn first_words_are_waited_for_so_long() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { connections_max: 2, of_address_max: 1, first: Duration::from_millis(50) };
        let mut accepted = connections(listener, None, limits);
        let _client = TcpStream::connect(address).await.unwrap();
        let mut connection = accepted.recv().await.unwrap();
        let read = timeout(Duration::from_secs(20), connection.read_u8()).await;
        let error = read.expect("it waits for ever").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
