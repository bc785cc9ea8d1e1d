//! Addresses of daemons: parsing of `upstreams`, and resolution of names.

use std::{future::Future, io, net::SocketAddr, pin::Pin};

use futures_util::future::select_ok;
use serde::{Deserialize, Deserializer};
use tokio::{net::TcpStream, time::timeout};

use crate::limits::{FAMILY_TIMEOUT, MEMBERS_MAX, RESOLVE_EVERY};

/// Default gRPC port.
const PORT: u16 = 36901;

/// Resolver of host names.
pub trait Resolve: Send + Sync + 'static {
    /// Addresses of a host with that port, preferred ones first.
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

    /// Resolves when names are to be looked up again.
    fn again(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(tokio::time::sleep(RESOLVE_EVERY))
    }
}

/// Resolver of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// Entry of `upstreams`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Upstream {
    /// Single daemon at a URI that needs no lookup: an IP address, `localhost`, or a Unix socket.
    Fixed(String),
    /// Name whose every address is a daemon.
    Name { tls: bool, host: String, port: u16 },
}

/// Address of one daemon.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DaemonAddress {
    /// Name in metrics and logs: `HOST:PORT` or `unix:PATH`.
    pub(crate) name: String,
    /// URI to connect to. Its host is the expected name of a certificate.
    pub(crate) uri: String,
    /// Address to connect to instead of resolving the URI's host.
    pub(crate) at: Option<SocketAddr>,
}

impl Upstream {
    /// Parses `HOST[:PORT]`, `http://…`, `https://…`, `dns://…`, `dns:///…` or `unix:PATH`.
    ///
    /// # Errors
    /// Description of the fault.
    pub(crate) fn parse(text: &str) -> Result<Upstream, String> {
        let expected = || {
            format!(
                "{text}: expected HOST:PORT, http://HOST:PORT, https://HOST:PORT, dns://NAME:PORT or unix:PATH"
            )
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(expected()) } else { Ok(Upstream::Fixed(text.to_owned())) };
        }
        let (scheme, rest) = match text.split_once("://") {
            Some(("dns", rest)) => ("dns", rest.strip_prefix('/').unwrap_or(rest)),
            Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
            Some(_) => return Err(expected()),
            None => ("http", text),
        };
        let authority: tonic::codegen::http::uri::Authority =
            rest.trim_end_matches('/').parse().map_err(|_| expected())?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(expected());
        }
        // A colon must be followed by a port.
        let (host, port) = (authority.host().to_owned(), authority.port_u16());
        if port.is_none() && authority.as_str() != host {
            return Err(expected());
        }
        let port = port.unwrap_or(PORT);
        let tls = scheme == "https";
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let address = bare.parse::<std::net::IpAddr>().is_ok();
        if scheme != "dns" && (address || host.eq_ignore_ascii_case("localhost")) {
            return Ok(Upstream::Fixed(format!("{scheme}://{host}:{port}")));
        }
        if address {
            return Ok(Upstream::Fixed(format!("http://{host}:{port}")));
        }
        Ok(Upstream::Name { tls, host, port })
    }

    /// Whether TLS is used.
    pub(crate) fn tls(&self) -> bool {
        match self {
            Upstream::Fixed(uri) => uri.starts_with("https://"),
            Upstream::Name { tls, .. } => *tls,
        }
    }

    /// Current daemons. A daemon may have an IPv4 and an IPv6 address, so only one family is used. It is that
    /// of the first address, or the other one if nothing answers at the first.
    pub(crate) async fn places(&self, resolver: &dyn Resolve) -> io::Result<Vec<DaemonAddress>> {
        let (tls, host, port) = match self {
            Upstream::Fixed(uri) => {
                let name = uri.split_once("://").map_or(uri.as_str(), |(_, rest)| rest);
                return Ok(vec![DaemonAddress { name: name.to_owned(), uri: uri.clone(), at: None }]);
            }
            Upstream::Name { tls, host, port } => (*tls, host, *port),
        };
        let found = resolver.resolve(host, port).await?;
        let first_is_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
        let (first, other): (Vec<SocketAddr>, Vec<SocketAddr>) =
            found.into_iter().partition(|at| at.is_ipv6() == first_is_v6);
        let other_alone = !other.is_empty() && !any_answers(&first).await && any_answers(&other).await;
        let family = if other_alone { other } else { first };
        Ok(family
            .into_iter()
            .take(MEMBERS_MAX)
            .map(|at| match tls {
                // The certificate is checked against the name.
                true => DaemonAddress {
                    name: at.to_string(),
                    uri: format!("https://{host}:{port}"),
                    at: Some(at),
                },
                false => DaemonAddress { name: at.to_string(), uri: format!("http://{at}"), at: None },
            })
            .collect())
    }
}

/// Whether any of the addresses accepts a connection.
async fn any_answers(addresses: &[SocketAddr]) -> bool {
    let connects = addresses.iter().take(MEMBERS_MAX).map(|at| Box::pin(TcpStream::connect(*at)));
    matches!(timeout(FAMILY_TIMEOUT, select_ok(connects)).await, Ok(Ok(_)))
}

/// Reads a list, or a text with commas.
pub(crate) fn one_or_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        One(String),
        List(Vec<String>),
    }
    let written = match Written::deserialize(deserializer)? {
        Written::One(text) => vec![text],
        Written::List(list) => list,
    };
    let entries = written.iter().flat_map(|text| text.split(',')).map(str::trim);
    Ok(entries.filter(|entry| !entry.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::Upstream;

    fn name(tls: bool, host: &str, port: u16) -> Upstream {
        Upstream::Name { tls, host: host.to_owned(), port }
    }

    #[test]
    fn an_upstream_is_an_address_a_name_or_a_socket() {
        let fixed = |uri: &str| Upstream::Fixed(uri.to_owned());
        for (text, expected) in [
            ("10.0.0.1:7", fixed("http://10.0.0.1:7")),
            ("http://10.0.0.1:7", fixed("http://10.0.0.1:7")),
            ("https://[::1]:7/", fixed("https://[::1]:7")),
            ("10.0.0.1", fixed("http://10.0.0.1:36901")),
            ("localhost:5", fixed("http://localhost:5")),
            ("unix:/run/engine.sock", fixed("unix:/run/engine.sock")),
            ("dns://engines:7", name(false, "engines", 7)),
            ("dns:///engines.default.svc", name(false, "engines.default.svc", 36901)),
            ("engines:7", name(false, "engines", 7)),
            ("http://engines:7", name(false, "engines", 7)),
            ("https://engines:7", name(true, "engines", 7)),
        ] {
            assert_eq!(Upstream::parse(text), Ok(expected), "{text}");
        }
        for wrong in
            ["", "ftp://x:1", "unix:", "http://", "a b:1", "http://u@x:1", "x:99999", "http://x:1/path"]
        {
            assert!(Upstream::parse(wrong).is_err(), "{wrong}");
        }
    }
}
