//! CPU computation for these networks: packed matrices, tiles of rows, loops over rows. Each tile and each loop
//! takes one turn of the thread pool and releases it, so that the steps of other models can run between them.

use std::sync::{Arc, Mutex, PoisonError};

use hanzo_engine_kernels::cpu::{CpuBackend, CpuMatrix, CpuVector, ThreadPool, Tier};
use hanzo_engine_kernels::ops::{Allocation, Op};
use hanzo_engine_kernels::{
    Backend, Batch, BufferRole, DType, HeadShape, KernelError, MatrixShape, MatrixSource, PositionBias,
    RowSource, SelfAttentionParams, SequenceSpan, StepLimits,
};

use super::Signal;

/// Maximum rows of one attention.
const ROWS_MAX: usize = 1024;
/// Approximate multiply-adds in a turn of the pool: two milliseconds of a core.
const TURN_PRODUCTS: usize = 1 << 27;
/// Maximum numbers kept for reuse: half of the memory budgeted for signals.
const SPARE_NUMBERS: usize = 32 << 20;
/// Maximum ratio of a reused buffer's capacity to the requested size. A small signal in a large buffer would
/// leave none for a large signal, and not every caller returns small buffers.
const SPARE_TIMES: usize = 4;
/// Numbers in one piece of a parallel loop.
const PIECE_NUMBERS: usize = 1 << 14;

/// Runs matrix products and loops.
pub(crate) struct Compute {
    backend: CpuBackend,
    reserved: Option<HeadShape>,
    spare: Vec<Vec<f32>>,
}

