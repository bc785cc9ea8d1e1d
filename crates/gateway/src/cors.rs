//! CORS headers for web pages of the origins in `cors_origins`. A page sends its key itself, so browser
//! credentials are not enabled. `track` refuses pages of other origins.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};

use crate::limits::{CORS_MAX_AGE_S, CORS_ORIGINS_MAX};

const ANY: &str = "*";
const METHODS: &str = "GET, POST, DELETE, OPTIONS";
/// Response headers that a page may read.
const EXPOSED: &str = "x-request-id, x-hanzo-sent-to, mcp-session-id, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, \
                       x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, \
                       x-ratelimit-reset-tokens";

/// Checks that each entry is an origin as browsers write it.
///
/// # Errors
/// The setting, and what is wrong.
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

/// Whether a text is an origin. Browser extensions and desktop programs have other schemes, such as
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

/// Value of `Access-Control-Allow-Origin` for an allowed page.
#[derive(Debug, Clone)]
pub(crate) struct AllowedOrigin(HeaderValue);

impl AllowedOrigin {
    /// Checks the origin of a request. None: it is not allowed, or the request names none.
    pub(crate) fn of(origins: &[String], headers: &HeaderMap) -> Option<AllowedOrigin> {
        let origin = headers.get(header::ORIGIN)?;
        let named = origins.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin.as_bytes()));
        match () {
            () if named => Some(AllowedOrigin(origin.clone())),
            () if origins.iter().any(|allowed| allowed == ANY) => {
                Some(AllowedOrigin(HeaderValue::from_static(ANY)))
            }
            () => None,
        }
    }

    /// Response to a CORS preflight request. None: the request is no preflight.
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

    /// Adds the CORS headers to a response.
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
}
