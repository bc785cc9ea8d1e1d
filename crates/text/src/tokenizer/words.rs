//! Encoding by the `tokenizers` crate, in which any spelled control token becomes that token. Plain text must not,
//! so it goes through the crate's steps one by one: added tokens, normalizer, words, model. If a text spells no
//! control token, both ways agree, and the crate's own is used.

use std::{ops::Range, sync::OnceLock};

use tokenizers::{
    AddedToken, Encoding, Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetType,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Result, Token, normalizers,
    pre_tokenizers::metaspace::PrependScheme, tokenizer::normalizer::Range as Part,
};

use crate::limits::WINDOW_BYTES;

use super::{
    added::{AddedFinder, overlaps},
    control,
    pre::Threes,
    table::TokenTable,
    threes::CutInThrees,
    unigram::Unigram,
    windows::{EncodeFailure, EncodedToken, Walk, is_long},
};

/// BPE, WordPiece or Unigram encoder.
#[derive(Debug)]
pub(super) struct Words {
    tokenizer: tokenizers::Tokenizer,
    /// Added tokens that are searched for in the original text.
    raw: AddedTokens,
    /// Added tokens that are searched for in the normalised text.
    normalized: AddedTokens,
    /// Normalisation may create a spelled control token.
    normalizes_control: bool,
    /// Cuts numbers before any other split.
    threes: Option<CutInThrees>,
    /// Unknown token of a Unigram model.
    unknown: u32,
    /// Pieces of a Unigram model, created at the first long text.
    unigram: OnceLock<Unigram>,
    inside: Inside,
}

/// Steps for text that does not start a text: nothing is put before it.
#[derive(Debug)]
struct Inside {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
}

/// Added tokens and their finder.
#[derive(Debug)]
struct AddedTokens {
    finder: AddedFinder,
    /// Tokens in the finder's order.
    tokens: Vec<(u32, AddedToken)>,
}

