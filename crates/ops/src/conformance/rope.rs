//! Checks of `rope_to_cache`, directly for queries and through attention for the cache's content, and checks of
//! `rope`.

use super::bounds::{CaseErrors, hold, same_bits};
use super::random::Random;
use super::rig::{Rig, ok, whole_batch};
use crate::reference::{ReferenceBackend, formulas};
use crate::{
    AnyBackend, AttentionParams, BLOCK_TOKENS, Batch, HeadShape, KvLayout, KvSpec, KvType, QkvParams,
    QueryScale, Rope, RopeKind, Rounding, RowSource, SequenceSpan, StepLimits,
};

/// Context and rows of the sequences, each starting a block. All earlier blocks are block 0, so that positions can be
/// large while the cache is small.
const SPANS: [(u32, u32); 6] = [(1, 1), (32_768, 16), (16, 16), (4_099, 19), (40, 24), (17, 1)];
const LAYER: usize = 1;

/// Processing of queries and keys, as plain numbers.
#[derive(Debug)]
struct Case {
    shape: HeadShape,
    kv_type: KvType,
    q_norm: Option<Vec<f32>>,
    k_norm: Option<Vec<f32>>,
    norm_eps: f32,
    norm_after_rope: bool,
    rope: Option<(RopeKind, Vec<f32>, f32)>,
    query_scale: Option<QueryScale>,
    values_normed: bool,
    /// Whether to run once more with queries alone, over the resulting cache.
    alone: bool,
}

/// Results of a backend for a case.
struct RopeResult {
    queries: Vec<f32>,  // (rows, q_width)
    attended: Vec<f32>, // (rows, q_width)
    values: Vec<f32>,   // (rows, q_width): attention of each row to itself alone
}

/// Checks `rope_to_cache` with either kind, whole and partial rotation, magnitudes, with and without norms, and
/// positions up to 32,767; the same bits for a row in any batch. Afterwards only the queries of `qkv` are compared.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_rope_to_cache(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(40);
    for (i, (heads, kv_heads, head_dim)) in
        [(4, 2, 64), (2, 2, 80), (8, 1, 128), (4, 4, 256), (7, 1, 64), (6, 2, 128)].into_iter().enumerate()
    {
        let shape = HeadShape { heads, kv_heads, head_dim };
        let whole = head_dim.is_multiple_of(KvType::Q8_0.group());
        for &kv_type in KvType::ALL.iter().filter(|&&kv_type| whole || kv_type != KvType::Q8_0) {
            for case in cases(shape, kv_type, i, &mut random) {
                check_case(make, &case, &mut random);
            }
        }
    }
}

fn cases(shape: HeadShape, kv_type: KvType, i: usize, random: &mut Random) -> Vec<Case> {
    let mut norm_of =
        |elements: usize| Some((0..elements).map(|_| 0.5 + random.uniform()).collect::<Vec<f32>>());
    let mut norm = || norm_of(shape.head_dim);
    let case = |kind, rotary_dim: usize, magnitude, q_norm, k_norm| {
        let frequency = |pair: usize| 10_000f32.powf(-2.0 * pair as f32 / rotary_dim as f32);
        let rope = Some((kind, (0..rotary_dim / 2).map(frequency).collect(), magnitude));
        Case {
            shape,
            kv_type,
            q_norm,
            k_norm,
            norm_eps: 1e-6,
            norm_after_rope: false,
            rope,
            query_scale: None,
            values_normed: false,
            alone: false,
        }
    };
    let (first, second) = match i % 2 {
        0 => (RopeKind::Neox, RopeKind::Interleaved),
        _ => (RopeKind::Interleaved, RopeKind::Neox),
    };
    let mut cases = vec![
        case(first, shape.head_dim, 1.0, None, None),
        case(second, shape.head_dim, 1.0, norm(), norm()),
        case(first, shape.head_dim / 2, 1.25, norm(), None),
        case(second, shape.head_dim / 4 + 2, 0.8, None, norm()),
        Case { rope: None, norm_eps: 0.3, ..case(first, shape.head_dim, 1.0, norm(), norm()) },
        Case { norm_after_rope: true, ..case(first, shape.head_dim, 1.0, norm(), norm()) },
        Case {
            query_scale: Some(QueryScale { factor: 0.02, every: 16, offset: 1 }),
            ..case(second, shape.head_dim / 2, 1.0, norm(), None)
        },
        Case { values_normed: true, norm_eps: 0.3, ..case(second, shape.head_dim, 1.0, norm(), norm()) },
        Case { alone: true, ..case(first, shape.head_dim, 1.0, norm(), norm()) },
        Case {
            rope: None,
            query_scale: Some(QueryScale { factor: 0.02, every: 5, offset: 0 }),
            ..case(first, shape.head_dim, 1.0, None, None)
        },
    ];
    // All heads normed as one.
    let [q_norm, k_norm] = [shape.heads, shape.kv_heads].map(|heads| norm_of(heads * shape.head_dim));
    cases.push(case(first, shape.head_dim, 1.0, q_norm, k_norm));
    cases
}

