//! Reference implementation of layers with recurrent states.

use super::storage::filled;
use super::{ReferenceBuffer, ReferenceKv, formulas};
use crate::{
    Activation, Batch, ConvolutionParams, GateKind, KernelError, KvLayout, KvSpec, OutputGateParams,
    RecurrenceParams, StateRule, StateShape,
};

/// States of a layer; elements never written are NaN.
#[derive(Clone, Debug)]
pub(super) struct ReferenceStates {
    shape: StateShape,
    inputs: Vec<f32>, // (state, taps - 1, channels), the oldest first
    heads: Vec<f32>,  // (state, value_head, key_dim, value_dim)
    count: usize,
}

impl ReferenceStates {
    /// States of each layer that has them.
    pub(super) fn of(spec: &KvSpec) -> Result<Vec<Option<Self>>, KernelError> {
        let of_layer = |layout: &KvLayout| match *layout {
            KvLayout::State(shape) => {
                let [inputs, heads] = numbers(&shape).map(|of| filled(of * spec.states, f32::NAN, "states"));
                Ok(Some(Self { shape, inputs: inputs?, heads: heads?, count: spec.states }))
            }
            _ => Ok(None),
        };
        spec.layers.iter().map(of_layer).collect()
    }

    /// Bytes of the states of all layers.
    pub(super) fn bytes(spec: &KvSpec) -> usize {
        let of_layer = |layout: &KvLayout| match layout {
            KvLayout::State(shape) => shape.elements(),
            _ => 0,
        };
        spec.layers.iter().map(of_layer).sum::<usize>() * spec.states * size_of::<f32>()
    }
}

/// Elements of a state: inputs and heads.
fn numbers(shape: &StateShape) -> [usize; 2] {
    [(shape.taps - 1) * shape.channels(), shape.value_width() * shape.key_dim]
}

fn states_of<'a>(kv: &'a mut ReferenceKv, layer: usize, shape: &StateShape) -> &'a mut ReferenceStates {
    let Some(states) = &mut kv.states[layer] else { panic!("layer {layer} keeps no state") };
    assert_eq!(states.shape, *shape, "a layer and its states differ in shape");
    states
}

/// The contract's `convolve`.
pub(super) fn convolve(
    batch: &Batch,
    x: &mut ReferenceBuffer,
    params: &ConvolutionParams<&Vec<f32>>,
    kv: &mut ReferenceKv,
    layer: usize,
) {
    let shape = params.shape;
    let (channels, before) = (shape.channels(), shape.taps - 1);
    assert!(x.cols >= channels, "fewer columns than channels");
    x.check(batch.rows(), x.cols, "x");
    assert_eq!(params.weight.len(), shape.taps * channels, "a factor for each tap and channel");
    assert!(params.bias.is_none_or(|bias| bias.len() == channels), "an addend for each channel");
    let states = states_of(kv, layer, &shape);
    for (span, state, fresh) in batch.states(states.count) {
        let inputs = &mut states.inputs[state * before * channels..][..before * channels];
        if fresh {
            inputs.fill(0.0);
        }
        for row in span.row_first as usize..(span.row_first + span.rows) as usize {
            let own = x.row(row)[..channels].to_vec();
            for channel in 0..channels {
                let tap = |tap: usize| {
                    let seen = if tap == before { own[channel] } else { inputs[tap * channels + channel] };
                    f64::from(params.weight[tap * channels + channel]) * f64::from(seen)
                };
                let bias = params.bias.map_or(0.0, |bias| f64::from(bias[channel]));
                let sum = bias + (0..=before).map(tap).sum::<f64>();
                let out = match shape.rule {
                    StateRule::Convolution => sum,
                    StateRule::Delta | StateRule::Ssd => formulas::activate(Activation::Silu, sum),
                };
                x.row_mut(row)[channel] = out as f32;
            }
            inputs.copy_within(channels.min(inputs.len()).., 0);
            inputs[(before - 1) * channels..].copy_from_slice(&own);
        }
    }
}

