//! Client identity, as far as fair scheduling needs it: same client or another.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
};

use hanzo_engine_runtime::ClientId;
use tonic::Request;

use crate::{error::Error, limits::CLIENT_ID_BYTES_MAX};

/// Hashes client names to numbers. The hash key is random per process, so that no client can choose a name that
/// collides with another's.
#[derive(Default)]
pub(crate) struct Clients(RandomState);

impl Clients {
    /// Identifies the client: the name in the request, else the peer's address. `None` if the call comes from this
    /// process without a name.
    ///
    /// # Errors
    /// [`Error::Field`] if the name is too long.
    pub(crate) fn of<T>(&self, request: &Request<T>, name: &str) -> Result<Option<ClientId>, Error> {
        if name.len() > CLIENT_ID_BYTES_MAX {
            let reason = format!("must have at most {CLIENT_ID_BYTES_MAX} bytes, not {}", name.len());
            return Err(Error::field("client", reason));
        }
        let peer = || request.remote_addr().map(|address| self.peer(address.ip()));
        let named = (!name.is_empty()).then(|| ClientId(self.0.hash_one((1_u8, name))));
        Ok(named.or_else(peer))
    }

    fn peer(&self, address: IpAddr) -> ClientId {
        ClientId(self.0.hash_one((0_u8, address)))
    }
}

#[cfg(test)]
mod tests {
    use tonic::transport::server::TcpConnectInfo;

    use super::*;

    #[test]
    fn a_name_goes_before_an_address() {
        let clients = Clients::default();
        let of = |name: Option<&str>, address: Option<&str>| {
            let mut request = Request::new(());
            if let Some(address) = address {
                let remote_addr = Some(address.parse().unwrap());
                request.extensions_mut().insert(TcpConnectInfo { local_addr: None, remote_addr });
            }
            clients.of(&request, name.unwrap_or_default())
        };
        assert_eq!(of(None, None).unwrap(), None);
        let (a, b) = (of(Some("a"), None).unwrap(), of(Some("b"), None).unwrap());
        assert!(a.is_some() && a != b);
        assert_eq!(of(Some("a"), Some("10.0.0.1:9")).unwrap(), a);
        let peer = of(None, Some("10.0.0.1:9")).unwrap();
        assert_eq!(of(None, Some("10.0.0.1:10")).unwrap(), peer, "another connection of the same machine");
        assert!(peer.is_some() && peer != of(None, Some("10.0.0.2:9")).unwrap());
        assert!(matches!(of(Some(&"x".repeat(1000)), None), Err(Error::Field { .. })));
    }
}
