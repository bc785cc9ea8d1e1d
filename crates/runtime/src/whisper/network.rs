//! A Whisper model's weights on a backend, and its decoder: a step takes tokens of many slots at once.
//! [`super::program`] builds the ops, [`super::listening`] runs the encoder, from a window to a slot's cross-attention
//! cache. Choosing tokens and handling logits is done elsewhere.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, BLOCK_TOKENS, Batch, BufferRole, HeadOperands, HeadShape, KernelError, KvLayout, KvSpec,
    RowSource, StepLimits,
};

use super::files::WhisperFiles;
use super::listening::{EncoderWindow, rows_at_once};
use super::packing::{Loader, matrices, shapes_of, vector_lengths};
use super::program::WhisperProgram;
use super::spec::WhisperSpec;
use crate::error::LoadError;
use crate::network::Norm;
use crate::network::WeightType;
use crate::report::EngineMemory;

/// Tokens of one slot in a step of the decoder.
#[derive(Clone, Debug)]
pub(crate) struct SlotTokens {
    /// Slot with the caches.
    pub(crate) slot: usize,
    /// Number of tokens in its KV cache.
    pub(crate) before: usize,
    /// Rows of this step.
    pub(crate) tokens: Vec<u32>,
    /// Rows with logits, ascending.
    pub(crate) wanted: Vec<u32>,
}

/// Keys of the alignment heads, kept on the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct AlignmentKeys {
    /// (heads, rows, head_dim)
    pub(crate) keys: Vec<f32>,
}

pub(super) struct Linear {
    pub(super) weight: ops::Matrix,
    pub(super) bias: ops::Vector,
}

