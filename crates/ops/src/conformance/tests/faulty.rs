//! The reference, wrapped: a backend with one fault, or with none but the rounding that the bounds allow.

mod attention;
mod convolution;
mod encoder;
mod fault;
mod inputs;
mod latent;
mod low_rank;
mod moe;
mod norms;
mod ops;
mod products;
mod rope;
mod sampling;
mod states;

pub(super) use fault::Fault;

use inputs::{in_bf16, renumber_slots, rounded};
use low_rank::FaultyLowRank;

use crate::quant::{dequantize_row, scale_min};
use crate::reference::{ReferenceBackend, ReferenceBuffer, ReferenceKv};
use crate::{
    Activation, Allocation, AttentionParams, Backend, Batch, BufferRole, ConvolutionParams, DType,
    DeviceMemory, DeviceOp, Draws, ExpertParts, Facts, KernelError, KvSpec, LatentHeads, LatentParams,
    LayerNormParams, LogitsHead, MatrixShape, MatrixSource, MoeParams, MoeWeights, NormColumns, Op, Operands,
    OutputDelta, OutputGateParams, QkvParams, RecurrenceParams, Rounding, RowIds, RowOp, RowSource,
    SampleSpecs, SampledToken, StepLimits, Ticket,
};

pub(super) struct Faulty {
    inner: ReferenceBackend,
    fault: Fault,
    facts: Facts,
    batch: Batch,
    open: bool,
    last_drawn: Vec<Option<SampledToken>>,
}

pub(super) struct Part {
    shape: MatrixShape,
    floats: Vec<f32>,
}

impl Faulty {
    pub(super) fn new(fault: Fault) -> Self {
        Self::declaring(fault, Rounding { operands: Operands::F32, bytes_before_quantised: true })
    }

    /// Same as [`Faulty::new`], with a different claim of its rounding.
    pub(super) fn declaring(fault: Fault, declared: Rounding) -> Self {
        let (inner, batch) = (ReferenceBackend::new(), Batch::default());
        let mut facts =
            Facts::new(format!("faulty: {fault:?}"), declared, |dtype| inner.facts().supports(dtype));
        facts.attends_in_parts = true;
        facts.lookahead = usize::from(matches!(fault, Fault::RunsAhead | Fault::LaterDrawsGiven));
        Self { inner, fault, facts, batch, open: false, last_drawn: Vec::new() }
    }

    fn rounds_operands(&self) -> bool {
        self.fault == Fault::OperandsInBf16
    }

    /// Rounds an op's output in a buffer as the device stores it.
    fn restore(&mut self, buffer: &mut ReferenceBuffer) {
        if self.rounds_operands() {
            let rows = self.rows_of(buffer, buffer.cols());
            self.store(buffer, rows);
        }
    }

    fn rows_of(&self, buffer: &ReferenceBuffer, cols: usize) -> Vec<f32> {
        let mut rows = vec![0.0; self.batch.rows() * cols];
        self.inner.read_rows(buffer, 0, &mut rows).unwrap();
        rows
    }

    /// `(rows, hidden)`.
    fn gated_rows(&self, gate_up: &[Part], activation: Activation, x: &[f32]) -> Vec<f32> {
        let both = self.product(gate_up, None, x);
        let width = gate_up.iter().map(|part| part.shape.rows).sum::<usize>() / 2;
        self.gated_halves(activation, &both, width)
    }

    fn summed(&self, residual: &ReferenceBuffer, x: &ReferenceBuffer, cols: usize) -> Vec<f32> {
        let before = self.rows_of(residual, cols);
        before.iter().zip(self.rows_of(x, cols)).map(|(a, b)| a + b).collect()
    }

    fn store(&mut self, buffer: &mut ReferenceBuffer, mut rows: Vec<f32>) {
        if self.fault == Fault::RowBehindBatchWritten {
            let cols = rows.len() / self.batch.rows();
            rows.extend(vec![0.0; cols]);
        }
        self.write_rows(buffer, 0, &rows).unwrap();
    }

