//! Tokens to text as they come.

use crate::tokenizer::Tokenizer;

/// Incremental, UTF-8 safe.
pub struct Detokenizer {
    skip_special: bool,
}

impl Detokenizer {
    /// An empty one.
    pub fn new(skip_special: bool) -> Self {
        Detokenizer { skip_special }
    }

    /// Adds a token.
    pub fn push(&mut self, _tokenizer: &Tokenizer, _id: u32, _out: &mut String) {
        let _ = self.skip_special;
        todo!()
    }

    /// Flushes.
    pub fn finish(&mut self, _out: &mut String) {
        todo!()
    }
}
