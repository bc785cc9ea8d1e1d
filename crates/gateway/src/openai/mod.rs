//! The OpenAI API: chat completions, completions, models.
//!
//! `convert` is the only module here where OpenAI's words and the engine's meet.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod convert;
mod generation;
pub(crate) mod models;
mod sse;
mod tally;
mod unsupported;
