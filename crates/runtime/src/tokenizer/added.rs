//! Added tokens in a text: those that are looked for before anything else happens to it, the leftmost first, then the
//! longest. The text of a control token that somebody else has written is not that token.

use std::{collections::HashMap, ops::Range};

use aho_corasick::{AhoCorasick, Input, MatchKind};

/// Looks for added tokens.
#[derive(Debug)]
pub(super) struct AddedFinder {
    matcher: AhoCorasick,
    /// Whether a pattern is a control token, by its number.
    special: Vec<bool>,
    /// Numbers of the patterns.
    numbers: HashMap<String, usize>,
}

/// An added token in a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Where it begins, in bytes.
    pub(super) start: usize,
    /// Where it ends.
    pub(super) end: usize,
    /// Which it is, in the order the finder was given them.
    pub(super) number: usize,
}

/// Whether a part of a text is, even in part, among `ranges`, which are ascending and apart from each other.
pub(super) fn overlaps(ranges: &[Range<usize>], part: &Range<usize>) -> bool {
    let first = ranges.partition_point(|range| range.end <= part.start);
    ranges.get(first).is_some_and(|range| range.start < part.end)
}

impl AddedFinder {
    /// Of the tokens' texts, each with whether it is a control token. Errors say why they cannot be searched for.
    pub(super) fn new<'a>(tokens: impl IntoIterator<Item = (&'a str, bool)>) -> Result<Self, String> {
        let (texts, special): (Vec<&str>, Vec<bool>) = tokens.into_iter().unzip();
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts)
            .map_err(|error| format!("the added tokens cannot be searched for: {error}"))?;
        let numbers = texts.iter().enumerate().map(|(number, &text)| (text.to_owned(), number)).collect();
        Ok(AddedFinder { matcher, special, numbers })
    }

    /// Whether a token is a control token.
    pub(super) fn is_special(&self, number: usize) -> bool {
        self.special[number]
    }

    /// The first token of a text from byte `at` on. Control tokens are passed over where `is_plain` says so of their
    /// place.
    pub(super) fn next(
        &self,
        text: &str,
        mut at: usize,
        is_plain: &dyn Fn(Range<usize>) -> bool,
    ) -> Option<Found> {
        loop {
            let found = self.matcher.find(Input::new(text).range(at..))?;
            let (start, end) = (found.start(), found.end());
            let found = Found { start, end, number: found.pattern().as_usize() };
            let is_allowed = |found: &Found| !self.special[found.number] || !is_plain(found.start..found.end);
            if is_allowed(&found) {
                return Some(found);
            }
            // A shorter one may begin here, another inside.
            let shorter = text[start..end].char_indices().rev().filter_map(|(length, _)| {
                let number = *self.numbers.get(&text[start..start + length])?;
                Some(Found { start, end: start + length, number })
            });
            if let Some(found) = shorter.into_iter().find(is_allowed) {
                return Some(found);
            }
            at = start + text[start..].chars().next().map_or(1, char::len_utf8);
        }
    }
}
