//! Long texts of Unigram models, whose best segmentation depends on whole words of any length. Windows yield the
//! characters of words, because normal forms and word boundaries depend on a few neighbours only. A word is
//! segmented once all of it is there.

use std::ops::Range;

use tokenizers::{OffsetReferential, OffsetType, Result, tokenizer::normalizer::Range as Part};

use super::{
    added::overlaps,
    table::TokenTable,
    unigram::Unigram,
    windows::{EncodeFailure, EncodedToken, Walk},
    words::{Words, parts_between, within},
};

/// Flag of a character that starts a word.
const BEGINS_WORD: u32 = 1 << 31;
/// Flag of an added token.
const ADDED: u32 = 1 << 30;
/// Words longer than this, in bytes, are segmented here rather than by the `tokenizers` crate.
const LONG_WORD_BYTES: usize = 4 << 10;

/// Normalised characters of a word so far.
#[derive(Default)]
struct OpenWord {
    text: String,
    /// Range of the word in the whole text, in bytes.
    range: Range<usize>,
}

impl Words {
    /// Appends the tokens of a long text, as [`Words::encode`] does.
    pub(super) fn encode_letters(
        &self,
        text: &str,
        plain: &[Range<usize>],
        unigram: &Unigram,
        table: &TokenTable,
        interrupted: &dyn Fn() -> bool,
        out: &mut Vec<u32>,
    ) -> std::result::Result<(), EncodeFailure> {
        let letters = |part: Range<usize>| {
            let letters = self.letters(&text[part.clone()], &within(plain, &part), part.start)?;
            Ok(letters)
        };
        let mut word = OpenWord::default();
        let close = |word: &mut OpenWord, out: &mut Vec<u32>| {
            let is_plain = overlaps(plain, &word.range);
            let closed = std::mem::take(word);
            self.push_word(&closed.text, is_plain, unigram, table, interrupted, out)
        };
        let walk = Walk { text, encode: &letters, interrupted, runs: None };
        walk.run(&mut |letter| {
            if letter.id & (BEGINS_WORD | ADDED) != 0 {
                close(&mut word, out)?;
            }
            if letter.id & ADDED != 0 {
                out.push(letter.id & !ADDED);
            } else if let Some(c) = char::from_u32(letter.id & !BEGINS_WORD) {
                if word.text.is_empty() {
                    word.range = letter.start..letter.end;
                }
                word.range.end = letter.end;
                word.text.push(c);
            }
            Ok(())
        })?;
        close(&mut word, out)
    }

    /// Characters of a text and the added tokens between them, for a text that starts at byte `start` of a longer
    /// one.
    fn letters(&self, text: &str, plain: &[Range<usize>], start: usize) -> Result<Vec<EncodedToken>> {
        let mut pieces = self.words_of(text, plain, start > 0)?;
        let mut words = Vec::new();
        pieces.split(|_, word| {
            let start = start + word.offsets_original().0;
            let mut letters: Vec<EncodedToken> = Vec::with_capacity(word.get().len());
            for (at, c) in word.get().char_indices() {
                let range = word.convert_offsets(Part::Normalized(at..at + c.len_utf8())).unwrap_or(0..0);
                let mark = if at == 0 { BEGINS_WORD } else { 0 };
                let (start, end) = (start + range.start, start + range.end);
                letters.push(EncodedToken { id: u32::from(c) | mark, start, end });
            }
            words.push(letters);
            Ok([word])
        })?;
        let (mut words, mut all) = (words.into_iter(), Vec::new());
        for (_, (from, to), added) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let (start, end) = (start + from, start + to);
            match added {
                Some(tokens) => {
                    all.extend(tokens.iter().map(|token| EncodedToken { id: ADDED | token.id, start, end }));
                }
                None => all.extend(words.next().unwrap_or_default()),
            }
        }
        Ok(all)
    }

    /// Appends the tokens of a word. A plain word gives no control tokens.
    fn push_word(
        &self,
        word: &str,
        is_plain: bool,
        unigram: &Unigram,
        table: &TokenTable,
        interrupted: &dyn Fn() -> bool,
        out: &mut Vec<u32>,
    ) -> std::result::Result<(), EncodeFailure> {
        if word.len() < LONG_WORD_BYTES {
            let tokens = self.word_tokens(word, is_plain, table)?;
            out.extend(tokens.iter().map(|token| token.id));
            return Ok(());
        }
        let mut parts: Vec<_> = std::iter::once(0..word.len()).collect();
        while let Some(part) = parts.pop() {
            let text = &word[part.clone()];
            let cut = unigram.cut(text, interrupted)?;
            let cuts = match is_plain {
                true => self.control_cuts(text, cut.tokens(), table),
                false => Vec::new(),
            };
            match cuts.is_empty() {
                true => out.extend(cut.tokens().map(|token| token.id)),
                false => parts.extend(parts_between(text, part, cuts)),
            }
        }
        Ok(())
    }
}
