//! Runs a frame through a tower in pieces of some rows, on devices that can compute attention for some rows only
//! (`attends_in_parts`). Between pieces, the residual rows wait on the host. Short sequences (windows, squares) go
//! through a layer whole, several at a time, if a piece has room. For longer ones, queries, keys and values are
//! computed first, some rows at a time. Then some rows attend, some heads at a time, and go through the rest of the
//! layer, again some rows at a time. Results do not depend on the cuts, bit for bit.

use std::ops::Range;
use std::sync::Arc;

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, Batch, BufferRole, HeadShape, KernelError, Op, QUERIES_PART, RowSource, SequenceSpan,
};

use super::cuts::{PieceBudget, ROWS_UNIT, RowCost, columns_of, groups_of, heads_of, of_matrix, rows_for};
use super::layout::batch_of;
use super::perceiver::{self, Perceiver};
use super::spec::TowerSpec;
use super::tower::Tower;
use super::towers::{MILLION, Piece, Products};
use crate::network::{Attend, Network};
use crate::spec::NormOrder;

/// Maximum rows of a piece, and of a short sequence.
pub(super) const PIECE_ROWS: usize = if cfg!(test) { QUERIES_PART } else { 20 * QUERIES_PART };

/// A piece ends once less than this fraction of it is left.
const REST: f64 = 16.0;

/// Data of a frame that is kept between its pieces.
pub(super) struct Pieces {
    /// Heads that are computed together, and for each such group the queries, keys and values of a sequence.
    group: HeadShape,
    made: Vec<ops::Buffer>,
    turned: Vec<Vec<Op>>, // of each layer: ops that norm and turn queries and keys
    seen: ops::Buffer,    // (rows of a piece, the heads' elements): attention output
    attended: Vec<f32>,   // (rows of a block, all heads' elements)
    sums: Vec<f32>,       // (rows, hidden): residual
    given: Vec<f32>,      // (rows, hidden): output of the last layer's norm, if used
    joined: Vec<f32>,     // (squares, text_hidden): finished rows
    at: At,
    spent: Products, // cost of the last piece
}

/// Position in the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Rows below this are embedded.
    Patches(usize),
    /// Sequences before this row have passed the layer.
    Layer { index: usize, row: usize },
    /// In the sequence that starts at `row`, `made` rows have queries, keys and values.
    Making { index: usize, row: usize, made: usize },
    /// For `groups` groups of heads, the block's rows have their attention output.
    Seeing { block: Block, groups: usize },
    /// `done` of the block's rows have passed the rest of the layer.
    Behind { block: Block, done: usize },
    /// Squares below this are projected to rows, of a DeepStack layer or after the last one.
    Squares { deep: Option<usize>, square: usize },
    /// With a perceiver: patches below this are projected.
    Projected(usize),
    /// With a perceiver: rows below this have keys and values in the layer.
    Perceiving { layer: usize, row: usize },
}

/// Rows `from..to` of the sequence that starts at a row of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    index: usize,
    row: usize,
    from: usize,
    to: usize,
}

/// New position of a frame after a step, unless that was its last, and the cost of the step.
type Advanced = Result<(Option<At>, Products), KernelError>;

/// Whether a tower's frames run in pieces of rows. Towers that make a vector, use tiles, or have other layer
/// structures do not.
pub(super) fn cuts(backend: &AnyBackend, spec: &TowerSpec) -> bool {
    let whole = spec.mosaic.is_some() || spec.pooled.is_some();
    let plain = |layer: &crate::spec::LayerSpec| layer.order == NormOrder::Pre;
    backend.facts().attends_in_parts && !whole && spec.layers.layers.iter().all(plain)
}

/// Bytes that are kept between pieces of frames of `rows` rows.
pub(super) fn kept_bytes(backend: &AnyBackend, spec: &TowerSpec, rows: usize) -> usize {
    let (all, piece) = (heads_of(spec), rows.min(PIECE_ROWS));
    let (group, groups) = groups_of(all);
    let host = (rows * 2 * spec.layers.hidden + piece * all.q_width()) * size_of::<f32>();
    let buffer = |rows, cols| backend.buffer_bytes(BufferRole::Operand, rows, cols);
    host + groups * buffer(rows, group.qkv_width()) + buffer(piece, group.q_width())
}

