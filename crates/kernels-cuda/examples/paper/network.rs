//! A decoder like Qwen3 as the engine runs it on a GPU, of any size and type of weights, which are all zero: one step
//! of so many sequences, each of which reads one token and draws the next.

use std::rc::Rc;

use hanzo_engine_kernels_cuda::{CudaBackend, Device};
use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    Activation, AnyBackend, AttentionParams, BLOCK_TOKENS, Batch, BufferRole, DType, HeadOperands, HeadShape,
    KernelError, KvLayout, KvSpec, KvType, MatrixShape, MatrixSource, QkvParams, Rope, RopeKind, RowSource,
    SampleSpec, SampleSpecs, StepLimits,
};

const EPS: f32 = 1e-6;

/// Size of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) ffn: usize,
    pub(crate) heads: HeadShape,
    pub(crate) vocab: usize,
    /// Whether the head is the embedding.
    pub(crate) tied: bool,
}

/// Type of the matrices.
#[allow(dead_code)] // each user counts only some of them
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    F16,
    Bf16,
    Q8_0,
    /// Layers in 8 bits with a scale for each 128; embedding and head in BF16.
    Fp8,
    /// llama.cpp's mixture.
    Q4KM,
}

impl Weights {
    /// Types of the embedding and the head.
    fn ends(self, tied: bool) -> [DType; 2] {
        match self {
            Weights::F16 => [DType::F16; 2],
            Weights::Bf16 | Weights::Fp8 => [DType::BF16; 2],
            Weights::Q8_0 => [DType::Q8_0; 2],
            Weights::Q4KM if tied => [DType::Q6_K; 2],
            Weights::Q4KM => [DType::Q4_K, DType::Q6_K],
        }
    }

    /// Types of a layer's matrices, and of those that the mixture has in more bits in some layers: values and down.
    fn of_layer(self, layer: usize, layers: usize) -> [DType; 2] {
        let eighth = layers / 8;
        match self {
            Weights::F16 => [DType::F16; 2],
            Weights::Bf16 => [DType::BF16; 2],
            Weights::Fp8 => [DType::FP8; 2],
            Weights::Q8_0 => [DType::Q8_0; 2],
            Weights::Q4KM if layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2 => {
                [DType::Q4_K, DType::Q6_K]
            }
            Weights::Q4KM => [DType::Q4_K; 2],
        }
    }
}

struct Layer {
    qkv: ops::Matrix,
    output: ops::Matrix,
    gate_up: ops::Matrix,
    down: ops::Matrix,
}

/// The network, with the buffers of its steps.
pub(crate) struct Network {
    backend: AnyBackend,
    size: Size,
    batch: Batch,
    layers: Vec<Rc<Layer>>, // layers of the same types are shared: a launch reads all of it anyway
    norms: [ops::Vector; 3], // of rows, of queries and of keys
    inv_freq: ops::Vector,
    embedding: ops::Matrix,
    head: Option<ops::Matrix>,
    kv: ops::Kv,
    residual: ops::Buffer,
    normed: ops::Buffer,
    own: ops::Buffer,
    attended: ops::Buffer,
    branch: ops::Buffer,
    inner: ops::Buffer,
    weight_bytes: u64,
}

/// Packer of zero weights: bytes never written are one page of the system's, however many.
struct Packer<'a> {
    backend: &'a AnyBackend,
    zeros: Vec<u8>,
}

impl Packer<'_> {
    fn pack(&mut self, cols: usize, parts: &[(usize, DType)]) -> Result<ops::Matrix, KernelError> {
        let bytes = |&(rows, dtype): &(usize, DType)| rows * dtype.bytes_of(cols).expect("whole blocks");
        let most = parts.iter().map(bytes).max().unwrap_or_default();
        if self.zeros.len() < most {
            self.zeros = vec![0; most];
        }
        let source = |part: &(usize, DType)| MatrixSource {
            name: "zeros",
            shape: MatrixShape { rows: part.0, cols, dtype: part.1 },
            bytes: &self.zeros[..bytes(part)],
        };
        self.backend.pack(&parts.iter().map(source).collect::<Vec<_>>())
    }
}

