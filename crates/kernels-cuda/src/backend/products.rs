//! Matrix products and the choice of their kernels. A matrix's types alone decide the arithmetic, tf32 or split
//! precision of 16 bits. All kernels for one arithmetic give the same bits, so the fastest for the number of rows is
//! used.

use super::pairs::PairRoom;
use super::then::TOLD_BYTES;
use super::*;
use crate::shapes::{PIECE_BYTES, WIDE_BYTES, WIDE_GROUPS, WIDE_ROWS, WIDE_THREADS};

/// Outputs of a tile in the kernels of tf32 products; `TILE_ROWS` are its rows.
const TILE_OUTPUTS: u32 = 8;
const TILE_ROWS: u32 = 16;
/// Rows of half a tile, for which the other half is left out; and rows of a tile of split-precision products.
pub(super) const FEW_ROWS: u32 = 8;
/// Rows of a block in the kernels for tens of rows and for many; the former is used for buckets of up to as many rows.
pub(super) const BATCH_ROWS: u32 = 64;
/// Outputs from which the kernel for many rows is faster for tens of rows too, because it has enough blocks.
const VAST_OUTPUTS_MIN: u32 = 16_384;
/// Tiles of outputs of a warp in the kernel for many rows.
const MANY_TILES: u32 = 2;
/// Bytes of two groups of fragments of a block's rows, 32 numbers a lane for each of its tiles, and of the totals of
/// its threads.
const FRAGMENTS_BYTES: u32 = 2 * WARPS * WARP * 32 * 4 + MANY_TILES * WARPS * 4 * THREADS * 4;

/// Columns of a group of a split-precision product. `BLOCK_COLS` are the columns of a block, which shares one power of
/// two.
const GROUP_COLS: u32 = 32;
pub(super) const BLOCK_COLS: usize = 256;
/// Largest number of segments of the columns, each of at least `SEGMENT_GROUPS_MIN` groups. `BLOCKS_MAX` is two blocks
/// for each multiprocessor of the largest GPU.
const SEGMENTS_MAX: u32 = 8;
const SEGMENT_GROUPS_MIN: u32 = 4;
pub(super) const BLOCKS_MAX: u32 = 264;
/// Pieces that the kernel for many rows holds at once: three groups of two pieces, or two groups of three.
const PIECES_AT_ONCE: u32 = 6;

/// Bytes of shared memory of a block in the kernels for many rows: pieces, and the totals of its threads.
pub(super) const MANY_BYTES: u32 = BATCH_ROWS / FEW_ROWS * (PIECES_AT_ONCE * PIECE_BYTES + 4 * 4 * THREADS);

/// Segments of so many columns.
pub(super) fn segments_of(cols: u32) -> u32 {
    cols.div_ceil(GROUP_COLS).div_ceil(SEGMENT_GROUPS_MIN).min(SEGMENTS_MAX)
}

/// Grid of the kernels for some rows, with up to `tiles` tiles of them; the outputs' blocks go from tile to tile.
pub(super) fn some_grid(blocks: [u32; 3], segments: u32, tiles: u32) -> Grid {
    Grid { blocks, threads: segments * WARP, shared_bytes: segments * tiles * 4 * WARP * 4 }
}

/// Memory for the pieces of rows that a product reads, with inverse factors and sums.
pub(super) struct PieceRoom {
    rows: usize, // whole tiles; for matrices those of the kernel for many rows
    cols: usize, // whole blocks
}

impl PieceRoom {
    pub(super) fn of(limits: &StepLimits) -> Self {
        // The kernel for many rows reads missing tiles too; and buckets are powers of two.
        let rows = limits.rows.max(limits.logit_rows).next_multiple_of(BATCH_ROWS as usize);
        let cols = limits.width.max(limits.heads_matmul_width).next_multiple_of(BLOCK_COLS);
        Self { rows, cols }
    }

    /// Memory for one tile of rows.
    pub(super) fn of_few(self) -> Self {
        Self { rows: FEW_ROWS as usize, ..self }
    }

    /// Memory for the places of pairs of rows and experts.
    pub(super) fn of_experts(limits: &StepLimits) -> Self {
        Self { rows: PairRoom::of(limits).places, cols: limits.experts_width.next_multiple_of(BLOCK_COLS) }
    }

    /// Bytes of pieces, at most three of 16 bits, of one factor for each block of columns, and of sums of 16 columns.
    fn parts(&self) -> [usize; 3] {
        let numbers = self.rows * self.cols;
        [6 * numbers, 4 * numbers / BLOCK_COLS, 4 * numbers / 16]
    }

