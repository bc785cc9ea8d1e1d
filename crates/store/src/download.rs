//! Download of one file into a blob. Uses ranges over several connections if the server supports them,
//! otherwise one stream. Hashes while writing. After a crash it resumes from the ranges noted in the journal.

mod stream;

use crate::digest::{Digest, Hasher, sha256_of};
use crate::http::{Auth, Fault, Get, Http, HttpResponse, shown, unquoted};
use crate::journal::{Header, Journal};
use crate::layout::Layout;
use crate::limits::{ATTEMPTS_MAX, FILE_BYTES_MAX, RESTARTS_MAX, SPARE_BYTES};
use crate::pins::Pin;
use crate::progress::{FileState, Phase};
use crate::{PullError, StoreError, file_system};
use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap};
use reqwest::{StatusCode, Url};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Downloads files into one store.
#[derive(Clone)]
pub(crate) struct Downloader {
    pub(crate) http: Arc<Http>,
    pub(crate) layout: Layout,
    /// See [`crate::StoreSettings::write_bytes_max`].
    pub(crate) room: Option<Arc<AtomicU64>>,
}

/// File to download.
#[derive(Clone)]
pub(crate) struct RemoteFile {
    pub(crate) name: String,
    pub(crate) url: Url,
    pub(crate) auth: Option<Auth>,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) digest: Option<Digest>,
}

/// Part file with every byte present.
struct CompletePart {
    hasher: Hasher,
    size_bytes: u64,
    /// True if some of its bytes are from an earlier attempt.
    resumed: bool,
}

/// Reason why an attempt to download a file ended.
pub(crate) enum AttemptEnd {
    /// The server's copy has changed. Start again from the beginning.
    Changed,
    /// A server without ranges broke off. Start again from the beginning.
    BrokeOff(String),
    /// The download failed for good.
    Failed(PullError),
}

impl From<PullError> for AttemptEnd {
    fn from(error: PullError) -> Self {
        Self::Failed(error)
    }
}

/// Part file being written, with its journal and total size.
pub(crate) struct PartFile {
    pub(crate) file: Arc<File>,
    pub(crate) path: PathBuf,
    pub(crate) journal: Mutex<Journal>,
    pub(crate) total: u64,
    room: Option<Arc<AtomicU64>>,
}

impl Downloader {
    /// Downloads a file and makes it a blob. Returns its SHA-256 and length.
    pub(crate) async fn fetch(
        &self,
        wanted: &Arc<RemoteFile>,
        state: &Arc<FileState>,
        pin: &Mutex<Pin>,
    ) -> Result<(String, u64), PullError> {
        let key = part_key(wanted);
        let (part, journal) = self.part_paths(&key);
        state.set(Phase::Downloading);
        let (mut changes, mut breaks, mut distrusted) = (0, 0, false);
        loop {
            let ended = match self.attempt(wanted, state, &part, &journal).await {
                Ok(whole) => match self.finish_part(wanted, whole, state, &part, &journal, pin).await {
                    // The disk may have lost bytes of an earlier process. Download everything once more.
                    Err((PullError::DigestMismatch { .. }, true)) if !distrusted => {
                        distrusted = true;
                        None
                    }
                    Err((error, _)) => return Err(error),
                    Ok(done) => return Ok(done),
                },
                Err(ended) => Some(ended),
            };
            match ended {
                None => {}
                Some(AttemptEnd::Failed(error)) => return Err(error),
                Some(AttemptEnd::Changed) => {
                    changes += 1;
                    if changes > RESTARTS_MAX {
                        return Err(PullError::Unsteady { file: wanted.name.clone(), times: changes });
                    }
                }
                Some(AttemptEnd::BrokeOff(why)) => {
                    breaks += 1;
                    if breaks >= ATTEMPTS_MAX {
                        return Err(PullError::Network { url: shown(&wanted.url), attempts: breaks, why });
                    }
                    self.http.pause(breaks, None).await;
                }
            }
            for path in [&part, &journal] {
                file_system::delete_file(path).map_err(disk(path))?;
            }
            state.done.store(0, Relaxed);
        }
    }

