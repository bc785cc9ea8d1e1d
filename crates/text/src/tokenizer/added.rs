//! Search for added tokens in a text, before any other step: the leftmost first, then the longest. Text from a
//! request never becomes a control token.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};

/// Finds added tokens.
#[derive(Debug)]
pub(super) struct AddedFinder {
    matcher: AhoCorasick,
    /// Whether a pattern is a control token, by its number.
    control: Vec<bool>,
    /// Longest other pattern that is a prefix of a pattern, by its number.
    shorter: Vec<Option<usize>>,
    /// Lengths of the patterns in bytes.
    lengths: Vec<usize>,
}

/// Added token in a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Start in bytes.
    pub(super) start: usize,
    /// End in bytes.
    pub(super) end: usize,
    /// Number of the token, in the order in which the finder got them.
    pub(super) number: usize,
}

/// Whether a part of a text overlaps one of `ranges`, which are ascending and disjoint.
pub(super) fn overlaps(ranges: &[Range<usize>], part: &Range<usize>) -> bool {
    let first = ranges.partition_point(|range| range.end <= part.start);
    ranges.get(first).is_some_and(|range| range.start < part.end)
}

/// Longest other text that is a prefix of each text. In alphabetical order, a text follows all its prefixes, and
/// every text in between has the same prefixes.
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
    /// Creates a finder from the tokens' texts, each with whether it is a control token. Errors say why they cannot
    /// be searched for: an empty text would be found everywhere, endlessly.
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

    /// Sets whether a token is a control token.
    pub(super) fn set_control(&mut self, number: usize, control: bool) {
        self.control[number] = control;
    }

    /// Whether a token is a control token.
    pub(super) fn is_control(&self, number: usize) -> bool {
        self.control[number]
    }

    /// First token of a text from byte `at` on. Skips control tokens whose place `is_plain`.
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
            // A shorter token may start here, or another one inside.
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
        // In plain text, the longest token that is no control token is found, even if control tokens are prefixes
        // of each other.
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
