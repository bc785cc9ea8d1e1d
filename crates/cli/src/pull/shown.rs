//! Display of a pull's progress: bars on a terminal, lines elsewhere, JSON for programs, or nothing.

use super::bars::{Bars, count_done, cut, percent};
use crate::error::CliError;
use crate::size::{show_bytes, show_count, show_span};
use crate::term::tell;
use crate::view::ModelSummary;
use hanzo_engine_proto::v1::{self, pull_progress::Phase};
use serde::Serialize;
use std::collections::HashSet;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

/// Interval between lines for people, without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Interval between lines for programs.
const JSON_EVERY: Duration = Duration::from_millis(500);
/// Maximum columns of a line.
const COLUMNS: usize = 80;

/// Progress display of a pull.
pub(crate) enum PullDisplay {
    /// Bars on a terminal.
    Bars(Bars),
    /// Lines without a terminal.
    Lines(Lines),
    /// JSON for programs, with the time and phase of the last line.
    Json(Option<(Instant, i32)>),
    /// No display.
    Nothing,
}

/// State of the display in lines.
pub(crate) struct Lines {
    begun: bool,
    last: Instant,
    done: HashSet<String>,
    checking: bool,
}

impl PullDisplay {
    /// Bars or lines on stderr.
    pub(crate) fn for_people() -> Self {
        if stderr().is_terminal() {
            return Self::Bars(Bars::new());
        }
        let (begun, checking) = (false, false);
        Self::Lines(Lines { begun, last: Instant::now(), done: HashSet::new(), checking })
    }

    /// JSON objects on stdout.
    pub(crate) fn json() -> Self {
        Self::Json(None)
    }

    /// Displays the progress.
    ///
    /// # Errors
    /// If stdout is closed.
    pub(crate) fn progress(&mut self, progress: &v1::PullProgress) -> Result<(), CliError> {
        match self {
            Self::Bars(bars) => bars.draw(progress),
            Self::Lines(lines) => {
                lines.next(progress, Instant::now()).iter().for_each(|line| tell(&format!("{line}\n")));
            }
            Self::Json(last) => {
                let now = Instant::now();
                let soon = last.is_some_and(|(at, phase)| {
                    phase == progress.phase && now.duration_since(at) < JSON_EVERY
                });
                if !soon {
                    *last = Some((now, progress.phase));
                    print_object(&Event::Progress(PullStep::of(progress)))?;
                }
            }
            Self::Nothing => {}
        }
        Ok(())
    }

    /// Removes the bars.
    pub(crate) fn end(&self) {
        if let Self::Bars(bars) = self {
            bars.end();
        }
    }
}

impl Lines {
    /// Returns the lines to print now.
    fn next(&mut self, progress: &v1::PullProgress, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        if progress.files.is_empty() {
            return lines;
        }
        if !self.begun {
            self.begun = true;
            let (_, files) = count_done(progress);
            let rest = format!(": {}, {}", show_count(files, "file"), show_bytes(progress.bytes_total));
            let rest = if progress.joined { rest + ", joining who pulls it already" } else { rest };
            let verb = "pulling ";
            lines.push(format!("{verb}{}{rest}", cut(&progress.model, COLUMNS - verb.len() - rest.len())));
        }
        for file in progress.files.iter().filter(|file| file.phase() == Phase::Done) {
            if self.done.insert(file.name.clone()) {
                let size = show_bytes(file.bytes_total);
                lines.push(format!("  {size:>8}  {}", cut(&file.name, COLUMNS - 12)));
                self.last = now;
            }
        }
        if progress.phase() == Phase::Verifying && !self.checking {
            self.checking = true;
            lines.push("checking digests".to_owned());
        }
        if progress.phase() == Phase::Downloading && now.duration_since(self.last) >= LINE_EVERY {
            self.last = now;
            lines.push(so_far(progress));
        }
        lines
    }
}

/// ` 43 %  18.5 MB of 43.1 MB, 12.3 MB/s, 3 min 05 s left`
fn so_far(progress: &v1::PullProgress) -> String {
    let (done, total) = (progress.bytes_done, progress.bytes_total);
    let mut line = format!(
        "{}  {} of {}, {}/s",
        percent(done, total),
        show_bytes(done),
        show_bytes(total),
        show_bytes(progress.bytes_per_s.max(0.0) as u64)
    );
    if progress.eta_s >= 0.0 {
        line.push_str(&format!(", {} left", show_span(progress.eta_s)));
    }
    line
}

/// Line of `pull --json`.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Progress(PullStep<'a>),
    Done { model: ModelSummary },
    Failed { error: String },
}

#[derive(Serialize)]
struct PullStep<'a> {
    model: &'a str,
    phase: &'static str,
    bytes_done: u64,
    bytes_total: u64,
    bytes_fetched: u64,
    bytes_per_s: f64,
    eta_s: Option<f64>,
    joined: bool,
    files: Vec<FileStep<'a>>,
}

