//! OpenAI's API: chat completions, completions, models. Embeddings are in `vectors`.

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod constraint;
pub(crate) mod events;
pub(crate) mod frames;
pub(crate) mod generation;
pub(crate) mod lines;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod plan;
pub(crate) mod prompt;
pub(crate) mod samplers;
pub(crate) mod sampling;
pub(crate) mod shape;
pub(crate) mod thinking;
pub(crate) mod tools;
pub(crate) mod turns;
pub(crate) mod usage_count;
