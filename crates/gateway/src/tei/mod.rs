//! The routes of text-embeddings-inference, in its shapes: `/embed`, `/embed_all`, `/embed_sparse`, `/rerank`,
//! `/predict`, `/similarity`, `/info`, and `/`, which is the one of them that the model is for.
//!
//! Its clients name no model: it is the only loaded one that can do it. A `model` is taken too. Statuses are those of
//! all other routes; the body of an error is TEI's.

pub(crate) mod embed;
pub(crate) mod error;
pub(crate) mod info;
pub(crate) mod predict;
pub(crate) mod rerank;
pub(crate) mod root;
pub(crate) mod similarity;
pub(crate) mod words;