/// Packed matrix with its bias; or several matrices of one shape.
pub(crate) struct Matrix {
    weights: Vec<CpuMatrix>,
    bias: Option<CpuVector>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Compute {
    pub(crate) fn new(pool: Arc<ThreadPool>, tier: Tier) -> Compute {
        let backend = CpuBackend::new(pool, tier);
        Compute { backend, reserved: None, spare: Vec::new() }
    }

    /// Name of the device for people.
    pub(crate) fn device(&self) -> String {
        self.backend.device()
    }

    /// Reserves scratch for matrices up to `width` wide, and for attention with these heads. Call it once.
    pub(crate) fn reserve(&mut self, width: usize, heads: HeadShape) -> Result<(), KernelError> {
        self.backend.reserve(&limits(width, heads))?;
        self.reserved = Some(heads);
        Ok(())
    }

    /// Packs a matrix of shape `(rows, cols)`, row by row.
    pub(crate) fn pack(
        &self,
        name: &str,
        (rows, cols): (usize, usize),
        numbers: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<Matrix, KernelError> {
        self.pack_alike(name, (rows, cols), &[numbers], bias)
    }

    /// Packs several matrices of one shape.
    pub(crate) fn pack_alike(
        &self,
        name: &str,
        (rows, cols): (usize, usize),
        parts: &[&[f32]],
        bias: Option<&[f32]>,
    ) -> Result<Matrix, KernelError> {
        let shape = MatrixShape { rows, cols, dtype: DType::F32 };
        let pack = |numbers: &&[f32]| {
            assert_eq!(numbers.len(), rows * cols, "{name} has as many numbers as its shape says");
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            self.backend.pack(&[MatrixSource { name, shape, bytes: &bytes }])
        };
        let weights = parts.iter().map(pack).collect::<Result<_, _>>()?;
        let bias = bias.map(|bias| self.backend.vector(bias)).transpose()?;
        Ok(Matrix { weights, bias, rows, cols })
    }

    /// Returns a signal of this shape with unspecified values.
    pub(crate) fn signal(&mut self, rows: usize, cols: usize) -> Signal {
        Signal { rows, cols, data: self.numbers(rows * cols) }
    }

    /// Returns a buffer with unspecified values.
    pub(crate) fn numbers(&mut self, count: usize) -> Vec<f32> {
        let fits = count..=count.saturating_mul(SPARE_TIMES);
        let fitting = self.spare.iter().enumerate().filter(|(_, spare)| fits.contains(&spare.capacity()));
        let fitting = fitting.min_by_key(|(_, spare)| spare.capacity()).map(|(at, _)| at);
        let mut numbers = fitting.map(|at| self.spare.swap_remove(at)).unwrap_or_default();
        numbers.resize(count, 0.0);
        numbers
    }

    /// Keeps a buffer for reuse, because fresh memory pages are expensive.
    pub(crate) fn spent(&mut self, numbers: Vec<f32>) {
        self.spare.push(numbers);
        while self.spare.iter().map(Vec::capacity).sum::<usize>() > SPARE_NUMBERS {
            self.spare.remove(0);
        }
    }

    /// Computes `out[r * out_step..][..matrix.rows] = matrix · x[r * x_step..][..matrix.cols] + bias` for `r`
    /// below `rows`.
    pub(crate) fn windows(
        &mut self,
        matrix: &Matrix,
        (x, x_step): (&[f32], usize),
        rows: usize,
        (out, out_step): (&mut [f32], usize),
    ) {
        assert_eq!(matrix.weights.len(), 1, "one matrix for all rows");
        let most = (TURN_PRODUCTS / (matrix.rows * matrix.cols)).max(64);
        for first in (0..rows).step_by(most) {
            let ends = [0, most.min(rows - first) as u32];
            let (x, out) = (&x[first * x_step..], &mut out[first * out_step..]);
            self.backend.windows(&matrix.weights, matrix.bias.as_ref(), (x, x_step), &ends, (out, out_step));
        }
    }

    /// Does what `windows` does, without bias, for several matrices: the first matrix for the first `rows`
    /// windows, the second for the next `rows`, and so on.
    pub(crate) fn alike(
        &mut self,
        matrices: &Matrix,
        (x, x_step): (&[f32], usize),
        rows: usize,
        out: &mut [f32],
    ) {
        let ends: Vec<u32> = (0..=matrices.weights.len()).map(|at| (at * rows) as u32).collect();
        self.backend.windows(&matrices.weights, None, (x, x_step), &ends, (out, matrices.rows));
    }

    /// Computes `matrix · x + bias` for every row.
    pub(crate) fn linear(&mut self, matrix: &Matrix, x: &Signal) -> Result<Signal, KernelError> {
        assert_eq!(x.cols, matrix.cols, "as many channels as the matrix reads");
        let mut out = self.signal(x.rows, matrix.rows);
        self.windows(matrix, (&x.data, x.cols), x.rows, (&mut out.data, matrix.rows));
        Ok(out)
    }

    /// Computes `sum = (sum + x) · factor`.
    pub(crate) fn add(&self, sum: &mut Signal, x: &Signal, factor: f32) {
        assert_eq!((sum.rows, sum.cols), (x.rows, x.cols), "signals of one shape");
        let cols = x.cols;
        self.rows(&mut sum.data, cols, &|first, piece| {
            let from = &x.data[first * cols..][..piece.len()];
            piece.iter_mut().zip(from).for_each(|(sum, x)| *sum = (*sum + x) * factor);
        });
    }

    /// Computes `softmax(q · k · scale) · v` over all rows. `qkv` is `(rows, 3 * heads * head_dim)`, with at
    /// most [`Compute::ROWS_MAX`] rows.
    pub(crate) fn attention(
        &mut self,
        qkv: &Signal,
        heads: HeadShape,
        scale: f32,
    ) -> Result<Signal, KernelError> {
        assert!(self.reserved == Some(heads), "attention of the heads that scratch was made for");
        let width = heads.heads * heads.head_dim;
        let mut x = self.backend.buffer(BufferRole::Operand, qkv.rows, 3 * width)?;
        let mut y = self.backend.buffer(BufferRole::Operand, qkv.rows, width)?;
        let rows = qkv.rows as u32;
        let batch = Batch {
            sources: vec![RowSource::Embedding; qkv.rows],
            positions: (0..rows).collect(),
            sequences: vec![SequenceSpan { row_first: 0, rows, context: rows, table_first: 0 }],
            ..Batch::default()
        };
        self.backend.begin(&batch)?;
        let written = self.backend.write_rows(&mut x, 0, &qkv.data);
        let params = SelfAttentionParams { heads, scale, reach: None, padding: 0, bias: PositionBias::None };
        self.backend.run(Op::SelfAttention { qkv: &x, params, out: &mut y });
        self.backend.end().and(written)?;
        let mut out = Signal::zeros(qkv.rows, width);
        self.backend.read_rows(&y, 0, &mut out.data)?;
        Ok(out)
    }

    /// Calls `task` in parallel with groups of whole rows of `data`, and the index of the first row.
    pub(crate) fn rows(&self, data: &mut [f32], cols: usize, task: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        let rows = (PIECE_NUMBERS / cols).max(1);
        let pieces: Vec<Mutex<&mut [f32]>> = data.chunks_mut(rows * cols).map(Mutex::new).collect();
        self.backend.between_steps(pieces.len(), &|index| {
            task(index * rows, &mut pieces[index].lock().unwrap_or_else(PoisonError::into_inner));
        });
    }

    /// Calls `task` in parallel with each number below `tasks`.
    pub(crate) fn each(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.backend.between_steps(tasks, task);
    }

    /// Maximum rows of one attention.
    pub(crate) const ROWS_MAX: usize = ROWS_MAX;
}

fn limits(width: usize, heads: HeadShape) -> StepLimits {
    StepLimits {
        rows: Compute::ROWS_MAX,
        sequences: 1,
        logit_rows: 1,
        context: Compute::ROWS_MAX,
        width,
        vocab: 16,
        heads,
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

/// Bytes that [`Compute::reserve`] takes for matrices of these shapes.
pub(crate) fn scratch_bytes(
    pool: &Arc<ThreadPool>,
    tier: Tier,
    shapes: &[(usize, usize)],
    heads: HeadShape,
) -> u64 {
    let width = shapes.iter().map(|&(rows, cols)| rows.max(cols)).max().unwrap_or(1);
    let limits = limits(width, heads);
    CpuBackend::new(pool.clone(), tier).bytes(&Allocation::Scratch(&limits)) as u64
}

/// Bytes of a packed matrix of this shape.
pub(crate) fn matrix_bytes(pool: &Arc<ThreadPool>, tier: Tier, (rows, cols): (usize, usize)) -> u64 {
    let backend = CpuBackend::new(pool.clone(), tier);
    let shape = MatrixShape { rows, cols, dtype: DType::F32 };
    backend.bytes(&Allocation::Matrix(&[shape])) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_large_signals_is_not_spent_on_small_ones() {
        let tier = Tier::available().next().expect("every machine has a tier");
        let mut compute = Compute::new(Arc::new(ThreadPool::new(1)), tier);
        let large = compute.numbers(1000);
        let place = large.as_ptr();
        compute.spent(large);
        let small = compute.numbers(10);
        assert_ne!(small.as_ptr(), place);
        let again = compute.numbers(900);
        assert_eq!((again.as_ptr(), again.len()), (place, 900));
    }
}
