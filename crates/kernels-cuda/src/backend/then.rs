//! Fusion of a product of few rows with the op on its output: the norm of its row, the gated activation, or the
//! processing of heads. Each would otherwise be a separate launch. The results are the same.

use bytemuck::{Pod, Zeroable, bytes_of, pod_read_unaligned};

use super::products::BLOCK_COLS;
use super::rows::NORM_THREADS;
use super::*;
use crate::shapes::TILE_OUTPUTS;

/// Largest number of groups of columns that are counted separately. `ARRIVED_BYTES` is the size of their counters.
pub(super) const GROUPS_MAX: u32 = 4096;
pub(super) const ARRIVED_BYTES: usize = 4 * GROUPS_MAX as usize;
/// Largest number of tiles of outputs of a block: one for each lane.
const TILES_MAX: u32 = WARP;
/// Bytes of shared memory after a product's sums: the groups that a block finishes.
pub(super) const TOLD_BYTES: u32 = 4 * TILES_MAX;

const NORM: u32 = 1;
const GATE: u32 = 2;
const HEADS: u32 = 3;

/// Properties of the last product, kept until the next.
#[derive(Default)]
pub(super) struct LastProduct {
    pub(super) tiles: u32,          // of its outputs; 0 if a part ends within a tile
    pub(super) in_few_pieces: bool, // whether it has read its rows from `few_pieces`
}

impl ThenParams {
    /// Parameters of the corresponding separate launch.
    fn of<P: Pod>(self) -> P {
        pod_read_unaligned(&bytes_of(&self.of)[..size_of::<P>()])
    }

    pub(super) fn with(self, params: &impl Pod) -> Self {
        let mut then = Self { of: Zeroable::zeroed(), ..self };
        let bytes = bytes_of(params);
        bytemuck::bytes_of_mut(&mut then.of)[..bytes.len()].copy_from_slice(bytes);
        then
    }

    /// Parameters of the fused norm, if it is one.
    pub(crate) fn norm(&self) -> Option<NormParams> {
        (self.what == NORM).then(|| self.of())
    }

    pub(crate) fn gate(&self) -> Option<GateParams> {
        (self.what == GATE).then(|| self.of())
    }

    /// Parameters of the fused processing of heads, and the number of heads including those of keys and values.
    pub(crate) fn heads(&self) -> Option<(HeadParams, u32)> {
        (self.what == HEADS).then(|| (self.of(), self.groups))
    }
}

impl<D: Device> CudaBackend<D> {
    /// The last launch, if it is a product of few rows with a whole matrix and nothing is fused to it yet.
    fn last_product(&mut self) -> Option<(Kernel, Grid, FewParams)> {
        let fuses = self.fuses;
        let ops = self.ops();
        let last = ops.last().filter(|_| fuses)?;
        if !matches!(last.kernel, Kernel::ProductFew | Kernel::ProductFewBlocks) {
            return None;
        }
        let few: FewParams = pod_read_unaligned(last.params);
        let alone = few.then.what == 0 && few.product.adapter == NONE && few.product.logits == 0;
        alone.then_some((last.kernel, last.grid, few))
    }

    /// Whether each tile of outputs of the last product belongs to one group of so many columns, and no block has more
    /// tiles than lanes.
    fn has_whole_tiles(&self, few: &FewParams, grid: &Grid, group_cols: u32) -> bool {
        let tiles = self.last_product.tiles;
        let of_block = tiles.div_ceil(grid.blocks[0]) + few.product.weights.count;
        tiles > 0 && of_block <= TILES_MAX && group_cols.is_multiple_of(TILE_OUTPUTS as u32)
    }

    /// Fuses a norm of its output row into the last launch. Returns false if that launch does not write exactly this
    /// row.
    pub(super) fn norm_where_written(
        &mut self,
        norm: &NormParams,
        grid: &Grid,
        holds: &[&Arc<Memory<D>>],
    ) -> bool {
        let arrived = self.scratch().arrived.clone();
        let Some((kernel, product_grid, few)) = self.last_product() else { return false };
        let product = &few.product;
        let is_row =
            (norm.x, norm.x_stride, norm.width) == (product.out, product.out_stride, product.weights.rows);
        // With several rows, each has a separate block to norm it.
        if !is_row
            || grid.blocks != [1; 3]
            || product_grid.threads != NORM_THREADS
            || norm.residual == product.out
        {
            return false;
        }
        let then = ThenParams { arrived: arrived.address(), what: NORM, groups: 1, ..few.then }.with(norm);
        let shared_bytes = product_grid.shared_bytes.max(grid.shared_bytes);
        self.ops().replace_last(
            kernel,
            Grid { shared_bytes, ..product_grid },
            &FewParams { then, ..few },
            &[holds, &[&arrived]].concat(),
        );
        true
    }

    /// Fuses the gated activation into the last launch.
    pub(super) fn gate_where_written(&mut self, gate: &GateParams, holds: &[&Arc<Memory<D>>]) -> bool {
        let arrived = self.scratch().arrived.clone();
        let Some((kernel, grid, few)) = self.last_product() else { return false };
        let product = &few.product;
        let both = (gate.both, 2 * gate.width, 2 * gate.width);
        let groups = gate.width.div_ceil(BLOCK_COLS as u32);
        if both != (product.out, product.out_stride, product.weights.rows)
            || groups > GROUPS_MAX
            || !self.has_whole_tiles(&few, &grid, gate.width)
        {
            return false;
        }
        let then = ThenParams { arrived: arrived.address(), what: GATE, groups, ..few.then }.with(gate);
        self.ops().replace_last(kernel, grid, &FewParams { then, ..few }, &[holds, &[&arrived]].concat());
        true
    }

    /// Fuses the processing of heads into the last launch.
    pub(super) fn turn_where_written(
        &mut self,
        heads: &HeadParams,
        groups: u32,
        holds: &[&Arc<Memory<D>>],
    ) -> bool {
        let arrived = self.scratch().arrived.clone();
        let Some((kernel, grid, few)) = self.last_product() else { return false };
        let product = &few.product;
        let HeadParams { heads: queries, kv_heads, head_dim, .. } = *heads;
        let [keys, values] =
            [queries, queries + kv_heads].map(|first| heads.q.offset(4 * (first * head_dim) as usize));
        let are_heads = (heads.q, heads.k, heads.v, heads.q_stride, heads.kv_stride)
            == (product.out, keys, values, product.out_stride, product.out_stride)
            && product.weights.rows == (queries + 2 * kv_heads) * head_dim;
        // Heads take the place of the sums, one for each warp that has room.
        let at_once = (grid.shared_bytes - TOLD_BYTES) / (4 * head_dim);
        if !are_heads || at_once == 0 || groups > GROUPS_MAX || !self.has_whole_tiles(&few, &grid, head_dim) {
            return false;
        }
        let at_once = at_once.min(grid.threads / WARP);
        let then =
            ThenParams { arrived: arrived.address(), what: HEADS, groups, at_once, ..few.then }.with(heads);
        self.ops().replace_last(kernel, grid, &FewParams { then, ..few }, &[holds, &[&arrived]].concat());
        true
    }
}
