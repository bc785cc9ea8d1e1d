//! Tokenization and its inverse. A tokenizer is loaded from `tokenizer.json` ([`hf`]) or from GGUF metadata
//! ([`gguf`]). It consists of an encoder and a table of the exact bytes of every token. Incremental detokenisation
//! is in `detokenizer`.

mod added;
mod affixes;
mod bpe;
mod byte_level;
mod chars_map;
mod control;
mod detokenizer;
mod ggml_keys;
mod gguf;
mod gguf_pieces;
mod guard;
pub mod hf;
mod letters;
mod pieces;
mod pre;
mod sentencepiece;
mod table;
mod threes;
mod unigram;
mod windows;
mod words;

#[cfg(test)]
mod tests;

use std::{ops::Range, slice};

use hanzo_engine_model_files::error::LoadError;

use crate::{
    error::RequestError,
    limits::{
        COUNTED_PIECE_BYTES, COUNTED_PIECE_SLACK_TOKENS, PROMPT_BYTES_MAX, USUAL_TOKEN_BYTES,
        WINDOW_BYTES_MAX,
    },
    text_files::{TextFiles, TokenizerSource},
};

use affixes::Affixes;
pub use detokenizer::Detokenizer;
use sentencepiece::SentencePiece;
use table::TokenTable;
use windows::EncodeFailure;
use words::Words;

pub use ggml_keys::{Ends, agree, around, of_json};
pub use pre::TEKKEN as TEKKEN_PATTERN;

/// Character for a byte in byte-level vocabularies.
pub fn byte_char(byte: u8) -> char {
    byte_level::char_of(byte)
}

/// Whether a token's text has the form of one that structures prompts.
pub fn has_control_form(text: &str) -> bool {
    control::has_form(text)
}

/// Tokens decoded between two checks for interruption.
const DECODED_AT_ONCE: usize = 1 << 16;

/// Side on which a text that is too long is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutSide {
    /// Cut the end.
    #[default]
    Right,
    /// Cut the beginning.
    Left,
}

/// Two texts as one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPair {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Type of each token.
    pub types: Vec<u32>,
    /// Number of tokens before the cut.
    pub tokens_uncut: usize,
}

impl EncodedPair {
    fn put(&mut self, tokens: &[(u32, u32)]) {
        self.tokens.extend(tokens.iter().map(|&(id, _)| id));
        self.types.extend(tokens.iter().map(|&(_, of_type)| of_type));
    }

    fn put_text(&mut self, tokens: &[u32], of_type: u32) {
        self.tokens.extend_from_slice(tokens);
        self.types.extend(tokens.iter().map(|_| of_type));
    }
}

/// Tokens that remain after cutting a text.
pub fn cut(tokens: &[u32], tokens_max: usize, side: CutSide) -> &[u32] {
    let kept = tokens.len().min(tokens_max);
    match side {
        CutSide::Right => &tokens[..kept],
        CutSide::Left => &tokens[tokens.len() - kept..],
    }
}

/// Number of the `tokens_max` tokens left beside those around texts; `least` at least.
///
/// # Errors
/// [`RequestError::NoRoom`].
pub fn room(tokens_max: usize, around: usize, least: usize) -> Result<usize, RequestError> {
    let room = tokens_max.checked_sub(around).filter(|&room| room >= least);
    room.ok_or(RequestError::NoRoom { around, tokens_max })
}

/// Number of tokens that two texts may keep of `room`. The longer one loses first, and keeps the odd token, as in
/// Hugging Face's `longest_first`.
fn share(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let half = room / 2;
    if first <= half {
        (first, room - first)
    } else if second <= half {
        (room - second, second)
    } else if first > second {
        (room - half, half)
    } else {
        (half, room - half)
    }
}

/// Tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    /// Tokens around texts, if special tokens are requested.
    affixes: Affixes,
    table: TokenTable,
    /// Encoding puts a space before a text; decoding removes it.
    strips_space: bool,
}

#[derive(Debug)]
enum Encoder {
    /// BPE, WordPiece and Unigram.
    Words(Box<Words>),
    SentencePiece(SentencePiece),
}

