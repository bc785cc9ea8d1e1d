//! Idefics2's connector: a gated MLP over patches, and a perceiver over what that gives (arxiv.org/abs/2103.03206). Its latents see the
//! patches and themselves, which is attention in one sequence of both, of whose rows only the latents' are read. What is of few
//! numbers, norms and sums, is the host's.

use hanzo_engine_kernels::{
    Batch, BufferRole, EncoderOps, KernelError, MatrixShape, MatrixSource, PositionBias, SelfAttentionParams,
};

use super::layout::batch_of;
use super::spec::{PerceiverSpec, TowerSpec};
use super::tower::norm_all;
use crate::error::LoadError;
use crate::load::Found;
use crate::tensor::Tensor;

/// Patches that are in the MLP at once, whose inner rows are wide.
const ROWS_AT_ONCE: usize = 256;

/// Its weights on disk.
#[derive(Debug)]
pub(super) struct PerceiverFiles {
    inner: [Tensor; 3], // gate and up (inner, hidden), down (text hidden, inner)
    latents: Tensor,    // (latents, text hidden)
    layers: Vec<LayerFiles>,
    norm: Tensor, // (text hidden)
}

#[derive(Debug)]
struct LayerFiles {
    norms: [Tensor; 3], // of patches, of latents, of latents before the MLP: (text hidden)
    qkv: [Tensor; 3],   // (width, text hidden)
    out: Tensor,        // (text hidden, heads * head_dim)
    mlp: [Tensor; 3],   // gate and up (4 * text hidden, text hidden), down (text hidden, 4 * text hidden)
}

impl PerceiverFiles {
    /// By the names of the library's class.
    pub(super) fn take(
        found: &mut Found<'_>,
        spec: &TowerSpec,
        own: &PerceiverSpec,
    ) -> Result<PerceiverFiles, LoadError> {
        let (hidden, text, heads) = (spec.layers.hidden, spec.text_hidden, own.heads);
        let (q, kv) = (heads.q_width(), heads.kv_heads * heads.head_dim);
        let mut take = |name: String, shape: &[usize]| found.take(&format!("connector.{name}.weight"), shape);
        let mut mlp = |at: &str, inner: usize, from: usize| -> Result<[Tensor; 3], LoadError> {
            Ok([
                take(format!("{at}.gate_proj"), &[inner, from])?,
                take(format!("{at}.up_proj"), &[inner, from])?,
                take(format!("{at}.down_proj"), &[text, inner])?,
            ])
        };
        let inner = mlp("modality_projection", own.inner, hidden)?;
        const AT: &str = "perceiver_resampler";
        let mlps = (0..own.depth).map(|layer| mlp(&format!("{AT}.layers.{layer}.mlp"), 4 * text, text));
        let mlps = mlps.collect::<Result<Vec<_>, _>>()?;
        let mut layer = |(index, mlp): (usize, [Tensor; 3])| -> Result<LayerFiles, LoadError> {
            let mut one = |name: &str, shape: &[usize]| take(format!("{AT}.layers.{index}.{name}"), shape);
            Ok(LayerFiles {
                norms: [
                    one("input_context_norm", &[text])?,
                    one("input_latents_norm", &[text])?,
                    one("post_attention_layernorm", &[text])?,
                ],
                qkv: [
                    one("self_attn.q_proj", &[q, text])?,
                    one("self_attn.k_proj", &[kv, text])?,
                    one("self_attn.v_proj", &[kv, text])?,
                ],
                out: one("self_attn.o_proj", &[text, q])?,
                mlp,
            })
        };
        let layers = mlps.into_iter().enumerate().map(&mut layer).collect::<Result<_, _>>()?;
        let norm = take(format!("{AT}.norm"), &[text])?;
        let latents = found.take(&format!("connector.{AT}.latents"), &[own.latents, text])?;
        Ok(PerceiverFiles { inner, latents, layers, norm })
    }

    /// Those that are packed, by what is packed as one.
    fn matrices(&self) -> impl Iterator<Item = &[Tensor]> {
        let own = [&self.inner[..2], &self.inner[2..]];
        let layers = self.layers.iter();
        let layers = layers.flat_map(|LayerFiles { qkv, out, mlp, .. }| {
            [&qkv[..], std::slice::from_ref(out), &mlp[..2], &mlp[2..]]
        });
        own.into_iter().chain(layers)
    }

    /// Those that stay with the host.
    pub(super) fn held(&self) -> impl Iterator<Item = &Tensor> {
        let norms = self.layers.iter().flat_map(|layer| &layer.norms);
        [&self.latents, &self.norm].into_iter().chain(norms)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.matrices().flatten().chain(self.held())
    }