/// Batch over some rows of another batch: over its sequences `spans`, or over a part of one sequence.
fn part_of(batch: &Batch, rows: Range<usize>, spans: Option<Range<usize>>) -> Batch {
    let one =
        SequenceSpan { row_first: 0, rows: rows.len() as u32, context: rows.len() as u32, table_first: 0 };
    let moved = |span: &SequenceSpan| SequenceSpan { row_first: span.row_first - rows.start as u32, ..*span };
    Batch {
        sequences: spans.map_or(vec![one], |spans| batch.sequences[spans].iter().map(moved).collect()),
        sources: vec![RowSource::Embedding; rows.len()],
        positions: batch.positions[rows.clone()].to_vec(),
        axes: batch.axes.get(rows).map(<[_]>::to_vec).unwrap_or_default(),
        ..Batch::default()
    }
}

fn rows_of(span: &SequenceSpan) -> Range<usize> {
    span.row_first as usize..(span.row_first + span.rows) as usize
}

impl Block {
    fn rows(self) -> usize {
        self.to - self.from
    }

    /// Its rows, as indices in the layer.
    fn all(self) -> Range<usize> {
        self.row + self.from..self.row + self.to
    }
}

impl At {
    /// Current layer; 0 outside of layers.
    fn layer(self) -> usize {
        match self {
            At::Layer { index, .. } | At::Making { index, .. } => index,
            At::Seeing { block, .. } | At::Behind { block, .. } => block.index,
            At::Patches(_) | At::Squares { .. } | At::Projected(_) | At::Perceiving { .. } => 0,
        }
    }
}

impl Pieces {
    /// Creates the buffers for frames of `rows` rows.
    ///
    /// # Errors
    /// The backend's, if it cannot give the memory.
    pub(super) fn new(
        backend: &AnyBackend,
        network: &Network,
        spec: &TowerSpec,
        rows: usize,
    ) -> Result<Pieces, KernelError> {
        let (group, groups) = groups_of(heads_of(spec));
        let buffer = |rows, cols| backend.buffer(BufferRole::Operand, rows, cols);
        Ok(Pieces {
            group,
            made: (0..groups).map(|_| buffer(rows, group.qkv_width())).collect::<Result<_, _>>()?,
            turned: (0..network.layers.len()).map(|index| network.attention(index).turned()).collect(),
            seen: buffer(rows.min(PIECE_ROWS), group.q_width())?,
            attended: Vec::new(),
            sums: Vec::new(),
            given: Vec::new(),
            joined: Vec::new(),
            at: At::Patches(0),
            spent: Products::default(),
        })
    }

    /// Cost of the last piece.
    pub(super) fn spent(&self) -> Products {
        self.spent
    }

    /// Starts a frame.
    pub(super) fn begin(&mut self) {
        self.at = At::Patches(0);
        (self.sums, self.given, self.joined) = (Vec::new(), Vec::new(), Vec::new());
    }
}

impl Tower {
    fn pieces(&mut self) -> &mut Pieces {
        self.pieces.as_mut().expect("a tower that was made for pieces has what is kept between them")
    }

    /// Computes a piece. Returns the frame's rows at its end.
    pub(super) fn advance_pieces(&mut self, piece: Piece) -> Result<Option<Vec<f32>>, KernelError> {
        let began = self.pieces().at.layer();
        let (most, attention) = match piece {
            Piece::Layers(_) => (f64::INFINITY, 1.0),
            Piece::Products { millions, attention } => (millions, attention),
        };
        self.pieces().spent = Products::default();
        loop {
            let (at, spent) = (self.pieces().at, self.pieces().spent.weighed(attention));
            // Stop as close to the budget as possible; small remainders are not worth another step.
            if spent > 0.0 && spent + (self.least(at, attention) / 2.0).max(most / REST) > most {
                return Ok(None);
            }
            let left = PieceBudget { millions: most - spent, attention };
            let (next, cost) = match at {
                At::Patches(row) => self.embed_piece(row, left)?,
                At::Layer { index, row } => self.layer_piece(index, row, left)?,
                At::Making { index, row, made } => self.making_piece(index, row, made, left)?,
                At::Seeing { block, groups } => self.seeing_piece(block, groups, left)?,
                At::Behind { block, done } => self.behind_piece(block, done, left)?,
                At::Squares { deep, square } => self.squares_piece(deep, square, left)?,
                At::Projected(patch) => self.project_piece(patch, left)?,
                At::Perceiving { layer, row } => self.perceive_piece(layer, row, left)?,
            };
            self.pieces().spent += cost;
            let Some(next) = next else {
                let joined = std::mem::take(&mut self.pieces().joined);
                self.pieces().begin();
                self.way.pixels = Arc::default();
                return Ok(Some(match &mut self.perceiver {
                    Some(perceiver) => perceiver.take(),
                    None => self.rows(joined),
                }));
            };
            self.pieces().at = next;
            if let (Piece::Layers(layers), At::Layer { index, row: 0 }) = (piece, next)
                && index - began >= layers
            {
                return Ok(None);
            }
        }
    }

