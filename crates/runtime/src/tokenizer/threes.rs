//! Numbers cut in threes from their end, `1 234 567`, in time that grows with the text's length alone.

use tokenizers::{NormalizedString, Result, tokenizer::normalizer::Range, utils::SysRegex};

use super::pre::Threes;

/// What cuts numbers.
#[derive(Debug)]
pub(super) struct CutInThrees {
    run: SysRegex,
    apart: bool,
    not_before: Option<SysRegex>,
}

impl CutInThrees {
    /// The error says what is wrong with the expression.
    pub(super) fn new(threes: Threes) -> std::result::Result<Self, String> {
        let compiled = |pattern| SysRegex::new(pattern).map_err(|error| error.to_string());
        let not_before = threes.not_before.map(compiled).transpose()?;
        Ok(CutInThrees { run: compiled(threes.run)?, apart: threes.apart, not_before })
    }

    /// The pieces of a text.
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

    /// Where the pieces of a text end, ascending; some may be equal.
    fn ends(&self, text: &str) -> Vec<usize> {
        let mut ends = Vec::new();
        let is_cut = |end: usize| {
            let next = text[end..].chars().next().map_or(0, char::len_utf8);
            let stop = |not_before: &SysRegex| not_before.find_iter(&text[end..end + next]).next().is_some();
            !self.not_before.as_ref().is_some_and(stop)
        };
        for (start, end) in self.run.find_iter(text).filter(|&(_, end)| is_cut(end)) {
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
