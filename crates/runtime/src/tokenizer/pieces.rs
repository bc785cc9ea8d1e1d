//! WordPiece and Unigram by the `tokenizers` crate, for encoders: from parts that have been checked first, because
//! the crate trusts its input.

use std::collections::HashMap;

use tokenizers::{
    AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer,
    models::{unigram::Unigram, wordpiece::WordPiece},
};

use crate::limits::{PIECE_BYTES_MAX, PIECE_NODES_MAX, VOCAB_MAX};

/// The model that cuts words into tokens.
pub(super) enum Model {
    /// The longest piece that fits, from the left (arxiv.org/abs/1609.08144).
    WordPiece {
        vocab: HashMap<String, u32>,
        /// What a word with an unknown part becomes as a whole.
        unknown: String,
        /// In front of pieces inside a word: `##`.
        continuing: String,
        /// Longer words are unknown.
        word_chars_max: usize,
    },
    /// The likeliest pieces (arxiv.org/abs/1804.10959).
    Unigram {
        /// In order of id, each with the logarithm of its probability.
        pieces: Vec<(String, f64)>,
        unknown: Option<usize>,
        byte_fallback: bool,
    },
}

/// Everything such a tokenizer is made of.
pub(super) struct Parts {
    pub(super) model: Model,
    /// Tokens found in text before anything else happens to it.
    pub(super) added: Vec<AddedToken>,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
}

/// What cannot be used, by the name of its part, and why.
pub(super) struct Unusable {
    pub(super) part: &'static str,
    pub(super) reason: String,
}

/// Bytes of what stands in front of pieces inside a word; every beginning of a word is tried with it.
const CONTINUING_BYTES_MAX: usize = 16;
/// Longest word that WordPiece looks at: its time grows with the square of it.
const WORD_CHARS_MAX: usize = 1_000;

impl Model {
    fn build(self) -> Result<ModelWrapper, Unusable> {
        let unusable = |part, reason: String| Err(Unusable { part, reason });
        match self {
            Model::WordPiece { vocab, unknown, continuing, word_chars_max } => {
                if !vocab.contains_key(&unknown) {
                    return unusable("unk_token", format!("{unknown:?} is not a token"));
                }
                if let Some((text, id)) = vocab.iter().find(|&(_, &id)| id as usize >= VOCAB_MAX) {
                    let reason = format!("token {text:?} has id {id}, above the limit of {VOCAB_MAX}");
                    return unusable("vocab", reason);
                }
                if word_chars_max > WORD_CHARS_MAX {
                    let reason = format!("{word_chars_max}; at most {WORD_CHARS_MAX} are possible");
                    return unusable("max_input_chars_per_word", reason);
                }
                if continuing.len() > CONTINUING_BYTES_MAX {
                    let reason =
                        format!("{} bytes; at most {CONTINUING_BYTES_MAX} are possible", continuing.len());
                    return unusable("continuing_subword_prefix", reason);
                }
                let vocab: Vec<(String, u32)> = vocab.into_iter().collect();
                let model = WordPiece::builder()
                    .vocab(vocab.into_iter().collect::<tokenizers::models::bpe::Vocab>())
                    .unk_token(unknown)
                    .continuing_subword_prefix(continuing)
                    .max_input_chars_per_word(word_chars_max)
                    .build();
                model
                    .map(ModelWrapper::WordPiece)
                    .map_err(|error| Unusable { part: "vocab", reason: error.to_string() })
            }
            Model::Unigram { pieces, unknown, byte_fallback } => {
                if let Some(id) =
                    pieces.iter().position(|(text, score)| text.is_empty() || !score.is_finite())
                {
                    return unusable("vocab", format!("piece {id} is empty, or its score is not a number"));
                }
                if let Some(id) = pieces.iter().position(|(text, _)| text.len() > PIECE_BYTES_MAX) {
                    let reason = format!(
                        "piece {id} has over {PIECE_BYTES_MAX} bytes, which is the most there may be"
                    );
                    return unusable("vocab", reason);
                }
                if nodes(&pieces) > PIECE_NODES_MAX {
                    let reason = format!(
                        "its pieces have over {PIECE_NODES_MAX} beginnings, which is the most there may be"
                    );
                    return unusable("vocab", reason);
                }
                if pieces.len() > VOCAB_MAX {
                    return unusable(
                        "vocab",
                        format!("{} pieces; at most {VOCAB_MAX} are possible", pieces.len()),
                    );
                }
                if unknown.is_none_or(|unknown| unknown >= pieces.len()) {
                    return unusable("unk_id", format!("{unknown:?} is not among {} pieces", pieces.len()));
                }
                let mut model = Unigram::from(pieces, unknown, byte_fallback)
                    .map_err(|error| Unusable { part: "vocab", reason: error.to_string() })?;
                // It would remember words of texts that are long gone.
                model.resize_cache(0);
                Ok(ModelWrapper::Unigram(model))
            }
        }
    }
}

/// Nodes of a tree of these pieces, or more where they cannot be too many.
fn nodes(pieces: &[(String, f64)]) -> usize {
    let bytes = pieces.iter().map(|(text, _)| text.len()).sum();
    if bytes <= PIECE_NODES_MAX {
        return bytes;
    }
    let mut texts: Vec<&[u8]> = pieces.iter().map(|(text, _)| text.as_bytes()).collect();
    texts.sort_unstable();
    let mut before: &[u8] = &[];
    let own = texts.into_iter().map(|text| {
        let shared = text.iter().zip(before).take_while(|(a, b)| a == b).count();
        before = text;
        text.len() - shared
    });
    own.sum()
}

impl Parts {
    /// Checks the parts and builds the tokenizer. Added tokens must be in the vocabulary.
    pub(super) fn build(self) -> Result<Tokenizer, Unusable> {
        let model = self.model.build()?;
        let mut tokenizer = Tokenizer::new(model);
        tokenizer
            .with_normalizer(self.normalizer)
            .map_err(|error| Unusable { part: "normalizer", reason: error.to_string() })?
            .with_pre_tokenizer(self.pre_tokenizer);
        tokenizer
            .add_tokens(self.added)
            .map_err(|error| Unusable { part: "added_tokens", reason: error.to_string() })?;
        Ok(tokenizer)
    }
}
