//! Input of embedding.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::media::MediaSpan;

/// Input of an embedding job: tokens of a text, a pair of texts or a conversation, or a picture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbedInput {
    /// Tokens, special ones included; not empty.
    pub tokens: Arc<[u32]>,
    /// Type ID of each token; empty: all 0.
    pub types: Vec<u32>,
    /// Number of tokens at the start that pooling leaves out.
    pub prompt_tokens: usize,
    /// For a decoder: spans of tokens whose embeddings are given, in order. For an encoder with one space for texts
    /// and pictures: the picture to embed instead of the tokens, which then only state the cost.
    pub media: Arc<[MediaSpan]>,
}