fn check_case(make: &dyn Fn() -> AnyBackend, case: &Case, random: &mut Random) {
    let rows: usize = SPANS.iter().map(|span| span.1 as usize).sum();
    let mut rig = Rig::new(make(), &limits(case));
    let rounding = rig.rounding;
    let mut qkv = random.normals(rows * case.shape.qkv_width());
    let mut first_block = random.normals(BLOCK_TOKENS * case.shape.qkv_width());
    hold(rounding, &mut qkv);
    hold(rounding, &mut first_block);
    let all: Vec<usize> = (0..SPANS.len()).collect();
    let found = run(&mut rig, case, &qkv, &first_block, &all);
    let expected = run(
        &mut Rig::new(AnyBackend::new(ReferenceBackend::new()), &limits(case)),
        case,
        &qkv,
        &first_block,
        &all,
    );
    compare_queries(case, rounding, &found.queries, &expected.queries);

    let q_width = case.shape.q_width();
    let what = format!("attention over what rope_to_cache stored, {case:?}");
    let mut errors = CaseErrors::of_operands(what, rounding);
    let what = format!("values that rope_to_cache stored, {case:?}");
    let mut values = CaseErrors::of_operands(what, rounding);
    // Keys rounded to some hundredth move the scores by as much, and queries as well.
    let slack = match case.kv_type {
        KvType::F16 => 0.03,
        KvType::Q8_0 => 0.06,
        // Relative error of an eighth, between two numbers.
        KvType::Fp8 => 0.2,
    };
    // One unit of a value's rounding: the direction of a tie is up to the device.
    let step = |i: usize, value: f32| match case.kv_type {
        KvType::F16 => 1e-3 * f64::from(value).abs(),
        // Three bits after the first, or 2^-9.
        KvType::Fp8 => (0.1251 * f64::from(value).abs()).max(0.00196),
        KvType::Q8_0 => {
            let group =
                &expected.values[i / case.kv_type.group() * case.kv_type.group()..][..case.kv_type.group()];
            1.002 / 127.0 * f64::from(group.iter().fold(0.0f32, |largest, v| largest.max(v.abs())))
        }
    };
    for (i, expected_out) in expected.attended.iter().enumerate() {
        let (row, col) = (i / q_width, i % q_width);
        // Keys may differ in the last bit of f16, and by the angle's rounding at large positions. With scores near 1
        // that is a few thousandths of the values' unit variance. A key not normed or rotated, or rotated differently,
        // is off by some tenths.
        errors.check(row, col, found.attended[i], *expected_out, 0.0, slack);
        values.check(row, col, found.values[i], expected.values[i], 0.0, step(i, expected.values[i]));
    }
    errors.finish();
    values.finish();

    for order in [&[0][..], &[1], &[3, 2], &[5, 4, 3, 1]] {
        let alone = run(&mut rig, case, &qkv, &first_block, order);
        let mut rest = (&alone.queries[..], &alone.attended[..]);
        for &sequence in order {
            let first = row_first(sequence) * q_width;
            let count = SPANS[sequence].1 as usize * q_width;
            let (queries, attended) = (rest.0.split_at(count), rest.1.split_at(count));
            let what = format!("rope_to_cache, sequence {sequence} in {order:?}, {case:?}");
            same_bits(&what, queries.0, &found.queries[first..][..count], q_width);
            same_bits(&what, attended.0, &found.attended[first..][..count], q_width);
            rest = (queries.1, attended.1);
        }
    }
}

