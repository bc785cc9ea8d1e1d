//! Transfer of one file: several connections that each take the next missing range, or a single stream.

use super::{
    AttemptEnd, Downloader, PartFile, RemoteFile, content_range, disk, etag, write_at, write_failed,
};
use crate::PullError;
use crate::digest::{Digest, Hasher};
use crate::http::{Fault, Get, HttpResponse, shown};
use crate::limits::{ATTEMPTS_MAX, CHUNK_BYTES, FILE_BYTES_MAX, LEAST_BYTES, STREAMS_MAX, WRITE_BYTES};
use crate::prefix::Follower;
use crate::progress::{FileState, Phase};
use bytes::Bytes;
use reqwest::{StatusCode, Url};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Last byte of the first request's range.
pub(super) const CHUNK_LAST: u64 = CHUNK_BYTES - 1;

/// State shared by the connections of one file.
struct FileTransfer {
    downloader: Downloader,
    wanted: Arc<RemoteFile>,
    state: Arc<FileState>,
    part: PartFile,
    follower: Follower,
    /// Offset before which every range is done or taken.
    next: Mutex<u64>,
    /// Last address after redirects, and whether a public server led to it. Used first, as long as it works.
    landed: Mutex<Option<(Url, bool)>>,
}

/// Downloads every missing range and returns the digest of the file.
pub(super) async fn all_ranges(
    downloader: &Downloader,
    wanted: &Arc<RemoteFile>,
    state: &Arc<FileState>,
    part: PartFile,
    first: Option<HttpResponse>,
) -> Result<Hasher, AttemptEnd> {
    let (missing, prefix) = {
        let journal = part.journal.lock().unwrap_or_else(PoisonError::into_inner);
        (part.total - journal.done.bytes(), journal.done.prefix())
    };
    let follower = Follower::start(part.file.clone(), hasher(wanted, part.total));
    follower.whole_to(prefix);
    let landed = Mutex::new(first.as_ref().map(|answer| (answer.url.clone(), answer.led_by_public)));
    let (downloader, wanted, state) = (downloader.clone(), wanted.clone(), state.clone());
    let shared =
        Arc::new(FileTransfer { downloader, wanted, state, part, follower, next: Mutex::new(0), landed });
    let streams = missing.div_ceil(CHUNK_BYTES).clamp(1, STREAMS_MAX as u64);
    let mut tasks = JoinSet::new();
    // The first task takes the first range, because `first` is the response for it. It must take it before the
    // other tasks start.
    let first_chunk = shared.take();
    tasks.spawn(shared.clone().run(first_chunk, first));
    for _ in 1..streams {
        let chunk = shared.take();
        tasks.spawn(shared.clone().run(chunk, None));
    }
    while let Some(ended) = tasks.join_next().await {
        // The first failure ends the others: dropping the set aborts them.
        ended.map_err(|error| PullError::Internal(error.to_string()))??;
    }
    let shared = Arc::into_inner(shared).ok_or_else(|| PullError::Internal("a stream goes on".to_owned()))?;
    shared.state.set(Phase::Verifying);
    shared.follower.finish().await.map_err(|error| disk(&shared.part.path)(error).into())
}

fn hasher(wanted: &RemoteFile, total: u64) -> Hasher {
    Hasher::new(matches!(wanted.digest, Some(Digest::Git(_))).then_some(total))
}

