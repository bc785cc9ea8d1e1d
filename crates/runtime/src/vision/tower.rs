//! Runs one frame through a tower: patches, layers, squares of patches, rows of the text model. The work is cut
//! into pieces so that other sequences' steps run in between.

use std::ops::Range;
use std::sync::Arc;

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, Batch, BufferRole, HeadShape, KernelError, MatrixShape, MatrixSource, Op, RowOp, StepLimits,
};

use super::joiner::{Joiner, JoinerBuffers, JoinerFiles, JoinerWidths};
use super::layout::{Grid, Layout};
use super::mosaic::{Mosaic, MosaicFiles, MosaicWay};
use super::perceiver::{self, Perceiver, PerceiverFiles};
use super::pieces::{self, PIECE_ROWS, Pieces};
use super::pooled::{PooledFiles, PoolingHead};
use super::spec::{COLORS, LearnedPositions, TowerNorm};
use super::towers::{Piece, Products, Towers};
use super::{TowerFiles, TowerSpec};
use crate::error::LoadError;
use crate::limits::{PICTURE_ROWS_BYTES, PICTURE_VECTORS_BYTES};
use crate::media::{LineEnds, MediaSpan};
use crate::network::WeightType;
use crate::network::{self, Loader, Network, ProgramBuilder};
use crate::report::EngineMemory;
use crate::tensor::Tensor;

/// Vision tower: weights on its own backend, and the buffers to run them.
pub struct Tower {
    pub(super) backend: AnyBackend,
    pub(super) network: Network,
    pub(super) spec: TowerSpec,
    pub(super) scale: [[f32; 256]; COLORS],
    patch: ops::Matrix,                      // (hidden, patch_width)
    patch_bias: Option<ops::Vector>,         // (hidden)
    learned: Vec<f32>,                       // (side * side, hidden), or none
    given_norm: Vec<f32>,                    // (hidden), or none
    line_end: Vec<f32>,                      // (text_hidden), or none
    pub(super) joiner: Option<Joiner>,       // projector from squares to rows
    pub(super) perceiver: Option<Perceiver>, // perceiver, if it makes the rows
    pooled: Option<PoolingHead>,             // pooling to a vector
    pub(super) mosaic: Option<Mosaic>,       // tiles with mutual attention
    deep: Vec<Joiner>,
    embed: Vec<Op>,                     // from pixels to embedded patches
    pub(super) attention: Vec<Vec<Op>>, // of each layer over whole sequences; of tiles those of the current picture
    pub(super) buffers: Buffers,
    kept_bytes: usize,
    pub(super) way: Way,
    pub(super) mosaic_way: MosaicWay,
    pub(super) pieces: Option<Pieces>, // present if frames run in pieces of rows instead of layers
}

/// Buffers for the largest frame.
pub(super) struct Buffers {
    pub(super) pixels: ops::Buffer, // (patches, patch_width)
    pub(super) joiner: JoinerBuffers,
}

/// Progress of the current frame.
#[derive(Default)]
pub(super) struct Way {
    pub(super) layout: Layout,
    pub(super) all: Batch,             // patches that attend to all others
    pub(super) windowed: Batch,        // patches that attend within their window, for windowed layers
    joined: Batch,                     // the projected rows
    done: usize,                       // layers
    pub(super) between: Vec<Vec<f32>>, // rows of DeepStack layers, (rows, text_hidden) in the tower's order
    whole: [usize; 2],                 // rows and columns of the frame
    grid: [usize; 2],                  // rows and columns of its middle that are wanted
    ends: LineEnds,                    // their line ends
    pub(super) pixels: Arc<[u8]>,      // for reading them piece by piece
}

/// Columns of the projectors' buffers.
fn joiner_widths(spec: &TowerSpec) -> JoinerWidths {
    let (square, reads) = (spec.square_width(), spec.reads);
    JoinerWidths {
        read: square,
        normed: (!spec.deep.is_empty()).then_some(square),
        merged: reads.merged.then_some(spec.layers.hidden),
        inner: (reads.inner > 0).then_some(reads.inner),
        given: spec.text_hidden,
    }
}

