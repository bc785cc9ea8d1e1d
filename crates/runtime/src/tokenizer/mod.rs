//! Text to tokens and back. A tokenizer comes from `tokenizer.json` ([`hf`]) or from GGUF metadata ([`gguf`]); either
//! way it is an encoder, and a table of the exact bytes of every token. Turning a stream of tokens into text as
//! it comes is [`crate::detokenizer`]'s part.

mod bpe;
mod byte_level;
mod gguf;
pub(crate) mod hf;
mod pre;
mod sentencepiece;
mod table;

#[cfg(test)]
mod tests;

use crate::{
    detokenizer::Detokenizer,
    error::{LoadError, RequestError},
    limits::PROMPT_BYTES_MAX,
    load::{TextFiles, TokenizerSource},
};

use sentencepiece::SentencePiece;
use table::TokenTable;

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    /// Tokens put before and after a text, where special tokens are asked for.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    table: TokenTable,
    /// Encoding puts a space before a text; decoding takes it away.
    strips_space: bool,
}

#[derive(Debug)]
enum Encoder {
    Bpe(Box<tokenizers::Tokenizer>),
    SentencePiece(SentencePiece),
}

impl Tokenizer {
    /// The tokenizer of a model's files.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key: missing, corrupt, or of a kind that this build does not know.
    pub fn load(files: &TextFiles) -> Result<Tokenizer, LoadError> {
        match &files.tokenizer {
            TokenizerSource::Gguf(metadata) => gguf::load(metadata),
            TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config } => {
                hf::load(&format!("{}/tokenizer.json", files.file), tokenizer_json, tokenizer_config.as_ref())
            }
        }
    }

    /// The tokens of a text. Control tokens written in the text are recognised. `add_special` puts the tokens
    /// around it that the model expects around a bare text, such as the beginning of sequence; a rendered chat
    /// has its own.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for a text over [`PROMPT_BYTES_MAX`], or one on which the model's own splitting
    /// expression needs more steps than it may take.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, RequestError> {
        if text.len() > PROMPT_BYTES_MAX {
            let reason = format!("has {} bytes; at most {PROMPT_BYTES_MAX} are possible", text.len());
            return Err(RequestError::invalid("prompt", reason));
        }
        let mut tokens = if add_special { self.prefix.clone() } else { Vec::new() };
        match &self.encoder {
            Encoder::Bpe(tokenizer) => {
                let encoding = tokenizer.encode_fast(text, false).map_err(|error| {
                    RequestError::invalid("prompt", format!("cannot be tokenized: {error}"))
                })?;
                tokens.extend_from_slice(encoding.get_ids());
            }
            Encoder::SentencePiece(encoder) => encoder.encode(text, &mut tokens),
        }
        if add_special {
            tokens.extend_from_slice(&self.suffix);
        }
        Ok(tokens)
    }

    /// The text of tokens; bytes that are not UTF-8 become U+FFFD, unknown ids nothing. Control tokens are left
    /// out with `skip_special`.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = String::new();
        let mut detokenizer = Detokenizer::new(skip_special);
        ids.iter().for_each(|&id| detokenizer.push(self, id, &mut text));
        detokenizer.finish(&mut text);
        let starts_plain = ids.iter().find(|&&id| !self.is_special(id)) == ids.first() || skip_special;
        if self.strips_space && starts_plain && text.starts_with(' ') {
            text.remove(0);
        }
        text
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
            Encoder::Bpe(tokenizer) => tokenizer.token_to_id(token),
            Encoder::SentencePiece(encoder) => encoder.id(token),
        }
    }
}
