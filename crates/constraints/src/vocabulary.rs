//! The tokens of a model as a tree of their bytes, made once for each model.

use std::{fmt, sync::Arc};

use llguidance::{ParserFactory, earley::SlicedBiasComputer};
use toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use crate::limits::{self, TOKEN_BYTES_MAX, VOCABULARY_BYTES_MAX, VOCABULARY_MAX};

/// A token, as a grammar sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// A part of the text. Without bytes it has no place in any.
    Text(&'a [u8]),
    /// A control token, by its spelling: no text is made of it, and a grammar has it only by name (`<|name|>` in Lark).
    Control(&'a [u8]),
}

/// The tokens of a model.
pub struct Vocabulary {
    pub(crate) factory: ParserFactory,
    tokens: usize,
    bytes: u64,
}

/// Why there can be no vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this model's vocabulary cannot be constrained: {0}")]
pub struct VocabularyError(String);

impl Vocabulary {
    /// Makes the tree: some 100 ms for 150,000 tokens. Tokens of more than 1,000 bytes, and those with bytes that no text has
    /// (0xFF), are never allowed.
    ///
    /// # Errors
    /// Where there is no token, or more of them, or of their bytes, than a tree can hold.
    pub fn new<'a>(words: impl Iterator<Item = Word<'a>>) -> Result<Vocabulary, VocabularyError> {
        let spelled = |word: Word<'_>| match word {
            Word::Text(bytes) if bytes.len() > TOKEN_BYTES_MAX || bytes.contains(&0xFF) => Vec::new(),
            Word::Control(bytes) if bytes.len() > TOKEN_BYTES_MAX || bytes.is_empty() => Vec::new(),
            Word::Text(bytes) => bytes.to_vec(),
            Word::Control(bytes) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        };
        let words: Vec<Vec<u8>> = words.map(spelled).collect();
        let text_bytes: usize = words.iter().map(Vec::len).sum();
        if words.is_empty() || words.len() > VOCABULARY_MAX {
            return Err(VocabularyError(format!("it has {} tokens", words.len())));
        }
        if text_bytes > VOCABULARY_BYTES_MAX {
            return Err(VocabularyError(format!(
                "its tokens have {text_bytes} bytes, and there is room for {VOCABULARY_BYTES_MAX}"
            )));
        }
        // What ends an answer is the completion's own business, so the tree knows no such token.
        let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        // Parts of a JSON string are the bulk of what is ever asked for: their tokens are found as sets.
        let slices = SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| VocabularyError(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits::parser();
        // Each slice has a tree of its own: at most a node of 8 bytes for every byte, and where each token lies.
        let trees = slices.len() as u64 + 2;
        let bytes = trees * (9 * text_bytes as u64 + 12 * words.len() as u64);
        Ok(Vocabulary { factory, tokens: words.len(), bytes })
    }

    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Words of a mask, 32 tokens each.
    pub fn mask_words(&self) -> usize {
        self.tokens.div_ceil(32)
    }

    /// Memory it takes at most, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The control token that is spelled so.
    pub fn control(&self, spelling: &str) -> Option<u32> {
        self.factory.tok_env().tok_trie().get_special_token(spelling)
    }

    /// Tokens whose bytes are `bytes`, the longest first.
    pub(crate) fn spell(&self, bytes: &[u8]) -> Vec<u32> {
        self.factory.tok_env().tok_trie().greedy_tokenize(bytes)
    }

    /// Bytes of a token.
    pub(crate) fn token_bytes(&self, token: u32) -> &[u8] {
        self.factory.tok_env().tok_trie().token(token)
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vocabulary({} tokens)", self.tokens)
    }
}
