//! Token tree of a model, built once for each model.

use std::{fmt, sync::Arc};

use llguidance::{ParserFactory, earley::SlicedBiasComputer};
use toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use crate::lexers::LexerMemory;
use crate::limits::{self, TOKEN_BYTES_MAX, VOCABULARY_BYTES_MAX, VOCABULARY_MAX};

/// Token as a grammar sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// Part of the text. An empty one is never allowed.
    Text(&'a [u8]),
    /// Control token, by its spelling. No text spells it; a grammar refers to it by name (`<|name|>` in Lark).
    Control(&'a [u8]),
}

/// Tokens of a model.
pub struct ConstraintVocabulary {
    pub(crate) factory: ParserFactory,
    pub(crate) lexers: Arc<LexerMemory>,
    tokens: usize,
    bytes: u64,
}

/// Reason why a vocabulary cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this model's vocabulary cannot be constrained: {0}")]
pub struct VocabularyError(String);

impl ConstraintVocabulary {
    /// Builds the tree: some 100 ms for 150,000 tokens. Tokens that are longer than 1,000 bytes or contain
    /// 0xFF, which no UTF-8 text has, are never allowed.
    ///
    /// # Errors
    /// There is no token, or there are more tokens or bytes than a tree can hold.
    pub fn new<'a>(words: impl Iterator<Item = Word<'a>>) -> Result<ConstraintVocabulary, VocabularyError> {
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
        // The completion decides what ends an answer, so the tree has no end-of-sequence token.
        let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        // Most grammars are JSON, so the tokens within JSON strings are precomputed as sets.
        let slices = SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| VocabularyError(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits::parser();
        // Each slice has its own tree: at most one node of 8 bytes for every byte, and each token's offset.
        let trees = slices.len() as u64 + 2;
        let bytes = trees * (9 * text_bytes as u64 + 12 * words.len() as u64);
        Ok(ConstraintVocabulary { factory, lexers: Arc::default(), tokens: words.len(), bytes })
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of mask words, 32 tokens each.
    pub fn mask_words(&self) -> usize {
        self.tokens.div_ceil(32)
    }

    /// Upper bound of its memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Control token of that spelling.
    pub fn control(&self, spelling: &str) -> Option<u32> {
        self.factory.tok_env().tok_trie().get_special_token(spelling)
    }

    /// Tokens that spell `bytes`, the longest first.
    pub(crate) fn spell(&self, bytes: &[u8]) -> Vec<u32> {
        self.factory.tok_env().tok_trie().greedy_tokenize(bytes)
    }

    /// Bytes of a token.
    pub(crate) fn token_bytes(&self, token: u32) -> &[u8] {
        self.factory.tok_env().tok_trie().token(token)
    }
}

impl fmt::Debug for ConstraintVocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConstraintVocabulary({} tokens)", self.tokens)
    }
}
