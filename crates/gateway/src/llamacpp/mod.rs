//! Routes of llama.cpp's server in addition to OpenAI's.

mod answer;
pub(crate) mod ask;
pub(crate) mod embedding;
pub(crate) mod generate;
mod settings;
pub(crate) mod state;
pub(crate) mod template;
