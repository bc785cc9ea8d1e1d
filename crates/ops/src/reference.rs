//! The naive reference backend: one thread, plain loops, sums in f64 ([`formulas`]), weights as f32, keys and values
//! rounded to the cache's type. Every other backend is compared with this one.
//!
//! It is also strict: it asserts what the contract requires of the caller (limits kept, steps opened and closed, slots
//! as in the block table). So a runtime tested on it can be trusted with a faster device.

mod columns;
mod embeddings;
mod encoder;
mod experts;
pub mod formulas;
mod grid;
mod heads;
mod latent;
mod line;
mod low_rank;
mod ops;
mod peers;
mod rows;
mod sampling;
mod states;
mod storage;
#[cfg(test)]
mod tests;
mod vocoder;

use crate::quant::{can_dequantize, dequantize_row};
use crate::{
    Activation, AdaptedLogits, Allocation, AttentionParams, BLOCK_TOKENS, Backend, Batch, BufferRole,
    ConvolutionParams, DeviceMemory, DeviceOp, Draws, ExpertParts, Facts, KernelError, KvGroups, KvSpec,
    KvType, LatentHeads, LatentParams, LayerNormParams, LogitsHead, MatrixShape, MatrixSource, MoeParams,
    MoeWeights, NormColumns, Op, Operands, OutputDelta, OutputGateParams, QkvParams, RecurrenceParams,
    Rounding, RowIds, RowOp, SampleSpecs, StepLimits,
};

pub(crate) use encoder::seen;
pub use low_rank::ReferenceLowRank;
pub(crate) use sampling::draw;
use states::ReferenceStates;
pub(crate) use storage::visible;
use storage::{check_source, elements_per_slot, filled};

const DEVICE: &str = "reference: 1 thread";

/// Naive reference backend; see the module.
#[derive(Debug)]
pub struct ReferenceBackend {
    facts: Facts,
    limits: Option<StepLimits>,
    batch: Batch,
    tokens: Vec<Option<u32>>, // (rows); none if the host writes the row
    draws: Draws,
    open: bool,
    chosen: Vec<u32>, // (rows, experts_used) of the last mixture
}

/// A matrix of dequantised weights.
#[derive(Clone, Debug)]
pub struct ReferenceMatrix {
    rows: usize,
    cols: usize,
    weights: Vec<f32>, // (rows, cols)
}

/// The experts of a layer.
#[derive(Clone, Debug)]
pub struct ReferenceExperts {
    gate_up: Vec<ReferenceMatrix>, // (experts)
    down: Vec<ReferenceMatrix>,    // (experts)
}

/// Activations.
#[derive(Clone, Debug)]
pub struct ReferenceBuffer {
    role: BufferRole,
    rows: usize,
    cols: usize,
    values: Vec<f32>, // (rows, cols)
}

/// The KV cache. Slots never written hold NaN, which spreads to everything that reads them.
#[derive(Clone, Debug)]
pub struct ReferenceKv {
    kv_type: KvType,
    slots: usize,
    groups: KvGroups,
    heads: Vec<(usize, usize)>, // of each layer: key-value heads, elements of a head; for latents 1 and their elements
    latent: Vec<bool>,          // whether a layer keeps latents, stored as keys
    planes: Vec<(usize, usize)>, // offset of a plane's numbers, and their count for each slot
    keys: Vec<f32>, // (plane, slot), then a layer's (kv_head, head_dim), rounded to the cache's type
    values: Vec<f32>, // the same for values
    states: Vec<Option<ReferenceStates>>, // by layer
}

impl ReferenceBackend {
    /// A backend without limits and without an open step.
    pub fn new() -> Self {
        let rounding = Rounding { operands: Operands::F32, bytes_before_quantised: false };
        let facts = Facts::new(DEVICE, rounding, can_dequantize);
        Self {
            facts: Facts { attends_in_parts: true, ..facts },
            limits: None,
            batch: Batch::default(),
            tokens: Vec::new(),
            draws: Draws::default(),
            open: false,
            chosen: Vec::new(),
        }
    }

    /// Batch of the open step.
    fn step(&self) -> &Batch {
        assert!(self.open, "an op outside a step; call begin first");
        &self.batch
    }

    fn limits(&self) -> &StepLimits {
        self.limits.as_ref().expect("limits are known, because begin asserts them before any step")
    }

    /// `residual[r] += x[r]`.
    fn add(&self, residual: &mut ReferenceBuffer, x: &ReferenceBuffer, cols: usize) {
        let rows = self.step().rows();
        assert_eq!(
            residual.role,
            BufferRole::Residual,
            "a sum in a buffer of operands loses its small addends"
        );
        residual.check(rows, cols, "residual");
        x.check(rows, cols, "x");
        for row in 0..rows {
            for (residual, x) in residual.row_mut(row).iter_mut().zip(x.row(row)) {
                *residual += x;
            }
        }
    }