    pub(super) fn bytes(&self) -> usize {
        self.parts().iter().sum()
    }

    /// Addresses of pieces, factors and sums.
    pub(super) fn places<D: Device>(&self, memory: &Memory<D>) -> [Address; 3] {
        let [pieces, inverses, _] = self.parts();
        [0, pieces, pieces + inverses].map(|at| memory.address().offset(at))
    }
}

pub(super) fn activation_code(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
        Activation::Relu => 3,
        Activation::ReluSquared => 4,
        Activation::ClampedSwish => 5,
        Activation::QuickGelu => 6,
    }
}

/// Output of a product, and additions to it.
struct Output {
    out: Address,
    bias: Address,
    activation: u32,
    adds: u32,
    scale: f32,
}

impl<D: Device> CudaBackend<D> {
    /// `out[r] = activation(weight · x[r] + bias)`, with buffers that may have more columns than the matrix.
    pub(super) fn product(&mut self, weight: &CudaMatrix<D>, product: &Product<'_, D>) {
        let output = Output {
            out: product.out.address(),
            bias: address_of(product.bias.map(|bias| &bias.memory)),
            activation: product.activation.map_or(NONE, activation_code),
            adds: u32::from(product.adds.is_some()),
            scale: product.adds.unwrap_or(1.0),
        };
        match weight.product.pieces {
            Some(bf16s) => self.product_in_pieces(weight, product, &output, bf16s),
            None => self.product_in_tf32(weight, product, &output),
        }
    }

    fn product_in_pieces(
        &mut self,
        weight: &CudaMatrix<D>,
        product: &Product<'_, D>,
        output: &Output,
        bf16s: bool,
    ) {
        let room = PieceRoom::of(self.steps.limits());
        assert!(weight.cols() <= room.cols, "a matrix wider than the step's limits");
        let (_, bucket) = self.steps.batch();
        let rows = if product.logits { bucket.logit_rows } else { bucket.rows };
        // A product of few rows may split other rows while its own are still read.
        let is_few = rows <= FEW_ROWS.min(self.wide_above);
        let in_few_pieces = is_few && !self.last_product.in_few_pieces;
        let tiles = if weight.product.whole_tiles { weight.product.tiles } else { 0 };
        self.last_product = LastProduct { tiles, in_few_pieces };
        let (room, memory) = match in_few_pieces {
            true => (room.of_few(), self.scratch().few_pieces.clone()),
            false => (room, self.scratch().pieces.clone()),
        };
        let [pieces, inverses, sums] = room.places(&memory);
        let (fuses, wide_above) = (self.fuses, self.wide_above);
        let mut ops = self.steps.ops();
        let wide = rows > wide_above;
        let form = if bf16s { IN_BF16S } else { 0 } | if wide { BY_WORDS } else { 0 };
        let cut = PiecesParams {
            batch: ops.batch,
            x: product.x.address(),
            pieces,
            inverses,
            sums,
            x_stride: product.x.cols as u32,
            cols: weight.stack.cols,
            logits: u32::from(product.logits),
            form,
        };
        cuts::cut_rows(&mut ops, fuses, &cut, &[product.x.memory, &memory]);

        let segments = segments_of(weight.stack.cols);
        let params = ProductParams {
            batch: ops.batch,
            weights: weight.stack,
            pieces,
            inverses,
            sums,
            out: output.out,
            bias: output.bias,
            out_stride: product.out.cols as u32,
            segments,
            activation: output.activation,
            adds: output.adds,
            logits: u32::from(product.logits),
            adapter: product.adapter,
            scale: output.scale,
            bf16s: u32::from(bf16s),
        };
        let tiles = weight.product.tiles;
        let some = |kernel: Kernel, rows: u32| {
            (kernel, some_grid([tiles.min(BLOCKS_MAX), 1, 1], segments, rows / FEW_ROWS))
        };
        let of = |floats: Kernel, blocks: Kernel| if weight.product.floats { floats } else { blocks };
        let (kernel, grid) = if wide {
            let blocks = [rows.div_ceil(WIDE_ROWS), weight.product.wide_tiles.div_ceil(WIDE_GROUPS), 1];
            let kernel = of(Kernel::ProductWide, Kernel::ProductWideBlocks);
            (kernel, Grid { blocks, threads: WIDE_THREADS, shared_bytes: WIDE_BYTES })
        } else if rows <= FEW_ROWS {
            some(of(Kernel::ProductFew, Kernel::ProductFewBlocks), FEW_ROWS)
        } else if rows <= 2 * FEW_ROWS {
            some(of(Kernel::ProductSome, Kernel::ProductSomeBlocks), 2 * FEW_ROWS)
        } else if rows <= BATCH_ROWS {
            some(of(Kernel::ProductBatch, Kernel::ProductBatchBlocks), BATCH_ROWS)
        } else {
            let blocks = [rows.div_ceil(BATCH_ROWS), tiles.div_ceil(WARPS), 1];
            let kernel = of(Kernel::ProductMany, Kernel::ProductManyBlocks);
            (kernel, Grid { blocks, threads: THREADS, shared_bytes: MANY_BYTES })
        };
        let mut holds = vec![product.out.memory];
        holds.extend(weight.memories());
        holds.extend(product.bias.map(|bias| &bias.memory));
        if is_few {
            let shared_bytes = grid.shared_bytes + TOLD_BYTES;
            let few = FewParams { product: params, then: ThenParams::default() };
            ops.push(kernel, Grid { shared_bytes, ..grid }, &few, &holds);
        } else {
            ops.push(kernel, grid, &params, &holds);
        }
    }

