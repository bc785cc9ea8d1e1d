//! Pairs of a row and one of its experts, grouped by expert: their places, and the launches of their split-precision
//! products. The kernels for few and for many pairs of an expert give the same bits.

use super::products::{
    BATCH_ROWS, BLOCK_COLS, BLOCKS_MAX, FEW_ROWS, MANY_BYTES, PieceRoom, segments_of, some_grid,
};
use super::*;
use crate::weights::ProductShape;

/// Pairs of a unit, which belongs to one expert, in the kernels for few pairs; the kernels for many have
/// [`BATCH_ROWS`].
const SOME_PAIRS: u32 = 2 * FEW_ROWS;
/// Average number of pairs of an expert from which the kernels for many are faster.
const MANY_PAIRS_MIN: u32 = 48;
const _: () = assert!(SOME_PAIRS.is_power_of_two() && BATCH_ROWS.is_power_of_two());
/// Tiles of outputs of a block in the kernels for few pairs, if there are enough blocks.
const SOME_TILES: u32 = 4;
/// Largest number of warps of the block that groups pairs, each with separate rows. `GROUP_BYTES_MAX` bounds its
/// shared memory.
const GROUP_WARPS: u32 = 32;
const GROUP_WARPS_MIN: u32 = 4;
const GROUP_BYTES_MAX: u32 = 48 << 10;
/// Bytes of a unit.
const UNIT_BYTES: usize = 16;

/// Memory for pairs.
pub(super) struct PairRoom {
    pairs: usize,
    units: usize,
    /// Rows of tiles, of which none mixes two experts.
    pub(super) places: usize,
    width: usize, // columns of a place's products
}

impl PairRoom {
    /// Memory for as many rows as the largest bucket has.
    pub(super) fn of(limits: &StepLimits) -> Self {
        let pairs = limits.rows.next_power_of_two() * limits.experts_used;
        let tiles_begun = limits.experts.min(pairs);
        Self {
            pairs,
            units: units_of(pairs as u32, limits.experts as u32, SOME_PAIRS) as usize,
            places: (pairs + (FEW_ROWS as usize - 1) * tiles_begun).next_multiple_of(FEW_ROWS as usize),
            width: limits.experts_width,
        }
    }

    /// Bytes of units, of a place for each pair, and of products.
    fn parts(&self) -> [usize; 3] {
        [UNIT_BYTES * self.units, (4 * self.pairs).next_multiple_of(16), 4 * self.places * self.width]
    }

    pub(super) fn bytes(&self) -> usize {
        self.parts().iter().sum()
    }
}

/// Largest number of units that pairs fill.
fn units_of(pairs: u32, experts: u32, unit_pairs: u32) -> u32 {
    let begun = experts.min(pairs);
    begun + (pairs - begun) / unit_pairs
}

/// Pairs of a mixture.
pub(super) struct Pairs {
    params: ExpertParams,
    experts: u32,
    rows: u32, // rows of the bucket
    unit_pairs: u32,
    units_max: u32,
    units: Address,
    places: Address,
    products: Address,
    cut: [Address; 3], // pieces, their inverse factors, and sums
}

impl Pairs {
    /// Pairs of a bucket's rows, in the scratch memory of pairs and of pieces.
    pub(super) fn new<D: Device>(
        limits: &StepLimits,
        params: &ExpertParams,
        experts: u32,
        rows: u32,
        memory: &Memory<D>,
        pieces: &Memory<D>,
    ) -> Self {
        let outputs = params.ffn * if params.gated == 1 { 2 } else { 1 };
        let width = params.cols.max(outputs) as usize;
        assert!(width <= limits.experts_width, "experts wider than the step's limits");
        let [units, places, _] = PairRoom::of(limits).parts();
        let [units, places, products] = [0, units, units + places].map(|at| memory.address().offset(at));
        // A row has a given expert at most once.
        let many = rows > SOME_PAIRS && rows * params.used >= MANY_PAIRS_MIN * experts;
        let unit_pairs = if many { BATCH_ROWS } else { SOME_PAIRS };
        Self {
            params: *params,
            experts,
            rows,
            unit_pairs,
            units_max: units_of(rows * params.used, experts, unit_pairs),
            units,
            places,
            products,
            cut: PieceRoom::of_experts(limits).places(pieces),
        }
    }

    /// Grid with one block of a pair's columns for each warp.
    fn grid(&self, cols: u32) -> Grid {
        let blocks = cols.div_ceil(BLOCK_COLS as u32).div_ceil(WARPS);
        Grid { blocks: [self.rows * self.params.used, blocks, 1], threads: THREADS, shared_bytes: 0 }
    }

