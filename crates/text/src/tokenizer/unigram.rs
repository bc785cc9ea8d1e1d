//! Segmentation of a long word by a Unigram model (arxiv.org/abs/1804.10959), with the results of the `tokenizers`
//! crate: the same scores, added in the same order. Time and memory are linear in the word's length, two bytes per
//! byte, and the search can be interrupted.

use std::{collections::VecDeque, mem, ops::Range};

use super::{
    sentencepiece::byte_token,
    windows::{EncodeFailure, EncodedToken},
};
use crate::limits::PIECE_BYTES_MAX;

/// ID of a node at which no piece ends.
const NO_PIECE: u32 = u32::MAX;
/// Distance of an unknown character's score below the lowest piece score, as in SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;
/// Bytes between two checks for interruption.
const ASK_EVERY_BYTES: usize = 1 << 16;
// Lengths of pieces are stored in 16 bits.
const _: () = assert!(PIECE_BYTES_MAX <= u16::MAX as usize);

/// Unigram vocabulary.
#[derive(Debug)]
pub(super) struct Unigram {
    trie: PieceTrie,
    scores: Vec<f64>, // by id
    unknown: u32,
    unknown_score: f64,
    /// Byte pieces, if every byte has one and the model falls back to them.
    bytes: Option<Box<[u32; 256]>>,
    longest: usize, // bytes
}

/// Trie of all pieces. Children of a node have consecutive numbers, ascending by their bytes.
#[derive(Debug)]
struct PieceTrie {
    bytes: Vec<u8>,           // (node) byte that leads to it
    first_children: Vec<u32>, // (node + 1) number of the first child
    ids: Vec<u32>,            // (node) piece that ends here, or NO_PIECE
}

/// Segmentation of a word.
pub(super) struct PieceCut<'a> {
    unigram: &'a Unigram,
    word: &'a str,
    lengths: Vec<u16>, // (byte) length of the piece that starts there
}

impl Unigram {
    /// Creates the vocabulary from pieces in order of ID, each with its log probability. The last of equal pieces
    /// counts.
    pub(super) fn new<'a>(
        pieces: impl Iterator<Item = (&'a str, f64)>,
        unknown: u32,
        byte_fallback: bool,
    ) -> Self {
        let (texts, scores): (Vec<&str>, Vec<f64>) = pieces.unzip();
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or_default();
        let lowest = scores.iter().copied().fold(f64::INFINITY, f64::min);
        let trie = PieceTrie::new(&texts);
        let bytes = byte_fallback.then(|| {
            let mut bytes = Box::new([NO_PIECE; 256]);
            for text in &texts {
                // The crate's spelling.
                if let Some(byte) = byte_token(text).filter(|byte| **text == format!("<0x{byte:02X}>")) {
                    bytes[usize::from(byte)] = trie.id(text).unwrap_or(NO_PIECE);
                }
            }
            bytes
        });
        Self { trie, scores, unknown, unknown_score: lowest - UNKNOWN_PENALTY, bytes, longest }
    }

    /// Segments a word into its likeliest pieces.
    ///
    /// # Errors
    /// [`EncodeFailure::Interrupted`].
    pub(super) fn cut<'a>(
        &'a self,
        word: &'a str,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<PieceCut<'a>, EncodeFailure> {
        let mut lengths = self.last_lengths(word, interrupted)?;
        // Moves each length from the end of its piece to the start.
        let (mut end, mut length) = (word.len(), lengths[word.len()]);
        while end > 0 {
            let start = end - usize::from(length);
            length = mem::replace(&mut lengths[start], length);
            end = start;
        }
        Ok(PieceCut { unigram: self, word, lengths })
    }

