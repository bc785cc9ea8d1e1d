//! The socket that the gateway accepts from: its own, or one that systemd listens on and holds while gateways come and go.

use std::net::SocketAddr;

use hanzo_engine_process::systemd;
use tokio::net::TcpListener;

use crate::{config::Config, error::GatewayError};

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
    /// Others accept from it after this gateway.
    pub(crate) is_shared: bool,
}

/// That of systemd where it gives one, which goes before `address`; else one at `address`.
///
/// # Errors
/// [`GatewayError`] where the address is taken, or systemd's is reached from other machines and nothing says that it may be.
pub(crate) async fn bind(config: &Config, address: SocketAddr) -> Result<Socket, GatewayError> {
    let failed = |source| GatewayError::Bind { address, source };
    let given = systemd::listener().map_err(failed)?;
    let is_shared = given.is_some();
    let listener = match given {
        Some(listener) => TcpListener::from_std(listener).map_err(failed)?,
        None => TcpListener::bind(address).await.map_err(failed)?,
    };
    let address = listener.local_addr().map_err(failed)?;
    // As if it were asked for: other machines need a key.
    Config { host: address.ip().to_string(), ..config.clone() }.checked()?;
    Ok(Socket { listener, address, is_shared })
}