/// Self-attention and MLP of a layer.
pub(super) struct Layer {
    pub(super) norm: Norm,
    pub(super) qkv: Linear,
    pub(super) out: Linear,
    pub(super) last_norm: Norm,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

/// Cross-attention of a decoder's layer.
pub(super) struct Cross {
    pub(super) norm: Norm,
    pub(super) query: Linear,
    pub(super) memory: Linear, // keys, then values
    pub(super) out: Linear,
}

/// Packed weights.
pub(super) struct WhisperWeights {
    pub(super) first: Linear,        // (hidden, 3 * mels)
    pub(super) second: Linear,       // (hidden, 3 * hidden)
    pub(super) moments: ops::Matrix, // (rows, hidden)
    pub(super) encoder: Vec<Layer>,
    pub(super) encoder_norm: Norm,
    pub(super) embedding: ops::Matrix,        // (vocab, hidden)
    pub(super) own_head: Option<ops::Matrix>, // (vocab, hidden); None: the head is the embedding
    pub(super) positions: ops::Matrix,        // (tokens, hidden)
    pub(super) decoder: Vec<(Layer, Cross)>,
    pub(super) decoder_norm: Norm,
}

/// Activations and KV caches.
pub(super) struct WhisperBuffers {
    // Buffers of a step: of an encoder's piece, some also of the decoder.
    pub(super) narrow: ops::Buffer,   // (rows, 3 * mels)
    pub(super) wide: ops::Buffer,     // (rows, 3 * hidden)
    pub(super) pair: ops::Buffer,     // (rows, 2 * hidden)
    pub(super) branch: ops::Buffer,   // (rows, hidden)
    pub(super) residual: ops::Buffer, // (rows, hidden)
    pub(super) normed: ops::Buffer,   // (rows, hidden)
    pub(super) inner: ops::Buffer,    // (rows, ffn)
    // Buffer of the current window, from piece to piece.
    pub(super) kept: ops::Buffer, // (rows of a window, 3 * hidden)
    // Buffers of the decoder.
    pub(super) written_residual: ops::Buffer, // (rows written, hidden)
    pub(super) written: ops::Buffer,          // (rows written, hidden)
    pub(super) written_inner: ops::Buffer,    // (rows written, ffn)
    // KV caches of the decoder.
    pub(super) memories: ops::Kv, // of encoded windows
    pub(super) cache: ops::Kv,    // of tokens
}

/// Model on a backend.
pub(crate) struct Whisper {
    pub(super) backend: AnyBackend,
    pub(crate) spec: WhisperSpec,
    pub(super) windows: usize,
    weights: WhisperWeights,
    pub(super) buffers: WhisperBuffers,
    pub(super) program: WhisperProgram,
    pub(super) batch: Batch,
    pub(super) under_way: Option<EncoderWindow>,
    /// Rows of a piece on the host, as wide as the widest input of a product. Made once: pages of megabytes that come
    /// and go with each piece cost more than the copies.
    pub(super) room: Vec<f32>,
    #[cfg(test)]
    pub(super) encoded: Vec<f32>,
}

/// Bounds of the largest step.
fn limits(backend: &AnyBackend, spec: &WhisperSpec, windows: usize) -> StepLimits {
    spec.step_limits(rows_at_once(backend, spec), windows)
}

/// Rows and columns of the buffers.
fn buffer_shapes(spec: &WhisperSpec, rows: usize, windows: usize) -> [(BufferRole, usize, usize); 11] {
    let hidden = spec.hidden;
    let written = spec.rows_written(windows);
    [
        (BufferRole::Operand, rows, spec.first_width()),
        (BufferRole::Operand, rows, 3 * hidden),
        (BufferRole::Operand, rows, 2 * hidden),
        (BufferRole::Operand, rows, hidden),
        (BufferRole::Residual, rows, hidden),
        (BufferRole::Operand, rows, hidden),
        (BufferRole::Operand, rows, spec.encoder.ffn),
        (BufferRole::Operand, spec.rows, 3 * hidden),
        (BufferRole::Residual, written, hidden),
        (BufferRole::Operand, written, hidden),
        (BufferRole::Operand, written, spec.decoder.ffn),
    ]
}

/// Shape of a KV cache with `slots` slots of `tokens` tokens in each layer.
fn cache(spec: &WhisperSpec, slots: usize, tokens: usize) -> KvSpec {
    let HeadShape { kv_heads, head_dim, .. } = spec.heads(spec.decoder);
    let layers = vec![KvLayout::Heads { kv_heads, head_dim, window: None }; spec.decoder.layers];
    KvSpec { layers, blocks: slots * tokens.div_ceil(BLOCK_TOKENS), ..KvSpec::default() }
}

impl WhisperBuffers {
    /// Buffers for steps of `rows` rows of the encoder, and for `windows` windows in the decoder, with their caches.
    fn new(
        backend: &AnyBackend,
        spec: &WhisperSpec,
        rows: usize,
        windows: usize,
    ) -> Result<Self, KernelError> {
        let [narrow, wide, pair, branch, residual, normed, inner, kept, sum, written, written_inner] =
            buffer_shapes(spec, rows, windows).map(|(role, rows, cols)| backend.buffer(role, rows, cols));
        Ok(Self {
            narrow: narrow?,
            wide: wide?,
            pair: pair?,
            branch: branch?,
            residual: residual?,
            normed: normed?,
            inner: inner?,
            kept: kept?,
            written_residual: sum?,
            written: written?,
            written_inner: written_inner?,
            memories: backend.kv(&cache(spec, windows, spec.rows))?,
            cache: backend.kv(&cache(spec, windows, spec.tokens))?,
        })
    }
}

impl Whisper {
    /// Memory that [`Whisper::load`] takes for `windows` windows.
    pub(crate) fn memory(
        backend: &AnyBackend,
        files: &WhisperFiles,
        weight_type: WeightType,
        windows: usize,
    ) -> EngineMemory {
        let spec = &files.spec;
        let weights: usize = matrices(spec)
            .iter()
            .map(|(parts, multiplied)| {
                let shapes = shapes_of(files, parts, *multiplied, weight_type);
                match shapes.iter().all(|shape| backend.supports(shape.dtype)) {
                    true => backend.matrix_bytes(&shapes),
                    // unsupported types are refused at load
                    false => 0,
                }
            })
            .sum();
        let vectors: usize =
            vector_lengths(spec).into_iter().map(|length| backend.vector_bytes(length)).sum();
        let limits = limits(backend, spec, windows);
        let buffers: usize = buffer_shapes(spec, limits.rows, windows)
            .into_iter()
            .map(|(role, rows, cols)| backend.buffer_bytes(role, rows, cols))
            .sum();
        // Data that waits between pieces, and `room`.
        let waits = spec.frames() * (spec.mels + spec.hidden) + spec.rows * spec.hidden;
        let unfolded = limits.rows * 3 * spec.hidden.max(spec.mels);
        let host = (waits + unfolded) * size_of::<f32>();
        EngineMemory {
            weights_bytes: (weights + vectors) as u64,
            kv_bytes: (backend.kv_bytes(&cache(spec, windows, spec.rows))
                + backend.kv_bytes(&cache(spec, windows, spec.tokens))) as u64,
            scratch_bytes: (buffers + host + backend.scratch_bytes(&limits)) as u64,
        }
    }

