//! Norms of rows.

use super::aligned::Shared;
use super::lanes::{Kernel, Lanes, dispatch};
use super::pool::Turn;
use super::tier::Tier;

const LANES: usize = 16;

/// `1 / sqrt(mean(x²) + eps)` over `count` numbers.
///
/// # Safety
/// Inside `L::vectorize`; `x` holds `count` numbers.
#[inline(always)]
pub(super) unsafe fn rms_factor<L: Lanes>(x: *const f32, count: usize, eps: f32) -> f32 {
    let whole = count / LANES * LANES;
    // SAFETY: every vector and element below is before `count`.
    unsafe {
        let mut squares = [L::splat(0.0); 2];
        for (i, at) in (0..whole).step_by(LANES).enumerate() {
            let v = L::load(x.add(at));
            squares[i % 2] = L::fma(v, v, squares[i % 2]);
        }
        let mut sum = L::sum(L::add(squares[0], squares[1]));
        for at in whole..count {
            sum += x.add(at).read() * x.add(at).read();
        }
        1.0 / (sum / count as f32 + eps).sqrt()
    }
}

/// `out = x * factor * weight` over `count` numbers; `out` may be `x`.
///
/// # Safety
/// Inside `L::vectorize`; all three hold `count` numbers.
#[inline(always)]
pub(super) unsafe fn scale<L: Lanes>(
    x: *const f32,
    factor: f32,
    weight: *const f32,
    count: usize,
    out: *mut f32,
) {
    let whole = count / LANES * LANES;
    // SAFETY: every vector and element below is before `count`.
    unsafe {
        let factors = L::splat(factor);
        for at in (0..whole).step_by(LANES) {
            let v = L::mul(L::mul(L::load(x.add(at)), factors), L::load(weight.add(at)));
            L::store(out.add(at), v);
        }
        for at in whole..count {
            out.add(at).write(x.add(at).read() * factor * weight.add(at).read());
        }
    }
}

/// One row of a norm, and first, where there is a residual, the addition to it. The maker vouches for the pointers,
/// `cols` numbers each; the residual may be `x`'s successor, never `out`.
struct Row {
    x: *const f32,
    residual: Option<*mut f32>,
    weight: *const f32,
    eps: f32,
    cols: usize,
    out: *mut f32,
}

impl Kernel for Row {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the maker's promise.
        unsafe {
            let mut x = self.x;
            if let Some(residual) = self.residual {
                let whole = self.cols / LANES * LANES;
                for at in (0..whole).step_by(LANES) {
                    L::store(residual.add(at), L::add(L::load(residual.add(at)), L::load(x.add(at))));
                }
                for at in whole..self.cols {
                    *residual.add(at) += x.add(at).read();
                }
                x = residual;
            }
            let factor = rms_factor::<L>(x, self.cols, self.eps);
            scale::<L>(x, factor, self.weight, self.cols, self.out);
        }
    }
}

/// `out[r] = rms_norm(x[r])`; with a residual, `residual[r] += x[r]` first and the norm is of that.
pub(super) fn rms_norm(
    tier: Tier,
    turn: &mut Turn,
    rows: usize,
    x: &[f32],
    residual: Option<&mut [f32]>,
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    let cols = weight.len();
    assert!(x.len() >= rows * cols && out.len() >= rows * cols, "a norm of more rows than its buffers hold");
    assert!(
        residual.as_ref().is_none_or(|residual| residual.len() >= rows * cols),
        "a residual of fewer rows"
    );
    let residual = residual.map(Shared::new);
    let out = Shared::new(out);
    // Some 20 microseconds a chunk.
    let grain = (1 << 15) / cols.max(1) + 1;
    turn.run(rows, grain, &|_, range| {
        for row in range {
            let at = row * cols;
            // SAFETY: the row is inside each buffer by the assertions, and in one range of one thread; the backend
            // has checked its tier.
            unsafe {
                let residual = residual.map(|residual| residual.get().add(at));
                let (x, weight) = (x.as_ptr().add(at), weight.as_ptr());
                dispatch(tier, Row { x, residual, weight, eps, cols, out: out.get().add(at) });
            }
        }
    });
}
