//! An input's way from hidden states to a vector or scores: which of its rows are read off each step, and when they are
//! all there.

use hanzo_engine_kernels::KernelError;

use crate::{
    embedding::{Embedder, Output, Readout, Rows},
    job::{EmbedInput, EventKind},
};

/// The output side of one input of an embedding job.
pub struct Reading {
    output: Output,
    first: usize, // tokens before it are left out of pooling
    rows: Rows,
    readout: Option<Readout>, // from the first row on
}

impl Reading {
    /// Of an input, none of which is computed.
    pub fn new(embedder: &Embedder, output: Output, input: &EmbedInput) -> Reading {
        let rows = Readout::new(embedder, output, &input.tokens, input.prompt_tokens).rows();
        Reading { output, first: input.prompt_tokens, rows, readout: None }
    }

    /// Whether rows that are found in the cache would not be missed.
    pub fn can_skip(&self) -> bool {
        self.rows == Rows::Last
    }

    /// Forgets what was read: it is computed again.
    pub fn forget(&mut self) {
        self.readout = None;
    }

    /// Reads what is wanted of the rows a step ran, with `before` tokens before them; they are the last if it `ends`. With the last of them, gives what is to be said of the
    /// input.
    ///
    /// # Errors
    /// Those of reading the rows.
    pub fn read(
        &mut self,
        tokens: &[u32],
        (before, ends): (usize, bool),
        rows: &mut HiddenRows<'_, '_>,
    ) -> Result<Option<EventKind>, KernelError> {
        let embedder = rows.hidden.embedder;
        let new = || Readout::new(embedder, self.output, tokens, self.first);
        let readout = self.readout.get_or_insert_with(new);
        match self.rows {
            Rows::All => readout.push(rows.read(0, rows.count)?, embedder),
            Rows::First if before == 0 => readout.push(rows.read(0, 1)?, embedder),
            Rows::Last if ends => readout.push(rows.read(rows.count - 1, 1)?, embedder),
            Rows::First | Rows::Last => {}
        }
        let last = if ends { self.readout.take() } else { None };
        Ok(last.map(|readout| readout.finish(embedder).map_or(EventKind::Failed, EventKind::Computed)))
    }
}

/// Copies rows of a batch, from the given one on, to the host.
pub(crate) type ReadRows<'a> = dyn FnMut(usize, &mut [f32]) -> Result<(), KernelError> + 'a;

/// The hidden states of the step that just ran, and what to make of them.
pub struct Hidden<'a> {
    /// What vectors are made by.
    pub embedder: &'a Embedder,
    /// Copies rows of the batch, from the given one on, to the host.
    pub read: &'a mut ReadRows<'a>,
    /// Room for them.
    pub rows: &'a mut Vec<f32>,
}

/// The hidden states of one sequence.
pub struct HiddenRows<'a, 'h> {
    /// Those of the step.
    pub hidden: &'a mut Hidden<'h>,
    /// The sequence's first row in the batch.
    pub first: usize,
    /// How many it has.
    pub count: usize,
}

impl HiddenRows<'_, '_> {
    fn read(&mut self, first: usize, count: usize) -> Result<&[f32], KernelError> {
        let Hidden { embedder, read, rows } = self.hidden;
        rows.resize(count * embedder.hidden, 0.0);
        read(self.first + first, rows)?;
        Ok(rows)
    }
}