    /// Returns the number of bytes of `wanted` already on disk from an earlier attempt.
    pub(crate) fn fetched_before(&self, wanted: &RemoteFile) -> u64 {
        let (part, journal) = self.part_paths(&part_key(wanted));
        match Journal::open(&journal) {
            Ok(Some(journal)) if part.is_file() && is_of(&journal.header, wanted) => journal.done.bytes(),
            _ => 0,
        }
    }

    fn part_paths(&self, key: &str) -> (PathBuf, PathBuf) {
        let dir = self.layout.partial();
        (dir.join(format!("{key}.part")), dir.join(format!("{key}.journal")))
    }

    async fn attempt(
        &self,
        wanted: &Arc<RemoteFile>,
        state: &Arc<FileState>,
        part_path: &Path,
        journal_path: &Path,
    ) -> Result<CompletePart, AttemptEnd> {
        if let Some(part) = self.resume(wanted, part_path, journal_path)? {
            return self.ranges(wanted, state, part, None).await;
        }
        if wanted.size_bytes == Some(0) {
            File::create(part_path).map_err(disk(part_path))?;
            return Ok(CompletePart { hasher: Hasher::new(Some(0)), size_bytes: 0, resumed: false });
        }
        let (first, total) = match self.first(wanted).await? {
            First::Ranges(answer, total) => (answer, total),
            First::Stream(answer, total) => {
                return stream::whole_body(self, wanted, state, answer, total, part_path)
                    .await
                    .map(|(hasher, size_bytes)| CompletePart { hasher, size_bytes, resumed: false });
            }
        };
        self.check_length(wanted, total)?;
        let header = Header {
            url: shown(&wanted.url),
            digest: wanted.digest.as_ref().map(Digest::to_string),
            total,
            etag: etag(first.response.headers()),
        };
        let file = self.create_part(part_path, Some(total))?;
        let journal = Journal::create(journal_path, header).map_err(disk(journal_path))?;
        let part = self.part(file, part_path, journal);
        self.ranges(wanted, state, part, Some(first)).await
    }

    /// Opens the part file of an earlier attempt, if it belongs to this file.
    fn resume(
        &self,
        wanted: &RemoteFile,
        path: &Path,
        journal_path: &Path,
    ) -> Result<Option<PartFile>, PullError> {
        let journal = Journal::open(journal_path).map_err(disk(journal_path))?;
        let Some(journal) = journal.filter(|journal| is_of(&journal.header, wanted)) else { return Ok(None) };
        let file = OpenOptions::new().read(true).write(true).open(path);
        match file {
            Ok(file) if file.metadata().is_ok_and(|meta| meta.len() == journal.header.total) => {
                Ok(Some(self.part(file, path, journal)))
            }
            _ => Ok(None),
        }
    }

    fn part(&self, file: File, path: &Path, journal: Journal) -> PartFile {
        PartFile {
            file: Arc::new(file),
            path: path.to_owned(),
            total: journal.header.total,
            journal: Mutex::new(journal),
            room: self.room.clone(),
        }
    }

    /// Creates the part file, sparse.
    pub(crate) fn create_part(&self, path: &Path, total: Option<u64>) -> Result<File, PullError> {
        if let Some(total) = total {
            let free_bytes = file_system::free_bytes(self.layout.dir()).map_err(disk(path))?;
            if total.saturating_add(SPARE_BYTES) > free_bytes {
                let dir = self.layout.dir().to_owned();
                return Err(StoreError::DiskFull { dir, needed_bytes: total, free_bytes }.into());
            }
        }
        let made = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
        let made = made.and_then(|file| file.set_len(total.unwrap_or(0)).map(|()| file));
        made.map_err(disk(path))
    }

    /// Checks the length that the server states against the length promised by the source and the limits.
    pub(crate) fn check_length(&self, wanted: &RemoteFile, total: u64) -> Result<(), PullError> {
        let name = &wanted.name;
        match wanted.size_bytes {
            Some(said) if said != total => {
                let why = format!("the server has {total} bytes of it, and {said} were promised");
                Err(PullError::refused(name, why))
            }
            _ if total > FILE_BYTES_MAX => {
                Err(PullError::refused(name, format!("{total} bytes, and {FILE_BYTES_MAX} is the most")))
            }
            _ => Ok(()),
        }
    }

