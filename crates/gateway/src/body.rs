//! Reads a request body into fields: checks media type, size, pace, UTF-8 and syntax.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, HttpBody as _},
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use bytes::Bytes;
use hanzo_engine_process::tasks;
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use crate::{
    app::App,
    bodies::{Room, Share},
    config::Config,
    error::ApiError,
    fields::Fields,
    json::Json,
    limits::{
        BODY_TURN, BODY_WINDOW, BODY_WINDOW_BYTES, INLINE_BODY_BYTES, QUOTE_CHARS_MAX, REFUSED_BODY_TIMES_MAX,
    },
    peer::Peer,
};

const BODIES_HELD: &str = "the server holds as many request bodies as it may; try again";

/// Request body that has not arrived yet.
#[derive(Debug)]
pub(crate) struct IncomingBody {
    headers: HeaderMap,
    share: Option<Share>, // share of its client; None: unlimited
    peer: Option<Peer>,
    body: Body,
    bare: bool, // see `needs_no_media_type`
}

impl IncomingBody {
    /// Splits the request into headers, share and raw body, for bodies that are not JSON.
    pub(crate) fn into_parts(self) -> (HeaderMap, Option<Share>, Body) {
        (self.headers, self.share, self.body)
    }

    /// Client's end of the connection; None: it need not be watched.
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer.clone()
    }
}

impl<S: Sync> FromRequest<S> for IncomingBody {
    type Rejection = Infallible;

    async fn from_request(request: Request, _: &S) -> Result<IncomingBody, Infallible> {
        let (head, body) = request.into_parts();
        let (share, peer) = (head.extensions.get().cloned(), head.extensions.get().cloned());
        let bare = needs_no_media_type(head.uri.path(), &head.headers);
        Ok(IncomingBody { share, peer, headers: head.headers, body, bare })
    }
}

/// Received body and its memory.
#[derive(Debug)]
pub(crate) struct ReceivedBody {
    text: String,
    room: Room,
    app: Arc<App>,
}

/// Receives a request body.
///
/// # Errors
/// 415 for another media type, 413 over the limit, 408 if it arrives too slowly, 503 if no memory becomes free
/// in that time, 400 if it is not UTF-8.
pub(crate) async fn read(app: &Arc<App>, incoming: IncomingBody) -> Result<ReceivedBody, ApiError> {
    if !incoming.bare {
        media_type(&incoming.headers)?;
    }
    let (bytes, room) = arrived(app, incoming).await?;
    let text = String::from_utf8(bytes).map_err(|e| {
        ApiError::body(format!("the body is not valid UTF-8 at byte {}", e.utf8_error().valid_up_to()))
    })?;
    Ok(ReceivedBody { text, room, app: Arc::clone(app) })
}

impl ReceivedBody {
    /// Text of the body, and its memory.
    pub(crate) fn text(self) -> (String, Room) {
        (self.text, self.room)
    }

    /// Reserves `bytes` more for data that belongs to the body but did not arrive with it.
    ///
    /// # Errors
    /// 413 if a body may not be that large, 503 if no memory becomes free within a body's time limit.
    pub(crate) async fn hold(&mut self, bytes: usize) -> Result<(), ApiError> {
        let Config { body_bytes_max, body_timeout_s, .. } = *self.app.config;
        let all = self.text.len().saturating_add(bytes);
        if all > body_bytes_max {
            return Err(ApiError::kept_too_large(all, body_bytes_max));
        }
        let grown = self.room.grow(all, body_bytes_max);
        let time = Duration::from_secs(body_timeout_s);
        tokio::time::timeout(time, grown).await.map_err(|_| ApiError::busy(BODIES_HELD))
    }

    /// Copy of the text, with memory reserved for it.
    ///
    /// # Errors
    /// As for [`ReceivedBody::hold`].
    pub(crate) async fn copied(&mut self) -> Result<String, ApiError> {
        self.hold(self.text.len()).await?;
        Ok(self.text.clone())
    }