/// A rotated pair keeps its length times the magnitude, so its error is measured by that: 8e-6 of it for f32
/// arithmetic, and 2⁻²² of the angle for the rounding of the angle.
fn compare_queries(case: &Case, rounding: Rounding, found: &[f32], expected: &[f32]) {
    let head_dim = case.shape.head_dim;
    let q_width = case.shape.q_width();
    let positions = SPANS.iter().flat_map(|&(context, rows)| context - rows..context);
    let mut errors = CaseErrors::of_operands(format!("rope_to_cache, queries, {case:?}"), rounding);
    let rope = case.rope.as_ref().map(|(kind, inv_freq, _)| (*kind, &inv_freq[..]));
    for (row, position) in positions.enumerate() {
        for col in 0..q_width {
            let (head, element) = (col / head_dim, col % head_dim);
            let slack = turn_slack(rope, &expected[row * q_width + head * head_dim..], element, position);
            let i = row * q_width + col;
            errors.check(row, col, found[i], expected[i], 0.0, slack);
        }
    }
    errors.finish();
}

/// Allowed error of an element of a rotated head.
pub(super) fn turn_slack(
    rope: Option<(RopeKind, &[f32])>,
    head: &[f32],
    element: usize,
    position: u32,
) -> f64 {
    let at = |element: usize| f64::from(head[element]);
    let turned = rope.and_then(|(kind, inv_freq)| {
        let pairs = inv_freq.len();
        let (pair, other) = match kind {
            _ if element >= 2 * pairs => return None,
            RopeKind::Neox => (element % pairs, (element + pairs) % (2 * pairs)),
            RopeKind::Interleaved => (element / 2, element ^ 1),
        };
        Some((at(element).hypot(at(other)), f64::from(position) * f64::from(inv_freq[pair])))
    });
    let (size, angle) = turned.unwrap_or((at(element).abs(), 0.0));
    size * (8e-6 + angle / 4_194_304.0)
}

/// Epsilon of the norms in checks of `rope`.
const EPS: f32 = 1e-6;

