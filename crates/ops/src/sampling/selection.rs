//! Selections of sampling: the cuts of top-k, top-p and min-p, and the token that a draw falls on. Everything is sums
//! of integers and plain IEEE operations in a fixed order, so the same logits give the same cut and the same draw on
//! every platform. There is no full sort: a cut is a threshold found by partial selection.

use super::{exp_nonpositive, mass};

/// Elements per block in a pass over all weights.
const BLOCK: usize = 1024;
/// Elements computed in parallel.
const LANES: usize = 16;

/// The largest logit. `None` if one is NaN or +inf, or none is finite.
pub(super) fn maximum(logits: &[f32]) -> Option<f32> {
    let mut highest = [f32::NEG_INFINITY; LANES];
    let mut sound = [true; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let x = chunk[lane];
            highest[lane] = if x > highest[lane] { x } else { highest[lane] };
            sound[lane] &= x < f32::INFINITY;
        }
    }
    for &x in rest {
        highest[0] = if x > highest[0] { x } else { highest[0] };
        sound[0] &= x < f32::INFINITY;
    }
    let highest = highest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (sound == [true; LANES] && highest > f32::NEG_INFINITY).then_some(highest)
}

/// Sort key as one integer: orders by value, then by lower id, with larger keys first. Unique for each id.
#[inline(always)]
pub(super) fn key(value: f32, id: usize) -> u64 {
    let bits = (value + 0.0).to_bits(); // -0 becomes +0: they tie
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!(id as u32))
}

/// Id in a key.
pub(super) fn key_id(key: u64) -> u32 {
    !(key as u32)
}

/// Stores the `k` largest keys of `values` in `keys`, unordered; all keys if there are at most `k`.
pub(super) fn largest(values: &[f32], k: usize, keys: &mut Vec<u64>) {
    keys.clear();
    if k == 0 {
        return;
    }
    let room = 2 * k + 1024;
    let mut threshold = 0;
    let mut floor = f32::NEG_INFINITY; // the threshold's value, as a cheap first test
    for (id, &value) in values.iter().enumerate() {
        if value < floor {
            continue;
        }
        let key = key(value, id);
        if key > threshold {
            keys.push(key);
            if keys.len() == room {
                keep_largest(keys, k);
                threshold = keys[k - 1];
                floor = values[key_id(threshold) as usize];
            }
        }
    }
    keep_largest(keys, k);
}

/// Keeps the `k` largest keys, with the smallest of them last.
fn keep_largest(keys: &mut Vec<u64>, k: usize) {
    if keys.len() > k {
        keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
        keys.truncate(k);
    }
}

/// Whether a value is at or above a cut, with the result of comparing keys but without branches.
#[inline(always)]
pub(super) fn at_or_above(value: f32, id: u32, cut: SelectionBound) -> bool {
    (value > cut.value) | ((value == cut.value) & (id <= cut.id))
}

/// Last value and id that a selection keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SelectionBound {
    value: f32,
    id: u32,
}

impl SelectionBound {
    /// Keeps everything.
    pub(super) const NONE: SelectionBound = SelectionBound { value: f32::NEG_INFINITY, id: u32::MAX };

    /// Additionally drops values below `floor`.
    pub(super) fn or_above(self, floor: f32) -> SelectionBound {
        if floor > self.value { SelectionBound { value: floor, id: u32::MAX } } else { self }
    }

    /// Keeps `key`, a key of one of `values`, and everything ordered before it.
    fn at(key: u64, values: &[f32]) -> SelectionBound {
        let id = key_id(key);
        SelectionBound { value: values[id as usize], id }
    }
}

/// Cut after the `k` largest logits. `keys` is scratch.
pub(super) fn top_k(logits: &[f32], k: usize, keys: &mut Vec<u64>) -> SelectionBound {
    largest(logits, k, keys);
    keys.iter().min().map_or(SelectionBound::NONE, |&key| SelectionBound::at(key, logits))
}

/// Replaces logits by weights e^((logit - maximum) / temperature), or 0 beyond the cut. Returns the sum of their
/// masses.
pub(super) fn weigh(logits: &mut [f32], maximum: f32, temperature: f32, cut: SelectionBound) -> u64 {
    let mut total = 0;
    for (chunk, logits) in logits.chunks_mut(LANES).enumerate() {
        let first = (chunk * LANES) as u32;
        for (lane, logit) in logits.iter_mut().enumerate() {
            let weight = exp_nonpositive((*logit - maximum) / temperature);
            *logit = if at_or_above(*logit, first + lane as u32, cut) { weight } else { 0.0 };
        }
        total += logits.iter().map(|&weight| mass(weight)).sum::<u64>();
    }
    total
}