impl Network {
    /// A network for steps of so many sequences with so many tokens each, including the one that is read.
    pub(crate) fn new<D: Device>(
        device: D,
        size: Size,
        weights: Weights,
        kv_type: KvType,
        (sequences, context): (usize, usize),
    ) -> Result<Self, KernelError> {
        let Size { hidden, ffn, heads, vocab, .. } = size;
        let HeadShape { kv_heads, head_dim, .. } = heads;
        let mut backend = AnyBackend::new(CudaBackend::new(device));
        backend.reserve(&StepLimits {
            rows: sequences,
            sequences,
            logit_rows: sequences,
            context,
            width: (2 * ffn).max(heads.qkv_width()).max(hidden),
            vocab,
            heads,
            experts: 0,
            experts_used: 0,
            experts_width: 0,
            kv_groups: 1,
            heads_matmul_width: 0,
        })?;
        let each = context.div_ceil(BLOCK_TOKENS);
        let layer = KvLayout::Heads { kv_heads, head_dim, window: None };
        let spec = KvSpec {
            layers: vec![layer; size.layers],
            blocks: sequences * each,
            kv_type,
            ..KvSpec::default()
        };
        let kv = backend.kv(&spec)?;
        let mut packer = Packer { backend: &backend, zeros: Vec::new() };
        let (mut kinds, mut layers) = (Vec::<([DType; 2], Rc<Layer>)>::new(), Vec::new());
        let mut weight_bytes = 0;
        let mut count = |cols: usize, parts: &[(usize, DType)]| {
            for &(rows, dtype) in parts {
                weight_bytes += (rows * dtype.bytes_of(cols).expect("whole blocks")) as u64;
            }
        };
        let (q_width, kv_width) = (heads.q_width(), kv_heads * head_dim);
        for index in 0..size.layers {
            let types @ [of, finer] = weights.of_layer(index, size.layers);
            let parts: [(usize, &[(usize, DType)]); 4] = [
                (hidden, &[(q_width, of), (kv_width, of), (kv_width, finer)]),
                (q_width, &[(hidden, of)]),
                (hidden, &[(ffn, of), (ffn, of)]),
                (ffn, &[(hidden, finer)]),
            ];
            parts.iter().for_each(|(cols, parts)| count(*cols, parts));
            let known = kinds.iter().find(|(of, _)| *of == types).map(|(_, layer)| layer.clone());
            let layer = match known {
                Some(layer) => layer,
                None => {
                    let [qkv, output, gate_up, down] = parts.map(|(cols, parts)| packer.pack(cols, parts));
                    Rc::new(Layer { qkv: qkv?, output: output?, gate_up: gate_up?, down: down? })
                }
            };
            kinds.push((types, layer.clone()));
            layers.push(layer);
        }
        let [embedding, head] = weights.ends(size.tied).map(|dtype| [(vocab, dtype)]);
        count(hidden, &head);
        let embedding = packer.pack(hidden, &embedding)?;
        let head = if size.tied { None } else { Some(packer.pack(hidden, &head)?) };
        let vector = |length: usize| backend.vector(&vec![1.0; length]);
        let norms = [vector(hidden)?, vector(head_dim)?, vector(head_dim)?];
        let inv_freq = vector(head_dim / 2)?;
        let mut batch = Batch::default();
        for sequence in 0..sequences {
            batch.sources.push(RowSource::Token((sequence % vocab) as u32));
            batch.push_sequence(1, context, |_, at| (sequence * each + at) as u32);
            batch.logit_rows.push(sequence as u32);
        }
        let buffer = |role, cols| backend.buffer(role, sequences, cols);
        Ok(Self {
            residual: buffer(BufferRole::Residual, hidden)?,
            normed: buffer(BufferRole::Operand, hidden)?,
            own: buffer(BufferRole::Operand, heads.qkv_width())?,
            attended: buffer(BufferRole::Operand, q_width)?,
            branch: buffer(BufferRole::Residual, hidden)?,
            inner: buffer(BufferRole::Operand, ffn)?,
            backend,
            size,
            batch,
            layers,
            norms,
            inv_freq,
            embedding,
            head,
            kv,
            weight_bytes,
        })
    }

    /// Bytes of the file's matrices that each step reads completely: those of layers, and the head.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Runs one step, greedy.
    pub(crate) fn step(&mut self) -> Result<(), KernelError> {
        let Size { heads: shape, .. } = self.size;
        let Self { backend, layers, norms, inv_freq, kv, residual, normed, own, attended, branch, .. } = self;
        let [norm, q_norm, k_norm] = &*norms;
        backend.begin(&self.batch)?;
        backend.embed(&self.embedding, 1.0, residual);
        backend.rms_norm(residual, norm, EPS, normed);
        for (index, layer) in layers.iter().enumerate() {
            backend.matmul(&layer.qkv, None, normed, own);
            let rope =
                Rope { kind: RopeKind::Neox, inv_freq: &*inv_freq, magnitude: 1.0, axes: None, long: None };
            let params = QkvParams {
                q_norm: Some(q_norm),
                k_norm: Some(k_norm),
                rope: Some(rope),
                ..QkvParams::plain(shape)
            };
            backend.rope_to_cache(own, &params, kv, index);
            let params = AttentionParams::of(shape, (shape.head_dim as f32).sqrt().recip());
            backend.attention(own, &params, kv, index, attended);
            backend.matmul(&layer.output, None, attended, branch);
            backend.add_rms_norm(residual, branch, norm, EPS, normed);
            backend.gated_mlp(&layer.gate_up, &layer.down, Activation::Silu, normed, &mut self.inner, branch);
            backend.add_rms_norm(residual, branch, norm, EPS, normed);
        }
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let rows = self.batch.logit_rows.len();
        let specs = SampleSpecs { rows: vec![SampleSpec::default(); rows], ..SampleSpecs::default() };
        let mut room = vec![0.0; rows * self.size.vocab];
        backend.sample(&HeadOperands::of(head), normed.id(), &specs, &mut room)?;
        let ticket = backend.submit()?;
        backend.wait(ticket, &mut Vec::new())
    }
}
