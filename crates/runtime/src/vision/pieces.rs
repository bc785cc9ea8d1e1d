//! A frame's way through a tower in pieces of some rows, on devices whose attention may be cut: what rows add up to waits on the host
//! between them. Sequences that are short (windows, squares) go through a layer as they are, some at a time; of a long one queries, keys and
//! values are made first, for some rows after the other, and then the rest of the layer. No row's bits depend on where the cuts are.

use std::ops::Range;

use hanzo_engine_kernels::{
    Batch, BufferRole, EncoderOps, KernelError, PositionBias, QUERIES_PART, RowOp, RowSource,
    SelfAttentionParams, SequenceSpan,
};

use super::layout::batch_of;
use super::spec::TowerSpec;
use super::tower::{Piece, Tower};
use crate::encoder::turn;
use crate::network::{Attention, Share};
use crate::spec::{MlpSpec, NormOrder};

/// Rows of a piece at most, and of a sequence that is none.
pub(super) const PIECE_ROWS: usize = if cfg!(test) { QUERIES_PART } else { 20 * QUERIES_PART };
/// A product in attention takes about as long as so many of a matrix.
const ATTENTION_COST: usize = 2;
/// Products in which a piece's size is told.
const MILLION: f64 = 1e6;

/// What of all of a frame is kept between its pieces.
pub(super) struct Pieces<B: EncoderOps> {
    qkv: Option<B::Buffer>, // (rows, qkv width): of a layer's sequences that are long, where there may be such
    patches: Vec<f32>,      // (rows, patch_width), until they are embedded; then what squares are made of
    learned: bool,          // before patches are embedded, sums hold what is learned of where they stand
    sums: Vec<f32>,         // (rows, hidden): what layers add to
    given: Vec<f32>,        // (rows, hidden): what the last layer gives, where that is normed
    joined: Vec<f32>,       // (squares, text_hidden): those that are made
    at: At,
    spent: f64, // millions of products of the last piece
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Rows up to this are embedded.
    Patches(usize),
    /// Rows up to this are through the layer, or so far as `share` says.
    Layer { index: usize, share: Share, row: usize },
    /// Squares up to this are made rows, of what stands behind a layer between or behind the last.
    Squares { deep: Option<usize>, square: usize },
}

/// Whether a tower's frames go in pieces: what reads all of a frame at once behind the layers, or joins layers in its own way, does not.
pub(super) fn cuts<B: EncoderOps>(backend: &B, spec: &TowerSpec) -> bool {
    let whole = spec.mosaic.is_some() || spec.perceiver.is_some() || spec.pooled.is_some();
    let plain = |layer: &crate::spec::LayerSpec| layer.order == NormOrder::Pre;
    backend.attends_in_parts() && !whole && spec.layers.layers.iter().all(plain)
}

/// Columns of queries, keys and values, where sequences may be long.
fn kept_width(spec: &TowerSpec, rows: usize) -> Option<usize> {
    let shape = spec.layers.layers[0].attention.projection.head_shape();
    (rows > PIECE_ROWS).then(|| shape.qkv_width())
}

/// Bytes that are kept between pieces of frames of so many rows.
pub(super) fn kept_bytes<B: EncoderOps>(backend: &B, spec: &TowerSpec, rows: usize) -> usize {
    let host = rows * (2 * spec.layers.hidden + spec.patch_width()) * size_of::<f32>();
    host + kept_width(spec, rows).map_or(0, |width| backend.buffer_bytes(BufferRole::Operand, rows, width))
}

/// Products that a row of a layer takes, in millions: up to queries, keys and values, and behind those.
fn row_cost(spec: &TowerSpec, index: usize, keys: usize) -> [f64; 2] {
    let layer = &spec.layers.layers[index];
    let (hidden, shape) = (spec.layers.hidden, layer.attention.projection.head_shape());
    let mlp = match &layer.mlp {
        MlpSpec::Dense(dense) => dense.ffn * hidden * (2 + usize::from(dense.gated)),
        _ => 0,
    };
    let attention = 2 * keys * shape.q_width() * ATTENTION_COST;
    let before = hidden * shape.qkv_width();
    [before, attention + shape.q_width() * hidden + mlp].map(|products| products as f64 / MILLION)
}

