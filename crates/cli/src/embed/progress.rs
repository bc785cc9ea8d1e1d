//! Progress of a bulk job: counters and their display.

use crate::progress_line::ProgressLine;
use crate::size::show_span;
use std::time::Duration;

/// Counters of a job.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    /// Total rows. None for a pipe.
    pub(crate) total: Option<u64>,
    /// Rows done by earlier runs.
    pub(crate) before: u64,
    /// Rows done by this process.
    pub(crate) rows: u64,
    /// Tokens of those rows.
    pub(crate) tokens: u64,
}

impl Meter {
    /// `1200 of 5000 inputs, 310.5 inputs/s, 9315 tokens/s, 12 s left`
    pub(crate) fn line(&self, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let (done, rate) = (self.before + self.rows, self.rows as f64 / seconds);
        let of = self.total.map_or_else(String::new, |total| format!(" of {total}"));
        let mut line =
            format!("{done}{of} inputs, {rate:.1} inputs/s, {:.0} tokens/s", self.tokens as f64 / seconds);
        if let Some(left) = self.total.map(|total| total.saturating_sub(done))
            && left > 0
            && self.rows > 0
        {
            line.push_str(&format!(", {} left", show_span(left as f64 / rate)));
        }
        line
    }
}

/// Progress display.
pub(crate) struct EmbedProgress {
    pub(crate) meter: Meter,
    line: ProgressLine,
}

impl EmbedProgress {
    /// Starts the display. This process has done nothing yet.
    pub(crate) fn new(quiet: bool, total: Option<u64>, before: u64) -> Self {
        let template = if total.is_some() { "{wide_bar} {percent} %  {msg}" } else { "{spinner} {msg}" };
        let meter = Meter { total, before, ..Meter::default() };
        let mut progress = Self { meter, line: ProgressLine::new(quiet, template, total) };
        progress.add(0, 0);
        progress
    }

    /// Adds rows and tokens.
    pub(crate) fn add(&mut self, rows: u64, tokens: u64) {
        self.meter.rows += rows;
        self.meter.tokens += tokens;
        self.line.show(self.meter.before + self.meter.rows, |elapsed| self.meter.line(elapsed));
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, line: &str) {
        self.line.say(line);
    }

    /// Removes the bar and returns a summary, unless quiet.
    pub(crate) fn end(&self) -> Option<String> {
        let total = Meter { total: None, ..self.meter };
        self.line.end().map(|elapsed| total.line(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_of_what_this_process_did() {
        let meter = Meter { total: Some(5_000), before: 1_000, rows: 200, tokens: 6_000 };
        let line = "1200 of 5000 inputs, 100.0 inputs/s, 3000 tokens/s, 38 s left";
        assert_eq!(meter.line(Duration::from_secs(2)), line);
        let meter = Meter { total: None, ..meter };
        assert_eq!(meter.line(Duration::from_secs(2)), "1200 inputs, 100.0 inputs/s, 3000 tokens/s");
        let begun = Meter { total: Some(7), ..Meter::default() };
        assert_eq!(begun.line(Duration::ZERO), "0 of 7 inputs, 0.0 inputs/s, 0 tokens/s");
    }
}
