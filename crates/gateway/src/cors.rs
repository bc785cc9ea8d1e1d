//! CORS: the answers to pages of origins that `cors_origins` lists. A key is sent by the page itself, so credentials that a
//! browser would add by itself are not asked for. `track` refuses pages of other origins.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};

use crate::limits::{CORS_MAX_AGE_S, CORS_ORIGINS_MAX};

const ANY: &str = "*";
const METHODS: &str = "GET, POST, DELETE, OPTIONS";
/// What SDKs send from browsers; a page may send any header that it names.
const EXPOSED: &str = "x-request-id, x-hanzo-sent-to, mcp-session-id, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, \
                       x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, \
                       x-ratelimit-reset-tokens";

/// Whether each is an origin as browsers write them.
///
/// # Errors
/// The setting, and what is wrong with one.
pub(crate) fn check(origins: &[String]) -> Result<(), String> {
    if origins.len() > CORS_ORIGINS_MAX {
        return Err(format!("cors_origins: has {}, at most {CORS_ORIGINS_MAX}", origins.len()));
    }
    match origins.iter().find(|origin| !is_origin(origin)) {
        Some(_) => {
            Err("cors_origins: each must be such as https://chat.example.com, without a path; or *"
                .to_owned())
        }
        None => Ok(()),
    }
}

/// Whether a text is an origin. Browser extensions and desktop programs have schemes of their own, such as
/// `chrome-extension://ID` and `tauri://localhost`.
fn is_origin(origin: &str) -> bool {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    };
    let is_host = |host: &str| {
        host.bytes().all(|b| b.is_ascii_graphic() && !b"/*?#@,".contains(&b)) && !host.is_empty()
    };
    origin == ANY || origin.split_once("://").is_some_and(|(scheme, host)| is_scheme(scheme) && is_host(host))
}

/// A page of an origin that may ask; None: it may not, or nobody says that it is a page.
#[derive(Debug, Clone)]
pub(crate) struct Allowed(HeaderValue);

impl Allowed {
    /// Whose page sends a request.
    pub(crate) fn of(origins: &[String], headers: &HeaderMap) -> Option<Allowed> {
        let origin = headers.get(header::ORIGIN)?;
        let named = origins.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin.as_bytes()));
        match () {
            () if named => Some(Allowed(origin.clone())),
            () if origins.iter().any(|allowed| allowed == ANY) => {
                Some(Allowed(HeaderValue::from_static(ANY)))
            }
            () => None,
        }
    }

    /// The answer to a browser that asks whether the page may ask; None where it does not.
    pub(crate) fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response> {
        if method != Method::OPTIONS || !headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        let mut response = (StatusCode::NO_CONTENT, Body::empty()).into_response();
        let allowed = response.headers_mut();
        allowed.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        if let Some(asked) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            allowed.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        allowed.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(CORS_MAX_AGE_S));
        Some(response)
    }

    /// Lets the page read an answer.
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
}