impl FileTransfer {
    /// Takes the next free range: its first byte, and the end (exclusive).
    fn take(&self) -> Option<(u64, u64)> {
        let journal = self.part.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, to) = journal.done.gap(*next, self.part.total)?;
        let to = to.min(from + CHUNK_BYTES);
        *next = to;
        Some((from, to))
    }

    async fn run(
        self: Arc<Self>,
        mut chunk: Option<(u64, u64)>,
        mut answer: Option<HttpResponse>,
    ) -> Result<(), AttemptEnd> {
        while let Some((from, to)) = chunk {
            self.bring(from, to, answer.take()).await?;
            chunk = self.take();
        }
        Ok(())
    }

    /// Downloads one range. Requests the rest again whenever the server breaks off.
    async fn bring(
        self: &Arc<Self>,
        from: u64,
        to: u64,
        mut answer: Option<HttpResponse>,
    ) -> Result<(), AttemptEnd> {
        let (mut at, mut attempts) = (from, 0);
        loop {
            let before = at;
            let fault = match answer.take() {
                Some(answer) => self.drain(answer, &mut at, to).await,
                None => match self.request_range(at, to).await {
                    Ok(answer) => self.drain(answer, &mut at, to).await,
                    Err(fault) => Err(fault),
                },
            };
            if at == to {
                return Ok(());
            }
            let (why, after) = match fault {
                Ok(()) => ("the connection ended early".to_owned(), None),
                Err(StreamFault::Ended(ended)) => return Err(ended),
                Err(StreamFault::Passing { why, after }) => (why, after),
            };
            // A trickle does not count as progress.
            attempts = if at >= before + LEAST_BYTES { 1 } else { attempts + 1 };
            if attempts >= ATTEMPTS_MAX {
                return Err(PullError::Network { url: shown(&self.wanted.url), attempts, why }.into());
            }
            tracing::debug!(file = self.wanted.name, at, attempts, why, "asking for the rest of a range");
            self.downloader.http.pause(attempts, after).await;
        }
    }

    /// Requests a range from the last address after redirects, or else from the file's own address.
    async fn request_range(&self, from: u64, to: u64) -> Result<HttpResponse, StreamFault> {
        let landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let auth = self.wanted.auth.as_ref();
        let get =
            |url, led_by_public| Get { url, auth, range: Some((from, to - 1)), accept: None, led_by_public };
        let mut answer = match &landed {
            Some((url, led_by_public)) => self.downloader.http.get(&get(url, *led_by_public)).await,
            None => self.downloader.http.get(&get(&self.wanted.url, false)).await,
        };
        if landed.is_some() && matches!(answer, Err(Fault::Status { .. })) {
            // The address after redirects is signed for a limited time only.
            *self.landed.lock().unwrap_or_else(PoisonError::into_inner) = None;
            answer = self.downloader.http.get(&get(&self.wanted.url, false)).await;
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(Fault::Passing { why, after, .. }) => return Err(StreamFault::Passing { why, after }),
            Err(Fault::Status { status: StatusCode::RANGE_NOT_SATISFIABLE, .. }) => {
                return Err(StreamFault::Ended(AttemptEnd::Changed));
            }
            Err(fault) => return Err(StreamFault::Ended(final_fault(&self.wanted, fault).into())),
        };
        self.check(&answer, from)?;
        *self.landed.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((answer.url.clone(), answer.led_by_public));
        Ok(answer)
    }

    /// Checks that a response belongs to the file that was begun.
    fn check(&self, answer: &HttpResponse, from: u64) -> Result<(), StreamFault> {
        let headers = answer.response.headers();
        let changed = Err(StreamFault::Ended(AttemptEnd::Changed));
        if answer.response.status() != StatusCode::PARTIAL_CONTENT {
            // The whole file, from a server that supported ranges before.
            return changed;
        }
        match content_range(headers) {
            Some((first, _, total)) if total != self.part.total || first != from => return changed,
            None => return changed,
            Some(_) => {}
        }
        let mut journal = self.part.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let known = (journal.header.url == shown(&self.wanted.url)).then(|| journal.header.etag.clone());
        match (known.flatten(), etag(headers)) {
            (Some(known), Some(now)) if known != now => changed,
            (None, now) => {
                journal.header.etag = now;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Writes the body of a response, up to `to` (exclusive).
    async fn drain(
        self: &Arc<Self>,
        mut answer: HttpResponse,
        at: &mut u64,
        to: u64,
    ) -> Result<(), StreamFault> {
        loop {
            let (pieces, bytes, ended) = gather(&self.downloader, &mut answer, to - *at).await;
            if bytes > 0 {
                let (shared, from) = (self.clone(), *at);
                let written = tokio::task::spawn_blocking(move || shared.part.write(from, &pieces)).await;
                let written = written.unwrap_or_else(|error| Err(PullError::Internal(error.to_string())));
                written.map_err(|error| StreamFault::Ended(error.into()))?;
                *at += bytes;
                self.state.arrived(bytes);
                let prefix = self.part.journal.lock().unwrap_or_else(PoisonError::into_inner).done.prefix();
                self.follower.whole_to(prefix);
            }
            match ended {
                Some(result) => return result,
                None if *at == to => return Ok(()),
                None => {}
            }
        }
    }
}

enum StreamFault {
    Passing { why: String, after: Option<Duration> },
    Ended(AttemptEnd),
}

/// Reads until enough data has gathered for a write, at most `most` bytes. Returns the pieces, their total
/// bytes, and the end of the body if it was reached.
async fn gather(
    downloader: &Downloader,
    answer: &mut HttpResponse,
    most: u64,
) -> (Vec<Bytes>, u64, Option<Result<(), StreamFault>>) {
    let (mut pieces, mut bytes) = (Vec::new(), 0);
    let (mut since, mut came) = (Instant::now(), 0);
    while bytes < most.min(WRITE_BYTES as u64) {
        let stall = downloader.http.stall;
        if since.elapsed() > stall {
            if came < LEAST_BYTES {
                let why = format!("only {came} bytes came in {} s", stall.as_secs_f32());
                return (pieces, bytes, Some(Err(StreamFault::Passing { why, after: None })));
            }
            (since, came) = (Instant::now(), 0);
        }
        match downloader.http.piece(&mut answer.response).await {
            Ok(Some(mut piece)) => {
                // Drop bytes beyond the requested range.
                piece.truncate((most - bytes).min(piece.len() as u64) as usize);
                bytes += piece.len() as u64;
                came += piece.len() as u64;
                pieces.push(piece);
            }
            Ok(None) => return (pieces, bytes, Some(Ok(()))),
            Err(Fault::Passing { why, after, .. }) => {
                return (pieces, bytes, Some(Err(StreamFault::Passing { why, after })));
            }
            Err(Fault::Status { url, .. }) => {
                let error = PullError::refused(shown(&url), "a status in the middle of a body");
                return (pieces, bytes, Some(Err(StreamFault::Ended(error.into()))));
            }
            Err(Fault::Final(error)) => {
                return (pieces, bytes, Some(Err(StreamFault::Ended(error.into()))));
            }
        }
    }
    (pieces, bytes, None)
}

/// Downloads a file from a server without ranges, in one stream. It cannot be resumed.
pub(super) async fn whole_body(
    downloader: &Downloader,
    wanted: &Arc<RemoteFile>,
    state: &Arc<FileState>,
    mut answer: HttpResponse,
    total: Option<u64>,
    path: &Path,
) -> Result<(Hasher, u64), AttemptEnd> {
    if let Some(total) = total {
        downloader.check_length(wanted, total)?;
    }
    let total = total.or(wanted.size_bytes);
    state.total.store(total.unwrap_or(0), Relaxed);
    let most = total.unwrap_or(FILE_BYTES_MAX);
    let file = Arc::new(downloader.create_part(path, total)?);
    // Git's digest covers the length. A source that states such a digest states the length too.
    let follower = Follower::start(file.clone(), hasher(wanted, total.unwrap_or(0)));
    let mut at = 0;
    loop {
        let (pieces, bytes, ended) = gather(downloader, &mut answer, most - at).await;
        let (file, from, room) = (file.clone(), at, downloader.room.clone());
        let written = tokio::task::spawn_blocking(move || {
            pieces.iter().try_fold(from, |at, piece| {
                write_at(&file, piece, at, room.as_deref()).map(|()| at + piece.len() as u64)
            })
        });
        let written = written.await.map_err(|error| PullError::Internal(error.to_string()))?;
        at = written.map_err(|error| write_failed(path, total.unwrap_or(at), error))?;
        state.arrived(bytes);
        follower.whole_to(at);
        match ended {
            Some(Err(StreamFault::Passing { why, .. })) => return Err(AttemptEnd::BrokeOff(why)),
            Some(Err(StreamFault::Ended(ended))) => return Err(ended),
            Some(Ok(())) if total.is_some_and(|total| at < total) => {
                return Err(AttemptEnd::BrokeOff("the connection ended early".to_owned()));
            }
            Some(Ok(())) => break,
            None if at == most && total.is_some() => break,
            None if at == most => {
                let why = format!("it has more than {FILE_BYTES_MAX} bytes");
                return Err(PullError::refused(&wanted.name, why).into());
            }
            None => {}
        }
    }
    let hasher = follower.finish().await.map_err(disk(path))?;
    Ok((hasher, at))
}

/// Converts a failure that a retry cannot fix.
pub(super) fn final_fault(wanted: &RemoteFile, fault: Fault) -> PullError {
    match fault {
        Fault::Final(error) => error,
        Fault::Passing { why, .. } => PullError::Network { url: shown(&wanted.url), attempts: 1, why },
        Fault::Status { status, url, detail, .. } => match status.as_u16() {
            status @ (401 | 403) => PullError::Forbidden {
                what: wanted.name.clone(),
                status,
                hint: format!("{} says {}", url.host_str().unwrap_or_default(), said(&detail)),
            },
            404 | 410 => {
                PullError::NotFound { what: wanted.name.clone(), hint: format!("looked at {}", shown(&url)) }
            }
            status => PullError::Status { url: shown(&url), status, detail },
        },
    }
}

fn said(detail: &str) -> &str {
    if detail.is_empty() { "no more than that" } else { detail }
}
