//! Mixture of experts: routing of rows to experts, each expert's products for all its rows at once, and their sums.
//!
//! A *pair* is a row and one of the experts it chose. Pairs are sorted by expert, so that the pairs of an expert are
//! neighbouring columns of its products, and all experts' products are one loop of the pool. A step of one row streams
//! the chosen experts with all threads, and an expert with many rows reads its weights once for all of them. An
//! expert's output for a row does not depend on the row's place, and a row sums its experts in its own order, so a row
//! has the same bits whatever else is in the batch.

#[cfg(test)]
mod tests;

use super::activations::{Input, NOWHERE, Places};
use super::aligned::{AlignedArray, SharedPointer};
use super::cores::Cores;
use super::lanes::{Kernel, Lanes, dispatch};
use super::math;
use super::matmul::{Epilogue, Groups, Product, get, put};
use super::matrix::CpuMatrix;
use hanzo_engine_ops::{ExpertGroups, ExpertScoring, KernelError, MoeParams, NO_EXPERT, StepLimits};

/// Lanes of a vector.
const LANES: usize = 16;
/// Outputs of the experts, in f32, that wait to be summed: 4 MiB, so that they are still in a cache.
const PARTIAL: usize = 1 << 20;
/// Smallest number of outputs of each pair that are computed together: whole streams of panels.
const PARTIAL_OUTPUTS_MIN: usize = 256;
/// Largest number of expert groups.
const GROUPS_MAX: usize = 64;
/// Outputs that one item of the last loop sums.
const SUM_OUTPUTS: usize = 512;

/// Scratch of a mixture, apart from that of its products.
#[derive(Debug)]
pub(super) struct MoeScratch {
    scores: AlignedArray<f32>,  // (rows, experts)
    keys: AlignedArray<f32>, // (rows, experts): keys that experts are chosen by, if those are not the scores
    experts: AlignedArray<u32>, // (rows, experts_used), in descending order of score; NOWHERE without an order
    weights: AlignedArray<f32>, // (rows, experts_used)
    places: AlignedArray<u32>,  // (rows, experts_used): the pair's column in the products
    firsts: AlignedArray<u32>,  // (experts + 2): first columns of the experts, and one for counting
    partial: AlignedArray<f32>, // (pairs, outputs)
}

/// Experts of a layer, each packed as separate matrices.
#[derive(Debug)]
pub struct CpuExperts {
    gate_up: Vec<CpuMatrix>, // (experts)
    down: Vec<CpuMatrix>,    // (experts)
}

impl CpuExperts {
    pub(super) fn with_room_for(experts: usize) -> CpuExperts {
        CpuExperts { gate_up: Vec::with_capacity(experts), down: Vec::with_capacity(experts) }
    }

    pub(super) fn push(&mut self, gate_up: CpuMatrix, down: CpuMatrix) {
        self.gate_up.push(gate_up);
        self.down.push(down);
    }

    /// Bytes of all packed experts.
    pub fn bytes(&self) -> usize {
        self.gate_up.iter().chain(&self.down).map(CpuMatrix::bytes).sum()
    }

    /// Asserts that there are `experts` experts of one shape, with `parts` (gate and up, or up alone) stacked in the
    /// first product and `cols` inputs. Returns the width between their two products.
    pub(super) fn check(&self, experts: usize, parts: usize, cols: usize) -> usize {
        let CpuExperts { gate_up, down } = self;
        assert_eq!((gate_up.len(), down.len()), (experts, experts), "an expert for each row of the router");
        let width = down[0].cols();
        for (gate_up, down) in gate_up.iter().zip(down) {
            assert_eq!((gate_up.rows(), gate_up.cols()), (parts * width, cols), "gate and up of an expert");
            assert_eq!((down.rows(), down.cols()), (cols, width), "down of an expert");
        }
        width
    }
}

