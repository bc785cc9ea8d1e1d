//! One step: from packed sequences to the hidden states of their rows.

use hanzo_engine_kernels::{
    Activation, Backend, Batch, BufferRole, EncoderOps, KernelError, LayerNormParams, PositionBias,
    QkvParams, Rope, RowIds, SelfAttentionParams,
};

use super::spec::{EncoderSpec, NormKind, NormOrder, NormSpec, QkNorm};
use super::{DistanceTables, Encoder, Layer, Mlp, Norm};

/// Activations of one step, all `(rows, _)`.
pub(super) struct Buffers<B: Backend> {
    rows: usize,
    /// (rows, hidden): the sum that halves add to; the hidden states once a step has ended.
    residual: B::Buffer,
    normed: B::Buffer,                 // (rows, hidden)
    qkv: B::Buffer,                    // (rows, qkv_width)
    attended: B::Buffer,               // (rows, q_width)
    mlp_hidden: B::Buffer,             // (rows, ffn)
    branch: B::Buffer,                 // (rows, hidden): what a layer's half adds
    experts_hidden: Option<B::Buffer>, // (rows, experts used * ffn)
    unfolded: Option<B::Buffer>,       // (rows, hidden * window): what a convolution multiplies
}

/// Role and columns of [`Buffers`]' members, in their order; 0 columns where there is none. The three that take each
/// other's place hold the sum in turns.
pub(super) fn buffer_shapes(spec: &EncoderSpec) -> [(BufferRole, usize); 8] {
    use BufferRole::{Operand, Residual};
    let &EncoderSpec { hidden, ffn, heads, .. } = spec;
    let experts = spec.experts.map_or(0, |experts| experts.used * ffn);
    let unfolded = spec.convolution.map_or(0, |convolution| hidden * convolution.window);
    [
        (Residual, hidden),
        (Residual, hidden),
        (Operand, heads.qkv_width()),
        (Operand, heads.q_width()),
        (Operand, ffn),
        (Residual, hidden),
        (Operand, experts),
        (Operand, unfolded),
    ]
}

impl<B: Backend> Buffers<B> {
    pub(super) fn new(backend: &B, spec: &EncoderSpec, rows: usize) -> Result<Self, KernelError> {
        let make = |(role, cols)| backend.buffer(role, rows, cols);
        let some = |shape: (BufferRole, usize)| (shape.1 > 0).then(|| make(shape)).transpose();
        let [residual, normed, qkv, attended, mlp_hidden, branch, experts_hidden, unfolded] =
            buffer_shapes(spec);
        Ok(Self {
            rows,
            residual: make(residual)?,
            normed: make(normed)?,
            qkv: make(qkv)?,
            attended: make(attended)?,
            mlp_hidden: make(mlp_hidden)?,
            branch: make(branch)?,
            experts_hidden: some(experts_hidden)?,
            unfolded: some(unfolded)?,
        })
    }
}

/// A norm's numbers and how they are used.
struct Normer<'a, B: EncoderOps> {
    norm: &'a Norm<B>,
    spec: NormSpec,
}

impl<B: EncoderOps> Normer<'_, B> {
    fn params(&self) -> LayerNormParams<'_, B::Vector> {
        let Norm { weight, bias } = self.norm;
        LayerNormParams { weight, bias: bias.as_ref(), eps: self.spec.eps }
    }

    fn run(&self, backend: &mut B, x: &B::Buffer, out: &mut B::Buffer) {
        match self.spec.kind {
            NormKind::Layer { .. } => backend.layer_norm(x, &self.params(), out),
            NormKind::Rms { .. } => backend.rms_norm(x, &self.norm.weight, self.spec.eps, out),
        }
    }

    /// `residual += x`, then the norm of that.
    fn add(&self, backend: &mut B, residual: &mut B::Buffer, x: &B::Buffer, out: &mut B::Buffer) {
        match self.spec.kind {
            NormKind::Layer { .. } => backend.add_layer_norm(residual, x, &self.params(), out),
            NormKind::Rms { .. } => backend.add_rms_norm(residual, x, &self.norm.weight, self.spec.eps, out),
        }
    }
}

impl<B: EncoderOps> Encoder<B> {
    /// One step over whole sequences: reads the batch's tokens, positions and types. The hidden states stay on the
    /// device until the next step; [`Encoder::read_rows`] and [`Encoder::vocabulary_logits`] read them.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// Without [`Encoder::prepare`], and on batches outside of its limits.
    pub fn forward(&mut self, backend: &mut B, batch: &Batch) -> Result<(), KernelError> {
        backend.begin(batch)?;
        self.layers_forward(backend, batch);
        backend.end()
    }

