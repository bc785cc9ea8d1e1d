//! Attribution of an answer's text to tokens. Each token gets the bytes of the text that come from it, in order, so
//! that all tokens' bytes joined are the text. Reasoning, calls, marks and text after a stop string belong to no
//! token.

use std::{collections::VecDeque, ops::Range};

/// Tokens of one completion whose part in the text is not certain yet.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    entries: VecDeque<TokenEntry>,
    /// Number of bytes of characters so far.
    read: usize,
    /// Ranges of text that are not certain yet, in order.
    texts: VecDeque<Range<usize>>,
    /// Bytes of the text for each token that is certain.
    settled: Vec<Vec<u8>>,
}

/// Token.
#[derive(Debug)]
struct TokenEntry {
    /// Number of its bytes that have not become characters yet.
    waiting: usize,
    /// Range of its characters among all.
    place: Range<usize>,
    shown: Vec<u8>,
}

impl Ledger {
    /// Adds a token with `bytes` bytes.
    pub(super) fn add(&mut self, bytes: usize) {
        self.entries.push_back(TokenEntry { waiting: bytes, place: self.read..self.read, shown: Vec::new() });
    }

    /// Records that `characters` bytes of characters have become whole, and `unfinished` bytes of tokens wait.
    pub(super) fn became(&mut self, characters: usize, unfinished: usize) {
        let waiting: usize = self.entries.iter().map(|entry| entry.waiting).sum();
        let consumed = waiting.saturating_sub(unfinished);
        // Invalid bytes become a replacement character.
        let replaced = consumed != characters;
        let (mut left, mut at) = (consumed, self.read);
        let open = self.entries.iter_mut().filter(|entry| entry.waiting > 0);
        let mut last = None;
        for entry in open {
            let taken = entry.waiting.min(left);
            if taken == 0 {
                break;
            }
            let written = if replaced { 0 } else { taken };
            if entry.place.is_empty() {
                entry.place = at..at;
            }
            entry.place.end = at + written;
            (entry.waiting, left, at) = (entry.waiting - taken, left - taken, at + written);
            last = Some(entry);
        }
        self.read += characters;
        if let Some(entry) = last.filter(|_| replaced) {
            entry.place.end = self.read;
        }
    }

    /// Number of bytes of characters so far.
    pub(super) fn read(&self) -> usize {
        self.read
    }

    /// Marks characters in these ranges as text, in this order.
    pub(super) fn is_text(&mut self, places: impl IntoIterator<Item = Range<usize>>) {
        self.texts.extend(places);
    }

    /// Records more certain text. Characters before `settled` will not become text any more, unless text behind
    /// them does too.
    pub(super) fn told(&mut self, text: &str, settled: usize) {
        let mut bytes = text.as_bytes();
        while let Some(place) = self.texts.front_mut().filter(|_| !bytes.is_empty()) {
            let (now, later) = bytes.split_at(bytes.len().min(place.len()));
            let start = place.start;
            place.start += now.len();
            if place.start >= place.end {
                self.texts.pop_front();
            }
            // Bytes of finished tokens go to the first unfinished one.
            let mut first = 0;
            for entry in &mut self.entries {
                let place = std::mem::replace(&mut first, entry.place.end)..entry.place.end;
                let (from, to) = (place.start.max(start), place.end.min(start + now.len()));
                if from < to {
                    entry.shown.extend_from_slice(&now[from - start..to - start]);
                }
            }
            bytes = later;
        }
        let settled = self.texts.front().map_or(settled, |place| settled.min(place.start));
        while self.entries.front().is_some_and(|entry| entry.waiting == 0 && entry.place.end <= settled) {
            self.settled.extend(self.entries.pop_front().map(|entry| entry.shown));
        }
    }

    /// Ends the output: nothing more becomes text.
    pub(super) fn end(&mut self) {
        self.texts.clear();
        self.settled.extend(self.entries.drain(..).map(|entry| entry.shown));
    }

    /// Bytes of the text for each token that became certain since the last call; empty for a token without a part
    /// in the text.
    pub(super) fn take_settled(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_several_tokens_and_replaced_bytes_are_told_apart() {
        let mut ledger = Ledger::default();
        // "a", then the three bytes of a character in two tokens.
        ledger.add(2);
        ledger.became(1, 1);
        ledger.add(2);
        ledger.became(3, 0);
        ledger.is_text(Some(0..4));
        ledger.told("a\u{20ac}", 4);
        assert_eq!(ledger.take_settled(), [b"a\xe2".to_vec(), b"\x82\xac".to_vec()]);
        // An invalid byte, then a character.
        ledger.add(1);
        ledger.became(0, 1);
        ledger.add(1);
        ledger.became(4, 0);
        ledger.is_text(Some(4..8));
        ledger.told("\u{fffd}b", 8);
        assert_eq!(ledger.take_settled(), [Vec::new(), "\u{fffd}b".as_bytes().to_vec()]);
    }

    #[test]
    fn tokens_wait_until_their_part_is_certain() {
        let mut ledger = Ledger::default();
        ledger.add(3);
        ledger.became(3, 0);
        ledger.is_text(Some(0..3));
        ledger.told("ab", 3);
        assert_eq!(ledger.take_settled(), [] as [Vec<u8>; 0]);
        ledger.told("c", 3);
        assert_eq!(ledger.take_settled(), [b"abc".to_vec()]);
        // The middle of a token is text, and the next token has none.
        ledger.add(4);
        ledger.add(2);
        ledger.became(6, 0);
        ledger.is_text(Some(4..6));
        ledger.told("de", 5);
        assert_eq!(ledger.take_settled(), [] as [Vec<u8>; 0]);
        ledger.end();
        assert_eq!(ledger.take_settled(), [b"de".to_vec(), Vec::new()]);
    }
}
