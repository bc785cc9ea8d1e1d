//! Products with matrices: which kernel computes them. All give the same bits, so that what is fastest for a number of rows is taken.

use super::*;

/// Outputs of a tile of the kernels of products, and rows.
const TILE_OUTPUTS: u32 = 8;
const TILE_ROWS: u32 = 16;
/// Rows of half a tile, for which the other half is left out.
const FEW_ROWS: u32 = 8;
/// Outputs from which on a block has two tiles of them, so that rows are read once for both: enough for more than a hundred blocks.
const TALL_OUTPUTS_MIN: u32 = 2048;
const TALL_TILES: u32 = 2;
/// Rows of a block of the kernels for tens of rows and for many; the first is taken for buckets of up to as many.
const BATCH_ROWS: u32 = 64;
/// Outputs from which on the kernel for many is the faster one for tens of rows too: it has blocks enough then.
const VAST_OUTPUTS_MIN: u32 = 16_384;
/// Tiles of outputs of a warp of the kernel for many.
const MANY_TILES: u32 = 2;
/// Bytes of two groups of fragments of a block's rows, 32 numbers a lane for each of its tiles; and of the totals of its threads.
const FRAGMENTS_BYTES: u32 = 2 * WARPS * WARP * 32 * 4 + MANY_TILES * WARPS * 4 * THREADS * 4;

impl<D: Device> CudaBackend<D> {
    /// `out[r] = activation(weight · x[r] + bias)`, of buffers with columns more than the matrix has.
    pub(super) fn product(&mut self, weight: &CudaMatrix<D>, product: &Product<'_, D>) {
        let mut ops = self.steps.ops();
        let rows = if product.logits { ops.bucket.logit_rows } else { ops.bucket.rows };
        let params = MatmulParams {
            batch: ops.batch,
            weights: weight.stack,
            x: product.x.0.address().offset(4 * product.x.1),
            out: product.out.0.address().offset(4 * product.out.1),
            bias: address_of(product.bias.map(|bias| &bias.memory)),
            x_stride: product.x.2 as u32,
            out_stride: product.out.2 as u32,
            activation: product.activation.map_or(NONE, activation_code),
            adds: u32::from(product.adds.is_some()),
            logits: u32::from(product.logits),
            adapter: product.adapter,
            scale: product.adds.unwrap_or(1.0),
            unused: 0,
        };
        let outputs = weight.stack.rows;
        // A lane has four sums of each tile, which the warps of a block bring together.
        let room = |tiles: u32| 4 * 4 * tiles * THREADS;
        let (kernel, outputs_of, rows_of, shared_bytes) = if rows <= FEW_ROWS && outputs >= TALL_OUTPUTS_MIN {
            (Kernel::MatmulTall, TALL_TILES * TILE_OUTPUTS, TILE_ROWS, room(TALL_TILES))
        } else if rows <= FEW_ROWS {
            (Kernel::MatmulFew, TILE_OUTPUTS, TILE_ROWS, room(1))
        } else if rows <= TILE_ROWS {
            (Kernel::Matmul, TILE_OUTPUTS, TILE_ROWS, room(1))
        } else if rows <= BATCH_ROWS && outputs < VAST_OUTPUTS_MIN {
            (Kernel::MatmulBatch, TILE_OUTPUTS, BATCH_ROWS, room(BATCH_ROWS / TILE_ROWS))
        } else {
            (Kernel::MatmulWide, MANY_TILES * TILE_OUTPUTS * WARPS, BATCH_ROWS, FRAGMENTS_BYTES)
        };
        let blocks = [outputs.div_ceil(outputs_of), rows.div_ceil(rows_of), 1];
        let mut holds = vec![&weight.memory, product.x.0, product.out.0];
        holds.extend(product.bias.map(|bias| &bias.memory));
        ops.push(kernel, Grid { blocks, threads: THREADS, shared_bytes }, &params, &holds);
    }
}

/// A product with a matrix. Memory is with the first column and columns of a row.
pub(super) struct Product<'a, D: Device> {
    pub(super) x: (&'a Arc<Memory<D>>, usize, usize),
    pub(super) out: (&'a Arc<Memory<D>>, usize, usize),
    pub(super) bias: Option<&'a CudaVector<D>>,
    pub(super) activation: Option<Activation>,
    pub(super) adds: Option<f32>,
    pub(super) logits: bool,
    pub(super) adapter: u32,
}

impl<'a, D: Device> Product<'a, D> {
    pub(super) fn of(x: &'a CudaBuffer<D>, out: &'a CudaBuffer<D>) -> Self {
        Self {
            x: (&x.memory, 0, x.cols),
            out: (&out.memory, 0, out.cols),
            bias: None,
            activation: None,
            adds: None,
            logits: false,
            adapter: NONE,
        }
    }
}
