//! Division of products into items of the pool. Everything that can be computed in parallel is one loop.

use std::ops::Range;

use super::{
    CHUNK_NS, ITEM_ACTIVATION_BYTES, ITEM_SPLIT_BYTES, JOINED_ITEMS, PanelScratch, SLAB,
    UNIT_STREAM_COLUMNS_MAX, WIDE_COLUMNS_MIN, WIDE_PANELS, unit_takes,
};
use crate::cpu::aligned::SharedPointer;
use crate::cpu::matrix::{PANEL_ROWS, STREAM_PANELS};
use crate::cpu::pool::PoolTurn;
use crate::cpu::tier::Tier;
use hanzo_engine_ops::KernelError;

/// Products that one loop of the pool computes.
#[derive(Debug)]
pub(in crate::cpu) struct Plan {
    parts: Vec<PlanPart>,
    /// Approximate time that one thread would take for all of them, in nanoseconds.
    ns: usize,
}

/// Rows of a matrix by columns of activations, cut into items.
#[derive(Debug)]
struct PlanPart {
    group: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    item_rows: usize,
    item_columns: usize,
    /// End of this part's items, counted over all parts.
    item_end: usize,
}

/// Work to add to a plan.
pub(super) struct PlanWork {
    /// Index of the matrix.
    pub(super) group: usize,
    pub(super) rows: Range<usize>,
    /// Bytes of the weights of 16 rows.
    pub(super) panel_bytes: usize,
    pub(super) columns: Range<usize>,
    /// Bytes of a column's activations.
    pub(super) column_bytes: usize,
    /// Inputs of a row.
    pub(super) cols: usize,
    /// Whether activations are floats.
    pub(super) floats: bool,
    /// Expected number of works of about this size.
    pub(super) alike: usize,
}

/// Rows of weights by columns of activations that one thread computes at a time.
pub(super) struct Item {
    pub(super) group: usize,
    pub(super) row_first: usize,
    pub(super) rows: usize,
    pub(super) column_first: usize,
    pub(super) columns: usize,
}

impl Item {
    /// The item's rows of the matrix.
    pub(super) fn rows(&self) -> Range<usize> {
        self.row_first..self.row_first + self.rows
    }
}

impl Plan {
    /// Smallest capacity of a plan, in parts.
    const PARTS_MIN: usize = 4;

    /// Bytes of [`Plan::new`].
    pub(in crate::cpu) fn bytes(experts: usize) -> usize {
        experts.max(Self::PARTS_MIN).saturating_mul(size_of::<PlanPart>())
    }

    /// An empty plan with room for one part for each expert.
    pub(in crate::cpu) fn new(experts: usize) -> Result<Plan, KernelError> {
        let mut parts = Vec::new();
        let (bytes, what) = (Self::bytes(experts), "the plan of a product");
        parts.try_reserve_exact(experts.max(Self::PARTS_MIN)).map_err(|_| KernelError::OutOfMemory {
            device: "cpu".into(),
            bytes,
            what,
        })?;
        Ok(Plan { parts, ns: 0 })
    }

