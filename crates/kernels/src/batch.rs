//! What one step runs on: ragged sequences packed row after row, with no padding, and where each finds its
//! keys and values in the paged cache. Plain data: a GPU backend uploads it as it is.

/// Tokens in one block of the paged KV cache.
pub const BLOCK_TOKENS: usize = 16;

/// The rows of one sequence in a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceSpan {
    /// First row of the sequence in the batch.
    pub row_first: u32,
    /// Rows of the sequence: 1 when decoding, the chunk's length when prefilling.
    pub rows: u32,
    /// Keys the last row may look at: everything cached before plus this step's rows.
    pub context: u32,
    /// Where the sequence's block ids start in [`Batch::block_tables`]; `context.div_ceil(16)` of them count.
    pub table_first: u32,
}

/// One step's work. A row is one token; row `r` of sequence `s` is at position `s.context - s.rows + r`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token of each row.
    pub tokens: Vec<u32>, // (rows)
    /// Position of each row in its sequence, from 0: what rotary embedding turns by.
    pub positions: Vec<u32>, // (rows)
    /// Cache slot each row's key and value are written to: `block_id * 16 + offset`.
    pub slots: Vec<u32>, // (rows)
    /// The sequences, in row order; together they cover every row.
    pub sequences: Vec<SequenceSpan>,
    /// Block ids of all sequences, one run each.
    pub block_tables: Vec<u32>,
    /// Rows whose logits are wanted, ascending.
    pub logit_rows: Vec<u32>,
}

impl Batch {
    /// Rows in the batch.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Forgets the work and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.sequences.clear();
        self.block_tables.clear();
        self.logit_rows.clear();
    }

    /// Block ids of one sequence.
    pub fn blocks(&self, span: &SequenceSpan) -> &[u32] {
        let first = span.table_first as usize;
        &self.block_tables[first..first + (span.context as usize).div_ceil(BLOCK_TOKENS)]
    }
}
