//! Progress of a pull on a terminal: a bar for each file that is being fetched, and one for the total. No line
//! is wider than 80 columns.

use crate::size::{show_bytes, show_span};
use crate::term::bar_style;
use console::measure_text_width;
use hanzo_engine_proto::v1::{self, pull_progress::Phase};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use std::collections::HashMap;
use std::time::Instant;

/// Columns of a name.
const NAME_COLUMNS: usize = 26;
/// Columns of a bar.
const BAR_COLUMNS: usize = 10;
/// Time constant of a file's average rate in seconds: after it, a sample has about a third (1/e) of its weight.
const MEMORY_S: f64 = 3.0;

/// Bars of a pull.
pub(crate) struct Bars {
    screen: MultiProgress,
    total: ProgressBar,
    files: HashMap<String, Row>,
}

/// Bar of a file that is being fetched.
struct Row {
    bar: ProgressBar,
    seen: Instant,
    bytes: u64,
    bytes_per_s: Option<f64>,
}

impl Bars {
    pub(crate) fn new() -> Self {
        let screen = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let total = screen.add(bar());
        Self { screen, total, files: HashMap::new() }
    }

    /// Draws the current progress.
    pub(crate) fn draw(&mut self, progress: &v1::PullProgress) {
        let now = Instant::now();
        for file in &progress.files {
            let fetching = file.phase() == Phase::Downloading && file.bytes_done > 0;
            let checking = file.phase() == Phase::Verifying;
            if !fetching && !checking {
                if let Some(row) = self.files.remove(&file.name) {
                    row.bar.finish_and_clear();
                }
                continue;
            }
            let row = self.files.entry(file.name.clone()).or_insert_with(|| {
                let bar = self.screen.insert_before(&self.total, bar());
                Row { bar, seen: now, bytes: file.bytes_done, bytes_per_s: None }
            });
            row.count(file.bytes_done, now);
            let rest = file.bytes_total.saturating_sub(file.bytes_done) as f64;
            let rate = row.bytes_per_s.filter(|rate| *rate > 0.0);
            let eta_s = rate.map_or(-1.0, |rate| rest / rate);
            let state = match checking {
                true => "checking".to_owned(),
                false => pace(file.bytes_done, row.bytes_per_s.unwrap_or(0.0), eta_s),
            };
            set(&row.bar, &name_cell(&file.name), file.bytes_done, file.bytes_total, &state);
        }
        let (done, of) = count_done(progress);
        if of == 0 {
            return set(&self.total, &name_cell("asking the source"), 0, 0, "");
        }
        let name = name_cell(&format!("total, {done} of {of} files"));
        let pace = pace(progress.bytes_done, progress.bytes_per_s, progress.eta_s);
        set(&self.total, &name, progress.bytes_done, progress.bytes_total, &pace);
    }

    /// Removes the bars.
    pub(crate) fn end(&self) {
        self.files.values().map(|row| &row.bar).chain([&self.total]).for_each(ProgressBar::finish_and_clear);
    }
}

impl Row {
    /// Updates the average rate with the bytes since the last call.
    fn count(&mut self, bytes: u64, now: Instant) {
        let seconds = now.duration_since(self.seen).as_secs_f64();
        if seconds < 0.05 {
            return;
        }
        let rate = bytes.saturating_sub(self.bytes) as f64 / seconds;
        let old = (-seconds / MEMORY_S).exp();
        self.bytes_per_s = Some(self.bytes_per_s.map_or(rate, |before| before * old + rate * (1.0 - old)));
        (self.seen, self.bytes) = (now, bytes);
    }
}

fn bar() -> ProgressBar {
    let template = format!("{{prefix}} {{bar:{BAR_COLUMNS}}} {{msg}}");
    ProgressBar::no_length().with_style(bar_style(&template))
}

fn set(bar: &ProgressBar, name: &str, done: u64, total: u64, state: &str) {
    bar.set_prefix(name.to_owned());
    bar.set_length(total.max(done).max(1));
    bar.set_position(done);
    bar.set_message(if state.is_empty() {
        String::new()
    } else {
        format!("{} {state}", percent(done, total))
    });
}