/// Checks `rope` of queries and keys, normed and not, of either kind, whole and partial, with magnitudes, and with
/// tables that alternate within a step. Values and elements past the rotary part are equal to the bit, and a row has
/// the same bits in any batch.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_rope(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(41);
    let lengths = [1u32, 40, 3, 17, 70];
    for (i, (heads, kv_heads, head_dim)) in
        [(12, 12, 64), (4, 2, 80), (3, 1, 32), (16, 16, 8)].into_iter().enumerate()
    {
        let shape = HeadShape { heads, kv_heads, head_dim };
        let (width, both) = (shape.qkv_width(), (heads + kv_heads) * head_dim);
        let rows = lengths.iter().sum::<u32>() as usize;
        let limits = StepLimits { rows, width, heads: shape, ..LIMITS };
        for (kind, rotary_dim, magnitude, base, normed) in [
            (RopeKind::Neox, head_dim, 1.0, 10_000f32, [false, false]),
            (RopeKind::Interleaved, head_dim, 1.0, 160_000.0, [true, true]),
            (
                [RopeKind::Neox, RopeKind::Interleaved][i % 2],
                head_dim / 4 * 2,
                1.25,
                10_000.0,
                [i % 2 == 0, i % 2 == 1],
            ),
        ] {
            let norms = normed.map(|normed| {
                normed.then(|| random.normals(head_dim).iter().map(|x| 1.0 + 0.3 * x).collect::<Vec<f32>>())
            });
            let inv_freq: Vec<f32> =
                (0..rotary_dim / 2).map(|pair| base.powf(-2.0 * pair as f32 / rotary_dim as f32)).collect();
            let what = format!(
                "rope, {shape:?}, {kind:?}, {rotary_dim} elements, magnitude {magnitude}, normed {normed:?}"
            );
            let mut rig = Rig::new(make(), &limits);
            let mut x = random.normals(rows * width);
            hold(rig.rounding, &mut x);
            let rounding = rig.rounding;
            let first: Vec<usize> =
                (0..lengths.len()).map(|i| lengths[..i].iter().sum::<u32>() as usize * width).collect();
            let mut run = |order: &[usize]| {
                let lengths: Vec<u32> = order.iter().map(|&sequence| lengths[sequence]).collect();
                let part = |&sequence: &usize| {
                    let end = first.get(sequence + 1).copied().unwrap_or(x.len());
                    x[first[sequence]..end].iter().copied()
                };
                let chosen: Vec<f32> = order.iter().flat_map(part).collect();
                let rows = chosen.len() / width;
                let (mut other, mut qkv) = (rig.upload(&chosen, width), rig.upload(&chosen, width));
                let [q_norm, k_norm] =
                    [0, 1].map(|part: usize| norms[part].as_ref().map(|norm| rig.vector(norm)));
                let (inv_freq, slow) = (rig.vector(&inv_freq), rig.vector(&vec![1e-3; head_dim / 2]));
                rig.step(&whole_batch(&lengths), |rig| {
                    let params = |inv_freq, magnitude| QkvParams {
                        shape,
                        q_norm: q_norm.as_ref(),
                        k_norm: k_norm.as_ref(),
                        norm_eps: EPS,
                        rope: Some(Rope { kind, inv_freq, magnitude, axes: None, long: None }),
                        ..QkvParams::plain(shape)
                    };
                    rig.backend.rope(&mut other, &params(&slow, 1.0));
                    rig.backend.rope(&mut qkv, &params(&inv_freq, magnitude));
                });
                rig.download("rope", &qkv, rows, width)
            };
            let all = run(&[0, 1, 2, 3, 4]);
            let mut errors = CaseErrors::of_operands(what.clone(), rounding);
            let positions = lengths.iter().flat_map(|&length| 0..length);
            for (row, position) in positions.enumerate() {
                let mut expected = x[row * width..][..width].to_vec();
                for (index, head) in expected[..both].chunks_exact_mut(head_dim).enumerate() {
                    if let Some(norm) = &norms[usize::from(index >= heads)] {
                        let plain = head.to_vec();
                        formulas::rms_norm(&plain, norm, EPS, head);
                    }
                    formulas::rotate(head, kind, &inv_freq, magnitude, position);
                }
                let found = &all[row * width..][..width];
                same_bits(&format!("{what}, values"), &found[both..], &expected[both..], width - both);
                for col in 0..both {
                    let (head, element) = (col / head_dim * head_dim, col % head_dim);
                    let slack = turn_slack(Some((kind, &inv_freq)), &expected[head..], element, position);
                    let changed = element < rotary_dim || normed[usize::from(col >= heads * head_dim)];
                    let slack = if changed { slack } else { 0.0 };
                    errors.check(row, col, found[col], expected[col], 0.0, slack);
                }
            }
            errors.finish();
            for order in [&[0][..], &[4], &[3, 0, 1], &[4, 3, 2, 1, 0]] {
                let found = run(order);
                let mut rest = &found[..];
                for &sequence in order {
                    let (found, after) = rest.split_at(lengths[sequence] as usize * width);
                    let what = format!("{what}, sequence {sequence} in {order:?}");
                    same_bits(&what, found, &all[first[sequence]..][..found.len()], width);
                    rest = after;
                }
            }
        }
    }
}

/// Limits of `rope`'s steps except for the shapes.
pub(super) const LIMITS: StepLimits = StepLimits {
    rows: 0,
    sequences: 8,
    logit_rows: 0,
    context: 128,
    width: 0,
    vocab: 1,
    heads: HeadShape { heads: 1, kv_heads: 1, head_dim: 8 },
    experts: 0,
    experts_used: 0,
    experts_width: 0,
    kv_groups: 1,
    heads_matmul_width: 0,
};

