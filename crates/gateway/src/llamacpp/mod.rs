//! What llama.cpp's server has of its own beside OpenAI's routes.

pub(crate) mod embedding;
