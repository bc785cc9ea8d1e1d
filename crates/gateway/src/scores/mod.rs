//! Texts to numbers, in the shapes of Jina, Cohere and vLLM: ranking, scoring pairs, classifying.

pub(crate) mod classify;
mod list;
pub(crate) mod pairs;
pub(crate) mod rerank;
pub(crate) mod score;
pub(crate) mod tasks;
