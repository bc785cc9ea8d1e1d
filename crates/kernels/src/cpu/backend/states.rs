//! Ops of layers with recurrent states.

use super::{CpuBuffer, CpuVector, OpenStep};
use crate::cpu::states::{self, ConvolveJob, LayerStates, OutputGateJob, PartNorm, RecurrenceJob};
use hanzo_engine_ops::{ConvolutionParams, OutputGateParams, RecurrenceParams, StateRule};

impl OpenStep<'_> {
    /// The contract's `convolve`.
    pub(super) fn convolve(
        &mut self,
        x: &mut CpuBuffer,
        params: &ConvolutionParams<&CpuVector>,
        layer: LayerStates<'_>,
    ) {
        let (shape, cols) = (&params.shape, x.cols);
        let channels = shape.channels();
        assert!(cols >= channels, "x has {cols} columns, the convolution {channels}");
        x.check(self.batch.rows(), cols, "x");
        assert_eq!(params.weight.values.len(), shape.taps * channels, "a factor for each tap and channel");
        let bias = params.bias.map(|bias| &bias.values[..]);
        assert!(bias.is_none_or(|bias| bias.len() == channels), "an addend for each channel");
        let job = ConvolveJob { shape, weight: &params.weight.values, bias };
        states::convolve(self.cores.lend(), self.batch, job, x.rows_mut(), layer);
    }

    /// The contract's `recur`.
    pub(super) fn recur(
        &mut self,
        x: &CpuBuffer,
        params: &RecurrenceParams<&CpuVector>,
        layer: LayerStates<'_>,
        out: &mut CpuBuffer,
    ) {
        let shape = params.shape;
        assert!(shape.rule != StateRule::Convolution, "nothing recurs");
        x.check(self.batch.rows(), shape.width(), "x");
        out.check(self.batch.rows(), shape.value_width(), "out");
        let job = RecurrenceJob {
            shape,
            decay: &params.decay.values,
            step_bias: &params.step_bias.values,
            step_limits: params.step_limits,
            skip: params.skip.map(|skip| &skip.values[..]),
        };
        let of_heads = [Some(job.decay), Some(job.step_bias), job.skip];
        assert!(of_heads.iter().flatten().all(|of| of.len() == shape.value_heads), "a number for each head");
        states::recur(self.cores.lend(), self.batch, &job, &x.data, layer, &mut out.data);
    }

    /// The contract's `gate_output`.
    pub(super) fn gate_output(
        &mut self,
        gate: &CpuBuffer,
        params: &OutputGateParams<&CpuVector>,
        out: &mut CpuBuffer,
    ) {
        let (rows, cols) = (self.batch.rows(), out.cols);
        gate.check(rows, gate.cols, "gate");
        out.check(rows, cols, "out");
        assert!(gate.cols >= params.column + cols, "a gate narrower than what it multiplies");
        let norm = params.norm.as_ref().map(|norm| PartNorm {
            weight: &norm.weight.values,
            eps: norm.eps,
            part: norm.part,
            before_gate: norm.before_gate,
        });
        if let Some(norm) = &norm {
            let weights = norm.weight.len();
            assert!(
                norm.part > 0 && cols.is_multiple_of(norm.part) && (weights == cols || weights == norm.part),
                "parts of {} and {weights} weights, in rows of {cols}",
                norm.part
            );
        }
        let job = OutputGateJob { gate: gate.rows(), column: params.column, kind: params.kind, norm };
        states::gate_output(self.cores.lend(), rows, job, out.rows_mut());
    }
}