    /// Runs an op on a modified batch.
    fn with_batch(&mut self, batch: &Batch, op: impl FnOnce(&mut ReferenceBackend)) {
        self.inner.end().unwrap();
        self.inner.begin(batch).unwrap();
        op(&mut self.inner);
        self.inner.end().unwrap();
        self.inner.begin(&self.batch).unwrap();
    }
}

impl DeviceMemory for Faulty {
    type Matrix = Vec<Part>;
    type Vector = Vec<f32>;
    type Experts = Vec<ExpertParts<Part>>;
    type LowRank = FaultyLowRank;
    type Buffer = ReferenceBuffer;
    type Kv = ReferenceKv;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn bytes(&self, of: &Allocation<'_>) -> usize {
        let bytes = self.inner.bytes(of);
        match (*of, self.fault) {
            (
                Allocation::Matrix(_) | Allocation::Kernel(..) | Allocation::LowRank { .. },
                Fault::SizeHalved,
            ) => bytes / 8,
            (Allocation::Experts(experts), Fault::ExpertsUncounted) => bytes / experts.len() / 8,
            (Allocation::Buffer { .. }, Fault::ResidualInHalves) => bytes / 2,
            (Allocation::Kv(spec), _) => self.cache_bytes(spec),
            _ => bytes,
        }
    }

    fn pack(&self, sources: &[MatrixSource<'_>]) -> Result<Vec<Part>, KernelError> {
        if !matches!(self.fault, Fault::ShortBytesTaken | Fault::UnsupportedTaken) {
            let checked = self.inner.pack(sources);
            if let (Fault::UnnamedTensor, Err(KernelError::BadShape { reason, .. })) = (self.fault, &checked)
            {
                return Err(KernelError::BadShape { tensor: "?".to_owned(), reason: reason.clone() });
            }
            checked?;
        } else if self.fault == Fault::UnsupportedTaken
            && sources.iter().all(|s| self.facts.supports(s.shape.dtype))
        {
            self.inner.pack(sources)?;
        }
        let decode = |source: &MatrixSource<'_>| {
            let MatrixShape { rows, cols, dtype } = source.shape;
            let mut floats = vec![0.0; rows * cols];
            let mut bytes = source.bytes.to_vec();
            if self.fault == Fault::MinsIgnored && dtype == DType::Q4_K {
                for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                    assert!((0..8).any(|group| scale_min(&block[4..16], group).1 > 0));
                    block[2..4].fill(0);
                }
            }
            if dtype.bytes_of(rows * cols) == Some(bytes.len()) && self.facts.supports(dtype) {
                dequantize_row(dtype, &bytes, &mut floats);
            }
            Part { shape: source.shape, floats }
        };
        Ok(sources.iter().map(decode).collect())
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Self::Experts, KernelError> {
        Ok(Vec::with_capacity(shapes.len()))
    }

