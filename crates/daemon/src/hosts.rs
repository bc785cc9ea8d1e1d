//! Check of the `Host` header while the admin port listens on a loopback address. A web page may point its own name
//! to 127.0.0.1 and have the browser send requests there (DNS rebinding); the name in `Host` reveals that. The
//! gateway's HTTP does the same.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use axum::{
    Json,
    extract::{Request, State},
    http::{Method, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use hanzo_engine_access::check_origin;
use serde_json::json;

use crate::config::ServerConfig;

/// Names that are accepted; `None` accepts any.
pub(crate) type Hosts = Option<Arc<[String]>>;

/// Accepted names of a server that listens as `config` says.
pub(crate) fn of(config: &ServerConfig) -> Hosts {
    let loopback = config.ip().is_some_and(|ip| ip.is_loopback());
    let names = config.allowed_hosts.iter().map(|name| name.to_ascii_lowercase());
    (loopback || !config.allowed_hosts.is_empty()).then(|| names.collect())
}

/// Answers 403 to requests for other hosts. A request without a host is accepted, since no browser sends one.
pub(crate) async fn check(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let Some(names) = hosts else { return next.run(request).await };
    let of_uri = request.uri().authority().map(Authority::as_str);
    let of_headers = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("?"));
    if of_uri.into_iter().chain(of_headers).all(|host| is_allowed(host, &names)) {
        return next.run(request).await;
    }
    let error = "this server listens on the loopback and answers only to localhost and addresses of it; allow other names with server.allowed_hosts";
    (StatusCode::FORBIDDEN, Json(json!({"error": error}))).into_response()
}

/// Answers 403 to requests from web pages of other origins, unless they only read.
pub(crate) async fn check_page(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if reads || check_origin(&[], request.uri(), request.headers()).is_ok() {
        return next.run(request).await;
    }
    let error = "the admin port takes nothing from web pages of other origins; only the gateway allows some, with cors_origins";
    (StatusCode::FORBIDDEN, Json(json!({"error": error}))).into_response()
}

fn is_allowed(host: &str, names: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    !host.contains('@')
        && (name == "localhost"
            || name.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
            || bare.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback())
            || names.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn this_machine_and_configured_names_are_answered_to() {
        let names = ["engine.lan".to_owned()];
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:36902", "127.1.2.3", "[::1]:9", "Engine.lan:1"] {
            assert!(is_allowed(host, &names), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:1", "x@localhost", "10.0.0.1", "[::2]", ""] {
            assert!(!is_allowed(host, &names), "{host}");
        }
    }
}
