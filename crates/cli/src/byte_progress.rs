//! How far a job over many bytes is: a line that changes on a terminal, now and then a line elsewhere, or nothing.

use crate::size::{show_bytes, show_span};
use crate::term::{bar_style, tell};
use indicatif::{ProgressBar, ProgressDrawTarget};
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// Between lines, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Counts bytes and shows them.
pub(crate) struct ByteProgress {
    verb: &'static str,
    done: u64,
    /// Bytes there will be, where that is known.
    total: Option<u64>,
    began: Instant,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines { last: Instant },
    Nothing,
}

impl ByteProgress {
    /// Nothing is done yet. `verb`: such as "exporting".
    pub(crate) fn new(verb: &'static str, total: Option<u64>, quiet: bool) -> Self {
        let shown = match (quiet, stderr().is_terminal()) {
            (true, _) => Shown::Nothing,
            (false, true) => {
                let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
                Shown::Bar(bar.with_style(bar_style("{spinner} {msg}")))
            }
            (false, false) => Shown::Lines { last: Instant::now() },
        };
        Self { verb, done: 0, total, began: Instant::now(), shown }
    }

    /// So many more bytes are done.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        let line = || line(self.verb, self.done, self.total, self.began.elapsed());
        match &mut self.shown {
            Shown::Bar(bar) => {
                bar.set_message(line());
                bar.tick();
            }
            Shown::Lines { last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                tell(&format!("{}\n", line()));
            }
            Shown::Lines { .. } | Shown::Nothing => {}
        }
    }

    /// Takes the line away.
    pub(crate) fn end(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
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
