//! Reranking, scoring of pairs, and classification, in the formats of Jina, Cohere and vLLM.

pub(crate) mod classify;
mod list;
pub(crate) mod pairs;
pub(crate) mod rerank;
pub(crate) mod score;
pub(crate) mod tasks;