    /// Millions of products of the smallest possible next step.
    fn least(&self, at: At, attention: f64) -> f64 {
        let rows = |cost: f64, rows: usize| cost * rows.min(ROWS_UNIT) as f64;
        match at {
            At::Patches(row) => rows(self.patch_cost(), self.way.all.rows() - row),
            At::Layer { index, row } | At::Making { index, row, .. } => {
                let span = self.sequence(index, row).1;
                rows(RowCost::new(&self.spec, index, span.len()).before, span.len())
            }
            At::Seeing { block, groups } => {
                let span = self.sequence(block.index, block.row).1;
                let rows = match groups {
                    0 => QUERIES_PART.min(span.len() - block.from),
                    _ => block.rows(),
                };
                let cost = RowCost::new(&self.spec, block.index, span.len()).attention * attention;
                cost * rows as f64 / groups_of(heads_of(&self.spec)).1 as f64
            }
            At::Behind { block, done } => {
                let span = self.sequence(block.index, block.row).1;
                rows(RowCost::new(&self.spec, block.index, span.len()).behind, block.rows() - done)
            }
            At::Squares { .. } => self.square_cost(),
            At::Projected(_) => rows(self.perceiver().project_cost(), ROWS_UNIT),
            At::Perceiving { row, .. } if row < self.perceiver().seen_rows() => {
                rows(self.perceiver().row_cost(), ROWS_UNIT)
            }
            At::Perceiving { .. } => self.perceiver().see_cost().weighed(attention),
        }
    }

    fn perceiver(&self) -> &Perceiver {
        self.perceiver.as_ref().expect("a frame is only there where a tower has one")
    }

    /// Batch of a layer's rows.
    fn batch_of_layer(&self, index: usize) -> &Batch {
        let sees_window = self.spec.windows.as_ref().is_some_and(|windows| !windows.whole.contains(&index));
        if sees_window { &self.way.windowed } else { &self.way.all }
    }

    /// Sequence of a layer that contains a row: its index and its rows.
    fn sequence(&self, index: usize, row: usize) -> (usize, Range<usize>) {
        let sequences = &self.batch_of_layer(index).sequences;
        let place = sequences.partition_point(|span| span.row_first as usize <= row) - 1;
        (place, rows_of(&sequences[place]))
    }

    /// Millions of products to embed a patch.
    fn patch_cost(&self) -> f64 {
        (self.spec.patch_width() * self.spec.layers.hidden) as f64 / MILLION
    }

    /// Millions of products to project a square.
    fn square_cost(&self) -> f64 {
        let (reads, inner, text) = (self.spec.square_width(), self.spec.reads.inner, self.spec.text_hidden);
        let products = match inner {
            0 => reads * text,
            inner => (reads + text) * inner,
        };
        products as f64 / MILLION
    }

    /// Embeds some patches for the first layer.
    fn embed_piece(&mut self, row: usize, left: PieceBudget) -> Advanced {
        let hidden = self.spec.layers.hidden;
        let all = self.way.all.rows();
        let cost = self.patch_cost();
        let rows = row..all.min(row + rows_for(left.millions, cost, ROWS_UNIT));
        let batch = part_of(&self.way.all, rows.clone(), None);
        let patches = self.way.layout.patches_of(&self.spec, &self.scale, &self.way.pixels, rows.clone());
        self.backend.begin(&batch)?;
        let written = self.embed_patches(rows.clone(), &patches);
        let Tower { backend, network, pieces, .. } = self;
        let pieces = pieces.as_mut().expect("its caller was made for pieces");
        pieces.sums.resize(all * hidden, 0.0);
        network.embed(backend, rows.len());
        backend.end().and(written)?;
        let here = rows.start * hidden..rows.end * hidden;
        backend.read_rows(network.residual(), 0, &mut pieces.sums[here])?;
        let spent = of_matrix(cost * rows.len() as f64);
        if rows.end < all {
            return Ok((Some(At::Patches(rows.end)), spent));
        }
        if self.spec.reads.normed {
            pieces.given = vec![0.0; all * hidden];
        }
        Ok((Some(At::Layer { index: 0, row: 0 }), spent))
    }

