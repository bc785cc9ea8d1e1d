//! Ops along lines, besides convolutions: statistics of channels, and recurrent networks.

use super::aligned::SharedPointer;
use super::cores::Cores;
use super::lanes::{Kernel, Lanes, dispatch};
use super::math;
use super::matmul::{PanelScratch, get, put};
use super::norm::LayerNorm;
use super::pool::PoolTurn;
use hanzo_engine_ops::Batch;

const LANES: usize = 16;
/// Most channels of which one thread makes sums at a time.
const STRIPE: usize = 64;
/// Vectors of gates that are summed together.
const GATES: usize = 4;

/// The contract's `instance_affine` for one line `(places, channels)`: some neighbouring channels on each thread. Sums are in
/// double precision, so that the difference of two stays exact. `out` is `(scale, shift)`.
pub(super) fn instance_affine(turn: &mut PoolTurn, line: &[f32], norm: &LayerNorm<'_>, out: &mut [f32]) {
    let channels = norm.weight.len();
    let places = (line.len() / channels) as f64;
    assert!(out.len() >= 2 * channels, "a scale and a shift of each channel");
    // Wide stripes read more of a cache line's neighbours.
    let wide = channels.div_ceil(turn.threads()).next_multiple_of(LANES).min(STRIPE);
    let out = SharedPointer::new(out);
    turn.run(channels.div_ceil(wide), 1, &|_, range| {
        for first in range.map(|stripe| stripe * wide) {
            let count = wide.min(channels - first);
            let (mut sums, mut squares) = ([0.0_f64; STRIPE], [0.0_f64; STRIPE]);
            for row in line.chunks_exact(channels) {
                for ((sum, square), &x) in sums.iter_mut().zip(&mut squares).zip(&row[first..first + count]) {
                    let x = f64::from(x);
                    *sum += x;
                    *square += x * x;
                }
            }
            for (at, channel) in (first..first + count).enumerate() {
                let mean = sums[at] / places;
                let variance = (squares[at] / places - mean * mean).max(0.0) as f32;
                let scale = 1.0 / (variance + norm.eps).sqrt() * norm.weight[channel];
                let shift = norm.bias.map_or(0.0, |bias| bias[channel]) - mean as f32 * scale;
                // SAFETY: `out` holds both (asserted), and each channel is in one range of one thread.
                unsafe {
                    *out.get().add(channel) = scale;
                    *out.get().add(channels + channel) = shift;
                }
            }
        }
    });
}

/// Operands of an LSTM, checked by the caller.
pub(super) struct LstmJob<'a> {
    pub(super) gates: &'a [f32],     // (rows, 2, 4 * hidden)
    pub(super) recurrent: &'a [f32], // (2, hidden, 4 * hidden)
    pub(super) hidden: usize,
}

/// Kernel for one step of one direction. The creator guarantees `4 * hidden` numbers at `input` and `gates`, `hidden` at `cell`,
/// `out` and, unless it is null, `state`, and `(hidden, 4 * hidden)` at `recurrent`.
struct Step {
    input: *const f32,
    recurrent: *const f32,
    state: *const f32, // of the step before; null at the first
    gates: *mut f32,
    cell: *mut f32,
    out: *mut f32,
    hidden: usize,
}

impl Kernel for Step {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Step { input, recurrent, state, gates, cell, out, hidden } = self;
        let width = 4 * hidden;
        // SAFETY: the creator's promise; vectors are cut at the widths.
        unsafe {
            for first in (0..width).step_by(GATES * LANES) {
                let mut sums = [L::splat(0.0); GATES];
                let count = |part: usize| width.saturating_sub(first + part * LANES).min(LANES);
                for (part, sum) in sums.iter_mut().enumerate().filter(|(part, _)| count(*part) > 0) {
                    *sum = get::<L>(input.add(first + part * LANES), count(part));
                }
                for from in 0..if state.is_null() { 0 } else { hidden } {
                    let (factor, row) = (L::splat(*state.add(from)), recurrent.add(from * width + first));
                    for (part, sum) in sums.iter_mut().enumerate().filter(|(part, _)| count(*part) > 0) {
                        *sum = L::fma(factor, get::<L>(row.add(part * LANES), count(part)), *sum);
                    }
                }
                for (part, sum) in sums.into_iter().enumerate().filter(|(part, _)| count(*part) > 0) {
                    put::<L>(gates.add(first + part * LANES), sum, count(part));
                }
            }
            for first in (0..hidden).step_by(LANES) {
                let count = LANES.min(hidden - first);
                let gates = gates.add(first).cast_const();
                let input = math::sigmoid::<L>(get::<L>(gates, count));
                let forget = math::sigmoid::<L>(get::<L>(gates.add(hidden), count));
                let candidate = math::tanh::<L>(get::<L>(gates.add(2 * hidden), count));
                let output = math::sigmoid::<L>(get::<L>(gates.add(3 * hidden), count));
                let kept = L::mul(forget, get::<L>(cell.add(first).cast_const(), count));
                let own = L::fma(input, candidate, kept);
                put::<L>(cell.add(first), own, count);
                let state = L::mul(output, math::tanh::<L>(own));
                put::<L>(out.add(first), state, count);
            }
        }
    }
}

/// The contract's `lstm`: each direction of each sequence on one thread. `out` is `(rows, 2 * hidden)`.
pub(super) fn lstm(
    Cores { tier, turn }: Cores<'_>,
    scratch: &mut [PanelScratch],
    batch: &Batch,
    job: &LstmJob<'_>,
    out: &mut [f32],
) {
    let hidden = job.hidden;
    let need = 5 * hidden;
    assert!(
        scratch.iter_mut().all(|own| own.numbers().len() >= need),
        "hidden states that fit a thread's scratch"
    );
    assert!(
        scratch.len() >= turn.threads() && out.len() >= batch.rows() * 2 * hidden,
        "room of every thread"
    );
    let (scratch, out) = (SharedPointer::new(scratch), SharedPointer::new(out));
    turn.run(2 * batch.sequences.len(), 1, &|thread, range| {
        // SAFETY: each thread of the pool has scratch of its own, asserted above.
        let own = unsafe { &mut *scratch.get().add(thread) }.numbers();
        for item in range {
            let (span, way) = (&batch.sequences[item / 2], item % 2);
            let (gates, cell) = own[..need].split_at_mut(4 * hidden);
            cell.fill(0.0);
            let mut state = std::ptr::null();
            for step in 0..span.rows {
                let row = span.row_first + if way == 0 { step } else { span.rows - 1 - step };
                let row = row as usize;
                // SAFETY: the rows are the batch's, which `gates` and `out` hold (checked by the caller, asserted above). A
                // direction of a sequence has columns of its own in its rows of `out`, and is in one range of one thread. The
                // backend has checked its tier.
                unsafe {
                    let to = out.get().add((row * 2 + way) * hidden);
                    let kernel = Step {
                        input: job.gates[(row * 2 + way) * 4 * hidden..].as_ptr(),
                        recurrent: job.recurrent[way * hidden * 4 * hidden..].as_ptr(),
                        state,
                        gates: gates.as_mut_ptr(),
                        cell: cell.as_mut_ptr(),
                        out: to,
                        hidden,
                    };
                    dispatch(tier, kernel);
                    state = to.cast_const();
                }
            }
        }
    });
}
