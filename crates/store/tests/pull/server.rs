//! A server of files on a loopback port: ranges, entity tags and lengths as a content network has them, and on
//! demand everything that goes wrong with one.

use super::content::Content;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response, StatusCode};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Each answer breaks off after so many bytes.
    pub(crate) reset_every: Option<u64>,
    /// So many answers stop for ever after a megabyte.
    pub(crate) stalls: usize,
    /// `Range` is not looked at.
    pub(crate) ignores_range: bool,
    /// No length is said.
    pub(crate) hides_length: bool,
    /// The last byte is another.
    pub(crate) flips_last: bool,
    /// So many answers end early though they said the whole length.
    pub(crate) truncates: usize,
    /// From this request on the entity tag is another, and changes each time when the flag is set.
    pub(crate) etag_changes_at: Option<(usize, bool)>,
    /// Statuses and headers that are answered first.
    pub(crate) statuses: VecDeque<(u16, Vec<(&'static str, String)>)>,
    /// Bytes a second of each answer.
    pub(crate) rate: Option<u64>,
}

/// A file server, or part of one.
#[derive(Default)]
pub(crate) struct Files {
    pub(crate) files: Mutex<HashMap<String, Content>>,
    pub(crate) faults: Mutex<Faults>,
    pub(crate) requests: AtomicUsize,
    pub(crate) served: AtomicU64,
    /// Paths, with the ranges asked for.
    pub(crate) log: Mutex<Vec<String>>,
    /// `Authorization` headers that came.
    pub(crate) credentials: Mutex<Vec<String>>,
}

impl Files {
    pub(crate) fn put(&self, path: &str, content: Content) {
        self.files.lock().unwrap().insert(path.to_owned(), content);
    }

    pub(crate) fn fault(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap());
    }

    /// Bytes handed to connections so far; also what is still in their buffers.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(SeqCst)
    }

    /// Answers a request for a file.
    pub(crate) fn answer(self: &Arc<Self>, path: &str, headers: &HeaderMap) -> Response<Body> {
        let number = self.requests.fetch_add(1, SeqCst);
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let range = text("range");
        self.log.lock().unwrap().push(format!("{path} {}", range.clone().unwrap_or_default()));
        self.credentials.lock().unwrap().extend(text("authorization"));
        let mut faults = self.faults.lock().unwrap();
        if let Some((status, extra)) = faults.statuses.pop_front() {
            let answer = Response::builder().status(status);
            let answer = extra.into_iter().fold(answer, |answer, (name, value)| answer.header(name, value));
            return answer.body(Body::from("no")).unwrap();
        }
        let Some(content) = self.files.lock().unwrap().get(path).cloned() else {
            return Response::builder()
                .status(StatusCode::NOT_FOUND)
                .body(Body::from("no such file"))
                .unwrap();
        };
        let length = content.len();
        let etag = match faults.etag_changes_at {
            Some((from, true)) if number >= from => format!("\"{number}\""),
            Some((from, false)) if number >= from => "\"second\"".to_owned(),
            _ => "\"first\"".to_owned(),
        };
        let asked = range.filter(|_| !faults.ignores_range).and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((first.parse::<u64>().ok()?, last.parse::<u64>().unwrap_or(u64::MAX)))
        });
        let mut answer = Response::builder().header("etag", etag);
        let (from, to) = match asked {
            Some((first, _)) if first >= length => {
                let answer = answer.status(416).header("content-range", format!("bytes */{length}"));
                return answer.body(Body::empty()).unwrap();
            }
            Some((first, last)) => {
                let last = last.min(length - 1);
                let range = format!("bytes {first}-{last}/{length}");
                answer = answer.status(206).header("content-range", range);
                (first, last + 1)
            }
            None => (0, length),
        };
        if !faults.hides_length {
            answer = answer.header("content-length", to - from);
        }
        let whole = to;
        let mut to = to;
        let mut end = End::Whole;
        if let Some(every) = faults.reset_every.filter(|every| from + every < to) {
            (to, end) = (from + every, End::Reset);
        }
        if faults.stalls > 0 && from + (1 << 20) < to {
            faults.stalls -= 1;
            (to, end) = (from + (1 << 20), End::Stall);
        }
        if faults.truncates > 0 && from + 2 < to {
            faults.truncates -= 1;
            (to, end) = (from + (to - from) / 2, End::Whole);
        }
        let flip = faults.flips_last && whole == length;
        let body = Sending { files: self.clone(), content, at: from, to, end, flip, rate: faults.rate };
        answer.body(Body::from_stream(futures_util::stream::unfold(body, Sending::next))).unwrap()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Whole,
    Reset,
    Stall,
}

struct Sending {
    files: Arc<Files>,
    content: Content,
    at: u64,
    to: u64,
    end: End,
    flip: bool,
    rate: Option<u64>,
}

impl Sending {
    async fn next(mut self) -> Option<(Result<Bytes, std::io::Error>, Self)> {
        if self.at >= self.to {
            return match self.end {
                End::Whole => None,
                End::Reset => Some((Err(std::io::Error::other("reset")), self)),
                End::Stall => std::future::pending().await,
            };
        }
        let length = (self.to - self.at).min(64 << 10);
        if let Some(rate) = self.rate {
            tokio::time::sleep(Duration::from_secs_f64(length as f64 / rate as f64)).await;
        }
        let mut piece = self.content.read(self.at, length);
        self.at += length;
        self.files.served.fetch_add(length, SeqCst);
        if self.flip && self.at == self.content.len() {
            let mut bytes = piece.to_vec();
            *bytes.last_mut().unwrap() ^= 1;
            piece = bytes.into();
        }
        Some((Ok(piece), self))
    }
}

/// Serves on a free port until the test's runtime ends.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A plain file server, and its address.
pub(crate) async fn plain(files: &Arc<Files>) -> String {
    let shared = files.clone();
    let router = Router::new().fallback(move |uri: axum::http::Uri, headers: HeaderMap| {
        let files = shared.clone();
        async move { files.answer(uri.path(), &headers) }
    });
    format!("http://{}", serve(router).await)
}