/// Rows that so many millions of products are enough for, where one takes `cost`.
fn rows_for(left: f64, cost: f64) -> usize {
    let rows = (left / cost.max(f64::MIN_POSITIVE)) as usize;
    (rows / QUERIES_PART * QUERIES_PART).clamp(QUERIES_PART, PIECE_ROWS)
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

fn params<'a, B: EncoderOps>(attention: &Attention<'_, B>) -> SelfAttentionParams<'a, B::Vector> {
    SelfAttentionParams {
        heads: attention.shape,
        scale: attention.spec.scale,
        reach: None,
        padding: 0,
        bias: PositionBias::None,
    }
}

impl<B: EncoderOps> Pieces<B> {
    /// For frames of so many rows.
    ///
    /// # Errors
    /// The backend's, where it cannot give the memory.
    pub(super) fn new(backend: &B, spec: &TowerSpec, rows: usize) -> Result<Pieces<B>, KernelError> {
        let qkv = kept_width(spec, rows).map(|width| backend.buffer(BufferRole::Operand, rows, width));
        Ok(Pieces {
            qkv: qkv.transpose()?,
            patches: Vec::new(),
            learned: false,
            sums: Vec::new(),
            given: Vec::new(),
            joined: Vec::new(),
            at: At::Patches(0),
            spent: 0.0,
        })
    }

    /// Millions of products that the last piece took.
    pub(super) fn spent(&self) -> usize {
        self.spent as usize
    }

    /// Begins with a frame's patches, and what is learned of where they stand, or nothing.
    pub(super) fn begin(&mut self, patches: Vec<f32>, learned: Option<Vec<f32>>) {
        self.learned = learned.is_some();
        (self.patches, self.sums, self.at) = (patches, learned.unwrap_or_default(), At::Patches(0));
        (self.given, self.joined) = (Vec::new(), Vec::new());
    }
}

impl<B: EncoderOps> Tower<B> {
    fn pieces(&mut self) -> &mut Pieces<B> {
        self.pieces.as_mut().expect("a tower that was made for pieces has what is kept between them")
    }

    /// Goes further, and gives the frame's rows where that was its end.
    pub(super) fn advance_pieces(&mut self, piece: Piece) -> Result<Option<Vec<f32>>, KernelError> {
        let layer_of = |at: At| match at {
            At::Layer { index, .. } => index,
            At::Patches(_) | At::Squares { .. } => 0,
        };
        let began = layer_of(self.pieces().at);
        let most = match piece {
            Piece::Layers(_) => f64::INFINITY,
            Piece::Products(millions) => millions as f64,
        };
        self.pieces().spent = 0.0;
        loop {
            let left = most - self.pieces().spent;
            let (at, cost) = match self.pieces().at {
                At::Patches(row) => self.embed_piece(row, left)?,
                At::Layer { index, share, row } => self.layer_piece(index, share, row, left)?,
                At::Squares { deep, square } => self.squares_piece(deep, square, left)?,
            };
            self.pieces().spent += cost;
            let Some(at) = at else {
                let joined = std::mem::take(&mut self.pieces().joined);
                self.pieces().begin(Vec::new(), None);
                return Ok(Some(self.rows(joined)));
            };
            self.pieces().at = at;
            let enough = match (piece, at) {
                (Piece::Products(_), _) => self.pieces().spent >= most,
                (Piece::Layers(most), At::Layer { index, share: Share::All, row: 0 }) => {
                    index - began >= most
                }
                _ => false,
            };
            if enough {
                return Ok(None);
            }
        }
    }

