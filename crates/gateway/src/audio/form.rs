//! Streaming reader of a multipart form with a file (RFC 7578). Its fields become one JSON object, parsed like
//! any other request. The file is buffered if it is small or comes before the fields that say what to do with
//! it; otherwise it is streamed on.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use multer::{Constraints, Error as Fault, Field, Multipart, SizeLimit};
use serde_json::{Map, Value, json};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    app::App,
    bodies::Room,
    body::{IncomingBody, Pace},
    error::{ApiError, quote},
    limits::{
        FORM_BYTES_BESIDE, FORM_FIELD_BYTES_MAX, FORM_FIELDS_MAX, FORM_HEAD_BYTES_MAX, SOUND_HELD_BYTES,
    },
};

/// Name of the file's field.
pub(crate) const FILE: &str = "file";

/// Received part of a form.
pub(crate) struct Form {
    /// Fields without the file, by their names without `[]`.
    pub(crate) fields: Map<String, Value>,
    /// Name and type of the file; None: the form has no file.
    pub(crate) file: Option<FileInfo>,
    /// Buffered bytes of the file.
    pub(crate) held: VecDeque<Bytes>,
    /// Rest of the form, if it has not ended.
    rest: Option<Rest>,
    room: Room,
}

/// Metadata of the file.
#[derive(Debug, Default)]
pub(crate) struct FileInfo {
    pub(crate) name: String,
    pub(crate) mime_type: String,
}

/// Part of the form that has not been read.
struct Rest {
    parts: Multipart<'static>,
    file: Option<Field<'static>>,
    trouble: Trouble,
    unread: Raw,
    bytes: usize, // bytes of the file so far
    bytes_max: usize,
}

/// Error of the body's transport.
type Trouble = Arc<Mutex<Option<ApiError>>>;

/// Bytes consumed since the last part was produced.
type Raw = Arc<AtomicUsize>;

