//! Checks of `self_attention`: every kind of position bias, reach, grouped heads, ragged lengths.

use std::ops::Range;

use super::bounds::{CaseErrors, FLOAT, hold, operand_sigma, same_bits};
use super::extent::every;
use super::random::Random;
use super::rig::{Rig, whole_batch};
use crate::backend::QUERIES_PART;
use crate::reference::{ReferenceBackend, formulas, seen};
use crate::{AnyBackend, HeadShape, PositionBias, Rounding, SelfAttentionParams, StepLimits};

/// Number of random cases.
const CASES: usize = 36;
/// Heads, key-value heads, elements of a head, and lengths, at which a device may split keys and queries into parts.
const LONG: [(usize, usize, usize, &[u32]); 4] = [
    (3, 3, 32, &[600, 255, 256, 257, 1]),
    (2, 1, 64, &[512, 33, 300]),
    (1, 1, 8, &[545, 17, 264, 265, 288, 289, 577]),
    (2, 2, 128, &[290, 16]),
];

/// A position bias as plain numbers.
#[derive(Clone, Debug)]
enum Tables {
    None,
    Alibi(Vec<f32>),
    ByDistance(Vec<f32>, u32),
    Disentangled { keys: Option<Vec<f32>>, queries: Option<Vec<f32>>, bucket_of: Vec<u32>, reach: u32 },
}

/// Settings of the op as plain numbers.
#[derive(Clone, Debug)]
struct SelfAttentionCase {
    shape: HeadShape,
    scale: f32,
    reach: Option<u32>,
    padding: u32,
    tables: Tables,
}

/// Number of kinds of bias.
const KINDS: usize = 6;
/// Rows of the tables of a disentangled bias.
const BUCKETS: u32 = 14;

impl SelfAttentionCase {
    /// A bias of a kind, below [`KINDS`], with a reach for clamping.
    fn with_bias(mut self, kind: usize, reach: u32, random: &mut Random) -> SelfAttentionCase {
        let HeadShape { heads, .. } = self.shape;
        let mut rows = |count: usize| random.normals(count * self.shape.q_width());
        let buckets = BUCKETS as usize;
        let (mut keys, mut queries) = (None, None);
        match kind {
            1 => self.tables = Tables::Alibi((0..heads).map(|_| 0.5 * random.uniform()).collect()),
            2 => {
                let table = random.normals(heads * (2 * reach as usize + 1));
                self.tables = Tables::ByDistance(table.iter().map(|v| 2.0 * v).collect(), reach);
            }
            3 => keys = Some(rows(buckets)),
            4 => queries = Some(rows(buckets)),
            5 => (keys, queries) = (Some(rows(buckets)), Some(rows(buckets))),
            _ => {}
        }
        if keys.is_some() || queries.is_some() {
            let bucket_of = (0..2 * reach + 1).map(|_| random.below(buckets) as u32).collect();
            self.tables = Tables::Disentangled { keys, queries, bucket_of, reach };
        }
        self
    }

    /// Name of the kind of bias in messages.
    fn bias_name(&self) -> String {
        match &self.tables {
            Tables::None => "no bias".into(),
            Tables::Alibi(_) => "alibi".into(),
            Tables::ByDistance(_, reach) => format!("bias by distance to {reach}"),
            Tables::Disentangled { keys, queries, reach, .. } => {
                format!("disentangled to {reach}, keys {}, queries {}", keys.is_some(), queries.is_some())
            }
        }
    }

    fn name(&self) -> String {
        let SelfAttentionCase { shape, scale, reach, padding, .. } = self;
        let bias = self.bias_name();
        format!("self_attention, {shape:?}, scale {scale}, reach: {reach:?}, padding: {padding}, {bias}")
    }

    /// The tables on a device.
    fn vectors<V>(&self, vector: impl Fn(&[f32]) -> V) -> [Option<V>; 2] {
        match &self.tables {
            Tables::None => [None, None],
            Tables::Alibi(table) | Tables::ByDistance(table, _) => [Some(vector(table)), None],
            Tables::Disentangled { keys, queries, .. } => {
                [keys, queries].map(|table| table.as_ref().map(|table| vector(table)))
            }
        }
    }

