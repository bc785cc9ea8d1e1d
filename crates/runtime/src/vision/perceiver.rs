//! Idefics2's connector: a gated MLP over patches, then a perceiver (arxiv.org/abs/2103.03206). Its latents attend
//! to the patches and themselves. This is computed as self-attention over one sequence of both, of which only the
//! latents' rows are read. On devices that can compute attention for some rows only (`attends_in_parts`), the other
//! rows' attention is left out. Small computations, norms and sums, run on the host.

use std::ops::Range;

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, Batch, BufferRole, KernelError, MatrixShape, MatrixSource, Op, QUERIES_PART,
};

use super::layout::batch_of;
use super::spec::{PerceiverSpec, TowerSpec};
use super::tower::norm_all;
use super::towers::{MILLION, Products};
use crate::error::LoadError;
use crate::load::Found;
use crate::network::{Attend, ProgramBuilder};
use crate::tensor::Tensor;

/// Maximum rows computed at once: those inside the MLP are wide.
pub(super) const ROWS_AT_ONCE: usize = 256;

/// Weights on disk.
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
    /// Takes the tensors by the library's names.
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

    /// Tensors that are packed, grouped by packed matrix.
    fn matrices(&self) -> impl Iterator<Item = &[Tensor]> {
        let own = [&self.inner[..2], &self.inner[2..]];
        let layers = self.layers.iter();
        let layers = layers.flat_map(|LayerFiles { qkv, out, mlp, .. }| {
            [&qkv[..], std::slice::from_ref(out), &mlp[..2], &mlp[2..]]
        });
        own.into_iter().chain(layers)
    }

    /// Tensors that stay in host memory.
    pub(super) fn held(&self) -> impl Iterator<Item = &Tensor> {
        let norms = self.layers.iter().flat_map(|layer| &layer.norms);
        [&self.latents, &self.norm].into_iter().chain(norms)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.matrices().flatten().chain(self.held())
    }

    /// Bytes of the packed matrices.
    pub(super) fn packed_bytes(&self, backend: &AnyBackend) -> usize {
        let shapes = |tensors: &[Tensor]| tensors.iter().map(super::shape_of).collect::<Vec<_>>();
        let packed = self.matrices().map(|tensors| match backend.supports(tensors[0].dtype) {
            true => backend.matrix_bytes(&shapes(tensors)),
            false => tensors.iter().map(|tensor| tensor.bytes.len()).sum(),
        });
        packed.sum()
    }
}

/// Weights of a layer.
struct Layer {
    norms: [Vec<f32>; 3],
    qkv: ops::Matrix,
    out: ops::Matrix,
    gate_up: ops::Matrix,
    down: ops::Matrix,
}

/// Perceiver: makes the rows of a frame from its patches.
pub(super) struct Perceiver {
    spec: PerceiverSpec,
    hidden: usize,
    text: usize,
    gate_up: ops::Matrix,
    down: ops::Matrix,
    latents: Vec<f32>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    parts: bool, // whether only latents attend
    way: Way,
    buffers: Buffers,
    program: PerceiverProgram,
}

/// Ops of the perceiver.
#[derive(Default)]
struct PerceiverProgram {
    project: Vec<Op>, // from `patches` to `given`
    layers: Vec<PerceiverOps>,
}

/// Ops of a layer, around its attention.
struct PerceiverOps {
    rows: Vec<Op>, // from `seen` to `made`
    out: Vec<Op>,  // from `found` to `more`
    mlp: Vec<Op>,  // from `latents` to `more`
}

/// Progress of the current frame.
#[derive(Default)]
struct Way {
    context: Vec<f32>, // (patches, text)
    latents: Vec<f32>, // (latents, text)
}

struct Buffers {
    patches: ops::Buffer,  // (at once, hidden)
    inner: ops::Buffer,    // (at once, inner)
    given: ops::Buffer,    // (at once, text)
    seen: ops::Buffer,     // (at once, text)
    made: ops::Buffer,     // (at once, qkv)
    qkv: ops::Buffer,      // (patches + latents, qkv)
    attended: ops::Buffer, // (rows that attend, heads * head_dim)
    found: ops::Buffer,    // (latents, heads * head_dim)
    latents: ops::Buffer,  // (latents, text)
    between: ops::Buffer,  // (latents, 4 * text)
    more: ops::Buffer,     // (latents, text)
}

