//! Panels of floats.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and of the makers of the kernels.
#![allow(clippy::needless_range_loop)] // Loops over constants by index: they unroll, and the arrays become registers.

use std::arch::asm;

use super::{Bf16, F16, F32, PanelFormat, TileArgs};
use crate::cpu::lanes::Lanes;
use crate::cpu::matrix::PanelKind;

/// Returns the same address in a way that the compiler cannot see through. It then keeps the address in a separate
/// register, instead of computing it anew for each input.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read through it here")]
pub(super) fn opaque<T>(address: *const T) -> *const T {
    let mut address = address;
    // SAFETY: nothing is executed.
    unsafe { asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags)) };
    address
}

/// Implements a float format: one fused multiply-add for each input.
macro_rules! float_format {
    ($name:ident, $bytes:literal, $load:ident, $element:ty) => {
        impl PanelFormat for $name {
            const KIND: PanelKind = PanelKind::$name;

            // The panels advance together: a sum waits for its last multiply-add, so several must be in flight.
            #[inline(always)]
            unsafe fn panels<L: Lanes, const NP: usize, const NC: usize, const EXPANDED: bool>(
                args: &TileArgs,
                sums: &mut [[L::F; NC]; NP],
            ) {
                // Three columns for each address, the second and third at one and two strides from it; and several
                // inputs a round. With fewer, the processor would be busy with addresses.
                const { assert!(NC <= 12) };
                let stride = args.columns.floats_stride;
                let mut x = [args.columns.floats.wrapping_add(args.block_first); 4];
                for (i, x) in x.iter_mut().enumerate() {
                    *x = opaque(x.wrapping_add(3 * i * stride));
                }
                let mut codes = args.codes.add(args.block_first * $bytes);
                let mut left = args.block_end - args.block_first;
                macro_rules! inputs {
                    ($count:literal) => {
                        for k in 0..$count {
                            let mut w = [L::splat(0.0); NP];
                            for (p, w) in w.iter_mut().enumerate() {
                                *w = L::$load(
                                    codes.add(p * args.codes_stride + k * $bytes).cast::<$element>(),
                                );
                            }
                            for c in 0..NC {
                                let x = L::splat(x[c / 3].wrapping_add(c % 3 * stride + k).read());
                                for p in 0..NP {
                                    sums[p][c] = L::fma(w[p], x, sums[p][c]);
                                }
                            }
                        }
                        for x in x.iter_mut().take(NC.div_ceil(3)) {
                            *x = x.wrapping_add($count);
                        }
                        codes = codes.wrapping_add($count * $bytes);
                        left -= $count;
                    };
                }
                if !args.next.is_null() {
                    let mut next = args.next;
                    while left >= 4 {
                        L::prefetch(next);
                        L::prefetch(next.wrapping_add(args.next_step));
                        next = next.wrapping_add(2 * args.next_step);
                        inputs!(4);
                    }
                }
                while left >= 4 {
                    inputs!(4);
                }
                while left > 0 {
                    inputs!(1);
                }
            }
        }
    };
}

float_format!(F32, 64, load, f32);
float_format!(F16, 32, load_f16, u16);
float_format!(Bf16, 32, load_bf16, u16);