    /// Bytes of what is packed.
    pub(super) fn packed_bytes<B: EncoderOps>(&self, backend: &B) -> usize {
        let shapes = |tensors: &[Tensor]| tensors.iter().map(super::shape_of).collect::<Vec<_>>();
        let packed = self.matrices().map(|tensors| match backend.supports(tensors[0].dtype) {
            true => backend.matrix_bytes(&shapes(tensors)),
            false => tensors.iter().map(|tensor| tensor.bytes.len()).sum(),
        });
        packed.sum()
    }
}

/// A layer's weights.
struct Layer<B: EncoderOps> {
    norms: [Vec<f32>; 3],
    qkv: B::Matrix,
    out: B::Matrix,
    gate_up: B::Matrix,
    down: B::Matrix,
}

/// Makes the rows of a frame of its patches.
pub(super) struct Perceiver<B: EncoderOps> {
    spec: PerceiverSpec,
    hidden: usize,
    text: usize,
    gate_up: B::Matrix,
    down: B::Matrix,
    latents: Vec<f32>,
    layers: Vec<Layer<B>>,
    norm: Vec<f32>,
    buffers: Buffers<B>,
}

struct Buffers<B: EncoderOps> {
    patches: B::Buffer,  // (at once, hidden)
    inner: B::Buffer,    // (at once, inner)
    given: B::Buffer,    // (at once, text)
    seen: B::Buffer,     // (patches + latents, text)
    qkv: B::Buffer,      // (patches + latents, qkv)
    attended: B::Buffer, // (patches + latents, heads * head_dim)
    found: B::Buffer,    // (latents, heads * head_dim)
    latents: B::Buffer,  // (latents, text)
    between: B::Buffer,  // (latents, 4 * text)
    more: B::Buffer,     // (latents, text)
}

/// Rows and columns of the buffers, in their order.
fn sizes(spec: &TowerSpec, own: &PerceiverSpec, patches: usize) -> [[usize; 2]; 10] {
    let (text, q) = (spec.text_hidden, own.heads.q_width());
    let (both, latents) = (patches + own.latents, own.latents);
    [
        [ROWS_AT_ONCE, spec.layers.hidden],
        [ROWS_AT_ONCE, own.inner],
        [ROWS_AT_ONCE, text],
        [both, text],
        [both, own.heads.qkv_width()],
        [both, q],
        [latents, q],
        [latents, text],
        [latents, 4 * text],
        [latents, text],
    ]
}

/// The widest input or output of a matrix.
pub(super) fn width(spec: &TowerSpec, own: &PerceiverSpec) -> usize {
    let widths = sizes(spec, own, 0).map(|[_, cols]| cols);
    widths.into_iter().chain([2 * own.inner, 8 * spec.text_hidden]).max().unwrap_or(0)
}

/// Bytes of the buffers.
pub(super) fn buffer_bytes<B: EncoderOps>(
    backend: &B,
    spec: &TowerSpec,
    own: &PerceiverSpec,
    patches: usize,
) -> usize {
    let sizes = sizes(spec, own, patches).into_iter();
    sizes.map(|[rows, cols]| backend.buffer_bytes(BufferRole::Operand, rows, cols)).sum()
}

fn pack<B: EncoderOps>(backend: &B, tensors: &[Tensor]) -> Result<B::Matrix, LoadError> {
    if let Some(tensor) = tensors.iter().find(|tensor| !backend.supports(tensor.dtype)) {
        let (tensor, dtype, device) = (tensor.name.clone(), tensor.dtype, backend.device());
        return Err(KernelError::UnsupportedType { tensor, dtype, device }.into());
    }
    let bytes: Vec<_> = tensors.iter().map(|tensor| tensor.bytes.read()).collect();
    let sources = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
        let shape: MatrixShape = super::shape_of(tensor);
        MatrixSource { name: &tensor.name, shape, bytes }
    });
    let packed = backend.pack(&sources.collect::<Vec<_>>())?;
    drop(bytes);
    tensors.iter().for_each(|tensor| tensor.bytes.release());
    Ok(packed)
}

