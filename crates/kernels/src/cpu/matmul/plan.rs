//! How a product is cut into items of the pool.

use super::{CHUNK_NS, ITEM_ACTIVATION_BYTES, PanelScratch, SLAB, WIDE_COLUMNS_MIN, WIDE_PANELS};
use crate::cpu::aligned::Shared;
use crate::cpu::matrix::{PANEL_ROWS, STREAM_PANELS};
use crate::cpu::pool::Turn;
use crate::cpu::tier::Tier;

/// How the outputs of a product are cut into items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    rows: usize,
    columns: usize,
    item_rows: usize,
    item_columns: usize,
    grain: usize,
}

/// Rows of weights by columns of activations that one thread computes at a time.
pub(super) struct Item {
    pub(super) row_first: usize,
    pub(super) rows: usize,
    pub(super) column_first: usize,
    pub(super) columns: usize,
}

impl Plan {
    /// `rows` outputs, panels of `panel_bytes`, by `columns` columns of `column_bytes`, each of `cols` inputs.
    pub(super) fn new(
        tier: Tier,
        threads: usize,
        (rows, panel_bytes): (usize, usize),
        (columns, column_bytes): (usize, usize),
        cols: usize,
    ) -> Plan {
        // 1000 multiply-adds take 6 ns by vectors, 2 by matrices; 10 bytes take 1 ns to stream.
        let (mut panels, mut item_columns) = (STREAM_PANELS, columns);
        let ns_per_1000 = if tier == Tier::Amx { 2 } else { 6 };
        if columns >= WIDE_COLUMNS_MIN {
            // Matrices unpack a panel anew for each item, which many columns must pay for. Vectors do so in passing, and
            // more of a row's outputs at a time are fewer pages to write to.
            let panels_max = if tier == Tier::Amx { 2 } else { WIDE_PANELS };
            let columns_max = SLAB / (panels_max * PANEL_ROWS);
            item_columns = (ITEM_ACTIVATION_BYTES / column_bytes.max(1)).clamp(64, columns_max) / 32 * 32;
            let columns = columns.div_ceil(item_columns);
            let enough = |panels: &usize| rows.div_ceil(panels * PANEL_ROWS) * columns >= 8 * threads;
            panels = [WIDE_PANELS, 4, 2]
                .into_iter()
                .filter(|&panels| panels <= panels_max)
                .find(enough)
                .unwrap_or(1);
        }
        let products = panels * PANEL_ROWS * cols * columns.min(item_columns);
        let item_ns = panels * panel_bytes / 10 + products / 1000 * ns_per_1000;
        let grain = CHUNK_NS / (item_ns + 1) + 1;
        Plan { rows, columns, item_rows: panels * PANEL_ROWS, item_columns: item_columns.max(1), grain }
    }

    /// Items that share columns follow each other, so that their activations are still in the cache.
    fn item(&self, index: usize) -> Item {
        let down = self.rows.div_ceil(self.item_rows);
        let (row_first, column_first) = (index % down * self.item_rows, index / down * self.item_columns);
        Item {
            row_first,
            rows: self.item_rows.min(self.rows - row_first),
            column_first,
            columns: self.item_columns.min(self.columns - column_first),
        }
    }

    pub(super) fn run(
        &self,
        turn: &mut Turn,
        scratch: &mut [PanelScratch],
        body: &(dyn Fn(Item, &mut PanelScratch) + Sync),
    ) {
        assert!(scratch.len() >= turn.threads(), "scratch for every thread");
        let items = self.rows.div_ceil(self.item_rows) * self.columns.div_ceil(self.item_columns);
        let scratch = Shared::new(scratch);
        turn.run(items, self.grain, &|worker, range| {
            // SAFETY: the pool gives each thread a number of its own below the length asserted above.
            let scratch = unsafe { &mut *scratch.get().add(worker) };
            for index in range {
                body(self.item(index), scratch);
            }
        });
    }
}
