//! The queue before a model, as a count: a request takes a place when it arrives and gives it back when its first
//! step runs, wherever it waits in between (prompt being built, worker's channel, engine). So the limit is the
//! number of requests that wait, and `retry-after` is measured. A request of many batches keeps its place to the end,
//! because its batches wait one after the other; once it has begun it counts as running all the same.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::{
    limits::{RETRY_AFTER_MS_MAX, RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_UNMEASURED},
    sync::{AtomicU64, AtomicUsize, OnceLock},
};

/// The queue of one model.
#[derive(Debug)]
pub(crate) struct Admission {
    capacity: usize,
    taken: AtomicUsize, // places; not above `capacity`
    kept: AtomicUsize,  // of them, those of requests that have begun
    running: AtomicUsize,
    // Moving mean of what a request takes from its first step to its end; 0: none has ended yet.
    service_us: AtomicU64,
}

/// A place in the queue; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct QueuePlace(Arc<Admission>);

/// A request that has begun; dropping it counts it out.
#[derive(Debug)]
pub(crate) struct RunningPlace(Arc<Admission>);

/// The place of a request of many batches. The request holds it, and so does each batch until its worker lets go of it:
/// as long as a place is free, there is room in the worker's channel.
#[derive(Debug)]
pub(crate) struct KeptPlace {
    place: QueuePlace,
    began: OnceLock<Instant>,
}

/// No place is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) capacity: usize,
    pub(crate) retry_after_ms: u64,
}

impl Admission {
    /// An empty queue of so many places.
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            taken: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            service_us: AtomicU64::new(0),
        })
    }

    /// Takes a place.
    ///
    /// # Errors
    /// [`Full`], with when a place is likely to be free.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<QueuePlace, Full> {
        let room = |taken: usize| (taken < self.capacity).then_some(taken + 1);
        match self.taken.fetch_update(Relaxed, Relaxed, room) {
            Ok(_) => Ok(QueuePlace(self.clone())),
            Err(_) => Err(self.full()),
        }
    }

    /// That there is no place.
    pub(crate) fn full(&self) -> Full {
        Full { capacity: self.capacity, retry_after_ms: self.retry_after_ms() }
    }

    /// Places there are.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.taken.load(Relaxed).saturating_sub(self.kept.load(Relaxed))
    }

    /// Requests that have begun and not ended.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Relaxed)
    }

    /// A request took this long from its first step to its end. Said by the worker and by whoever answers.
    pub(crate) fn served(&self, service: Duration) {
        let new = u64::try_from(service.as_micros()).unwrap_or(u64::MAX).max(1);
        // An eighth of the news: a few requests turn it, one outlier does not.
        let mean = |old: u64| Some(if old == 0 { new } else { (old - old / 8 + new / 8).max(1) });
        // Never refused: the closure always gives a value.
        let _ = self.service_us.fetch_update(Relaxed, Relaxed, mean);
    }

    /// The next place is free when one of those that run ends and lets the first in line begin.
    fn retry_after_ms(&self) -> u64 {
        match self.service_us.load(Relaxed) {
            0 => RETRY_AFTER_MS_UNMEASURED,
            us => (us / 1000 / self.running().max(1) as u64).clamp(RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX),
        }
    }
}

impl QueuePlace {
    /// The request's first step runs.
    pub(crate) fn begin(self) -> RunningPlace {
        self.0.running.fetch_add(1, Relaxed);
        RunningPlace(self.0.clone())
    }

    /// Of a request of many batches.
    pub(crate) fn keep(self) -> Arc<KeptPlace> {
        Arc::new(KeptPlace { place: self, began: OnceLock::new() })
    }
}

impl KeptPlace {
    /// The first step of one of its batches runs.
    pub(crate) fn begin(&self, now: Instant) {
        if self.began.set(now).is_ok() {
            self.place.0.running.fetch_add(1, Relaxed);
            self.place.0.kept.fetch_add(1, Relaxed);
        }
    }

    /// When that was, if it was.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// The request has been answered.
    pub(crate) fn served(&self, now: Instant) {
        if let Some(&began) = self.began.get() {
            self.place.0.served(now.saturating_duration_since(began));
        }
    }
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        if self.began.get().is_some() {
            self.place.0.running.fetch_sub(1, Relaxed);
            self.place.0.kept.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Relaxed);
    }
}

impl Drop for RunningPlace {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_wherever_they_are_dropped() {
        let queue = Admission::new(2);
        let first = queue.enter().unwrap();
        let second = queue.enter().unwrap();
        assert_eq!(
            queue.enter().unwrap_err(),
            Full { capacity: 2, retry_after_ms: RETRY_AFTER_MS_UNMEASURED }
        );
        let running = first.begin();
        assert_eq!((queue.waiting(), queue.running()), (1, 1));
        drop(second);
        drop(running);
        assert_eq!((queue.waiting(), queue.running()), (0, 0));
    }

    #[test]
    fn retry_after_follows_what_requests_take() {
        let queue = Admission::new(1);
        for _ in 0..3 {
            queue.served(Duration::from_millis(8_000));
        }
        let running: Vec<_> = (0..4).map(|_| queue.enter().unwrap().begin()).collect();
        let _waiting = queue.enter().unwrap();
        let full = queue.enter().unwrap_err();
        assert!((1_990..=2_000).contains(&full.retry_after_ms), "{full:?}");
        drop(running);
        for _ in 0..100 {
            queue.served(Duration::from_micros(10));
        }
        assert_eq!(queue.enter().unwrap_err().retry_after_ms, RETRY_AFTER_MS_MIN);
    }

    #[test]
    fn a_request_of_many_batches_keeps_its_place_and_counts_as_running() {
        let queue = Admission::new(2);
        let place = queue.enter().unwrap().keep();
        let batches = [place.clone(), place.clone()];
        assert_eq!((queue.waiting(), queue.running()), (1, 0));
        batches[0].begin(Instant::now());
        batches[1].begin(Instant::now());
        assert_eq!((queue.waiting(), queue.running()), (0, 1));
        let other = queue.enter().unwrap();
        assert!(queue.enter().is_err(), "it has begun, and its next batch needs room all the same");
        drop(place);
        drop(other);
        let _next = queue.enter().unwrap();
        assert!(queue.enter().is_err(), "the client has left, and the batches are where they were");
        drop(batches);
        assert_eq!((queue.waiting(), queue.running()), (1, 0));
    }

    #[test]
    fn retry_after_counts_embeddings_as_running() {
        let queue = Admission::new(4);
        (0..20).for_each(|_| queue.served(Duration::from_millis(8_000)));
        let running: Vec<_> = (0..4).map(|_| queue.enter().unwrap().keep()).collect();
        running.iter().for_each(|place| place.begin(Instant::now()));
        let full = queue.enter().unwrap_err();
        assert!((1_990..=2_000).contains(&full.retry_after_ms), "{full:?}");
    }

    #[test]
    fn no_news_is_lost_between_writers() {
        let queue = Admission::new(1);
        // From far above, each word said takes an eighth away: one that is lost shows.
        queue.served(Duration::from_secs(1 << 20));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20).for_each(|_| queue.served(Duration::ZERO)));
            }
        });
        let alone = Admission::new(1);
        alone.served(Duration::from_secs(1 << 20));
        (0..80).for_each(|_| alone.served(Duration::ZERO));
        assert_eq!(queue.service_us.load(Relaxed), alone.service_us.load(Relaxed));
    }
}