impl Words {
    /// Creates an encoder from the crate's tokenizer; `table` knows the control tokens.
    pub(super) fn new(
        tokenizer: tokenizers::Tokenizer,
        table: &TokenTable,
    ) -> std::result::Result<Self, String> {
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            let list = if token.normalized { &mut normalized } else { &mut raw };
            list.push((id, token));
        }
        let spelled = |token: &AddedToken| {
            let mut text = NormalizedString::from(token.content.as_str());
            if let Some(normalizer) = tokenizer.get_normalizer().filter(|_| token.normalized) {
                normalizer.normalize(&mut text).map_err(|error| error.to_string())?;
            }
            Ok(text.get().to_owned())
        };
        let added = |mut tokens: Vec<(u32, AddedToken)>| {
            tokens.sort_unstable_by_key(|&(id, _)| id);
            let texts = tokens.iter().map(|(_, token)| spelled(token));
            let texts = texts.collect::<std::result::Result<Vec<String>, String>>()?;
            let special = tokens.iter().map(|&(id, _)| table.is_special(id));
            let finder = AddedFinder::new(texts.iter().map(String::as_str).zip(special))?;
            Ok::<AddedTokens, String>(AddedTokens { finder, tokens })
        };
        let is_special = |&(id, _): &(u32, AddedToken)| table.is_special(id);
        let normalizes_control = tokenizer.get_normalizer().is_some() && normalized.iter().any(is_special);
        Ok(Words {
            raw: added(raw)?,
            normalized: added(normalized)?,
            normalizes_control,
            threes: None,
            unknown: 0,
            unigram: OnceLock::new(),
            inside: Inside {
                normalizer: tokenizer.get_normalizer().cloned().and_then(without_prefix),
                pre_tokenizer: tokenizer.get_pre_tokenizer().cloned().map(without_first_space),
            },
            tokenizer,
        })
    }

    /// Adds the cutting of numbers into threes, if the model needs it.
    pub(super) fn with_threes(mut self, threes: Option<Threes>) -> std::result::Result<Self, String> {
        self.threes = threes.map(CutInThrees::new).transpose()?;
        Ok(self)
    }

    /// Sets the unknown token of a Unigram model.
    pub(super) fn with_unknown(self, unknown: Option<usize>) -> Self {
        // IDs are below VOCAB_MAX.
        Words { unknown: unknown.map_or(self.unknown, |id| id as u32), ..self }
    }

    /// Pieces of a Unigram model; `None` for other models.
    fn unigram(&self) -> Option<&Unigram> {
        let ModelWrapper::Unigram(model) = self.tokenizer.get_model() else { return None };
        let pieces = || model.iter().map(|(text, score)| (text.as_str(), *score));
        Some(self.unigram.get_or_init(|| Unigram::new(pieces(), self.unknown, model.byte_fallback())))
    }

    /// Also treats `ends`, and tokens with the form of control tokens, as control tokens.
    pub(super) fn reserve(&mut self, ends: &[u32], table: &mut TokenTable) {
        for (id, token) in self.raw.tokens.iter().chain(&self.normalized.tokens) {
            if control::has_form(&token.content) {
                table.reserve(*id);
            }
        }
        for &id in ends {
            if control::only_ends(&String::from_utf8_lossy(table.bytes(id))) {
                table.reserve(id);
            }
        }
        for added in [&mut self.raw, &mut self.normalized] {
            for (number, &(id, _)) in added.tokens.iter().enumerate() {
                added.finder.set_control(number, table.is_control(id));
            }
        }
        let is_control = |&(id, _): &(u32, AddedToken)| table.is_control(id);
        self.normalizes_control =
            self.tokenizer.get_normalizer().is_some() && self.normalized.tokens.iter().any(is_control);
    }

    /// ID of a token by its text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    /// Appends the tokens of a text, whose bytes in `plain` spell no control token.
    ///
    /// # Errors
    /// [`EncodeFailure`].
    pub(super) fn encode(
        &self,
        text: &str,
        plain: &[Range<usize>],
        table: &TokenTable,
        interrupted: &dyn Fn() -> bool,
        out: &mut Vec<u32>,
    ) -> std::result::Result<(), EncodeFailure> {
        if !is_long(text) {
            out.extend_from_slice(self.encoding(text, plain, table)?.get_ids());
            return Ok(());
        }
        if let Some(unigram) = self.unigram() {
            return self.encode_letters(text, plain, unigram, table, interrupted, out);
        }
        let runs = self.threes.as_ref().map(|threes| threes.long_runs(text));
        let encode = |part: Range<usize>| {
            let plain = within(plain, &part);
            let encoding = match part.start {
                0 => self.encoding(&text[part.clone()], &plain, table)?,
                _ => self.encode_by_steps(&text[part.clone()], &plain, table, true)?,
            };
            let pieces = encoding.get_ids().iter().zip(encoding.get_offsets());
            let piece = |(&id, offsets): (&u32, &(usize, usize))| EncodedToken {
                id,
                start: part.start + offsets.0,
                end: part.start + offsets.1,
            };
            Ok(pieces.map(piece).collect())
        };
        let walk = Walk { text, encode: &encode, interrupted, runs: runs.as_ref() };
        walk.run(&mut |piece| {
            out.push(piece.id);
            Ok(())
        })
    }

    /// Tokens of a text, encoded as a whole.
    pub(super) fn encoding(
        &self,
        text: &str,
        plain: &[Range<usize>],
        table: &TokenTable,
    ) -> Result<Encoding> {
        let expected = if plain.is_empty() { None } else { Some(self.control_in(text, plain)) };
        if self.threes.is_none()
            && let None | Some(Some(_)) = expected
        {
            let encoding = match text.len() > WINDOW_BYTES / 2 {
                true => self.tokenizer.encode(text, false)?,
                false => self.tokenizer.encode_fast(text, false)?,
            };
            let control = || encoding.get_ids().iter().filter(|&&id| table.is_control(id)).count();
            if expected.flatten().is_none_or(|expected| expected == control()) {
                return Ok(encoding);
            }
        }
        self.encode_by_steps(text, plain, table, false)
    }

    /// Number of control tokens that the crate finds in a text, if none of them is in `plain`; `None` if it must be
    /// encoded step by step.
    fn control_in(&self, text: &str, plain: &[Range<usize>]) -> Option<usize> {
        if self.normalizes_control {
            return None;
        }
        let mut count = 0;
        for added in [&self.raw, &self.normalized] {
            let mut at = 0;
            while let Some(found) = added.finder.next(text, at, &|_| false) {
                at = found.end;
                if added.finder.is_control(found.number) {
                    if overlaps(plain, &(found.start..found.end)) {
                        return None;
                    }
                    count += 1;
                }
            }
        }
        Some(count)
    }

    /// Tokens of a text by the crate's steps, without control tokens in `plain`. `is_inside`: other text comes
    /// before it.
    pub(super) fn encode_by_steps(
        &self,
        text: &str,
        plain: &[Range<usize>],
        table: &TokenTable,
        is_inside: bool,
    ) -> Result<Encoding> {
        let mut pieces = self.words_of(text, plain, is_inside)?;
        pieces.tokenize(|piece| {
            let (start, end) = piece.offsets_original();
            self.word_tokens(piece.get(), overlaps(plain, &(start..end)), table)
        })?;
        pieces.into_encoding(None, 0, OffsetType::Byte)
    }

    /// Normalised words of a text, and the added tokens between them, without control tokens in `plain`.
    pub(super) fn words_of(
        &self,
        text: &str,
        plain: &[Range<usize>],
        is_inside: bool,
    ) -> Result<PreTokenizedString> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, piece| self.raw.cut(piece, plain))?;
        pieces.split(|number, mut piece| {
            let normalizer = match is_inside && number == 0 {
                true => self.inside.normalizer.as_ref(),
                false => self.tokenizer.get_normalizer(),
            };
            if let Some(normalizer) = normalizer {
                normalizer.normalize(&mut piece)?;
            }
            self.normalized.cut(piece, plain)
        })?;
        if let Some(threes) = &self.threes {
            pieces.split(|_, piece| threes.cut(&piece))?;
        }
        let pre_tokenizer = match is_inside {
            true => self.inside.pre_tokenizer.as_ref(),
            false => self.tokenizer.get_pre_tokenizer(),
        };
        if let Some(pre_tokenizer) = pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        Ok(pieces)
    }

    /// Tokens of a word. A plain word gives no control tokens.
    pub(super) fn word_tokens(&self, word: &str, is_plain: bool, table: &TokenTable) -> Result<Vec<Token>> {
        match is_plain {
            true => self.plain_tokens(word, table),
            false => self.tokenizer.get_model().tokenize(word),
        }
    }

    /// Tokens of a plain word. Models have control tokens among their pieces too; a part that spells one is split.
    fn plain_tokens(&self, word: &str, table: &TokenTable) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        let mut parts: Vec<_> = std::iter::once(0..word.len()).collect();
        while let Some(part) = parts.pop() {
            let text = &word[part.clone()];
            let made = self.tokenizer.get_model().tokenize(text)?;
            let places = made.iter().map(|token| {
                let (start, end) = token.offsets;
                EncodedToken { id: token.id, start, end }
            });
            let cuts = self.control_cuts(text, places, table);
            match cuts.is_empty() {
                true => tokens.extend(made),
                false => parts.extend(parts_between(text, part, cuts)),
            }
        }
        Ok(tokens)
    }

    /// Places at which to cut a text so that control tokens among its tokens are split, ascending.
    pub(super) fn control_cuts(
        &self,
        text: &str,
        tokens: impl Iterator<Item = EncodedToken>,
        table: &TokenTable,
    ) -> Vec<usize> {
        let mut cuts = Vec::new();
        for token in tokens.filter(|token| table.is_control(token.id)) {
            let spelled = text.get(token.start..token.end).unwrap_or_default();
            let Some(first) = spelled.chars().next().map(char::len_utf8) else { continue };
            // The unknown token does not spell itself.
            if self.tokenizer.id_to_token(token.id).is_some_and(|text| text == spelled) {
                if first == spelled.len() {
                    cuts.push(token.start);
                }
                cuts.push(token.start + first);
            }
        }
        cuts
    }
}