    /// `out[r] = finish(weight · x[r] + bias)`.
    fn product(
        &self,
        weight: &ReferenceMatrix,
        bias: Option<&Vec<f32>>,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
        finish: impl Fn(f64) -> f64,
    ) {
        let rows = self.step().rows();
        let width = self.limits().width;
        assert!(weight.rows <= width && weight.cols <= width, "a matrix wider than the step's limits");
        assert!(
            bias.is_none_or(|bias| bias.len() == weight.rows),
            "a bias of another length than the output"
        );
        x.check(rows, weight.cols, "x");
        out.check(rows, weight.rows, "out");
        for output in 0..weight.rows {
            let bias = bias.map_or(0.0, |bias| f64::from(bias[output]));
            for row in 0..rows {
                let sum = formulas::dot(weight.row(output), x.row(row)) + bias;
                out.row_mut(row)[output] = finish(sum) as f32;
            }
        }
    }
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl DeviceMemory for ReferenceBackend {
    type Matrix = ReferenceMatrix;
    type Vector = Vec<f32>;
    type Experts = ReferenceExperts;
    type LowRank = ReferenceLowRank;
    type Buffer = ReferenceBuffer;
    type Kv = ReferenceKv;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn bytes(&self, of: &Allocation<'_>) -> usize {
        match *of {
            Allocation::Matrix(parts) => matrix_bytes(parts),
            Allocation::Kernel(shape, _) => matrix_bytes(&[*shape]),
            Allocation::Experts(experts) => {
                experts.iter().map(|expert| matrix_bytes(&expert.gate_up) + matrix_bytes(&expert.down)).sum()
            }
            Allocation::LowRank { pairs, changes } => ReferenceLowRank::bytes(pairs, changes),
            Allocation::Vector(length) => length * size_of::<f32>(),
            Allocation::Buffer { rows, cols, .. } => rows * cols * size_of::<f32>(),
            Allocation::Kv(spec) => {
                let slots = spec.blocks * BLOCK_TOKENS;
                2 * slots * elements_per_slot(spec).sum::<usize>() * size_of::<f32>()
                    + ReferenceStates::bytes(spec)
            }
            Allocation::Scratch(_) => 0,
        }
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<ReferenceMatrix, KernelError> {
        let cols = parts.first().map_or(0, |part| part.shape.cols);
        for part in parts {
            check_source(part, cols)?;
        }
        let rows = parts.iter().map(|part| part.shape.rows).sum();
        let mut weights = filled(rows * cols, 0.0, "weights")?;
        let mut rest = &mut weights[..];
        for part in parts {
            let (out, after) = rest.split_at_mut(part.shape.rows * cols);
            dequantize_row(part.shape.dtype, part.bytes, out);
            rest = after;
        }
        Ok(ReferenceMatrix { rows, cols, weights })
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<ReferenceExperts, KernelError> {
        let room = || Vec::with_capacity(shapes.len());
        Ok(ReferenceExperts { gate_up: room(), down: room() })
    }

    fn pack_expert(
        &self,
        experts: &mut ReferenceExperts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        let (gate_up, down) = (self.pack(&parts.gate_up)?, self.pack(&parts.down)?);
        experts.gate_up.push(gate_up);
        experts.down.push(down);
        Ok(())
    }

    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<ReferenceLowRank, KernelError> {
        ReferenceLowRank::new(delta)
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, KernelError> {
        Ok(values.to_vec())
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<ReferenceBuffer, KernelError> {
        Ok(ReferenceBuffer { role, rows, cols, values: filled(rows * cols, 0.0, "activations")? })
    }

    fn kv(&self, spec: &KvSpec) -> Result<ReferenceKv, KernelError> {
        ReferenceKv::new(spec)
    }

    fn read_rows(&self, x: &ReferenceBuffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        out.copy_from_slice(&x.values[row_first * x.cols..][..out.len()]);
        Ok(())
    }

    fn write_rows(
        &mut self,
        x: &mut ReferenceBuffer,
        row_first: usize,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        x.values[row_first * x.cols..][..rows.len()].copy_from_slice(rows);
        Ok(())
    }
}

impl Backend for ReferenceBackend {
    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        assert!(self.limits.is_none(), "reserve is called once");
        self.limits = Some(*limits);
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        assert!(!self.open, "begin inside a step; call end first");
        assert!(self.limits.is_some(), "begin before reserve");
        batch.check(self.limits(), &mut Vec::new());
        self.batch = batch.clone();
        self.tokens = batch.tokens(&self.draws).collect();
        self.draws.begin();
        self.open = true;
        Ok(())
    }

    fn run(&mut self, op: DeviceOp<'_, Self>) {
        self.run_op(op);
    }

    fn read_experts(
        &self,
        hidden: &ReferenceBuffer,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        chosen.copy_from_slice(&self.chosen);
        self.read_rows(hidden, 0, inner)
    }

    fn logits(
        &mut self,
        LogitsHead { matrix: head, adapted }: LogitsHead<'_, Self>,
        x: &ReferenceBuffer,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let batch = self.step();
        x.check(batch.rows(), head.cols, "x");
        assert_eq!(out.len(), batch.logit_rows.len() * head.rows, "out holds one row of logits a logit row");
        for (out, &row) in out.chunks_exact_mut(head.rows).zip(&batch.logit_rows) {
            for (token, out) in out.iter_mut().enumerate() {
                *out = formulas::dot(head.row(token), x.row(row as usize)) as f32;
            }
        }
        if let Some(AdaptedLogits { deltas, .. }) = adapted {
            low_rank::add_to_logits(batch, deltas, x, out);
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
        let vocab = head.matrix.rows;
        self.logits(head, x, room)?;
        assert_eq!(specs.rows.len(), self.batch.logit_rows.len(), "a spec for each logit row");
        let rows = room.chunks_exact(vocab).zip(&specs.rows).enumerate();
        let drawn = rows.map(|(row, (logits, spec))| draw(logits, spec, specs.edits_of(row)));
        self.draws.put(drawn);
        Ok(())
    }

    fn draws(&mut self) -> &mut Draws {
        &mut self.draws
    }

    fn end(&mut self) -> Result<(), KernelError> {
        self.open = false;
        Ok(())
    }
}

fn matrix_bytes(parts: &[MatrixShape]) -> usize {
    parts.iter().map(|part| part.rows * part.cols * size_of::<f32>()).sum()
}