    /// Sends the first request, which shows if the server supports ranges.
    async fn first(&self, wanted: &RemoteFile) -> Result<First, AttemptEnd> {
        let last = stream::CHUNK_LAST.min(wanted.size_bytes.unwrap_or(u64::MAX).saturating_sub(1));
        let get = Get {
            url: &wanted.url,
            auth: wanted.auth.as_ref(),
            range: Some((0, last)),
            accept: None,
            led_by_public: false,
        };
        let mut attempts = 0;
        loop {
            let (why, after) = match self.http.get(&get).await {
                Ok(answer) => return First::of(wanted, answer),
                Err(Fault::Passing { why, after, .. }) => (why, after),
                Err(fault) => return Err(stream::final_fault(wanted, fault).into()),
            };
            attempts += 1;
            if attempts >= ATTEMPTS_MAX {
                return Err(PullError::Network { url: shown(&wanted.url), attempts, why }.into());
            }
            self.http.pause(attempts, after).await;
        }
    }

    async fn ranges(
        &self,
        wanted: &Arc<RemoteFile>,
        state: &Arc<FileState>,
        part: PartFile,
        first: Option<HttpResponse>,
    ) -> Result<CompletePart, AttemptEnd> {
        let before = part.journal.lock().map_or(0, |journal| journal.done.bytes());
        state.total.store(part.total, Relaxed);
        state.done.store(before, Relaxed);
        let total = part.total;
        let hasher = stream::all_ranges(self, wanted, state, part, first).await?;
        Ok(CompletePart { hasher, size_bytes: total, resumed: before > 0 })
    }

    /// Compares digests and turns the part into a blob. The flag of an error is true if some of the part was
    /// from an earlier attempt.
    async fn finish_part(
        &self,
        wanted: &Arc<RemoteFile>,
        whole: CompletePart,
        state: &Arc<FileState>,
        part: &Path,
        journal: &Path,
        pin: &Mutex<Pin>,
    ) -> Result<(String, u64), (PullError, bool)> {
        state.set(Phase::Verifying);
        let CompletePart { hasher, size_bytes, resumed } = whole;
        let (sha256, found) = hasher.finish(wanted.digest.as_ref());
        let delete = || {
            for path in [part, journal] {
                if let Err(error) = file_system::delete_file(path) {
                    tracing::warn!(path = %path.display(), %error, "a refused download stays");
                }
            }
        };
        if let (Some(expected), Some(found)) = (&wanted.digest, found)
            && *expected != found
        {
            delete();
            let (file, expected) = (wanted.name.clone(), expected.clone());
            return Err((PullError::DigestMismatch { file, expected, found }, resumed));
        }
        if !begins_as_named(&wanted.name, part).map_err(|error| (disk(part)(error), false))? {
            delete();
            let why = "it does not begin as a GGUF file does; is the address that of a web page?";
            return Err((PullError::refused(&wanted.name, why), false));
        }
        pin.lock().unwrap_or_else(std::sync::PoisonError::into_inner).hold(&sha256);
        let (from, to, journal) = (part.to_owned(), self.layout.blob(&sha256), journal.to_owned());
        let moved = tokio::task::spawn_blocking(move || {
            file_system::publish(&from, &to).map_err(disk(&to))?;
            file_system::delete_file(&journal).map_err(disk(&journal))
        });
        let moved = moved.await.unwrap_or_else(|error| Err(PullError::Internal(error.to_string())));
        moved.map_err(|error| (error, false))?;
        state.complete(size_bytes);
        Ok((sha256, size_bytes))
    }
}

enum First {
    /// The server supports ranges. The file has this many bytes.
    Ranges(HttpResponse, u64),
    /// The server sends the whole file. The length is known if the server states it.
    Stream(HttpResponse, Option<u64>),
}

