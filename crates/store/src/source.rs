//! Sources of models. Each source turns a reference into a [`crate::plan::ModelPlan`].

pub(crate) mod choose;
pub(crate) mod file;
pub(crate) mod here;
pub(crate) mod hub;
pub(crate) mod ollama;
pub(crate) mod url;
