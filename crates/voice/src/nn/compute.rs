//! The processor as these networks use it: packed matrices, tiles of rows, loops over rows. A turn of the pool is taken for
//! each tile and each loop and given back, so that the steps of other models go on between them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use hanzo_engine_kernels::cpu::{CpuBackend, CpuBuffer, CpuMatrix, CpuVector, ThreadPool, Tier};
use hanzo_engine_kernels::{
    Backend, Batch, BufferRole, DType, EncoderOps, HeadShape, KernelError, MatrixShape, MatrixSource,
    PositionBias, RowSource, SelfAttentionParams, SequenceSpan, StepLimits,
};

use super::Signal;

/// Numbers of a tile of unfolded rows: it stays in a second-level cache.
const TILE_NUMBERS: usize = 1 << 18;
/// Rows of a tile.
const TILE_ROWS: std::ops::RangeInclusive<usize> = 64..=1024;
/// Numbers of a piece of a loop.
const PIECE_NUMBERS: usize = 1 << 14;

/// What runs products and loops.
pub(crate) struct Compute {
    backend: CpuBackend,
    reserved: Option<HeadShape>,
    batch: Batch,
    buffers: BTreeMap<(bool, usize), CpuBuffer>, // by side of a product and width
    tile: Vec<f32>,
}

/// A packed matrix and its bias.
pub(crate) struct Matrix {
    weight: CpuMatrix,
    bias: Option<CpuVector>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

fn batch_of(batch: &mut Batch, rows: usize) {
    batch.sources.clear();
    batch.sources.resize(rows, RowSource::Embedding);
    batch.positions.clear();
    batch.positions.extend(0..rows as u32);
    batch.sequences.clear();
    let rows = rows as u32;
    batch.sequences.push(SequenceSpan { row_first: 0, rows, context: rows, table_first: 0 });
}

fn tile_rows(cols: usize) -> usize {
    (TILE_NUMBERS / cols).clamp(*TILE_ROWS.start(), *TILE_ROWS.end()) / 16 * 16
}

impl Compute {
    pub(crate) fn new(pool: Arc<ThreadPool>, tier: Tier) -> Compute {
        let backend = CpuBackend::new(pool, tier);
        Compute {
            backend,
            reserved: None,
            batch: Batch::default(),
            buffers: BTreeMap::new(),
            tile: Vec::new(),
        }
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
        assert_eq!(numbers.len(), rows * cols, "{name} has as many numbers as its shape says");
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let shape = MatrixShape { rows, cols, dtype: DType::F32 };
        let weight = self.backend.pack(&[MatrixSource { name, shape, bytes: &bytes }])?;
        let bias = bias.map(|bias| self.backend.vector(bias)).transpose()?;
        Ok(Matrix { weight, bias, rows, cols })
    }

    /// `(rows, matrix.rows)`: the matrix times rows that `fill` writes, each of them once, into zeros.
    pub(crate) fn product(
        &mut self,
        matrix: &Matrix,
        rows: usize,
        fill: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Result<Signal, KernelError> {
        let mut out = Signal::zeros(rows, matrix.rows);
        let most = tile_rows(matrix.cols.max(matrix.rows));
        let tile_max = tile_rows(matrix.cols);
        let (mut x, mut y) = (
            self.take_buffer(false, matrix.cols, tile_max)?,
            self.take_buffer(true, matrix.rows, tile_rows(matrix.rows))?,
        );
        let mut tile = std::mem::take(&mut self.tile);
        let mut batch = std::mem::take(&mut self.batch);
        let mut done = Ok(());
        for first in (0..rows).step_by(most) {
            let count = most.min(rows - first);
            tile.clear();
            tile.resize(count * matrix.cols, 0.0);
            batch_of(&mut batch, count);
            done = self.tile(matrix, &batch, (first, &mut tile), fill, (&mut x, &mut y), &mut out);
            if done.is_err() {
                break;
            }
        }
        (self.tile, self.batch) = (tile, batch);
        self.buffers.insert((false, matrix.cols), x);
        self.buffers.insert((true, matrix.rows), y);
        done.map(|()| out)
    }

    fn tile(
        &mut self,
        matrix: &Matrix,
        batch: &Batch,
        (first, tile): (usize, &mut [f32]),
        fill: &(dyn Fn(usize, &mut [f32]) + Sync),
        (x, y): (&mut CpuBuffer, &mut CpuBuffer),
        out: &mut Signal,
    ) -> Result<(), KernelError> {
        let count = batch.rows();
        self.backend.begin(batch)?;
        let piece = (PIECE_NUMBERS / matrix.cols).max(1);
        let pieces: Vec<Mutex<&mut [f32]>> = tile.chunks_mut(piece * matrix.cols).map(Mutex::new).collect();
        self.backend.on_host(pieces.len(), &|index| {
            let mut rows = pieces[index].lock().unwrap_or_else(PoisonError::into_inner);
            for (row, numbers) in rows.chunks_exact_mut(matrix.cols).enumerate() {
                fill(first + index * piece + row, numbers);
            }
        });
        drop(pieces);
        let written = self.backend.write_rows(x, 0, tile);
        self.backend.matmul(&matrix.weight, matrix.bias.as_ref(), x, y);
        self.backend.end().and(written)?;
        let place = &mut out.data[first * matrix.rows..][..count * matrix.rows];
        self.backend.read_rows(y, 0, place)
    }

    fn take_buffer(&mut self, side: bool, cols: usize, rows: usize) -> Result<CpuBuffer, KernelError> {
        match self.buffers.remove(&(side, cols)) {
            Some(buffer) => Ok(buffer),
            None => self.backend.buffer(BufferRole::Operand, rows, cols),
        }
    }

    /// `matrix · x + bias` of every row.
    pub(crate) fn linear(&mut self, matrix: &Matrix, x: &Signal) -> Result<Signal, KernelError> {
        assert_eq!(x.cols, matrix.cols, "as many channels as the matrix reads");
        self.product(matrix, x.rows, &|row, out| out.copy_from_slice(x.row(row)))
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
        let mut batch = Batch::default();
        batch_of(&mut batch, qkv.rows);
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
    pub(crate) const ROWS_MAX: usize = *TILE_ROWS.end();
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
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

/// Bytes that [`Compute::reserve`] and the buffers of matrices of these shapes take.
pub(crate) fn scratch_bytes(
    pool: &Arc<ThreadPool>,
    tier: Tier,
    shapes: &[(usize, usize)],
    heads: HeadShape,
) -> u64 {
    let width = shapes.iter().map(|&(rows, cols)| rows.max(cols)).max().unwrap_or(1);
    let backend = CpuBackend::new(pool.clone(), tier);
    let mut widths: Vec<(bool, usize)> =
        shapes.iter().flat_map(|&(rows, cols)| [(true, rows), (false, cols)]).collect();
    widths.sort_unstable();
    widths.dedup();
    let buffers: usize = widths.iter().map(|&(_, cols)| 4 * tile_rows(cols) * cols).sum();
    let tile = 4 * shapes.iter().map(|&(_, cols)| tile_rows(cols) * cols).max().unwrap_or(0);
    (backend.scratch_bytes(&limits(width, heads)) + buffers + tile) as u64
}

/// Bytes that a packed matrix of this shape takes.
pub(crate) fn matrix_bytes(pool: &Arc<ThreadPool>, tier: Tier, (rows, cols): (usize, usize)) -> u64 {
    let backend = CpuBackend::new(pool.clone(), tier);
    backend.matrix_bytes(&[MatrixShape { rows, cols, dtype: DType::F32 }]) as u64
}
