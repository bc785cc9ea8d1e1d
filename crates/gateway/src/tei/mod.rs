//! Routes of text-embeddings-inference, in its formats: `/embed`, `/embed_all`, `/embed_sparse`, `/rerank`,
//! `/predict`, `/similarity`, `/info`, and `/`, which acts as the route that suits the model.
//!
//! TEI's clients name no model: the only loaded one with the capability is used. `model` is accepted too.
//! Statuses are those of all other routes; the body of an error has TEI's format.

pub(crate) mod embed;
pub(crate) mod error;
pub(crate) mod info;
pub(crate) mod predict;
pub(crate) mod rerank;
pub(crate) mod root;
pub(crate) mod similarity;
pub(crate) mod words;
