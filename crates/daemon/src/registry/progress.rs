//! How far a load is, and how long it is likely to take.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// How far a load is.
#[derive(Debug)]
pub(crate) struct Progress {
    percent: AtomicU32,
    waits: AtomicBool, // for room
    began: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self { percent: AtomicU32::new(0), waits: AtomicBool::new(false), began: Instant::now() }
    }
}

impl Progress {
    /// Notes a fraction; the percentage when it entered another tenth.
    pub(crate) fn set(&self, fraction: f32) -> bool {
        let percent = (fraction.clamp(0.0, 1.0) * 100.0) as u32;
        self.percent.swap(percent, Relaxed) / 10 != percent / 10
    }

    /// In percent.
    pub(crate) fn percent(&self) -> u32 {
        self.percent.load(Relaxed)
    }

    /// It waits until others have made room, or no longer; whether that is news.
    pub(crate) fn set_waits(&self, waits: bool) -> bool {
        self.waits.swap(waits, Relaxed) != waits
    }

    /// Whether it waits for room.
    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// What is likely left of a load that took `before` the last time; nothing is known of one that has not begun.
    pub(crate) fn left(&self, before: Option<Duration>) -> Option<Duration> {
        let elapsed = self.began.elapsed();
        match self.percent() {
            _ if self.waits() => before,
            percent @ 1.. => Some(elapsed * (100 - percent) / percent),
            0 => before.map(|before| before.saturating_sub(elapsed)),
        }
    }
}