    /// Assigns each pair its place. `holds` is the memory that the mixture's launches name.
    pub(super) fn group<D: Device>(&self, ops: &mut Ops<'_, D>, holds: &[&Arc<Memory<D>>]) {
        let params = GroupParams {
            batch: self.params.batch,
            chosen: self.params.chosen,
            places: self.places,
            units: self.units,
            experts: self.experts,
            used: self.params.used,
            unit_bits: self.unit_pairs.ilog2(),
            units_max: self.units_max,
        };
        // Counts of each warp, and of all together.
        let lists = GROUP_BYTES_MAX / (4 * self.experts);
        assert!(lists > 1, "{} experts are more than a block counts", self.experts);
        let warps = self.rows.clamp(GROUP_WARPS_MIN, GROUP_WARPS).min(lists - 1);
        let shared_bytes = 4 * (warps + 1) * self.experts;
        let grid = Grid { blocks: [1; 3], threads: warps * WARP, shared_bytes };
        ops.push(Kernel::Group, grid, &params, holds);
    }

    /// Splits rows `x` of so many pairs and columns each, multiplied by the pairs' weights if inputs are scaled.
    pub(super) fn cut<D: Device>(
        &self,
        ops: &mut Ops<'_, D>,
        x: Address,
        pairs_of_row: u32,
        cols: u32,
        weights: Address,
        bf16s: bool,
    ) {
        let [pieces, inverses, sums] = self.cut;
        let params = ExpertPiecesParams {
            batch: self.params.batch,
            places: self.places,
            weights,
            x,
            pieces,
            inverses,
            sums,
            used: self.params.used,
            cols,
            pairs_of_row,
            bf16s: u32::from(bf16s),
        };
        ops.push(Kernel::ExpertPieces, self.grid(cols), &params, &[]);
    }

    /// Products with a stack of each expert, with so many columns and outputs. `down` is 0 for the first stack and 1
    /// for the second.
    pub(super) fn multiply<D: Device>(
        &self,
        ops: &mut Ops<'_, D>,
        shape: &ProductShape,
        down: u32,
        cols: u32,
        outputs: u32,
    ) {
        let [pieces, inverses, sums] = self.cut;
        let segments = segments_of(cols);
        let params = ExpertProductParams {
            batch: self.params.batch,
            experts: self.params.experts,
            units: self.units,
            pieces,
            inverses,
            sums,
            out: self.products,
            cols,
            segments,
            outputs,
            down,
            bf16s: u32::from(shape.pieces == Some(true)),
            unused: 0,
        };
        let of = |floats: Kernel, blocks: Kernel| if shape.floats { floats } else { blocks };
        let (kernel, grid) = if self.unit_pairs == SOME_PAIRS {
            let blocks = BLOCKS_MAX.div_ceil(self.units_max).max(shape.tiles.div_ceil(SOME_TILES));
            let blocks = [blocks.min(shape.tiles), self.units_max, 1];
            let grid = some_grid(blocks, segments, self.unit_pairs / FEW_ROWS);
            (of(Kernel::ExpertSome, Kernel::ExpertSomeBlocks), grid)
        } else {
            let blocks = [shape.tiles.div_ceil(WARPS), self.units_max, 1];
            let grid = Grid { blocks, threads: THREADS, shared_bytes: MANY_BYTES };
            (of(Kernel::ExpertMany, Kernel::ExpertManyBlocks), grid)
        };
        ops.push(kernel, grid, &params, &[]);
    }

    /// Computes the hidden units between the products, in pieces for split-precision second products, or as numbers
    /// for products pair by pair.
    pub(super) fn activate<D: Device>(&self, ops: &mut Ops<'_, D>, pieces_of: Option<bool>) {
        let [pieces, inverses, sums] = self.cut;
        let params = ExpertHiddenParams {
            batch: self.params.batch,
            chosen: self.params.chosen,
            places: self.places,
            products: self.products,
            bias: self.params.up_bias,
            hidden: if pieces_of.is_some() { Address::NONE } else { self.params.hidden },
            pieces,
            inverses,
            sums,
            used: self.params.used,
            ffn: self.params.ffn,
            gated: self.params.gated,
            activation: self.params.activation,
            bf16s: u32::from(pieces_of == Some(true)),
            unused: 0,
        };
        ops.push(Kernel::ExpertHidden, self.grid(self.params.ffn), &params, &[]);
    }

    /// Sums the outputs of each row's pairs.
    pub(super) fn sum<D: Device>(&self, ops: &mut Ops<'_, D>) {
        let params = ExpertSumParams {
            batch: self.params.batch,
            chosen: self.params.chosen,
            places: self.places,
            weights: if self.params.scales_input == 1 { Address::NONE } else { self.params.weights },
            products: self.products,
            bias: self.params.down_bias,
            out: self.params.out,
            used: self.params.used,
            cols: self.params.cols,
        };
        let blocks = [self.params.cols.div_ceil(THREADS), self.rows, 1];
        ops.push(Kernel::ExpertSum, Grid { blocks, threads: THREADS, shared_bytes: 0 }, &params, &[]);
    }
}