/// ` 43 %`
pub(crate) fn percent(done: u64, total: u64) -> String {
    let percent = match total {
        0 => 0,
        // 100 means complete, so do not round up.
        _ => (u128::from(done.min(total)) * 100 / u128::from(total)) as u64,
    };
    format!("{percent:>3} %")
}

/// ` 18.5 MB   12.3 MB/s  3 min 05 s`
fn pace(done: u64, bytes_per_s: f64, eta_s: f64) -> String {
    let rate = format!("{}/s", show_bytes(bytes_per_s.max(0.0) as u64));
    let eta = if eta_s >= 0.0 { show_span(eta_s) } else { String::new() };
    format!("{:>8}  {rate:>10}  {eta}", show_bytes(done)).trim_end().to_owned()
}

/// File name padded or cut to the width of its column. A long name loses its middle.
fn name_cell(name: &str) -> String {
    let cut = cut(name, NAME_COLUMNS);
    let gap = NAME_COLUMNS.saturating_sub(measure_text_width(&cut));
    cut + &" ".repeat(gap)
}

/// Cuts `text` to `columns` and replaces control characters. The middle is cut, because shards differ at the
/// end.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    let clean: Vec<char> = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let whole: String = clean.iter().collect();
    if measure_text_width(&whole) <= columns {
        return whole;
    }
    let width = |c: char| measure_text_width(&c.to_string());
    let (mut head, mut tail) = (String::new(), Vec::new());
    let (mut from, mut to, mut left) = (0, clean.len(), columns.saturating_sub(1));
    // Take characters from both ends in turn, while there is room.
    while from < to {
        let at_end = tail.len() > from;
        let next = if at_end { clean[from] } else { clean[to - 1] };
        if width(next) > left {
            break;
        }
        left -= width(next);
        if at_end {
            head.push(next);
            from += 1;
        } else {
            tail.push(next);
            to -= 1;
        }
    }
    head.push('…');
    head.extend(tail.iter().rev());
    head
}

/// Number of complete files, and of all files.
pub(crate) fn count_done(progress: &v1::PullProgress) -> (usize, usize) {
    let done = progress.files.iter().filter(|file| file.phase() == Phase::Done).count();
    (done, progress.files.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let names =
            ["a", "model-00001-of-00163-and-a-long-tail.safetensors", &"模".repeat(60), "e\u{1b}[2J\n"];
        for name in names {
            for (bytes, rate, eta) in [(0, 0.0, -1.0), (999_949_999_999, 999.94e9, 359_999.0), (7, 1.0, 1e6)]
            {
                let cell = name_cell(name);
                assert_eq!(measure_text_width(&cell), NAME_COLUMNS, "{name}");
                assert!(!cell.chars().any(char::is_control), "{name}");
                let rest = format!("{} {}", percent(bytes, bytes), pace(bytes, rate, eta));
                let columns = NAME_COLUMNS + 1 + BAR_COLUMNS + 1 + measure_text_width(&rest);
                assert!(columns <= 80, "{columns}: {rest}");
            }
        }
        assert_eq!(cut("model-00001-of-00002.safetensors", 15), "model-0…tensors");
        assert_eq!(cut("config.json", 15), "config.json");
    }

    #[test]
    fn a_hundred_percent_is_all_of_it() {
        assert_eq!(percent(0, 0), "  0 %");
        assert_eq!(percent(999, 1_000), " 99 %");
        assert_eq!(percent(1_000, 1_000), "100 %");
    }

    #[test]
    fn a_files_rate_follows_what_came() {
        let began = Instant::now();
        let mut row = Row { bar: ProgressBar::hidden(), seen: began, bytes: 1_000, bytes_per_s: None };
        row.count(3_000, began + std::time::Duration::from_secs(2));
        assert_eq!(row.bytes_per_s, Some(1_000.0));
        row.count(3_000, began + std::time::Duration::from_secs(5));
        assert!((row.bytes_per_s.unwrap() - 367.9).abs() < 0.1, "{:?}", row.bytes_per_s);
    }
}
