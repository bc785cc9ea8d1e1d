//! A frame's way through a tower in pieces of some rows, on devices whose attention may be cut: what rows add up to waits on the host
//! between them. Sequences that are short (windows, squares) go through a layer as they are, some at a time, where a piece has room for that.
//! Of others queries, keys and values are made first, for some rows after the other; then some rows see them, some heads after the other, and go
//! through the rest of the layer, some at a time again. No row's bits depend on where the cuts are.

use std::ops::Range;
use std::sync::Arc;

use hanzo_engine_kernels::{
    AnyBackend, Backend, Batch, BufferRole, EncoderOps, HeadShape, KernelError, PositionBias, QUERIES_PART,
    RowOp, RowSource, SelfAttentionParams, SequenceSpan, ops,
};

use super::cuts::{Left, ROWS_UNIT, RowCost, columns_of, groups_of, heads_of, of_matrix, rows_for};
use super::layout::batch_of;
use super::perceiver::{self, Perceiver};
use super::spec::TowerSpec;
use super::tower::Tower;
use super::towers::{MILLION, Piece, Products};
use crate::encoder::turn;
use crate::network::{Attention, Share};
use crate::spec::NormOrder;

/// Rows of a piece at most, and of a sequence that is none.
pub(super) const PIECE_ROWS: usize = if cfg!(test) { QUERIES_PART } else { 20 * QUERIES_PART };

/// What is left of a piece and less than such a part of it goes to the next.
const REST: f64 = 16.0;

/// What of all of a frame is kept between its pieces.
pub(super) struct Pieces {
    /// Heads that see together, and what of a sequence they read, (rows, their queries, keys and values) for each such group.
    group: HeadShape,
    made: Vec<ops::Buffer>,
    seen: ops::Buffer,  // (rows of a piece, the heads' elements): what they give
    attended: Vec<f32>, // (rows of a block, all heads' elements)
    sums: Vec<f32>,     // (rows, hidden): what layers add to
    given: Vec<f32>,    // (rows, hidden): what the last layer gives, where that is normed
    joined: Vec<f32>,   // (squares, text_hidden): those that are made
    at: At,
    spent: Products, // of the last piece
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Rows up to this are embedded.
    Patches(usize),
    /// Sequences up to this row are through the layer.
    Layer { index: usize, row: usize },
    /// Of the sequence that begins at that row so many rows have queries, keys and values.
    Making { index: usize, row: usize, made: usize },
    /// Of so many groups of heads a block's rows have what they see.
    Seeing { block: Block, groups: usize },
    /// So many of a block's rows are through what stands behind attention.
    Behind { block: Block, done: usize },
    /// Squares up to this are made rows, of what stands behind a layer between or behind the last.
    Squares { deep: Option<usize>, square: usize },
    /// Or patches up to this are what latents see,
    Projected(usize),
    /// and so many rows in a layer of those.
    Perceiving { layer: usize, row: usize },
}

/// Rows `from..to` of the sequence that begins at a row of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    index: usize,
    row: usize,
    from: usize,
    to: usize,
}

/// Where a frame is after a step, unless that was its last, and what the step took.
type Advanced = Result<(Option<At>, Products), KernelError>;

/// Whether a tower's frames go in pieces: what makes a vector of them, or joins layers in its own way, does not.
pub(super) fn cuts(backend: &AnyBackend, spec: &TowerSpec) -> bool {
    let whole = spec.mosaic.is_some() || spec.pooled.is_some();
    let plain = |layer: &crate::spec::LayerSpec| layer.order == NormOrder::Pre;
    backend.attends_in_parts() && !whole && spec.layers.layers.iter().all(plain)
}

/// Bytes that are kept between pieces of frames of so many rows.
pub(super) fn kept_bytes(backend: &AnyBackend, spec: &TowerSpec, rows: usize) -> usize {
    let (all, piece) = (heads_of(spec), rows.min(PIECE_ROWS));
    let (group, groups) = groups_of(all);
    let host = (rows * 2 * spec.layers.hidden + piece * all.q_width()) * size_of::<f32>();
    let buffer = |rows, cols| backend.buffer_bytes(BufferRole::Operand, rows, cols);
    host + groups * buffer(rows, group.qkv_width()) + buffer(piece, group.q_width())
}

/// A step over some rows of another: over its sequences `spans`, which they are, or over a part of one.
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

fn params<'a, V>(heads: HeadShape, scale: f32) -> SelfAttentionParams<&'a V, &'a [u32]> {
    SelfAttentionParams { heads, scale, reach: None, padding: 0, bias: PositionBias::None }
}