/// Operands of a mixture.
pub(super) struct MoeJob<'a> {
    pub(super) router: &'a CpuMatrix,
    pub(super) experts: &'a CpuExperts,
    pub(super) params: &'a MoeParams,
    pub(super) biases: MoeBiases<'a>,
    /// `(rows, router.cols)`.
    pub(super) x: &'a [f32],
    /// Input of the router, `(rows, router.cols)`.
    pub(super) routed: &'a [f32],
    pub(super) rows: usize,
}

/// Addends to a mixture's products, and factors on its weights.
#[derive(Clone, Copy)]
pub(super) struct MoeBiases<'a> {
    pub(super) router: Option<&'a [f32]>,     // (experts)
    pub(super) correction: Option<&'a [f32]>, // (experts)
    pub(super) up: Option<&'a [f32]>,         // (experts, gate_up.rows)
    pub(super) down: Option<&'a [f32]>,       // (experts, router.cols)
    pub(super) scale: Option<&'a [f32]>,      // (experts): factors on the weights
}

impl MoeScratch {
    fn pairs(limits: &StepLimits) -> usize {
        limits.rows.saturating_mul(limits.experts_used)
    }

    /// Largest number of columns of a step's products.
    pub(super) fn columns(limits: &StepLimits) -> usize {
        limits.rows.max(Self::pairs(limits))
    }

    fn partials(limits: &StepLimits) -> usize {
        let pairs = Self::pairs(limits);
        pairs.saturating_mul(limits.width).min(PARTIAL.max(pairs.saturating_mul(PARTIAL_OUTPUTS_MIN)))
    }

    fn scores(limits: &StepLimits) -> usize {
        limits.rows.saturating_mul(limits.experts)
    }

    /// Bytes of [`MoeScratch::new`].
    pub(super) fn bytes(limits: &StepLimits) -> usize {
        let words = Self::pairs(limits).saturating_mul(3).saturating_add(limits.experts + 2);
        words
            .saturating_add(2 * Self::scores(limits))
            .saturating_add(Self::partials(limits))
            .saturating_mul(4)
    }

    pub(super) fn new(limits: &StepLimits) -> Result<MoeScratch, KernelError> {
        let (pairs, what) = (Self::pairs(limits), "the experts' scratch");
        Ok(MoeScratch {
            scores: AlignedArray::zeroed(Self::scores(limits), what)?,
            keys: AlignedArray::zeroed(Self::scores(limits), what)?,
            experts: AlignedArray::zeroed(pairs, what)?,
            weights: AlignedArray::zeroed(pairs, what)?,
            places: AlignedArray::zeroed(pairs, what)?,
            firsts: AlignedArray::zeroed(limits.experts + 2, what)?,
            partial: AlignedArray::zeroed(Self::partials(limits), what)?,
        })
    }

    /// Reads the experts of the last mixture's pairs, and their columns of its hidden units.
    pub(super) fn read(&self, hidden: &[f32], chosen: &mut [u32], inner: &mut [f32]) {
        let width = inner.len() / chosen.len().max(1);
        let pairs = self.experts.iter().zip(&self.places[..]);
        let read = chosen.iter_mut().zip(inner.chunks_exact_mut(width.max(1)));
        for ((chosen, inner), (&expert, &place)) in read.zip(pairs) {
            if expert == NOWHERE {
                *chosen = NO_EXPERT;
                inner.fill(0.0);
            } else {
                *chosen = expert;
                inner.copy_from_slice(&hidden[place as usize * width..][..width]);
            }
        }
    }

