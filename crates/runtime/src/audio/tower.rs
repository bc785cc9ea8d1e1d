//! One window's way through a tower for sound: frames, two convolutions, layers, rows of the text model. It is cut into pieces,
//! so that others' steps go on between them. Of a sound that is shorter than a window only what is heard of it is computed.

use hanzo_engine_kernels::{
    Activation, Batch, BufferRole, EncoderOps, KernelError, LayerNormParams, PositionBias,
    SelfAttentionParams, StepLimits,
};

use super::files::Affine;
use super::{AudioFiles, AudioSpec};
use crate::encoder::{WeightType, turn};
use crate::engine::EngineMemory;
use crate::error::LoadError;
use crate::limits::PICTURE_ROWS_BYTES;
use crate::media::MediaSpan;
use crate::network::{self, Loader, Network};
use crate::tensor::Tensor;
use crate::vision::{Towers, batch_of, means, pack, shape_of};
use crate::whisper::unfold;

/// A tower's weights on a backend of its own, and what it takes to run them.
pub struct AudioTower<B: EncoderOps> {
    backend: B,
    network: Network<B>,
    spec: AudioSpec,
    first: Linear<B>,             // (hidden, 3 * mels)
    second: Linear<B>,            // (hidden, 3 * hidden)
    norm: Option<[B::Vector; 2]>, // (hidden) each
    up: Option<B::Matrix>,        // (inner, joined)
    down: B::Matrix,              // (text_hidden, inner or joined)
    down_bias: Option<B::Vector>, // (text_hidden)
    buffers: Buffers<B>,
    way: Way,
}

struct Linear<B: EncoderOps> {
    weight: B::Matrix,
    bias: B::Vector,
}

/// For a whole window.
struct Buffers<B: EncoderOps> {
    narrow: B::Buffer,         // (rows, 3 * mels)
    wide: B::Buffer,           // (rows, 3 * hidden)
    heard: B::Buffer,          // (rows, hidden): half of what the first convolution gives
    joined: B::Buffer,         // (rows of the text model, joined)
    normed: Option<B::Buffer>, // (rows of the text model, joined)
    inner: Option<B::Buffer>,  // (rows of the text model, inner)
    given: B::Buffer,          // (rows of the text model, text_hidden)
    unfolded: Vec<f32>,        // (rows, 3 * the wider of mels and hidden)
    heard_all: Vec<f32>,       // (frames, hidden)
}

/// The window under way.
#[derive(Default)]
struct Way {
    rows: Batch,   // that see all others
    joined: Batch, // those that they become
    done: usize,   // layers
}

/// Rows and columns of the buffers, in their order.
fn buffer_shapes(spec: &AudioSpec) -> [Option<(usize, usize)>; 7] {
    let (rows, given, hidden) = (spec.rows, spec.rows / spec.joined, spec.layers.hidden);
    [
        Some((rows, spec.first_width())),
        Some((rows, 3 * hidden)),
        Some((rows, hidden)),
        Some((given, spec.joined_width())),
        spec.means().then_some((given, spec.joined_width())),
        (spec.inner > 0).then_some((given, spec.inner)),
        Some((given, spec.text_hidden)),
    ]
}

fn limits(spec: &AudioSpec) -> StepLimits {
    let limits = spec.layers.step_limits(spec.rows, 1, spec.rows);
    let widths = buffer_shapes(spec).into_iter().flatten().map(|(_, cols)| cols);
    StepLimits { width: widths.fold(limits.width, usize::max), ..limits }
}

/// Numbers that are held beside buffers.
fn host_numbers(spec: &AudioSpec) -> usize {
    spec.rows * 3 * spec.mels.max(spec.layers.hidden) + spec.frames() * spec.layers.hidden
}

/// Bytes of rows that are kept.
fn kept_bytes(spec: &AudioSpec) -> usize {
    let window = spec.rows / spec.joined * spec.text_hidden * size_of::<f32>();
    PICTURE_ROWS_BYTES.max(2 * window)
}

impl<B: EncoderOps> AudioTower<B> {
    /// What [`AudioTower::load`] takes.
    pub fn memory(backend: &B, files: &AudioFiles) -> EngineMemory {
        let spec = &files.spec;
        let plan =
            network::plan(backend, &spec.layers, &files.tensors, WeightType::Stored, spec.first_width());
        let matrix = |tensor: &Tensor| match backend.supports(tensor.dtype) {
            true => backend.matrix_bytes(&[shape_of(tensor)]),
            false => tensor.bytes.len(),
        };
        let vectors = files.vectors().map(|tensor| backend.vector_bytes(tensor.elements()));
        let weights = files.matrices().map(matrix).chain(vectors).sum::<usize>();
        let buffers = buffer_shapes(spec).into_iter().flatten();
        let buffers = buffers.map(|(rows, cols)| backend.buffer_bytes(BufferRole::Operand, rows, cols));
        let beside = buffers.sum::<usize>() + host_numbers(spec) * size_of::<f32>() + kept_bytes(spec);
        EngineMemory {
            weights_bytes: plan.weights_bytes + weights as u64,
            kv_bytes: 0,
            scratch_bytes: plan.scratch_bytes(backend, &limits(spec)) + beside as u64,
        }
    }