    /// Parses the fields with `read` and drops the body. The caller must hold the returned memory until the
    /// result has been handed on. Large bodies are parsed on a separate thread.
    ///
    /// # Errors
    /// 400 if the body is not a JSON object, and those of `read`.
    pub(crate) async fn into<T: Send + 'static>(
        self,
        read: impl FnOnce(Fields<'_>, &Config) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Room), ApiError> {
        let (ReceivedBody { mut room, .. }, value) = self.peek(read).await?;
        room.settle();
        Ok((value, room))
    }

    /// Parses the fields with `read` and keeps the body for another reading.
    ///
    /// # Errors
    /// As for [`ReceivedBody::into`].
    pub(crate) async fn look<T: Send + 'static>(
        &mut self,
        read: impl FnOnce(Fields<'_>, &Config) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let none = ReceivedBody {
            text: String::new(),
            room: self.app.bodies.room(None),
            app: Arc::clone(&self.app),
        };
        let (received, value) = std::mem::replace(self, none).peek(read).await?;
        *self = received;
        Ok(value)
    }

    /// Like [`ReceivedBody::into`], but returns the body for another reading.
    ///
    /// # Errors
    /// As for [`ReceivedBody::into`].
    pub(crate) async fn peek<T: Send + 'static>(
        self,
        read: impl FnOnce(Fields<'_>, &Config) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(ReceivedBody, T), ApiError> {
        let turn = match self.text.len() {
            0..=INLINE_BODY_BYTES => None,
            // The semaphore is never closed.
            _ => Arc::clone(&self.app.bodies_read).acquire_owned().await.ok(),
        };
        let aside = turn.is_some();
        let work = move || {
            let _turn = turn;
            let config = &self.app.config;
            let value = read(Fields::of_body(parse(&self.text)?, config.lenient)?, config)?;
            Ok((self, value))
        };
        match aside {
            false => work(),
            true => tasks::blocking(work)
                .await
                .unwrap_or_else(|e| Err(ApiError::internal(&format!("reading a body: {e}")))),
        }
    }
}

/// Whether a body is read as JSON whatever its media type. Ollama's users send it by `curl -d`, which declares
/// a form. Requests of web pages, which carry headers of the browser, are excluded.
fn needs_no_media_type(path: &str, headers: &HeaderMap) -> bool {
    let of_a_page = [header::ORIGIN, header::REFERER, header::HeaderName::from_static("sec-fetch-site")];
    path.starts_with("/api/") && !of_a_page.iter().any(|name| headers.contains_key(name))
}

fn media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let text =
        |name| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim().to_ascii_lowercase());
    // Required, so that a web page cannot send requests here without a CORS preflight.
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

async fn arrived(app: &App, incoming: IncomingBody) -> Result<(Vec<u8>, Room), ApiError> {
    let IncomingBody { headers, share, mut body, .. } = incoming;
    let bytes_max = app.config.body_bytes_max;
    let time = Duration::from_secs(app.config.body_timeout_s);
    let too_large = async |body: &mut Body| {
        // The answer is the same after a timeout.
        let _ = tokio::time::timeout(time, discard(body, bytes_max)).await;
        Err(ApiError::body_too_large(bytes_max))
    };
    if body.size_hint().lower() > bytes_max as u64 {
        // A client that sent `Expect` waits for the answer and has sent nothing yet.
        if headers.contains_key(header::EXPECT) {
            return Err(ApiError::body_too_large(bytes_max));
        }
        return too_large(&mut body).await;
    }
    let mut room = app.bodies.room(share);
    let mut pace = Pace::new(app.config.body_timeout_s);
    let mut bytes = Vec::new();
    while let Some(data) = pace.next(&mut body).await? {
        let so_far = bytes.len() + data.len();
        if so_far > bytes_max {
            // The received part is useless, and other bodies wait for its memory.
            drop((bytes, data, room));
            return too_large(&mut body).await;
        }
        let waiting = Instant::now();
        if tokio::time::timeout(time, room.grow(so_far, bytes_max)).await.is_err() {
            return Err(ApiError::busy(BODIES_HELD));
        }
        pace.resume(waiting);
        if room.keeps_others_waiting() {
            pace.hurry();
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, room))
}

