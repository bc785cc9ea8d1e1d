//! Where llama.cpp's `/infill` ends a middle that the model goes on with: `n_indent`, `t_max_predict_ms` and `n_predict: 0`.

use std::time::Duration;

use tokio::time::Instant;

/// Limits of a middle that is made of lines.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LineLimits {
    /// A line after the first that begins with less blanks ends it. An empty line does not.
    pub(crate) indent: u32,
    /// When there is more than one line, and so much time has passed since its first text came.
    pub(crate) time: Option<Duration>,
    /// Nothing is shown: the prompt is only read, so that the next is found in the cache.
    pub(crate) reads_only: bool,
}

/// How far a choice has come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines {
    began: Option<Instant>,
    /// The blanks that its last line, which is not the first, has begun with so far.
    blanks: Option<u32>,
    several: bool,
}

impl Lines {
    /// Takes what is over a limit off `text`, the next of the choice; whether the choice ends with it.
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
