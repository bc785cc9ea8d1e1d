//! Loops on the thread pool: every item runs once, what a body wrote is seen by whoever asked, and nobody sleeps for ever.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use loom::sync::atomic::AtomicUsize;

use crate::pool::ThreadPool;

/// Runs a loop of `items` on a pool, and looks at what its bodies wrote: relaxed, so that only the loop's end orders it.
fn run(pool: &Arc<ThreadPool>, items: usize) {
    let runs: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
    pool.turn().run(items, 1, &|worker, range| {
        assert!(worker < pool.threads() && range.len() == 1);
        runs[range.start].fetch_add(1, Relaxed);
    });
    assert!(
        runs.iter().all(|runs| runs.load(Relaxed) == 1),
        "an item ran not once, or is not seen to have run"
    );
}

/// Two loops on two threads: one begins while the worker of the one before is on its way to sleep.
pub(crate) fn runs() {
    let pool = Arc::new(ThreadPool::new(2));
    run(&pool, 2);
    run(&pool, 2);
}

/// More items than threads, so that one takes of another's share.
pub(crate) fn steals() {
    run(&Arc::new(ThreadPool::new(2)), 3);
}

/// Two workers beside the one that asks.
pub(crate) fn three() {
    run(&Arc::new(ThreadPool::new(3)), 3);
}
