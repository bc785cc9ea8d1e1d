//! A Whisper model's weights on a backend, and its decoder: a step takes tokens of many slots at once.
//! [`super::listening`] runs the encoder, from a window to a slot's cross-attention cache. Choosing tokens and
//! handling logits is done elsewhere.

use hanzo_engine_kernels::{
    Activation, AnyBackend, AttentionParams, BLOCK_TOKENS, Batch, BufferRole, HeadShape, KernelError,
    KvLayout, KvSpec, LayerNormParams, LogitsHead, QkvParams, RowIds, RowSource, StepLimits, ops,
};

use super::files::WhisperFiles;
use super::listening::{Listening, rows_at_once};
use super::packing::{Loader, matrices, shapes_of, vector_lengths};
use super::spec::{Stack, WhisperSpec};
use crate::encoder::WeightType;
use crate::engine::EngineMemory;
use crate::error::LoadError;

const EPS: f32 = 1e-5;

/// Tokens of one slot in a step of the decoder.
#[derive(Clone, Debug)]
pub(crate) struct Writing {
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
pub(crate) struct Followed {
    /// (heads, rows, head_dim)
    pub(crate) keys: Vec<f32>,
}

pub(super) struct Norm {
    pub(super) weight: ops::Vector,
    pub(super) bias: ops::Vector,
}

pub(super) struct Linear {
    pub(super) weight: ops::Matrix,
    pub(super) bias: ops::Vector,
}

pub(super) struct Layer {
    pub(super) norm: Norm,
    pub(super) qkv: Linear,
    pub(super) out: Linear,
    pub(super) cross: Option<Cross>, // decoder only
    pub(super) last_norm: Norm,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

pub(super) struct Cross {
    pub(super) norm: Norm,
    pub(super) query: Linear,
    pub(super) memory: Linear, // keys, then values
    pub(super) out: Linear,
}

/// Model on a backend.
pub(crate) struct Whisper {
    pub(super) backend: AnyBackend,
    pub(crate) spec: WhisperSpec,
    pub(super) windows: usize,
    pub(super) first: Linear,        // (hidden, 3 * mels)
    pub(super) second: Linear,       // (hidden, 3 * hidden)
    pub(super) moments: ops::Matrix, // (rows, hidden)
    pub(super) encoder: Vec<Layer>,
    pub(super) encoder_norm: Norm,
    embedding: ops::Matrix,        // (vocab, hidden)
    own_head: Option<ops::Matrix>, // (vocab, hidden); None: the head is the embedding
    positions: ops::Matrix,        // (tokens, hidden)
    pub(super) decoder: Vec<Layer>,
    decoder_norm: Norm,
    pub(super) memories: ops::Kv,
    cache: ops::Kv,
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
    written_residual: ops::Buffer, // (rows written, hidden)
    written: ops::Buffer,          // (rows written, hidden)
    written_inner: ops::Buffer,    // (rows written, ffn)
    pub(super) batch: Batch,
    pub(super) under_way: Option<Listening>,
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
        // Data that waits between pieces, and the unfolded input of a convolution.
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
        let side = |loader: &mut Loader<'_>, side: &str, stack: Stack| {
            (0..stack.layers).map(|layer| loader.layer(side, layer)).collect::<Result<Vec<_>, _>>()
        };
        let first = loader.linear(&["encoder.conv1".to_owned()])?;
        let second = loader.linear(&["encoder.conv2".to_owned()])?;
        let moments = loader.table("encoder.embed_positions")?;
        let embedding = loader.table("decoder.embed_tokens")?;
        let own_head = loader.own_head()?;
        let positions = loader.table("decoder.embed_positions")?;
        let encoder = side(&mut loader, "encoder", spec.encoder)?;
        let decoder = side(&mut loader, "decoder", spec.decoder)?;
        let (encoder_norm, decoder_norm) =
            (loader.norm("encoder.layer_norm")?, loader.norm("decoder.layer_norm")?);
        let shapes = buffer_shapes(&spec, limits.rows, windows).into_iter();
        let buffers = shapes.map(|(role, rows, cols)| backend.buffer(role, rows, cols));
        let mut buffers = buffers.collect::<Result<Vec<_>, _>>()?.into_iter();
        let mut next = || buffers.next().expect("as many as there are widths");
        Ok(Whisper {
            memories: backend.kv(&cache(&spec, windows, spec.rows))?,
            cache: backend.kv(&cache(&spec, windows, spec.tokens))?,
            narrow: next(),
            wide: next(),
            pair: next(),
            branch: next(),
            residual: next(),
            normed: next(),
            inner: next(),
            kept: next(),
            written_residual: next(),
            written: next(),
            written_inner: next(),
            batch: Batch::default(),
            under_way: None,
            #[cfg(test)]
            encoded: Vec::new(),
            windows,
            first,
            second,
            moments,
            encoder,
            encoder_norm,
            embedding,
            own_head,
            positions,
            decoder,
            decoder_norm,
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
        writings: &[Writing],
        heads: &[(usize, usize)],
        logits: &mut Vec<f32>,
    ) -> Result<Vec<f32>, KernelError> {
        let WhisperSpec { hidden, rows: keys, tokens, vocab, .. } = self.spec;
        let batch = &mut self.batch;
        batch.clear();
        for Writing { slot, before, tokens: own, wanted } in writings {
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
        let backend = &mut self.backend;
        backend.embed(&self.embedding, 1.0, &mut self.written_residual);
        backend.add_embedding(&self.positions, RowIds::Positions { offset: 0 }, &mut self.written_residual);
        layer_norm(backend, &self.decoder[0].norm, &self.written_residual, &mut self.written);
        let mut params = AttentionParams::of(shape, (shape.head_dim as f32).sqrt().recip());
        let mut result = Ok(());
        for (index, layer) in self.decoder.iter().enumerate() {
            let Some(cross) = &layer.cross else { continue };
            backend.matmul(&layer.qkv.weight, Some(&layer.qkv.bias), &self.written, &mut self.wide);
            backend.rope_to_cache(&mut self.wide, &QkvParams::plain(shape), &mut self.cache, index);
            (params.queries_alone, params.memory) = (false, false);
            backend.attention(&self.wide, &params, &self.cache, index, &mut self.branch);
            backend.matmul(&layer.out.weight, Some(&layer.out.bias), &self.branch, &mut self.written);
            add_layer_norm(backend, &cross.norm, &mut self.written_residual, &self.written, &mut self.branch);
            backend.matmul(&cross.query.weight, Some(&cross.query.bias), &self.branch, &mut self.written);
            if heads.iter().any(|&(layer, _)| layer == index) {
                let mut all = vec![0.0; rows * hidden];
                result = result.and(backend.read_rows(&self.written, 0, &mut all));
                let wanted = heads.iter().enumerate().filter(|(_, (layer, _))| *layer == index);
                for (place, &(_, head)) in wanted {
                    let queries = &mut queries[place * rows * shape.head_dim..][..rows * shape.head_dim];
                    for (query, row) in queries.chunks_exact_mut(shape.head_dim).zip(all.chunks_exact(hidden))
                    {
                        query.copy_from_slice(&row[head * shape.head_dim..][..shape.head_dim]);
                    }
                }
            }
            (params.queries_alone, params.memory) = (true, true);
            backend.attention(&self.written, &params, &self.memories, index, &mut self.branch);
            backend.matmul(&cross.out.weight, Some(&cross.out.bias), &self.branch, &mut self.written);
            let next = self.decoder.get(index + 1).map_or(&self.decoder_norm, |next| &next.norm);
            let buffers =
                (&mut self.written_residual, &mut self.written, &mut self.branch, &mut self.written_inner);
            mlp(backend, layer, next, buffers);
        }
        let computed = match logits.is_empty() {
            true => Ok(()),
            false => {
                let head = self.own_head.as_ref().unwrap_or(&self.embedding);
                backend.logits(LogitsHead::of(head), &self.written, logits)
            }
        };
        backend.end().and(result).and(computed)?;
        Ok(queries)
    }
}

/// Unfolded input of a convolution with three taps: rows `first` to `first + 2` of `x`, with the three neighbours
/// of each number side by side. Rows outside are zeros.
pub(crate) fn unfold(x: &[f32], cols: usize, first: isize, out: &mut [f32]) {
    for tap in 0..3 {
        let row =
            usize::try_from(first + tap as isize).ok().and_then(|row| x.get(row * cols..(row + 1) * cols));
        let to = out.iter_mut().skip(tap).step_by(3);
        match row {
            Some(row) => to.zip(row).for_each(|(to, from)| *to = *from),
            None => to.for_each(|to| *to = 0.0),
        }
    }
}

/// From the attention output in `normed` to the next layer's input, also in `normed`.
fn mlp(
    backend: &mut AnyBackend,
    layer: &Layer,
    next: &Norm,
    (residual, normed, branch, inner): (
        &mut ops::Buffer,
        &mut ops::Buffer,
        &mut ops::Buffer,
        &mut ops::Buffer,
    ),
) {
    mlp_of(backend, layer, (residual, normed, branch, inner));
    add_layer_norm(backend, next, residual, branch, normed);
}

/// Adds the attention output in `normed` to the residual, and leaves the MLP's output in `branch`.
pub(super) fn mlp_of(
    backend: &mut AnyBackend,
    layer: &Layer,
    (residual, normed, branch, inner): (&mut ops::Buffer, &ops::Buffer, &mut ops::Buffer, &mut ops::Buffer),
) {
    add_layer_norm(backend, &layer.last_norm, residual, normed, branch);
    backend.matmul_activated(&layer.up.weight, Some(&layer.up.bias), Activation::GeluErf, branch, inner);
    backend.matmul(&layer.down.weight, Some(&layer.down.bias), inner, branch);
}

fn params(norm: &Norm) -> LayerNormParams<&ops::Vector> {
    LayerNormParams { weight: &norm.weight, bias: Some(&norm.bias), eps: EPS }
}

pub(super) fn layer_norm(backend: &mut AnyBackend, norm: &Norm, x: &ops::Buffer, out: &mut ops::Buffer) {
    backend.layer_norm(x, &params(norm), out);
}

fn add_layer_norm(
    backend: &mut AnyBackend,
    norm: &Norm,
    residual: &mut ops::Buffer,
    x: &ops::Buffer,
    out: &mut ops::Buffer,
) {
    backend.add_layer_norm(residual, x, &params(norm), out);
}