    fn pack_expert(
        &self,
        experts: &mut Self::Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        let (gate_up, down) = (self.pack(&parts.gate_up)?, self.pack(&parts.down)?);
        experts.push(ExpertParts { gate_up, down });
        Ok(())
    }

    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<FaultyLowRank, KernelError> {
        self.low_rank_of(delta)
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, KernelError> {
        Ok(values.to_vec())
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<ReferenceBuffer, KernelError> {
        let mut buffer = self.inner.buffer(role, rows, cols)?;
        if self.fault == Fault::DirtyBuffers {
            ReferenceBackend::new().write_rows(&mut buffer, 0, &vec![0.5; rows * cols])?;
        }
        Ok(buffer)
    }

    fn kv(&self, spec: &KvSpec) -> Result<ReferenceKv, KernelError> {
        self.inner.kv(spec)
    }

    fn read_rows(&self, x: &ReferenceBuffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        let first = if self.fault == Fault::FirstRowRead { 0 } else { row_first };
        self.inner.read_rows(x, first, out)
    }

    fn write_rows(
        &mut self,
        x: &mut ReferenceBuffer,
        row_first: usize,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        if self.rounds_operands() && x.role() == BufferRole::Operand {
            let rows: Vec<f32> = rows.iter().map(|&v| in_bf16(v)).collect();
            return self.inner.write_rows(x, row_first, &rows);
        }
        self.inner.write_rows(x, row_first, rows)
    }
}

impl Backend for Faulty {
    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        self.inner.reserve(limits)
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.take_batch(batch);
        self.inner.begin(&self.batch)
    }

    fn run(&mut self, op: DeviceOp<'_, Self>) {
        match op {
            Op::Embed { table, scale, out } => self.embed(table, scale, out),
            Op::AddEmbedding { table, ids, out } => self.add_embedding(table, ids, out),
            Op::RmsNorm { x, weight, eps, out } => self.rms_norm(x, weight, eps, out),
            Op::AddRmsNorm { residual, x, weight, eps, out } => {
                self.add_rms_norm(residual, x, weight, eps, out);
            }
            Op::MatMul { weight, bias, x, out } => self.matmul(weight, bias, x, out),
            Op::MatMulActivated { weight, bias, activation, x, out } => {
                self.matmul_activated(weight, bias, activation, x, out);
            }
            Op::AddBias { bias, out } => self.add_bias(bias, out),
            Op::Row { op, out } => self.row_op(&op, out),
            Op::LayerNorm { x, params, out } => self.layer_norm(x, &params, out),
            Op::AddLayerNorm { residual, x, params, out } => self.add_layer_norm(residual, x, &params, out),
            Op::LayerNormColumns { x, columns, params } => self.layer_norm_columns(x, columns, &params),
            Op::HeadsMatMul { weights, x, out } => self.heads_matmul(weights, x, out),
            Op::GateOutput { gate, params, out } => self.gate_output(gate, &params, out),
            Op::GatedMlp { gate_up, down, activation, x, hidden, out } => {
                self.gated(gate_up, activation, x, hidden);
                self.matmul(down, None, hidden, out);
            }
            Op::Gated { gate_up, activation, x, hidden } => self.gated(gate_up, activation, x, hidden),
            Op::AddLowRank { deltas, x, low, out } => self.add_low_rank(&deltas, x, low, out),
            Op::Gate { activation, both, hidden } => self.gate(activation, both, hidden),
            Op::AddShared { gate, x, shared, out } => self.add_shared(gate, x, shared, out),
            Op::Moe { weights, params, x, hidden, out } => self.moe(&weights, &params, x, hidden, out),
            Op::AllReduce { .. } => {}
            op => self.run_over_sequences(op),
        }
    }

    fn logits(
        &mut self,
        LogitsHead { matrix: head, adapted }: LogitsHead<'_, Self>,
        x: &ReferenceBuffer,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let cols = head[0].shape.cols;
        let rows = self.rows_of(x, cols);
        for (i, (out, &row)) in
            out.chunks_exact_mut(head[0].shape.rows).zip(&self.batch.logit_rows).enumerate()
        {
            let row = if self.fault == Fault::FirstRowsLogits { i } else { row as usize };
            out.copy_from_slice(&self.product(head, None, &rows[row * cols..][..cols]));
        }
        if let Some(adapted) = adapted {
            self.change_logits(adapted.deltas, &rows, out);
        }
        Ok(())
    }

    fn sample(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &ReferenceBuffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let vocab = head.matrix[0].shape.rows;
        self.logits(head, x, room)?;
        let draw = |row: usize| self.draw(&room[row * vocab..][..vocab], specs, row);
        let drawn: Vec<Option<SampledToken>> = (0..specs.rows.len()).map(draw).collect();
        self.last_drawn.clone_from(&drawn);
        self.inner.draws().put(drawn.into_iter());
        Ok(())
    }

    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) -> Result<(), KernelError> {
        self.inner.draws().wait(ticket, drawn);
        if self.fault == Fault::LaterDrawsGiven {
            drawn.clone_from(&self.last_drawn);
        }
        Ok(())
    }

    fn draws(&mut self) -> &mut Draws {
        self.inner.draws()
    }

    fn end(&mut self) -> Result<(), KernelError> {
        if self.fault == Fault::EndOnce && !self.open {
            return Err(self.facts.failure("no step is open"));
        }
        self.open = false;
        self.inner.end()
    }
}