fn params_of<'a>(attention: &Attention<'_>) -> SelfAttentionParams<&'a ops::Vector, &'a [u32]> {
    params(attention.shape, attention.spec.scale)
}

impl Block {
    fn rows(self) -> usize {
        self.to - self.from
    }

    /// Its rows, counted in the layer.
    fn all(self) -> Range<usize> {
        self.row + self.from..self.row + self.to
    }
}

impl At {
    /// The layer it is in; 0 where it is in none.
    fn layer(self) -> usize {
        match self {
            At::Layer { index, .. } | At::Making { index, .. } => index,
            At::Seeing { block, .. } | At::Behind { block, .. } => block.index,
            At::Patches(_) | At::Squares { .. } | At::Projected(_) | At::Perceiving { .. } => 0,
        }
    }
}

impl Pieces {
    /// For frames of so many rows.
    ///
    /// # Errors
    /// The backend's, where it cannot give the memory.
    pub(super) fn new(backend: &AnyBackend, spec: &TowerSpec, rows: usize) -> Result<Pieces, KernelError> {
        let (group, groups) = groups_of(heads_of(spec));
        let buffer = |rows, cols| backend.buffer(BufferRole::Operand, rows, cols);
        Ok(Pieces {
            group,
            made: (0..groups).map(|_| buffer(rows, group.qkv_width())).collect::<Result<_, _>>()?,
            seen: buffer(rows.min(PIECE_ROWS), group.q_width())?,
            attended: Vec::new(),
            sums: Vec::new(),
            given: Vec::new(),
            joined: Vec::new(),
            at: At::Patches(0),
            spent: Products::default(),
        })
    }

    /// What the last piece took.
    pub(super) fn spent(&self) -> Products {
        self.spent
    }

    /// Begins with a frame.
    pub(super) fn begin(&mut self) {
        self.at = At::Patches(0);
        (self.sums, self.given, self.joined) = (Vec::new(), Vec::new(), Vec::new());
    }
}

impl Tower {
    fn pieces(&mut self) -> &mut Pieces {
        self.pieces.as_mut().expect("a tower that was made for pieces has what is kept between them")
    }

