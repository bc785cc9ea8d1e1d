//! Added tokens in a text: those that are looked for before anything else happens to it, the leftmost first, then the
//! longest. The text of a control token that somebody else has written is not that token.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};

/// Looks for added tokens.
#[derive(Debug)]
pub(super) struct AddedFinder {
    matcher: AhoCorasick,
    /// Whether a pattern is a control token, by its number.
    control: Vec<bool>,
    /// The longest other pattern that a pattern begins with, by its number.
    shorter: Vec<Option<usize>>,
    /// Bytes of the patterns.
    lengths: Vec<usize>,
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

/// The longest other text that each text begins with. In order of the alphabet, a text stands after all those it begins
/// with, and between them is nothing that does not begin with them too.
fn shorter(texts: &[&str]) -> Vec<Option<usize>> {
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_unstable_by_key(|&number| (texts[number], number));
    let mut shorter = vec![None; texts.len()];
    let mut open: Vec<usize> = Vec::new();
    for number in order {
        while open.last().is_some_and(|&last| !texts[number].starts_with(texts[last])) {
            open.pop();
        }
        shorter[number] = match open.last() {
            Some(&last) if texts[last] == texts[number] => {
                open.pop();
                shorter[last]
            }
            last => last.copied(),
        };
        open.push(number);
    }
    shorter
}

impl AddedFinder {
    /// Of the tokens' texts, each with whether it is a control token. Errors say why they cannot be searched for: an empty
    /// one would be found everywhere, and without end.
    pub(super) fn new<'a>(tokens: impl IntoIterator<Item = (&'a str, bool)>) -> Result<Self, String> {
        let (texts, control): (Vec<&str>, Vec<bool>) = tokens.into_iter().unzip();
        if texts.contains(&"") {
            return Err("an added token is empty, or nothing is left of it once it is normalized".to_owned());
        }
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts)
            .map_err(|error| format!("the added tokens cannot be searched for: {error}"))?;
        let lengths = texts.iter().map(|text| text.len()).collect();
        Ok(AddedFinder { matcher, control, shorter: shorter(&texts), lengths })
    }

    /// Says whether a token is a control token.
    pub(super) fn set_control(&mut self, number: usize, control: bool) {
        self.control[number] = control;
    }

    /// Whether a token is a control token.
    pub(super) fn is_control(&self, number: usize) -> bool {
        self.control[number]
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
            let is_allowed = |found: &Found| !self.control[found.number] || !is_plain(found.start..found.end);
            if is_allowed(&found) {
                return Some(found);
            }
            // A shorter one may begin here, another inside.
            let mut shorter = self.shorter[found.number];
            while let Some(number) = shorter {
                let found = Found { start, end: start + self.lengths[number], number };
                if is_allowed(&found) {
                    return Some(found);
                }
                shorter = self.shorter[number];
            }
            at = start + text[start..].chars().next().map_or(1, char::len_utf8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_text_begins_with() {
        let texts = ["ab", "a", "abc", "b", "abd", "ab", "ba", "abce"];
        assert_eq!(shorter(&texts), [Some(1), None, Some(5), None, Some(5), Some(1), Some(3), Some(2)]);
        // In somebody else's text, of control tokens that begin each other, the longest that is none is found.
        let tokens = [("<a", false), ("<a>", true), ("<a><", true), ("><", false), ("<", true)];
        let finder = AddedFinder::new(tokens).expect("a finder");
        let found = |is_plain: &dyn Fn(Range<usize>) -> bool| {
            let (mut at, mut numbers) = (0, Vec::new());
            while let Some(found) = finder.next("<a><a><", at, is_plain) {
                numbers.push(found.number);
                at = found.end;
            }
            numbers
        };
        assert_eq!(found(&|_| false), [2, 3]);
        assert_eq!(found(&|_| true), [0, 3, 3]);
        assert_eq!(found(&|part| part.end > 3), [1, 0, 3]);
    }

    #[test]
    fn an_empty_token_is_not_searched_for() {
        let error = AddedFinder::new([("a", false), ("", true)]).expect_err("refused");
        assert!(error.contains("empty"), "{error}");
    }

    #[test]
    fn a_long_token_that_is_refused_costs_no_more_than_its_length() {
        let token = "a".repeat(1024);
        let finder = AddedFinder::new([(token.as_str(), true)]).expect("a finder");
        let asked = std::cell::Cell::new(0);
        let refuses = |_: Range<usize>| {
            asked.set(asked.get() + 1);
            true
        };
        assert!(finder.next(&"a".repeat(4096), 0, &refuses).is_none());
        assert_eq!(asked.get(), 4096 - 1024 + 1);
    }
}