/// Required pace of a body. All of it must arrive within the configured time, and some in every window. The
/// minimum grows with the body: half the rate at which the bytes so far would have arrived in exactly that
/// time.
pub(crate) struct Pace {
    timeout_s: u64,
    deadline: Instant,
    hurried: bool,   // other bodies wait for this one
    bytes: usize,    // in total
    window: Instant, // its end
    window_bytes: usize,
}

impl Pace {
    pub(crate) fn new(timeout_s: u64) -> Pace {
        let now = Instant::now();
        let deadline = now + Duration::from_secs(timeout_s);
        Pace { timeout_s, deadline, hurried: false, bytes: 0, window: now + BODY_WINDOW, window_bytes: 0 }
    }

    /// Minimum bytes in a window.
    fn window_bytes_min(&self) -> usize {
        let (window_s, timeout_s) = (BODY_WINDOW.as_secs(), self.timeout_s.max(1));
        let share = (self.bytes as u64).saturating_mul(window_s) / timeout_s.saturating_mul(2);
        usize::try_from(share).unwrap_or(usize::MAX).max(BODY_WINDOW_BYTES)
    }

    /// Shortens the deadline, because other bodies wait for this one.
    fn hurry(&mut self) {
        if !self.hurried {
            self.hurried = true;
            self.deadline = self.deadline.min(Instant::now() + BODY_TURN);
        }
    }

    /// Next piece of the body; None: its end.
    pub(crate) async fn next(&mut self, body: &mut Body) -> Result<Option<Bytes>, ApiError> {
        loop {
            let now = Instant::now();
            if now >= self.deadline {
                return Err(ApiError::body_timeout(match self.hurried {
                    false => format!("within {} seconds", self.timeout_s),
                    true => format!(
                        "fast enough for a server that has no room left: the rest within {} seconds; try again",
                        BODY_TURN.as_secs()
                    ),
                }));
            }
            if now >= self.window {
                let min = self.window_bytes_min();
                if self.window_bytes < min {
                    let slow = format!(
                        "fast enough: {} bytes in {} s, expected {min}",
                        self.window_bytes,
                        BODY_WINDOW.as_secs()
                    );
                    return Err(ApiError::body_timeout(slow));
                }
                (self.window, self.window_bytes) = (now + BODY_WINDOW, 0);
            }
            let frame = match tokio::time::timeout_at(self.deadline.min(self.window), body.frame()).await {
                Err(_) => continue,
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => {
                    frame.map_err(|e| ApiError::body(format!("the request body broke off: {e}")))?
                }
            };
            if let Ok(data) = frame.into_data() {
                self.bytes += data.len();
                self.window_bytes += data.len();
                return Ok(Some(data));
            }
        }
    }

    /// Excludes the time since `since` from the deadlines: the server, not the client, was slow.
    pub(crate) fn resume(&mut self, since: Instant) {
        let waited = since.elapsed();
        self.deadline += waited;
        self.window += waited;
    }
}

/// Reads on for a limited time, because many clients send the whole body before they read the answer.
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

/// Parses a body as JSON. The error names the fault and its place.
pub(crate) fn parse(text: &str) -> Result<Json<'_>, ApiError> {
    // Some editors and clients begin a text with a byte order mark, which has no meaning.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(ApiError::body("the body is empty; expected a JSON object"));
    }
    Json::parse(text).map_err(|fault| {
        let before = &text.as_bytes()[..fault.at];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        let problem = format!("the body is not valid JSON: {} at line {line} column {column}", fault.problem);
        match field_before(text, fault.at) {
            Some(field) if fault.is_of_value() => ApiError::field(&field, problem),
            _ => ApiError::body(problem),
        }
    })
}

