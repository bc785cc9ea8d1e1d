//! Norms of rows.

use super::aligned::SharedPointer;
use super::cores::Cores;
use super::lanes::{Kernel, Lanes, dispatch};
use super::rows::Rows;
use hanzo_engine_ops::NormColumns;

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

/// Kernel for one row of a norm, preceded by the addition to a residual if there is one. The creator guarantees the
/// pointers, `cols` numbers each; the residual may be `x`'s successor, never `out`.
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
                add::<L>(residual, x, self.cols);
                x = residual;
            }
            let factor = rms_factor::<L>(x, self.cols, self.eps);
            scale::<L>(x, factor, self.weight, self.cols, self.out);
        }
    }
}

/// `x += added` over `count` numbers.
///
/// # Safety
/// Inside `L::vectorize`; both hold `count` numbers.
#[inline(always)]
unsafe fn add<L: Lanes>(x: *mut f32, added: *const f32, count: usize) {
    let whole = count / LANES * LANES;
    // SAFETY: every vector and element below is before `count`.
    unsafe {
        for at in (0..whole).step_by(LANES) {
            L::store(x.add(at), L::add(L::load(x.add(at)), L::load(added.add(at))));
        }
        for at in whole..count {
            *x.add(at) += added.add(at).read();
        }
    }
}

/// `Σ (x - center)` over `count` numbers, or the sum of the squares.
///
/// # Safety
/// Inside `L::vectorize`; `x` holds `count` numbers.
#[inline(always)]
unsafe fn sum_apart<L: Lanes, const SQUARES: bool>(x: *const f32, count: usize, center: f32) -> f32 {
    const CHAINS: usize = 4;
    let whole = count / LANES * LANES;
    // SAFETY: every vector and element below is before `count`.
    unsafe {
        let centers = L::splat(center);
        let mut sums = [L::splat(0.0); CHAINS];
        let mut at = 0;
        while at + CHAINS * LANES <= whole {
            for (i, sum) in sums.iter_mut().enumerate() {
                let apart = L::sub(L::load(x.add(at + i * LANES)), centers);
                *sum = if SQUARES { L::fma(apart, apart, *sum) } else { L::add(apart, *sum) };
            }
            at += CHAINS * LANES;
        }
        while at < whole {
            let apart = L::sub(L::load(x.add(at)), centers);
            sums[0] = if SQUARES { L::fma(apart, apart, sums[0]) } else { L::add(apart, sums[0]) };
            at += LANES;
        }
        let mut sum = L::sum(L::add(L::add(sums[0], sums[1]), L::add(sums[2], sums[3])));
        for at in whole..count {
            let apart = x.add(at).read() - center;
            sum += if SQUARES { apart * apart } else { apart };
        }
        sum
    }
}

/// Kernel for one row of a layer norm, preceded by the addition to a residual if there is one. Guarantees as for
/// [`Row`]; without a residual `out` may be `x`.
struct LayerRow {
    x: *const f32,
    residual: Option<*mut f32>,
    weight: *const f32,
    bias: Option<*const f32>,
    eps: f32,
    cols: usize,
    out: *mut f32,
}

impl Kernel for LayerRow {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let (cols, whole) = (self.cols, self.cols / LANES * LANES);
        // SAFETY: the maker's promise.
        unsafe {
            let mut x = self.x;
            if let Some(residual) = self.residual {
                add::<L>(residual, x, cols);
                x = residual;
            }
            // The row stays in the first-level cache: a second pass costs less than the digits that `mean(x²) - mean²`
            // would lose.
            let mean = sum_apart::<L, false>(x, cols, 0.0) / cols as f32;
            let squares = sum_apart::<L, true>(x, cols, mean);
            let factor = 1.0 / (squares / cols as f32 + self.eps).sqrt();
            let (means, factors) = (L::splat(mean), L::splat(factor));
            for at in (0..whole).step_by(LANES) {
                let scaled = L::mul(L::sub(L::load(x.add(at)), means), factors);
                let weight = L::load(self.weight.add(at));
                let value = match self.bias {
                    Some(bias) => L::fma(scaled, weight, L::load(bias.add(at))),
                    None => L::mul(scaled, weight),
                };
                L::store(self.out.add(at), value);
            }
            for at in whole..cols {
                let bias = self.bias.map_or(0.0, |bias| bias.add(at).read());
                let scaled = (x.add(at).read() - mean) * factor;
                self.out.add(at).write(scaled * self.weight.add(at).read() + bias);
            }
        }
    }
}