    fn params<'a, V>(&'a self, [one, two]: &'a [Option<V>; 2]) -> SelfAttentionParams<&'a V, &'a [u32]> {
        let first = || one.as_ref().expect("a bias with one table has it, because `vectors` makes it");
        let bias = match &self.tables {
            Tables::None => PositionBias::None,
            Tables::Alibi(_) => PositionBias::Alibi { slopes: first() },
            Tables::ByDistance(_, reach) => PositionBias::ByDistance { table: first(), reach: *reach },
            Tables::Disentangled { bucket_of, reach, .. } => PositionBias::Disentangled {
                keys: one.as_ref(),
                queries: two.as_ref(),
                buckets: BUCKETS,
                bucket_of: &bucket_of[..],
                reach: *reach,
            },
        };
        let SelfAttentionCase { shape: heads, scale, reach, padding, .. } = *self;
        SelfAttentionParams { heads, scale, reach, padding, bias }
    }
}

/// Sequences with known queries, keys and values, row after row.
struct KnownSequences {
    lengths: Vec<u32>,
    qkv: Vec<f32>, // (rows, qkv_width)
}

impl KnownSequences {
    /// Random rows. Keys and values are normal. The queries of half the heads are normal, and the others point at one
    /// key each, so that its weight in the softmax is near 1 if the row may see it: the row's own, its neighbours, the
    /// first, the last, those at the edges of the reach, or any. A mask that is off by one then changes everything.
    fn new(
        setting: &SelfAttentionCase,
        rounding: Rounding,
        lengths: &[u32],
        random: &mut Random,
    ) -> KnownSequences {
        let HeadShape { heads, kv_heads, head_dim } = setting.shape;
        let width = setting.shape.qkv_width();
        let rows = lengths.iter().sum::<u32>() as usize;
        let mut qkv = random.normals(rows * width);
        let mut first = 0;
        for &length in lengths {
            for position in 0..length {
                for head in 0..heads {
                    if random.below(2) == 0 {
                        continue;
                    }
                    let away = setting.reach.unwrap_or(1 + random.below(40) as u32);
                    let target = match random.below(8) {
                        0 => position,
                        1 => position + 1,
                        2 => position.saturating_sub(1),
                        3 => position.saturating_sub(away),
                        4 => (position + away) + random.below(2) as u32,
                        5 => position.saturating_sub(away + 1),
                        6 => [0, length - 1][random.below(2)],
                        _ => random.below(length as usize) as u32,
                    };
                    let target = target.min(length - 1) as usize;
                    let key = (first + target) * width + (heads + head * kv_heads / heads) * head_dim;
                    let query = (first + position as usize) * width + head * head_dim;
                    // A key's dot product with itself is about head_dim; with the usual scale this makes a score of 12.
                    let factor = 12.0 / (head_dim as f32).sqrt();
                    for i in 0..head_dim {
                        qkv[query + i] = factor * qkv[key + i];
                    }
                }
            }
            first += length as usize;
        }
        hold(rounding, &mut qkv);
        KnownSequences { lengths: lengths.to_vec(), qkv }
    }

    /// Rows of a sequence.
    fn rows(&self, sequence: usize) -> Range<usize> {
        let first = self.lengths[..sequence].iter().sum::<u32>() as usize;
        first..first + self.lengths[sequence] as usize
    }

    fn limits(&self, shape: HeadShape) -> StepLimits {
        let rows = self.lengths.iter().sum::<u32>() as usize;
        StepLimits {
            rows,
            sequences: self.lengths.len(),
            logit_rows: 0,
            context: rows,
            width: shape.qkv_width(),
            vocab: 1,
            heads: shape,
            experts: 0,
            experts_used: 0,
            experts_width: 0,
            kv_groups: 1,
            heads_matmul_width: 0,
        }
    }