    /// Removes all parts.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.ns = 0;
    }

    /// Whether one more part would need memory. The plan must then run first.
    pub(super) fn is_full(&self) -> bool {
        self.parts.len() == self.parts.capacity()
    }

    pub(super) fn add(&mut self, tier: Tier, threads: usize, work: PlanWork) {
        let (rows, columns) = (work.rows.len(), work.columns.len());
        // 1000 multiply-adds take 6 ns with vectors, 2 ns on the matrix unit; streaming 10 bytes takes 1 ns.
        let (mut panels, mut item_columns) = (STREAM_PANELS, columns);
        let unit = unit_takes(tier, work.floats, columns);
        let ns_per_1000 = if unit { 2 } else { 6 };
        if unit && work.floats && columns <= UNIT_STREAM_COLUMNS_MAX {
            // Panels advance in parallel: as many as leave every thread some items.
            let enough = |panels: &usize| rows.div_ceil(panels * PANEL_ROWS) * work.alike >= 2 * threads;
            panels = [STREAM_PANELS, 2].into_iter().find(enough).unwrap_or(1);
        } else if columns >= WIDE_COLUMNS_MIN {
            // The unit unpacks a panel anew for each item, which only many columns pay for. Vectors unpack in passing,
            // and computing more of a row's outputs at a time writes to fewer pages.
            let panels_max = if unit { 2 } else { WIDE_PANELS };
            let columns_max = SLAB / (panels_max * PANEL_ROWS);
            // Splitting anew means more work for floats, so items get somewhat more columns.
            let more = unit && work.floats;
            let bytes = if more { ITEM_SPLIT_BYTES } else { ITEM_ACTIVATION_BYTES };
            item_columns = (bytes / work.column_bytes.max(1)).clamp(64, columns_max) / 32 * 32;
            if more {
                item_columns = columns.div_ceil(columns.div_ceil(item_columns)).next_multiple_of(32);
            }
            let alike = work.alike * columns.div_ceil(item_columns);
            // Running the unit at half its speed costs more than a thread that ends early.
            let items_min = if unit { 2 * threads } else { 8 * threads };
            let enough = |panels: &usize| rows.div_ceil(panels * PANEL_ROWS) * alike >= items_min;
            let mut sizes = [WIDE_PANELS, 4, 2].into_iter().filter(|&panels| panels <= panels_max);
            panels = sizes.find(enough).unwrap_or(1);
        }
        let products = panels * PANEL_ROWS * work.cols * columns.min(item_columns);
        let item_ns = panels * work.panel_bytes / 10 + products / 1000 * ns_per_1000;
        let (item_rows, item_columns) = (panels * PANEL_ROWS, item_columns.max(1));
        let items = rows.div_ceil(item_rows) * columns.div_ceil(item_columns);
        self.ns = self.ns.saturating_add(items * item_ns);
        self.parts.push(PlanPart {
            group: work.group,
            rows: work.rows,
            columns: work.columns,
            item_rows,
            item_columns,
            item_end: self.items() + items,
        });
    }

    fn items(&self) -> usize {
        self.parts.last().map_or(0, |part| part.item_end)
    }

    /// Item by index. Items that share columns follow each other, so that their activations are still in the cache.
    fn item(&self, index: usize) -> Item {
        let at = self.parts.partition_point(|part| part.item_end <= index);
        let first = at.checked_sub(1).map_or(0, |before| self.parts[before].item_end);
        let PlanPart { group, rows, columns, item_rows, item_columns, .. } = &self.parts[at];
        let down = rows.len().div_ceil(*item_rows);
        let row_first = rows.start + (index - first) % down * item_rows;
        let column_first = columns.start + (index - first) / down * item_columns;
        Item {
            group: *group,
            row_first,
            rows: (*item_rows).min(rows.end - row_first),
            column_first,
            columns: (*item_columns).min(columns.end - column_first),
        }
    }

    /// Item by index, of at most few columns together with items after it, below `end`; and the index of the next.
    /// Weights stream from memory, and the stream falters between items.
    fn joined_item(&self, index: usize, end: usize) -> (Item, usize) {
        let mut item = self.item(index);
        let mut next = index + 1;
        while item.columns < WIDE_COLUMNS_MIN && next < end.min(index + JOINED_ITEMS) {
            let after = self.item(next);
            if after.group != item.group
                || after.row_first != item.row_first + item.rows
                || after.column_first != item.column_first
                || after.columns != item.columns
                || !item.rows.is_multiple_of(STREAM_PANELS * PANEL_ROWS)
            {
                break;
            }
            item.rows += after.rows;
            next += 1;
        }
        (item, next)
    }

    /// Computes all parts and removes them.
    pub(super) fn run(
        &mut self,
        turn: &mut PoolTurn,
        scratch: &mut [PanelScratch],
        body: &(dyn Fn(&Item, &mut PanelScratch) + Sync),
    ) {
        assert!(scratch.len() >= turn.threads(), "scratch for every thread");
        let items = self.items();
        let grain = CHUNK_NS / (self.ns / items.max(1) + 1) + 1;
        let scratch = SharedPointer::new(scratch);
        let plan = &*self;
        turn.run(items, grain, &|worker, range| {
            // SAFETY: the pool gives each thread a number of its own below the length asserted above.
            let scratch = unsafe { &mut *scratch.get().add(worker) };
            let mut index = range.start;
            while index < range.end {
                let (item, next) = plan.joined_item(index, range.end);
                body(&item, scratch);
                index = next;
            }
        });
        self.clear();
    }
}