    /// Goes further, and gives the frame's rows where that was its end.
    pub(super) fn advance_pieces(&mut self, piece: Piece) -> Result<Option<Vec<f32>>, KernelError> {
        let began = self.pieces().at.layer();
        let (most, attention) = match piece {
            Piece::Layers(_) => (f64::INFINITY, 1.0),
            Piece::Products { millions, attention } => (millions, attention),
        };
        self.pieces().spent = Products::default();
        loop {
            let (at, spent) = (self.pieces().at, self.pieces().spent.weighed(attention));
            // As near to it as can be, and what is hardly worth a step of its own waits.
            if spent > 0.0 && spent + (self.least(at, attention) / 2.0).max(most / REST) > most {
                return Ok(None);
            }
            let left = Left { millions: most - spent, attention };
            let (next, cost) = match at {
                At::Patches(row) => self.embed_piece(row, left)?,
                At::Layer { index, row } => self.layer_piece((index, row), left)?,
                At::Making { index, row, made } => self.making_piece((index, row), made, left)?,
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

    /// Millions of products of the least that can be done next.
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

    /// The sequences that a layer's rows are of.
    fn batch_of_layer(&self, index: usize) -> &Batch {
        let sees_window = self.spec.windows.as_ref().is_some_and(|windows| !windows.whole.contains(&index));
        if sees_window { &self.way.windowed } else { &self.way.all }
    }

    /// The sequence of a layer that a row is of: its number, and its rows.
    fn sequence(&self, index: usize, row: usize) -> (usize, Range<usize>) {
        let sequences = &self.batch_of_layer(index).sequences;
        let place = sequences.partition_point(|span| span.row_first as usize <= row) - 1;
        (place, rows_of(&sequences[place]))
    }

    /// Millions of products that embedding a patch takes.
    fn patch_cost(&self) -> f64 {
        (self.spec.patch_width() * self.spec.layers.hidden) as f64 / MILLION
    }

    /// And making a row of a square.
    fn square_cost(&self) -> f64 {
        let (reads, inner, text) = (self.spec.square_width(), self.spec.reads.inner, self.spec.text_hidden);
        let products = match inner {
            0 => reads * text,
            inner => (reads + text) * inner,
        };
        products as f64 / MILLION
    }

    /// Some rows of patches, as the first layer reads them.
    fn embed_piece(&mut self, row: usize, left: Left) -> Advanced {
        let hidden = self.spec.layers.hidden;
        let all = self.way.all.rows();
        let cost = self.patch_cost();
        let rows = row..all.min(row + rows_for(left.millions, cost, ROWS_UNIT));
        let batch = part_of(&self.way.all, rows.clone(), None);
        let patches = self.way.layout.patches_of(&self.spec, &self.scale, &self.way.pixels, rows.clone());
        let learned = self.learned_of_places(rows.clone());
        let Tower { backend, network, pieces, buffers, patch, patch_bias, .. } = self;
        let pieces = pieces.as_mut().expect("its caller was made for pieces");
        pieces.sums.resize(all * hidden, 0.0);
        backend.begin(&batch)?;
        let mut written = backend.write_rows(&mut buffers.pixels, 0, &patches);
        if let Some(learned) = learned {
            let (out, branch) = network.residual_and_branch();
            backend.matmul(patch, patch_bias.as_ref(), &buffers.pixels, branch);
            written = written.and(backend.write_rows(out, 0, &learned));
            backend.row_op(&RowOp::Add { x: branch, first: 0, factor: 1.0 }, out);
        } else {
            backend.matmul(patch, patch_bias.as_ref(), &buffers.pixels, network.residual());
        }
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

    /// Some sequences of a layer, or the beginning of one that there is no room for.
    fn layer_piece(&mut self, (index, row): (usize, usize), left: Left) -> Advanced {
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
        let Tower { backend, network, pieces, .. } = self;
        let pieces = pieces.as_mut().expect("its caller was made for pieces");
        backend.begin(&part)?;
        let written = backend.write_rows(network.residual(), 0, &pieces.sums[here]);
        network.norm_before(backend, index);
        network.layer(backend, index, |backend, attention, own, attended| {
            turn(backend, attention, own.own);
            backend.self_attention(own.own, &params_of(attention), attended);
        });
        backend.end().and(written)?;
        self.keep_sums(index, rows.clone())?;
        let spent = Products {
            matrix: (cost.before + cost.behind) * rows.len() as f64,
            attention: cost.attention * rows.len() as f64,
        };
        Ok((Some(self.behind_sequence(index, rows.end)), spent))
    }

    /// Queries, keys and values of some rows of a sequence.
    fn making_piece(&mut self, (index, row): (usize, usize), made: usize, left: Left) -> Advanced {
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
        let mut read = Ok(());
        network.share_of_layer(backend, (index, Share::UpToRows), |backend, attention, own, _| {
            turn(backend, attention, own.own);
            read = backend.read_rows(own.own, 0, &mut numbers);
        });
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

    /// What some heads of a block's rows see. Before the first its size is what there is room for.
    fn seeing_piece(&mut self, mut block: Block, groups: usize, left: Left) -> Advanced {
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
            backend.attend_part(kept, (0..span.len(), queries), &params(*group, scale), seen);
            read = read.and(backend.read_rows(seen, 0, &mut numbers));
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

    /// Some rows of a block from what they see to the layer's end.
    fn behind_piece(&mut self, block: Block, done: usize, left: Left) -> Advanced {
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
        let mut given = Ok(());
        network.share_of_layer(backend, (block.index, Share::BehindRows), |backend, _, _, attended| {
            given = backend.write_rows(attended, 0, seen);
        });
        written = written.and(given);
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

    /// Where numbers of some rows stand among those of all.
    fn numbers_of(&self, rows: &Range<usize>) -> Range<usize> {
        let hidden = self.spec.layers.hidden;
        rows.start * hidden..rows.end * hidden
    }

    /// Takes what some rows have added up to with a layer, and behind the last what that gives.
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

    /// Where a frame goes from a sequence of a layer that ends at a row.
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

    /// Some squares of patches, as rows of the text model; none where they were the last.
    fn squares_piece(&mut self, deep: Option<usize>, square: usize, left: Left) -> Advanced {
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
        // Behind the last layer its own rows are made besides.
        let next = match index + 1 < self.network.layers.len() {
            true => At::Layer { index: index + 1, row: 0 },
            false => At::Squares { deep: None, square: 0 },
        };
        Ok((Some(next), spent))
    }

    /// Some patches, as a perceiver sees them.
    fn project_piece(&mut self, patch: usize, left: Left) -> Advanced {
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

    /// Some rows in a layer of latents, and when all are there those.
    fn perceive_piece(&mut self, layer: usize, row: usize, left: Left) -> Advanced {
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