fn limits(case: &Case) -> StepLimits {
    StepLimits {
        rows: 128,
        sequences: SPANS.len(),
        logit_rows: 1,
        context: 32_768,
        width: case.shape.qkv_width(),
        vocab: 1,
        heads: case.shape,
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

fn row_first(sequence: usize) -> usize {
    SPANS[..sequence].iter().map(|span| span.1 as usize).sum()
}

/// Fills block 0 as a separate sequence, then runs the chosen sequences in one step.
fn run(rig: &mut Rig, case: &Case, qkv: &[f32], first_block: &[f32], order: &[usize]) -> RopeResult {
    let shape = case.shape;
    let (width, q_width) = (shape.qkv_width(), shape.q_width());
    let HeadShape { kv_heads, head_dim, .. } = shape;
    let spec = KvSpec {
        layers: vec![KvLayout::Heads { kv_heads, head_dim, window: None }; 2],
        blocks: 1 + 2 * SPANS.len(),
        kv_type: case.kv_type,
        ..KvSpec::default()
    };
    let mut kv = ok("kv", rig.backend.kv(&spec));
    let vector = |values: &Option<Vec<f32>>| values.as_ref().map(|values| rig.vector(values));
    let (q_norm, k_norm) = (vector(&case.q_norm), vector(&case.k_norm));
    let inv_freq = case.rope.as_ref().map(|(_, inv_freq, _)| rig.vector(inv_freq));
    let params = QkvParams {
        shape,
        q_norm: q_norm.as_ref(),
        k_norm: k_norm.as_ref(),
        norm_eps: case.norm_eps,
        norm_after_rope: case.norm_after_rope,
        query_scale: case.query_scale,
        rope: case.rope.as_ref().zip(inv_freq.as_ref()).map(|((kind, _, magnitude), inv_freq)| Rope {
            kind: *kind,
            inv_freq,
            magnitude: *magnitude,
            axes: None,
            long: None,
        }),
        values_normed: case.values_normed,
        queries_alone: false,
    };
    let attention = |window| AttentionParams {
        window: Some(window),
        queries_alone: case.alone,
        ..AttentionParams::of(shape, 1.0 / (head_dim as f32).sqrt())
    };

    let mut first = rig.upload(first_block, width);
    rig.step(&first_batch(), |rig| rig.backend.rope_to_cache(&mut first, &params, &mut kv, LAYER));

    let batch = batch(order);
    let rows = batch.rows();
    let chosen: Vec<f32> = order
        .iter()
        .flat_map(|&s| qkv[row_first(s) * width..][..SPANS[s].1 as usize * width].iter().copied())
        .collect();
    let mut buffer = rig.upload(&chosen, width);
    let queries: Vec<f32> = chosen.chunks_exact(width).flat_map(|row| &row[..q_width]).copied().collect();
    let mut queries = rig.upload(&queries, q_width);
    let (mut attended, mut values) = (rig.blank(rows, q_width), rig.blank(rows, q_width));
    let width = if case.alone { q_width } else { width };
    rig.step(&batch, |rig| {
        rig.backend.rope_to_cache(&mut buffer, &params, &mut kv, LAYER);
        if case.alone {
            // Queries of a layer that has no cache, normed and rotated in the same way.
            std::mem::swap(&mut buffer, &mut queries);
            let params = QkvParams { queries_alone: true, ..params };
            rig.backend.rope_to_cache(&mut buffer, &params, &mut kv, LAYER);
        }
        rig.backend.attention(&buffer, &attention(8), &kv, LAYER, &mut attended);
        rig.backend.attention(&buffer, &attention(1), &kv, LAYER, &mut values);
    });
    let turned = rig.download("rope_to_cache", &buffer, rows, width);
    RopeResult {
        queries: turned.chunks_exact(width).flat_map(|row| row[..q_width].iter().copied()).collect(),
        attended: rig.download("attention after rope_to_cache", &attended, rows, q_width),
        values: rig.download("attention after rope_to_cache", &values, rows, q_width),
    }
}

/// Sequence of one block, in block 0.
fn first_batch() -> Batch {
    Batch {
        sources: vec![RowSource::Token(0); BLOCK_TOKENS],
        positions: (0..16).collect(),
        slots: (0..16).collect(),
        sequences: vec![SequenceSpan { row_first: 0, rows: 16, context: 16, table_first: 0 }],
        adapters: Vec::new(),
        block_tables: vec![0],
        ..Batch::default()
    }
}

/// The chosen sequences; sequence s owns blocks 1 + 2 s and 2 + 2 s.
fn batch(order: &[usize]) -> Batch {
    let mut batch = Batch::default();
    for &sequence in order {
        let (context, rows) = SPANS[sequence];
        let first = (context - rows) as usize / BLOCK_TOKENS;
        let block = |i: usize| if i >= first { 1 + (2 * sequence + i % 2) as u32 } else { 0 };
        batch.sources.extend((0..rows).map(|_| RowSource::Token(0)));
        batch.push_sequence(rows as usize, context as usize, |_, index| block(index));
    }
    batch
}
