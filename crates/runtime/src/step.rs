//! Work of a step: plain data from the scheduler to the decoder and the device, and back to the scheduler.

use std::{ops::Range, sync::Arc};

use hanzo_engine_ops::{AnyBackend, Batch, SampleSpecs};

use crate::{fair::Order, output::MaskWork};

/// Work of one step.
#[derive(Debug, Default)]
pub struct Step {
    /// Rows of the step.
    pub batch: Batch,
    /// Sampling of a token from each of the batch's logit rows.
    pub draws: SampleSpecs,
    /// Masks of [`Step::draws`] that are not computed yet, in their order.
    pub masks: Vec<MaskWork>,
    /// Flags of the rows that attend to the cross-attention cache; empty if none does.
    pub seeing: Vec<bool>, // (rows), or none
    /// Rows with given embeddings.
    pub given: Vec<GivenRows>,
    /// Sequences of the rows, in order.
    pub parts: Vec<Part>,
}

/// Rows with given embeddings instead of a token's.
#[derive(Clone, Debug)]
pub struct GivenRows {
    /// First row in the batch.
    pub row: usize,
    /// Storage of the embeddings.
    pub values: Arc<[f32]>,
    /// Range of these rows in `values`, `(n, width)`.
    pub elements: Range<usize>,
    /// Elements of a row: a hidden state, perhaps followed by what later layers add to it.
    pub width: usize,
}

/// Rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Position of the sequence in the queue.
    pub order: Order,
    /// First row in the batch.
    pub first: usize,
    /// Number of rows.
    pub rows: usize,
    /// Output of the rows.
    pub yields: Yields,
}

/// Output of a sequence's rows in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    /// Only keys and values in the cache.
    Nothing,
    /// Tokens or log probabilities from logits, one for each row.
    Tokens {
        /// Prompt rows whose next token is known and scored. They come before the rows to sample from.
        scores: usize,
        /// Rows to sample a token from: the first always counts; each further one counts only if the draft token
        /// before it was accepted.
        draws: usize,
        /// Whether the sequence has no rows after these.
        ends: bool,
    },
    /// Hidden states, which are read before the next step.
    Hidden {
        /// Tokens of the sequence before these rows.
        before: usize,
        /// Whether the sequence has no rows after these.
        ends: bool,
    },
}

impl Yields {
    /// Number of rows with logits.
    pub fn logits(self) -> usize {
        match self {
            Yields::Tokens { scores, draws, .. } => scores + draws,
            Yields::Nothing | Yields::Hidden { .. } => 0,
        }
    }
}

impl Step {
    /// Creates an empty step, for a KV cache whose layer groups have these windows.
    pub fn of_windows(windows: Vec<Option<u32>>) -> Step {
        Step { batch: Batch { windows, ..Batch::default() }, ..Step::default() }
    }

    /// Computes the masks in parallel on the host while the device computes.
    pub fn find_masks(&mut self, backend: &mut AnyBackend) {
        let masks = &self.masks;
        if masks.is_empty() {
            return;
        }
        backend.on_host(masks.len(), &|index| masks[index].find());
        masks.iter().for_each(|work| work.put(&mut self.draws.masks));
    }

    /// Clears the work and keeps the memory.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.draws.clear();
        self.masks.clear();
        self.seeing.clear();
        self.given.clear();
        self.parts.clear();
    }
}