/// Rows and columns of the buffers, in their order.
fn sizes(spec: &TowerSpec, own: &PerceiverSpec, patches: usize, parts: bool) -> [[usize; 2]; 11] {
    let (text, q) = (spec.text_hidden, own.heads.q_width());
    let (both, latents) = (patches + own.latents, own.latents);
    let qkv = own.heads.qkv_width();
    [
        [ROWS_AT_ONCE, spec.layers.hidden],
        [ROWS_AT_ONCE, own.inner],
        [ROWS_AT_ONCE, text],
        [ROWS_AT_ONCE, text],
        [ROWS_AT_ONCE, qkv],
        [both, qkv],
        [if parts { both.min(seeing_max(own)) } else { both }, q],
        [latents, q],
        [latents, text],
        [latents, 4 * text],
        [latents, text],
    ]
}

/// Maximum rows that attend, if only the latents and the start of their part do.
fn seeing_max(own: &PerceiverSpec) -> usize {
    own.latents + QUERIES_PART
}

/// Maximum rows of a step, for `patches` patches.
pub(super) fn rows_max(own: &PerceiverSpec, patches: usize, parts: bool) -> usize {
    let seeing = if parts { seeing_max(own) } else { patches + own.latents };
    seeing.max(ROWS_AT_ONCE)
}

/// Widest input or output of a matrix.
pub(super) fn width(spec: &TowerSpec, own: &PerceiverSpec) -> usize {
    let widths = sizes(spec, own, 0, false).map(|[_, cols]| cols);
    widths.into_iter().chain([2 * own.inner, 8 * spec.text_hidden]).max().unwrap_or(0)
}

/// Bytes of the buffers, and of data that waits on the host.
pub(super) fn buffer_bytes(
    backend: &AnyBackend,
    spec: &TowerSpec,
    own: &PerceiverSpec,
    patches: usize,
) -> usize {
    let sizes = sizes(spec, own, patches, backend.facts().attends_in_parts).into_iter();
    let buffers = sizes.map(|[rows, cols]| backend.buffer_bytes(BufferRole::Operand, rows, cols));
    buffers.sum::<usize>() + (patches + own.latents) * spec.text_hidden * size_of::<f32>()
}

