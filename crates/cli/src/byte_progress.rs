//! Progress of a job, counted in bytes.

use crate::progress_line::ProgressLine;
use crate::size::{show_bytes, show_span};
use std::time::Duration;

/// Counter of bytes with a progress line.
pub(crate) struct ByteProgress {
    verb: &'static str,
    done: u64,
    /// Total bytes, if known.
    total: Option<u64>,
    line: ProgressLine,
}

impl ByteProgress {
    /// Creates a counter at zero. `verb` is a word such as "exporting".
    pub(crate) fn new(verb: &'static str, total: Option<u64>, quiet: bool) -> Self {
        Self { verb, done: 0, total, line: ProgressLine::new(quiet, "{spinner} {msg}", None) }
    }

    /// Adds bytes that are done.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        self.line.show(self.done, |elapsed| line(self.verb, self.done, self.total, elapsed));
    }

    /// Removes the line.
    pub(crate) fn end(&self) {
        self.line.end();
    }
}

/// `exporting: 18.5 MB of 43.1 MB, 12.3 MB/s, 2 s left`
fn line(verb: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let of = total.map_or_else(String::new, |total| format!(" of {}", show_bytes(total)));
    let mut line = format!("{verb}: {}{of}, {}/s", show_bytes(done), show_bytes(rate as u64));
    if let Some(left) = total.map(|total| total.saturating_sub(done))
        && left > 0
        && done > 0
    {
        line.push_str(&format!(", {} left", show_span(left as f64 / rate)));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let shown = line("importing", 18_500_000, Some(43_100_000), Duration::from_secs(2));
        assert_eq!(shown, "importing: 18.5 MB of 43.1 MB, 9.2 MB/s, 3 s left");
        assert_eq!(line("exporting", 0, None, Duration::ZERO), "exporting: 0 B, 0 B/s");
        let widest = line("importing", 999_949_999_999, Some(999_949_999_999_999), Duration::from_secs(1));
        assert!(widest.chars().count() <= 78, "{widest}");
    }
}