    /// Computes the experts of each row, their weights, and the columns of all pairs. Returns the number of columns.
    fn route(&mut self, product: &mut Product<'_>, job: &MoeJob<'_>) -> usize {
        let (rows, experts, used) = (job.rows, job.router.rows(), job.params.experts_used);
        let input = Input { x: job.routed.as_ptr(), rows, step: None, places: None };
        // SAFETY: `routed` holds the rows, as `moe` asserts.
        unsafe {
            product.store(job.router, job.biases.router, None, input, &mut self.scores[..rows * experts])
        };
        let cores = Cores { tier: product.tier, turn: product.turn };
        choose(cores, job, &self.scores, &mut self.keys, &mut self.experts, &mut self.weights);
        if let Some(scale) = job.biases.scale {
            let chosen = self.experts[..rows * used].iter().zip(&mut self.weights[..rows * used]);
            let chosen = chosen.filter(|(expert, _)| **expert != NOWHERE);
            chosen.for_each(|(&expert, weight)| *weight *= scale[expert as usize]);
        }
        // Counts are stored two places further and summed, so that `firsts[expert + 1]` is where the expert's columns
        // begin. Incremented pair by pair, it ends as the start of the next expert's columns.
        let firsts = &mut self.firsts[..experts + 2];
        firsts.fill(0);
        let chosen = &self.experts[..rows * used];
        chosen
            .iter()
            .filter(|&&expert| expert != NOWHERE)
            .for_each(|&expert| firsts[expert as usize + 2] += 1);
        for i in 1..firsts.len() {
            firsts[i] += firsts[i - 1];
        }
        for (place, &expert) in self.places.iter_mut().zip(chosen) {
            *place = NOWHERE;
            if expert != NOWHERE {
                let first = &mut firsts[expert as usize + 1];
                *place = *first;
                *first += 1;
            }
        }
        firsts[experts] as usize
    }
}

/// The contract's `moe`; `hidden` is `(rows * experts_used, down.cols)`, `out` as `x`.
pub(super) fn moe(
    product: &mut Product<'_>,
    scratch: &mut MoeScratch,
    job: &MoeJob<'_>,
    hidden: &mut [f32],
    out: &mut [f32],
) {
    let (rows, outputs, used) = (job.rows, job.router.cols(), job.params.experts_used);
    let least = job.x.len().min(job.routed.len()).min(out.len());
    assert!(least >= rows * outputs, "rows of the router's inputs");
    let columns = scratch.route(product, job);
    let MoeScratch { weights, places, firsts, partial, .. } = scratch;
    let firsts = &firsts[..job.router.rows() + 1];
    let places = Places { of: &places[..rows * used], each: used, columns };
    let gate_up = Groups { matrices: &job.experts.gate_up, firsts };
    let mut x = job.x.as_ptr();
    if job.params.scales_input {
        // The output is not written before the first products are computed.
        for (row, weight) in weights[..rows].iter_mut().enumerate() {
            let scaled = out[row * outputs..][..outputs].iter_mut().zip(&job.x[row * outputs..]);
            scaled.for_each(|(out, x)| *out = *weight * x);
            *weight = 1.0;
        }
        x = out.as_ptr();
    }
    let input = Input { x, rows, step: None, places: Some(places) };
    let activation = job.params.activation;
    // SAFETY: `x` holds the rows (asserted); each pair has a column of its own.
    unsafe {
        if job.params.gated {
            product.gated(gate_up, activation, job.biases.up, input, hidden);
        } else {
            let outputs = 0..job.experts.down[0].cols();
            let epilogue = Epilogue { bias: job.biases.up, activation: Some(activation) };
            product.store_rows(gate_up, outputs, epilogue, input, &mut None, hidden);
        }
    }
    let down = Groups { matrices: &job.experts.down, firsts };
    let input = Input { x: hidden.as_ptr(), rows: columns, step: None, places: None };
    let mut prepared = None;
    // As many outputs at a time as keep those of all pairs in a cache until they are summed.
    let width = if columns * outputs <= PARTIAL {
        outputs
    } else {
        (PARTIAL / columns / PARTIAL_OUTPUTS_MIN * PARTIAL_OUTPUTS_MIN).max(PARTIAL_OUTPUTS_MIN).min(outputs)
    };
    for first in (0..outputs).step_by(width) {
        let range = first..outputs.min(first + width);
        // SAFETY: `hidden` holds a row of down's inputs for each column (the products above assert it has room for
        // them, and have written them), and nothing else is prepared meanwhile.
        unsafe {
            let epilogue = Epilogue { bias: job.biases.down, activation: None };
            product.store_rows(down, range.clone(), epilogue, input, &mut prepared, partial);
        }
        let stride = range.len();
        let target = SharedPointer::new(out);
        let (partial, of) = (SharedPointer::new_const(partial.as_ptr()), places.of);
        let (tier, pieces) = (product.tier, stride.div_ceil(SUM_OUTPUTS));
        // Around ten microseconds a chunk.
        product.turn.run(rows * pieces, (1 << 6) / used + 1, &|_, items| {
            for item in items {
                let (row, piece) = (item / pieces, item % pieces * SUM_OUTPUTS);
                let of = &of[row * used..][..used];
                // SAFETY: `out` holds the row and `partial` the columns of its pairs, `stride` wide each; the item owns
                // the piece; `weights` has one for each pair.
                unsafe {
                    let out = target.get().add(row * outputs + first + piece);
                    let count = SUM_OUTPUTS.min(stride - piece);
                    if of.contains(&NOWHERE) {
                        std::slice::from_raw_parts_mut(out, count).fill(f32::NAN);
                        continue;
                    }
                    let (partial, weights) = (partial.get().add(piece), weights[row * used..].as_ptr());
                    dispatch(tier, WeightedSum { partial, stride, places: of, weights, out, count });
                }
            }
        });
    }
}

