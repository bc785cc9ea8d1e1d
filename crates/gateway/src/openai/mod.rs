//! The OpenAI API: chat completions, completions, embeddings, models.

mod answer;
pub(crate) mod chat;
pub(crate) mod completions;
mod constraint;
pub(crate) mod embeddings;
mod events;
mod frames;
mod generation;
pub(crate) mod infill;
mod lines;
mod messages;
pub(crate) mod models;
pub(crate) mod plan;
pub(crate) mod prompt;
mod samplers;
mod sampling;
mod shape;
mod sse;
mod thinking;
mod tools;
mod usage_count;
