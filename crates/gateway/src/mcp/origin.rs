//! Which web pages may ask: the protocol wants `Origin` looked at, because a page of anyone's may be made to talk to a server
//! on this machine (DNS rebinding). `crate::hosts` looks at the name that it is asked as.

use axum::http::{HeaderMap, Uri, header};

use crate::{config::Config, error::ApiError, hosts::is_loopback};

/// Refuses a page that is neither of this server's own origin, nor of one in `cors_origins`, nor, where the server is on the
/// loopback, of this machine. Who sends no origin is no page.
///
/// # Errors
/// 403.
pub(super) fn check(config: &Config, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let local = config.address().is_some_and(|ip| ip.is_loopback());
    match origin.to_str() {
        Ok(origin) if is_allowed(origin, host, local, &config.cors_origins) => Ok(()),
        Ok(origin) => Err(ApiError::origin(origin)),
        Err(_) => Err(ApiError::origin("?")),
    }
}

fn is_allowed(origin: &str, host: Option<&str>, local: bool, allowed: &[String]) -> bool {
    if allowed.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin)) {
        return true;
    }
    let Ok(uri) = origin.parse::<Uri>() else { return false };
    let page = uri.scheme_str().is_some_and(|scheme| matches!(scheme, "http" | "https"));
    let Some(authority) = uri.authority().filter(|_| page) else { return false };
    let same = host.is_some_and(|host| host.eq_ignore_ascii_case(authority.as_str()));
    same || local && is_loopback(authority.as_str())
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn pages_of_this_machine_of_this_server_and_of_the_list() {
        let listed = ["https://chat.example.com".to_owned()];
        for (origin, host, local, allowed) in [
            ("http://localhost:3000", None, true, true),
            ("http://127.0.0.1", None, true, true),
            ("http://[::1]:80", None, true, true),
            ("http://localhost:3000", None, false, false),
            ("http://engine.lan:36900", Some("engine.lan:36900"), false, true),
            ("http://engine.lan", Some("engine.lan:36900"), false, false),
            ("https://chat.example.com", None, true, true),
            ("https://chat.example.com:444", None, true, false),
            ("http://evil.example", Some("localhost:36900"), true, false),
            ("http://localhost.evil.example", None, true, false),
            ("http://evil@localhost", None, true, false),
            ("null", None, true, false),
            ("file://", None, true, false),
            ("", None, true, false),
        ] {
            assert_eq!(is_allowed(origin, host, local, &listed), allowed, "{origin} {host:?} {local}");
        }
        assert!(is_allowed("http://evil.example", None, true, &["*".to_owned()]));
    }
}
