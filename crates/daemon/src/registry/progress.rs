//! Progress of a load and estimate of its remaining time.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Progress of a load.
#[derive(Debug)]
pub(crate) struct LoadProgress {
    percent: AtomicU32,
    waits: AtomicBool, // whether it waits for memory
    began: Instant,
}

impl Default for LoadProgress {
    fn default() -> Self {
        Self { percent: AtomicU32::new(0), waits: AtomicBool::new(false), began: Instant::now() }
    }
}

impl LoadProgress {
    /// Sets the progress. True if the percentage entered another tenth.
    pub(crate) fn set(&self, fraction: f32) -> bool {
        let percent = (fraction.clamp(0.0, 1.0) * 100.0) as u32;
        self.percent.swap(percent, Relaxed) / 10 != percent / 10
    }

    /// Progress in percent.
    pub(crate) fn percent(&self) -> u32 {
        self.percent.load(Relaxed)
    }

    /// Sets whether the load waits for other models to free memory. True if that changed.
    pub(crate) fn set_waits(&self, waits: bool) -> bool {
        self.waits.swap(waits, Relaxed) != waits
    }

    /// Whether the load waits for memory.
    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// Estimated time left. `before` is the duration of the last load, used while no progress is known.
    pub(crate) fn left(&self, before: Option<Duration>) -> Option<Duration> {
        let elapsed = self.began.elapsed();
        match self.percent() {
            _ if self.waits() => before,
            percent @ 1.. => Some(elapsed * (100 - percent) / percent),
            0 => before.map(|before| before.saturating_sub(elapsed)),
        }
    }
}
