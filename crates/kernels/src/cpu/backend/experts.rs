//! Mixtures of experts, and additions to rows.

use super::{CpuBackend, CpuBuffer, CpuVector, OpenStep};
use crate::cpu::aligned::SharedPointer;
use crate::cpu::lanes::{Kernel, Lanes, dispatch};
use crate::cpu::math;
use crate::cpu::matmul::{get, put};
use crate::cpu::moe::{self, MoeBiases, MoeJob};
use hanzo_engine_ops::{MoeOperands, MoeParams, MoeWeights};

const LANES: usize = 16;

impl OpenStep<'_> {
    /// The contract's `moe`.
    pub(super) fn moe(
        &mut self,
        weights: &MoeWeights<'_, CpuBackend>,
        params: &MoeParams,
        x: &CpuBuffer,
        hidden: &mut CpuBuffer,
        out: &mut CpuBuffer,
    ) {
        let &MoeOperands { router, experts, .. } = weights;
        let (rows, cols) = (self.batch.rows(), router.cols());
        let (count, used, limits) = (router.rows(), params.experts_used, self.scratch.limits);
        params.check(count);
        assert!(count <= limits.experts && used <= limits.experts_used, "more experts than the step limits");
        let width = experts.check(count, if params.gated { 2 } else { 1 }, cols);
        assert!(cols.max(width) <= limits.width, "experts wider than the step limits");
        x.check(rows, cols, "x");
        hidden.check(rows, used * width, "hidden");
        out.check(rows, cols, "out");
        let biases = MoeBiases {
            router: weights.router_bias.map(|bias| &bias.values[..]),
            correction: weights.correction.map(|bias| &bias.values[..]),
            up: weights.up_bias.map(|bias| &bias.values[..]),
            down: weights.down_bias.map(|bias| &bias.values[..]),
            scale: weights.expert_scale.map(|scale| &scale.values[..]),
        };
        let of_all = [biases.router, biases.correction, biases.scale];
        assert!(of_all.iter().flatten().all(|of| of.len() == count), "one number an expert");
        let routed = weights.routed.unwrap_or(x);
        routed.check(rows, cols, "routed");
        let job = MoeJob { router, experts, params, biases, x: &x.data, routed: &routed.data, rows };
        let (mut product, scratch) = self.experts();
        moe::moe(&mut product, scratch, &job, &mut hidden.data, &mut out.data);
    }

    /// The contract's `add_shared`.
    pub(super) fn add_shared(
        &mut self,
        gate: Option<&CpuVector>,
        x: &CpuBuffer,
        shared: &CpuBuffer,
        out: &mut CpuBuffer,
    ) {
        let (rows, cols, tier) = (self.batch.rows(), out.cols, self.cores.tier);
        shared.check(rows, cols, "shared");
        if let Some(gate) = gate {
            x.check(rows, gate.values.len(), "x");
        }
        let (x, x_cols) = (SharedPointer::new_const(x.data.as_ptr()), x.cols);
        let (from, to) = (SharedPointer::new_const(shared.data.as_ptr()), out.data.shared());
        self.cores.turn.run(rows, (1 << 14) / cols.max(1) + 1, &|_, range| {
            for row in range {
                // SAFETY: the buffers hold the row (checked above), which is in one range of one thread.
                unsafe {
                    let gate =
                        gate.map(|gate| (gate.values.as_ptr(), x.get().add(row * x_cols).cast_const()));
                    let (from, to) = (from.get().add(row * cols), to.get().add(row * cols));
                    dispatch(tier, AddShared { gate, gate_cols: x_cols, from, to, cols });
                }
            }
        });
    }

    /// The contract's `add_bias`.
    pub(super) fn add_bias(&mut self, bias: &CpuVector, out: &mut CpuBuffer) {
        let (rows, cols) = (self.batch.rows(), bias.values.len());
        out.check(rows, cols, "out");
        let shared = out.data.shared();
        self.cores.turn.run(rows, (1 << 14) / cols.max(1) + 1, &|_, range| {
            for row in range {
                // SAFETY: the buffer holds the row (checked above), which is in one range of one thread.
                let out = unsafe { std::slice::from_raw_parts_mut(shared.get().add(row * cols), cols) };
                out.iter_mut().zip(&bias.values[..]).for_each(|(out, bias)| *out += bias);
            }
        });
    }
}

/// The contract's `read_experts`.
pub(super) fn read(backend: &CpuBackend, hidden: &CpuBuffer, chosen: &mut [u32], inner: &mut [f32]) {
    let Some(scratch) = &backend.scratch else { panic!("a mixture is read before `reserve`") };
    scratch.moe.read(&hidden.data, chosen, inner);
}

/// Kernel for one row of `add_shared`. The creator guarantees the pointers: `gate_cols` numbers at both of `gate`,
/// `cols` at the others.
struct AddShared {
    gate: Option<(*const f32, *const f32)>,
    gate_cols: usize,
    from: *const f32,
    to: *mut f32,
    cols: usize,
}

impl Kernel for AddShared {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the maker's promise; vectors are cut at the widths.
        unsafe {
            let factor = self.gate.map(|(gate, x)| {
                let mut sums = [L::splat(0.0); 2];
                for (i, at) in (0..self.gate_cols).step_by(LANES).enumerate() {
                    let count = LANES.min(self.gate_cols - at);
                    let (gate, x) = (get::<L>(gate.add(at), count), get::<L>(x.add(at), count));
                    sums[i % 2] = L::fma(gate, x, sums[i % 2]);
                }
                math::sigmoid::<L>(L::splat(L::sum(L::add(sums[0], sums[1]))))
            });
            for at in (0..self.cols).step_by(LANES) {
                let count = LANES.min(self.cols - at);
                let (from, to) = (get::<L>(self.from.add(at), count), get::<L>(self.to.add(at), count));
                let sum = match factor {
                    Some(factor) => L::fma(factor, from, to),
                    None => L::add(from, to),
                };
                put::<L>(self.to.add(at), sum, count);
            }
        }
    }
}
