//! The one decoder that runs every family: weights packed for a backend, and a step as a straight line of ops
//! on buffers made beforehand. Which sequences run, and where their keys and values live, is the scheduler's.

use hanzo_engine_kernels::{
    AttentionParams, Backend, Batch, BufferRole, ExpertParts, KernelError, MatrixShape, MatrixSource,
    MoeParams, QkvParams, Rope, StepLimits, Ticket,
};

use crate::error::LoadError;
use crate::load::{ModelFiles, Tensor};
use crate::spec::{DecoderSpec, LayerWeight, MoeSpec, Weight};
use crate::step::Step;

/// What a decoder takes besides its KV cache, before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Packed weights, to the byte. A matrix of a type the backend cannot pack counts as its file's bytes;
    /// [`Decoder::load`] refuses it.
    pub weights_bytes: u64,
    /// Role and columns of each buffer.
    buffers: Vec<(BufferRole, usize)>,
}

impl MemoryPlan {
    /// Of these packed weights, and buffers of these roles and columns.
    pub(crate) fn new(weights_bytes: u64, buffers: &[(BufferRole, usize)]) -> Self {
        Self { weights_bytes, buffers: buffers.to_vec() }
    }

    /// Buffers and the backend's scratch for steps within `limits`.
    pub fn scratch_bytes<B: Backend>(&self, backend: &B, limits: &StepLimits) -> u64 {
        let bytes =
            |&(role, cols): &(BufferRole, usize)| backend.buffer_bytes(role, limits.rows, cols) as u64;
        self.buffers.iter().map(bytes).sum::<u64>() + backend.scratch_bytes(limits) as u64
    }
}

/// A model's weights on a backend, and what it takes to run them.
pub struct Decoder<B: Backend> {
    spec: DecoderSpec,
    embedding: B::Matrix, // (vocab, hidden)
    layers: Vec<Layer<B>>,
    output_norm: B::Vector,  // (hidden)
    head: Option<B::Matrix>, // (vocab, hidden); the embedding where there is none
    inv_freq: B::Vector,     // (rope.dim / 2)
    buffers: Option<Buffers<B>>,
}

struct Layer<B: Backend> {
    attention_norm: B::Vector,      // (hidden)
    qkv: B::Matrix,                 // (qkv_width, hidden): query, key and value projections
    qkv_bias: Option<B::Vector>,    // (qkv_width)
    q_norm: Option<B::Vector>,      // (head_dim)
    k_norm: Option<B::Vector>,      // (head_dim)
    output: B::Matrix,              // (hidden, q_width)
    output_bias: Option<B::Vector>, // (hidden)
    mlp_norm: B::Vector,            // (hidden)
    mlp: Mlp<B>,
    window: Option<u32>,
}

enum Mlp<B: Backend> {
    Dense {
        gate_up: B::Matrix, // (2 * ffn, hidden)
        down: B::Matrix,    // (hidden, ffn)
    },
    Experts {
        params: MoeParams,
        router: B::Matrix,   // (experts, hidden)
        experts: B::Experts, // (experts), each (2 * moe.ffn, hidden) and (hidden, moe.ffn)
    },
}

/// Activations of one step, all `(rows, _)`.
struct Buffers<B: Backend> {
    rows: usize,
    residual: B::Buffer,       // (rows, hidden)
    normed: B::Buffer,         // (rows, hidden)
    qkv: B::Buffer,            // (rows, qkv_width)
    attended: B::Buffer,       // (rows, q_width)
    mlp_hidden: B::Buffer,     // (rows, ffn)
    experts_hidden: B::Buffer, // (rows, moe.ffn_used)
    branch: B::Buffer,         // (rows, hidden): what a layer's half adds to the residual
}

/// Role and columns of [`Buffers`]' members, in their order.
fn buffer_shapes(spec: &DecoderSpec) -> [(BufferRole, usize); 7] {
    use BufferRole::{Operand, Residual};
    let DecoderSpec { hidden, ffn, heads, moe, .. } = spec;
    let experts_ffn = moe.as_ref().map_or(0, MoeSpec::ffn_used);
    [
        (Residual, *hidden),
        (Operand, *hidden),
        (Operand, heads.qkv_width()),
        (Operand, heads.q_width()),
        (Operand, *ffn),
        (Operand, experts_ffn),
        (Operand, *hidden),
    ]
}

