//! Jobs that wait for their media, for answers or for vectors. Their frames go through the tower one after the
//! other, a piece per step, and a job enters when all its rows are there. Beside decoding sequences a piece takes
//! only a part of the step's time ([`super::sizes`]), so that each next token comes after less than twice the time.
//! Rows of frames are cached by digest while there is room.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use hanzo_engine_ops::KernelError;

use super::sizes::Sizes;
use crate::{
    job::{EmbedJob, Job, JobId},
    media::MediaSpan,
    vision::{Products, Towers},
};

/// Rows of a frame.
type Rows = Arc<[f32]>;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MediaCounts {
    /// Frames that went through the tower.
    pub(super) seen: u64,
    /// Frames that got their rows, from the tower or from the cache.
    pub(super) filled: u64,
    /// Media tokens of prompts.
    pub(super) tokens: u64,
}

/// Tower and the jobs that wait for it.
pub(super) struct Pictures {
    tower: Box<dyn Towers>,
    waiting: VecDeque<QueuedWork>,
    /// Whether the first missing frame of the first waiting job has been started.
    begun: bool,
    kept: RowCache,
    counts: MediaCounts,
    /// Sizes of the pieces.
    sizes: Sizes,
    /// Products in the last step's piece, if it had one to be measured.
    products: Option<Products>,
}

/// Work that waits for its media.
struct QueuedWork {
    work: Work,
    paused: bool,
}

/// Work to do once all media are there.
pub(super) enum Work {
    Answer(Arc<Job>),
    Embed(EmbedJob),
}

/// Job whose media rows are complete.
pub(super) struct Ready {
    pub(super) work: Work,
    pub(super) paused: bool,
}

/// Whether a span's rows are still to be computed.
fn is_missing(span: &MediaSpan) -> bool {
    span.is_to_be_seen() && span.rows.is_empty()
}

impl Work {
    pub(super) fn id(&self) -> JobId {
        match self {
            Work::Answer(job) => job.id,
            Work::Embed(job) => job.id,
        }
    }

    fn media(&mut self) -> Vec<&mut Arc<[MediaSpan]>> {
        match self {
            Work::Answer(job) => vec![&mut Arc::make_mut(job).media],
            Work::Embed(job) => job.inputs.iter_mut().map(|input| &mut input.media).collect(),
        }
    }

    /// The first frame whose rows are missing.
    fn missing(&self) -> Option<&MediaSpan> {
        match self {
            Work::Answer(job) => job.media.iter().find(|span| is_missing(span)),
            Work::Embed(job) => {
                job.inputs.iter().flat_map(|input| &input.media[..]).find(|span| is_missing(span))
            }
        }
    }

    /// Number of media tokens.
    fn tokens(&self) -> u64 {
        let count = |media: &[MediaSpan]| media.iter().map(|span| span.tokens as u64).sum::<u64>();
        match self {
            Work::Answer(job) => count(&job.media),
            Work::Embed(job) => job.inputs.iter().map(|input| count(&input.media)).sum(),
        }
    }

    /// Fills in the cached rows. Returns the number of frames filled.
    fn fill(&mut self, kept: &mut RowCache) -> u64 {
        let mut filled_frames = 0;
        for media in self.media() {
            if !media.iter().any(is_missing) {
                continue;
            }
            let mut filled = media.to_vec();
            for span in filled.iter_mut().filter(|span| is_missing(span)) {
                if let Some(rows) = kept.get(&span.digest) {
                    filled_frames += 1;
                    span.rows = rows;
                    // The pixels are no longer needed.
                    span.pixels = Arc::default();
                }
            }
            *media = filled.into();
        }
        filled_frames
    }
}

impl Pictures {
    pub(super) fn new(tower: Box<dyn Towers>) -> Self {
        let kept = RowCache::new(tower.kept_bytes());
        let waiting = VecDeque::new();
        Pictures {
            tower,
            waiting,
            begun: false,
            kept,
            counts: MediaCounts::default(),
            sizes: Sizes::default(),
            products: None,
        }
    }

