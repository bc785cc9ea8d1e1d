//! Results of a step: logits become tokens and text ([`Generation`]), hidden states become vectors and scores
//! ([`EmbeddingOutput`]). [`crate::sequence`] decides which tokens are computed, and in which blocks.

mod budget;
mod constraint;
mod generation;
mod ledger;
mod reading;
mod scoring;
mod stop;
mod text;

pub use constraint::MaskWork;
pub use generation::Generation;
pub use reading::{EmbeddingOutput, Hidden, HiddenRows};
pub use scoring::ScoringProgress;
pub use text::{Chunk, OutputText};

/// Purpose of a sequence.
pub enum Purpose {
    /// A completion.
    Generate(Generation),
    /// An input of an embedding job.
    Read(EmbeddingOutput),
}
