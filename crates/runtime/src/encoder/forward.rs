//! One step: from packed sequences to the hidden states of their rows.

use hanzo_engine_kernels::{
    AnyBackend, Backend, Batch, EncoderOps, KernelError, LogitsHead, PositionBias, SelfAttentionParams, ops,
};

use super::{DistanceTables, Encoder};
use crate::network::{Attention, Network, Normer};
use crate::spec::{Mask, TransformerSpec};

impl Encoder {
    /// One step over whole sequences: reads the batch's tokens, positions and types. The hidden states stay on the
    /// device until the next step; [`Encoder::read_rows`] and [`Encoder::vocabulary_logits`] read them.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// Without [`Encoder::prepare`], and on batches outside of its limits.
    pub fn forward(&mut self, backend: &mut AnyBackend, batch: &Batch) -> Result<(), KernelError> {
        backend.begin(batch)?;
        self.embed(backend, batch);
        for index in 0..self.network.layers.len() {
            let distance = &self.distance;
            self.network.layer(backend, index, |backend, attention, rows, attended| {
                let qkv = rows.own;
                turn(backend, attention, qkv);
                let params = SelfAttentionParams {
                    heads: attention.shape,
                    scale: attention.spec.scale,
                    reach: match attention.spec.mask {
                        Mask::Whole { reach } => reach,
                        Mask::Causal { .. } => unreachable!("a decoder is no encoder; its spec is checked"),
                    },
                    padding: 0,
                    bias: distance.bias(index),
                };
                backend.self_attention(qkv, &params, attended);
            });
            if index == 0 {
                self.convolve(backend);
            }
        }
        backend.end()
    }

    /// Rows of the last step's hidden states, `(rows, hidden)`. Waits for the device.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// Without a step, and on rows it did not have.
    pub fn read_rows(
        &self,
        backend: &AnyBackend,
        row_first: usize,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        backend.read_rows(self.network.hidden(), row_first, out)
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
        backend: &mut AnyBackend,
        batch: &Batch,
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        let (vocab, norm) = (self.network.spec.vocab, self.network.spec.norm);
        assert_eq!(logits.len(), batch.logit_rows.len() * vocab, "a row of logits for each asked for");
        let (Some(head), Some(spec)) = (&self.masked_lm, self.network.spec.head.masked_lm()) else {
            panic!("this encoder has no head over the vocabulary; its spec says so")
        };
        backend.begin(batch)?;
        let Network { spec: TransformerSpec { layers, .. }, buffers, head: matrix, embedding, .. } =
            &mut self.network;
        let b = buffers.as_mut().expect("a step has run on the buffers");
        // Hidden states stay where they are, for further calls.
        let (hidden, free) = match layers[0].order.on_sum() {
            true => (&b.residual, &mut b.normed),
            false => (&b.normed, &mut b.residual),
        };
        let bias = head.dense_bias.as_ref();
        backend.matmul_activated(&head.dense, bias, spec.activation, hidden, &mut b.branch);
        Normer { norm: &head.norm, spec: norm }.run(backend, &b.branch, free);
        let computed = backend.logits(LogitsHead::of(matrix.as_ref().unwrap_or(embedding)), free, logits);
        // The step is ended whatever came of it, so that the device is given back.
        backend.end().and(computed)?;
        if let Some(bias) = &head.decoder_bias {
            for row in logits.chunks_exact_mut(vocab) {
                row.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
            }
        }
        Ok(())
    }

    /// From tokens, positions and types to what the first layer reads.
    fn embed(&mut self, backend: &mut AnyBackend, batch: &Batch) {
        let convolution = self.network.spec.convolution;
        let sum = self.network.embed(backend, batch.rows());
        if let (Some(spec), Some(convolution)) = (convolution, &mut self.convolution) {
            let unfolded = convolution.unfolded.as_mut().expect("prepared with the network's buffers");
            backend.unfold(sum, spec.window, unfolded);
        }
        self.network.begin(backend);
    }

    /// Adds a convolution of the first layer's input to what the layer has given.
    fn convolve(&mut self, backend: &mut AnyBackend) {
        let (Some(spec), Some(convolution)) = (self.network.spec.convolution, &self.convolution) else {
            return;
        };
        let norm = Normer { norm: &convolution.norm, spec: self.network.spec.norm };
        let unfolded = convolution.unfolded.as_ref().expect("the step's input was written to it");
        let b = self.network.buffers.as_mut().expect("the first layer has run on the buffers");
        let bias = Some(&convolution.bias);
        backend.matmul_activated(&convolution.weight, bias, spec.activation, unfolded, &mut b.branch);
        norm.add(backend, &mut b.residual, &b.branch, &mut b.normed);
        std::mem::swap(&mut b.residual, &mut b.normed);
    }
}

/// Norms and turns queries and keys, where anything does.
pub(crate) fn turn(backend: &mut AnyBackend, attention: &Attention<'_>, qkv: &mut ops::Buffer) {
    attention.layer_norm_heads(backend, qkv);
    let params = attention.qkv_params();
    if params.rope.is_some() || params.q_norm.is_some() {
        backend.rope(qkv, &params);
    }
}

impl DistanceTables {
    fn bias(&self, layer: usize) -> PositionBias<&ops::Vector, &[u32]> {
        match self {
            DistanceTables::None => PositionBias::None,
            DistanceTables::Alibi { slopes } => PositionBias::Alibi { slopes },
            DistanceTables::Learned { table, reach } => PositionBias::ByDistance { table, reach: *reach },
            DistanceTables::Disentangled { bucket_of, reach, buckets, layers } => {
                PositionBias::Disentangled {
                    keys: layers[layer].keys.as_ref(),
                    queries: layers[layer].queries.as_ref(),
                    buckets: *buckets,
                    bucket_of,
                    reach: *reach,
                }
            }
        }
    }
}
