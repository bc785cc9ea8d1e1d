//! Log of a simulation, printed for a failed seed.

use std::sync::{Arc, Mutex};

use super::device::Time;

/// Lines with their times, kept only if they will be read.
#[derive(Clone)]
pub(super) struct Story {
    time: Time,
    lines: Option<Arc<Mutex<Vec<String>>>>,
}

impl Story {
    pub(super) fn new(time: Time, told: bool) -> Self {
        Self { time, lines: told.then(Arc::default) }
    }

    pub(super) fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(lines) = &self.lines {
            let us = self.time.us();
            lines.lock().unwrap().push(format!("{:>6}.{:03} ms  {}", us / 1000, us % 1000, what()));
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.as_ref().map(|lines| lines.lock().unwrap().clone()).unwrap_or_default()
    }
}
