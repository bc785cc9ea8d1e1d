//! Text to tokens and back.

use crate::error::{LoadError, RequestError};

/// A model's tokenizer.
pub struct Tokenizer {
    _private: (),
}

impl Tokenizer {
    /// From a model's files.
    pub fn load(_files: &crate::load::TextFiles) -> Result<Tokenizer, LoadError> {
        todo!()
    }

    /// Tokens of `text`.
    pub fn encode(&self, _text: &str, _add_special: bool) -> Result<Vec<u32>, RequestError> {
        todo!()
    }

    /// Text of `ids`.
    pub fn decode(&self, _ids: &[u32], _skip_special: bool) -> String {
        todo!()
    }

    /// Exact bytes of a token; empty for an unknown id.
    pub fn token_bytes(&self, _id: u32) -> &[u8] {
        todo!()
    }

    /// Whether a token is a control token, skipped in output text.
    pub fn is_special(&self, _id: u32) -> bool {
        todo!()
    }

    /// Entries of the vocabulary: the highest id plus one.
    pub fn vocab_size(&self) -> usize {
        todo!()
    }

    /// The id of a token by its text.
    pub fn token_id(&self, _token: &str) -> Option<u32> {
        todo!()
    }
}