/// Name of the field whose value breaks the syntax at that byte, such as NaN in `{"temperature": NaN}`.
fn field_before(text: &str, at: usize) -> Option<String> {
    let value = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.');
    let before = text.get(..at)?.trim_end_matches(value).trim_end().strip_suffix(':')?;
    let name = before.trim_end().strip_suffix('"')?;
    let name = &name[name.rfind('"')? + 1..];
    (!name.is_empty() && name.len() <= QUOTE_CHARS_MAX).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use axum::{
        body::Body,
        http::{HeaderMap, HeaderValue, header},
    };
    use bytes::Bytes;
    use futures_util::stream;
    use tokio::time::{Instant, sleep};

    use super::{BODY_TURN, Pace, media_type, parse};

    /// Receives a body whose first piece comes at once and then one each second, by the test's clock. Returns
    /// whether it arrived, and after how many seconds.
    async fn paced(first: usize, pieces: usize, piece: usize, hurried: bool) -> (bool, u64) {
        let pieces = stream::unfold(0, move |i| async move {
            sleep(Duration::from_secs(i.min(1) as u64)).await;
            let bytes = Bytes::from(vec![b' '; if i == 0 { first } else { piece }]);
            (i <= pieces).then_some((Ok::<_, Infallible>(bytes), i + 1))
        });
        let (mut body, begun, mut pace) = (Body::from_stream(pieces), Instant::now(), Pace::new(60));
        loop {
            match pace.next(&mut body).await {
                Ok(Some(_)) if hurried => pace.hurry(),
                Ok(Some(_)) => {}
                end => return (end.is_ok(), begun.elapsed().as_secs()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_holds_much_must_come_fast() {
        // Nearly all at once, then as little as suffices at the start of a body.
        let (arrived, seconds) = paced(9_900_000, 1000, 500, false).await;
        assert!(!arrived && seconds <= 20, "{seconds}");
        // A connection that is just fast enough, and one that sends in bursts.
        assert!(paced(170_000, 58, 170_000, false).await.0);
        assert!(paced(5_000_000, 50, 80_000, false).await.0);
        // Small bodies may come slowly, but not for ever.
        assert!(paced(1, 50, 500, false).await.0);
        assert_eq!(paced(1, 1000, 500, false).await, (false, 60));
        assert_eq!(paced(1, 1000, 300, false).await, (false, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_wait_for_must_come_at_once() {
        let (arrived, seconds) = paced(1_000_000, 1000, 100_000, true).await;
        assert_eq!((arrived, seconds), (false, BODY_TURN.as_secs()));
        assert!(paced(1_000_000, 3, 1_000_000, true).await.0);
    }

    fn check(body: &str, param: Option<&str>, says: &str) {
        let error = parse(body).unwrap_err().json()["error"].clone();
        assert_eq!(error["param"].as_str(), param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }

    #[test]
    fn syntax_errors_name_the_field_where_it_can_be_seen() {
        check(r#"{"model":"m","temperature": NaN}"#, Some("temperature"), "JSON");
        check("{\"a\":1,\n \"top_p\" : Infinity}", Some("top_p"), "line 2");
        check(r#"{"top_p":-Infinity}"#, Some("top_p"), "JSON");
        check(r#"{"a":1"#, None, "EOF");
        check("", None, "empty");
        check(" \n", None, "empty");
        check("{\"a\":\"\\u12\"}", None, "hexadecimal");
        check(&"[".repeat(100_000), None, "recursion limit");
        check(&"{\"a\":\n".repeat(1000), None, "recursion limit");
    }

    #[test]
    fn a_byte_order_mark_is_no_fault() {
        assert!(parse("\u{feff}{}").unwrap().is_object());
        check("\u{feff}", None, "empty");
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
