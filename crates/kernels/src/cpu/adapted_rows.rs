//! Grouping of a batch's rows by adapter. Rows of one adapter are computed several at a time, so that its matrices are
//! read once for all of them.

use hanzo_engine_ops::Batch;

/// Rows of one adapter that are computed together.
pub(super) const TILE_ROWS: usize = 4;

/// Rows of a batch that share an adapter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub(super) adapter: u32,
    pub(super) rows: [u32; TILE_ROWS],
    /// Rows of the output; for logits they differ from the input rows.
    pub(super) outs: [u32; TILE_ROWS],
    pub(super) count: usize,
}

/// Rows of a batch, grouped by adapter.
#[derive(Debug, Default)]
pub(super) struct AdapterTiles {
    rows: Vec<AdaptedRow>,
    tiles: Vec<Tile>,
    logits: Vec<Tile>,
}

/// A row that has an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AdaptedRow {
    adapter: u32,
    row: u32,
    out: u32,
}

impl AdapterTiles {
    /// Reserves memory for batches of so many rows and logit rows.
    pub(super) fn reserve(&mut self, rows: usize, logit_rows: usize) {
        self.rows.reserve(rows.max(logit_rows));
        self.tiles.reserve(rows);
        self.logits.reserve(logit_rows);
    }

    /// Groups a batch's rows.
    pub(super) fn set(&mut self, batch: &Batch) {
        self.rows.clear();
        self.rows.extend(batch.adapted_rows().map(|(row, adapter)| AdaptedRow { adapter, row, out: row }));
        tile(&mut self.rows, &mut self.tiles);
        self.rows.clear();
        let of_logits = batch.adapted_logit_rows();
        self.rows.extend(of_logits.map(|(out, row, adapter)| AdaptedRow { adapter, row, out }));
        tile(&mut self.rows, &mut self.logits);
    }

    /// Tiles of all rows.
    pub(super) fn get(&self) -> &[Tile] {
        &self.tiles
    }

    /// Tiles of the logit rows.
    pub(super) fn logits(&self) -> &[Tile] {
        &self.logits
    }
}

fn tile(rows: &mut [AdaptedRow], tiles: &mut Vec<Tile>) {
    tiles.clear();
    rows.sort_unstable();
    for of_one in rows.chunk_by(|a, b| a.adapter == b.adapter) {
        for some in of_one.chunks(TILE_ROWS) {
            let (mut rows, mut outs) = ([0; TILE_ROWS], [0; TILE_ROWS]);
            for ((row, out), of) in rows.iter_mut().zip(&mut outs).zip(some) {
                (*row, *out) = (of.row, of.out);
            }
            tiles.push(Tile { adapter: some[0].adapter, rows, outs, count: some.len() });
        }
    }
}