    /// Reads and packs all weights, and makes all buffers.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot pack a type or give the memory.
    pub fn load(mut backend: B, files: &AudioFiles) -> Result<Self, LoadError> {
        let spec = files.spec.clone();
        let vector = |tensor: &Tensor| Ok::<_, LoadError>(backend.vector(&tensor.to_f32()?)?);
        let linear = |affine: &Affine| {
            Ok::<_, LoadError>(Linear {
                weight: pack(&backend, &affine.weight)?,
                bias: vector(&affine.bias)?,
            })
        };
        let (first, second) = (linear(&files.first)?, linear(&files.second)?);
        let norm = match &files.norm {
            Some([factors, addends]) => Some([vector(factors)?, vector(addends)?]),
            None => None,
        };
        let up = files.up.as_ref().map(|up| pack(&backend, up)).transpose()?;
        let down = pack(&backend, &files.down)?;
        let down_bias = files.down_bias.as_ref().map(vector).transpose()?;
        let mut silent = |_| ();
        let mut loader =
            Loader::new(&backend, &spec.layers, &files.tensors, WeightType::Stored, &mut silent)?;
        let mut network = loader.network()?;
        let limits = limits(&spec);
        network.prepare(&backend, limits.rows)?;
        backend.reserve(&limits)?;
        let [narrow, wide, heard, joined, normed, inner, given] = buffer_shapes(&spec).map(|shape| {
            shape.map(|(rows, cols)| backend.buffer(BufferRole::Operand, rows, cols)).transpose()
        });
        const ALWAYS: &str = "every tower has this one";
        let buffers = Buffers {
            narrow: narrow?.expect(ALWAYS),
            wide: wide?.expect(ALWAYS),
            heard: heard?.expect(ALWAYS),
            joined: joined?.expect(ALWAYS),
            normed: normed?,
            inner: inner?,
            given: given?.expect(ALWAYS),
            unfolded: vec![0.0; spec.rows * 3 * spec.mels.max(spec.layers.hidden)],
            heard_all: vec![0.0; spec.frames() * spec.layers.hidden],
        };
        let way = Way::default();
        Ok(AudioTower { backend, network, spec, first, second, norm, up, down, down_bias, buffers, way })
    }

    /// Frames, as rows that the layers read.
    fn convolve(&mut self, frames: &[f32]) -> Result<(), KernelError> {
        let (mels, hidden, rows) = (self.spec.mels, self.spec.layers.hidden, self.way.rows.rows());
        let Buffers { narrow, wide, heard, unfolded, heard_all, .. } = &mut self.buffers;
        let backend = &mut self.backend;
        // The first convolution has twice as many rows as a step: two steps.
        for (half, heard_half) in heard_all.chunks_mut(rows * hidden).take(2).enumerate() {
            let unfolded = &mut unfolded[..rows * 3 * mels];
            for (row, out) in unfolded.chunks_exact_mut(3 * mels).enumerate() {
                unfold(frames, mels, (half * rows + row) as isize - 1, out);
            }
            backend.begin(&self.way.rows)?;
            let written = backend.write_rows(narrow, 0, unfolded);
            let Linear { weight, bias } = &self.first;
            backend.matmul_activated(weight, Some(bias), Activation::GeluErf, narrow, heard);
            backend.end().and(written)?;
            backend.read_rows(heard, 0, heard_half)?;
        }
        let unfolded = &mut unfolded[..rows * 3 * hidden];
        for (row, out) in unfolded.chunks_exact_mut(3 * hidden).enumerate() {
            // What would come behind a sound's last row is not read by it.
            unfold(&heard_all[..2 * rows * hidden], hidden, 2 * row as isize - 1, out);
        }
        backend.begin(&self.way.rows)?;
        let written = backend.write_rows(wide, 0, unfolded);
        let Linear { weight, bias } = &self.second;
        let out = self.network.residual();
        backend.matmul_activated(weight, Some(bias), Activation::GeluErf, wide, out);
        self.network.embed(backend, rows);
        self.network.begin(backend);
        backend.end().and(written)
    }

    /// Rows made of what the layers have given.
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
        if let (Some(up), Some(inner)) = (&self.up, inner) {
            backend.matmul_activated(up, None, Activation::GeluErf, x, inner);
            x = inner;
        }
        backend.matmul(&self.down, self.down_bias.as_ref(), x, given);
        backend.end().and(written)?;
        let mut rows = vec![0.0; self.way.joined.rows() * self.spec.text_hidden];
        backend.read_rows(given, 0, &mut rows)?;
        Ok(rows)
    }
}

impl<B: EncoderOps> Towers for AudioTower<B> {
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

    fn advance(&mut self, layers: usize) -> Result<Option<Vec<f32>>, KernelError> {
        let end = self.layers().min(self.way.done + layers);
        for index in self.way.done..end {
            self.backend.begin(&self.way.rows)?;
            self.network.layer(&mut self.backend, index, |backend, attention, rows, attended| {
                let qkv = rows.own;
                turn(backend, attention, qkv);
                let params = SelfAttentionParams {
                    heads: attention.shape,
                    scale: attention.spec.scale,
                    reach: None,
                    bias: PositionBias::None,
                };
                backend.self_attention(qkv, &params, attended);
            });
            self.backend.end()?;
        }
        self.way.done = end;
        if end < self.layers() { Ok(None) } else { self.join().map(Some) }
    }
}