    /// Runs some whole sequences through a layer, or starts on one that is too long.
    fn layer_piece(&mut self, index: usize, row: usize, left: PieceBudget) -> Advanced {
        let (place, span) = self.sequence(index, row);
        let cost = RowCost::new(&self.spec, index, span.len());
        let each = cost.all(left.attention);
        let is_short = span.len() <= PIECE_ROWS;
        if !is_short || span.len() > ROWS_UNIT && each * span.len() as f64 > left.millions {
            return Ok((Some(At::Making { index, row, made: 0 }), Products::default()));
        }
        let batch = self.batch_of_layer(index);
        let wanted = row + rows_for(left.millions, each, ROWS_UNIT);
        let more = batch.sequences[place + 1..].partition_point(|span| rows_of(span).end <= wanted);
        let spans = place..place + 1 + more;
        let rows = row..rows_of(&batch.sequences[spans.end - 1]).end;
        let part = part_of(batch, rows.clone(), Some(spans));
        let here = self.numbers_of(&rows);
        let Tower { backend, network, pieces, attention, .. } = self;
        let pieces = pieces.as_mut().expect("its caller was made for pieces");
        backend.begin(&part)?;
        let written = backend.write_rows(network.residual(), 0, &pieces.sums[here]);
        network.norm_before(backend, index);
        network.run_layer(backend, index, &attention[index]);
        backend.end().and(written)?;
        self.keep_sums(index, rows.clone())?;
        let spent = Products {
            matrix: (cost.before + cost.behind) * rows.len() as f64,
            attention: cost.attention * rows.len() as f64,
        };
        Ok((Some(self.behind_sequence(index, rows.end)), spent))
    }

    /// Queries, keys and values of some rows of a sequence.
    fn making_piece(&mut self, index: usize, row: usize, made: usize, left: PieceBudget) -> Advanced {
        let span = self.sequence(index, row).1;
        let cost = RowCost::new(&self.spec, index, span.len()).before;
        let rows = made..span.len().min(made + rows_for(left.millions, cost, ROWS_UNIT));
        let all = span.start + rows.start..span.start + rows.end;
        let part = part_of(self.batch_of_layer(index), all.clone(), None);
        let here = self.numbers_of(&all);
        let shape = heads_of(&self.spec);
        let Tower { backend, network, pieces, .. } = self;
        let pieces = pieces.as_mut().expect("its caller was made for pieces");
        backend.begin(&part)?;
        let mut written = backend.write_rows(network.residual(), 0, &pieces.sums[here]);
        network.norm_before(backend, index);
        let mut numbers = vec![0.0; rows.len() * shape.qkv_width()];
        network.run_rows(backend, index);
        backend.run_all(&pieces.turned[index]);
        let read = backend.read_rows(network.own_rows(index), 0, &mut numbers);
        let mut own = Vec::with_capacity(rows.len() * pieces.group.qkv_width());
        for (group, kept) in pieces.made.iter_mut().enumerate() {
            let columns = columns_of(shape, pieces.group, group);
            own.clear();
            for row in numbers.chunks_exact(shape.qkv_width()) {
                columns.iter().for_each(|part| own.extend_from_slice(&row[part.clone()]));
            }
            written = written.and(backend.write_rows(kept, rows.start, &own));
        }
        backend.end().and(written).and(read)?;
        let next = match rows.end < span.len() {
            true => At::Making { index, row, made: rows.end },
            false => At::Seeing { block: Block { index, row, from: 0, to: 0 }, groups: 0 },
        };
        Ok((Some(next), of_matrix(cost * rows.len() as f64)))
    }

