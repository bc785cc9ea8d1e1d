//! Progress line of a job. On a terminal it is updated in place, elsewhere it is printed at intervals, or not
//! at all. The job provides its text.

use crate::term::{bar_style, tell};
use indicatif::{ProgressBar, ProgressDrawTarget};
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// Interval between lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress line.
pub(crate) struct ProgressLine {
    began: Instant,
    shown: LineDisplay,
}

enum LineDisplay {
    Bar(ProgressBar),
    Lines { last: Instant },
    Nothing,
}

impl ProgressLine {
    /// Starts the line. `template` is for a terminal, in indicatif's syntax. `total` sets the length of its
    /// bar.
    pub(crate) fn new(quiet: bool, template: &str, total: Option<u64>) -> Self {
        let shown = match (quiet, stderr().is_terminal()) {
            (true, _) => LineDisplay::Nothing,
            (false, true) => {
                let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
                LineDisplay::Bar(bar.with_style(bar_style(template)))
            }
            (false, false) => LineDisplay::Lines { last: Instant::now() },
        };
        Self { began: Instant::now(), shown }
    }

    /// Updates the progress. `line` formats it from the elapsed time.
    pub(crate) fn show(&mut self, done: u64, line: impl FnOnce(Duration) -> String) {
        let elapsed = self.began.elapsed();
        match &mut self.shown {
            LineDisplay::Bar(bar) => {
                bar.set_message(line(elapsed));
                bar.set_position(done);
                bar.tick();
            }
            LineDisplay::Lines { last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                tell(&format!("{}\n", line(elapsed)));
            }
            LineDisplay::Lines { .. } | LineDisplay::Nothing => {}
        }
    }

    /// Prints a line above the bar, even if quiet.
    pub(crate) fn say(&self, line: &str) {
        match &self.shown {
            LineDisplay::Bar(bar) => bar.suspend(|| tell(&format!("{line}\n"))),
            LineDisplay::Lines { .. } | LineDisplay::Nothing => tell(&format!("{line}\n")),
        }
    }

    /// Hides the line until the next update.
    pub(crate) fn hide(&self) {
        if let LineDisplay::Bar(bar) = &self.shown {
            bar.set_message("");
            bar.tick();
        }
    }

    /// Removes the line. Returns the elapsed time, unless quiet.
    pub(crate) fn end(&self) -> Option<Duration> {
        if let LineDisplay::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
        (!matches!(self.shown, LineDisplay::Nothing)).then(|| self.began.elapsed())
    }
}
