//! Reading of an input's hidden states: which rows are read after each step, and when the vector or scores are
//! complete.

use hanzo_engine_ops::KernelError;

use crate::{
    embedding::{EmbedInput, Embedder, Output, Readout, Rows},
    job::EventKind,
};

/// Output side of an input of an embedding job.
pub struct EmbeddingOutput {
    output: Output,
    first: usize, // tokens before it are left out of pooling
    rows: Rows,
    readout: Option<Readout>, // created at the first row
}

impl EmbeddingOutput {
    /// Creates the reading of an input.
    pub fn new(embedder: &Embedder, output: Output, input: &EmbedInput) -> EmbeddingOutput {
        let rows = Readout::new(embedder, output, &input.tokens, input.prompt_tokens).rows();
        EmbeddingOutput { output, first: input.prompt_tokens, rows, readout: None }
    }

    /// Whether cached rows may be skipped: only the last row counts.
    pub fn can_skip(&self) -> bool {
        self.rows == Rows::Last
    }

    /// Discards everything read, because it will be computed again.
    pub fn forget(&mut self) {
        self.readout = None;
    }

    /// Reads the needed rows of a step. The sequence has `before` tokens before them; they are its last if `ends`.
    /// With the last rows, returns the input's event.
    ///
    /// # Errors
    /// Those of reading the rows.
    pub fn read(
        &mut self,
        tokens: &[u32],
        before: usize,
        ends: bool,
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

/// Copies rows of a batch to the host, from the given row on.
pub(crate) type ReadRows<'a> = dyn FnMut(usize, &mut [f32]) -> Result<(), KernelError> + 'a;

/// Access to the hidden states of a step.
pub struct Hidden<'a> {
    /// Settings for vectors and scores.
    pub embedder: &'a Embedder,
    /// Copies rows of the batch to the host, from the given row on.
    pub read: &'a mut ReadRows<'a>,
    /// Buffer for the rows.
    pub rows: &'a mut Vec<f32>,
}

/// Hidden states of one sequence.
pub struct HiddenRows<'a, 'h> {
    /// Hidden states of the step.
    pub hidden: &'a mut Hidden<'h>,
    /// First row of the sequence in the batch.
    pub first: usize,
    /// Number of rows.
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
