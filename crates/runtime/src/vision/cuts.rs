//! Cost of a tower's rows, number of rows in a piece, and groups of attention heads.

use std::ops::Range;

use hanzo_engine_ops::HeadShape;

use super::pieces::PIECE_ROWS;
use super::spec::TowerSpec;
use super::towers::{MILLION, Products};
use crate::spec::MlpSpec;

/// Granularity of rows: reading the weights once takes as long as computing this many rows.
pub(super) const ROWS_UNIT: usize = 16;
/// Maximum attention heads computed together.
const HEADS_TOGETHER: usize = if cfg!(test) { 1 } else { 4 };

/// Millions of products for a row of a layer: before attention (queries, keys and values), in attention, and after
/// it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowCost {
    pub(super) before: f64,
    pub(super) attention: f64,
    pub(super) behind: f64,
}

/// Budget left of a piece, in millions of products; `attention` is the cost of a product of attention relative to
/// one with weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceBudget {
    pub(super) millions: f64,
    pub(super) attention: f64,
}

/// Attention heads of a tower's layers.
pub(super) fn heads_of(spec: &TowerSpec) -> HeadShape {
    spec.layers.layers[0].attention.projection.head_shape()
}

/// Size of a group of heads that are computed together, and the number of groups.
pub(super) fn groups_of(all: HeadShape) -> (HeadShape, usize) {
    let beside = all.heads / all.kv_heads;
    let fits = |&some: &usize| all.kv_heads.is_multiple_of(some) && some * beside <= HEADS_TOGETHER;
    let kv_heads = (1..=all.kv_heads).rev().find(fits).unwrap_or(1);
    (HeadShape { heads: kv_heads * beside, kv_heads, ..all }, all.kv_heads / kv_heads)
}

/// Columns of a row's queries, keys and values that belong to a group of heads.
pub(super) fn columns_of(all: HeadShape, group: HeadShape, index: usize) -> [Range<usize>; 3] {
    let part = |first: usize, heads: usize| {
        let from = (first + index * heads) * all.head_dim;
        from..from + heads * all.head_dim
    };
    [part(0, group.heads), part(all.heads, group.kv_heads), part(all.heads + all.kv_heads, group.kv_heads)]
}

/// Number of rows that comes closest to a budget of `left` million products at `cost` each, in multiples of `unit`.
pub(super) fn rows_for(left: f64, cost: f64, unit: usize) -> usize {
    let units = (left / (cost * unit as f64).max(f64::MIN_POSITIVE)).round() as usize;
    units.saturating_mul(unit).clamp(unit, PIECE_ROWS)
}

impl RowCost {
    /// Cost of a row of a layer that attends to `keys` rows.
    pub(super) fn new(spec: &TowerSpec, index: usize, keys: usize) -> RowCost {
        let layer = &spec.layers.layers[index];
        let (hidden, shape) = (spec.layers.hidden, layer.attention.projection.head_shape());
        let mlp = match &layer.mlp {
            MlpSpec::Dense(dense) => dense.ffn * hidden * (2 + usize::from(dense.gated)),
            _ => 0,
        };
        let [before, attention, behind] =
            [hidden * shape.qkv_width(), 2 * keys * shape.q_width(), shape.q_width() * hidden + mlp]
                .map(|products| products as f64 / MILLION);
        RowCost { before, attention, behind }
    }

    /// Total cost of a row; `attention` is the cost of a product of attention relative to one with weights.
    pub(super) fn all(self, attention: f64) -> f64 {
        self.before + self.attention * attention + self.behind
    }
}

/// Products with weights only, in millions.
pub(super) fn of_matrix(matrix: f64) -> Products {
    Products { matrix, attention: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_heads_have_every_column_once() {
        for (heads, kv_heads, head_dim) in [(16, 16, 80), (12, 4, 16), (3, 3, 16), (8, 1, 4)] {
            let all = HeadShape { heads, kv_heads, head_dim };
            let (group, groups) = groups_of(all);
            let mut columns: Vec<usize> =
                (0..groups).flat_map(|index| columns_of(all, group, index)).flatten().collect();
            assert_eq!(columns.len(), groups * group.qkv_width());
            columns.sort_unstable();
            assert!(columns.into_iter().eq(0..all.qkv_width()), "{all:?} by {group:?}");
            // Query heads with the same keys are in the same group.
            assert_eq!(group.heads * all.kv_heads, group.kv_heads * all.heads);
        }
    }

    #[test]
    fn rows_are_the_nearest_to_what_there_is_room_for() {
        for (left, cost, rows) in [
            (0.0, 3.0, 16),
            (3.0 * 23.0, 3.0, 16),
            (3.0 * 25.0, 3.0, 32),
            (3.0 * 40.0, 3.0, 48),
            (f64::INFINITY, 3.0, PIECE_ROWS),
            (-1.0, 3.0, 16),
            (1.0, 0.0, PIECE_ROWS),
        ] {
            assert_eq!(rows_for(left, cost, 16), rows, "{left} by {cost}");
        }
    }
}
