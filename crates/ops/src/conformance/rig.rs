//! Test bench of a backend: uploads, steps, downloads, and buffers with guard rows after the batch.

use super::weights::Weights;
use crate::{
    AnyBackend, Batch, BufferRole, HeadShape, KernelError, MatrixSource, Rounding, RowSource, SequenceSpan,
    StepLimits,
};

/// Rows of every buffer after the batch, which must not change.
const GUARD_ROWS: usize = 2;
/// Value of guard rows, and of outputs before an op.
const GUARD: f32 = -1_073_741_824.0; // -2^30, which every type holds

pub(super) struct Rig {
    pub(super) backend: AnyBackend,
    pub(super) rounding: Rounding,
    /// Role of buffers that may have either role.
    pub(super) role: BufferRole,
}

impl Rig {
    pub(super) fn new(mut backend: AnyBackend, limits: &StepLimits) -> Self {
        ok("reserve", backend.reserve(limits));
        Self { rounding: backend.facts().rounding, role: BufferRole::Operand, backend }
    }

    /// A backend for steps without attention.
    pub(super) fn for_rows(backend: AnyBackend, rows: usize, width: usize, vocab: usize) -> Self {
        Self::new(backend, &row_limits(rows, width, vocab))
    }

    /// A backend for steps of such rows through experts.
    pub(super) fn for_experts(
        backend: AnyBackend,
        rows: usize,
        width: usize,
        experts: usize,
        used: usize,
    ) -> Self {
        Self::new(
            backend,
            &StepLimits { experts, experts_used: used, experts_width: width, ..row_limits(rows, width, 1) },
        )
    }

    pub(super) fn matrix(&self, parts: &[Weights]) -> crate::Matrix {
        let sources: Vec<MatrixSource<'_>> = parts.iter().map(Weights::source).collect();
        ok("pack", self.backend.pack(&sources))
    }

    pub(super) fn vector(&self, values: &[f32]) -> crate::Vector {
        ok("vector", self.backend.vector(values))
    }

    /// A buffer of [`Rig::role`], operands unless a check says otherwise: the given rows and guard rows.
    pub(super) fn upload(&mut self, rows: &[f32], cols: usize) -> crate::Buffer {
        self.upload_as(self.role, rows, cols)
    }

    /// Runs a check once more with inputs and outputs in residual buffers, as in networks with a norm after a
    /// sublayer.
    pub(super) fn with_sums<R>(&mut self, check: impl FnOnce(&mut Self) -> R) -> R {
        self.role = BufferRole::Residual;
        let result = check(self);
        self.role = BufferRole::Operand;
        result
    }

    fn upload_as(&mut self, role: BufferRole, rows: &[f32], cols: usize) -> crate::Buffer {
        let count = rows.len() / cols;
        let mut buffer = ok("buffer", self.backend.buffer(role, count + GUARD_ROWS, cols));
        ok("write_rows", self.backend.write_rows(&mut buffer, 0, rows));
        ok("write_rows", self.backend.write_rows(&mut buffer, count, &vec![GUARD; GUARD_ROWS * cols]));
        buffer
    }

    /// Same as [`Rig::upload`], for a residual buffer.
    pub(super) fn upload_sum(&mut self, rows: &[f32], cols: usize) -> crate::Buffer {
        self.upload_as(BufferRole::Residual, rows, cols)
    }

    /// A buffer for an op's output.
    pub(super) fn blank(&mut self, rows: usize, cols: usize) -> crate::Buffer {
        self.upload(&vec![GUARD; rows * cols], cols)
    }

    /// A residual buffer for an op that writes it.
    pub(super) fn blank_sum(&mut self, rows: usize, cols: usize) -> crate::Buffer {
        self.upload_sum(&vec![GUARD; rows * cols], cols)
    }

    /// The batch's rows of a buffer, after checking the guards.
    pub(super) fn download(&self, what: &str, buffer: &crate::Buffer, rows: usize, cols: usize) -> Vec<f32> {
        let mut values = vec![0.0; (rows + GUARD_ROWS) * cols];
        ok("read_rows", self.backend.read_rows(buffer, 0, &mut values));
        assert!(
            values[rows * cols..].iter().all(|&v| v == GUARD),
            "{what}: rows behind the batch were written"
        );
        values.truncate(rows * cols);
        values
    }

    /// Runs one step.
    pub(super) fn step<R>(&mut self, batch: &Batch, ops: impl FnOnce(&mut Self) -> R) -> R {
        ok("begin", self.backend.begin(batch));
        let result = ops(self);
        ok("end", self.backend.end());
        result
    }
}

/// Limits of steps without attention.
fn row_limits(rows: usize, width: usize, vocab: usize) -> StepLimits {
    StepLimits {
        rows,
        sequences: rows,
        logit_rows: rows,
        context: rows,
        width,
        vocab,
        heads: HeadShape { heads: 1, kv_heads: 1, head_dim: 64 },
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

/// Unwraps a result that a working device returns.
pub(super) fn ok<T>(what: &str, result: Result<T, KernelError>) -> T {
    result.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// A batch for ops that read rows alone: one sequence with these tokens.
pub(super) fn rows_batch(tokens: &[u32]) -> Batch {
    let rows = tokens.len() as u32;
    Batch {
        sources: tokens.iter().copied().map(RowSource::Token).collect(),
        positions: (0..rows).collect(),
        slots: (0..rows).collect(),
        sequences: vec![SequenceSpan { row_first: 0, rows, context: rows, table_first: 0 }],
        adapters: Vec::new(),
        block_tables: (0..rows.div_ceil(16)).collect(),
        ..Batch::default()
    }
}

/// A batch of whole sequences of these lengths, without a cache.
pub(super) fn whole_batch(lengths: &[u32]) -> Batch {
    let mut batch = Batch::default();
    for &rows in lengths {
        let row_first = batch.rows() as u32;
        batch.sources.extend((0..rows).map(RowSource::Token));
        batch.positions.extend(0..rows);
        batch.sequences.push(SequenceSpan { row_first, rows, context: rows, table_first: 0 });
    }
    batch
}
