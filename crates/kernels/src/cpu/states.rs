//! Layers with recurrent states: the convolution, the recurrence and the gate after it.
//!
//! A state is stored as `[inputs of the convolution | heads' states]`. Inputs are `(taps - 1, channels)`, oldest
//! first. For each value head there are panels of 16 columns of its matrix, `(panel, key_dim, 16)`. Panels are
//! independent, so a panel is the unit of work of a thread, and it stays in the core's nearest cache while a prompt's
//! tokens go by. Sums over keys are four chains on every path, so a token's bits do not depend on the number of tokens
//! in the step.

use super::aligned::SharedPointer;
use super::cores::Cores;
use super::lanes::{Kernel, Lanes, dispatch};
use super::math;
use super::matmul::{get, put};
use super::norm::rms_factor;
use super::rows::Rows;
use hanzo_engine_ops::{Activation, Batch, GateKind, StateRule, StateShape};

const LANES: usize = 16;
/// Channels that one thread takes at a time.
const CHANNELS_A_TIME: usize = 64;
/// Chains of the sums over keys.
const CHAINS: usize = 4;
/// Number added to the squares of queries and keys before they are normalised to length 1.
const LENGTH_EPS: f32 = 1e-6;

/// The states of one layer.
pub(super) struct LayerStates<'a> {
    pub(super) numbers: &'a mut [f32], // (states, stride)
    pub(super) stride: usize,
    pub(super) states: usize,
}

/// Panels of a value head's state.
fn panels(shape: &StateShape) -> usize {
    shape.value_dim.div_ceil(LANES)
}

/// Offset of the heads' states in a state: whole vectors after the inputs.
fn heads_first(shape: &StateShape) -> usize {
    ((shape.taps - 1) * shape.channels()).next_multiple_of(LANES)
}

/// Elements of a state in this layout.
pub(super) fn stride(shape: &StateShape) -> usize {
    heads_first(shape) + shape.value_heads * panels(shape) * shape.key_dim * LANES
}

/// Parameters of a convolution.
pub(super) struct ConvolveJob<'a> {
    pub(super) shape: &'a StateShape,
    pub(super) weight: &'a [f32], // (taps, channels)
    pub(super) bias: Option<&'a [f32]>,
}

/// The contract's `convolve`. The caller has checked the presence of the rows.
pub(super) fn convolve(
    Cores { tier, turn }: Cores<'_>,
    batch: &Batch,
    ConvolveJob { shape, weight, bias }: ConvolveJob<'_>,
    Rows { numbers: x, stride: cols }: Rows<&mut [f32]>,
    layer: LayerStates<'_>,
) {
    let channels = shape.channels();
    let (parts, longest) = (channels.div_ceil(CHANNELS_A_TIME), longest(batch));
    let (x, numbers) = (SharedPointer::new(x), SharedPointer::new(layer.numbers));
    let at_once = (1 << 14) / (longest * CHANNELS_A_TIME) + 1;
    turn.run(batch.sequences.len() * parts, at_once, &|_, range| {
        for item in range {
            let first = item % parts * CHANNELS_A_TIME;
            let (span, state, fresh) =
                batch.states(layer.states).nth(item / parts).expect("items are counted by sequences");
            // SAFETY: the caller has checked the rows' width and the vectors' lengths; the state is one of the
            // layer's, which holds the inputs of all channels; and no two items have a column of a sequence in common.
            unsafe {
                let kernel = Convolve {
                    x: x.get().add(span.row_first as usize * cols + first),
                    rows: span.rows as usize,
                    cols,
                    channels,
                    count: CHANNELS_A_TIME.min(channels - first),
                    weight: weight.as_ptr().add(first),
                    bias: bias.map(|bias| bias.as_ptr().add(first)),
                    inputs: numbers.get().add(state * layer.stride + first),
                    taps: shape.taps,
                    fresh,
                    silu: shape.rule != StateRule::Convolution,
                };
                dispatch(tier, kernel);
            }
        }
    });
}

