//! Limits of llama.cpp's `/infill` that end a completion early: `n_indent`, `t_max_predict_ms` and `n_predict:
//! 0`.

use std::time::Duration;

use tokio::time::Instant;

/// Limits on the lines of an infill completion.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LineLimits {
    /// Minimum indentation: a line after the first that begins with fewer blanks ends the completion. Empty
    /// lines do not.
    pub(crate) indent: u32,
    /// Time after the first text, at which a completion of more than one line ends.
    pub(crate) time: Option<Duration>,
    /// Whether nothing is shown: the prompt is only read, to be in the prefix cache for the next request.
    pub(crate) reads_only: bool,
}

/// State of a choice.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines {
    began: Option<Instant>,
    /// Blanks at the beginning of the current line; None: within a line, or in the first one.
    blanks: Option<u32>,
    several: bool,
}

impl Lines {
    /// Cuts `text`, the next text of the choice, at a limit. Returns whether the choice ends.
    pub(crate) fn end(&mut self, limits: &LineLimits, text: &mut String, now: Instant) -> bool {
        if limits.reads_only {
            text.clear();
            return true;
        }
        for (at, character) in text.char_indices() {
            self.blanks = match (character, self.blanks) {
                ('\n', _) => {
                    self.several = true;
                    Some(0)
                }
                (' ' | '\t', Some(blanks)) => Some(blanks + 1),
                ('\r', blanks) => blanks,
                (_, Some(blanks)) if blanks < limits.indent => {
                    text.truncate(at);
                    return true;
                }
                _ => None,
            };
        }
        let began = *self.began.get_or_insert(now);
        self.several && limits.time.is_some_and(|time| now.duration_since(began) > time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limits: &LineLimits, pieces: &[&str]) -> (String, bool) {
        let (mut lines, mut all) = (Lines::default(), String::new());
        for piece in pieces {
            let mut piece = (*piece).to_owned();
            let over = lines.end(limits, &mut piece, Instant::now());
            all.push_str(&piece);
            if over {
                return (all, true);
            }
        }
        (all, false)
    }

    #[test]
    fn a_line_that_is_indented_less_ends_it() {
        let limits = LineLimits { indent: 4, ..LineLimits::default() };
        let whole = "a\n    b\n\n    c\n  d\n    e";
        assert_eq!(of(&limits, &[whole]), ("a\n    b\n\n    c\n  ".to_owned(), true));
        let bytes: Vec<&str> = (0..whole.len()).map(|i| &whole[i..=i]).collect();
        assert_eq!(of(&limits, &bytes), of(&limits, &[whole]));
        assert_eq!(of(&LineLimits::default(), &[whole]), (whole.to_owned(), false));
    }

    #[test]
    fn time_ends_it_once_there_is_a_second_line() {
        let limits = LineLimits { time: Some(Duration::from_millis(5)), ..LineLimits::default() };
        let (mut lines, start) = (Lines::default(), Instant::now());
        let late = start + Duration::from_millis(6);
        assert!(!lines.end(&limits, &mut "a".to_owned(), start));
        assert!(!lines.end(&limits, &mut "b".to_owned(), late), "one line");
        assert!(lines.end(&limits, &mut "\n".to_owned(), late));
        assert!(!Lines::default().end(&limits, &mut "a\nb".to_owned(), late), "it begins now");
    }
}