    /// Rows of the last step's hidden states, `(rows, hidden)`. Waits for the device.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// Without a step, and on rows it did not have.
    pub fn read_rows(&self, backend: &B, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        backend.read_rows(&self.stepped().residual, row_first, out)
    }

    /// The masked language model's numbers for the rows `batch.logit_rows` of the last step, `(logit_rows, vocab)`.
    /// `batch` is that step's but for these rows, so that many of them can be read in several calls.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// Without such a head, without a step, and on another number of `logits`.
    pub fn vocabulary_logits(
        &mut self,
        backend: &mut B,
        batch: &Batch,
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        let vocab = self.spec.vocab;
        assert_eq!(logits.len(), batch.logit_rows.len() * vocab, "a row of logits for each asked for");
        let (Some(head), Some(spec)) = (&self.masked_lm, self.spec.masked_lm) else {
            panic!("this encoder has no head over the vocabulary; its spec says so")
        };
        let b = self.buffers.as_mut().expect("`prepare` is called before the first step, as its docs ask");
        backend.begin(batch)?;
        backend.matmul_activated(
            &head.dense,
            head.dense_bias.as_ref(),
            spec.activation,
            &b.residual,
            &mut b.branch,
        );
        let norm = Normer { norm: &head.norm, spec: self.spec.norm };
        norm.run(backend, &b.branch, &mut b.normed);
        let decoder = head.decoder.as_ref().unwrap_or(&self.embedding);
        let computed = backend.logits(decoder, &b.normed, logits);
        // The step is ended whatever came of it, so that the device is given back.
        backend.end().and(computed)?;
        if let Some(bias) = &head.decoder_bias {
            for row in logits.chunks_exact_mut(vocab) {
                row.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
            }
        }
        Ok(())
    }

    fn stepped(&self) -> &super::Buffers<B> {
        self.buffers.as_ref().expect("`prepare` is called before the first step, as its docs ask")
    }