/// Kernel for some channels of a sequence's rows. The creator guarantees the pointers: `rows` of `count` numbers,
/// `cols` apart, at `x`; `taps` of them, `channels` apart, at `weight`, and one fewer at `inputs`; `count` at `bias`.
struct Convolve {
    x: *mut f32,
    rows: usize,
    cols: usize,
    channels: usize,
    count: usize,
    weight: *const f32,
    bias: Option<*const f32>,
    inputs: *mut f32,
    taps: usize,
    fresh: bool,
    silu: bool,
}

impl Kernel for Convolve {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let before = self.taps - 1;
        // SAFETY: the maker's promise; vectors are cut at `count`.
        unsafe {
            for at in (0..self.count).step_by(LANES) {
                let count = LANES.min(self.count - at);
                let zero = L::splat(0.0);
                let (mut seen, mut weights) = ([zero; StateShape::TAPS_MAX], [zero; StateShape::TAPS_MAX]);
                for (tap, weight) in weights.iter_mut().enumerate().take(self.taps) {
                    *weight = get::<L>(self.weight.add(tap * self.channels + at), count);
                }
                for (tap, seen) in seen.iter_mut().enumerate().take(if self.fresh { 0 } else { before }) {
                    *seen = get::<L>(self.inputs.add(tap * self.channels + at).cast_const(), count);
                }
                let bias = self.bias.map_or(zero, |bias| get::<L>(bias.add(at), count));
                for row in 0..self.rows {
                    let x = self.x.add(row * self.cols + at);
                    seen[before] = get::<L>(x.cast_const(), count);
                    let mut sum = bias;
                    for tap in 0..self.taps {
                        sum = L::fma(weights[tap], seen[tap], sum);
                    }
                    let out = if self.silu { math::activate::<L>(Activation::Silu, sum) } else { sum };
                    put::<L>(x, out, count);
                    for tap in 0..before {
                        seen[tap] = seen[tap + 1];
                    }
                }
                for (tap, &seen) in seen.iter().enumerate().take(before) {
                    put::<L>(self.inputs.add(tap * self.channels + at), seen, count);
                }
            }
        }
    }
}

/// Rows of the longest sequence.
fn longest(batch: &Batch) -> usize {
    batch.sequences.iter().map(|span| span.rows as usize).max().unwrap_or(1)
}

/// Parameters of a recurrence.
pub(super) struct RecurrenceJob<'a> {
    pub(super) shape: StateShape,
    pub(super) decay: &'a [f32],
    pub(super) step_bias: &'a [f32],
    pub(super) step_limits: [f32; 2],
    pub(super) skip: Option<&'a [f32]>,
}

/// The contract's `recur`, on rows of the shape's width and of its values. The caller has checked their presence.
pub(super) fn recur(
    Cores { tier, turn }: Cores<'_>,
    batch: &Batch,
    job: &RecurrenceJob<'_>,
    x: &[f32],
    layer: LayerStates<'_>,
    out: &mut [f32],
) {
    let shape = job.shape;
    let (heads, panels, longest) = (shape.value_heads, panels(&shape), longest(batch));
    let (cols, out_cols) = (shape.width(), shape.value_width());
    let [query, key, value] = shape.columns();
    let (x, out) = (SharedPointer::new_const(x.as_ptr()), SharedPointer::new(out));
    let numbers = SharedPointer::new(layer.numbers);
    let at_once = (1 << 16) / (longest * shape.key_dim * LANES * CHAINS) + 1;
    turn.run(batch.sequences.len() * heads * panels, at_once, &|_, range| {
        for item in range {
            let (panel, head) = (item % panels, item / panels % heads);
            let (span, state, fresh) = batch
                .states(layer.states)
                .nth(item / panels / heads)
                .expect("items are counted by sequences");
            let (first, key_head) = (panel * LANES, shape.key_head(head));
            // SAFETY: the caller has checked the rows' widths and the vectors' lengths; the state is one of the
            // layer's, which holds all panels; and no two items have a panel or a column of a sequence in common.
            unsafe {
                let row = x.get().add(span.row_first as usize * cols).cast_const();
                let kernel = Recur {
                    rows: span.rows as usize,
                    cols,
                    out_cols,
                    query: row.add(query + key_head * shape.key_dim),
                    key: row.add(key + key_head * shape.key_dim),
                    value: row.add(value + head * shape.value_dim + first),
                    beta: row.add(shape.beta_column() + head),
                    step: row.add(shape.step_column() + head),
                    key_dim: shape.key_dim,
                    count: LANES.min(shape.value_dim - first),
                    state: numbers.get().add(
                        state * layer.stride
                            + heads_first(&shape)
                            + (head * panels + panel) * shape.key_dim * LANES,
                    ),
                    fresh,
                    rule: shape.rule,
                    decay: job.decay[head],
                    step_bias: job.step_bias[head],
                    step_limits: job.step_limits,
                    skip: job.skip.map(|skip| skip[head]),
                    out: out.get().add(span.row_first as usize * out_cols + head * shape.value_dim + first),
                };
                dispatch(tier, kernel);
            }
        }
    });
}

