//! Running softmax sums: started, merged with those of other keys, and turned into the output.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels below.

use super::super::lanes::{Kernel, Lanes};
use super::super::math;
use super::Vectors;

const LANES: usize = 16;

/// Softmax sums of some vectors: `(maximum, total, padding, weighted sum of values)` for each.
#[derive(Clone, Copy)]
pub(super) struct SoftmaxState {
    pub(super) first: *mut f32,
    pub(super) head_dim: usize,
}

/// Elements of a weighted sum: whole pairs of vectors.
pub(super) fn width(head_dim: usize) -> usize {
    head_dim.next_multiple_of(2 * LANES)
}

impl SoftmaxState {
    /// Size of a vector's state in f32s.
    pub(super) fn size(head_dim: usize) -> usize {
        LANES + width(head_dim)
    }

    #[inline(always)]
    pub(super) unsafe fn top(&self, v: usize) -> *mut f32 {
        self.first.add(v * SoftmaxState::size(self.head_dim))
    }

    #[inline(always)]
    pub(super) unsafe fn total(&self, v: usize) -> *mut f32 {
        self.top(v).add(1)
    }

    #[inline(always)]
    pub(super) unsafe fn sums(&self, v: usize) -> *mut f32 {
        self.top(v).add(LANES)
    }

    #[inline(always)]
    pub(super) unsafe fn clear(&self, v: usize) {
        std::ptr::write_bytes(self.top(v), 0, SoftmaxState::size(self.head_dim));
        self.top(v).write(f32::NEG_INFINITY);
    }
}

/// `exp(x - top)`.
#[inline(always)]
unsafe fn weight<L: Lanes>(x: f32, top: f32) -> f32 {
    L::top(math::exp::<L>(L::splat(x - top)))
}

/// Kernel that adds a part to a total. The creator guarantees `count` vectors in both.
pub(super) struct Merge {
    pub(super) total: SoftmaxState,
    pub(super) part: SoftmaxState,
    pub(super) count: usize,
}

impl Kernel for Merge {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for v in 0..self.count {
            let (one, two) = (self.total.top(v).read(), self.part.top(v).read());
            // A part that saw nothing changes nothing; a total that saw nothing becomes the part.
            if two == f32::NEG_INFINITY {
                continue;
            }
            let top = if one > two { one } else { two };
            let (rescale, gain) = (weight::<L>(one, top), weight::<L>(two, top));
            let total = self.total.total(v);
            total.write(total.read() * rescale + self.part.total(v).read() * gain);
            self.total.top(v).write(top);
            for at in (0..width(self.total.head_dim)).step_by(LANES) {
                let sum = self.total.sums(v).add(at);
                let part = L::mul(L::load(self.part.sums(v).add(at)), L::splat(gain));
                L::store(sum, L::fma(L::load(sum), L::splat(rescale), part));
            }
        }
    }
}

/// Kernel that divides by the totals, sinks included, and writes the output. The creator guarantees the state and the
/// output.
pub(super) struct Finish {
    pub(super) vectors: Vectors,
    pub(super) state: SoftmaxState,
}

impl Kernel for Finish {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let vectors = &self.vectors;
        for v in 0..vectors.count {
            let (row, head) = ((vectors.first + v) / vectors.group, (vectors.first + v) % vectors.group);
            let (top, mut total) = (self.state.top(v).read(), self.state.total(v).read());
            let mut factor = 1.0;
            if let Some(sinks) = vectors.sinks {
                let sink = sinks.add(head).read();
                let with_sink = if sink > top { sink } else { top };
                factor = weight::<L>(top, with_sink);
                total = total * factor + weight::<L>(sink, with_sink);
            }
            let factor = factor / total;
            let out = vectors.out.add(row * vectors.out_stride + head * vectors.value_dim);
            for at in (0..vectors.value_dim).step_by(LANES) {
                // A value of weight 0 beside a sum of -0 makes it +0. Whether one was added must not show.
                let sum = L::add(L::load(self.state.sums(v).add(at)), L::splat(0.0));
                let value = L::mul(sum, L::splat(factor));
                if at + LANES <= vectors.value_dim {
                    L::store(out.add(at), value);
                } else {
                    let mut lanes = [0.0f32; LANES];
                    L::store(lanes.as_mut_ptr(), value);
                    std::ptr::copy_nonoverlapping(lanes.as_ptr(), out.add(at), vectors.value_dim - at);
                }
            }
        }
    }
}
