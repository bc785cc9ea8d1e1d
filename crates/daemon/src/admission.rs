//! The queue before a model, as a count: a request takes a place when it arrives and gives it back when its first
//! step runs, wherever it waits in between (prompt being built, worker's channel, engine). So the limit is the
//! number of requests that wait, and `retry-after` is measured.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::limits::{RETRY_AFTER_MS_MAX, RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_UNMEASURED};

/// The queue of one model.
#[derive(Debug)]
pub(crate) struct Admission {
    capacity: usize,
    waiting: AtomicUsize,
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
            waiting: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            service_us: AtomicU64::new(0),
        })
    }

    /// Takes a place.
    ///
    /// # Errors
    /// [`Full`], with when a place is likely to be free.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<QueuePlace, Full> {
        let room = |waiting: usize| (waiting < self.capacity).then_some(waiting + 1);
        match self.waiting.fetch_update(Relaxed, Relaxed, room) {
            Ok(_) => Ok(QueuePlace(self.clone())),
            Err(_) => Err(Full { capacity: self.capacity, retry_after_ms: self.retry_after_ms() }),
        }
    }

    /// Places there are.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Requests that have begun and not ended.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Relaxed)
    }

    /// A request took this long from its first step to its end.
    pub(crate) fn served(&self, service: Duration) {
        let new = u64::try_from(service.as_micros()).unwrap_or(u64::MAX).max(1);
        let old = self.service_us.load(Relaxed);
        // One writer, the worker. An eighth of the news: a few requests turn it, one outlier does not.
        let mean = if old == 0 { new } else { old - old / 8 + new / 8 };
        self.service_us.store(mean.max(1), Relaxed);
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
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
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
}
