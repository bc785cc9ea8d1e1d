//! Check of requests that web pages send. A page of any site can make a browser send a simple POST to a local
//! server. No preflight is sent, so CORS alone does not stop it. A browser names the page in `Origin` and its
//! relation to the server in `Sec-Fetch-Site`. The gateway and the daemon's admin port check both here, before
//! they read a body.

use http::{HeaderMap, HeaderValue, Uri, header, uri::Authority};

const SEC_FETCH_SITE: &str = "sec-fetch-site";
const ANY: &str = "*";

/// Web page that may not send requests to this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignPage {
    /// Origin of the page as the browser sent it; None: the browser named none.
    pub origin: Option<String>,
}

/// Refuses requests of pages of a foreign origin. Pages of the server's own origin and of the `allowed` origins
/// (`*`: all) may send requests. A client that sends neither header is no browser and passes.
///
/// # Errors
/// The page that may not.
pub fn check_origin(allowed: &[String], uri: &Uri, headers: &HeaderMap) -> Result<(), ForeignPage> {
    if allowed.iter().any(|allowed| allowed == ANY) {
        return Ok(());
    }
    let site = site(headers);
    let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
    if origins.peek().is_none() {
        return match site {
            Site::Unsaid | Site::Typed | Site::Own => Ok(()),
            Site::Foreign => Err(ForeignPage { origin: None }),
        };
    }
    let host = uri.authority().map(Authority::as_str);
    let host = host.or_else(|| headers.get(header::HOST).and_then(|host| host.to_str().ok()));
    for origin in origins {
        if !may_send(origin, host, site, allowed) {
            let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
            return Err(ForeignPage { origin: Some(origin) });
        }
    }
    Ok(())
}

/// Relation of a page to the server, as the browser states it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Site {
    /// No header: the client is no browser, or an old one.
    Unsaid,
    /// No page: the user typed the address.
    Typed,
    /// Page of this server.
    Own,
    /// Page of another site, or of another port or scheme of this site.
    Foreign,
}

fn site(headers: &HeaderMap) -> Site {
    let mut values = headers.get_all(SEC_FETCH_SITE).iter().map(HeaderValue::as_bytes);
    match (values.next(), values.next()) {
        (None, _) => Site::Unsaid,
        (Some(b"none"), None) => Site::Typed,
        (Some(b"same-origin"), None) => Site::Own,
        _ => Site::Foreign,
    }
}

fn may_send(origin: &HeaderValue, host: Option<&str>, site: Site, allowed: &[String]) -> bool {
    let Ok(origin) = origin.to_str() else { return false };
    if allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) {
        return true;
    }
    let Some(page) = Address::of_origin(origin) else { return false };
    match site {
        // A proxy may pass on another `Host` than the page's; the browser knows which one it asked.
        Site::Own => true,
        Site::Foreign => false,
        Site::Unsaid | Site::Typed => {
            host.and_then(|host| Address::of_host(host, page.default_port)) == Some(page)
        }
    }
}

/// Host and port of a page's origin, or of the server as the client named it.
#[derive(Debug, PartialEq)]
struct Address {
    host: String,
    port: u16,
    /// Default port of the page's scheme.
    default_port: u16,
}

impl Address {
    /// Parses an HTTP origin. None: `null`, another scheme, or no origin.
    fn of_origin(origin: &str) -> Option<Address> {
        let (scheme, authority) = origin.split_once("://")?;
        let default_port = match scheme.to_ascii_lowercase().as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        Address::of_host(authority, default_port)
    }

    fn of_host(host: &str, default_port: u16) -> Option<Address> {
        let authority: Authority = host.parse().ok()?;
        if host.contains('@') || authority.host().is_empty() {
            return None;
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.host().len() == host.len() => default_port,
            None => return None,
        };
        Some(Address { host: authority.host().to_ascii_lowercase(), port, default_port })
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Uri};

    use super::check_origin;

