//! Runs one window of sound through a tower: frames, convolutions, layers, rows of the text model. The work is cut
//! into pieces so that other sequences' steps run in between. For a sound shorter than a window, only its own rows
//! are computed.

use hanzo_engine_ops::{AnyBackend, Batch, BufferRole, KernelError, Op, StepLimits};

use super::stem::{self, Stem};
use super::{AudioFiles, AudioSpec};
use crate::error::LoadError;
use crate::limits::PICTURE_ROWS_BYTES;
use crate::media::MediaSpan;
use crate::network::WeightType;
use crate::network::{self, Loader, Network};
use crate::report::EngineMemory;
use crate::tensor::Tensor;
use crate::vision::{Joiner, JoinerBuffers, JoinerWidths, Piece, Towers, batch_of, means, shape_of};

/// Audio tower: weights on its own backend, and the buffers to run them.
pub struct AudioTower {
    backend: AnyBackend,
    network: Network,
    spec: AudioSpec,
    stem: Stem,
    joiner: Joiner,
    joiner_buffers: JoinerBuffers,
    attention: Vec<Vec<Op>>, // of each layer
    way: Way,
}

/// Progress of the current window.
#[derive(Default)]
struct Way {
    rows: Batch,   // attend to all others
    joined: Batch, // the joined rows
    done: usize,   // layers
}

/// Rows of a whole window at the text model.
fn joined_rows(spec: &AudioSpec) -> usize {
    spec.rows / spec.joined
}

/// Columns of the projector's buffers.
fn joiner_widths(spec: &AudioSpec) -> JoinerWidths {
    JoinerWidths {
        read: spec.joined_width(),
        normed: spec.means().then_some(spec.joined_width()),
        merged: None,
        inner: (spec.inner > 0).then_some(spec.inner),
        given: spec.text_hidden,
    }
}

/// Rows and columns of all buffers beside those of the layers.
fn buffer_shapes(spec: &AudioSpec) -> impl Iterator<Item = (usize, usize)> {
    let rows = joined_rows(spec);
    let joiner = joiner_widths(spec).all().map(move |cols| (rows, cols));
    stem::buffer_shapes(spec).into_iter().flatten().chain(joiner)
}

fn limits(spec: &AudioSpec) -> StepLimits {
    let rows = buffer_shapes(spec).map(|(rows, _)| rows).fold(spec.rows, usize::max);
    let limits = spec.layers.step_limits(rows, 1, rows);
    let widths = buffer_shapes(spec).map(|(_, cols)| cols);
    StepLimits { width: widths.fold(limits.width, usize::max), ..limits }
}

/// Bytes of finished rows that are kept for reuse.
fn kept_bytes(spec: &AudioSpec) -> usize {
    let window = spec.rows / spec.joined * spec.text_hidden * size_of::<f32>();
    PICTURE_ROWS_BYTES.max(2 * window)
}

impl AudioTower {
    /// Memory that [`AudioTower::load`] takes.
    pub fn memory(backend: &AnyBackend, files: &AudioFiles) -> EngineMemory {
        let spec = &files.spec;
        let plan = network::plan(backend, &spec.layers, &files.tensors, WeightType::Stored, spec.text_hidden);
        let matrix = |tensor: &Tensor| match backend.supports(tensor.dtype) {
            true => backend.matrix_bytes(&[shape_of(tensor)]),
            false => tensor.bytes.len(),
        };
        let vectors = files.vectors().map(|tensor| backend.vector_bytes(tensor.elements()));
        let weights = files.matrices().map(matrix).chain(vectors).sum::<usize>();
        let buffers =
            buffer_shapes(spec).map(|(rows, cols)| backend.buffer_bytes(BufferRole::Operand, rows, cols));
        let beside = buffers.sum::<usize>() + stem::host_numbers(spec) * size_of::<f32>() + kept_bytes(spec);
        EngineMemory {
            weights_bytes: plan.weights_bytes + weights as u64,
            kv_bytes: 0,
            scratch_bytes: plan.scratch_bytes(backend, &limits(spec)) + beside as u64,
        }
    }

    /// Reads and packs all weights, and allocates all buffers.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot pack a type or give the memory.
    pub fn load(mut backend: AnyBackend, files: &AudioFiles) -> Result<Self, LoadError> {
        let spec = files.spec.clone();
        let mut silent = |_| ();
        let mut loader =
            Loader::new(&backend, &spec.layers, &files.tensors, WeightType::Stored, &mut silent)?;
        let mut network = loader.network()?;
        let limits = limits(&spec);
        network.prepare(&backend, limits.rows)?;
        backend.reserve(&limits)?;
        let stem = Stem::load(&backend, &files.stem, &spec, network.given().id())?;
        let joiner_buffers = JoinerBuffers::new(&backend, joined_rows(&spec), joiner_widths(&spec))?;
        let joiner = Joiner::load(&backend, &files.joiner, spec.layers.norm.eps, &joiner_buffers)?;
        let (attention, way) = (network.whole_attention(0), Way::default());
        Ok(AudioTower { backend, network, spec, stem, joiner, joiner_buffers, attention, way })
    }

    /// Computes the layers' input from the frames.
    fn convolve(&mut self, frames: &[f32]) -> Result<(), KernelError> {
        let (backend, rows) = (&mut self.backend, self.way.rows.rows());
        self.stem.run(backend, &self.spec, frames, rows)?;
        self.network.embed(backend, rows);
        self.network.begin(backend);
        backend.end()
    }

    /// Rows of the text model, computed from the layers' output.
    fn join(&mut self) -> Result<Vec<f32>, KernelError> {
        let (hidden, joined) = (self.spec.layers.hidden, self.spec.joined);
        let mut heard = vec![0.0; self.way.rows.rows() * hidden];
        let from = if self.spec.means() { &*self.network.residual() } else { self.network.hidden() };
        self.backend.read_rows(from, 0, &mut heard)?;
        if self.spec.means() {
            heard = means(&heard, joined, hidden);
        }
        self.joiner.join(&mut self.backend, &self.way.joined, &mut self.joiner_buffers, &heard)
    }
}

impl Towers for AudioTower {
    fn layers(&self) -> usize {
        self.network.layers.len()
    }

    fn kept_bytes(&self) -> usize {
        kept_bytes(&self.spec)
    }

    fn begin(&mut self, span: &MediaSpan) -> Result<(), KernelError> {
        let numbers = span.pixels.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let frames: Vec<f32> = numbers.collect();
        let count = frames.len() / self.spec.mels;
        assert!(self.spec.fits(count), "as many frames as a window has");
        let rows = self.spec.rows_of(count);
        assert_eq!(rows / self.spec.joined, span.tokens, "as many frames as its rows have");
        self.way = Way { rows: batch_of(&[rows]), joined: batch_of(&[span.tokens]), done: 0 };
        self.convolve(&frames)
    }

    fn advance(&mut self, piece: Piece) -> Result<Option<Vec<f32>>, KernelError> {
        let end = self.layers().min(self.way.done + piece.layers());
        for index in self.way.done..end {
            self.backend.begin(&self.way.rows)?;
            self.network.run_layer(&mut self.backend, index, &self.attention[index]);
            self.backend.end()?;
        }
        self.way.done = end;
        if end < self.layers() { Ok(None) } else { self.join().map(Some) }
    }
}