/// Reads a form up to the point where its file may be streamed on. Reads it to the end if the file is small or
/// comes before `model`.
///
/// # Errors
/// 415 for another media type, 400 for a malformed form, 413 over the limit, 408 if it arrives too slowly, 503
/// if there is no memory for it.
pub(crate) async fn read(app: &Arc<App>, incoming: IncomingBody) -> Result<Form, ApiError> {
    let (headers, share, body) = incoming.into_parts();
    let media = headers.get(axum::http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let boundary = media.ok_or(()).and_then(|media| multer::parse_boundary(media).map_err(drop));
    let boundary = boundary.map_err(|()| {
        let got = media.map_or("nothing".to_owned(), quote);
        ApiError::media_type(format!("expected content-type: multipart/form-data with a boundary, got {got}"))
    })?;
    let bytes_max = app.config.sound_bytes_max;
    let rest = Rest::new(body, boundary, bytes_max, Pace::new(app.config.body_timeout_s));
    let room = app.sounds.room(share);
    let mut form = Form { fields: Map::new(), file: None, held: VecDeque::new(), rest: Some(rest), room };
    while let Some(part) = form.next().await? {
        match part {
            FormPart::Field(name, value) => form.put(name, value)?,
            FormPart::Piece(piece) => {
                let held = form.held_bytes() + piece.len();
                let time = Duration::from_secs(app.config.body_timeout_s);
                if tokio::time::timeout(time, form.room.grow(held, bytes_max)).await.is_err() {
                    return Err(ApiError::busy("the server holds as many sound files as it may; try again"));
                }
                form.held.push_back(piece);
                if held >= SOUND_HELD_BYTES && form.fields.contains_key("model") {
                    break;
                }
            }
        }
    }
    Ok(form)
}

/// Next part of a form.
enum FormPart {
    Field(String, String),
    Piece(Bytes),
}

impl Form {
    /// Streams the file to `to` and frees its buffer. Fields after a file that was not fully buffered are
    /// refused, because the work has begun by then.
    pub(crate) async fn send(&mut self, to: mpsc::Sender<Bytes>) -> Result<(), ApiError> {
        while let Some(piece) = self.held.pop_front() {
            // If the receiver is gone, it reports its own error.
            if to.send(piece).await.is_err() {
                return Ok(());
            }
        }
        self.room.settle();
        while let Some(part) = self.next().await? {
            match part {
                FormPart::Piece(piece) => {
                    if to.send(piece).await.is_err() {
                        return Ok(());
                    }
                }
                FormPart::Field(name, _) => {
                    let problem = format!(
                        "must come before the file in the form, where that has over {SOUND_HELD_BYTES} bytes"
                    );
                    return Err(ApiError::field(&name, problem));
                }
            }
        }
        Ok(())
    }

    /// Reads the rest for a limited time and discards it.
    pub(crate) async fn discard(&mut self, app: &App) {
        self.held.clear();
        self.room.settle();
        let time = Duration::from_secs(app.config.body_timeout_s);
        let rest = async { while let Ok(Some(_)) = self.next().await {} };
        let _ = tokio::time::timeout(time, rest).await;
    }

    fn held_bytes(&self) -> usize {
        self.held.iter().map(Bytes::len).sum()
    }

    fn put(&mut self, name: String, text: String) -> Result<(), ApiError> {
        let is_list = name.ends_with("[]");
        let name = name.trim_end_matches("[]").to_owned();
        let value = typed(&name, text);
        match (self.fields.get_mut(&name), is_list) {
            (Some(Value::Array(list)), _) => list.push(value),
            (Some(_), _) => return Err(ApiError::field(&name, "is in the form twice")),
            (None, true) => drop(self.fields.insert(name, json!([value]))),
            (None, false) => drop(self.fields.insert(name, value)),
        }
        if self.fields.len() > FORM_FIELDS_MAX {
            return Err(ApiError::body(format!("the form has more than {FORM_FIELDS_MAX} fields")));
        }
        Ok(())
    }

    /// Next field, or next piece of the file; None: end of the form.
    async fn next(&mut self) -> Result<Option<FormPart>, ApiError> {
        let Some(rest) = &mut self.rest else { return Ok(None) };
        let part = rest.next(&mut self.file).await;
        if !matches!(part, Ok(Some(_))) {
            self.rest = None;
        }
        part
    }
}

impl Rest {
    fn new(body: Body, boundary: String, bytes_max: usize, pace: Pace) -> Rest {
        let (trouble, unread) = (Trouble::default(), Raw::default());
        let pieces = pieces(body, pace, trouble.clone(), unread.clone());
        let whole = bytes_max.saturating_add(FORM_BYTES_BESIDE);
        let limits = Constraints::new().size_limit(SizeLimit::new().whole_stream(whole as u64));
        let parts = Multipart::with_constraints(pieces, boundary, limits);
        Rest { parts, file: None, trouble, unread, bytes: 0, bytes_max }
    }

    async fn next(&mut self, said: &mut Option<FileInfo>) -> Result<Option<FormPart>, ApiError> {
        loop {
            if let Some(file) = &mut self.file {
                let piece = file.chunk().await;
                self.unread.store(0, Relaxed);
                match piece {
                    Ok(Some(piece)) => {
                        self.bytes += piece.len();
                        if self.bytes > self.bytes_max {
                            return Err(ApiError::body_too_large(self.bytes_max));
                        }
                        if piece.is_empty() {
                            continue;
                        }
                        return Ok(Some(FormPart::Piece(piece)));
                    }
                    Ok(None) => self.file = None,
                    Err(fault) => return Err(self.fault(fault)),
                }
            }
            let field = match self.parts.next_field().await {
                Ok(None) => return Ok(None),
                Ok(Some(field)) => field,
                Err(fault) => return Err(self.fault(fault)),
            };
            self.unread.store(0, Relaxed);
            let Some(name) = field.name().map(str::to_owned) else {
                return Err(ApiError::body("a part of the form has no name"));
            };
            if name == FILE {
                if said.is_some() {
                    return Err(ApiError::field(FILE, "is in the form twice; send one file"));
                }
                let mime_type = field.content_type().map_or(String::new(), ToString::to_string);
                let file_name = field.file_name().unwrap_or_default().to_owned();
                *said = Some(FileInfo { name: file_name, mime_type });
                self.file = Some(field);
                continue;
            }
            let text = self.text(&name, field).await?;
            return Ok(Some(FormPart::Field(name, text)));
        }
    }

    async fn text(&mut self, name: &str, mut field: Field<'static>) -> Result<String, ApiError> {
        let mut bytes = Vec::new();
        loop {
            let piece = field.chunk().await;
            self.unread.store(0, Relaxed);
            match piece {
                Ok(None) => break,
                Ok(Some(piece)) if bytes.len() + piece.len() > FORM_FIELD_BYTES_MAX => {
                    let problem = format!("must have at most {FORM_FIELD_BYTES_MAX} bytes");
                    return Err(ApiError::field(name, problem));
                }
                Ok(Some(piece)) => bytes.extend_from_slice(&piece),
                Err(fault) => return Err(self.fault(fault)),
            }
        }
        String::from_utf8(bytes).map_err(|_| ApiError::field(name, "must be UTF-8"))
    }

    /// Error of the transport, or else of the form.
    fn fault(&self, fault: Fault) -> ApiError {
        if let Some(error) = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return error;
        }
        match fault {
            Fault::StreamSizeExceeded { .. } => ApiError::body_too_large(self.bytes_max),
            fault => ApiError::body(format!("the body is no whole form: {fault}")),
        }
    }
}