fn limits(spec: &TowerSpec, patches: usize, cuts: bool) -> StepLimits {
    let rows = rows_at_once(spec.layer_rows(patches), cuts);
    let sequences = match spec.windows {
        Some(_) => patches.min(rows).div_ceil(spec.square_patches()),
        None => spec.squares_max,
    };
    let limits = spec.layers.step_limits(rows, sequences, rows);
    let width = joiner_widths(spec).all().fold(limits.width.max(spec.patch_width()), usize::max);
    let Some(own) = &spec.perceiver else { return StepLimits { width, ..limits } };
    let (heads, rows) = (limits.heads, rows.max(perceiver::rows_max(own, patches, cuts)));
    StepLimits {
        width: width.max(perceiver::width(spec, own)),
        rows,
        context: rows.max(patches + own.latents),
        heads: HeadShape {
            heads: heads.heads.max(own.heads.heads),
            kv_heads: heads.kv_heads.min(own.heads.kv_heads),
            head_dim: heads.head_dim.max(own.heads.head_dim),
        },
        ..limits
    }
}

/// Rows of a step, out of `rows`.
fn rows_at_once(rows: usize, cuts: bool) -> usize {
    if cuts { rows.min(PIECE_ROWS) } else { rows }
}

pub(crate) fn shape_of(tensor: &Tensor) -> MatrixShape {
    MatrixShape { dtype: tensor.dtype, rows: tensor.shape[0], cols: tensor.shape[1] }
}

pub(crate) fn pack(backend: &AnyBackend, tensor: &Tensor) -> Result<ops::Matrix, LoadError> {
    let (name, shape) = (&tensor.name, shape_of(tensor));
    if !backend.supports(tensor.dtype) {
        let (tensor, dtype, device) = (name.clone(), shape.dtype, backend.facts().device.clone());
        return Err(KernelError::UnsupportedType { tensor, dtype, device }.into());
    }
    let packed = backend.pack(&[MatrixSource { name, shape, bytes: &tensor.bytes.read() }])?;
    tensor.bytes.release();
    Ok(packed)
}

impl Tower {
    /// Memory that [`Tower::load`] takes.
    pub fn memory(backend: &AnyBackend, files: &TowerFiles, context_tokens_max: usize) -> EngineMemory {
        let spec = &files.spec;
        let patches = spec.patches_within(context_tokens_max);
        let plan =
            network::plan(backend, &spec.layers, &files.tensors, WeightType::Stored, spec.patch_width());
        let joiners = files.joiner.iter().chain(&files.deep);
        let tensors = joiners.flat_map(JoinerFiles::all).chain([&files.patch]).chain(&files.patch_bias);
        let weights: usize = tensors
            .map(|tensor| match tensor.shape.len() {
                1 => backend.vector_bytes(tensor.elements()),
                _ if backend.supports(tensor.dtype) => backend.matrix_bytes(&[shape_of(tensor)]),
                _ => tensor.bytes.len(),
            })
            .sum();
        let pooled = files.pooled.iter().flat_map(PooledFiles::all);
        let own = files.perceiver.iter().flat_map(PerceiverFiles::held);
        let held = files.learned.iter().chain(&files.given_norm).chain(&files.line_end);
        let held = held.chain(pooled).chain(own).chain(files.mosaic.iter().flat_map(MosaicFiles::held));
        let learned: usize = held.map(|table| table.elements() * size_of::<f32>()).sum();
        let (rows, cuts) = (rows_behind(spec, patches), pieces::cuts(backend, spec));
        let at_once = squares_at_once(spec, rows, cuts);
        let behind =
            joiner_widths(spec).all().map(|cols| backend.buffer_bytes(BufferRole::Operand, at_once, cols));
        let mut behind = behind.sum::<usize>() + kept_bytes(spec, rows);
        if cuts {
            behind += pieces::kept_bytes(backend, spec, spec.layer_rows(patches));
        }
        let mut perceiver = 0;
        if let (Some(files), Some(own)) = (&files.perceiver, &spec.perceiver) {
            perceiver = files.packed_bytes(backend);
            behind += perceiver::buffer_bytes(backend, spec, own, patches);
        }
        EngineMemory {
            weights_bytes: plan.weights_bytes + (weights + learned + perceiver) as u64,
            kv_bytes: 0,
            scratch_bytes: plan.scratch_bytes(backend, &limits(spec, patches, cuts)) + behind as u64,
        }
    }

