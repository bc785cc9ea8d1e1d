//! Checks of layers with recurrent states, against the reference: the convolution, the recurrence and the gate after
//! it.

use super::bounds::{CaseErrors, hold, operand_sigma, same_bits};
use super::random::Random;
use super::rig::{Rig, ok, rows_batch};
use crate::reference::ReferenceBackend;
use crate::{
    AnyBackend, Batch, ConvolutionParams, GateKind, HeadShape, KvLayout, KvSpec, OutputGateParams,
    OutputNorm, RecurrenceParams, RowSource, StateRule, StateShape, StepLimits,
};

/// Rows of one sequence in the largest step.
const CHUNK_MAX: usize = 64;
/// Relative σ of a sum over keys and tokens in f32, relative to the largest number beside it.
const SUM: f64 = 2e-6;

fn limits(sequences: usize) -> StepLimits {
    StepLimits {
        rows: sequences * CHUNK_MAX,
        sequences,
        logit_rows: 0,
        context: 1024,
        width: 64,
        vocab: 1,
        heads: HeadShape { heads: 1, kv_heads: 1, head_dim: 8 },
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

/// A play: sequences of these lengths, each with a state among more.
struct Play {
    shape: StateShape,
    lengths: Vec<usize>,
    states: Vec<u32>,
    rows: Vec<Vec<f32>>, // (position, width) of each sequence
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    decay: Vec<f32>,
    step_bias: Vec<f32>,
    step_limits: [f32; 2],
    skip: Option<Vec<f32>>,
}

/// Op that is played.
#[derive(Clone, Copy, PartialEq)]
enum Op {
    Convolve,
    Recur,
}

/// Checks `convolve` and `recur` with both rules and every kind of heads, for sequences that come and go, cut in every
/// way.
///
/// # Panics
/// If a number is out of bounds, or a bit depends on the batch or on how a prompt was cut.
pub fn check_states(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(91);
    let plain = StateShape {
        rule: StateRule::Delta,
        key_heads: 2,
        value_heads: 4,
        key_dim: 12,
        value_dim: 20,
        taps: 4,
        tiled: false,
    };
    let shapes = [
        plain,
        StateShape { tiled: true, value_heads: 6, value_dim: 16, taps: 3, ..plain },
        StateShape { rule: StateRule::Ssd, key_heads: 1, taps: 2, ..plain },
        StateShape { rule: StateRule::Ssd, value_heads: 2, key_dim: 40, value_dim: 64, ..plain },
        StateShape { key_dim: 128, value_dim: 128, ..plain },
        StateShape {
            rule: StateRule::Convolution,
            key_heads: 1,
            value_heads: 1,
            key_dim: 0,
            value_dim: 75,
            taps: 3,
            ..plain
        },
    ];
    for shape in shapes {
        for settings in [true, false] {
            let play = Play::random(shape, settings, &mut random);
            let recurs = shape.rule != StateRule::Convolution;
            for op in [Some(Op::Convolve), recurs.then_some(Op::Recur)].into_iter().flatten() {
                let name = if op == Op::Convolve { "convolve" } else { "recur" };
                let what = format!("{name} of {shape:?}, biases and limits {settings}");
                play.check(&what, op, make);
            }
        }
    }
}

impl Play {
    fn random(shape: StateShape, settings: bool, random: &mut Random) -> Self {
        let lengths = vec![33, 1, 70, 5];
        let heads = shape.value_heads;
        let weight = random.normals(shape.taps * shape.channels()).iter().map(|w| 0.5 * w).collect();
        Self {
            shape,
            states: random.permutation(7).into_iter().take(lengths.len()).map(|state| state as u32).collect(),
            rows: lengths.iter().map(|length| random.normals(length * shape.width())).collect(),
            lengths,
            weight,
            bias: settings.then(|| random.normals(shape.channels())),
            decay: (0..heads).map(|_| -0.02 - random.uniform()).collect(),
            step_bias: random.normals(heads),
            step_limits: if settings { [0.3, 1.5] } else { [0.0, f32::INFINITY] },
            skip: settings.then(|| random.normals(heads)),
        }
    }

    fn check(&self, what: &str, op: Op, make: &dyn Fn() -> AnyBackend) {
        let rounding = make().facts().rounding;
        let mut held = self.rows.clone();
        held.iter_mut().for_each(|rows| hold(rounding, rows));
        let expected = self.run(AnyBackend::new(ReferenceBackend::new()), op, &held, CHUNK_MAX);
        let whole = self.run(make(), op, &held, CHUNK_MAX);
        let cols = if op == Op::Convolve { self.shape.width() } else { self.shape.value_width() };
        let mut errors = CaseErrors::of_operands(what.to_owned(), rounding);
        for (found, expected) in whole.iter().zip(&expected) {
            for (row, (found, expected)) in found.chunks(cols).zip(expected.chunks(cols)).enumerate() {
                let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let sigma = f64::from(largest) * (SUM + 2.0 * operand_sigma(rounding));
                for (col, (&found, &expected)) in found.iter().zip(expected).enumerate() {
                    errors.check(row, col, found, expected, sigma, 1e-30);
                }
            }
        }
        errors.finish();
        for (cut, name) in [(1, "one by one"), (7, "seven at a time")] {
            let found = self.run(make(), op, &held, cut);
            for (found, whole) in found.iter().zip(&whole) {
                same_bits(&format!("{what}, {name}"), found, whole, cols);
            }
        }
    }

    /// Output of the op for each sequence. Another sequence has used each state before. Sequences begin one step after
    /// the other, and the shortest end first, so that their places in the batch change.
    fn run(&self, backend: AnyBackend, op: Op, rows: &[Vec<f32>], cut: usize) -> Vec<Vec<f32>> {
        let (shape, count) = (self.shape, self.lengths.len());
        let mut rig = Rig::new(backend, &limits(count));
        let heads = KvLayout::Heads { kv_heads: 1, head_dim: 8, window: None };
        let spec = KvSpec {
            layers: vec![heads, KvLayout::State(shape), KvLayout::State(shape)],
            blocks: 64 * count,
            states: 7,
            ..KvSpec::default()
        };
        let mut kv = ok("kv", rig.backend.kv(&spec));
        let (weight, decay) = (rig.vector(&self.weight), rig.vector(&self.decay));
        let (bias, skip) = (&self.bias, &self.skip);
        let (bias, skip) = (bias.as_ref().map(|of| rig.vector(of)), skip.as_ref().map(|of| rig.vector(of)));
        let step_bias = rig.vector(&self.step_bias);
        let convolution = ConvolutionParams { shape, weight: &weight, bias: bias.as_ref() };
        let step_limits = self.step_limits;
        let recurrence = RecurrenceParams {
            shape,
            decay: &decay,
            step_bias: &step_bias,
            step_limits,
            skip: skip.as_ref(),
        };
        let cols = if op == Op::Convolve { shape.width() } else { shape.value_width() };
        let mut step = |works: &[(usize, usize, usize)]| {
            let mut batch = Batch::default();
            let mut taken = Vec::new();
            for &(sequence, first, count) in works {
                batch.sources.extend(vec![RowSource::Token(0); count]);
                batch.push_sequence(count, first + count, |_, index| (sequence * 64 + index) as u32);
                batch.states.push(self.states[sequence]);
                taken.extend_from_slice(&rows[sequence][first * shape.width()..][..count * shape.width()]);
            }
            let count = batch.rows();
            let mut x = rig.upload(&taken, shape.width());
            let mut out = rig.blank(count, shape.value_width());
            rig.step(&batch, |rig| match op {
                Op::Convolve => rig.backend.convolve(&mut x, &convolution, &mut kv, 2),
                Op::Recur => rig.backend.recur(&x, &recurrence, &mut kv, 2, &mut out),
            });
            match op {
                Op::Convolve => rig.download("convolve", &x, count, cols),
                Op::Recur => rig.download("recur", &out, count, cols),
            }
        };
        for sequence in 0..count {
            step(&[(sequence, 0, 1)]);
        }
        let (mut out, mut done) = (vec![Vec::new(); count], vec![0; count]);
        let mut begun = 0;
        while (0..count).any(|sequence| done[sequence] < self.lengths[sequence]) {
            begun = count.min(begun + 1);
            let left = |sequence: &usize| done[*sequence] < self.lengths[*sequence];
            let works: Vec<_> = (0..begun)
                .filter(left)
                .map(|sequence| (sequence, done[sequence], cut.min(self.lengths[sequence] - done[sequence])))
                .collect();
            let given = step(&works);
            let mut rest = &given[..];
            for (sequence, _, rows) in works {
                let (own, after) = rest.split_at(rows * cols);
                out[sequence].extend_from_slice(own);
                done[sequence] += rows;
                rest = after;
            }
        }
        out
    }
}

/// Checks `gate_output` of both kinds, with a norm before it, after it or none.
///
/// # Panics
/// If a number is out of bounds, or a bit depends on the batch.
pub fn check_gate_output(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(92);
    for (cols, part, weights) in [(48, 12, 12), (40, 20, 40), (512, 128, 128)] {
        for kind in [GateKind::Silu, GateKind::Sigmoid] {
            for normed in [None, Some(true), Some(false)] {
                let (rows, column) = (9, 3);
                let gate_cols = column + cols + 2;
                let what = format!("gate_output of {cols} by {kind:?}, normed first: {normed:?}");
                let rig = Rig::new(make(), &limits(1));
                let (mut x, mut gate) = (random.normals(rows * cols), random.normals(rows * gate_cols));
                hold(rig.rounding, &mut x);
                hold(rig.rounding, &mut gate);
                let weight: Vec<f32> = random.normals(weights).iter().map(|w| 1.0 + 0.3 * w).collect();
                let case = GateCase { column, kind, normed, part };
                let run = |x: &[f32], gate: &[f32]| {
                    let count = x.len() / cols;
                    let mut rig = Rig::new(make(), &limits(1));
                    found(&mut rig, x, gate, &weight, &case, count)
                };
                let all = run(&x, &gate);
                let alone = run(&x[4 * cols..5 * cols], &gate[4 * gate_cols..5 * gate_cols]);
                same_bits(&what, &alone, &all[4 * cols..5 * cols], cols);
                let mut reference = Rig::new(AnyBackend::new(ReferenceBackend::new()), &limits(1));
                let expected = found(&mut reference, &x, &gate, &weight, &case, rows);
                let mut errors = CaseErrors::of_operands(what, rig.rounding);
                for (index, (&found, &expected)) in all.iter().zip(&expected).enumerate() {
                    let sigma = f64::from(expected.abs()) * (SUM + 2.0 * operand_sigma(rig.rounding));
                    errors.check(index / cols, index % cols, found, expected, sigma, 1e-30);
                }
                errors.finish();
            }
        }
    }
}

/// Setting of an output gate.
struct GateCase {
    column: usize, // of the gate's row, where it begins
    kind: GateKind,
    normed: Option<bool>, // before the gate, or after it
    part: usize,          // columns of a norm
}

/// Gated rows of `x`, on a device.
fn found(
    rig: &mut Rig,
    x: &[f32],
    gate: &[f32],
    weight: &[f32],
    &GateCase { column, kind, normed, part }: &GateCase,
    rows: usize,
) -> Vec<f32> {
    let (cols, gate_cols) = (x.len() / rows, gate.len() / rows);
    let weight = rig.vector(weight);
    let (gate, mut out) = (rig.upload(gate, gate_cols), rig.upload(x, cols));
    let norm = normed.map(|before_gate| OutputNorm { weight: &weight, eps: 1e-5, part, before_gate });
    rig.step(&rows_batch(&vec![0; rows]), |rig| {
        rig.backend.gate_output(&gate, &OutputGateParams { column, kind, norm }, &mut out);
    });
    rig.download("gate_output", &out, rows, cols)
}
