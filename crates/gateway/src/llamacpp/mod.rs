//! What llama.cpp's server has of its own beside OpenAI's routes.

mod answer;
mod ask;
pub(crate) mod embedding;
pub(crate) mod generate;
mod settings;
pub(crate) mod state;
pub(crate) mod template;