    /// Reads and packs all weights, and allocates all buffers, for frames with at most as many rows as a context
    /// has tokens.
    ///
    /// # Errors
    /// `Kernel` if the backend cannot pack a type or give the memory.
    pub fn load(
        mut backend: AnyBackend,
        files: &TowerFiles,
        context_tokens_max: usize,
    ) -> Result<Self, LoadError> {
        let spec = files.spec.clone();
        let patches = spec.patches_within(context_tokens_max);
        let (rows, cuts) = (rows_behind(&spec, patches), pieces::cuts(&backend, &spec));
        let at_once = squares_at_once(&spec, rows, cuts);
        let vector = |tensor: &Tensor| Ok::<_, LoadError>(backend.vector(&tensor.to_f32()?)?);
        let patch = pack(&backend, &files.patch)?;
        let patch_bias = files.patch_bias.as_ref().map(vector).transpose()?;
        let joiner_buffers = JoinerBuffers::new(&backend, at_once, joiner_widths(&spec))?;
        let joiner_of = |files| Joiner::load(&backend, files, spec.layers.norm.eps, &joiner_buffers);
        let joiner = files.joiner.as_ref().map(joiner_of).transpose()?;
        let pooled = files.pooled.as_ref().map(|files| PoolingHead::load(files, &spec)).transpose()?;
        let perceiver = match (&files.perceiver, &spec.perceiver) {
            (Some(files), Some(own)) => Some(Perceiver::load(&backend, files, &spec, own, patches)?),
            _ => None,
        };
        let deep = files.deep.iter().map(joiner_of).collect::<Result<Vec<_>, _>>()?;
        let mut silent = |_| ();
        let mut loader =
            Loader::new(&backend, &spec.layers, &files.tensors, WeightType::Stored, &mut silent)?;
        let mut network = loader.network()?;
        let limits = limits(&spec, patches, cuts);
        network.prepare(&backend, limits.rows)?;
        backend.reserve(&limits)?;
        let pixels = backend.buffer(BufferRole::Operand, limits.rows, spec.patch_width())?;
        let buffers = Buffers { pixels, joiner: joiner_buffers };
        let pieces =
            cuts.then(|| Pieces::new(&backend, &network, &spec, spec.layer_rows(patches))).transpose()?;
        let held = |tensor: &Option<Tensor>| {
            Ok::<_, LoadError>(tensor.as_ref().map(Tensor::to_f32).transpose()?.unwrap_or_default())
        };
        let mut tower = Tower {
            scale: files.processor.scale().table(),
            learned: held(&files.learned)?,
            given_norm: held(&files.given_norm)?,
            line_end: held(&files.line_end)?,
            kept_bytes: kept_bytes(&spec, rows),
            way: Way::default(),
            mosaic_way: MosaicWay::default(),
            pieces,
            mosaic: files.mosaic.as_ref().map(Mosaic::load).transpose()?,
            patch,
            patch_bias,
            joiner,
            perceiver,
            pooled,
            deep,
            buffers,
            embed: Vec::new(),
            attention: network.whole_attention(0),
            network,
            spec,
            backend,
        };
        tower.embed = tower.build_embed();
        Ok(tower)
    }

    /// Position embeddings that depend on the frame's size.
    fn learned_by_frame(&self) -> Option<LearnedPositions> {
        let own = |learned: &LearnedPositions| learned.between || self.spec.frame.is_none();
        self.spec.learned.filter(own)
    }

    /// Ops that embed patches. They add to position embeddings that depend on the frame's size.
    fn build_embed(&self) -> Vec<Op> {
        let (pixels, [given, branch]) = (self.buffers.pixels.id(), self.network.given_and_branch());
        let mut p = ProgramBuilder::default();
        if self.learned_by_frame().is_some() {
            p.matmul(&self.patch, self.patch_bias.as_ref(), pixels, branch);
            p.row(RowOp::Add { x: branch, first: 0, factor: 1.0 }, given);
        } else {
            p.matmul(&self.patch, self.patch_bias.as_ref(), pixels, given);
        }
        p.finish_ops()
    }

    /// Position embeddings of some patches, `(patches, hidden)`, if they depend on the frame's size.
    fn learned_of_places(&self, patches: Range<usize>) -> Option<Vec<f32>> {
        let learned = self.learned_by_frame()?;
        let (layout, hidden) = (&self.way.layout, self.spec.layers.hidden);
        Some(match learned.between {
            true => layout.between(learned, &self.learned, hidden, patches),
            false => {
                let places = layout.nearest(learned, patches).into_iter();
                places.flat_map(|place| &self.learned[place * hidden..][..hidden]).copied().collect()
            }
        })
    }

    /// Embeds some patches of the current frame, `(patches, patch_width)`, within an open step.
    pub(super) fn embed_patches(&mut self, places: Range<usize>, patches: &[f32]) -> Result<(), KernelError> {
        let mut written = self.backend.write_rows(&mut self.buffers.pixels, 0, patches);
        if let Some(learned) = self.learned_of_places(places) {
            written = written.and(self.backend.write_rows(self.network.given(), 0, &learned));
        }
        self.backend.run_all(&self.embed);
        written
    }

