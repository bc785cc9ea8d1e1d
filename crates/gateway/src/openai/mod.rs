//! The OpenAI API: chat completions, completions, embeddings, models.
//!
//! `convert` is the only module here where OpenAI's words and the engine's meet.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod embeddings;
mod generation;
pub(crate) mod models;
mod sse;
mod tally;
pub(crate) mod unsupported;