    /// Whether some span has to wait for the tower.
    pub(super) fn concerns<'a>(mut media: impl Iterator<Item = &'a MediaSpan>) -> bool {
        media.any(is_missing)
    }

    pub(super) fn submit(&mut self, work: Work) {
        self.waiting.push_back(QueuedWork { work, paused: false });
    }

    pub(super) fn cancel(&mut self, job: JobId) {
        self.begun &= self.waiting.front().is_none_or(|first| first.work.id() != job);
        self.waiting.retain(|waiting| waiting.work.id() != job);
    }

    pub(super) fn set_paused(&mut self, job: JobId, paused: bool) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.work.id() == job) {
            waiting.paused = paused;
        }
    }

    pub(super) fn count(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn counts(&self) -> MediaCounts {
        self.counts
    }

    /// Records the time of the last step's piece.
    pub(super) fn took(&mut self, seconds: f32) {
        if let Some(products) = self.products.take() {
            self.sizes.took(products, seconds);
        }
    }

    /// Computes one piece. `beside` is given if sequences decode: the time of their step without and with draft
    /// tokens, if known. Returns a job whose rows are now complete.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn step(&mut self, beside: Option<Option<(f64, f64)>>) -> Result<Option<Ready>, KernelError> {
        self.products = None;
        let Some(first) = self.waiting.front_mut() else { return Ok(None) };
        if !self.begun {
            self.counts.filled += first.work.fill(&mut self.kept);
        }
        let Some(span) = first.work.missing() else {
            let ready = self.waiting.pop_front();
            self.counts.tokens += ready.as_ref().map_or(0, |ready| ready.work.tokens());
            return Ok(ready.map(|QueuedWork { work, paused }| Ready { work, paused }));
        };
        if !self.begun {
            self.tower.begin(span)?;
            self.begun = true;
        }
        let piece = beside.map_or_else(|| self.sizes.alone(), |others_s| self.sizes.beside(others_s));
        let given = self.tower.advance(piece)?;
        self.products = self.tower.spent();
        if let Some(rows) = given {
            self.begun = false;
            self.counts.seen += 1;
            self.kept.put(span.digest, rows.into());
            self.counts.filled += first.work.fill(&mut self.kept);
        }
        Ok(None)
    }
}

/// Rows by digest, with least recently used eviction.
pub(super) struct RowCache {
    rows: HashMap<[u8; 32], (Rows, u64)>,
    used: BTreeMap<u64, [u8; 32]>,
    clock: u64,
    bytes: usize,
    bytes_max: usize,
}

impl RowCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        RowCache { rows: HashMap::new(), used: BTreeMap::new(), clock: 0, bytes: 0, bytes_max }
    }

    pub(super) fn get(&mut self, name: &[u8; 32]) -> Option<Rows> {
        let (rows, used) = self.rows.get_mut(name)?;
        self.used.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.used.insert(self.clock, *name);
        Some(rows.clone())
    }

    /// Adds rows. The newest entry always stays, however large: its job has yet to read it.
    pub(super) fn put(&mut self, name: [u8; 32], rows: Rows) {
        self.bytes += size_of_val(&rows[..]);
        self.clock += 1;
        if let Some((old, used)) = self.rows.insert(name, (rows, self.clock)) {
            self.bytes -= size_of_val(&old[..]);
            self.used.remove(&used);
        }
        self.used.insert(self.clock, name);
        while self.bytes > self.bytes_max && self.rows.len() > 1 {
            let Some((_, oldest)) = self.used.pop_first() else { break };
            if let Some((rows, _)) = self.rows.remove(&oldest) {
                self.bytes -= size_of_val(&rows[..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_were_used_the_longest_ago_go_first() {
        let mut kept = RowCache::new(3 * 16);
        let rows = |value: f32| Rows::from(vec![value; 4]);
        let name = |name: u8| [name; 32];
        for value in 1..=3 {
            kept.put(name(value), rows(f32::from(value)));
        }
        assert_eq!(kept.get(&name(1)).as_deref(), Some(&[1.0; 4][..]));
        kept.put(name(4), rows(4.0));
        assert!(kept.get(&name(2)).is_none(), "the longest ago");
        assert!([1, 3, 4].into_iter().all(|value| kept.get(&name(value)).is_some()));
        kept.put(name(4), rows(5.0));
        assert_eq!((kept.bytes, kept.rows.len(), kept.used.len()), (48, 3, 3), "the same name again");
        kept.put(name(9), Rows::from(vec![0.0; 100]));
        assert_eq!((kept.bytes, kept.rows.len()), (400, 1), "one that is larger than all room");
    }
}