/// Parts of `text`, which is the part `part` of a word, between cuts, the last first. A single character cannot be
/// split further: it is left out.
pub(super) fn parts_between(
    text: &str,
    part: Range<usize>,
    cuts: Vec<usize>,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let is_one = text.chars().nth(1).is_none();
    let mut end = if is_one { 0 } else { part.len() };
    cuts.into_iter().rev().chain([0]).filter_map(move |start| {
        let piece = (start < end).then(|| part.start + start..part.start + end);
        end = end.min(start);
        piece
    })
}

/// Ranges inside a part of a text, relative to its start.
pub(super) fn within(ranges: &[Range<usize>], part: &Range<usize>) -> Vec<Range<usize>> {
    let first = ranges.partition_point(|range| range.end <= part.start);
    let inside = ranges[first..].iter().take_while(|range| range.start < part.end);
    inside
        .map(|range| range.start.max(part.start) - part.start..range.end.min(part.end) - part.start)
        .collect()
}

/// Normalizer without a prefix for texts.
fn without_prefix(normalizer: NormalizerWrapper) -> Option<NormalizerWrapper> {
    match normalizer {
        NormalizerWrapper::Prepend(_) => None,
        NormalizerWrapper::Sequence(steps) => {
            let steps = steps.into_iter().filter_map(without_prefix).collect();
            Some(NormalizerWrapper::Sequence(normalizers::Sequence::new(steps)))
        }
        other => Some(other),
    }
}