    /// Some rows of patches, as the first layer reads them.
    fn embed_piece(&mut self, row: usize, left: f64) -> Result<(Option<At>, f64), KernelError> {
        let (hidden, width) = (self.spec.layers.hidden, self.spec.patch_width());
        let all = self.way.all.rows();
        let cost = (width * hidden) as f64 / MILLION;
        let rows = row..all.min(row + rows_for(left, cost));
        let batch = part_of(&self.way.all, rows.clone(), None);
        let Tower { backend, network, pieces, buffers, patch, patch_bias, .. } = self;
        let pieces = pieces.as_mut().expect("its caller was made for pieces");
        pieces.sums.resize(all * hidden, 0.0);
        backend.begin(&batch)?;
        let here = rows.start * hidden..rows.end * hidden;
        let mut written =
            backend.write_rows(&mut buffers.pixels, 0, &pieces.patches[rows.start * width..rows.end * width]);
        if pieces.learned {
            let (out, branch) = network.residual_and_branch();
            backend.matmul(patch, patch_bias.as_ref(), &buffers.pixels, branch);
            written = written.and(backend.write_rows(out, 0, &pieces.sums[here.clone()]));
            backend.row_op(&RowOp::Add { x: branch, first: 0, factor: 1.0 }, out);
        } else {
            backend.matmul(patch, patch_bias.as_ref(), &buffers.pixels, network.residual());
        }
        network.embed(backend, rows.len());
        backend.end().and(written)?;
        backend.read_rows(network.residual(), 0, &mut pieces.sums[here])?;
        let spent = cost * rows.len() as f64;
        if rows.end < all {
            return Ok((Some(At::Patches(rows.end)), spent));
        }
        pieces.patches = Vec::new();
        if self.spec.reads.normed {
            pieces.given = vec![0.0; all * hidden];
        }
        Ok((Some(At::Layer { index: 0, share: Share::All, row: 0 }), spent))
    }

    /// Some rows of a layer: sequences, or what of a layer with long ones can be computed apart.
    fn layer_piece(
        &mut self,
        index: usize,
        share: Share,
        row: usize,
        left: f64,
    ) -> Result<(Option<At>, f64), KernelError> {
        let sees_window = self.spec.windows.as_ref().is_some_and(|windows| !windows.whole.contains(&index));
        let batch = if sees_window { &self.way.windowed } else { &self.way.all };
        let longest = batch.sequences.iter().map(|span| span.rows as usize).max().unwrap_or(0);
        let share = if share == Share::All && longest > PIECE_ROWS { Share::UpToRows } else { share };
        let place = batch.sequences.partition_point(|span| span.row_first as usize <= row) - 1;
        let span = rows_of(&batch.sequences[place]);
        let [before, behind] = row_cost(&self.spec, index, span.len());
        let (all, hidden) = (batch.rows(), self.spec.layers.hidden);
        let (rows, cost, part) = match share {
            Share::All => {
                let cost = before + behind;
                let wanted = row + rows_for(left, cost);
                let more = batch.sequences[place + 1..].partition_point(|span| rows_of(span).end <= wanted);
                let spans = place..place + 1 + more;
                let rows = row..rows_of(&batch.sequences[spans.end - 1]).end;
                (rows.clone(), cost, part_of(batch, rows, Some(spans)))
            }
            Share::UpToRows => {
                let rows = row..all.min(row + rows_for(left, before));
                (rows.clone(), before, part_of(batch, rows, None))
            }
            Share::BehindRows => {
                let rows = row..span.end.min(row + rows_for(left, behind));
                (rows.clone(), behind, part_of(batch, rows, None))
            }
        };
        let here = rows.start * hidden..rows.end * hidden;
        let Tower { backend, network, pieces, .. } = self;
        let Pieces { qkv: kept, sums, given, .. } = pieces.as_mut().expect("its caller was made for pieces");
        backend.begin(&part)?;
        let written = backend.write_rows(network.residual(), 0, &sums[here.clone()]);
        if share != Share::BehindRows {
            network.norm_before(backend, index);
        }
        let mut made = Vec::new();
        let mut read = Ok(());
        network.share_of_layer(backend, (index, share), |backend, attention, own, attended| match share {
            Share::All => {
                turn(backend, attention, own.own);
                backend.self_attention(own.own, &params(attention), attended);
            }
            Share::UpToRows => {
                turn(backend, attention, own.own);
                made.resize(rows.len() * attention.shape.qkv_width(), 0.0);
                read = backend.read_rows(own.own, 0, &mut made);
            }
            Share::BehindRows => {
                let queries = rows.start - span.start..rows.end - span.start;
                let kept = kept.as_ref().expect("long sequences have room for what their rows see");
                backend.attend_part(kept, (span.clone(), queries), &params(attention), attended);
            }
        });
        if let (Share::UpToRows, Some(kept)) = (share, kept) {
            read = read.and(backend.write_rows(kept, rows.start, &made));
        }
        backend.end().and(written).and(read)?;
        let spent = cost * rows.len() as f64;
        if share != Share::UpToRows {
            backend.read_rows(network.residual(), 0, &mut sums[here.clone()])?;
            if index + 1 == network.layers.len() && !given.is_empty() {
                backend.read_rows(network.hidden(), 0, &mut given[here])?;
            }
        }
        let at = match share {
            _ if rows.end < all => At::Layer { index, share, row: rows.end },
            Share::UpToRows => At::Layer { index, share: Share::BehindRows, row: 0 },
            _ => self.behind_layer(index),
        };
        Ok((Some(at), spent))
    }

