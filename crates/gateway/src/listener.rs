//! Listening socket: the gateway's own, or one that systemd holds while gateways are replaced.

use std::net::SocketAddr;

use hanzo_engine_process::systemd;
use tokio::net::TcpListener;

use crate::{config::Config, error::GatewayError};

/// Listening socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
    /// Whether another process will accept from it after this gateway.
    pub(crate) is_shared: bool,
}

/// Uses systemd's socket if there is one, instead of binding `address`.
///
/// # Errors
/// [`GatewayError`] if the address is in use, or if systemd's socket is reachable from other machines without
/// keys or `insecure`.
pub(crate) async fn bind(config: &Config, address: SocketAddr) -> Result<Socket, GatewayError> {
    let failed = |source| GatewayError::Bind { address, source };
    let given = systemd::listener().map_err(failed)?;
    let is_shared = given.is_some();
    let listener = match given {
        Some(listener) => TcpListener::from_std(listener).map_err(failed)?,
        None => TcpListener::bind(address).await.map_err(failed)?,
    };
    let address = listener.local_addr().map_err(failed)?;
    // The same rules as for a configured address: other machines need a key.
    Config { host: address.ip().to_string(), ..config.clone() }.checked()?;
    Ok(Socket { listener, address, is_shared })
}