/// Kernel for one panel of a head's state along a sequence's rows. The creator guarantees the pointers: `rows` of
/// them, `cols` apart, of `key_dim` numbers at `query` and `key`, `count` at `value`, one at `step` and, under
/// `Delta`, at `beta`; `rows` of `count`, `out_cols` apart, at `out`; and `(key_dim, 16)` at `state`.
struct Recur {
    rows: usize,
    cols: usize,
    out_cols: usize,
    query: *const f32,
    key: *const f32,
    value: *const f32,
    beta: *const f32,
    step: *const f32,
    key_dim: usize,
    count: usize,
    state: *mut f32,
    fresh: bool,
    rule: StateRule,
    decay: f32,
    step_bias: f32,
    step_limits: [f32; 2],
    skip: Option<f32>,
    out: *mut f32,
}

/// `ln(1 + exp(x))`.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// Factor that normalises `count` numbers to length 1.
///
/// # Safety
/// Inside `L::vectorize`; `x` holds them.
#[inline(always)]
unsafe fn unit_factor<L: Lanes>(x: *const f32, count: usize) -> f32 {
    // SAFETY: the caller's promise; vectors are cut at `count`.
    unsafe {
        let mut squares = L::splat(0.0);
        for at in (0..count).step_by(LANES) {
            let x = get::<L>(x.add(at), LANES.min(count - at));
            squares = L::fma(x, x, squares);
        }
        1.0 / (L::sum(squares) + LENGTH_EPS).sqrt()
    }
}

impl Kernel for Recur {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let dim = self.key_dim;
        // SAFETY: the maker's promise; vectors are cut at `count`, and a state's are whole.
        unsafe {
            let zero = L::splat(0.0);
            if self.fresh {
                for i in 0..dim {
                    L::store(self.state.add(i * LANES), zero);
                }
            }
            let sum =
                |chains: [L::F; CHAINS]| L::add(L::add(chains[0], chains[1]), L::add(chains[2], chains[3]));
            for row in 0..self.rows {
                let at = row * self.cols;
                let (query, key) = (self.query.add(at), self.key.add(at));
                let value = get::<L>(self.value.add(at), self.count);
                let step = softplus(self.step.add(at).read() + self.step_bias);
                let step = step.max(self.step_limits[0]).min(self.step_limits[1]);
                let kept = (self.decay * step).exp();
                let (added, factor) = match self.rule {
                    StateRule::Delta => {
                        let key_factor = unit_factor::<L>(key, dim);
                        let mut said = [zero; CHAINS];
                        for i in 0..dim {
                            let (k, s) = (L::splat(key.add(i).read()), L::load(self.state.add(i * LANES)));
                            said[i % CHAINS] = L::fma(k, s, said[i % CHAINS]);
                        }
                        let said = L::mul(sum(said), L::splat(key_factor * kept));
                        let beta = 1.0 / (1.0 + (-self.beta.add(at).read()).exp());
                        let factor = unit_factor::<L>(query, dim) / (dim as f32).sqrt();
                        (L::mul(L::sub(value, said), L::splat(beta * key_factor)), factor)
                    }
                    StateRule::Ssd | StateRule::Convolution => (L::mul(value, L::splat(step)), 1.0),
                };
                let kept = L::splat(kept);
                let mut given = [zero; CHAINS];
                for i in 0..dim {
                    let state = self.state.add(i * LANES);
                    let s = L::mul(kept, L::load(state.cast_const()));
                    let s = L::fma(L::splat(key.add(i).read()), added, s);
                    L::store(state, s);
                    given[i % CHAINS] = L::fma(L::splat(query.add(i).read()), s, given[i % CHAINS]);
                }
                let mut given = L::mul(sum(given), L::splat(factor));
                if let Some(skip) = self.skip {
                    given = L::fma(L::splat(skip), value, given);
                }
                put::<L>(self.out.add(row * self.out_cols), given, self.count);
            }
        }
    }
}