impl First {
    fn of(wanted: &RemoteFile, answer: HttpResponse) -> Result<Self, AttemptEnd> {
        let response = &answer.response;
        if response.status() == StatusCode::PARTIAL_CONTENT {
            return match content_range(response.headers()) {
                Some((0, _, total)) if total > 0 => Ok(Self::Ranges(answer, total)),
                _ => {
                    let why = "the server sends another range than it was asked for";
                    Err(PullError::refused(&wanted.name, why).into())
                }
            };
        }
        let total = response.content_length();
        Ok(Self::Stream(answer, total))
    }
}

impl PartFile {
    /// Writes the pieces at offset `at` and notes them in the journal.
    pub(crate) fn write(&self, mut at: u64, pieces: &[bytes::Bytes]) -> Result<(), PullError> {
        let from = at;
        for piece in pieces {
            write_at(&self.file, piece, at, self.room.as_deref())
                .map_err(|error| write_failed(&self.path, self.total, error))?;
            at += piece.len() as u64;
        }
        let mut journal = self.journal.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        journal.note(from, at).map_err(|error| write_failed(&self.path, self.total, error))
    }
}

/// Writes all bytes at an offset. `room` simulates a disk with limited space.
pub(crate) fn write_at(file: &File, bytes: &[u8], at: u64, room: Option<&AtomicU64>) -> io::Result<()> {
    if let Some(room) = room {
        let taken = room.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes.len() as u64));
        taken.map_err(|_| io::Error::from(io::ErrorKind::StorageFull))?;
    }
    file.write_all_at(bytes, at)
}

/// Converts a failed write: a full disk becomes [`StoreError::DiskFull`].
pub(crate) fn write_failed(path: &Path, needed_bytes: u64, source: io::Error) -> PullError {
    if source.kind() == io::ErrorKind::StorageFull || source.kind() == io::ErrorKind::QuotaExceeded {
        let dir = path.parent().unwrap_or(path).to_owned();
        let free_bytes = file_system::free_bytes(&dir).unwrap_or(0);
        return StoreError::DiskFull { dir, needed_bytes, free_bytes }.into();
    }
    PullError::Disk { path: path.to_owned(), source }
}

pub(crate) fn disk(path: &Path) -> impl FnOnce(io::Error) -> PullError + use<> {
    let path = path.to_owned();
    move |source| PullError::Disk { path, source }
}

/// Names the part file: by the expected SHA-256, or by the URL.
pub(crate) fn part_key(wanted: &RemoteFile) -> String {
    match &wanted.digest {
        Some(Digest::Sha256(hex)) => format!("sha256-{hex}"),
        // Only the URL's path identifies a file: queries carry signatures.
        _ => format!("url-{}", &sha256_of(shown(&wanted.url).as_bytes())[..32]),
    }
}

/// Returns true if a journal belongs to the wanted file.
fn is_of(header: &Header, wanted: &RemoteFile) -> bool {
    let digest = wanted.digest.as_ref().map(Digest::to_string);
    let same_file = match &wanted.digest {
        Some(Digest::Sha256(_)) => header.digest == digest,
        _ => header.digest == digest && header.url == shown(&wanted.url),
    };
    same_file && wanted.size_bytes.is_none_or(|size| size == header.total)
}

/// Parses `Content-Range`: first byte, last byte and total length.
pub(crate) fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let range = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
    let (range, total) = range.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let range = (first.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
    (range.0 <= range.1 && range.1 < range.2).then_some(range)
}

pub(crate) fn etag(headers: &HeaderMap) -> Option<String> {
    headers.get(ETAG).and_then(unquoted)
}

/// Checks the magic bytes of a file whose name ends in `.gguf`.
fn begins_as_named(name: &str, path: &Path) -> io::Result<bool> {
    if !name.to_ascii_lowercase().ends_with(".gguf") {
        return Ok(true);
    }
    let mut magic = [0_u8; 4];
    match File::open(path)?.read_exact_at(&mut magic, 0) {
        Ok(()) => Ok(&magic == b"GGUF"),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