/// What a layer's matrices are packed from: parts stacked by rows.
const QKV: &[LayerWeight] = &[LayerWeight::Query, LayerWeight::Key, LayerWeight::Value];
const QKV_BIAS: &[LayerWeight] = &[LayerWeight::QueryBias, LayerWeight::KeyBias, LayerWeight::ValueBias];
const OUTPUT: &[LayerWeight] = &[LayerWeight::AttentionOutput];
const GATE_UP: &[LayerWeight] = &[LayerWeight::Gate, LayerWeight::Up];
const DOWN: &[LayerWeight] = &[LayerWeight::Down];

impl<B: Backend> Decoder<B> {
    /// What [`Decoder::load`] and [`Decoder::prepare`] would take. Reads no weights.
    pub fn plan(backend: &B, files: &ModelFiles) -> MemoryPlan {
        let spec = &files.spec;
        let mut weights_bytes = 0;
        for group in matrix_groups(spec) {
            let parts: Vec<MatrixShape> =
                group.iter().map(|&weight| matrix_shape(files.tensor(weight))).collect();
            weights_bytes += if parts.iter().all(|part| backend.supports(part.dtype)) {
                backend.matrix_bytes(&parts)
            } else {
                group.iter().map(|&weight| files.tensor(weight).bytes.len()).sum()
            };
        }
        for layer in 0..spec.layers {
            let experts = expert_groups(spec, layer);
            let weights = || experts.iter().flat_map(|expert| expert.gate_up.iter().chain(&expert.down));
            weights_bytes += if weights().all(|&weight| backend.supports(files.tensor(weight).dtype)) {
                backend.experts_bytes(&shapes(files, &experts))
            } else {
                weights().map(|&weight| files.tensor(weight).bytes.len()).sum()
            };
        }
        let vectors = spec.weights().filter(|(_, shape)| shape.len() == 1);
        let lengths = vectors.map(|(_, shape)| shape[0]).chain([spec.rope.dim / 2]);
        weights_bytes += lengths.map(|length| backend.vector_bytes(length)).sum::<usize>();
        MemoryPlan::new(weights_bytes as u64, &buffer_shapes(spec))
    }

    /// Reads and packs all weights. `progress` hears the share that is done, up to 1. At no time is more held
    /// than the packed weights and one matrix, or one expert's, as stored; a mapped file's pages are given back as they are packed.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot pack a type (nothing is packed then) or give the memory; `Unsupported`
    /// where a head differs from the embedding it is tied to.
    pub fn load(backend: &B, files: &ModelFiles, progress: &mut dyn FnMut(f32)) -> Result<Self, LoadError> {
        let spec = files.spec.clone();
        let experts = (0..spec.layers).flat_map(|layer| expert_groups(&spec, layer));
        let experts = experts.flat_map(|expert| [expert.gate_up, expert.down]);
        for weight in matrix_groups(&spec).into_iter().chain(experts).flatten() {
            let Tensor { name, dtype, .. } = files.tensor(weight);
            if !backend.supports(*dtype) {
                let (tensor, dtype, device) = (name.clone(), *dtype, backend.device());
                return Err(KernelError::UnsupportedType { tensor, dtype, device }.into());
            }
        }
        check_tied_twin(files)?;
        let mut loader =
            Loader { backend, files, progress, bytes_done: 0, bytes_total: files.weight_bytes() };
        let embedding = loader.matrix(&[Weight::TokenEmbedding])?;
        let layers: Result<Vec<_>, _> = (0..spec.layers).map(|layer| loader.layer(&spec, layer)).collect();
        Ok(Self {
            embedding,
            layers: layers?,
            output_norm: loader.vector(&[Weight::OutputNorm])?,
            head: if spec.tied_embeddings { None } else { Some(loader.matrix(&[Weight::Output])?) },
            inv_freq: backend.vector(&spec.rope.inv_freq())?,
            buffers: None,
            spec,
        })
    }

    /// What this decoder is.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Makes all buffers and the backend's scratch for steps within `limits`. Called once, before the first step.
    ///
    /// # Errors
    /// The backend's, when it cannot give the memory.
    pub fn prepare(&mut self, backend: &mut B, limits: &StepLimits) -> Result<(), KernelError> {
        let rows = limits.rows;
        let make = |(role, cols)| backend.buffer(role, rows, cols);
        let [residual, normed, qkv, attended, mlp_hidden, experts_hidden, branch] =
            buffer_shapes(&self.spec).map(make);
        self.buffers = Some(Buffers {
            rows,
            residual: residual?,
            normed: normed?,
            qkv: qkv?,
            attended: attended?,
            mlp_hidden: mlp_hidden?,
            experts_hidden: experts_hidden?,
            branch: branch?,
        });
        backend.reserve(limits)
    }