    /// Where a frame goes from a layer that it is through.
    fn behind_layer(&mut self, index: usize) -> At {
        let deep = self.spec.deep.iter().position(|&layer| layer == index);
        let last = index + 1 == self.network.layers.len();
        if deep.is_none() && !last {
            return At::Layer { index: index + 1, share: Share::All, row: 0 };
        }
        let pieces = self.pieces.as_mut().expect("its caller was made for pieces");
        let behind = match deep {
            None if self.spec.reads.normed => std::mem::take(&mut pieces.given),
            _ => pieces.sums.clone(),
        };
        pieces.patches = self.way.layout.of_patches(&self.spec, behind);
        At::Squares { deep, square: 0 }
    }

    /// Some squares of patches, as rows of the text model; none where they were the last.
    fn squares_piece(
        &mut self,
        deep: Option<usize>,
        square: usize,
        left: f64,
    ) -> Result<(Option<At>, f64), KernelError> {
        let (hidden, of_square) = (self.spec.layers.hidden, self.spec.square_patches());
        let (reads, inner, text) = (self.spec.square_width(), self.spec.reads.inner, self.spec.text_hidden);
        let products = match inner {
            0 => reads * text,
            inner => (reads + text) * inner,
        };
        let (cost, all) = (products as f64 / MILLION, self.way.layout.squares.len());
        let most = (PIECE_ROWS / of_square).max(1);
        let squares =
            square..all.min(square + ((left / cost.max(f64::MIN_POSITIVE)) as usize).clamp(1, most));
        let numbers = squares.start * of_square * hidden..squares.end * of_square * hidden;
        let patches = self.pieces().patches[numbers].to_vec();
        let rows = self.join_patches(deep, patches, &batch_of(&[squares.len()]))?;
        self.pieces().joined.extend(rows);
        let spent = cost * squares.len() as f64;
        if squares.end < all {
            return Ok((Some(At::Squares { deep, square: squares.end }), spent));
        }
        self.pieces().patches = Vec::new();
        let Some(index) = deep.map(|deep| self.spec.deep[deep]) else { return Ok((None, spent)) };
        let rows = std::mem::take(&mut self.pieces().joined);
        self.way.between.push(rows);
        if index + 1 < self.network.layers.len() {
            return Ok((Some(At::Layer { index: index + 1, share: Share::All, row: 0 }), spent));
        }
        // The last layer's own rows are made besides.
        let given = std::mem::take(&mut self.pieces().given);
        let behind = if self.spec.reads.normed { given } else { self.pieces().sums.clone() };
        self.pieces().patches = self.way.layout.of_patches(&self.spec, behind);
        Ok((Some(At::Squares { deep: None, square: 0 }), spent))
    }
}