/// Chooses the experts of each row and computes their weights.
fn choose(
    Cores { tier, turn }: Cores<'_>,
    job: &MoeJob<'_>,
    scores: &[f32],
    keys: &mut [f32],
    experts: &mut [u32],
    weights: &mut [f32],
) {
    let (rows, count, used) = (job.rows, job.router.rows(), job.params.experts_used);
    assert!(experts.len() >= rows * used && weights.len() >= rows * used, "room for the chosen");
    assert!(keys.len() >= rows * count, "room for what they are chosen by");
    let (experts, weights, keys) =
        (SharedPointer::new(experts), SharedPointer::new(weights), SharedPointer::new(keys));
    let (params, correction) = (job.params, job.biases.correction);
    let by_weight = params.chooses_by_weight(correction.is_some());
    let by_score = !by_weight && params.groups.is_none();
    turn.run(rows, (1 << 13) / count + 1, &|_, range| {
        for row in range {
            let scores = &scores[row * count..][..count];
            // SAFETY: the row is there (asserted) and in one range of one thread.
            let (experts, weights) = unsafe {
                (
                    std::slice::from_raw_parts_mut(experts.get().add(row * used), used),
                    std::slice::from_raw_parts_mut(weights.get().add(row * used), used),
                )
            };
            let mut ordered = scores.iter().all(|score| !score.is_nan());
            if by_score {
                ordered = largest(scores, experts, weights);
            } else if ordered {
                // SAFETY: as above, of a row of keys; the tier is the backend's, which is available.
                let keys = unsafe { std::slice::from_raw_parts_mut(keys.get().add(row * count), count) };
                keys.copy_from_slice(scores);
                if by_weight {
                    // SAFETY: as above.
                    unsafe { dispatch(tier, AllWeights { weights: keys, params }) };
                }
                keys.iter_mut()
                    .zip(correction.unwrap_or(&[]))
                    .for_each(|(key, correction)| *key += correction);
                ordered = keep_groups(keys, params) && largest(keys, experts, weights);
                if ordered {
                    weights.iter_mut().zip(&*experts).for_each(|(weight, &of)| *weight = scores[of as usize]);
                }
            }
            // A softmax over scores of which one is infinite is not a number either.
            let softmax = job.params.scoring != ExpertScoring::Sigmoid;
            let top = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            if !ordered || (softmax && !top.is_finite()) {
                experts.fill(NOWHERE);
                continue;
            }
            if let ExpertScoring::Near { reach } = params.scoring {
                // SAFETY: as above, of a row of keys; the tier is the backend's, which is available.
                unsafe {
                    let keys = std::slice::from_raw_parts_mut(keys.get().add(row * count), count);
                    dispatch(
                        tier,
                        NearWeights { scores, keys, experts, weights, reach, scale: params.scale },
                    );
                }
                continue;
            }
            // SAFETY: the tier is the backend's, which is available.
            unsafe { dispatch(tier, ExpertWeights { scores, weights, params }) };
        }
    });
}