    /// From tokens to hidden states, in the order of the papers.
    fn layers_forward(&mut self, backend: &mut B, batch: &Batch) {
        let spec = &self.spec;
        let b = self.buffers.as_mut().expect("`prepare` is called before the first step, as its docs ask");
        assert!(batch.rows() <= b.rows, "{} rows; buffers were made for {}", batch.rows(), b.rows);
        let normer = |norm| Normer::<B> { norm, spec: spec.norm };
        backend.embed(&self.embedding, spec.embedding_scale, &mut b.residual);
        if let (Some(table), Some(positions)) = (&self.positions, spec.positions) {
            backend.add_embedding(table, RowIds::Positions { offset: positions.offset }, &mut b.residual);
        }
        if let Some(table) = &self.types {
            backend.add_embedding(table, RowIds::Types, &mut b.residual);
        }
        if let Some(norm) = &self.embedding_norm {
            normer(norm).run(backend, &b.residual, &mut b.normed);
            std::mem::swap(&mut b.residual, &mut b.normed);
        }
        // Where norms stand after halves, what a half reads is the sum itself.
        let on_sum = spec.order.on_sum();
        let mut reads_sum = on_sum;
        match &self.first_norm {
            Some(norm) => normer(norm).run(backend, &b.residual, &mut b.normed),
            None => reads_sum = true,
        }
        if let (Some(convolution), Some(unfolded)) = (spec.convolution, &mut b.unfolded) {
            backend.unfold(&b.residual, convolution.window, unfolded);
        }
        for (index, (layer, layer_spec)) in self.layers.iter().zip(&spec.layers).enumerate() {
            let x = if reads_sum { &b.residual } else { &b.normed };
            backend.matmul(&layer.qkv, layer.qkv_bias.as_ref(), x, &mut b.qkv);
            let rope = layer_spec.rope.map(|rope| Rope {
                kind: spec.ropes[rope].kind,
                inv_freq: &self.ropes[rope],
                magnitude: spec.ropes[rope].magnitude,
                axes: None,
            });
            let heads_normed = spec.qk_norm == QkNorm::Heads;
            if let (QkNorm::Whole, Some(queries), Some(keys)) = (spec.qk_norm, &layer.q_norm, &layer.k_norm) {
                backend.layer_norm_columns(&mut b.qkv, 0, &normer(queries).params());
                backend.layer_norm_columns(&mut b.qkv, spec.heads.q_width(), &normer(keys).params());
            }
            if rope.is_some() || heads_normed {
                let params = QkvParams {
                    shape: spec.heads,
                    q_norm: layer.q_norm.as_ref().filter(|_| heads_normed).map(|norm| &norm.weight),
                    k_norm: layer.k_norm.as_ref().filter(|_| heads_normed).map(|norm| &norm.weight),
                    norm_eps: spec.norm.eps,
                    rope,
                };
                backend.rope(&mut b.qkv, &params);
            }
            let params = SelfAttentionParams {
                heads: spec.heads,
                scale: spec.attention_scale,
                reach: layer_spec.reach,
                bias: position_bias(&self.distance, layer),
            };
            backend.self_attention(&b.qkv, &params, &mut b.attended);
            backend.matmul(&layer.output, layer.output_bias.as_ref(), &b.attended, &mut b.branch);
            if let Some(norm) = &layer.attention_post_norm {
                match spec.order {
                    NormOrder::PostTwice => {
                        normer(norm).add(backend, &mut b.branch, &b.residual, &mut b.normed);
                    }
                    _ => normer(norm).run(backend, &b.branch, &mut b.normed),
                }
                std::mem::swap(&mut b.branch, &mut b.normed);
            }
            normer(&layer.middle_norm).add(backend, &mut b.residual, &b.branch, &mut b.normed);
            if on_sum {
                std::mem::swap(&mut b.residual, &mut b.normed);
            }
            let x = if on_sum { &b.residual } else { &b.normed };
            let hidden = match (&layer.mlp, &mut b.experts_hidden) {
                (Mlp::Experts { .. }, Some(hidden)) => hidden,
                _ => &mut b.mlp_hidden,
            };
            mlp_forward(backend, &layer.mlp, spec.mlp.activation(), x, hidden, &mut b.branch);
            if let Some(norm) = &layer.mlp_post_norm {
                normer(norm).run(backend, &b.branch, &mut b.normed);
                std::mem::swap(&mut b.branch, &mut b.normed);
            }
            normer(&layer.last_norm).add(backend, &mut b.residual, &b.branch, &mut b.normed);
            if on_sum {
                std::mem::swap(&mut b.residual, &mut b.normed);
            }
            reads_sum = on_sum;
            if index == 0
                && let (Some(weights), Some(convolution), Some(unfolded)) =
                    (&self.convolution, spec.convolution, &b.unfolded)
            {
                let (weight, bias) = (&weights.weight, Some(&weights.bias));
                backend.matmul_activated(weight, bias, convolution.activation, unfolded, &mut b.branch);
                normer(&weights.norm).add(backend, &mut b.residual, &b.branch, &mut b.normed);
                std::mem::swap(&mut b.residual, &mut b.normed);
            }
        }
        if !on_sum {
            // The last norm's output is what the step gives.
            std::mem::swap(&mut b.residual, &mut b.normed);
        }
    }
}

fn mlp_forward<B: EncoderOps>(
    backend: &mut B,
    mlp: &Mlp<B>,
    activation: Activation,
    x: &B::Buffer,
    hidden: &mut B::Buffer,
    out: &mut B::Buffer,
) {
    match mlp {
        Mlp::Plain { up, up_bias, down, down_bias } => {
            backend.matmul_activated(up, up_bias.as_ref(), activation, x, hidden);
            backend.matmul(down, down_bias.as_ref(), hidden, out);
        }
        Mlp::Gated { gate_up, down, down_bias } => {
            backend.gated_mlp(gate_up, down, activation, x, hidden, out);
            if let Some(rows) = down_bias {
                backend.add_embedding(rows, RowIds::Types, out);
            }
        }
        Mlp::Experts { params, router, experts, bias } => {
            backend.moe(router, experts, params, x, hidden, out);
            if let Some(rows) = bias {
                backend.add_embedding(rows, RowIds::Types, out);
            }
        }
    }
}

fn position_bias<'a, B: Backend>(
    tables: &'a DistanceTables<B>,
    layer: &'a Layer<B>,
) -> PositionBias<'a, B::Vector> {
    match tables {
        DistanceTables::None => PositionBias::None,
        DistanceTables::Alibi { slopes } => PositionBias::Alibi { slopes },
        DistanceTables::Learned { table, reach } => PositionBias::ByDistance { table, reach: *reach },
        DistanceTables::Disentangled { bucket_of, reach, buckets } => PositionBias::Disentangled {
            keys: layer.distance_keys.as_ref(),
            queries: layer.distance_queries.as_ref(),
            buckets: *buckets,
            bucket_of,
            reach: *reach,
        },
    }
}