impl TokenizerSource {
    /// Kind of tokenizer, and name of its pre-tokenizer.
    pub fn kind(&self) -> (Option<String>, Option<String>) {
        match self {
            TokenizerSource::Gguf(metadata) => {
                let text = |key| metadata.string(key).ok().flatten().map(str::to_owned);
                (text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"))
            }
            TokenizerSource::HuggingFace { tokenizer_json, .. } => (hf::kind(tokenizer_json), None),
        }
    }
}

impl Tokenizer {
    /// Loads the tokenizer of a model's files.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key: missing, corrupt, or of an unsupported kind. A tokenizer that
    /// fails on plain text counts as corrupt.
    pub fn load(files: &TextFiles) -> Result<Tokenizer, LoadError> {
        let load = || {
            let mut tokenizer = match &files.tokenizer {
                TokenizerSource::Gguf(metadata) => gguf::load(metadata, &files.eos),
                TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config } => {
                    let file = format!("{}/tokenizer.json", files.file);
                    hf::load(&file, tokenizer_json, tokenizer_config.as_ref())
                }
            }?;
            let mut ends = files.eos.clone();
            if let TokenizerSource::HuggingFace { tokenizer_config: Some(config), .. } = &files.tokenizer {
                let named = config.get("eos_token").and_then(hf::token_text);
                ends.extend(named.and_then(|token| tokenizer.token_id(token)));
            }
            if let Encoder::Words(words) = &mut tokenizer.encoder {
                words.reserve(&ends, &mut tokenizer.table);
                for text in guard::SAMPLES {
                    // Only panics count as faults; a text without tokens does not.
                    drop(words.encode(text, &[], &tokenizer.table, &|| false, &mut Vec::new()));
                    drop(words.encode(
                        text,
                        slice::from_ref(&(0..text.len())),
                        &tokenizer.table,
                        &|| false,
                        &mut Vec::new(),
                    ));
                }
            }
            Ok(tokenizer)
        };
        guard::caught(load).unwrap_or_else(|said| {
            Err(LoadError::Corrupt {
                file: files.file.clone(),
                what: "tokenizer".into(),
                reason: format!("it makes no sense to what runs it: {said}"),
            })
        })
    }

