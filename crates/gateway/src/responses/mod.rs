//! OpenAI's Responses API: `/v1/responses`, with its tools, its reasoning, its events, and the answers that are kept.

mod conversation;
pub(crate) mod count;
pub(crate) mod create;
mod custom;
mod disk;
mod kept;
mod object;
mod reply;
mod request;
pub(crate) mod saved;
pub(crate) mod store;
mod tools;
mod truncation;