/// Finds the largest scores, in descending order, and their experts; of equal scores the lower index comes first.
/// False if any score is NaN.
fn largest(scores: &[f32], experts: &mut [u32], top: &mut [f32]) -> bool {
    let mut found = 0;
    for (expert, &score) in scores.iter().enumerate() {
        if score.is_nan() {
            return false;
        }
        if found == top.len() && score <= top[found - 1] {
            continue;
        }
        found = top.len().min(found + 1);
        let mut at = found - 1;
        while at > 0 && score > top[at - 1] {
            (top[at], experts[at]) = (top[at - 1], experts[at - 1]);
            at -= 1;
        }
        (top[at], experts[at]) = (score, expert as u32);
    }
    true
}

/// Rules out the experts of groups that are not among the best; of equal groups the first are kept. False if a group's
/// score is NaN.
fn keep_groups(keys: &mut [f32], params: &MoeParams) -> bool {
    let Some(ExpertGroups { count, used, best }) = params.groups else { return true };
    let size = keys.len() / count;
    let worth = |group: &[f32]| {
        let mut top = [f32::NEG_INFINITY; 2];
        for &key in group {
            if key > top[0] {
                top = [key, top[0]];
            } else if key > top[1] {
                top[1] = key;
            }
        }
        if best == 1 { top[0] } else { top[0] + top[1] }
    };
    let mut left = [0.0; GROUPS_MAX];
    let worths = &mut left[..count];
    worths.iter_mut().zip(keys.chunks_exact(size)).for_each(|(worth_of, group)| *worth_of = worth(group));
    if worths.iter().any(|worth| worth.is_nan()) || keys.iter().any(|key| key.is_nan()) {
        return false;
    }
    for group in 0..count {
        let above = |other: &f32| *other > worths[group];
        let before = worths[..group].iter().filter(|other| above(other) || **other == worths[group]).count();
        if before + worths[group + 1..].iter().filter(|other| above(other)).count() >= used {
            keys[group * size..][..size].fill(f32::NEG_INFINITY);
        }
    }
    true
}

/// Kernel that replaces all scores by their weights, as the scoring says.
struct AllWeights<'a> {
    weights: &'a mut [f32],
    params: &'a MoeParams,
}

impl Kernel for AllWeights<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let AllWeights { weights, params } = self;
        let top = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // SAFETY: inside `vectorize`; every vector is whole or made whole by `padded`.
        unsafe {
            let top = L::splat(top);
            let weight_of = |scores: &[f32]| {
                let scores = L::load(padded(scores).as_ptr());
                match params.scoring {
                    ExpertScoring::Softmax | ExpertScoring::Near { .. } => {
                        math::exp::<L>(L::sub(scores, top))
                    }
                    ExpertScoring::Sigmoid => math::sigmoid::<L>(scores),
                }
            };
            let mut total = L::splat(0.0);
            for scores in weights.chunks(LANES) {
                total = L::add(total, weight_of(scores));
            }
            let total = match params.scoring {
                ExpertScoring::Softmax | ExpertScoring::Near { .. } => L::splat(L::sum(total)),
                ExpertScoring::Sigmoid => L::splat(1.0),
            };
            for weights in weights.chunks_mut(LANES) {
                let weight = L::div(weight_of(weights), total);
                put::<L>(weights.as_mut_ptr(), weight, weights.len());
            }
        }
    }
}

/// Kernel that computes weights from the scores of the chosen experts, the largest first unless they were chosen by
/// something else. All scores but the chosen ones may be -∞; none is NaN.
struct ExpertWeights<'a> {
    scores: &'a [f32],
    weights: &'a mut [f32],
    params: &'a MoeParams,
}

