//! Progress of a pull: counters, updated by the transfers and read by watchers.

use crate::digest::Digest;
use crate::record::{FileRecord, ModelRecord};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Phase of a pull or of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Asking the source for the model's description.
    #[default]
    Resolving,
    /// Fetching, or waiting to fetch.
    Downloading,
    /// Comparing digests and publishing the model.
    Verifying,
    /// Complete.
    Done,
}

/// Progress of a pull.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Name that the model will have, or the user's text until that is known.
    pub model: String,
    /// Phase of the least advanced file.
    pub phase: Phase,
    /// Progress of each file, in the order of the model.
    pub files: Vec<FileProgress>,
    /// Bytes of all files that are on this machine.
    pub bytes_done: u64,
    /// Total bytes of all files, as far as they are known.
    pub bytes_total: u64,
    /// Bytes received over the network in this pull.
    pub bytes_fetched: u64,
    /// Recent rate in bytes a second. For a finished pull, the average over all of it.
    pub bytes_per_s: f64,
    /// Estimated seconds left at that rate. None if it cannot be estimated.
    pub eta_s: Option<f64>,
}

/// Progress of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileProgress {
    /// Name of the file within the model.
    pub name: String,
    /// Phase of the file.
    pub phase: Phase,
    /// Bytes on this machine.
    pub bytes_done: u64,
    /// Size in bytes; 0 while unknown.
    pub bytes_total: u64,
    /// Digest stated by the source: `sha256:…` or `git:…`.
    pub digest: Option<String>,
}

/// Counters of one file.
#[derive(Default)]
pub(crate) struct FileState {
    pub(crate) name: String,
    digest: Option<String>,
    pub(crate) total: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) fetched: AtomicU64,
    phase: AtomicU8,
}

/// Counters of a pull.
#[derive(Default)]
pub(crate) struct PullProgress {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    model: String,
    files: Vec<Arc<FileState>>,
    rate: Rate,
}

/// Transfer rate in bytes a second, as an exponential average.
#[derive(Default)]
struct Rate {
    last: Option<(Instant, u64)>,
    bytes_per_s: Option<f64>,
}

/// Time constant of the average in seconds: after it, a sample has about a third (1/e) of its weight.
const MEMORY_S: f64 = 3.0;

impl FileState {
    pub(crate) fn new(name: &str, total: Option<u64>, digest: Option<&Digest>) -> Arc<Self> {
        let total = AtomicU64::new(total.unwrap_or(0));
        let digest = digest.map(Digest::to_string);
        Arc::new(Self { name: name.to_owned(), digest, total, ..Self::default() })
    }

    pub(crate) fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
    }

    /// Counts bytes that came over the network and are on disk.
    pub(crate) fn arrived(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
        self.fetched.fetch_add(bytes, Relaxed);
    }

    /// Marks the file as complete with this size.
    pub(crate) fn complete(&self, bytes: u64) {
        self.total.store(bytes, Relaxed);
        self.done.store(bytes, Relaxed);
        self.set(Phase::Done);
    }

    fn phase(&self) -> Phase {
        let phases = [Phase::Resolving, Phase::Downloading, Phase::Verifying, Phase::Done];
        phases[usize::from(self.phase.load(Relaxed)).min(3)]
    }
}

impl PullProgress {
    pub(crate) fn begin(&self, model: &str, files: Vec<Arc<FileState>>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        model.clone_into(&mut inner.model);
        inner.files = files;
    }

    /// Returns the current progress. Call it from one place only: the rate covers the time since the last call.
    pub(crate) fn snapshot(&self) -> Progress {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let files: Vec<FileProgress> = inner
            .files
            .iter()
            .map(|file| FileProgress {
                name: file.name.clone(),
                phase: file.phase(),
                bytes_done: file.done.load(Relaxed),
                bytes_total: file.total.load(Relaxed),
                digest: file.digest.clone(),
            })
            .collect();
        let bytes_fetched = inner.files.iter().map(|file| file.fetched.load(Relaxed)).sum();
        let bytes_per_s = inner.rate.after(bytes_fetched, Instant::now());
        let bytes_done: u64 = files.iter().map(|file| file.bytes_done).sum();
        let bytes_total: u64 = files.iter().map(|file| file.bytes_total).sum();
        let to_go = bytes_total.saturating_sub(bytes_done) as f64;
        let lengths_known = files.iter().all(|file| file.bytes_total > 0 || file.phase == Phase::Done);
        let eta_s = (lengths_known && bytes_per_s >= 1.0).then(|| to_go / bytes_per_s);
        // Report done only when the model is published, not when its last file is complete.
        let phase = files.iter().map(|file| file.phase).min().unwrap_or_default().min(Phase::Verifying);
        let model = inner.model.clone();
        Progress { model, phase, files, bytes_done, bytes_total, bytes_fetched, bytes_per_s, eta_s }
    }
}

impl PullProgress {
    /// Returns the final progress: all files of `record` are present after `took`.
    pub(crate) fn finished(&self, record: &ModelRecord, took: Duration) -> Progress {
        let mut last = self.snapshot();
        for file in &mut last.files {
            let named = |known: &&FileRecord| known.path.ends_with(&file.name);
            let bytes = record.files.iter().find(named).map_or(file.bytes_done, |known| known.size_bytes);
            (file.phase, file.bytes_done, file.bytes_total) = (Phase::Done, bytes, bytes);
        }
        Progress {
            model: record.name.clone(),
            phase: Phase::Done,
            bytes_done: record.size_bytes,
            bytes_total: record.size_bytes,
            // If the clock did not advance, the rate is unknown.
            bytes_per_s: match took.as_secs_f64() {
                0.0 => 0.0,
                seconds => last.bytes_fetched as f64 / seconds,
            },
            eta_s: Some(0.0),
            ..last
        }
    }
}

impl Rate {
    fn after(&mut self, bytes: u64, now: Instant) -> f64 {
        if let Some((then, before)) = self.last {
            let seconds = now.saturating_duration_since(then).as_secs_f64();
            if seconds < 1e-3 {
                return self.bytes_per_s.unwrap_or(0.0);
            }
            let latest = bytes.saturating_sub(before) as f64 / seconds;
            let kept = (-seconds / MEMORY_S).exp();
            let known = self.bytes_per_s.unwrap_or(latest);
            self.bytes_per_s = Some(known * kept + latest * (1.0 - kept));
        }
        self.last = Some((now, bytes));
        self.bytes_per_s.unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_told_and_a_stop_is_forgotten_slowly() {
        let mut rate = Rate::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(rate.after(0, at(0)), 0.0);
        for step in 1..=100 {
            rate.after(step * 1_000, at(step * 100));
        }
        assert!((rate.after(101_000, at(10_100)) - 10_000.0).abs() < 1e-6);
        let after = rate.after(101_000, at(13_100));
        assert!((3_000.0..4_000.0).contains(&after), "{after}");
    }

    #[test]
    fn the_phase_is_that_of_the_last_file() {
        let pull = PullProgress::default();
        assert_eq!(pull.snapshot().phase, Phase::Resolving);
        let files = [FileState::new("a", Some(10), None), FileState::new("b", None, None)];
        pull.begin("m", files.to_vec());
        files[0].complete(10);
        files[1].set(Phase::Downloading);
        files[1].arrived(5);
        let seen = pull.snapshot();
        assert_eq!((seen.phase, seen.bytes_done, seen.bytes_total), (Phase::Downloading, 15, 10));
        assert_eq!(seen.eta_s, None, "a length is unknown");
        files[1].complete(5);
        assert_eq!(pull.snapshot().phase, Phase::Verifying);
    }
}