/// Cut after the smallest set of heaviest weights whose mass reaches `target`, at most the mass of all, and after the
/// last weight of at least `weight_min`, whichever comes first. A histogram over the leading bits of the weights finds
/// the bucket that the set ends in, and only that bucket is searched. `keys` is scratch.
pub(super) fn nucleus(weights: &[f32], target: u64, weight_min: f32, keys: &mut Vec<u64>) -> SelectionBound {
    let mut histogram = [0u64; BUCKETS];
    for &weight in weights {
        histogram[bucket(weight)] += mass(weight);
    }
    let mut wanted = target;
    let mut last = BUCKETS - 1;
    while last > 0 && histogram[last] < wanted {
        wanted -= histogram[last];
        last -= 1;
    }
    keys.clear();
    let in_last = weights.iter().enumerate().filter(|&(_, &weight)| bucket(weight) == last);
    keys.extend(in_last.map(|(id, &weight)| key(weight, id)));
    let least = SelectionBound { value: weight_min, id: u32::MAX };
    let of_key = |key: u64| mass(f32::from_bits((key >> 32) as u32 & !(1 << 31)));
    let Some(key) = reaching(keys, wanted, of_key) else { return least };
    let cut = SelectionBound::at(key, weights);
    if cut.value < weight_min { least } else { cut }
}

/// Buckets of the histogram: 32 for each power of two down to 2^-41, which has no mass.
const BUCKETS: usize = 41 * 32 + 1;

/// Bucket of a weight from 0 to 1; heavier weights never have a lower one.
#[inline(always)]
fn bucket(weight: f32) -> usize {
    const LOWEST: usize = (127 - 41) * 32;
    ((weight.to_bits() >> 18) as usize).saturating_sub(LOWEST).min(BUCKETS - 1)
}

/// Sets weights to 0 unless `keeps` accepts their id and value. Returns the sum of the remaining masses.
pub(super) fn leave(weights: &mut [f32], keeps: impl Fn(u32, f32) -> bool) -> u64 {
    let mut total = 0;
    for (id, weight) in weights.iter_mut().enumerate() {
        if *weight > 0.0 {
            *weight = if keeps(id as u32, *weight) { *weight } else { 0.0 };
            total += mass(*weight);
        }
    }
    total
}

/// Key at which the sum of masses, from the largest key down, reaches `wanted`. The smallest key if it never does;
/// `None` without keys. Halves the remaining range by selection, so the whole takes linear time.
pub(super) fn reaching(keys: &mut [u64], mut wanted: u64, mass_of: impl Fn(u64) -> u64) -> Option<u64> {
    let key_mass = |&key: &u64| mass_of(key);
    let mut last = None;
    let mut rest = keys;
    while !rest.is_empty() {
        let middle = rest.len() / 2;
        rest.select_nth_unstable_by(middle, |a, b| b.cmp(a));
        let above: u64 = rest[..middle].iter().map(key_mass).sum();
        let pivot = rest[middle];
        if above >= wanted {
            rest = &mut rest[..middle];
        } else if above + key_mass(&pivot) >= wanted {
            return Some(pivot);
        } else {
            wanted -= above + key_mass(&pivot);
            last = Some(pivot);
            rest = &mut rest[middle + 1..];
        }
    }
    last
}

/// Draws an id in proportion to mass among those up to the cut: the first, in order of id, at which the running sum
/// exceeds `uniform` (0 to 1) of the whole. `None` if nothing has mass.
pub(super) fn draw(weights: &[f32], cut: SelectionBound, uniform: f64) -> Option<u32> {
    let kept = |id: usize, weight: f32| if at_or_above(weight, id as u32, cut) { mass(weight) } else { 0 };
    let sum = |start: usize| -> u64 {
        let block = &weights[start..weights.len().min(start + BLOCK)];
        block.iter().enumerate().map(|(i, &weight)| kept(start + i, weight)).sum()
    };
    let blocks = (0..weights.len()).step_by(BLOCK);
    let total: u64 = blocks.clone().map(sum).sum();
    if total == 0 {
        return None;
    }
    let mut left = ((uniform * total as f64) as u64).min(total - 1);
    for start in blocks {
        let block = sum(start);
        if left >= block {
            left -= block;
            continue;
        }
        for (id, &weight) in weights.iter().enumerate().skip(start) {
            let mass = kept(id, weight);
            if left < mass {
                return Some(id as u32);
            }
            left -= mass;
        }
    }
    None
}