    /// Projects the layers' output to rows, after the last layer or after a DeepStack layer.
    fn join(&mut self, deep: Option<usize>) -> Result<Vec<f32>, KernelError> {
        let mut given = vec![0.0; self.way.all.rows() * self.spec.layers.hidden];
        let is_residual = deep.is_some() || !self.spec.reads.normed;
        let from = if is_residual { &*self.network.residual() } else { self.network.hidden() };
        self.backend.read_rows(from, 0, &mut given)?;
        let patches = self.way.layout.of_patches(&self.spec, given);
        let batch = std::mem::take(&mut self.way.joined);
        let joined = self.join_patches(deep, patches, &batch);
        self.way.joined = batch;
        joined
    }

    /// Projects patches of whole squares to rows, in a step over `batch`.
    pub(super) fn join_patches(
        &mut self,
        deep: Option<usize>,
        mut patches: Vec<f32>,
        batch: &Batch,
    ) -> Result<Vec<f32>, KernelError> {
        if self.spec.reads.mean {
            patches = means(&patches, self.spec.square_patches(), self.spec.layers.hidden);
        }
        if let Some(TowerNorm { eps, .. }) = self.spec.reads.norm {
            norm_all(&mut patches, &self.given_norm, eps);
        }
        let joiner = deep.map_or(self.joiner.as_ref(), |index| self.deep.get(index));
        let joiner = joiner.expect("a tower without one joins nothing");
        // The patches of a square are consecutive.
        joiner.join(&mut self.backend, batch, &mut self.buffers.joiner, &patches)
    }

    /// Final result of the frame after its last layer.
    fn given(&mut self) -> Result<Vec<f32>, KernelError> {
        if self.joiner.is_some() {
            let joined = self.join(None)?;
            return Ok(self.rows(joined));
        }
        let hidden = self.spec.layers.hidden;
        let mut rows = vec![0.0; self.way.all.rows() * hidden];
        self.backend.read_rows(self.network.hidden(), 0, &mut rows)?;
        match (&self.pooled, &mut self.perceiver) {
            (Some(pooled), _) => Ok(pooled.vector(&rows, hidden)),
            (None, Some(perceiver)) => perceiver.rows(&mut self.backend, &rows),
            (None, None) => unreachable!("opening gives every tower one of the three"),
        }
    }

    /// The wanted rows of the frame, in reading order, each followed by its DeepStack rows, with line ends.
    pub(super) fn rows(&mut self, joined: Vec<f32>) -> Vec<f32> {
        let mut parts = vec![joined];
        parts.append(&mut self.way.between);
        let (width, hidden) = (self.spec.row_width(), self.spec.text_hidden);
        let Way { layout, whole, grid: [lines, columns], ends, .. } = &self.way;
        let (lines, columns, ends) = (*lines, *columns, *ends);
        let (top, left) = ((whole[0] - lines) / 2, (whole[1] - columns) / 2);
        let line = match ends {
            LineEnds::None | LineEnds::Last => columns,
            LineEnds::Each | LineEnds::Tokens => columns + 1,
        };
        let mut rows = vec![0.0; ends.tokens([lines, columns]) * width];
        for (from, &to) in layout.squares.iter().enumerate() {
            let (row, column) = (to / whole[1], to % whole[1]);
            if !(top..top + lines).contains(&row) || !(left..left + columns).contains(&column) {
                continue;
            }
            let to = (row - top) * line + column - left;
            for (part, out) in parts.iter().zip(rows[to * width..][..width].chunks_exact_mut(hidden)) {
                out.copy_from_slice(&part[from * hidden..][..hidden]);
            }
        }
        match ends {
            // rows of vocabulary tokens are looked up
            LineEnds::None | LineEnds::Tokens => {}
            LineEnds::Each => {
                for line in rows.chunks_exact_mut(line * width) {
                    line[columns * width..][..hidden].copy_from_slice(&self.line_end);
                }
            }
            LineEnds::Last => {
                let end = rows.len() - width;
                rows[end..][..hidden].copy_from_slice(&self.line_end);
            }
        }
        rows
    }
}

/// Number of squares projected at once, out of `rows`.
fn squares_at_once(spec: &TowerSpec, rows: usize, cuts: bool) -> usize {
    if cuts { rows.min((PIECE_ROWS / spec.square_patches()).max(1)) } else { rows }
}