/// Parameters of a layer norm.
#[derive(Clone, Copy)]
pub(super) struct LayerNorm<'a> {
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) eps: f32,
}

/// `out[r] = layer_norm(x[r])`. With a residual, first `residual[r] += x[r]`, and the norm is of the residual.
pub(super) fn layer_norm(
    Cores { tier, turn }: Cores<'_>,
    rows: usize,
    x: &[f32],
    residual: Option<&mut [f32]>,
    params: LayerNorm<'_>,
    out: &mut [f32],
) {
    let LayerNorm { weight, bias, eps } = params;
    let cols = weight.len();
    assert!(x.len() >= rows * cols && out.len() >= rows * cols, "a norm of more rows than its buffers hold");
    assert!(bias.is_none_or(|bias| bias.len() == cols), "one weight and one bias a column");
    assert!(
        residual.as_ref().is_none_or(|residual| residual.len() >= rows * cols),
        "a residual of fewer rows"
    );
    let residual = residual.map(SharedPointer::new);
    let out = SharedPointer::new(out);
    turn.run(rows, grain(cols), &|_, range| {
        for row in range {
            let at = row * cols;
            // SAFETY: the row is inside each buffer by the assertions, and in one range of one thread; the backend
            // has checked its tier.
            unsafe {
                let residual = residual.map(|residual| residual.get().add(at));
                let (x, weight) = (x.as_ptr().add(at), weight.as_ptr());
                let bias = bias.map(<[f32]>::as_ptr);
                dispatch(tier, LayerRow { x, residual, weight, bias, eps, cols, out: out.get().add(at) });
            }
        }
    });
}

/// `layer_norm` in place on columns `first..first + weight.len()` of rows of `cols`, in parts of `width` columns that
/// are normed separately.
pub(super) fn layer_norm_columns(
    Cores { tier, turn }: Cores<'_>,
    rows: usize,
    Rows { numbers: x, stride: cols }: Rows<&mut [f32]>,
    NormColumns { first, width }: NormColumns,
    params: LayerNorm<'_>,
) {
    let LayerNorm { weight, bias, eps } = params;
    let count = weight.len();
    assert!(x.len() >= rows * cols && first + count <= cols, "a norm of more than the rows hold");
    assert!(bias.is_none_or(|bias| bias.len() == count), "one weight and one bias a column");
    assert!(width > 0 && count.is_multiple_of(width), "columns that are normed apart");
    let x = SharedPointer::new(x);
    turn.run(rows, grain(count), &|_, range| {
        for (row, at) in range.flat_map(|row| (0..count).step_by(width).map(move |at| (row, at))) {
            // SAFETY: the columns are inside the row and the row inside `x` by the assertions, in one range of one
            // thread; a number is read before its place is written; the backend has checked its tier.
            unsafe {
                let (part, weight) = (x.get().add(row * cols + first + at), weight[at..].as_ptr());
                let bias = bias.map(|bias| bias[at..].as_ptr());
                dispatch(
                    tier,
                    LayerRow { x: part, residual: None, weight, bias, eps, cols: width, out: part },
                );
            }
        }
    });
}

/// Rows of a chunk of around 20 microseconds.
fn grain(cols: usize) -> usize {
    (1 << 15) / cols.max(1) + 1
}

/// `out[r] = rms_norm(x[r])`. With a residual, first `residual[r] += x[r]`, and the norm is of the residual.
pub(super) fn rms_norm(
    Cores { tier, turn }: Cores<'_>,
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
    let residual = residual.map(SharedPointer::new);
    let out = SharedPointer::new(out);
    turn.run(rows, grain(cols), &|_, range| {
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