    /// Attention of some heads for a block's rows. The first call sizes the block by the budget.
    fn seeing_piece(&mut self, mut block: Block, groups: usize, left: PieceBudget) -> Advanced {
        let span = self.sequence(block.index, block.row).1;
        let cost = RowCost::new(&self.spec, block.index, span.len()).attention;
        if groups == 0 {
            let rows = rows_for(left.millions, cost * left.attention, QUERIES_PART);
            block.to = span.len().min(block.from + rows);
        }
        let shape = heads_of(&self.spec);
        let scale = self.spec.layers.layers[block.index].attention.scale;
        let part = part_of(self.batch_of_layer(block.index), block.all(), None);
        let Tower { backend, pieces, .. } = self;
        let Pieces { group, made, seen, attended, .. } =
            pieces.as_mut().expect("its caller was made for pieces");
        let each = cost * block.rows() as f64 / made.len() as f64;
        let wanted = (left.millions / (each * left.attention).max(f64::MIN_POSITIVE)).round() as usize;
        let now = groups..made.len().min(groups.saturating_add(wanted.max(1)));
        let (width, own) = (shape.q_width(), group.q_width());
        attended.resize(block.rows() * width, 0.0);
        let mut numbers = vec![0.0; block.rows() * own];
        let mut read = Ok(());
        backend.begin(&part)?;
        for (group_at, kept) in made.iter().enumerate().take(now.end).skip(now.start) {
            let queries = block.from..block.to;
            let attend = Attend { qkv: kept.id(), heads: *group, scale, out: seen.id() };
            backend.run(&attend.part(0..span.len(), queries));
            read = read.and(backend.read_rows(seen.id(), 0, &mut numbers));
            for (row, from) in attended.chunks_exact_mut(width).zip(numbers.chunks_exact(own)) {
                row[group_at * own..][..own].copy_from_slice(from);
            }
        }
        backend.end().and(read)?;
        let spent = Products { matrix: 0.0, attention: each * now.len() as f64 };
        let next = match now.end < made.len() {
            true => At::Seeing { block, groups: now.end },
            false => At::Behind { block, done: 0 },
        };
        Ok((Some(next), spent))
    }

    /// Runs some rows of a block from their attention output to the layer's end.
    fn behind_piece(&mut self, block: Block, done: usize, left: PieceBudget) -> Advanced {
        let span = self.sequence(block.index, block.row).1;
        let cost = RowCost::new(&self.spec, block.index, span.len()).behind;
        let rows = done..block.rows().min(done + rows_for(left.millions, cost, ROWS_UNIT));
        let first = block.all().start;
        let all = first + rows.start..first + rows.end;
        let part = part_of(self.batch_of_layer(block.index), all.clone(), None);
        let (here, width) = (self.numbers_of(&all), heads_of(&self.spec).q_width());
        let Tower { backend, network, pieces, .. } = self;
        let pieces = pieces.as_mut().expect("its caller was made for pieces");
        backend.begin(&part)?;
        let mut written = backend.write_rows(network.residual(), 0, &pieces.sums[here]);
        let seen = &pieces.attended[rows.start * width..rows.end * width];
        written = written.and(backend.write_rows(network.attended_rows(block.index), 0, seen));
        network.run_behind(backend, block.index);
        backend.end().and(written)?;
        self.keep_sums(block.index, all)?;
        let next = if rows.end < block.rows() {
            At::Behind { block, done: rows.end }
        } else if block.to < span.len() {
            At::Seeing { block: Block { from: block.to, ..block }, groups: 0 }
        } else {
            self.behind_sequence(block.index, span.end)
        };
        Ok((Some(next), of_matrix(cost * rows.len() as f64)))
    }

    /// Range of some rows' elements.
    fn numbers_of(&self, rows: &Range<usize>) -> Range<usize> {
        let hidden = self.spec.layers.hidden;
        rows.start * hidden..rows.end * hidden
    }

    /// Reads back some rows' residual after a layer and, after the last layer, its normalised output.
    fn keep_sums(&mut self, index: usize, rows: Range<usize>) -> Result<(), KernelError> {
        let here = self.numbers_of(&rows);
        let Tower { backend, network, pieces, .. } = self;
        let pieces = pieces.as_mut().expect("its caller was made for pieces");
        backend.read_rows(network.residual(), 0, &mut pieces.sums[here.clone()])?;
        if index + 1 == network.layers.len() && !pieces.given.is_empty() {
            backend.read_rows(network.hidden(), 0, &mut pieces.given[here])?;
        }
        Ok(())
    }

