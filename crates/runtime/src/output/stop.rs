//! Stop strings in a stream of text. The earliest match wins, and the longest on a tie, however the text is cut.

/// Searches for stop strings, and holds back only a possible start of one.
#[derive(Debug)]
pub(super) struct StopMatcher {
    strings: Vec<String>,
    /// Leave the match in the text.
    include: bool,
    /// Possible start of a stop string; shorter than the longest of them.
    held: String,
    /// Bytes that a match took from the end of the text.
    cut: usize,
}

impl StopMatcher {
    pub(super) fn new(strings: &[String], include: bool) -> Self {
        let strings = strings.iter().filter(|string| !string.is_empty()).cloned().collect();
        StopMatcher { strings, include, held: String::new(), cut: 0 }
    }

    /// Adds text and appends the certain part to `out`. Returns the stop string that matched: `out` then ends with
    /// the text before it, or with it, and everything after it is dropped.
    pub(super) fn push(&mut self, text: &str, out: &mut String) -> Option<String> {
        if self.strings.is_empty() {
            out.push_str(text);
            return None;
        }
        self.held.push_str(text);
        self.scan(false, out)
    }

    /// Bytes at the end of the text that are not in the certain part: held back, or taken by a match.
    pub(super) fn absent_bytes(&self) -> usize {
        self.held.len() + self.cut
    }

    /// Ends the text: appends what was held back, or returns a match that could have become a longer one.
    pub(super) fn finish(&mut self, out: &mut String) -> Option<String> {
        self.scan(true, out)
    }

    fn scan(&mut self, ended: bool, out: &mut String) -> Option<String> {
        for (start, _) in self.held.char_indices() {
            let rest = &self.held[start..];
            let may_become = |string: &String| string.len() > rest.len() && string.starts_with(rest);
            if !ended && self.strings.iter().any(may_become) {
                out.push_str(&self.held[..start]);
                self.held.drain(..start);
                return None;
            }
            let complete = self.strings.iter().filter(|string| rest.starts_with(string.as_str()));
            if let Some(string) = complete.max_by_key(|string| string.len()) {
                out.push_str(&self.held[..start]);
                self.cut = rest.len();
                if self.include {
                    out.push_str(string);
                    self.cut -= string.len();
                }
                let string = string.clone();
                self.held.clear();
                return Some(string);
            }
        }
        out.push_str(&self.held);
        self.held.clear();
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference by definition, on the whole text.
    fn naive(text: &str, strings: &[String]) -> Option<(usize, String)> {
        let at = |(start, _)| {
            let matching = strings.iter().filter(|string| text[start..].starts_with(string.as_str()));
            matching.max_by_key(|string| string.len()).map(|string| (start, string.clone()))
        };
        text.char_indices().find_map(at)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_cut_finds_what_a_search_of_the_whole_finds(
            pieces in prop::collection::vec("[abé]{0,3}", 0..20),
            strings in prop::collection::vec("[abé]{1,4}", 0..4),
            include in any::<bool>(),
        ) {
            let text = pieces.concat();
            let mut matcher = StopMatcher::new(&strings, include);
            let mut out = String::new();
            let mut stop = None;
            let mut seen = String::new();
            for piece in &pieces {
                seen.push_str(piece);
                stop = matcher.push(piece, &mut out);
                if stop.is_some() {
                    break;
                }
                // Only a possible start of a stop string is held back.
                let waiting = &seen[out.len()..];
                prop_assert!(waiting.is_empty() || strings.iter().any(|s| s.len() > waiting.len() && s.starts_with(waiting)));
            }
            stop = stop.or_else(|| matcher.finish(&mut out));
            match naive(&text, &strings) {
                None => {
                    prop_assert_eq!(stop, None);
                    prop_assert_eq!(out, text);
                }
                Some((start, string)) => {
                    let end = if include { start + string.len() } else { start };
                    prop_assert_eq!(stop, Some(string));
                    prop_assert_eq!(out, &text[..end]);
                }
            }
        }
    }
}
