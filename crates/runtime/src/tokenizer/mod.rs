//! Text to tokens and back. A tokenizer comes from `tokenizer.json` ([`hf`]) or from GGUF metadata ([`gguf`]); either
//! way it is an encoder, and a table of the exact bytes of every token. Turning a stream of tokens into text as
//! it comes is [`crate::detokenizer`]'s part.

mod added;
mod affixes;
mod bpe;
mod byte_level;
mod chars_map;
mod control;
mod ggml_keys;
mod gguf;
mod gguf_pieces;
mod guard;
pub(crate) mod hf;
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

use crate::{
    detokenizer::Detokenizer,
    error::{LoadError, RequestError},
    limits::{
        COUNTED_PIECE_BYTES, COUNTED_PIECE_SLACK_TOKENS, PROMPT_BYTES_MAX, USUAL_TOKEN_BYTES,
        WINDOW_BYTES_MAX,
    },
    load::{TextFiles, TokenizerSource},
};

use affixes::Affixes;
use sentencepiece::SentencePiece;
use table::TokenTable;
use windows::EncodeFailure;
use words::Words;

pub(crate) use ggml_keys::{Ends, agree, around, of_json};
/// The expression of Mistral's Tekken.
pub(crate) use pre::TEKKEN as TEKKEN_PATTERN;

/// The character that stands for a byte in byte-level vocabularies.
pub(crate) fn byte_char(byte: u8) -> char {
    byte_level::char_of(byte)
}

/// Whether a token's text has the form of one that structures prompts.
pub(crate) fn has_control_form(text: &str) -> bool {
    control::has_form(text)
}

/// Tokens that are decoded between two questions whether anybody waits for them.
const DECODED_AT_ONCE: usize = 1 << 16;

/// Which end of a text that is too long is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutSide {
    /// The beginning stays.
    #[default]
    Right,
    /// The end stays.
    Left,
}

/// Two texts as one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPair {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// The type of each.
    pub types: Vec<u32>,
    /// How many there were before any were cut off.
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

/// What is left of a text's tokens.
pub fn cut(tokens: &[u32], tokens_max: usize, side: CutSide) -> &[u32] {
    let kept = tokens.len().min(tokens_max);
    match side {
        CutSide::Right => &tokens[..kept],
        CutSide::Left => &tokens[tokens.len() - kept..],
    }
}

/// How many tokens of `tokens_max` are left beside those that stand around texts, `least` at least.
///
/// # Errors
/// [`RequestError::NoRoom`].
pub(crate) fn room(tokens_max: usize, around: usize, least: usize) -> Result<usize, RequestError> {
    let room = tokens_max.checked_sub(around).filter(|&room| room >= least);
    room.ok_or(RequestError::NoRoom { around, tokens_max })
}

/// How many tokens two texts may keep of `room`: the longer one loses first, and keeps the odd token, as Hugging
/// Face's `longest_first` has it.
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

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    /// Tokens put around texts, where special tokens are asked for.
    affixes: Affixes,
    table: TokenTable,
    /// Encoding puts a space before a text; decoding takes it away.
    strips_space: bool,
}

#[derive(Debug)]
enum Encoder {
    /// BPE, WordPiece and Unigram.
    Words(Box<Words>),
    SentencePiece(SentencePiece),
}

impl Tokenizer {
    /// The tokenizer of a model's files.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key: missing, corrupt, or of a kind that this build does not know. A
    /// tokenizer that fails at some plain text is corrupt too.
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
                    // What is wrong is said by a panic; a text that has no tokens is no fault.
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

    /// The tokens of a text. Control tokens written in the text are recognised. `add_special` puts the tokens
    /// around it that the model expects around a bare text, such as the beginning of sequence; a rendered chat
    /// has its own.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for a text over [`PROMPT_BYTES_MAX`], or one on which the model's own splitting
    /// expression needs more steps than it may take.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, RequestError> {
        self.encode_around(text, &[], add_special)
    }

    /// The same for a text that is no more than text: what spells a control token is tokenized as its characters are.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_plain(&self, text: &str, add_special: bool) -> Result<Vec<u32>, RequestError> {
        self.encode_around(text, slice::from_ref(&(0..text.len())), add_special)
    }

    /// The same for a text of which only the bytes in `plain`, ascending and apart from each other, are no more than
    /// text: a control token is one that is wholly outside of them, and so is a token that is shown but has the form of
    /// one, such as `<|user|>`, or ends the model's texts. Others that are shown, such as `<think>`, are recognised
    /// everywhere.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_around(
        &self,
        text: &str,
        plain: &[Range<usize>],
        add_special: bool,
    ) -> Result<Vec<u32>, RequestError> {
        self.encode_until(text, plain, add_special, &|| false)
    }

    /// The same until `interrupted` says so, which it is asked again and again.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`], and [`RequestError::Interrupted`].
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

    /// That a text has surely more than `tokens_max` tokens, found without taking it as a whole: while it is tokenized, a
    /// text takes some seventy times its bytes. What may fit passes, and so does what is short for so many tokens.
    ///
    /// # Errors
    /// [`RequestError::TooLong`] of `field`, [`RequestError::Interrupted`], and as [`Tokenizer::encode`].
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

    /// Ends every text with a token, where it ends with none yet and there is such a token.
    pub(crate) fn end_with(&mut self, token: &str) {
        if self.affixes.suffix.is_empty() {
            self.affixes.suffix.extend(self.token_id(token));
        }
    }

    /// The highest token type of a pair of texts; none: the model does not say what a pair looks like.
    pub fn pair_type_max(&self) -> Option<u32> {
        let pair = self.affixes.pair.as_ref()?;
        let around =
            [&pair.before, &pair.between, &pair.after].into_iter().flatten().map(|&(_, of_type)| of_type);
        around.chain(pair.types).max()
    }

    /// How many tokens stand before and after a text, where special tokens are asked for.
    pub fn special_around(&self) -> (usize, usize) {
        (self.affixes.prefix.len(), self.affixes.suffix.len())
    }

    /// The tokens of a text as a model expects it alone, `tokens_max` at most: what is too long loses tokens of its
    /// own on one side. The second value is how many it had.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`], and where the tokens around a text leave no room for any of its own.
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

    /// The tokens of a pair of texts and the type of each, `tokens_max` at most: while it is too long, the longer
    /// text loses tokens of its own on one side. The third value is how many it had. None: the model does not say
    /// what a pair looks like. Neither text can spell a control token, such as the one between them.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_cut`].
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

    /// The text of tokens; bytes that are not UTF-8 become U+FFFD, unknown ids nothing. Control tokens are left
    /// out with `skip_special`.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.decode_until(ids, skip_special, &|| false).unwrap_or_default()
    }

    /// The same until `interrupted` says so, which it is asked again and again.
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

    /// The exact bytes of a token; none for an unknown id. A character may span tokens.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// Whether a token is a control token, such as an end of turn: no part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// The highest id plus one.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// The id of a token by its text as the vocabulary spells it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match &self.encoder {
            Encoder::Words(words) => words.id(token),
            Encoder::SentencePiece(encoder) => encoder.id(token),
        }
    }
}