    /// Whether a request with these headers passes; a space separates names from values.
    fn passes(allowed: &[&str], uri: &str, headers: &[(&'static str, &str)]) -> bool {
        let allowed: Vec<String> = allowed.iter().map(|&origin| origin.to_owned()).collect();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        check_origin(&allowed, &uri.parse::<Uri>().unwrap(), &map).is_ok()
    }

    #[test]
    fn clients_without_an_origin_pass_and_foreign_sites_do_not() {
        assert!(passes(&[], "/", &[]));
        assert!(passes(&[], "/", &[("host", "engine.lan")]));
        for (site, is_own) in [
            ("same-origin", true),
            ("none", true),
            ("same-site", false),
            ("cross-site", false),
            ("Same-Origin", false),
            ("", false),
        ] {
            assert_eq!(passes(&[], "/", &[("sec-fetch-site", site)]), is_own, "{site}");
        }
        let both = [("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")];
        assert!(!passes(&[], "/", &both));
    }

    #[test]
    fn an_origin_is_the_servers_own_or_a_listed_one() {
        for (origin, host, is_own) in [
            ("http://localhost:36900", "localhost:36900", true),
            ("HTTP://LOCALHOST:36900", "localhost:36900", true),
            ("http://engine.lan", "engine.lan", true),
            ("http://engine.lan", "engine.lan:80", true),
            ("https://engine.lan", "engine.lan:443", true),
            ("https://engine.lan:443", "engine.lan", true),
            ("http://[::1]:9", "[::1]:9", true),
            ("https://engine.lan", "engine.lan:80", false),
            ("http://engine.lan", "engine.lan:36900", false),
            ("http://localhost:3000", "localhost:36900", false),
            ("http://127.0.0.1:36900", "localhost:36900", false),
            ("http://evil.example", "localhost:36900", false),
            ("http://localhost.evil.example:36900", "localhost:36900", false),
            ("http://evil@localhost:36900", "localhost:36900", false),
            ("ftp://localhost:36900", "localhost:36900", false),
            ("file://", "localhost:36900", false),
            ("null", "localhost:36900", false),
            ("null", "null", false),
            ("", "localhost:36900", false),
            ("http://localhost:99999", "localhost:99999", false),
        ] {
            assert_eq!(passes(&[], "/", &[("origin", origin), ("host", host)]), is_own, "{origin} {host}");
            assert_eq!(
                passes(&[], &format!("http://{host}/x"), &[("origin", origin)]),
                is_own,
                "{origin} {host}"
            );
            let refused = [("origin", origin), ("host", host), ("sec-fetch-site", "cross-site")];
            assert!(!passes(&[], "/", &refused), "{origin}");
            assert!(passes(&["*"], "/", &refused), "{origin}");
        }
        let listed = ["https://chat.example.com", "app://x"];
        for (origin, is_listed) in [
            ("https://chat.example.com", true),
            ("https://Chat.Example.com", true),
            ("app://x", true),
            ("http://chat.example.com", false),
            ("https://chat.example.com:444", false),
            ("https://chat.example.com.evil.example", false),
        ] {
            for site in ["cross-site", "same-site"] {
                let headers = [("origin", origin), ("host", "localhost"), ("sec-fetch-site", site)];
                assert_eq!(passes(&listed, "/", &headers), is_listed, "{origin} {site}");
            }
        }
        let two = [("origin", "https://chat.example.com"), ("origin", "https://evil.example")];
        assert!(!passes(&listed, "/", &two));
    }

    #[test]
    fn a_proxy_that_changes_the_host_keeps_the_servers_own_page() {
        let own = |origin, site| {
            passes(&[], "/", &[("origin", origin), ("host", "10.0.0.1:36900"), ("sec-fetch-site", site)])
        };
        assert!(own("https://engine.example.com", "same-origin"));
        assert!(!own("null", "same-origin"));
        assert!(!own("https://engine.example.com", "none"));
    }
}
