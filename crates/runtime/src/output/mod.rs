//! What a step has computed on its way out: logits become tokens and text ([`Generation`]), hidden states vectors and
//! scores ([`Reading`]). Which tokens were computed, and in which blocks, is [`crate::sequence`]'s.

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
pub use reading::{Hidden, HiddenRows, Reading};
pub use scoring::Scoring;
pub use text::{Chunk, OutputText};

/// What a sequence is computed for.
pub enum Purpose {
    /// A completion.
    Generate(Generation),
    /// An input of an embedding job.
    Read(Reading),
}