    /// Runs the op on these sequences in this order.
    fn attend(&self, rig: &mut Rig, setting: &SelfAttentionCase, order: &[usize]) -> Vec<f32> {
        let (width, q_width) = (setting.shape.qkv_width(), setting.shape.q_width());
        let lengths: Vec<u32> = order.iter().map(|&sequence| self.lengths[sequence]).collect();
        let rows = order.iter().flat_map(|&sequence| {
            let rows = self.rows(sequence);
            self.qkv[rows.start * width..rows.end * width].iter().copied()
        });
        let rows: Vec<f32> = rows.collect();
        let count = rows.len() / width;
        let qkv = rig.upload(&rows, width);
        let mut out = rig.blank(count, q_width);
        let vectors = setting.vectors(|values| rig.vector(values));
        let params = setting.params(&vectors);
        rig.step(&whole_batch(&lengths), |rig| rig.backend.self_attention(&qkv, &params, &mut out));
        rig.download("self_attention", &out, count, q_width)
    }
}

/// Checks `self_attention` on ragged batches of whole sequences: random shapes and settings, and long sequences.
///
/// # Panics
/// If a number is out of bounds.
pub fn check_self_attention(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(60);
    for case in (0..CASES).step_by(every(5)) {
        let heads = 1 + random.below(16);
        let divisors: Vec<usize> = (1..=heads).filter(|&count| heads.is_multiple_of(count)).collect();
        let kv_heads = divisors[random.below(divisors.len())];
        let widest = if heads > 4 { 64 } else { 128 };
        // Widths of whole vectors, and any.
        let head_dim =
            if case % 2 == 0 { 16 * (1 + random.below(widest / 16)) } else { 8 + random.below(widest - 7) };
        let shape = HeadShape { heads, kv_heads, head_dim };
        let lengths: Vec<u32> =
            (0..6).map(|i| 1 + random.below([3, 20, 20, 50, 70, 110][i]) as u32).chain([1, 17]).collect();
        let reach = [None, None, Some(0), Some(1), Some(5), Some(16), Some(40)][random.below(7)];
        let setting = plain(shape, reach);
        let reach = [1, 3, 10, 30, 200][random.below(5)];
        let setting = setting.with_bias(case % KINDS, reach, &mut random);
        check_case(make, &setting, &lengths, &mut random);
    }
    for (case, (heads, kv_heads, head_dim, lengths)) in LONG.into_iter().enumerate().skip(every(2) - 1) {
        let shape = HeadShape { heads, kv_heads, head_dim };
        for (reach, kind) in [
            (None, 0),
            (Some(64), [0, 5][case % 2]),
            (None, 1 + case),
            (Some(300), case % 3),
            (Some(33), 2 - case % 2),
        ]
        .into_iter()
        .step_by(every(3))
        {
            let setting = plain(shape, reach).with_bias(kind, 128, &mut random);
            check_case(make, &setting, lengths, &mut random);
        }
    }
    if !make().facts().knows_memories {
        return;
    }
    for (heads, padding, lengths) in [(3, 7, &[60, 8, 300][..]), (2, 330, &[600, 331]), (1, 1, &[2, 290])] {
        let shape = HeadShape { heads, kv_heads: heads, head_dim: 40 };
        let setting = SelfAttentionCase { padding, ..plain(shape, None) };
        check_case(make, &setting, lengths, &mut random);
    }
}