#[derive(Serialize)]
struct FileStep<'a> {
    name: &'a str,
    phase: &'static str,
    bytes_done: u64,
    bytes_total: u64,
}

impl<'a> PullStep<'a> {
    fn of(progress: &'a v1::PullProgress) -> Self {
        let file = |file: &'a v1::FileProgress| FileStep {
            name: &file.name,
            phase: word(file.phase()),
            bytes_done: file.bytes_done,
            bytes_total: file.bytes_total,
        };
        Self {
            model: &progress.model,
            phase: word(progress.phase()),
            bytes_done: progress.bytes_done,
            bytes_total: progress.bytes_total,
            bytes_fetched: progress.bytes_fetched,
            bytes_per_s: progress.bytes_per_s,
            eta_s: Some(progress.eta_s).filter(|eta_s| *eta_s >= 0.0),
            joined: progress.joined,
            files: progress.files.iter().map(file).collect(),
        }
    }
}

fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Unspecified | Phase::Resolving => "resolving",
        Phase::Downloading => "downloading",
        Phase::Verifying => "verifying",
        Phase::Done => "done",
    }
}

/// Prints the last line of `pull --json`.
pub(crate) fn print_end(end: &Result<ModelSummary, CliError>) -> Result<(), CliError> {
    print_object(&match end {
        Ok(model) => Event::Done { model: model.clone() },
        // The reader is gone.
        Err(CliError::Output(_)) => return Ok(()),
        Err(error) => Event::Failed { error: error.line() },
    })
}

fn print_object(event: &Event<'_>) -> Result<(), CliError> {
    let mut line = serde_json::to_string(event).map_err(|error| CliError::Output(error.into()))?;
    line.push('\n');
    let mut out = stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(phase: Phase, done: u64) -> v1::PullProgress {
        let file = |name: &str, phase: Phase, bytes_total| v1::FileProgress {
            name: name.to_owned(),
            phase: phase as i32,
            bytes_done: done.min(bytes_total),
            bytes_total,
            ..Default::default()
        };
        v1::PullProgress {
            model: "an-owner-of-many/".to_owned() + &"name".repeat(40),
            phase: phase as i32,
            bytes_done: done,
            bytes_total: 43_100_000,
            bytes_per_s: 12.3e6,
            eta_s: 185.0,
            files: vec![file("config.json", Phase::Done, 1_200), file(&"w".repeat(250), phase, 43_098_800)],
            ..Default::default()
        }
    }

    #[test]
    fn lines_say_what_is_new_in_eighty_columns() {
        let PullDisplay::Lines(mut lines) = (match PullDisplay::for_people() {
            // The tests may run on a terminal.
            PullDisplay::Bars(_) => PullDisplay::Lines(Lines {
                begun: false,
                last: Instant::now(),
                done: HashSet::new(),
                checking: false,
            }),
            other => other,
        }) else {
            panic!("lines")
        };
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        assert!(lines.next(&v1::PullProgress::default(), began).is_empty());
        let first = lines.next(&at(Phase::Downloading, 1_000), began);
        assert!(first[0].starts_with("pulling an-owner") && first[0].ends_with(": 2 files, 43.1 MB"));
        assert_eq!(first[1], "    1.2 kB  config.json");
        assert!(lines.next(&at(Phase::Downloading, 2_000), after(9)).is_empty());
        let second = lines.next(&at(Phase::Downloading, 18_500_000), after(11));
        assert_eq!(second, [" 42 %  18.5 MB of 43.1 MB, 12.3 MB/s, 3 min 05 s left"]);
        let checking = lines.next(&at(Phase::Verifying, 43_100_000), after(12));
        assert_eq!(checking, ["checking digests"]);
        let done = lines.next(&at(Phase::Done, 43_100_000), after(13));
        assert_eq!(done.len(), 1);
        for line in first.iter().chain(&second).chain(&checking).chain(&done) {
            assert!(line.chars().count() <= COLUMNS, "{line}");
        }
        let mut joined = at(Phase::Downloading, 0);
        joined.joined = true;
        lines.begun = false;
        let line = &lines.next(&joined, after(13))[0];
        assert!(line.contains("joining") && line.chars().count() <= COLUMNS, "{line}");
    }

    #[test]
    fn json_says_null_where_there_is_no_saying() {
        let mut progress = at(Phase::Downloading, 7);
        progress.eta_s = -1.0;
        let line = serde_json::to_value(Event::Progress(PullStep::of(&progress))).unwrap();
        assert_eq!((&line["event"], &line["eta_s"]), (&"progress".into(), &serde_json::Value::Null));
        assert_eq!(line["files"][0]["phase"], "done");
    }
}