    /// Reads and packs all weights, and allocates all buffers.
    ///
    /// # Errors
    /// `Kernel` if the backend cannot pack a type or give the memory.
    pub(crate) fn load(
        mut backend: AnyBackend,
        files: &WhisperFiles,
        weight_type: WeightType,
        windows: usize,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, LoadError> {
        let spec = files.spec.clone();
        let limits = limits(&backend, &spec, windows);
        backend.reserve(&limits)?;
        let total = matrices(&spec).len() as f32;
        let mut done = 0.0;
        let mut loader = Loader {
            backend: &backend,
            files,
            weight_type,
            packed: &mut || {
                done += 1.0;
                progress(done / total);
            },
        };
        let weights = loader.weights()?;
        let buffers = WhisperBuffers::new(&backend, &spec, limits.rows, windows)?;
        Ok(Whisper {
            program: WhisperProgram::new(&spec, &weights, &buffers),
            batch: Batch::default(),
            under_way: None,
            room: vec![0.0; limits.rows * 3 * spec.hidden.max(spec.mels)],
            #[cfg(test)]
            encoded: Vec::new(),
            windows,
            weights,
            buffers,
            spec,
            backend,
        })
    }

    /// Maximum rows of a step of the decoder.
    pub(crate) fn rows_written(&self) -> usize {
        self.spec.rows_written(self.windows)
    }

    /// Block ID of a slot in a cache with `tokens` tokens per slot.
    pub(super) fn block(slot: usize, tokens: usize, index: usize) -> u32 {
        (slot * tokens.div_ceil(BLOCK_TOKENS) + index) as u32
    }

    /// Encoder output of the last window: `(rows, hidden)`.
    #[cfg(test)]
    pub(crate) fn encoded(&self) -> Vec<f32> {
        self.encoded.clone()
    }

    /// Runs one step of the decoder: adds tokens of slots to their caches, and writes the wanted logits, `(wanted,
    /// vocab)`. Returns the rows' queries of the given heads, `(heads, rows, head_dim)`.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn write(
        &mut self,
        writings: &[SlotTokens],
        heads: &[(usize, usize)],
        logits: &mut Vec<f32>,
    ) -> Result<Vec<f32>, KernelError> {
        let WhisperSpec { hidden, rows: keys, tokens, vocab, .. } = self.spec;
        let batch = &mut self.batch;
        batch.clear();
        for SlotTokens { slot, before, tokens: own, wanted } in writings {
            let first = batch.sources.len() as u32;
            batch.sources.extend(own.iter().map(|&token| RowSource::Token(token)));
            batch.push_sequence(own.len(), before + own.len(), |_, index| Self::block(*slot, tokens, index));
            batch.push_memory(keys, (0..).map(|index| Self::block(*slot, keys, index)));
            batch.logit_rows.extend(wanted.iter().map(|row| first + row));
        }
        let rows = batch.rows();
        let shape = self.spec.heads(self.spec.decoder);
        let mut queries = vec![0.0; heads.len() * rows * shape.head_dim];
        logits.resize(batch.logit_rows.len() * vocab, 0.0);
        self.backend.begin(&self.batch)?;
        let Self { backend, program, buffers, weights, .. } = self;
        backend.run_all(&program.begin);
        let mut result = Ok(());
        for (index, layer) in program.decoder.iter().enumerate() {
            backend.run_all(&layer.rows);
            if heads.iter().any(|&(layer, _)| layer == index) {
                let mut all = vec![0.0; rows * hidden];
                result = result.and(backend.read_rows(&buffers.written, 0, &mut all));
                let wanted = heads.iter().enumerate().filter(|(_, (layer, _))| *layer == index);
                for (place, &(_, head)) in wanted {
                    let queries = &mut queries[place * rows * shape.head_dim..][..rows * shape.head_dim];
                    for (query, row) in queries.chunks_exact_mut(shape.head_dim).zip(all.chunks_exact(hidden))
                    {
                        query.copy_from_slice(&row[head * shape.head_dim..][..shape.head_dim]);
                    }
                }
            }
            backend.run_all(&layer.behind);
        }
        let computed = match logits.is_empty() {
            true => Ok(()),
            false => {
                let head = weights.own_head.as_ref().unwrap_or(&weights.embedding);
                backend.logits(&HeadOperands::of(head), buffers.written.id(), logits)
            }
        };
        backend.end().and(result).and(computed)?;
        Ok(queries)
    }
}