impl Kernel for ExpertWeights<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let ExpertWeights { scores, weights, params } = self;
        // SAFETY: inside `vectorize`; every vector is whole or made whole by `padded`.
        unsafe {
            // The largest of all terms that are summed, so that none overflows.
            let terms = if params.normalized { &*weights } else { scores };
            let top = L::splat(terms.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let weight_of = |scores: &[f32]| {
                let scores = L::load(padded(scores).as_ptr());
                match params.scoring {
                    ExpertScoring::Softmax | ExpertScoring::Near { .. } => {
                        math::exp::<L>(L::sub(scores, top))
                    }
                    ExpertScoring::Sigmoid => math::sigmoid::<L>(scores),
                }
            };
            let sum = |scores: &[f32]| {
                let mut total = L::splat(0.0);
                for scores in scores.chunks(LANES) {
                    total = L::add(total, weight_of(scores));
                }
                L::sum(total)
            };
            let total = match params.scoring {
                _ if params.normalized => sum(weights),
                ExpertScoring::Softmax | ExpertScoring::Near { .. } => sum(scores),
                ExpertScoring::Sigmoid => 1.0,
            };
            let total = if total == 0.0 { 1.0 } else { total };
            let (total, scale) = (L::splat(total), L::splat(params.scale));
            for weights in weights.chunks_mut(LANES) {
                let weight = L::mul(L::div(weight_of(weights), total), scale);
                put::<L>(weights.as_mut_ptr(), weight, weights.len());
            }
        }
    }
}

/// Kernel that weighs each chosen expert, in order, against near experts that were not chosen before it. `keys` is
/// scratch for a row.
struct NearWeights<'a> {
    scores: &'a [f32],
    keys: &'a mut [f32],
    experts: &'a [u32],
    weights: &'a mut [f32],
    reach: f32,
    scale: f32,
}

impl Kernel for NearWeights<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let NearWeights { scores, keys, experts, weights, reach, scale } = self;
        for (at, weight) in weights.iter_mut().enumerate() {
            let top = scores[experts[at] as usize];
            for (key, &score) in keys.iter_mut().zip(scores) {
                let far = (top - score) / score.abs().max(top) > reach;
                *key = if far { f32::NEG_INFINITY } else { score };
            }
            experts[..at].iter().for_each(|&before| keys[before as usize] = f32::NEG_INFINITY);
            // SAFETY: inside `vectorize`; every vector is made whole by `padded`.
            unsafe {
                let mut total = L::splat(0.0);
                for keys in keys.chunks(LANES) {
                    let below = L::sub(L::load(padded(keys).as_ptr()), L::splat(top));
                    total = L::add(total, math::exp::<L>(below));
                }
                *weight = scale / L::sum(total);
            }
        }
    }
}

/// Scores, padded with -∞ for experts that count for nothing.
#[inline(always)]
fn padded(scores: &[f32]) -> [f32; LANES] {
    let mut all = [f32::NEG_INFINITY; LANES];
    all[..scores.len()].copy_from_slice(scores);
    all
}

/// Kernel for `out = Σ weights[i] * partial[places[i]]`, in the order of i. The creator guarantees `count` numbers at
/// `out` and in each row of `partial`, and a weight for each place.
struct WeightedSum<'a> {
    partial: *const f32, // (_, stride)
    stride: usize,
    places: &'a [u32],
    weights: *const f32,
    out: *mut f32,
    count: usize,
}

impl Kernel for WeightedSum<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for at in (0..self.count).step_by(LANES) {
            let count = LANES.min(self.count - at);
            // SAFETY: the maker's promise.
            unsafe {
                let mut sum = L::splat(0.0);
                for (i, &place) in self.places.iter().enumerate() {
                    let part = get::<L>(self.partial.add(place as usize * self.stride + at), count);
                    sum = L::fma(L::splat(self.weights.add(i).read()), part, sum);
                }
                put::<L>(self.out.add(at), sum, count);
            }
        }
    }
}