impl<B: EncoderOps> Perceiver<B> {
    /// Reads all weights, and makes the buffers for so many patches.
    pub(super) fn load(
        backend: &B,
        files: &PerceiverFiles,
        spec: &TowerSpec,
        own: &PerceiverSpec,
        patches: usize,
    ) -> Result<Self, LoadError> {
        let layer = |files: &LayerFiles| -> Result<Layer<B>, LoadError> {
            let [context, latents, mlp] = &files.norms;
            Ok(Layer {
                norms: [context.to_f32()?, latents.to_f32()?, mlp.to_f32()?],
                qkv: pack(backend, &files.qkv)?,
                out: pack(backend, std::slice::from_ref(&files.out))?,
                gate_up: pack(backend, &files.mlp[..2])?,
                down: pack(backend, &files.mlp[2..])?,
            })
        };
        let [patch_rows, inner, given, seen, qkv, attended, found, latents, between, more] =
            sizes(spec, own, patches).map(|[rows, cols]| backend.buffer(BufferRole::Operand, rows, cols));
        Ok(Perceiver {
            spec: own.clone(),
            hidden: spec.layers.hidden,
            text: spec.text_hidden,
            gate_up: pack(backend, &files.inner[..2])?,
            down: pack(backend, &files.inner[2..])?,
            latents: files.latents.to_f32()?,
            layers: files.layers.iter().map(layer).collect::<Result<_, _>>()?,
            norm: files.norm.to_f32()?,
            buffers: Buffers {
                patches: patch_rows?,
                inner: inner?,
                given: given?,
                seen: seen?,
                qkv: qkv?,
                attended: attended?,
                found: found?,
                latents: latents?,
                between: between?,
                more: more?,
            },
        })
    }

    /// The rows of a frame, `(latents, text hidden)`, of its patches behind the layers, `(patches, hidden)`.
    pub(super) fn rows(&mut self, backend: &mut B, patches: &[f32]) -> Result<Vec<f32>, KernelError> {
        let context = self.projected(backend, patches)?;
        let (text, eps) = (self.text, self.spec.eps);
        let (count, latent_count) = (context.len() / text, self.spec.latents);
        let both = batch_of(&[count + latent_count]);
        let few = batch_of(&[latent_count]);
        let mut latents = self.latents.clone();
        for layer in &self.layers {
            let [of_context, of_latents, of_mlp] = &layer.norms;
            let mut seen = context.clone();
            norm_all(&mut seen, of_context, eps);
            let mut own = latents.clone();
            norm_all(&mut own, of_latents, eps);
            seen.append(&mut own);
            let Buffers { seen: all, qkv, attended, found, latents: rows, between, more, .. } =
                &mut self.buffers;
            backend.begin(&both)?;
            let written = backend.write_rows(all, 0, &seen);
            backend.matmul(&layer.qkv, None, all, qkv);
            let params = SelfAttentionParams {
                heads: self.spec.heads,
                scale: 1.0 / (self.spec.heads.head_dim as f32).sqrt(),
                reach: None,
                padding: 0,
                bias: PositionBias::None,
            };
            backend.self_attention(qkv, &params, attended);
            backend.end().and(written)?;
            let mut read = vec![0.0; latent_count * self.spec.heads.q_width()];
            backend.read_rows(attended, count, &mut read)?;
            let out = of_few(backend, &few, (found, &read), (more, text), |backend, found, more| {
                backend.matmul(&layer.out, None, found, more);
            })?;
            add(&mut latents, &out);
            let mut normed = latents.clone();
            norm_all(&mut normed, of_mlp, eps);
            let activation = self.spec.activation;
            let out = of_few(backend, &few, (rows, &normed), (more, text), |backend, rows, more| {
                backend.gated_mlp(&layer.gate_up, &layer.down, activation, rows, between, more);
            })?;
            add(&mut latents, &out);
        }
        norm_all(&mut latents, &self.norm, eps);
        Ok(latents)
    }

    /// Patches as wide as the text's rows.
    fn projected(&mut self, backend: &mut B, patches: &[f32]) -> Result<Vec<f32>, KernelError> {
        let text = self.text;
        let mut all = Vec::with_capacity(patches.len() / self.hidden * text);
        for some in patches.chunks(ROWS_AT_ONCE * self.hidden) {
            let Buffers { patches, inner, given, .. } = &mut self.buffers;
            let (gate_up, down, activation) = (&self.gate_up, &self.down, self.spec.inner_activation);
            let batch = batch_of(&[some.len() / self.hidden]);
            let wide = of_few(backend, &batch, (patches, some), (given, text), |backend, patches, given| {
                backend.gated_mlp(gate_up, down, activation, patches, inner, given);
            })?;
            all.extend(wide);
        }
        Ok(all)
    }
}

/// What ops make of rows, read back: as many, of so many columns.
fn of_few<B: EncoderOps>(
    backend: &mut B,
    batch: &Batch,
    (x, rows): (&mut B::Buffer, &[f32]),
    (out, cols): (&mut B::Buffer, usize),
    ops: impl FnOnce(&mut B, &B::Buffer, &mut B::Buffer),
) -> Result<Vec<f32>, KernelError> {
    backend.begin(batch)?;
    let written = backend.write_rows(x, 0, rows);
    ops(backend, x, out);
    backend.end().and(written)?;
    let mut read = vec![0.0; batch.rows() * cols];
    backend.read_rows(out, 0, &mut read)?;
    Ok(read)
}

fn add(rows: &mut [f32], more: &[f32]) {
    rows.iter_mut().zip(more).for_each(|(number, more)| *number += more);
}
