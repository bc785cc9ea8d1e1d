//! Check of the `Host` header on the loopback, against DNS rebinding. A web page may let its own host name
//! point to 127.0.0.1, so that the browser takes this server for the page's own. Only the name in `Host`
//! reveals it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderMap, Uri, header, uri::Authority};

use crate::error::ApiError;

/// Accepted hosts.
#[derive(Debug)]
pub(crate) enum Hosts {
    /// Any host.
    Any,
    /// Loopback of this machine, and these names.
    Loopback(Vec<String>),
}

impl Hosts {
    /// Accepted hosts of a server at `address`; `allowed` are the operator's names.
    pub(crate) fn of(address: Option<IpAddr>, allowed: &[String]) -> Hosts {
        let loopback = address.is_some_and(|ip| ip.is_loopback());
        if !loopback && allowed.is_empty() {
            return Hosts::Any;
        }
        Hosts::Loopback(allowed.iter().map(|name| plain(name)).collect())
    }

    /// Refuses a request to another host. A request without a host comes from no browser and passes.
    ///
    /// # Errors
    /// 403.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let Hosts::Loopback(names) = self else { return Ok(()) };
        let of_uri = uri.authority().map(Authority::as_str);
        let of_headers = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("?"));
        match of_uri.into_iter().chain(of_headers).find(|host| !is_allowed(host, names)) {
            None => Ok(()),
            Some(host) => Err(ApiError::host(host)),
        }
    }
}

/// Name without port, in lower case, for comparison.
fn plain(host: &str) -> String {
    let host = match host.rsplit_once(':') {
        Some((name, port)) if !name.ends_with(':') && port.bytes().all(|b| b.is_ascii_digit()) => {
            // An IPv6 address without brackets has no port.
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    };
    host.trim_end_matches('.').to_ascii_lowercase()
}

fn is_allowed(host: &str, names: &[String]) -> bool {
    is_loopback(host) || names.contains(&plain(host))
}

/// Whether a host, with or without a port, is this machine's loopback.
fn is_loopback(host: &str) -> bool {
    let name = plain(host);
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&name);
    name == "localhost"
        || name.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
        || bare.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::{is_allowed, plain};

    #[test]
    fn this_machine_and_configured_names_are_answered_to() {
        let names = [plain("Engine.lan"), plain("10.1.2.3")];
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "127.0.0.1",
            "127.0.0.1:36900",
            "127.9.9.9",
            "[::1]",
            "[::1]:80",
            "engine.lan",
            "engine.LAN:443",
            "10.1.2.3:1",
        ] {
            assert!(is_allowed(host, &names), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:36900",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil@localhost",
            "localhost:x",
            "10.1.2.4",
            "[::2]",
            "0.0.0.0",
            "",
            ":80",
            "?",
            "localhost:80:80",
            "169.254.1.1",
        ] {
            assert!(!is_allowed(host, &names), "{host}");
        }
    }
}