    /// One step: reads the batch's tokens, adds their keys and values to the cache, and writes the logits of
    /// `batch.logit_rows` to `logits`, `(logit_rows, vocab)`.
    ///
    /// # Errors
    /// The device's. The cache's content is then unknown.
    ///
    /// # Panics
    /// Without [`Decoder::prepare`], and on batches outside of its limits.
    pub fn forward(
        &mut self,
        backend: &mut B,
        batch: &Batch,
        kv: &mut B::Kv,
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        assert_eq!(
            logits.len(),
            batch.logit_rows.len() * self.spec.vocab,
            "a row of logits for each asked for"
        );
        backend.begin(batch)?;
        self.layers_forward(backend, batch, kv);
        let computed = if logits.is_empty() {
            Ok(())
        } else {
            let buffers =
                self.buffers.as_ref().expect("prepared, because the layers have run on the buffers");
            backend.logits(self.head.as_ref().unwrap_or(&self.embedding), &buffers.normed, logits)
        };
        // The step is ended whatever came of it, so that the device is given back.
        backend.end().and(computed)
    }

    /// One step that draws its tokens itself: reads the step's rows, adds their keys and values to the cache, and draws a token
    /// for each logit row. The device may compute it while the host goes on, until [`Backend::wait`]. `room` is
    /// [`Backend::sample_room`]'s.
    ///
    /// # Errors
    /// The device's. The cache's content is then unknown.
    ///
    /// # Panics
    /// Without [`Decoder::prepare`], and on steps outside of its limits.
    pub fn submit(
        &mut self,
        backend: &mut B,
        step: &Step,
        kv: &mut B::Kv,
        room: &mut [f32],
    ) -> Result<Ticket, KernelError> {
        backend.begin(&step.batch)?;
        let drawn = self.drawn(backend, step, kv, room);
        if let Err(error) = drawn {
            // The step is ended whatever came of it, so that the device is given back.
            return backend.end().and(Err(error));
        }
        backend.submit()
    }

    fn drawn(
        &mut self,
        backend: &mut B,
        step: &Step,
        kv: &mut B::Kv,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        const PREPARED: &str = "`prepare` is called before the first step, as its docs ask";
        let buffers = self.buffers.as_mut().expect(PREPARED);
        for given in &step.given {
            backend.write_rows(&mut buffers.residual, given.row, &given.values[given.elements.clone()])?;
        }
        self.layers_forward(backend, &step.batch, kv);
        if step.draws.rows.is_empty() {
            return Ok(());
        }
        let buffers = self.buffers.as_ref().expect(PREPARED);
        backend.sample(self.head.as_ref().unwrap_or(&self.embedding), &buffers.normed, &step.draws, room)
    }

    /// Rows of the last step as the head reads them, after the last norm, from row `first` on: `out` is `(n, hidden)`.
    ///
    /// # Errors
    /// The backend's.
    pub fn read_hidden(&self, backend: &B, first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        let buffers = self.buffers.as_ref().expect("prepared, because a step has run on the buffers");
        backend.read_rows(&buffers.normed, first, out)
    }

