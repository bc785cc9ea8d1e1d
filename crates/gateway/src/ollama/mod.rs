//! Ollama's API, so that its clients need only change the URL. Requests become the same plans and calls as on
//! the other APIs, and answers have Ollama's format. The models keep their own defaults, not Ollama's.

pub(crate) mod blobs;
pub(crate) mod chat;
pub(crate) mod create;
pub(crate) mod embed;
pub(crate) mod error;
mod format;
pub(crate) mod generate;
pub(crate) mod list;
pub(crate) mod manage;
pub(crate) mod messages;
mod names;
mod options;
mod reply;
pub(crate) mod show;
mod time;
