//! Functions of sixteen numbers: the exponential, the activations, and functions built from them. Accurate to a few
//! units in the last place in the range where they are used. Each lane's result depends on that lane alone.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`: inside `L::vectorize`, nothing more.

use super::lanes::Lanes;
use hanzo_engine_ops::Activation;

/// `exp(x)`; exactly 0 below -86, and `exp(88)` above 88. Cephes' `expf`.
#[inline(always)]
pub(super) unsafe fn exp<L: Lanes>(x: L::F) -> L::F {
    let low = L::splat(-86.0);
    let t = L::min(L::max(x, low), L::splat(88.0));
    let n = L::round(L::mul(t, L::splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts; the first has so few bits that its product with n is exact.
    let r = L::fnma(n, L::splat(0.693_359_4), t);
    let r = L::fma(n, L::splat(2.121_944_4e-4), r);
    let mut p = L::splat(1.987_569_1e-4);
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = L::fma(p, r, L::splat(coefficient));
    }
    let p = L::add(L::fma(L::mul(p, r), r, r), L::splat(1.0));
    L::keep_from(x, low, L::scale2(p, n))
}

/// `tanh(x)`, absolute error about 1e-7.
#[inline(always)]
pub(super) unsafe fn tanh<L: Lanes>(x: L::F) -> L::F {
    let e = exp::<L>(L::add(x, x));
    L::sub(L::splat(1.0), L::div(L::splat(2.0), L::add(e, L::splat(1.0))))
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(super) unsafe fn sigmoid<L: Lanes>(x: L::F) -> L::F {
    L::div(L::splat(1.0), L::add(L::splat(1.0), exp::<L>(L::sub(L::splat(0.0), x))))
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
unsafe fn silu<L: Lanes>(x: L::F) -> L::F {
    let e = exp::<L>(L::sub(L::splat(0.0), x));
    L::div(x, L::add(L::splat(1.0), e))
}

/// `x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`, computed as `x * sigmoid` of twice the argument. This keeps the small
/// negative tail, which would cancel in `1 + tanh`.
#[inline(always)]
unsafe fn gelu_tanh<L: Lanes>(x: L::F) -> L::F {
    let cubic = L::fma(L::mul(x, x), L::splat(0.044715), L::splat(1.0));
    let y = L::mul(L::mul(x, cubic), L::splat(-2.0 * 0.797_884_6));
    L::div(x, L::add(L::splat(1.0), exp::<L>(y)))
}

/// `2^x` for x up to 0, with a relative error of about 2e-7. Below -125, including -∞, it gives the value at -125,
/// which is negligible beside 1. Needs fewer operations than `exp`.
#[inline(always)]
pub(super) unsafe fn exp2_falling<L: Lanes>(x: L::F) -> L::F {
    exp2_from::<L>(-125.0, x)
}

/// Same as `exp2_falling`, but below `low`, which is at least -125, it gives the value at `low`.
#[inline(always)]
pub(super) unsafe fn exp2_from<L: Lanes>(low: f32, x: L::F) -> L::F {
    let x = L::max(x, L::splat(low));
    let n = L::round(x);
    let r = L::sub(x, n);
    let mut p = L::splat(1.327_647_2e-3);
    for coefficient in [9.675_542e-3, 5.550_713e-2, 0.240_221_2, 0.693_146_94, 1.000_000_1] {
        p = L::fma(p, r, L::splat(coefficient));
    }
    L::scale2(p, n)
}

/// `x / 2 (1 + erf(x / √2))`. The absolute error is below 3e-7; on the left, down to -6, the relative error is 2e-5.
/// The difference to `max(x, 0)` is `|x| / 2` times the complement of erf, which is `2^-p(|x|)` with a polynomial
/// fitted to its logarithm. No division is needed.
#[inline(always)]
unsafe fn gelu_erf<L: Lanes>(x: L::F) -> L::F {
    let size = L::abs(x);
    // Beyond 14 the complement is far below the smallest number; the polynomial must not overflow.
    let t = L::min(size, L::splat(14.0));
    let mut p = L::splat(-1.975_722_3e-7);
    for coefficient in [
        2.613_863e-6,
        2.146_003_5e-5,
        -7.453_617e-4,
        8.045_991e-3,
        -5.335_318_3e-2,
        -0.458_843_74,
        -1.151_161_6,
    ] {
        p = L::fma(p, t, L::splat(coefficient));
    }
    let complement = exp2_falling::<L>(L::mul(p, t));
    L::sub(L::max(L::splat(0.0), x), L::mul(L::mul(size, L::splat(0.5)), complement))
}

/// Applies the non-linearity of an MLP.
#[inline(always)]
pub(super) unsafe fn activate<L: Lanes>(activation: Activation, x: L::F) -> L::F {
    match activation {
        Activation::Silu => silu::<L>(x),
        Activation::GeluTanh => gelu_tanh::<L>(x),
        Activation::GeluErf => gelu_erf::<L>(x),
        Activation::QuickGelu => L::mul(x, sigmoid::<L>(L::mul(L::splat(1.702), x))),
        Activation::Relu => L::max(L::splat(0.0), x),
        Activation::ReluSquared => {
            let x = L::max(L::splat(0.0), x);
            L::mul(x, x)
        }
        Activation::ClampedSwish => {
            let x = L::min(L::splat(CLAMP), x);
            L::mul(x, sigmoid::<L>(L::mul(L::splat(1.702), x)))
        }
    }
}

/// Bound of the inputs of [`Activation::ClampedSwish`].
const CLAMP: f32 = 7.0;

/// Factor by which a gate's activation is multiplied.
#[inline(always)]
pub(super) unsafe fn factor<L: Lanes>(activation: Activation, up: L::F) -> L::F {
    match activation {
        Activation::ClampedSwish => {
            // The number is the second operand, so that NaN stays NaN.
            let held = L::max(L::splat(-CLAMP), L::min(L::splat(CLAMP), up));
            L::add(held, L::splat(1.0))
        }
        _ => up,
    }
}