/// Body as a stream of pieces, at the required pace. Time in which no piece was requested does not count
/// against the client. Pieces are delivered one at a time: multer takes all that are available before it parses
/// any, so it would buffer a form as fast as it arrives.
fn pieces(
    body: Body,
    pace: Pace,
    trouble: Trouble,
    unread: Raw,
) -> impl futures_util::Stream<Item = Result<Bytes, std::fmt::Error>> + Send + 'static {
    stream::unfold(Some((body, pace, Instant::now())), move |state| {
        let (trouble, unread) = (trouble.clone(), unread.clone());
        async move {
            let (mut body, mut pace, since) = state?;
            // Lets multer parse the bytes it has.
            tokio::task::yield_now().await;
            pace.resume(since);
            let piece = match unread.load(Relaxed) > FORM_HEAD_BYTES_MAX {
                true => Err(ApiError::body(format!(
                    "the form has {FORM_HEAD_BYTES_MAX} bytes that are of no field"
                ))),
                false => pace.next(&mut body).await,
            };
            match piece {
                Ok(None) => None,
                Ok(Some(piece)) => {
                    unread.fetch_add(piece.len(), Relaxed);
                    Some((Ok(piece), Some((body, pace, Instant::now()))))
                }
                Err(error) => {
                    *trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    Some((Err(std::fmt::Error), None))
                }
            }
        }
    })
}

/// Converts a field's text to the JSON type that the parser expects for its name, because forms contain text
/// only.
fn typed(name: &str, text: String) -> Value {
    match name {
        "temperature" | "seed" | "priority" => {
            text.trim().parse::<serde_json::Number>().map_or(Value::String(text), Value::Number)
        }
        "stream" | "vad_filter" => match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" => Value::Bool(true),
            "false" | "0" => Value::Bool(false),
            _ => Value::String(text),
        },
        // A list with a single value, sent by its name without brackets.
        "timestamp_granularities" | "include" if !text.is_empty() => Value::String(text),
        _ if text.is_empty() => Value::Null,
        _ => Value::String(text),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const PIECE: usize = 16 << 10;

    /// Form that begins with `begins` and never ends, and a count of its consumed pieces.
    fn endless(begins: &'static [u8]) -> (Rest, Arc<AtomicUsize>) {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = taken.clone();
        let pieces = (0_u64..).map(move |at| {
            count.fetch_add(1, Relaxed);
            Ok::<_, Infallible>(if at == 0 {
                Bytes::from_static(begins)
            } else {
                Bytes::from(vec![b'y'; PIECE])
            })
        });
        let body = Body::from_stream(stream::iter(pieces));
        (Rest::new(body, "q".to_owned(), 8 << 20, Pace::new(60)), taken)
    }

    #[tokio::test]
    async fn what_is_of_no_field_is_not_read_for_long() {
        for begins in
            [&b"--q\r\nx-a: "[..], b"--q\r\ncontent-disposition: form-data; name=\"", b"before the first one"]
        {
            let (mut form, taken) = endless(begins);
            let Err(error) = form.next(&mut None).await else { panic!("it is no form") };
            assert!(error.json().to_string().contains("bytes that are of no field"), "{}", error.json());
            assert!(taken.load(Relaxed) * PIECE < 2 * FORM_HEAD_BYTES_MAX, "{taken:?}");
        }
    }

    #[tokio::test]
    async fn a_file_is_taken_as_it_is_handed_on() {
        let (mut form, taken) = endless(b"--q\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n");
        let mut file = None;
        for pieces in 1..100 {
            let Ok(Some(FormPart::Piece(_))) = form.next(&mut file).await else {
                panic!("a file has pieces")
            };
            assert!(taken.load(Relaxed) <= pieces + 3, "{taken:?} taken for {pieces}");
        }
    }
}