    /// For each place, the length of the last piece on the best path to it.
    fn last_lengths(&self, word: &str, interrupted: &dyn Fn() -> bool) -> Result<Vec<u16>, EncodeFailure> {
        let mut lengths = vec![0_u16; word.len() + 1];
        // Scores are kept in a ring as long as the longest piece.
        let mut scores = vec![0.0; self.longest.max(char::MAX.len_utf8()) + 1];
        let places = scores.len();
        let mut asked = 0;
        for (at, c) in word.char_indices() {
            if at >= asked {
                if interrupted() {
                    return Err(EncodeFailure::Interrupted);
                }
                asked = at + ASK_EVERY_BYTES;
            }
            let so_far = scores[at % places];
            let mut offer = |length: usize, score: f64| {
                let (end, score) = (at + length, score + so_far);
                if lengths[end] == 0 || score > scores[end % places] {
                    // at most PIECE_BYTES_MAX
                    (lengths[end], scores[end % places]) = (length as u16, score);
                }
            };
            let mut is_piece = false;
            for (length, id) in self.trie.beginnings(&word.as_bytes()[at..]) {
                offer(length, self.scores[id as usize]);
                is_piece |= length == c.len_utf8();
            }
            if !is_piece {
                offer(c.len_utf8(), self.unknown_score);
            }
        }
        Ok(lengths)
    }
}

impl PieceCut<'_> {
    /// Tokens of the pieces, in order. Consecutive unknown pieces are one token.
    pub(super) fn tokens(&self) -> impl Iterator<Item = EncodedToken> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = next;
            if start == self.word.len() {
                return None;
            }
            next = self.end_of(start);
            if self.is_unknown(start..next) {
                while next < self.word.len() && self.is_unknown(next..self.end_of(next)) {
                    next = self.end_of(next);
                }
            }
            Some(start..next)
        })
        .flat_map(|piece| self.tokens_of(piece))
    }

    fn end_of(&self, start: usize) -> usize {
        start + usize::from(self.lengths[start])
    }

    fn is_unknown(&self, piece: Range<usize>) -> bool {
        self.unigram.trie.id(&self.word[piece]).is_none_or(|id| id == self.unigram.unknown)
    }

    /// Tokens of a piece. An unknown piece becomes its bytes, if each has a piece.
    fn tokens_of(&self, piece: Range<usize>) -> impl Iterator<Item = EncodedToken> {
        let text = &self.word[piece.clone()];
        let known = self.unigram.trie.id(text);
        let bytes = self.unigram.bytes.as_deref().filter(|_| known.is_none());
        let bytes = bytes.filter(|ids| text.bytes().all(|byte| ids[usize::from(byte)] != NO_PIECE));
        let of_bytes = bytes.into_iter().flat_map(move |ids| text.bytes().map(|byte| ids[usize::from(byte)]));
        let whole = bytes.is_none().then(|| known.unwrap_or(self.unigram.unknown));
        whole.into_iter().chain(of_bytes).map(move |id| EncodedToken {
            id,
            start: piece.start,
            end: piece.end,
        })
    }
}

impl PieceTrie {
    fn new(texts: &[&str]) -> Self {
        let mut order: Vec<(&[u8], u32)> = (0..).zip(texts).map(|(id, text)| (text.as_bytes(), id)).collect();
        // Of equal texts the last comes first, and stays.
        order.sort_unstable_by(|a, b| a.0.cmp(b.0).then(b.1.cmp(&a.1)));
        order.dedup_by_key(|(text, _)| *text);
        let mut trie = Self { bytes: vec![0], first_children: Vec::new(), ids: Vec::new() };
        // Nodes in the order of their numbers: the texts that start with each, and its depth.
        let mut nodes = VecDeque::from([(0..order.len(), 0)]);
        while let Some((texts, length)) = nodes.pop_front() {
            let ends = order.get(texts.start).filter(|(text, _)| !texts.is_empty() && text.len() == length);
            trie.ids.push(ends.map_or(NO_PIECE, |&(_, id)| id));
            trie.first_children.push(trie.bytes.len() as u32);
            let mut start = texts.start + usize::from(ends.is_some());
            while start < texts.end {
                let byte = order[start].0[length];
                let end = start + order[start..texts.end].partition_point(|(text, _)| text[length] == byte);
                trie.bytes.push(byte);
                nodes.push_back((start..end, length + 1));
                start = end;
            }
        }
        trie.first_children.push(trie.bytes.len() as u32);
        trie
    }

    fn child(&self, node: usize, byte: u8) -> Option<usize> {
        let first = self.first_children[node] as usize;
        let children = &self.bytes[first..self.first_children[node + 1] as usize];
        children.binary_search(&byte).ok().map(|number| first + number)
    }

