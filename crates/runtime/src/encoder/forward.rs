//! One step: from packed sequences to the hidden states of their rows.

use hanzo_engine_kernels::ops::{self, Buckets, HeadOperands, Op, VectorId};
use hanzo_engine_kernels::{AnyBackend, Batch, KernelError, PositionBias, RowOp};

use super::{DistanceTables, Encoder};
use crate::network::Sum;

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
            self.network.run_layer(backend, index, &self.attention[index]);
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
        let matrix = self.network.head.as_ref().unwrap_or(&self.network.embedding).id();
        let (hidden, [branch, free]) = self.network.hidden_and_free();
        let (weight, bias) = (head.dense.id(), head.dense_bias.as_ref().map(ops::Vector::id));
        backend.run(&Op::MatMulActivated {
            weight,
            bias,
            activation: spec.activation,
            x: hidden,
            out: branch,
        });
        backend.run(&head.norm.op(norm, branch, free));
        let computed = backend.compute_logits(&HeadOperands { matrix, adapted: None }, free, logits);
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
        self.network.embed(backend, batch.rows());
        if let (Some(spec), Some(convolution)) = (convolution, &mut self.convolution) {
            let unfolded = convolution.unfolded.as_mut().expect("prepared with the network's buffers");
            backend.unfold(self.network.embedded(), spec.window, unfolded);
        }
        self.network.begin(backend);
    }

    /// Adds a convolution of the first layer's input to what the layer has given.
    fn convolve(&mut self, backend: &mut AnyBackend) {
        let (Some(spec), Some(convolution)) = (self.network.spec.convolution, &self.convolution) else {
            return;
        };
        let x = convolution.unfolded.as_ref().expect("the step's input was written to it").id();
        let (weight, bias) = (convolution.weight.id(), Some(convolution.bias.id()));
        let Sum { residual, normed, branch } = self.network.sum_behind(0);
        backend.run(&Op::MatMulActivated { weight, bias, activation: spec.activation, x, out: branch });
        let norm = convolution.norm.add_op(self.network.spec.norm, residual, branch, normed);
        backend.run(&norm);
        // The norm is the sum.
        backend.run(&Op::Row { op: RowOp::Take { x: normed, first: 0 }, out: residual });
    }
}

impl Encoder {
    /// Builds the ops of each layer's attention.
    pub(super) fn build_attention(&mut self) {
        let network = &self.network;
        let of = |index| network.attention(index).over_sequences(0, self.distance.bias(index));
        self.attention = (0..network.layers.len()).map(of).collect();
    }
}

impl DistanceTables {
    fn bias(&self, layer: usize) -> PositionBias<VectorId, Buckets> {
        match self {
            DistanceTables::None => PositionBias::None,
            DistanceTables::Alibi { slopes } => PositionBias::Alibi { slopes: slopes.id() },
            DistanceTables::Learned { table, reach } => {
                PositionBias::ByDistance { table: table.id(), reach: *reach }
            }
            DistanceTables::Disentangled { bucket_of, reach, buckets, layers } => {
                PositionBias::Disentangled {
                    keys: layers[layer].keys.as_ref().map(ops::Vector::id),
                    queries: layers[layer].queries.as_ref().map(ops::Vector::id),
                    buckets: *buckets,
                    bucket_of: bucket_of.clone(),
                    reach: *reach,
                }
            }
        }
    }
}