/// Norm before or after a gate.
#[derive(Clone, Copy)]
pub(super) struct PartNorm<'a> {
    pub(super) weight: &'a [f32], // (cols), or (part)
    pub(super) eps: f32,
    pub(super) part: usize,
    pub(super) before_gate: bool,
}

/// Gate of a half's output, in rows from `column` on.
pub(super) struct OutputGateJob<'a> {
    pub(super) gate: Rows<&'a [f32]>,
    pub(super) column: usize,
    pub(super) kind: GateKind,
    pub(super) norm: Option<PartNorm<'a>>,
}

/// The contract's `gate_output`, on `rows` rows of `out`. The caller has checked their presence.
pub(super) fn gate_output(
    Cores { tier, turn }: Cores<'_>,
    rows: usize,
    OutputGateJob { gate: Rows { numbers: gate, stride: gate_cols }, column, kind, norm }: OutputGateJob<'_>,
    Rows { numbers: out, stride: cols }: Rows<&mut [f32]>,
) {
    let (gate, out) = (SharedPointer::new_const(gate.as_ptr()), SharedPointer::new(out));
    turn.run(rows, (1 << 14) / cols.max(1) + 1, &|_, range| {
        for row in range {
            // SAFETY: the caller has checked the widths and the norm's, and a row is in one range of one thread.
            unsafe {
                let gate = gate.get().add(row * gate_cols + column).cast_const();
                dispatch(tier, Gate { gate, kind, norm, out: out.get().add(row * cols), cols });
            }
        }
    });
}

/// Kernel for one row of `gate_output`. The creator guarantees the pointers, `cols` numbers each, of whole parts.
struct Gate<'a> {
    gate: *const f32,
    kind: GateKind,
    norm: Option<PartNorm<'a>>,
    out: *mut f32,
    cols: usize,
}

impl Gate<'_> {
    /// `out = out * weight * factor * gate` for the part from `first` on; without the weight or the gate if they are
    /// not asked for.
    ///
    /// # Safety
    /// Inside `L::vectorize`; the part is within the row, and `weight` holds as many numbers.
    #[inline(always)]
    unsafe fn pass<L: Lanes>(
        &self,
        first: usize,
        count: usize,
        norm: Option<(*const f32, f32)>,
        gated: bool,
    ) {
        // SAFETY: the caller's promise; vectors are cut at `count`.
        unsafe {
            for at in (0..count).step_by(LANES) {
                let some = LANES.min(count - at);
                let out = self.out.add(first + at);
                let mut x = get::<L>(out.cast_const(), some);
                if let Some((weight, factor)) = norm {
                    x = L::mul(L::mul(x, L::splat(factor)), get::<L>(weight.add(at), some));
                }
                if gated {
                    let gate = get::<L>(self.gate.add(first + at), some);
                    let gate = match self.kind {
                        GateKind::Silu => math::activate::<L>(Activation::Silu, gate),
                        GateKind::Sigmoid => math::sigmoid::<L>(gate),
                    };
                    x = L::mul(x, gate);
                }
                put::<L>(out, x, some);
            }
        }
    }
}

impl Kernel for Gate<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the maker's promise.
        unsafe {
            let Some(norm) = self.norm else { return self.pass::<L>(0, self.cols, None, true) };
            for first in (0..self.cols).step_by(norm.part) {
                if !norm.before_gate {
                    self.pass::<L>(first, norm.part, None, true);
                }
                let factor = rms_factor::<L>(self.out.add(first).cast_const(), norm.part, norm.eps);
                let weight = norm.weight.as_ptr().add(first % norm.weight.len());
                self.pass::<L>(first, norm.part, Some((weight, factor)), norm.before_gate);
            }
        }
    }
}