    /// Pieces that are prefixes of a text, the shortest first: length in bytes and ID of each.
    fn beginnings(&self, text: &[u8]) -> impl Iterator<Item = (usize, u32)> {
        let nodes = text.iter().scan(0, |node, &byte| {
            *node = self.child(*node, byte)?;
            Some(self.ids[*node])
        });
        (1..).zip(nodes).filter(|&(_, id)| id != NO_PIECE)
    }

    /// ID of the piece that equals a text.
    fn id(&self, text: &str) -> Option<u32> {
        let node = text.bytes().try_fold(0, |node, byte| self.child(node, byte))?;
        Some(self.ids[node]).filter(|&id| id != NO_PIECE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::{Model as _, models::unigram::Unigram as Reference};

    use super::*;

    /// Pieces with ties between segmentations, some of them duplicates, a special token, and multi-byte characters.
    fn vocabulary(byte_fallback: bool) -> Vec<(String, f64)> {
        let texts =
            ["<unk>", "a", "aa", "aaa", "aaaaa", "b", "ab", "ba", "é", "éa", "日", "日本", "b", "x☃", "☃☃"];
        let scores =
            [0.0, -2.0, -3.5, -4.0, -7.5, -2.5, -4.5, -4.0, -1.0, -3.0, -5.0, -5.5, -1.5, -9.0, -8.0];
        let mut pieces: Vec<(String, f64)> =
            texts.iter().zip(scores).map(|(text, score)| ((*text).to_owned(), score)).collect();
        if byte_fallback {
            // One byte of a snowman has no piece.
            let bytes = (0..=255_u8).filter(|&byte| byte != 0x98);
            pieces.extend(bytes.map(|byte| (format!("<0x{byte:02X}>"), -20.0)));
        }
        pieces
    }

    fn both(byte_fallback: bool) -> (Reference, Unigram) {
        let pieces = vocabulary(byte_fallback);
        let reference = Reference::from(pieces.clone(), Some(0), byte_fallback).expect("a model");
        let pieces = pieces.iter().map(|(text, score)| (text.as_str(), *score));
        (reference, Unigram::new(pieces, 0, byte_fallback))
    }

    fn check(text: &str) {
        for byte_fallback in [false, true] {
            let (reference, unigram) = both(byte_fallback);
            let expected = reference.tokenize(text).expect("tokens");
            let expected: Vec<EncodedToken> = expected
                .iter()
                .map(|token| EncodedToken { id: token.id, start: token.offsets.0, end: token.offsets.1 })
                .collect();
            let cut = unigram.cut(text, &|| false).expect("tokens");
            assert!(cut.tokens().eq(expected), "{text:?}");
        }
    }

    #[test]
    fn pieces_are_those_of_the_reference() {
        check("");
        for letters in
            ["a", "b", "ab", "ba", "aab", "é", "日本", "☃", "x", "<unk>", "x☃", "☃a", "日本日", "ß", "<0x41>"]
        {
            for count in 1..40 {
                check(&letters.repeat(count));
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_of_any_text_are_those_of_the_reference(text in "(a|b|é|日|本|☃|x|<unk>|ß|aaaa|🙂){0,60}") {
            check(&text);
        }
    }

    #[test]
    fn megabytes_take_steps_in_proportion_and_end_when_nobody_waits() {
        let (_, unigram) = both(false);
        let asked = std::cell::Cell::new(0);
        let count = |bytes: usize, most: usize| {
            asked.set(0);
            let text = "a".repeat(bytes);
            let cut = unigram.cut(&text, &|| asked.replace(asked.get() + 1) >= most);
            (cut.map(|cut| cut.tokens().count()), asked.get())
        };
        let (tokens, one) = count(1 << 20, usize::MAX);
        assert_eq!((tokens, one), (Ok((1_usize << 20).div_ceil(3)), 16));
        assert_eq!(count(4 << 20, usize::MAX).1, 64);
        assert_eq!(count(4 << 20, 3), (Err(EncodeFailure::Interrupted), 4));
    }
}
