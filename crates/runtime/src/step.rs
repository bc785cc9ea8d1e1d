//! What one step computes: plain data, from the scheduler to the decoder and the device, and back to the scheduler.

use std::{ops::Range, sync::Arc};

use hanzo_engine_kernels::{Backend, Batch, SampleSpecs};

use crate::{fair::Order, output::MaskWork};

/// One step's work.
#[derive(Debug, Default)]
pub struct Step {
    /// Its rows.
    pub batch: Batch,
    /// How a token is drawn of each of the batch's logit rows.
    pub draws: SampleSpecs,
    /// Masks of [`Step::draws`] that are not found yet, in their order.
    pub masks: Vec<MaskWork>,
    /// Which rows see something of what their sequences remember; empty where none remembers anything.
    pub seeing: Vec<bool>, // (rows), or none
    /// Rows that are not those of tokens.
    pub given: Vec<GivenRows>,
    /// Whose rows they are, in their order.
    pub parts: Vec<Part>,
}

/// Embeddings that are given.
#[derive(Clone, Debug)]
pub struct GivenRows {
    /// First of their rows in the batch.
    pub row: usize,
    /// Where they lie.
    pub values: Arc<[f32]>,
    /// Which of those they are, `(n, width)`.
    pub elements: Range<usize>,
    /// Numbers of a row: of a hidden state, or of what layers add to it behind that too.
    pub width: usize,
}

/// The rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The sequence.
    pub order: Order,
    /// First of its rows in the batch.
    pub first: usize,
    /// How many they are.
    pub rows: usize,
    /// What comes of them.
    pub yields: Yields,
}

/// What comes of a sequence's rows in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    /// Keys and values in the cache.
    Nothing,
    /// What is made of logits, one token a row.
    Tokens {
        /// Rows of the prompt whose next token is known and scored; they come before those that are drawn of.
        scores: usize,
        /// Rows that a token is drawn of: the first for certain, the others where what was drafted is what is drawn.
        draws: usize,
        /// Whether they are the last of the sequence's.
        ends: bool,
    },
    /// Hidden states, which are read before the next step.
    Hidden {
        /// Tokens of the sequence before them.
        before: usize,
        /// Whether they are its last.
        ends: bool,
    },
}

impl Yields {
    /// Its rows that have logits.
    pub fn logits(self) -> usize {
        match self {
            Yields::Tokens { scores, draws, .. } => scores + draws,
            Yields::Nothing | Yields::Hidden { .. } => 0,
        }
    }
}

impl Step {
    /// An empty one, for a cache whose layer groups have these windows.
    pub fn of_windows(windows: Vec<Option<u32>>) -> Step {
        Step { batch: Batch { windows, ..Batch::default() }, ..Step::default() }
    }

    /// Finds the masks, side by side, while the device computes what it was given.
    pub fn find_masks(&mut self, backend: &mut impl Backend) {
        let masks = &self.masks;
        if masks.is_empty() {
            return;
        }
        backend.on_host(masks.len(), &|index| masks[index].find());
        masks.iter().for_each(|work| work.put(&mut self.draws.masks));
    }

    /// Forgets the work and keeps the memory.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.draws.clear();
        self.masks.clear();
        self.seeing.clear();
        self.given.clear();
        self.parts.clear();
    }
}
