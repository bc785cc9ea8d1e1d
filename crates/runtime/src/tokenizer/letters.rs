//! Long texts of Unigram models, whose likeliest pieces depend on the whole of a word, however long it is. Windows give the
//! letters of the words: normal forms and the ends of words depend on a few letters beside them. A word is cut into pieces
//! once all of it is there.

use std::ops::Range;

use tokenizers::{OffsetReferential, OffsetType, Result, tokenizer::normalizer::Range as Part};

use super::{
    added::overlaps,
    table::TokenTable,
    unigram::Unigram,
    windows::{EncodeFailure, EncodedToken, Walk},
    words::{Words, parts_between, within},
};

/// Marks a letter that begins a word.
const BEGINS_WORD: u32 = 1 << 31;
/// Marks an added token, which is no letter.
const ADDED: u32 = 1 << 30;
/// Bytes of a word that the `tokenizers` crate cuts no more.
const LONG_WORD_BYTES: usize = 4 << 10;

/// The letters of a word so far, in normal form.
#[derive(Default)]
struct OpenWord {
    text: String,
    /// Its bytes in the whole text.
    range: Range<usize>,
}

impl Words {
    /// Appends the tokens of a long text, as [`Words::encode`] does.
    pub(super) fn encode_letters(
        &self,
        text: &str,
        plain: &[Range<usize>],
        (unigram, table): (&Unigram, &TokenTable),
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
            self.push_word(&closed.text, is_plain, (unigram, table), interrupted, out)
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

    /// The letters of a text and the added tokens among them, for a text that begins at byte `start` of a longer one.
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

    /// Appends the tokens of a word; of one that is plain, no control tokens.
    fn push_word(
        &self,
        word: &str,
        is_plain: bool,
        (unigram, table): (&Unigram, &TokenTable),
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