    /// Next position after a sequence of a layer that ends at `row`.
    fn behind_sequence(&self, index: usize, row: usize) -> At {
        if row < self.way.all.rows() {
            return At::Layer { index, row };
        }
        let deep = self.spec.deep.iter().position(|&layer| layer == index);
        match deep.is_some() || index + 1 == self.network.layers.len() {
            true if self.perceiver.is_some() => At::Projected(0),
            true => At::Squares { deep, square: 0 },
            false => At::Layer { index: index + 1, row: 0 },
        }
    }

    /// Projects some squares of patches to rows of the text model; `None` as the next position at the end.
    fn squares_piece(&mut self, deep: Option<usize>, square: usize, left: PieceBudget) -> Advanced {
        let (hidden, of_square) = (self.spec.layers.hidden, self.spec.square_patches());
        let (cost, all) = (self.square_cost(), self.way.layout.squares.len());
        let most = (PIECE_ROWS / of_square).max(1);
        let wanted = (left.millions / cost.max(f64::MIN_POSITIVE)).round() as usize;
        let squares = square..all.min(square + wanted.clamp(1, most));
        let normed = deep.is_none() && self.spec.reads.normed;
        let pieces = self.pieces.as_ref().expect("its caller was made for pieces");
        let numbers = if normed { &pieces.given } else { &pieces.sums };
        let rows = self.way.layout.rows_of(&self.spec, squares.start * of_square..squares.end * of_square);
        let patches = rows.flat_map(|row| &numbers[row * hidden..][..hidden]).copied().collect();
        let rows = self.join_patches(deep, patches, &batch_of(&[squares.len()]))?;
        self.pieces().joined.extend(rows);
        let spent = of_matrix(cost * squares.len() as f64);
        if squares.end < all {
            return Ok((Some(At::Squares { deep, square: squares.end }), spent));
        }
        let Some(index) = deep.map(|deep| self.spec.deep[deep]) else { return Ok((None, spent)) };
        let rows = std::mem::take(&mut self.pieces().joined);
        self.way.between.push(rows);
        // After the last layer its own rows are made too.
        let next = match index + 1 < self.network.layers.len() {
            true => At::Layer { index: index + 1, row: 0 },
            false => At::Squares { deep: None, square: 0 },
        };
        Ok((Some(next), spent))
    }

    /// Projects some patches for the perceiver.
    fn project_piece(&mut self, patch: usize, left: PieceBudget) -> Advanced {
        let (hidden, all) = (self.spec.layers.hidden, self.way.all.rows());
        let Tower { backend, perceiver, pieces, .. } = self;
        let (Some(perceiver), Some(pieces)) = (perceiver, pieces) else {
            unreachable!("a frame is only there where a tower has both")
        };
        let cost = perceiver.project_cost();
        let some = rows_for(left.millions, cost, ROWS_UNIT).min(perceiver::ROWS_AT_ONCE);
        let patches = patch..all.min(patch + some);
        perceiver.project(backend, &pieces.given[patches.start * hidden..patches.end * hidden])?;
        let next = match patches.end < all {
            true => At::Projected(patches.end),
            false => At::Perceiving { layer: 0, row: 0 },
        };
        Ok((Some(next), of_matrix(cost * patches.len() as f64)))
    }

    /// Computes some rows in a layer of the perceiver, and once all are there its latents.
    fn perceive_piece(&mut self, layer: usize, row: usize, left: PieceBudget) -> Advanced {
        let Tower { backend, perceiver, .. } = self;
        let perceiver = perceiver.as_mut().expect("a frame is only there where a tower has one");
        let (cost, all) = (perceiver.row_cost(), perceiver.seen_rows());
        if row < all {
            let some = rows_for(left.millions, cost, ROWS_UNIT).min(perceiver::ROWS_AT_ONCE);
            let rows = row..all.min(row + some);
            perceiver.make_rows(backend, layer, rows.clone())?;
            return Ok((Some(At::Perceiving { layer, row: rows.end }), of_matrix(cost * rows.len() as f64)));
        }
        let spent = perceiver.see_cost();
        perceiver.see(backend, layer)?;
        let next = (layer + 1 < perceiver.depth()).then_some(At::Perceiving { layer: layer + 1, row: 0 });
        Ok((next, spent))
    }
}