    /// From tokens to the rows the head reads, in the order of the papers.
    fn layers_forward(&mut self, backend: &mut B, batch: &Batch, kv: &mut B::Kv) {
        let (spec, eps) = (&self.spec, self.spec.norm_eps);
        let b = self.buffers.as_mut().expect("`prepare` is called before the first step, as its docs ask");
        assert!(batch.rows() <= b.rows, "{} rows; buffers were made for {}", batch.rows(), b.rows);
        let norm_after = |layer: usize| match self.layers.get(layer + 1) {
            Some(next) => &next.attention_norm,
            None => &self.output_norm,
        };
        backend.embed(&self.embedding, 1.0, &mut b.residual);
        backend.rms_norm(&b.residual, &self.layers[0].attention_norm, eps, &mut b.normed);
        for (index, layer) in self.layers.iter().enumerate() {
            let rope = Rope {
                kind: spec.rope.kind,
                inv_freq: &self.inv_freq,
                magnitude: spec.rope.magnitude,
                axes: None,
            };
            let qkv_params = QkvParams {
                shape: spec.heads,
                q_norm: layer.q_norm.as_ref(),
                k_norm: layer.k_norm.as_ref(),
                norm_eps: eps,
                rope: Some(rope),
            };
            let attention_params = AttentionParams {
                shape: spec.heads,
                scale: spec.attention_scale(),
                softcap: None,
                window: layer.window,
                sinks: None,
            };
            backend.matmul(&layer.qkv, layer.qkv_bias.as_ref(), &b.normed, &mut b.qkv);
            backend.rope_to_cache(&mut b.qkv, &qkv_params, kv, index);
            backend.attention(&b.qkv, &attention_params, kv, index, &mut b.attended);
            backend.matmul(&layer.output, layer.output_bias.as_ref(), &b.attended, &mut b.branch);
            backend.all_reduce(&mut b.branch);
            backend.add_rms_norm(&mut b.residual, &b.branch, &layer.mlp_norm, eps, &mut b.normed);
            match &layer.mlp {
                Mlp::Dense { gate_up, down } => {
                    let (x, hidden, out) = (&b.normed, &mut b.mlp_hidden, &mut b.branch);
                    backend.gated_mlp(gate_up, down, spec.activation, x, hidden, out);
                }
                Mlp::Experts { params, router, experts } => {
                    let (x, hidden, out) = (&b.normed, &mut b.experts_hidden, &mut b.branch);
                    backend.moe(router, experts, params, x, hidden, out);
                }
            }
            backend.all_reduce(&mut b.branch);
            backend.add_rms_norm(&mut b.residual, &b.branch, norm_after(index), eps, &mut b.normed);
        }
    }
}

/// Packs weights and tells how far it is.
struct Loader<'a, B: Backend> {
    backend: &'a B,
    files: &'a ModelFiles,
    progress: &'a mut dyn FnMut(f32),
    bytes_done: u64,
    bytes_total: u64,
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&mut self, spec: &DecoderSpec, layer: usize) -> Result<Layer<B>, LoadError> {
        let of_layer = |parts: &[LayerWeight]| -> Vec<Weight> {
            parts.iter().map(|&part| Weight::Layer(layer, part)).collect()
        };
        let norm_of = |weight| [Weight::Layer(layer, weight)];
        Ok(Layer {
            attention_norm: self.vector(&norm_of(LayerWeight::AttentionNorm))?,
            qkv: self.matrix(&of_layer(QKV))?,
            qkv_bias: self.vector_if(spec.qkv_bias, &of_layer(QKV_BIAS))?,
            q_norm: self.vector_if(spec.qk_norm, &norm_of(LayerWeight::QueryNorm))?,
            k_norm: self.vector_if(spec.qk_norm, &norm_of(LayerWeight::KeyNorm))?,
            output: self.matrix(&of_layer(OUTPUT))?,
            output_bias: self.vector_if(spec.o_bias, &norm_of(LayerWeight::AttentionOutputBias))?,
            mlp_norm: self.vector(&norm_of(LayerWeight::MlpNorm))?,
            mlp: match spec.moe_of(layer) {
                None => Mlp::Dense {
                    gate_up: self.matrix(&of_layer(GATE_UP))?,
                    down: self.matrix(&of_layer(DOWN))?,
                },
                Some(moe) => self.experts(moe.params(spec.activation), spec, layer)?,
            },
            window: spec.windows[layer],
        })
    }

    fn experts(&mut self, params: MoeParams, spec: &DecoderSpec, layer: usize) -> Result<Mlp<B>, LoadError> {
        let router = self.matrix(&[Weight::Layer(layer, LayerWeight::Router)])?;
        let groups = expert_groups(spec, layer);
        let mut experts = self.backend.experts(&shapes(self.files, &groups))?;
        for ExpertParts { gate_up, down } in &groups {
            let parts =
                ExpertParts { gate_up: sources(self.files, gate_up), down: sources(self.files, down) };
            self.backend.pack_expert(&mut experts, &parts)?;
            self.done(gate_up);
            self.done(down);
        }
        Ok(Mlp::Experts { params, router, experts })
    }

    fn matrix(&mut self, parts: &[Weight]) -> Result<B::Matrix, LoadError> {
        let packed = self.backend.pack(&sources(self.files, parts))?;
        self.done(parts);
        Ok(packed)
    }

    /// Vectors one after the other.
    fn vector(&mut self, parts: &[Weight]) -> Result<B::Vector, LoadError> {
        let mut values = Vec::new();
        for &part in parts {
            values.extend(self.files.tensor(part).to_f32()?);
        }
        let vector = self.backend.vector(&values)?;
        self.done(parts);
        Ok(vector)
    }

    fn vector_if(&mut self, present: bool, parts: &[Weight]) -> Result<Option<B::Vector>, LoadError> {
        if present { Ok(Some(self.vector(parts)?)) } else { Ok(None) }
    }

    fn done(&mut self, parts: &[Weight]) {
        for &part in parts {
            let bytes = &self.files.tensor(part).bytes;
            bytes.release();
            self.bytes_done += bytes.len() as u64;
        }
        (self.progress)((self.bytes_done as f64 / self.bytes_total as f64) as f32);
    }
}

