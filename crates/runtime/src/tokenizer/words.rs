//! Encoding by the `tokenizers` crate, which knows one kind of text: whatever spells a control token becomes it. What
//! somebody else has written must not, so such texts go the crate's own way step by step: added tokens, normalizer,
//! words, model. Where nothing in a text spells a control token, both ways give the same, and the crate's is taken.

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

/// BPE, WordPiece or Unigram.
#[derive(Debug)]
pub(super) struct Words {
    tokenizer: tokenizers::Tokenizer,
    /// Tokens looked for in the text as it is.
    raw: Added,
    /// Tokens looked for in the normalized text.
    normalized: Added,
    /// Normalizing may make a control token of what spells none.
    normalizes_control: bool,
    /// Cuts numbers before anything else is split.
    threes: Option<CutInThrees>,
    /// The token that stands for what is unknown to a Unigram model.
    unknown: u32,
    /// The pieces of a Unigram model, from its first long text on.
    unigram: OnceLock<Unigram>,
    inside: Inside,
}

/// How the text is changed and split where it does not begin: nothing is put before it.
#[derive(Debug)]
struct Inside {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
}

/// Added tokens and what finds them.
#[derive(Debug)]
struct Added {
    finder: AddedFinder,
    /// In the finder's order.
    tokens: Vec<(u32, AddedToken)>,
}

impl Words {
    /// Of the crate's tokenizer; `table` says which tokens are control tokens.
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
            Ok::<Added, String>(Added { finder, tokens })
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

    /// Cuts numbers in threes first, where a model does.
    pub(super) fn with_threes(mut self, threes: Option<Threes>) -> std::result::Result<Self, String> {
        self.threes = threes.map(CutInThrees::new).transpose()?;
        Ok(self)
    }

    /// Has `unknown` stand for what is unknown to a Unigram model.
    pub(super) fn with_unknown(self, unknown: Option<usize>) -> Self {
        // Ids are below VOCAB_MAX.
        Words { unknown: unknown.map_or(self.unknown, |id| id as u32), ..self }
    }

    /// The pieces of a Unigram model; none of another.
    fn unigram(&self) -> Option<&Unigram> {
        let ModelWrapper::Unigram(model) = self.tokenizer.get_model() else { return None };
        let pieces = || model.iter().map(|(text, score)| (text.as_str(), *score));
        Some(self.unigram.get_or_init(|| Unigram::new(pieces(), self.unknown, model.byte_fallback())))
    }

    /// Takes the tokens that have the form of control tokens, and `ends`, for control tokens too.
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

    /// The id of a token by its text.
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
            return self.encode_letters(text, plain, (unigram, table), interrupted, out);
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

    /// The tokens of a text as a whole.
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

    /// How many control tokens a text has by the crate's way, where none of them is in `plain`; none where the
    /// crate's way does not tell.
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

    /// The tokens of a text by the crate's steps, but for control tokens in `plain`. `is_inside`: other text stands before it.
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

    /// The words of a text in normal form, and the added tokens between them, but for control tokens in `plain`.
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

    /// The model's tokens of a word; of one that is plain, no control tokens.
    pub(super) fn word_tokens(&self, word: &str, is_plain: bool, table: &TokenTable) -> Result<Vec<Token>> {
        match is_plain {
            true => self.plain_tokens(word, table),
            false => self.tokenizer.get_model().tokenize(word),
        }
    }

    /// The model's tokens of a word, but for control tokens: models have those among their pieces too, and what spells
    /// one is taken apart.
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

    /// Where to cut a text so that the control tokens among its tokens are taken apart, ascending.
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
            // What stands for the unknown does not spell itself.
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

/// The parts of `text`, which is the part `part` of a word, between places where control tokens are taken apart; the last first.
/// One character alone has no other way to be written: it is left out.
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

/// The ranges inside a part of a text, counted from its beginning.
pub(super) fn within(ranges: &[Range<usize>], part: &Range<usize>) -> Vec<Range<usize>> {
    let first = ranges.partition_point(|range| range.end <= part.start);
    let inside = ranges[first..].iter().take_while(|range| range.start < part.end);
    inside
        .map(|range| range.start.max(part.start) - part.start..range.end.min(part.end) - part.start)
        .collect()
}

/// A normalizer that puts nothing before a text.
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

/// A pre-tokenizer that does not take a text for the first.
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

impl Added {
    /// Cuts a text at the tokens in it, as the crate does.
    fn cut(
        &self,
        text: NormalizedString,
        plain: &[Range<usize>],
    ) -> Result<Vec<(NormalizedString, Option<Vec<Token>>)>> {
        let slice = |part: &Range<usize>| {
            text.slice(Part::Normalized(part.clone())).ok_or("an added token ends inside a character")
        };
        // What cannot be placed is taken for plain.
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

    /// The tokens in a text and what is between them.
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
