//! Runs one window of sound through a tower: frames, convolutions, layers, rows of the text model. The work is cut
//! into pieces so that other sequences' steps run in between. For a sound shorter than a window, only its own rows
//! are computed.

use hanzo_engine_kernels::{
    Activation, AnyBackend, Batch, BufferRole, KernelError, LayerNormParams, StepLimits, ops,
};

use super::stem::{self, Stem, StemBuffers};
use super::{AudioFiles, AudioSpec};
use crate::encoder::WeightType;
use crate::engine::EngineMemory;
use crate::error::LoadError;
use crate::limits::PICTURE_ROWS_BYTES;
use crate::media::MediaSpan;
use crate::network::{self, Loader, Network};
use crate::tensor::Tensor;
use crate::vision::{Piece, Towers, batch_of, means, pack, shape_of};

/// Audio tower: weights on its own backend, and the buffers to run them.
pub struct AudioTower {
    backend: AnyBackend,
    network: Network,
    spec: AudioSpec,
    stem: Stem,
    norm: Option<[ops::Vector; 2]>,                 // (hidden) each
    up: Option<(ops::Matrix, Option<ops::Vector>)>, // (inner, joined), (inner)
    down: ops::Matrix,                              // (text_hidden, inner or joined)
    down_bias: Option<ops::Vector>,                 // (text_hidden)
    buffers: Buffers,
    way: Way,
}

/// Buffers for a whole window.
struct Buffers {
    stem: StemBuffers,
    joined: ops::Buffer,         // (rows of the text model, joined)
    normed: Option<ops::Buffer>, // (rows of the text model, joined)
    inner: Option<ops::Buffer>,  // (rows of the text model, inner)
    given: ops::Buffer,          // (rows of the text model, text_hidden)
}

/// Progress of the current window.
#[derive(Default)]
struct Way {
    rows: Batch,   // attend to all others
    joined: Batch, // the joined rows
    done: usize,   // layers
}

/// Rows and columns of the buffers, in the order of their fields.
fn buffer_shapes(spec: &AudioSpec) -> [Option<(usize, usize)>; 4] {
    let given = spec.rows / spec.joined;
    [
        Some((given, spec.joined_width())),
        spec.means().then_some((given, spec.joined_width())),
        (spec.inner > 0).then_some((given, spec.inner)),
        Some((given, spec.text_hidden)),
    ]
}

fn limits(spec: &AudioSpec) -> StepLimits {
    let shapes = || stem::buffer_shapes(spec).into_iter().chain(buffer_shapes(spec)).flatten();
    let rows = shapes().map(|(rows, _)| rows).fold(spec.rows, usize::max);
    let limits = spec.layers.step_limits(rows, 1, rows);
    let widths = shapes().map(|(_, cols)| cols);
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
        let buffers = stem::buffer_shapes(spec).into_iter().chain(buffer_shapes(spec)).flatten();
        let buffers = buffers.map(|(rows, cols)| backend.buffer_bytes(BufferRole::Operand, rows, cols));
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
        let vector = |tensor: &Tensor| Ok::<_, LoadError>(backend.vector(&tensor.to_f32()?)?);
        let stem = Stem::load(&backend, &files.stem)?;
        let norm = match &files.norm {
            Some([factors, addends]) => Some([vector(factors)?, vector(addends)?]),
            None => None,
        };
        let up = match &files.up {
            Some((up, bias)) => Some((pack(&backend, up)?, bias.as_ref().map(vector).transpose()?)),
            None => None,
        };
        let down = pack(&backend, &files.down)?;
        let down_bias = files.down_bias.as_ref().map(vector).transpose()?;
        let mut silent = |_| ();
        let mut loader =
            Loader::new(&backend, &spec.layers, &files.tensors, WeightType::Stored, &mut silent)?;
        let mut network = loader.network()?;
        let limits = limits(&spec);
        network.prepare(&backend, limits.rows)?;
        backend.reserve(&limits)?;
        let [joined, normed, inner, given] = buffer_shapes(&spec).map(|shape| {
            shape.map(|(rows, cols)| backend.buffer(BufferRole::Operand, rows, cols)).transpose()
        });
        const ALWAYS: &str = "every tower has this one";
        let buffers = Buffers {
            stem: Stem::buffers(&backend, &spec)?,
            joined: joined?.expect(ALWAYS),
            normed: normed?,
            inner: inner?,
            given: given?.expect(ALWAYS),
        };
        let way = Way::default();
        Ok(AudioTower { backend, network, spec, stem, norm, up, down, down_bias, buffers, way })
    }

    /// Computes the layers' input from the frames.
    fn convolve(&mut self, frames: &[f32]) -> Result<(), KernelError> {
        let (backend, rows) = (&mut self.backend, self.way.rows.rows());
        let (buffers, out) = (&mut self.buffers.stem, self.network.given());
        self.stem.run(backend, &self.spec, (frames, rows), buffers, out)?;
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
        let Buffers { joined, normed, inner, given, .. } = &mut self.buffers;
        let backend = &mut self.backend;
        backend.begin(&self.way.joined)?;
        let written = backend.write_rows(joined, 0, &heard);
        let mut x = &*joined;
        if let (Some([weight, bias]), Some(normed)) = (&self.norm, normed) {
            let params = LayerNormParams { weight, bias: Some(bias), eps: self.spec.layers.norm.eps };
            backend.layer_norm(x, &params, normed);
            x = normed;
        }
        if let (Some((up, bias)), Some(inner)) = (&self.up, inner) {
            backend.matmul_activated(up, bias.as_ref(), Activation::GeluErf, x, inner);
            x = inner;
        }
        backend.matmul(&self.down, self.down_bias.as_ref(), x, given);
        backend.end().and(written)?;
        let mut rows = vec![0.0; self.way.joined.rows() * self.spec.text_hidden];
        backend.read_rows(given, 0, &mut rows)?;
        Ok(rows)
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
            self.network.run_whole_layer(&mut self.backend, index, 0);
            self.backend.end()?;
        }
        self.way.done = end;
        if end < self.layers() { Ok(None) } else { self.join().map(Some) }
    }
}