    fn product_in_tf32(&mut self, weight: &CudaMatrix<D>, product: &Product<'_, D>, output: &Output) {
        let mut ops = self.steps.ops();
        let rows = if product.logits { ops.bucket.logit_rows } else { ops.bucket.rows };
        let params = MatmulParams {
            batch: ops.batch,
            weights: weight.stack,
            x: product.x.address(),
            out: output.out,
            bias: output.bias,
            x_stride: product.x.cols as u32,
            out_stride: product.out.cols as u32,
            activation: output.activation,
            adds: output.adds,
            logits: u32::from(product.logits),
            adapter: product.adapter,
            scale: output.scale,
            unused: 0,
        };
        let outputs = weight.stack.rows;
        // A lane has four sums of each tile, which the warps of a block add up.
        let room = |tiles: u32| 4 * 4 * tiles * THREADS;
        let (kernel, outputs_of, rows_of, shared_bytes) = if rows <= FEW_ROWS {
            (Kernel::MatmulFew, TILE_OUTPUTS, TILE_ROWS, room(1))
        } else if rows <= TILE_ROWS {
            (Kernel::Matmul, TILE_OUTPUTS, TILE_ROWS, room(1))
        } else if rows <= BATCH_ROWS && outputs < VAST_OUTPUTS_MIN {
            (Kernel::MatmulBatch, TILE_OUTPUTS, BATCH_ROWS, room(BATCH_ROWS / TILE_ROWS))
        } else {
            (Kernel::MatmulWide, MANY_TILES * TILE_OUTPUTS * WARPS, BATCH_ROWS, FRAGMENTS_BYTES)
        };
        let blocks = [outputs.div_ceil(outputs_of), rows.div_ceil(rows_of), 1];
        let mut holds = vec![product.x.memory, product.out.memory];
        holds.extend(weight.memories());
        holds.extend(product.bias.map(|bias| &bias.memory));
        ops.push(kernel, Grid { blocks, threads: THREADS, shared_bytes }, &params, &holds);
    }
}

/// Rows of f32 in memory, of which a product reads or writes the columns from `first` on.
pub(super) struct MemoryRows<'a, D: Device> {
    pub(super) memory: &'a Arc<Memory<D>>,
    pub(super) first: usize,
    /// Columns of a whole row.
    pub(super) cols: usize,
}

impl<D: Device> Clone for MemoryRows<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for MemoryRows<'_, D> {}

impl<D: Device> MemoryRows<'_, D> {
    /// Address of the first of the columns in the first row.
    fn address(&self) -> Address {
        self.memory.address().offset(4 * self.first)
    }
}

/// Product with a matrix.
pub(super) struct Product<'a, D: Device> {
    pub(super) x: MemoryRows<'a, D>,
    pub(super) out: MemoryRows<'a, D>,
    pub(super) bias: Option<&'a CudaVector<D>>,
    pub(super) activation: Option<Activation>,
    pub(super) adds: Option<f32>,
    pub(super) logits: bool,
    pub(super) adapter: u32,
}

impl<'a, D: Device> Product<'a, D> {
    pub(super) fn of(x: &'a CudaBuffer<D>, out: &'a CudaBuffer<D>) -> Self {
        Self {
            x: MemoryRows { memory: &x.memory, first: 0, cols: x.cols },
            out: MemoryRows { memory: &out.memory, first: 0, cols: out.cols },
            bias: None,
            activation: None,
            adds: None,
            logits: false,
            adapter: NONE,
        }
    }
}
