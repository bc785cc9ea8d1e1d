//! One line that says how far a job is: it changes in its place on a terminal, is written now and then elsewhere, or not at
//! all. What it says is the job's own.

use crate::term::{bar_style, tell};
use indicatif::{ProgressBar, ProgressDrawTarget};
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// Between lines, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows it.
pub(crate) struct ProgressLine {
    began: Instant,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines { last: Instant },
    Nothing,
}

impl ProgressLine {
    /// The job begins. `template` is what a terminal shows, in indicatif's words; `total`, of whatever is counted, makes its bar.
    pub(crate) fn new(quiet: bool, template: &str, total: Option<u64>) -> Self {
        let shown = match (quiet, stderr().is_terminal()) {
            (true, _) => Shown::Nothing,
            (false, true) => {
                let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
                Shown::Bar(bar.with_style(bar_style(template)))
            }
            (false, false) => Shown::Lines { last: Instant::now() },
        };
        Self { began: Instant::now(), shown }
    }

    /// So much is done; `line` says it of the time that has passed.
    pub(crate) fn show(&mut self, done: u64, line: impl FnOnce(Duration) -> String) {
        let elapsed = self.began.elapsed();
        match &mut self.shown {
            Shown::Bar(bar) => {
                bar.set_message(line(elapsed));
                bar.set_position(done);
                bar.tick();
            }
            Shown::Lines { last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                tell(&format!("{}\n", line(elapsed)));
            }
            Shown::Lines { .. } | Shown::Nothing => {}
        }
    }

    /// Says something above the bar, however quiet it is.
    pub(crate) fn say(&self, line: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.suspend(|| tell(&format!("{line}\n"))),
            Shown::Lines { .. } | Shown::Nothing => tell(&format!("{line}\n")),
        }
    }

    /// Takes the line away until it is shown again.
    pub(crate) fn hide(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.set_message("");
            bar.tick();
        }
    }

    /// Takes the line away. Gives the time that has passed, unless nothing was to be shown.
    pub(crate) fn end(&self) -> Option<Duration> {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
        (!matches!(self.shown, Shown::Nothing)).then(|| self.began.elapsed())
    }
}
