//! From the bytes of a request to a JSON value: media type, size, time, UTF-8, syntax.

use std::time::Duration;

use axum::{
    body::{Body, HttpBody as _},
    http::{HeaderMap, header},
};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use serde_json::Value;

use crate::{
    app::App,
    error::ApiError,
    fields::Fields,
    limits::{QUOTE_CHARS_MAX, REFUSED_BODY_TIMES_MAX},
};

/// Reads a request's body as a JSON object.
///
/// # Errors
/// 415 for another media type, 413 over the limit, 408 when it does not arrive in time, 400 where it is not a
/// JSON object in UTF-8.
pub(crate) async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Fields, ApiError> {
    media_type(headers)?;
    let timeout_s = app.config.body_timeout_s;
    let reading = tokio::time::timeout(Duration::from_secs(timeout_s), parsed(app, headers, body));
    let body = reading.await.map_err(|_| ApiError::body_timeout(timeout_s))??;
    Fields::of_body(body, app.config.lenient)
}

fn media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let text =
        |name| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim().to_ascii_lowercase());
    // Required, so that a web page cannot post here without asking first (CORS preflight).
    let full = text(header::CONTENT_TYPE)
        .ok_or_else(|| ApiError::media_type("send the header content-type: application/json"))?;
    let (essence, parameters) = full.split_once(';').unwrap_or((&full, ""));
    if essence.trim() != "application/json" {
        return Err(ApiError::media_type(format!(
            "expected content-type: application/json, got {}",
            crate::error::quote(&full)
        )));
    }
    let charset = parameters.split(';').find_map(|p| p.trim().strip_prefix("charset="));
    if charset.is_some_and(|charset| charset.trim_matches('"') != "utf-8") {
        return Err(ApiError::media_type("the body must be UTF-8"));
    }
    if text(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(ApiError::media_type(
            "compressed bodies are not accepted; send it without content-encoding",
        ));
    }
    Ok(())
}

async fn parsed(app: &App, headers: &HeaderMap, mut body: Body) -> Result<Value, ApiError> {
    let bytes_max = app.config.body_bytes_max;
    let announced = body.size_hint().lower();
    if announced > bytes_max as u64 {
        // A client that asked first has sent nothing yet.
        if !headers.contains_key(header::EXPECT) {
            discard(&mut body, bytes_max).await;
        }
        return Err(ApiError::body_too_large(bytes_max));
    }
    let share = body.size_hint().upper().unwrap_or(bytes_max as u64).min(bytes_max as u64);
    let share = u32::try_from(share).unwrap_or(u32::MAX);
    let held = app.bodies.acquire_many(share).await;
    let _held = held.map_err(|_| ApiError::draining())?;
    let mut bytes = BytesMut::with_capacity(announced as usize);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| ApiError::body(format!("the request body broke off: {e}")))?;
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > bytes_max {
            discard(&mut body, bytes_max).await;
            return Err(ApiError::body_too_large(bytes_max));
        }
        bytes.extend_from_slice(data);
    }
    parse(&bytes)
}

/// Reads on for a while, because many clients send all before they read the answer.
async fn discard(body: &mut Body, bytes_max: usize) {
    let mut left = bytes_max.saturating_mul(REFUSED_BODY_TIMES_MAX);
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, |data| data.len());
        if bytes > left {
            return;
        }
        left -= bytes;
    }
}

fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| ApiError::body(format!("the body is not valid UTF-8 at byte {}", e.valid_up_to())))?;
    if text.trim().is_empty() {
        return Err(ApiError::body("the body is empty; expected a JSON object"));
    }
    serde_json::from_str(text).map_err(|e| {
        let problem = format!("the body is not valid JSON: {e}");
        match field_before(text, e.line(), e.column()) {
            Some(field) if e.is_syntax() => ApiError::field(&field, problem),
            _ => ApiError::body(problem),
        }
    })
}

/// The name of the field whose value broke the syntax, such as NaN in `{"temperature": NaN}`. Line and column
/// are serde_json's: from 1, in bytes, of the last byte that was read.
fn field_before(text: &str, line: usize, column: usize) -> Option<String> {
    let start = match line.checked_sub(1)? {
        0 => 0,
        above => text.match_indices('\n').nth(above - 1)?.0 + 1,
    };
    let before = text.get(..start + column.min(text.len() - start))?;
    let value = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.');
    let before = before.trim_end_matches(value).trim_end().strip_suffix(':')?;
    let name = before.trim_end().strip_suffix('"')?;
    let name = &name[name.rfind('"')? + 1..];
    (!name.is_empty() && name.len() <= QUOTE_CHARS_MAX).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue, header};

    use super::{media_type, parse};

    fn check(body: &[u8], param: Option<&str>, says: &str) {
        let error = parse(body).unwrap_err().json()["error"].clone();
        assert_eq!(error["param"].as_str(), param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }

    #[test]
    fn syntax_errors_name_the_field_where_it_can_be_seen() {
        check(br#"{"model":"m","temperature": NaN}"#, Some("temperature"), "JSON");
        check(b"{\"a\":1,\n \"top_p\" : Infinity}", Some("top_p"), "line 2");
        check(br#"{"top_p":-Infinity}"#, Some("top_p"), "JSON");
        check(br#"{"min_p":1e999}"#, Some("min_p"), "out of range");
        check(br#"{"a":1"#, None, "EOF");
        check(b"", None, "empty");
        check(b" \n", None, "empty");
        check(b"{\"a\":\"\xff\"}", None, "UTF-8 at byte 6");
        check(br#"{"a":"\ud800"}"#, None, "hex escape");
        check("[".repeat(100_000).as_bytes(), None, "recursion limit");
        check("{\"a\":\n".repeat(1000).as_bytes(), None, "recursion limit");
    }

    #[test]
    fn only_plain_json_is_accepted() {
        for (value, accepted) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/json;charset=\"utf-8\"", true),
            ("application/json; charset=latin1", false),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
            assert_eq!(media_type(&headers).is_ok(), accepted, "{value}");
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            assert!(media_type(&headers).is_err());
        }
        assert!(media_type(&HeaderMap::new()).is_err());
    }
}
