//! What a layer that keeps a state of each sequence has and does, and the gate behind attention: weights, buffers, the
//! ops between its two matrices.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, BufferId, BufferRole, ConvolutionParams, GateKind, KernelError, KvId, Op, OutputGateParams,
    OutputNorm, RecurrenceParams, RowOp,
};

use super::loader::Loader;
use crate::error::LoadError;
use crate::spec::{LayerPart, Part, StateSpec, TransformerSpec};

/// A layer's state: all that it has beside what projects to it and from it.
pub(crate) struct State {
    pub(super) convolution: ops::Vector,              // (taps, channels)
    pub(super) convolution_bias: Option<ops::Vector>, // (channels)
    pub(super) recurrence: Option<Recurrence>,
}

/// What recurs behind the convolution.
pub(crate) struct Recurrence {
    pub(super) decay: ops::Vector,        // (value_heads): below 0
    pub(super) step_bias: ops::Vector,    // (value_heads)
    pub(super) skip: Option<ops::Vector>, // (value_heads)
    pub(super) norm: Option<ops::Vector>, // (value_dim), or (value_heads * value_dim)
}

/// Activations of layers that keep a state, all `(rows, _)`.
pub(crate) struct StateBuffers {
    pub(super) own: ops::Buffer,   // (rows, width of the shape)
    pub(super) given: ops::Buffer, // (rows, value_heads * value_dim)
}

/// Columns of [`StateBuffers`]' members, in their order.
pub(super) fn state_widths(spec: &TransformerSpec) -> Option<[usize; 2]> {
    spec.state().map(|state| [state.shape.width(), state.shape.value_width()])
}

/// Columns of what attention's output is multiplied with, where there is such.
pub(super) fn gate_width(spec: &TransformerSpec) -> Option<usize> {
    let gated = spec.layers.iter().find(|layer| layer.attention.output_gate);
    gated.map(|layer| layer.attention.projection.q_width())
}

impl StateBuffers {
    pub(super) fn new(backend: &AnyBackend, rows: usize, widths: [usize; 2]) -> Result<Self, KernelError> {
        let [own, given] = widths.map(|cols| backend.buffer(BufferRole::Operand, rows, cols));
        Ok(Self { own: own?, given: given? })
    }
}

impl Loader<'_> {
    /// What a layer's state has.
    pub(super) fn state(&mut self, index: usize, state: &StateSpec) -> Result<State, LoadError> {
        let part = |part| Part::Layer(index, part);
        // Files have the taps of a channel together.
        let taps = state.shape.taps;
        let by_channel = self.take(part(LayerPart::StateConvolution).weight())?;
        let of_tap = |tap: usize| by_channel.iter().skip(tap).step_by(taps).copied();
        let convolution: Vec<f32> = (0..taps).flat_map(of_tap).collect();
        let convolution_bias = part(LayerPart::StateConvolution).bias();
        Ok(State {
            convolution_bias: state.convolution_bias.then(|| self.vector(convolution_bias)).transpose()?,
            convolution: self.backend.vector(&convolution)?,
            recurrence: state.recurs().then(|| self.recurrence(index, state)).transpose()?,
        })
    }

    fn recurrence(&mut self, index: usize, state: &StateSpec) -> Result<Recurrence, LoadError> {
        let part = |part| Part::Layer(index, part);
        let mut decay = self.take(part(LayerPart::StateDecay).weight())?;
        if state.decay_as_log {
            decay.iter_mut().for_each(|decay| *decay = -decay.exp());
        }
        if let Some(&wrong) = decay.iter().find(|&&decay| !(decay.is_finite() && decay <= 0.0)) {
            let tensor = self.tensors.get(part(LayerPart::StateDecay).weight());
            return Err(tensor
                .corrupt(format!("a state that is multiplied by exp({wrong}) at each step does not last")));
        }
        let mut vector_if = |present: bool, weight| present.then(|| self.vector(weight)).transpose();
        Ok(Recurrence {
            skip: vector_if(state.has_skip(), part(LayerPart::StateSkip).weight())?,
            norm: vector_if(state.norm_part > 0, part(LayerPart::StateNorm).weight())?,
            step_bias: self.vector(part(LayerPart::StateStep).bias())?,
            decay: self.backend.vector(&decay)?,
        })
    }
}

impl State {
    /// Ops between a layer's two products: what a state takes up, and what is read of it.
    pub(super) fn ops(
        &self,
        spec: &StateSpec,
        [own, given]: [BufferId; 2],
        kv: KvId,
        layer: usize,
    ) -> Vec<Op> {
        let shape = spec.shape;
        let bias = self.convolution_bias.as_ref().map(ops::Vector::id);
        let convolution = ConvolutionParams { shape, weight: self.convolution.id(), bias };
        let row = |op, out| Op::Row { op, out };
        let Some(of) = &self.recurrence else {
            let channels = shape.channels();
            return vec![
                row(RowOp::Take { x: own, first: 2 * channels }, given),
                row(RowOp::Multiply { by: own, first: 0 }, given),
                Op::Convolve { x: given, params: convolution, kv, layer },
                row(RowOp::Multiply { by: own, first: channels }, given),
            ];
        };
        let recurrence = RecurrenceParams {
            shape,
            decay: of.decay.id(),
            step_bias: of.step_bias.id(),
            step_limits: [0.0, f32::INFINITY],
            skip: of.skip.as_ref().map(ops::Vector::id),
        };
        let norm = of.norm.as_ref().map(|weight| OutputNorm {
            weight: weight.id(),
            eps: spec.norm_eps,
            part: spec.norm_part,
            before_gate: !spec.has_skip(),
        });
        let gate = OutputGateParams { column: shape.channels(), kind: GateKind::Silu, norm };
        vec![
            Op::Convolve { x: own, params: convolution, kv, layer },
            Op::Recur { x: own, params: recurrence, kv, layer, out: given },
            Op::GateOutput { gate: own, params: gate, out: given },
        ]
    }
}