/// The weights of each of a layer's experts.
fn expert_groups(spec: &DecoderSpec, layer: usize) -> Vec<ExpertParts<Weight>> {
    let parts = |parts: &[LayerWeight]| parts.iter().map(|&part| Weight::Layer(layer, part)).collect();
    let expert = |expert| ExpertParts {
        gate_up: parts(&[LayerWeight::ExpertGate(expert), LayerWeight::ExpertUp(expert)]),
        down: parts(&[LayerWeight::ExpertDown(expert)]),
    };
    (0..spec.moe_of(layer).map_or(0, |moe| moe.experts)).map(expert).collect()
}

fn shapes(files: &ModelFiles, experts: &[ExpertParts<Weight>]) -> Vec<ExpertParts<MatrixShape>> {
    let shapes = |parts: &[Weight]| parts.iter().map(|&part| matrix_shape(files.tensor(part))).collect();
    let of_one = |parts: &ExpertParts<Weight>| ExpertParts {
        gate_up: shapes(&parts.gate_up),
        down: shapes(&parts.down),
    };
    experts.iter().map(of_one).collect()
}

fn sources<'a>(files: &'a ModelFiles, parts: &[Weight]) -> Vec<MatrixSource<'a>> {
    let source = |&part: &Weight| {
        let tensor = files.tensor(part);
        MatrixSource { name: &tensor.name, shape: matrix_shape(tensor), bytes: &tensor.bytes }
    };
    parts.iter().map(source).collect()
}

/// The weights of each packed matrix but for the experts'.
fn matrix_groups(spec: &DecoderSpec) -> Vec<Vec<Weight>> {
    let mut groups = vec![vec![Weight::TokenEmbedding]];
    for layer in 0..spec.layers {
        let mut push = |parts: &[LayerWeight]| {
            groups.push(parts.iter().map(|&part| Weight::Layer(layer, part)).collect());
        };
        push(QKV);
        push(OUTPUT);
        match spec.moe_of(layer) {
            None => {
                push(GATE_UP);
                push(DOWN);
            }
            Some(_) => push(&[LayerWeight::Router]),
        }
    }
    if !spec.tied_embeddings {
        groups.push(vec![Weight::Output]);
    }
    groups
}

/// Of a tensor with two dimensions, as opening has checked.
fn matrix_shape(tensor: &Tensor) -> MatrixShape {
    MatrixShape { rows: tensor.shape[0], cols: tensor.shape[1], dtype: tensor.dtype }
}

/// A head stored beside the embedding it is tied to must be the same numbers: the configuration and the weights
/// would say different things otherwise.
fn check_tied_twin(files: &ModelFiles) -> Result<(), LoadError> {
    let Some(twin) = files.tied_twin() else { return Ok(()) };
    let embedding = files.tensor(Weight::TokenEmbedding);
    let same = (twin.dtype, &twin.bytes[..]) == (embedding.dtype, &embedding.bytes[..]);
    twin.bytes.release();
    if same {
        return Ok(());
    }
    Err(LoadError::Unsupported {
        file: twin.file.to_string(),
        key: "tie_word_embeddings".into(),
        value: "true".into(),
        reason: format!("tensor {} differs from {}, to which it is tied", twin.name, embedding.name),
    })
}

#[cfg(test)]
pub(crate) mod tests;