/// Number of rows for `patches` patches, at least one; a tower that pools has a single one.
fn rows_behind(spec: &TowerSpec, patches: usize) -> usize {
    match &spec.perceiver {
        Some(perceiver) => perceiver.latents,
        None if spec.pooled.is_some() => 1,
        // one tile at a time
        None if spec.mosaic.is_some() => spec.tile_rows(),
        None => patches / spec.square_patches(),
    }
}

/// Bytes for cached rows, for frames with at most `rows` rows and as many line ends.
fn kept_bytes(spec: &TowerSpec, rows: usize) -> usize {
    if spec.pooled.is_some() {
        return PICTURE_VECTORS_BYTES;
    }
    let rows = if spec.mosaic.is_some() { 1 } else { rows };
    PICTURE_ROWS_BYTES.max(2 * rows * spec.row_width() * size_of::<f32>())
}

/// Means over groups of `of` rows.
pub(crate) fn means(rows: &[f32], of: usize, width: usize) -> Vec<f32> {
    let mut means = Vec::with_capacity(rows.len() / of);
    for square in rows.chunks_exact(of * width) {
        let first = means.len();
        means.extend_from_slice(&square[..width]);
        for row in square[width..].chunks_exact(width) {
            means[first..].iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
        }
        means[first..].iter_mut().for_each(|sum| *sum /= of as f32);
    }
    means
}

/// RMS norm of each row, with weights.
pub(super) fn norm_all(rows: &mut [f32], factors: &[f32], eps: f32) {
    for row in rows.chunks_exact_mut(factors.len()) {
        let squares: f64 = row.iter().map(|&number| f64::from(number).powi(2)).sum();
        let scale = (1.0 / (squares / factors.len() as f64 + f64::from(eps)).sqrt()) as f32;
        row.iter_mut().zip(factors).for_each(|(number, factor)| *number *= scale * factor);
    }
}

impl Towers for Tower {
    fn spent(&self) -> Option<Products> {
        self.pieces.as_ref().map(Pieces::spent)
    }

    fn layers(&self) -> usize {
        self.network.layers.len()
    }

    fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    fn begin(&mut self, span: &MediaSpan) -> Result<(), KernelError> {
        if self.mosaic.is_some() {
            return self.begin_mosaic(span);
        }
        let [whole, wanted] = [span.whole, span.grid].map(|sides| sides.map(|side| side as usize));
        let grid = Grid { rows: whole[0], cols: whole[1] };
        assert_eq!(
            span.pixels.len(),
            self.spec.frame_bytes(grid),
            "a frame with as many pixels as its rows have"
        );
        let layout = Layout::new(&self.spec, grid);
        self.way = Way {
            all: layout.batch(&self.spec, false),
            windowed: match self.spec.windows {
                Some(_) => layout.batch(&self.spec, true),
                None => Batch::default(),
            },
            joined: layout.rows_batch(),
            done: 0,
            between: Vec::new(),
            whole,
            grid: wanted,
            ends: span.ends,
            pixels: Arc::default(),
            layout,
        };
        if let Some(pieces) = &mut self.pieces {
            pieces.begin();
            self.perceiver.iter_mut().for_each(Perceiver::begin);
            self.way.pixels = span.pixels.clone();
            return Ok(());
        }
        let rows = 0..self.way.layout.rows();
        let patches = self.way.layout.patches_of(&self.spec, &self.scale, &span.pixels, rows);
        self.backend.begin(&self.way.all)?;
        let written = self.embed_patches(0..self.way.layout.patches(), &patches);
        self.network.embed(&mut self.backend, self.way.all.rows());
        self.network.begin(&mut self.backend);
        self.backend.end().and(written)
    }

    fn advance(&mut self, piece: Piece) -> Result<Option<Vec<f32>>, KernelError> {
        if self.mosaic.is_some() {
            return self.advance_mosaic(piece.layers());
        }
        if self.pieces.is_some() {
            return self.advance_pieces(piece);
        }
        let end = self.layers().min(self.way.done + piece.layers());
        for index in self.way.done..end {
            let sees_window = |windows: &super::spec::Windows| !windows.whole.contains(&index);
            let batch = match self.spec.windows.as_ref().is_some_and(sees_window) {
                true => &self.way.windowed,
                false => &self.way.all,
            };
            self.backend.begin(batch)?;
            self.network.run_layer(&mut self.backend, index, &self.attention[index]);
            self.backend.end()?;
            if let Some(deep) = self.spec.deep.iter().position(|&layer| layer == index) {
                let rows = self.join(Some(deep))?;
                self.way.between.push(rows);
            }
        }
        self.way.done = end;
        if end < self.layers() { Ok(None) } else { self.given().map(Some) }
    }
}
