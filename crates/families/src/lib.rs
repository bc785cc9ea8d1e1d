//! Families of transformers as data. A model's settings, of GGUF metadata or a Hugging Face `config.json`, become a
//! [`spec::TransformerSpec`]: all that the one network and its loader must know. [`kv_groups`] divides its layers
//! into groups of the paged KV cache.
//!
//! This crate has no weights and runs nothing. Settings come from strangers: numbers are bounded ([`limits`]), and a
//! setting that a spec cannot express is an error that names it.

pub mod kv_groups;
pub mod limits;
pub mod spec;
