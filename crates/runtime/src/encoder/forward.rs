//! One step: from packed sequences to the hidden states of their rows.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, Batch, Buckets, BufferId, HeadOperands, KernelError, Op, PositionBias, RowOp, VectorId,
};

use super::{Convolution, DistanceTables, Encoder, EncoderProgram};
use crate::network::{ProgramBuilder, Sum};

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
        self.network.embed(backend, batch.rows());
        backend.run_all(&self.program.embedded);
        self.network.begin(backend);
        for (index, attention) in self.program.attention.iter().enumerate() {
            self.network.run_layer(backend, index, attention);
            if index == 0 {
                backend.run_all(&self.program.convolved);
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
        let vocab = self.network.spec.vocab;
        assert_eq!(logits.len(), batch.logit_rows.len() * vocab, "a row of logits for each asked for");
        let Some(head) = &self.masked_lm else {
            panic!("this encoder has no head over the vocabulary; its spec says so")
        };
        backend.begin(batch)?;
        let matrix = self.network.head.as_ref().unwrap_or(&self.network.embedding).id();
        let (_, [_, free]) = self.network.hidden_and_free();
        backend.run_all(&self.program.masked_lm);
        let computed = backend.logits(&HeadOperands { matrix, adapted: None }, free, logits);
        // The step is ended whatever came of it, so that the device is given back.
        backend.end().and(computed)?;
        if let Some(bias) = &head.decoder_bias {
            for row in logits.chunks_exact_mut(vocab) {
                row.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
            }
        }
        Ok(())
    }
}

impl Encoder {
    /// Builds the ops that only encoders have.
    pub(super) fn build_program(&mut self) {
        let network = &self.network;
        let of = |index| network.attention(index).over_sequences(0, self.distance.bias(index));
        self.program = EncoderProgram {
            embedded: self.unfold(),
            attention: (0..network.layers.len()).map(of).collect(),
            convolved: self.convolve(),
            masked_lm: self.dense(),
        };
    }

    /// Ops that keep the first layer's input for a convolution.
    fn unfold(&self) -> Vec<Op> {
        let (Some(spec), Some(convolution)) = (self.network.spec.convolution, &self.convolution) else {
            return Vec::new();
        };
        vec![Op::Unfold { x: self.network.embedded(), window: spec.window, out: convolution.unfolded() }]
    }

    /// Ops that add a convolution of the first layer's input to the layer's output.
    fn convolve(&self) -> Vec<Op> {
        let (Some(spec), Some(convolution)) = (self.network.spec.convolution, &self.convolution) else {
            return Vec::new();
        };
        let (x, Sum { residual, normed, branch }) = (convolution.unfolded(), self.network.sum_behind(0));
        let mut p = ProgramBuilder::default();
        p.activated(&convolution.weight, Some(&convolution.bias), spec.activation, x, branch);
        p.add(branch, residual);
        p.norm(&convolution.norm, self.network.spec.norm, residual, normed);
        // The norm is the sum.
        p.row(RowOp::Take { x: normed, first: 0 }, residual);
        p.finish_ops()
    }

    /// Ops from hidden states to those that the masked language model's matrix reads.
    fn dense(&self) -> Vec<Op> {
        let (Some(head), Some(spec)) = (&self.masked_lm, self.network.spec.head.masked_lm()) else {
            return Vec::new();
        };
        let (hidden, [branch, free]) = self.network.hidden_and_free();
        let mut p = ProgramBuilder::default();
        p.activated(&head.dense, head.dense_bias.as_ref(), spec.activation, hidden, branch);
        p.norm(&head.norm, self.network.spec.norm, branch, free);
        p.finish_ops()
    }
}

impl Convolution {
    /// Buffer of its unfolded input.
    fn unfolded(&self) -> BufferId {
        self.unfolded.as_ref().expect("prepared with the network's buffers").id()
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