/// The contract's `recur`.
pub(super) fn recur(
    batch: &Batch,
    x: &ReferenceBuffer,
    params: &RecurrenceParams<&Vec<f32>>,
    kv: &mut ReferenceKv,
    layer: usize,
    out: &mut ReferenceBuffer,
) {
    let shape @ StateShape { key_dim, value_dim, value_heads, .. } = params.shape;
    assert!(shape.rule != StateRule::Convolution, "nothing recurs");
    x.check(batch.rows(), shape.width(), "x");
    out.check(batch.rows(), shape.value_width(), "out");
    let of_heads = [Some(params.decay), Some(params.step_bias), params.skip];
    assert!(of_heads.iter().flatten().all(|of| of.len() == value_heads), "a number for each head");
    assert!(params.decay.iter().all(|&decay| decay <= 0.0), "a state that grows");
    let states = states_of(kv, layer, &shape);
    let size = key_dim * value_dim;
    for (span, state, fresh) in batch.states(states.count) {
        for head in 0..value_heads {
            let state = &mut states.heads[(state * value_heads + head) * size..][..size];
            if fresh {
                state.fill(0.0);
            }
            for row in span.row_first as usize..(span.row_first + span.rows) as usize {
                let of_head = HeadParams {
                    shape,
                    decay: params.decay[head],
                    step_bias: params.step_bias[head],
                    step_limits: params.step_limits,
                    skip: params.skip.map_or(0.0, |skip| skip[head]),
                };
                let given = &mut out.row_mut(row)[head * value_dim..][..value_dim];
                token(&of_head, head, x.row(row), state, given);
            }
        }
    }
}

/// Parameters of one head's recurrence.
struct HeadParams {
    shape: StateShape,
    decay: f32,
    step_bias: f32,
    step_limits: [f32; 2],
    skip: f32,
}

/// Recurrence of one token and one head.
fn token(params: &HeadParams, head: usize, x: &[f32], state: &mut [f32], out: &mut [f32]) {
    let shape @ StateShape { key_dim, value_dim, .. } = params.shape;
    let [query, key, value] = shape.columns();
    let wide = |at: usize, count: usize| x[at..][..count].iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let key_head = shape.key_head(head) * key_dim;
    let (mut q, mut k) = (wide(query + key_head, key_dim), wide(key + key_head, key_dim));
    let v = wide(value + head * value_dim, value_dim);
    let step = (f64::from(x[shape.step_column() + head]) + f64::from(params.step_bias)).exp().ln_1p();
    let step = step.clamp(params.step_limits[0].into(), params.step_limits[1].into());
    let kept = (f64::from(params.decay) * step).exp();
    let delta = shape.rule == StateRule::Delta;
    if delta {
        for vector in [&mut q, &mut k] {
            let length = (vector.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            vector.iter_mut().for_each(|x| *x /= length);
        }
        q.iter_mut().for_each(|x| *x /= (key_dim as f64).sqrt());
    }
    let beta = 1.0 / (1.0 + f64::from(-x[shape.beta_column() + head]).exp());
    for (column, (v, out)) in v.iter().zip(out).enumerate() {
        let at = |i: usize| i * value_dim + column;
        let said: f64 = (0..key_dim).map(|i| k[i] * kept * f64::from(state[at(i)])).sum();
        let added = if delta { beta * (v - said) } else { step * v };
        let mut given = f64::from(params.skip) * v;
        for i in 0..key_dim {
            let s = kept * f64::from(state[at(i)]) + k[i] * added;
            state[at(i)] = s as f32;
            given += q[i] * s;
        }
        *out = given as f32;
    }
}

/// The contract's `gate_output`.
pub(super) fn gate_output(
    rows: usize,
    gate: &ReferenceBuffer,
    params: &OutputGateParams<&Vec<f32>>,
    out: &mut ReferenceBuffer,
) {
    let cols = out.cols;
    gate.check(rows, gate.cols, "gate");
    out.check(rows, cols, "out");
    assert!(gate.cols >= params.column + cols, "a gate narrower than what it multiplies");
    for row in 0..rows {
        let gates = &gate.row(row)[params.column..][..cols];
        let apply = |out: &mut [f32]| {
            for (out, &gate) in out.iter_mut().zip(gates) {
                let gate = f64::from(gate);
                let factor = match params.kind {
                    GateKind::Silu => formulas::activate(Activation::Silu, gate),
                    GateKind::Sigmoid => 1.0 / (1.0 + (-gate).exp()),
                };
                *out = (f64::from(*out) * factor) as f32;
            }
        };
        let out = out.row_mut(row);
        let Some(norm) = &params.norm else {
            apply(out);
            continue;
        };
        let weights = norm.weight.len();
        assert!(
            cols.is_multiple_of(norm.part) && (weights == cols || weights == norm.part),
            "parts of a row"
        );
        if !norm.before_gate {
            apply(out);
        }
        for (index, part) in out.chunks_exact_mut(norm.part).enumerate() {
            let plain = part.to_vec();
            let weight = &norm.weight[index * norm.part % weights..][..norm.part];
            formulas::rms_norm(&plain, weight, norm.eps, part);
        }
        if norm.before_gate {
            apply(out);
        }
    }
}
