//! Chat templates.

use crate::{
    chat::Chat,
    error::{LoadError, RequestError},
};

/// A compiled chat template.
pub struct ChatTemplate {
    _private: (),
}

impl ChatTemplate {
    /// Compiles `source`; `file` is named in errors.
    pub fn new(_source: &str, _bos: &str, _eos: &str, _file: &str) -> Result<Self, LoadError> {
        todo!()
    }

    /// The prompt's text.
    pub fn render(&self, _chat: &Chat) -> Result<String, RequestError> {
        todo!()
    }
}
