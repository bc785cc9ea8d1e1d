//! Faults of layers with recurrent states.

use super::{Fault, Faulty};
use crate::reference::{ReferenceBuffer, ReferenceKv};
use crate::{ConvolutionParams, GateKind, OutputGateParams, OutputNorm, RecurrenceParams, StateRule};

impl Faulty {
    /// Runs an op on the states that this fault selects.
    fn with_states(&mut self, op: impl FnOnce(&mut crate::reference::ReferenceBackend)) {
        let mut batch = self.batch.clone();
        if self.fault == Fault::StatesByPlace {
            batch.states = (0..batch.states.len() as u32).collect();
        }
        self.with_batch(&batch, op);
    }

    /// `convolve`.
    pub(super) fn convolved(
        &mut self,
        x: &mut ReferenceBuffer,
        params: &ConvolutionParams<&Vec<f32>>,
        (kv, layer): (&mut ReferenceKv, usize),
    ) {
        let mut weight = params.weight.clone();
        if self.fault == Fault::TapsReversed {
            weight = weight.chunks(params.shape.channels()).rev().flatten().copied().collect();
        }
        let bias = params.bias.filter(|_| self.fault != Fault::BiasIgnored);
        let params = ConvolutionParams { weight: &weight, bias, ..*params };
        self.with_states(|inner| inner.convolve(x, &params, kv, layer));
        if self.fault == Fault::SiluAlways && params.shape.rule == StateRule::Convolution {
            let silu = |x: &f32| x / (1.0 + (-x).exp());
            let rows = self.rows_of(x, x.cols()).iter().map(silu).collect();
            self.store(x, rows);
        }
        self.nudge(x);
        self.restore(x);
    }

    /// `recur`.
    pub(super) fn recurred(
        &mut self,
        x: &ReferenceBuffer,
        params: &RecurrenceParams<&Vec<f32>>,
        (kv, layer): (&mut ReferenceKv, usize),
        out: &mut ReferenceBuffer,
    ) {
        let zeros = vec![0.0; params.decay.len()];
        let or_zeros = |fault, own| if self.fault == fault { &zeros } else { own };
        let limits =
            if self.fault == Fault::StepLimitsIgnored { [0.0, f32::MAX] } else { params.step_limits };
        let params = RecurrenceParams {
            decay: or_zeros(Fault::DecayIgnored, params.decay),
            step_bias: or_zeros(Fault::StepBiasIgnored, params.step_bias),
            step_limits: limits,
            skip: params.skip.filter(|_| self.fault != Fault::SkipIgnored),
            ..*params
        };
        self.with_states(|inner| inner.recur(x, &params, kv, layer, out));
        self.nudge(out);
        self.restore(out);
    }

    /// Makes a row's result depend on the number of rows.
    fn nudge(&mut self, out: &mut ReferenceBuffer) {
        if self.fault == Fault::RowsOfChunkMatter && self.batch.rows() > 1 {
            let rows: Vec<f32> =
                self.rows_of(out, out.cols()).iter().map(|x| x * (1.0 + f32::EPSILON)).collect();
            self.store(out, rows);
        }
    }

    /// `gate_output`.
    pub(super) fn gated_output(
        &mut self,
        gate: &ReferenceBuffer,
        params: &OutputGateParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        let kind = match (self.fault, params.kind) {
            (Fault::GateKindSwapped, GateKind::Silu) => GateKind::Sigmoid,
            (Fault::GateKindSwapped, GateKind::Sigmoid) => GateKind::Silu,
            (_, kind) => kind,
        };
        let norm = params.norm.as_ref().map(|norm| OutputNorm {
            before_gate: norm.before_gate != (self.fault == Fault::GateNormSwapped),
            ..*norm
        });
        let norm = norm.filter(|_| self.fault != Fault::NormWeightIgnored);
        let column = if self.fault == Fault::ColumnsFromFirst { 0 } else { params.column };
        self.inner.gate_output(gate, &OutputGateParams { column, kind, norm }, out);
        let rows = self.rows_of(out, out.cols());
        self.store(out, rows);
    }
}