/// Pre-tokenizer that does not treat a text as the first one.
fn without_first_space(mut pre_tokenizer: PreTokenizerWrapper) -> PreTokenizerWrapper {
    match &mut pre_tokenizer {
        PreTokenizerWrapper::Metaspace(spaces) if spaces.prepend_scheme == PrependScheme::First => {
            spaces.prepend_scheme = PrependScheme::Never;
        }
        PreTokenizerWrapper::Sequence(steps) => {
            for step in steps.as_mut() {
                *step = without_first_space(step.clone());
            }
        }
        _ => {}
    }
    pre_tokenizer
}

impl AddedTokens {
    /// Cuts a text at its added tokens, as the crate does.
    fn cut(
        &self,
        text: NormalizedString,
        plain: &[Range<usize>],
    ) -> Result<Vec<(NormalizedString, Option<Vec<Token>>)>> {
        let slice = |part: &Range<usize>| {
            text.slice(Part::Normalized(part.clone())).ok_or("an added token ends inside a character")
        };
        // Text whose original place is unknown counts as plain.
        let is_plain = |part: Range<usize>| {
            slice(&part).map_or(true, |slice| {
                let (start, end) = slice.offsets_original();
                overlaps(plain, &(start..end))
            })
        };
        let mut pieces = Vec::new();
        for (id, part) in self.parts(text.get(), &is_plain) {
            let piece = slice(&part)?;
            let token = id.map(|id| vec![Token::new(id, piece.get().to_owned(), (0, part.len()))]);
            pieces.push((piece, token));
        }
        Ok(pieces)
    }

    /// Added tokens in a text and the text between them.
    fn parts(&self, text: &str, is_plain: &dyn Fn(Range<usize>) -> bool) -> Vec<(Option<u32>, Range<usize>)> {
        let mut parts = Vec::new();
        let (mut at, mut done) = (0, 0);
        while let Some(found) = self.finder.next(text, at, is_plain) {
            at = found.end;
            let (id, token) = &self.tokens[found.number];
            let (mut start, mut end) = (found.start, found.end);
            let of_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            if token.single_word
                && (of_word(text[..start].chars().next_back()) || of_word(text[end..].chars().next()))
            {
                continue;
            }
            if token.lstrip {
                start = text[..start].trim_end().len().max(done);
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                parts.push((None, done..start));
            }
            parts.push((Some(*id), start..end));
            done = end;
        }
        if done < text.len() {
            parts.push((None, done..text.len()));
        }
        parts
    }
}