/// Checks that a sequence has the same bits alone, among others and in any order.
///
/// # Panics
/// If a bit differs.
pub fn check_self_attention_invariance(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(61);
    let lengths = [1, 19, 300, 50, 13, 130, 64, 2];
    for (case, (heads, kv_heads, head_dim)) in [(12, 12, 32), (4, 2, 64), (3, 1, 80)].into_iter().enumerate()
    {
        let shape = HeadShape { heads, kv_heads, head_dim };
        let settings = [(None, 0), (Some(30), 1 + case), (None, 5)];
        for (reach, kind) in settings.into_iter().skip(case % every(3)).step_by(every(3)) {
            let setting = plain(shape, reach).with_bias(kind, 20, &mut random);
            let text = KnownSequences::new(&setting, make().facts().rounding, &lengths, &mut random);
            let mut rig = Rig::new(make(), &text.limits(shape));
            let q_width = shape.q_width();
            let every: Vec<usize> = (0..lengths.len()).collect();
            let expected = text.attend(&mut rig, &setting, &every);
            let mut orders: Vec<Vec<usize>> = every.iter().map(|&sequence| vec![sequence]).collect();
            orders.extend((0..4).map(|_| random.permutation(lengths.len())));
            orders.extend((0..4).map(|i| random.permutation(lengths.len())[..2 + i].to_vec()));
            for order in orders {
                let found = text.attend(&mut rig, &setting, &order);
                let mut rest = &found[..];
                for &sequence in &order {
                    let rows = text.rows(sequence);
                    let (found, after) = rest.split_at(rows.len() * q_width);
                    let expected = &expected[rows.start * q_width..rows.end * q_width];
                    let what = format!("{}, sequence {sequence} of {order:?}", setting.name());
                    same_bits(&what, found, expected, q_width);
                    rest = after;
                }
            }
        }
    }
}

/// Checks parts of sequences, on devices that support them: the bits of the whole, wherever in a buffer the sequence
/// is.
///
/// # Panics
/// If a bit differs.
pub fn check_self_attention_parts(make: &dyn Fn() -> AnyBackend) {
    if !make().facts().attends_in_parts {
        return;
    }
    let mut random = Random::new(62);
    for (heads, kv_heads, head_dim, lengths) in LONG.into_iter().step_by(every(2)) {
        let (shape, before) = (HeadShape { heads, kv_heads, head_dim }, 5);
        let setting = plain(shape, None);
        let text = KnownSequences::new(&setting, make().facts().rounding, lengths, &mut random);
        let mut rig = Rig::new(make(), &text.limits(shape));
        let q_width = shape.q_width();
        let all: Vec<usize> = (0..lengths.len()).collect();
        let expected = text.attend(&mut rig, &setting, &all);
        let mut numbers = random.normals(before * shape.qkv_width());
        numbers.extend_from_slice(&text.qkv);
        let qkv = rig.upload(&numbers, shape.qkv_width());
        let vectors = setting.vectors(|values| rig.vector(values));
        let params = setting.params(&vectors);
        for sequence in all {
            let rows = text.rows(sequence);
            let cuts =
                [0, 1, 1, 3, 6, usize::MAX].map(|cut| rows.len().min(QUERIES_PART.saturating_mul(cut)));
            for queries in cuts.windows(2).map(|ends| ends[0]..ends[1]).filter(|part| !part.is_empty()) {
                let mut out = rig.blank(queries.len(), q_width);
                let (held, queries_of) = (before + rows.start..before + rows.end, queries.clone());
                rig.step(&whole_batch(&[queries.len() as u32]), |rig| {
                    rig.backend.attend_part(&qkv, held, queries_of, &params, &mut out);
                });
                let found = rig.download("attend_part", &out, queries.len(), q_width);
                let at = (rows.start + queries.start) * q_width..(rows.start + queries.end) * q_width;
                let what = format!("{}, queries {queries:?} of {}", setting.name(), rows.len());
                same_bits(&what, &found, &expected[at], q_width);
            }
        }
    }
}

/// Settings with no bias.
fn plain(shape: HeadShape, reach: Option<u32>) -> SelfAttentionCase {
    // Not the usual one to the bit, so that a device cannot assume it.
    let scale = 1.1 / (shape.head_dim as f32).sqrt();
    SelfAttentionCase { shape, scale, reach, padding: 0, tables: Tables::None }
}