    /// Tokens of a text, in which control tokens are recognised. `add_special` adds the tokens that the model
    /// expects around a bare text, such as beginning of sequence; a rendered chat has its own.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for a text over [`PROMPT_BYTES_MAX`], or one on which the model's own splitting
    /// expression needs more steps than allowed.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, RequestError> {
        self.encode_around(text, &[], add_special)
    }

    /// Tokens of a plain text: spelled control tokens are tokenized by their characters.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`].
    pub fn encode_plain(&self, text: &str, add_special: bool) -> Result<Vec<u32>, RequestError> {
        self.encode_around(text, slice::from_ref(&(0..text.len())), add_special)
    }

    /// Tokens of a text in which only the bytes in `plain` (ascending, disjoint) are plain. Control tokens must be
    /// wholly outside of them. This also holds for shown tokens that have the form of control tokens, such as
    /// `<|user|>`, or that end the model's texts. Other shown tokens, such as `<think>`, are recognised everywhere.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`].
    pub fn encode_around(
        &self,
        text: &str,
        plain: &[Range<usize>],
        add_special: bool,
    ) -> Result<Vec<u32>, RequestError> {
        self.encode_until(text, plain, add_special, &|| false)
    }

    /// Tokens as of [`Tokenizer::encode_around`], unless `interrupted`, which is checked repeatedly.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`], and [`RequestError::Interrupted`].
    pub fn encode_until(
        &self,
        text: &str,
        plain: &[Range<usize>],
        add_special: bool,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, RequestError> {
        if text.len() > PROMPT_BYTES_MAX {
            let reason = format!("has {} bytes; at most {PROMPT_BYTES_MAX} are possible", text.len());
            return Err(RequestError::invalid("prompt", reason));
        }
        if interrupted() {
            return Err(RequestError::Interrupted);
        }
        let mut tokens = if add_special { self.affixes.prefix.clone() } else { Vec::new() };
        let encoded = match &self.encoder {
            Encoder::Words(words) => {
                guard::caught(|| words.encode(text, plain, &self.table, interrupted, &mut tokens))
                    .map_err(EncodeFailure::Encoder)
                    .flatten()
            }
            Encoder::SentencePiece(encoder) => encoder.encode(text, plain, interrupted, &mut tokens),
        };
        encoded.map_err(|failure| match failure {
            EncodeFailure::Interrupted => RequestError::Interrupted,
            EncodeFailure::Unbroken(from) => RequestError::invalid(
                "prompt",
                format!(
                    "has more than {WINDOW_BYTES_MAX} bytes from byte {from} on that have no place at which they can be cut \
                     into tokens; put white space between them"
                ),
            ),
            EncodeFailure::Encoder(reason) => {
                RequestError::invalid("prompt", format!("cannot be tokenized: {reason}"))
            }
        })?;
        if add_special {
            tokens.extend_from_slice(&self.affixes.suffix);
        }
        Ok(tokens)
    }

    /// Checks that a text does not surely have more than `tokens_max` tokens, without tokenizing it as a whole:
    /// tokenizing takes some seventy times a text's bytes. Texts that may fit pass, as do short ones.
    ///
    /// # Errors
    /// [`RequestError::TooLong`] of `field`, [`RequestError::Interrupted`], and as for [`Tokenizer::encode`].
    pub fn check_length(
        &self,
        field: &'static str,
        text: &str,
        tokens_max: usize,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), RequestError> {
        if text.len() <= tokens_max.saturating_mul(USUAL_TOKEN_BYTES).max(COUNTED_PIECE_BYTES) {
            return Ok(());
        }
        let (mut tokens_least, mut rest) = (0, text);
        while !rest.is_empty() {
            if interrupted() {
                return Err(RequestError::Interrupted);
            }
            let mut end = rest.len().min(COUNTED_PIECE_BYTES);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            let (piece, after) = rest.split_at(end);
            rest = after;
            tokens_least += self.encode(piece, false)?.len().saturating_sub(COUNTED_PIECE_SLACK_TOKENS);
            if tokens_least > tokens_max {
                return Err(RequestError::TooLong { field, tokens_least, tokens_max });
            }
        }
        Ok(())
    }

    /// Adds an end token to every text, if none is added yet and the vocabulary has this one.
    pub fn end_with(&mut self, token: &str) {
        if self.affixes.suffix.is_empty() {
            self.affixes.suffix.extend(self.token_id(token));
        }
    }

    /// Highest token type in a pair of texts; `None`: the model does not define pairs.
    pub fn pair_type_max(&self) -> Option<u32> {
        let pair = self.affixes.pair.as_ref()?;
        let around =
            [&pair.before, &pair.between, &pair.after].into_iter().flatten().map(|&(_, of_type)| of_type);
        around.chain(pair.types).max()
    }

    /// Number of special tokens before and after a text.
    pub fn special_around(&self) -> (usize, usize) {
        (self.affixes.prefix.len(), self.affixes.suffix.len())
    }

    /// Tokens of a single text with the special tokens, at most `tokens_max`: a text that is too long loses tokens
    /// on one side. The second value is the number before the cut.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`], and if the special tokens leave no room.
    pub fn encode_cut(
        &self,
        text: &str,
        tokens_max: usize,
        side: CutSide,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(Vec<u32>, usize), RequestError> {
        let own = self.encode_until(text, &[], false, interrupted)?;
        let Affixes { prefix, suffix, .. } = &self.affixes;
        let (around, count) = (prefix.len() + suffix.len(), own.len());
        if around + count <= tokens_max {
            return Ok(([prefix, &own[..], suffix].concat(), around + count));
        }
        let own = cut(&own, room(tokens_max, around, 1)?, side);
        Ok(([prefix, own, suffix].concat(), around + count))
    }

    /// Tokens and types of a pair of texts, at most `tokens_max`: the longer text loses tokens on one side while
    /// the pair is too long. Also counts the tokens before the cut. `None`: the model does not define pairs.
    /// Neither text can spell a control token, such as the separator.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode_cut`].
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        tokens_max: usize,
        side: CutSide,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<EncodedPair>, RequestError> {
        let Some(pair) = &self.affixes.pair else { return Ok(None) };
        let plain =
            |text: &str| self.encode_until(text, slice::from_ref(&(0..text.len())), false, interrupted);
        let (first, second) = (plain(first)?, plain(second)?);
        let around = pair.before.len() + pair.between.len() + pair.after.len();
        let whole = first.len() + second.len();
        let room = if around + whole <= tokens_max { whole } else { room(tokens_max, around, 2)? };
        let (first_max, second_max) = share(first.len(), second.len(), room);
        let mut encoded = EncodedPair { tokens: Vec::new(), types: Vec::new(), tokens_uncut: around + whole };
        encoded.put(&pair.before);
        encoded.put_text(cut(&first, first_max, side), pair.types[0]);
        encoded.put(&pair.between);
        encoded.put_text(cut(&second, second_max, side), pair.types[1]);
        encoded.put(&pair.after);
        Ok(Some(encoded))
    }

    /// Text of tokens. Invalid UTF-8 becomes U+FFFD, unknown IDs nothing. `skip_special` leaves out control tokens.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.decode_until(ids, skip_special, &|| false).unwrap_or_default()
    }

    /// Text of tokens, unless `interrupted`, which is checked repeatedly.
    ///
    /// # Errors
    /// [`RequestError::Interrupted`].
    pub fn decode_until(
        &self,
        ids: &[u32],
        skip_special: bool,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<String, RequestError> {
        let mut text = String::new();
        let mut detokenizer = Detokenizer::new(skip_special);
        for ids in ids.chunks(DECODED_AT_ONCE) {
            if interrupted() {
                return Err(RequestError::Interrupted);
            }
            ids.iter().for_each(|&id| detokenizer.push(self, id, &mut text));
        }
        detokenizer.finish(&mut text);
        let starts_plain = ids.iter().find(|&&id| !self.is_special(id)) == ids.first() || skip_special;
        if self.strips_space && starts_plain && text.starts_with(' ') {
            text.remove(0);
        }
        Ok(text)
    }

    /// Exact bytes of a token; empty for an unknown ID. A character may span tokens.
    #[inline]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// Whether a token is a control token, such as end of turn: not part of the text.
    #[inline]
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// Highest ID plus one.
    #[inline]
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// ID of a token by its spelling in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match &self.encoder {
            Encoder::Words(words) => words.id(token),
            Encoder::SentencePiece(encoder) => encoder.id(token),
        }
    }
}
