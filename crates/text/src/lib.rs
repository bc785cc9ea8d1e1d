//! Text around a model: conversations become prompts, prompts become tokens, and tokens become bytes. Start with
//! [`template`], the interpreter of chat templates, and [`tokenizer`]. [`roles`] rewrites conversations for templates
//! that lack some roles.
//!
//! Templates and vocabularies are files from strangers: their size, time and depth are bounded ([`limits`]), and only
//! what a template wrote may become a control token. This crate has no weights, no devices and no API types.

pub mod chat;
pub mod error;
pub mod infill;
pub mod limits;
pub mod roles;
pub mod template;
pub mod text_files;
pub mod thinking;
pub mod tokenizer;
pub mod transcript;
