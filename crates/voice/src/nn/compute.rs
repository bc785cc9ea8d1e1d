//! The processor as these networks use it: packed matrices, tiles of rows, loops over rows. A turn of the pool is taken for
//! each tile and each loop and given back, so that the steps of other models go on between them.

use std::sync::{Arc, Mutex, PoisonError};

use hanzo_engine_kernels::cpu::{CpuBackend, CpuMatrix, CpuVector, ThreadPool, Tier};
use hanzo_engine_kernels::{
    Backend, Batch, BufferRole, DType, EncoderOps, HeadShape, KernelError, MatrixShape, MatrixSource,
    PositionBias, RowSource, SelfAttentionParams, SequenceSpan, StepLimits,
};

use super::Signal;

/// Rows of one attention at most.
const ROWS_MAX: usize = 1024;
/// Multiply-adds of a turn of the pool, about: two milliseconds of a core.
const TURN_PRODUCTS: usize = 1 << 27;
/// Numbers of signals that wait to be used again, at most: half of the room that signals are counted with.
const SPARE_NUMBERS: usize = 32 << 20;
/// How many times what is asked for memory may have that is used again. What a small signal took would be missed by a large one,
/// and small ones are not given back by all who ask for them.
const SPARE_TIMES: usize = 4;
/// Numbers of a piece of a loop.
const PIECE_NUMBERS: usize = 1 << 14;

/// What runs products and loops.
pub(crate) struct Compute {
    backend: CpuBackend,
    reserved: Option<HeadShape>,
    spare: Vec<Vec<f32>>,
}

/// A packed matrix and its bias; or several of one shape.
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

    /// For people.
    pub(crate) fn device(&self) -> String {
        self.backend.device()
    }

    /// Makes scratch for products of matrices as wide as `width` and attention of such heads. Called once.
    pub(crate) fn reserve(&mut self, width: usize, heads: HeadShape) -> Result<(), KernelError> {
        self.backend.reserve(&limits(width, heads))?;
        self.reserved = Some(heads);
        Ok(())
    }

    /// Packs a matrix, `(rows, cols)` row by row.
    pub(crate) fn pack(
        &self,
        name: &str,
        (rows, cols): (usize, usize),
        numbers: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<Matrix, KernelError> {
        self.pack_alike(name, (rows, cols), &[numbers], bias)
    }

    /// Packs matrices of one shape.
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

    /// A signal of this shape, of numbers that mean nothing.
    pub(crate) fn signal(&mut self, rows: usize, cols: usize) -> Signal {
        Signal { rows, cols, data: self.numbers(rows * cols) }
    }

    /// Numbers that mean nothing.
    pub(crate) fn numbers(&mut self, count: usize) -> Vec<f32> {
        let fits = count..=count.saturating_mul(SPARE_TIMES);
        let fitting = self.spare.iter().enumerate().filter(|(_, spare)| fits.contains(&spare.capacity()));
        let fitting = fitting.min_by_key(|(_, spare)| spare.capacity()).map(|(at, _)| at);
        let mut numbers = fitting.map(|at| self.spare.swap_remove(at)).unwrap_or_default();
        numbers.resize(count, 0.0);
        numbers
    }

    /// Keeps the memory of numbers that nobody reads any more: fresh pages are dear.
    pub(crate) fn spent(&mut self, numbers: Vec<f32>) {
        self.spare.push(numbers);
        while self.spare.iter().map(Vec::capacity).sum::<usize>() > SPARE_NUMBERS {
            self.spare.remove(0);
        }
    }

    /// `out[r * out_step..][..matrix.rows] = matrix · x[r * x_step..][..matrix.cols] + bias` for `r` below `rows`.
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

    /// As `windows`, without bias: the first matrix for the first `rows` windows, the second for as many behind them, and so on.
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

    /// `matrix · x + bias` of every row.
    pub(crate) fn linear(&mut self, matrix: &Matrix, x: &Signal) -> Result<Signal, KernelError> {
        assert_eq!(x.cols, matrix.cols, "as many channels as the matrix reads");
        let mut out = self.signal(x.rows, matrix.rows);
        self.windows(matrix, (&x.data, x.cols), x.rows, (&mut out.data, matrix.rows));
        Ok(out)
    }

    /// `sum = (sum + x) · factor`.
    pub(crate) fn add(&self, sum: &mut Signal, x: &Signal, factor: f32) {
        assert_eq!((sum.rows, sum.cols), (x.rows, x.cols), "signals of one shape");
        let cols = x.cols;
        self.rows(&mut sum.data, cols, &|first, piece| {
            let from = &x.data[first * cols..][..piece.len()];
            piece.iter_mut().zip(from).for_each(|(sum, x)| *sum = (*sum + x) * factor);
        });
    }

    /// `softmax(q · k · scale) · v` of all rows, `qkv` being `(rows, 3 * heads * head_dim)`. At most [`Compute::ROWS_MAX`] rows.
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
        self.backend.self_attention(&x, &params, &mut y);
        self.backend.end().and(written)?;
        let mut out = Signal::zeros(qkv.rows, width);
        self.backend.read_rows(&y, 0, &mut out.data)?;
        Ok(out)
    }

    /// Calls `task` with whole rows of `data`, some at a time, side by side, and which row comes first.
    pub(crate) fn rows(&self, data: &mut [f32], cols: usize, task: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        let rows = (PIECE_NUMBERS / cols).max(1);
        let pieces: Vec<Mutex<&mut [f32]>> = data.chunks_mut(rows * cols).map(Mutex::new).collect();
        self.backend.between_steps(pieces.len(), &|index| {
            task(index * rows, &mut pieces[index].lock().unwrap_or_else(PoisonError::into_inner));
        });
    }

    /// Calls `task` with each number below `tasks`, side by side.
    pub(crate) fn each(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.backend.between_steps(tasks, task);
    }

    /// Rows of one attention at most.
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
    CpuBackend::new(pool.clone(), tier).scratch_bytes(&limits(width, heads)) as u64
}

/// Bytes that a packed matrix of this shape takes.
pub(crate) fn matrix_bytes(pool: &Arc<ThreadPool>, tier: Tier, (rows, cols): (usize, usize)) -> u64 {
    let backend = CpuBackend::new(pool.clone(), tier);
    backend.matrix_bytes(&[MatrixShape { rows, cols, dtype: DType::F32 }]) as u64
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
