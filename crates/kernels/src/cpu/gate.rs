//! Activation of a gated MLP, if its products are computed separately.

use super::aligned::SharedPointer;
use super::cores::Cores;
use super::lanes::{Kernel, Lanes, dispatch};
use super::math;
use super::matmul::{get, put};
use super::rows::Rows;
use hanzo_engine_ops::Activation;

const LANES: usize = 16;

/// Kernel for one row of `gate`. The creator guarantees two halves of `width` at `both` and `width` numbers at `out`.
struct GateRow {
    both: *const f32,
    width: usize,
    activation: Activation,
    out: *mut f32,
}

impl Kernel for GateRow {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for at in (0..self.width).step_by(LANES) {
            let count = LANES.min(self.width - at);
            // SAFETY: the maker's promise; vectors are cut at the width.
            unsafe {
                let gate = math::activate::<L>(self.activation, get::<L>(self.both.add(at), count));
                let up = get::<L>(self.both.add(self.width + at), count);
                put::<L>(self.out.add(at), L::mul(gate, math::factor::<L>(self.activation, up)), count);
            }
        }
    }
}

/// `hidden[r] = activation(gate[r]) * up[r]` for so many rows, where gate and up are the halves of a row of `both`.
pub(super) fn gate(
    Cores { tier, turn }: Cores<'_>,
    rows: usize,
    activation: Activation,
    both: &[f32],
    Rows { numbers: hidden, stride: width }: Rows<&mut [f32]>,
) {
    assert!(both.len() >= 2 * rows * width && hidden.len() >= rows * width, "rows in the buffers");
    let hidden = SharedPointer::new(hidden);
    turn.run(rows, (1 << 14) / width.max(1) + 1, &|_, range| {
        for row in range {
            // SAFETY: the row is inside both buffers by the assertion, and in one range of one thread; the backend has
            // checked its tier.
            unsafe {
                let (both, out) = (both.as_ptr().add(2 * row * width), hidden.get().add(row * width));
                dispatch(tier, GateRow { both, width, activation, out });
            }
        }
    });
}