fn check_case(
    make: &dyn Fn() -> AnyBackend,
    setting: &SelfAttentionCase,
    lengths: &[u32],
    random: &mut Random,
) {
    let rounding = make().facts().rounding;
    let text = KnownSequences::new(setting, rounding, lengths, random);
    let every: Vec<usize> = (0..lengths.len()).collect();
    let found = text.attend(&mut Rig::new(make(), &text.limits(setting.shape)), setting, &every);
    let mut reference = Rig::new(AnyBackend::new(ReferenceBackend::new()), &text.limits(setting.shape));
    let expected = text.attend(&mut reference, setting, &every);
    let vectors = setting.vectors(<[f32]>::to_vec);
    let params = setting.params(&vectors);
    // The same sums with every number's magnitude in place of the number.
    let sizes = setting.vectors(size);
    let sizes = setting.params(&sizes);
    let q_width = setting.shape.q_width();
    let mut errors = CaseErrors::of_operands(setting.name(), rounding);
    for (sequence, &length) in lengths.iter().enumerate() {
        let rows = text.rows(sequence);
        for i in 0..length {
            let row = rows.start + i as usize;
            for (col, sigma) in
                sigmas(&text, [&params, &sizes], rounding, rows.start, length, i).into_iter().enumerate()
            {
                let at = row * q_width + col;
                errors.check(1000 * sequence + i as usize, col, found[at], expected[at], sigma, 1e-7);
            }
        }
    }
    errors.finish();
}

/// σ of row `i` of the sequence that starts at row `first`. Sums in f32 move score j by σ_j, [`FLOAT`] of the
/// magnitudes of all terms, and weight p_j by [`FLOAT`] of itself. A change of ε in score j moves the output by `p_j ε
/// (v_j - out)`, so it moves by at most `Σ p_j (σ_j + FLOAT) |v_j - out|` even if all scores moved together. Sums of
/// values add [`FLOAT`] of `Σ p_j |v_j|`. Weights are operands of the second product, and rounded as such.
fn sigmas(
    text: &KnownSequences,
    [params, sizes]: [&SelfAttentionParams<&Vec<f32>, &[u32]>; 2],
    rounding: Rounding,
    first: usize,
    rows: u32,
    i: u32,
) -> Vec<f64> {
    let HeadShape { heads, kv_heads, head_dim } = params.heads;
    let width = params.heads.qkv_width();
    let element =
        |row: u32, head: usize| &text.qkv[(first + row as usize) * width + head * head_dim..][..head_dim];
    let keys = seen(params, rows, i);
    let mut out = Vec::with_capacity(heads * head_dim);
    for head in 0..heads {
        let kv_head = head * kv_heads / heads;
        let query = element(i, head);
        let query_size = size(query);
        let (mut scores, mut moves) = (Vec::new(), Vec::new());
        for j in keys.clone() {
            let key = element(j, heads + kv_head);
            let key_size = size(key);
            let bias = formulas::position_bias(params, head, i, query, j, key);
            scores.push(formulas::score(query, key, params.scale, None) + bias);
            let bias = formulas::position_bias(sizes, head, i, &query_size, j, &key_size);
            let sum = formulas::score(&query_size, &key_size, params.scale, None) + bias.abs();
            moves.push(FLOAT * (sum + 1.0) + operand_sigma(rounding));
        }
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total = scores.iter().map(|s| (s - largest).exp()).sum::<f64>();
        let value = |j: u32| element(j, heads + kv_heads + kv_head);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp() / total).collect();
        let mut mean = vec![0.0; head_dim];
        for (j, p) in keys.clone().zip(&weights) {
            mean.iter_mut().zip(value(j)).for_each(|(mean, &v)| *mean += p * f64::from(v));
        }
        let mut sigma = vec![0.0; head_dim];
        for ((j, p), moved) in keys.clone().zip(&weights).zip(&moves) {
            for ((sigma, &v), mean) in sigma.iter_mut().zip(value(j)).zip(&mean) {
                *sigma += p * (moved * (f64::from(v) - mean).abs() + FLOAT * f64::from(v).abs());
            }
        }
        out.extend(sigma);
    }
    out
}

fn size(numbers: &[f32]) -> Vec<f32> {
    numbers.iter().map(|number| number.abs()).collect()
}
