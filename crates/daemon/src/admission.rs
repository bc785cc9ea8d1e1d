//! Admission control of one model: a queue kept as a count. A request takes a place when it arrives and gives it
//! back when its first step runs, whether it waits for its prompt, in the worker's channel or in the engine. The
//! limit is therefore the number of waiting requests, and `retry-after` is measured. A request of many batches
//! keeps its place to the end, because its batches wait one after the other; it still counts as running once it has
//! begun.

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
    taken: AtomicUsize, // places in use, at most `capacity`
    kept: AtomicUsize,  // places in use by requests that have begun
    running: AtomicUsize,
    // Moving mean of the time from a request's first step to its end, in microseconds. 0 until one has ended.
    service_us: AtomicU64,
}

/// A place in the queue; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct QueuePlace(Arc<Admission>);

/// A request that has begun; dropping it counts it out.
#[derive(Debug)]
pub(crate) struct RunningPlace(Arc<Admission>);

/// Place of a request of many batches. The request and each of its batches hold it until the worker drops the
/// batch. The worker's channel therefore has room whenever a place is free.
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
    /// Creates an empty queue with this many places.
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
    /// [`Full`], with an estimate of when a place will be free.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<QueuePlace, Full> {
        let room = |taken: usize| (taken < self.capacity).then_some(taken + 1);
        match self.taken.fetch_update(Relaxed, Relaxed, room) {
            Ok(_) => Ok(QueuePlace(self.clone())),
            Err(_) => Err(self.full()),
        }
    }

    /// Refusal with the current capacity and retry time.
    pub(crate) fn full(&self) -> Full {
        Full { capacity: self.capacity, retry_after_ms: self.retry_after_ms() }
    }

    /// Number of places in total.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.taken.load(Relaxed).saturating_sub(self.kept.load(Relaxed))
    }

    /// Number of requests that have begun and not ended.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Relaxed)
    }

    /// Records the time that a request took from its first step to its end. Called by the worker and by the tasks
    /// that answer.
    pub(crate) fn served(&self, service: Duration) {
        let new = u64::try_from(service.as_micros()).unwrap_or(u64::MAX).max(1);
        // Exponential moving average with weight 1/8: a few requests shift it, one outlier does not.
        let mean = |old: u64| Some(if old == 0 { new } else { (old - old / 8 + new / 8).max(1) });
        // Never refused: the closure always gives a value.
        let _ = self.service_us.fetch_update(Relaxed, Relaxed, mean);
    }

    /// Estimates when the next place is free: when a running request ends and the first waiting one begins.
    fn retry_after_ms(&self) -> u64 {
        match self.service_us.load(Relaxed) {
            0 => RETRY_AFTER_MS_UNMEASURED,
            us => (us / 1000 / self.running().max(1) as u64).clamp(RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX),
        }
    }
}

impl QueuePlace {
    /// Gives the place back, because the request's first step runs.
    pub(crate) fn begin(self) -> RunningPlace {
        self.0.running.fetch_add(1, Relaxed);
        RunningPlace(self.0.clone())
    }

    /// Keeps the place until a request of many batches ends.
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

    /// Start of the first batch's first step, if it has run.
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
        // The mean starts far above zero and each report takes an eighth away, so a lost report shows.
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
