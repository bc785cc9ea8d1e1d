//! What every benchmark here stands on: a backend with room for its steps, one batch, and numbers to compute with.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, BLOCK_TOKENS, Batch, BufferRole, HeadShape, RowSource, SequenceSpan, StepLimits,
};

/// Rows of a prefill step.
pub(crate) const PREFILL: usize = 512;
/// Rows whose tokens are drawn.
pub(crate) const LOGIT_ROWS: usize = 8;
/// The longest context.
pub(crate) const CONTEXT: usize = 4096;
/// Those of Qwen3-0.6B.
pub(crate) const HEADS: HeadShape = HeadShape { heads: 16, kv_heads: 8, head_dim: 128 };
/// Those of a layer of Qwen3-30B-A3B.
pub(crate) const EXPERTS: usize = 128;
/// Those that a row goes to.
pub(crate) const EXPERTS_USED: usize = 8;
/// More than any cache this is likely to run on.
pub(crate) const COLD_BYTES: usize = 384 << 20;

/// A backend on all cores, its scratch made for steps of one sequence.
pub(crate) fn backend() -> AnyBackend {
    backend_for(HEADS, PREFILL, 1)
}

/// A backend on all cores for steps of so many rows and sequences.
pub(crate) fn backend_for(heads: HeadShape, rows: usize, sequences: usize) -> AnyBackend {
    let tier = Tier::detect().expect("a tier this processor has, as the variable must name one");
    let mut backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(0)), tier));
    let limits = StepLimits {
        rows,
        sequences,
        logit_rows: LOGIT_ROWS,
        context: CONTEXT,
        width: HEADS.qkv_width().max(heads.qkv_width()),
        vocab: 1,
        heads,
        experts: EXPERTS,
        experts_used: EXPERTS_USED,
        experts_width: HEADS.qkv_width().max(heads.qkv_width()),
        kv_groups: 1,
        heads_matmul_width: 0,
    };
    backend.reserve(&limits).expect("memory for one step's scratch");
    backend
}

/// The last `rows` tokens of a sequence of `context`.
pub(crate) fn batch(rows: usize, context: usize) -> Batch {
    let first = (context - rows) as u32;
    let span = SequenceSpan { row_first: 0, rows: rows as u32, context: context as u32, table_first: 0 };
    Batch {
        sources: vec![RowSource::Token(0); rows],
        positions: (first..context as u32).collect(),
        axes: Vec::new(),
        types: Vec::new(),
        slots: (first..context as u32).collect(),
        sequences: vec![span],
        adapters: Vec::new(),
        sees: Vec::new(),
        memories: Vec::new(),
        memory_tables: Vec::new(),
        states: Vec::new(),
        block_tables: (0..context.div_ceil(BLOCK_TOKENS) as u32).collect(),
        logit_rows: Vec::new(),
        windows: Vec::new(),
    }
}

/// Whole sequences of these lengths, without a cache.
pub(crate) fn whole(lengths: &[usize]) -> Batch {
    let mut batch = Batch::default();
    for &length in lengths {
        let (row_first, rows) = (batch.rows() as u32, length as u32);
        batch.sources.extend((0..rows).map(RowSource::Token));
        batch.positions.extend(0..rows);
        batch.sequences.push(SequenceSpan { row_first, rows, context: rows, table_first: 0 });
    }
    batch
}

/// Numbers between -1 and 1 that look like none in particular.
pub(crate) fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// A buffer of such numbers, `(rows, cols)`.
pub(crate) fn filled(backend: &mut AnyBackend, rows: usize, cols: usize) -> ops::Buffer {
    let mut buffer = backend.buffer(BufferRole::Operand, rows, cols).expect("memory for activations");
    backend.write_rows(&mut buffer, 0, &numbers(rows * cols)).expect("rows the buffer has");
    buffer
}

/// Runs `body` within one step of a batch.
pub(crate) fn step<T>(
    backend: &mut AnyBackend,
    rows: usize,
    context: usize,
    body: impl FnOnce(&mut AnyBackend) -> T,
) -> T {
    step_of(backend, &batch(rows, context), body)
}

/// Runs `body` within one step of this batch.
pub(crate) fn step_of<T>(
    backend: &mut AnyBackend,
    batch: &Batch,
    body: impl FnOnce(&mut AnyBackend) -> T,
) -> T {
    backend.begin(batch).expect("a processor always begins");
    let result = body(backend);
    backend.end().expect("a processor always ends");
    result
}
