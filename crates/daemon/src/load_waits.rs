//! Loads that requests wait for: the number of waiting requests, and the durations of past loads.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{limits::LOAD_TIMES_MAX, name_key::key};

/// Number of waiting requests, by the name of their model.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<String, usize>>);

/// Guard of a waiting request; dropping it removes it from the count.
pub(crate) struct WaitGuard<'a> {
    all: &'a Waiters,
    name: String,
}

/// Durations of the last loads, by model name.
#[derive(Default)]
pub(crate) struct LoadTimes(Mutex<HashMap<String, Duration>>);

impl Waiters {
    /// Adds a waiting request; `None` if the maximum for this model is reached.
    pub(crate) fn enter(&self, name: &str, most: usize) -> Option<WaitGuard<'_>> {
        let name = key(name);
        let mut counts = self.lock();
        let count = counts.entry(name.clone()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(WaitGuard { all: self, name })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // Plain counts, valid even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut counts = self.all.lock();
        if let Some(count) = counts.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.name);
            }
        }
    }
}

impl LoadTimes {
    /// Records the duration of a load.
    pub(crate) fn note(&self, name: &str, time: Duration) {
        let mut times = self.lock();
        let name = key(name);
        if times.len() >= LOAD_TIMES_MAX && !times.contains_key(&name) {
            times.clear();
        }
        times.insert(name, time);
    }

    /// Duration of the last load of a model.
    pub(crate) fn of(&self, name: &str) -> Option<Duration> {
        self.lock().get(&key(name)).copied()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Duration>> {
        // Plain values, valid even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_wait_for_a_model_as_may() {
        let waiters = Waiters::default();
        let first = waiters.enter("a", 2).unwrap();
        let _second = waiters.enter("A", 2).unwrap();
        assert!(waiters.enter("a", 2).is_none());
        assert!(waiters.enter("b", 2).is_some(), "another model's queue is its own");
        drop(first);
        assert!(waiters.enter("a", 2).is_some());
        assert_eq!(waiters.lock().len(), 1, "nobody waits for b any more");
    }

    #[test]
    fn load_times_are_bounded() {
        let times = LoadTimes::default();
        (0..2 * LOAD_TIMES_MAX).for_each(|at| times.note(&at.to_string(), Duration::from_secs(1)));
        times.note("Last", Duration::from_secs(2));
        assert!(times.lock().len() <= LOAD_TIMES_MAX);
        assert_eq!(times.of("last"), Some(Duration::from_secs(2)));
    }
}
