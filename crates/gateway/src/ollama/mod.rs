//! Ollama's API, so that its clients change only the address: what is asked there becomes the same plans and calls as on every
//! other surface, and is answered in Ollama's shapes. A model's own defaults stay its own: Ollama's are not put over them.

pub(crate) mod blobs;
pub(crate) mod chat;
pub(crate) mod create;
pub(crate) mod embed;
pub(crate) mod error;
mod format;
pub(crate) mod generate;
pub(crate) mod list;
pub(crate) mod manage;
mod messages;
mod names;
mod options;
mod reply;
pub(crate) mod show;
mod time;
