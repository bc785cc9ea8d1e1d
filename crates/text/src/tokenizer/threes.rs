//! Cutting of numbers into groups of three from their end, `1 234 567`, in linear time.

use std::ops::Range as Bytes;

use tokenizers::{NormalizedString, Result, tokenizer::normalizer::Range, utils::SysRegex};

use super::pre::Threes;
use crate::limits::WINDOW_AGREED_BYTES;

/// Long numbers of a text.
#[derive(Debug)]
pub(super) struct LongRuns {
    /// Byte ranges, ascending.
    runs: Vec<Bytes<usize>>,
    /// Places of cuts in them, ascending, about [`WINDOW_AGREED_BYTES`] apart.
    cuts: Vec<usize>,
}

impl LongRuns {
    /// Last place up to `at` that is not inside a long number, or is one of its cuts.
    pub(super) fn place_before(&self, at: usize) -> usize {
        let run = self.runs.get(self.runs.partition_point(|run| run.end <= at));
        let Some(run) = run.filter(|run| run.start < at) else { return at };
        let cut = self.cuts[..self.cuts.partition_point(|&cut| cut <= at)].last();
        cut.copied().filter(|&cut| cut > run.start).unwrap_or(run.start)
    }
}

/// Cuts numbers.
#[derive(Debug)]
pub(super) struct CutInThrees {
    run: SysRegex,
    apart: bool,
    not_before: Option<SysRegex>,
}

impl CutInThrees {
    /// Compiles the expressions. The error names the problem.
    pub(super) fn new(threes: Threes) -> std::result::Result<Self, String> {
        let compiled = |pattern| SysRegex::new(pattern).map_err(|error| error.to_string());
        let not_before = threes.not_before.map(compiled).transpose()?;
        Ok(CutInThrees { run: compiled(threes.run)?, apart: threes.apart, not_before })
    }

    /// Pieces of a text.
    pub(super) fn cut(&self, text: &NormalizedString) -> Result<Vec<NormalizedString>> {
        let ends = self.ends(text.get());
        let mut pieces = Vec::with_capacity(ends.len());
        let mut start = 0;
        for end in ends {
            if start < end {
                let piece = text.slice(Range::Normalized(start..end));
                pieces.push(piece.ok_or("a number is cut inside a character")?);
                start = end;
            }
        }
        Ok(pieces)
    }

    /// Whether a number with this end is cut from its end. Otherwise expressions cut it from its beginning.
    fn is_cut_from_end(&self, text: &str, end: usize) -> bool {
        let next = text[end..].chars().next().map_or(0, char::len_utf8);
        let stop = |not_before: &SysRegex| not_before.find_iter(&text[end..end + next]).next().is_some();
        !self.not_before.as_ref().is_some_and(stop)
    }

    /// Numbers of a text that are so long that a window may end in one.
    pub(super) fn long_runs(&self, text: &str) -> LongRuns {
        let (mut runs, mut cuts) = (Vec::new(), Vec::new());
        for (start, end) in self.run.find_iter(text).filter(|(start, end)| end - start > WINDOW_AGREED_BYTES)
        {
            let run = &text[start..end];
            // Number of digits before the first cut; all others are whole groups of three.
            let first = match self.is_cut_from_end(text, end) {
                true => run.chars().count() % 3,
                false => 0,
            };
            let mut next = start;
            for (at, _) in run.char_indices().skip(first).step_by(3).filter(|&(at, _)| at > 0) {
                if start + at >= next {
                    cuts.push(start + at);
                    next = start + at + WINDOW_AGREED_BYTES;
                }
            }
            runs.push(start..end);
        }
        LongRuns { runs, cuts }
    }

    /// Ends of a text's pieces, ascending; some may be equal.
    fn ends(&self, text: &str) -> Vec<usize> {
        let mut ends = Vec::new();
        for (start, end) in self.run.find_iter(text).filter(|&(_, end)| self.is_cut_from_end(text, end)) {
            if self.apart {
                ends.push(start);
            }
            let mut left = text[start..end].chars().count();
            for (at, _) in text[start..end].char_indices() {
                if left.is_multiple_of(3) {
                    ends.push(start + at);
                }
                left -= 1;
            }
            if self.apart {
                ends.push(end);
            }
        }
        ends.push(text.len());
        ends
    }
}