fn pack(backend: &AnyBackend, tensors: &[Tensor]) -> Result<ops::Matrix, LoadError> {
    if let Some(tensor) = tensors.iter().find(|tensor| !backend.supports(tensor.dtype)) {
        let (tensor, dtype, device) = (tensor.name.clone(), tensor.dtype, backend.facts().device.clone());
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

impl Perceiver {
    /// Reads all weights, and allocates buffers for `patches` patches.
    pub(super) fn load(
        backend: &AnyBackend,
        files: &PerceiverFiles,
        spec: &TowerSpec,
        own: &PerceiverSpec,
        patches: usize,
    ) -> Result<Self, LoadError> {
        let layer = |files: &LayerFiles| -> Result<Layer, LoadError> {
            let [context, latents, mlp] = &files.norms;
            Ok(Layer {
                norms: [context.to_f32()?, latents.to_f32()?, mlp.to_f32()?],
                qkv: pack(backend, &files.qkv)?,
                out: pack(backend, std::slice::from_ref(&files.out))?,
                gate_up: pack(backend, &files.mlp[..2])?,
                down: pack(backend, &files.mlp[2..])?,
            })
        };
        let parts = backend.facts().attends_in_parts;
        let [patch_rows, inner, given, seen, made, qkv, attended, found, latents, between, more] =
            sizes(spec, own, patches, parts)
                .map(|[rows, cols]| backend.buffer(BufferRole::Operand, rows, cols));
        let mut perceiver = Perceiver {
            spec: own.clone(),
            hidden: spec.layers.hidden,
            text: spec.text_hidden,
            gate_up: pack(backend, &files.inner[..2])?,
            down: pack(backend, &files.inner[2..])?,
            latents: files.latents.to_f32()?,
            layers: files.layers.iter().map(layer).collect::<Result<_, _>>()?,
            norm: files.norm.to_f32()?,
            parts,
            way: Way::default(),
            buffers: Buffers {
                patches: patch_rows?,
                inner: inner?,
                given: given?,
                seen: seen?,
                made: made?,
                qkv: qkv?,
                attended: attended?,
                found: found?,
                latents: latents?,
                between: between?,
                more: more?,
            },
            program: PerceiverProgram::default(),
        };
        perceiver.program = perceiver.build();
        Ok(perceiver)
    }

    fn build(&self) -> PerceiverProgram {
        let (spec, b) = (&self.spec, &self.buffers);
        let mut p = ProgramBuilder::default();
        p.gated_mlp(
            [&self.gate_up, &self.down],
            spec.inner_activation,
            b.patches.id(),
            b.inner.id(),
            b.given.id(),
        );
        let project = p.finish_ops();
        let layer = |layer: &Layer| {
            p.matmul(&layer.qkv, None, b.seen.id(), b.made.id());
            let rows = p.finish_ops();
            p.matmul(&layer.out, None, b.found.id(), b.more.id());
            let out = p.finish_ops();
            let matrices = [&layer.gate_up, &layer.down];
            p.gated_mlp(matrices, spec.activation, b.latents.id(), b.between.id(), b.more.id());
            PerceiverOps { rows, out, mlp: p.finish_ops() }
        };
        PerceiverProgram { project, layers: self.layers.iter().map(layer).collect() }
    }

    /// Attention over all rows.
    fn attend(&self) -> Attend {
        let heads = self.spec.heads;
        let scale = 1.0 / (heads.head_dim as f32).sqrt();
        Attend { qkv: self.buffers.qkv.id(), heads, scale, out: self.buffers.attended.id() }
    }

    /// Rows of a frame, `(latents, text hidden)`, from its patches after the layers, `(patches, hidden)`.
    pub(super) fn rows(
        &mut self,
        backend: &mut AnyBackend,
        patches: &[f32],
    ) -> Result<Vec<f32>, KernelError> {
        self.begin();
        for some in patches.chunks(ROWS_AT_ONCE * self.hidden) {
            self.project(backend, some)?;
        }
        let all = self.seen_rows();
        for layer in 0..self.depth() {
            for row in (0..all).step_by(ROWS_AT_ONCE) {
                self.make_rows(backend, layer, row..all.min(row + ROWS_AT_ONCE))?;
            }
            self.see(backend, layer)?;
        }
        Ok(self.take())
    }

    /// Starts a frame.
    pub(super) fn begin(&mut self) {
        self.way = Way { context: Vec::new(), latents: self.latents.clone() };
    }

    /// Number of layers.
    pub(super) fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Rows that latents attend to: those of patches, then their own.
    pub(super) fn seen_rows(&self) -> usize {
        self.way.context.len() / self.text + self.spec.latents
    }

    /// Projects at most [`ROWS_AT_ONCE`] patches to the text model's width.
    pub(super) fn project(&mut self, backend: &mut AnyBackend, some: &[f32]) -> Result<(), KernelError> {
        let Buffers { patches, given, .. } = &mut self.buffers;
        let batch = batch_of(&[some.len() / self.hidden]);
        let wide = of_few(backend, &batch, patches, some, given, self.text, &self.program.project)?;
        self.way.context.extend(wide);
        Ok(())
    }

    /// Computes queries, keys and values of at most [`ROWS_AT_ONCE`] rows in a layer.
    pub(super) fn make_rows(
        &mut self,
        backend: &mut AnyBackend,
        layer: usize,
        rows: Range<usize>,
    ) -> Result<(), KernelError> {
        let (text, eps) = (self.text, self.spec.eps);
        let [of_context, of_latents, _] = &self.layers[layer].norms;
        let Way { context, latents } = &self.way;
        let count = context.len() / text;
        let [mut read, mut own] = [
            context[rows.start.min(count) * text..rows.end.min(count) * text].to_vec(),
            latents[rows.start.saturating_sub(count) * text..rows.end.saturating_sub(count) * text].to_vec(),
        ];
        norm_all(&mut read, of_context, eps);
        norm_all(&mut own, of_latents, eps);
        read.append(&mut own);
        let Buffers { seen, made, qkv: all, .. } = &mut self.buffers;
        let (batch, width) = (batch_of(&[rows.len()]), self.spec.heads.qkv_width());
        let ops = &self.program.layers[layer].rows;
        let numbers = of_few(backend, &batch, seen, &read, made, width, ops)?;
        backend.write_rows(all, rows.start, &numbers)
    }

    /// Computes the latents' attention in a layer, once all rows have keys and values, and the rest of the layer.
    pub(super) fn see(&mut self, backend: &mut AnyBackend, layer: usize) -> Result<(), KernelError> {
        let (text, latent_count, all) = (self.text, self.spec.latents, self.seen_rows());
        let (count, few) = (all - latent_count, batch_of(&[latent_count]));
        let (attend, [_, _, of_mlp]) = (self.attend(), &self.layers[layer].norms);
        let Buffers { attended, found, latents: rows, more, .. } = &mut self.buffers;
        let PerceiverOps { out, mlp, .. } = &self.program.layers[layer];
        let first = if self.parts { count / QUERIES_PART * QUERIES_PART } else { 0 };
        backend.begin(&batch_of(&[all - first]))?;
        backend.run(&if self.parts { attend.part(0..all, first..all) } else { attend.whole() });
        backend.end()?;
        let mut read = vec![0.0; latent_count * self.spec.heads.q_width()];
        backend.read_rows(attended, count - first, &mut read)?;
        let given = of_few(backend, &few, found, &read, more, text, out)?;
        let latents = &mut self.way.latents;
        add(latents, &given);
        let mut normed = latents.clone();
        norm_all(&mut normed, of_mlp, self.spec.eps);
        let given = of_few(backend, &few, rows, &normed, more, text, mlp)?;
        add(latents, &given);
        Ok(())
    }

    /// Final latents of a frame.
    pub(super) fn take(&mut self) -> Vec<f32> {
        let mut latents = std::mem::take(&mut self.way).latents;
        norm_all(&mut latents, &self.norm, self.spec.eps);
        latents
    }

    /// Millions of products to project a patch.
    pub(super) fn project_cost(&self) -> f64 {
        (self.spec.inner * (2 * self.hidden + self.text)) as f64 / MILLION
    }

    /// Millions of products for queries, keys and values of a row.
    pub(super) fn row_cost(&self) -> f64 {
        (self.text * self.spec.heads.qkv_width()) as f64 / MILLION
    }

    /// Products of the latents' attention and the rest of the layer.
    pub(super) fn see_cost(&self) -> Products {
        let (q, latents) = (self.spec.heads.q_width(), self.spec.latents);
        let attention = 2 * q * seeing_max(&self.spec) * self.seen_rows();
        let matrix = latents * self.text * (q + 12 * self.text);
        Products { matrix: matrix as f64 / MILLION, attention: attention as f64 / MILLION }
    }
}

/// Runs ops on some rows in `x` and reads the result in `out` back: as many rows, of `cols` columns.
fn of_few(
    backend: &mut AnyBackend,
    batch: &Batch,
    x: &mut ops::Buffer,
    rows: &[f32],
    out: &ops::Buffer,
    cols: usize,
    ops: &[Op],
) -> Result<Vec<f32>, KernelError> {
    backend.begin(batch)?;
    let written = backend.write_rows(x, 0, rows);
    backend.run_all(ops);
    backend.end().and(written)?;
    let mut read = vec![0.0; batch.rows() * cols];
    backend.read_rows(out, 0, &mut read)?;
    Ok(read)
}

fn add(rows: &mut [f32], more: &[f32]) {
    rows.iter_mut().zip(more).for_each(|(number, more)| *number += more);
}
