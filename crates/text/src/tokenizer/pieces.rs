//! WordPiece and Unigram by the `tokenizers` crate, for encoders. All parts are checked first, because the crate
//! trusts its input.

use std::collections::HashMap;

use tokenizers::{
    AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer,
    models::{unigram::Unigram, wordpiece::WordPiece},
};

use crate::limits::{PIECE_BYTES_MAX, PIECE_NODES_MAX, VOCAB_MAX};

/// Model that cuts words into tokens.
pub(super) enum Model {
    /// Longest matching piece, from the left (arxiv.org/abs/1609.08144).
    WordPiece {
        vocab: HashMap<String, u32>,
        /// Token for a whole word with an unknown part.
        unknown: String,
        /// Prefix of pieces inside a word: `##`.
        continuing: String,
        /// Maximum characters of a word; longer words are unknown.
        word_chars_max: usize,
    },
    /// Likeliest pieces (arxiv.org/abs/1804.10959).
    Unigram {
        /// Pieces in order of ID, each with its log probability.
        pieces: Vec<(String, f64)>,
        unknown: Option<usize>,
        byte_fallback: bool,
    },
}

/// Parts of such a tokenizer.
pub(super) struct Parts {
    pub(super) model: Model,
    /// Tokens found in text before any other step.
    pub(super) added: Vec<AddedToken>,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
}

/// Name of a part that cannot be used, and the reason.
pub(super) struct Unusable {
    pub(super) part: &'static str,
    pub(super) reason: String,
}

/// Maximum bytes of the prefix of pieces inside a word; it is tried with every beginning of a word.
const CONTINUING_BYTES_MAX: usize = 16;
/// Maximum characters of a word in WordPiece, whose time grows with the square of it.
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
                // Disable the cache, which would keep words of past texts.
                model.resize_cache(0);
                Ok(ModelWrapper::Unigram(model))
            }
        }
    }
}

/// Number of trie nodes for these pieces, or an upper bound if that is small enough.
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
