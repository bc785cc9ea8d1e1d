//! Checks of `attention` over the paged cache.

use std::ops::Range;

use super::bounds::{CaseErrors, FLOAT, HALF, operand_sigma, same_bits};
use super::extent::every;
use super::random::Random;
use super::rig::Rig;
use super::scene::{AttentionCase, Chunk, STEP_ROWS_MAX, Scene, history, memory_parts};
use crate::reference::{ReferenceBackend, formulas, visible};
use crate::{AnyBackend, AttentionParams, Batch, HeadShape, KvType, Rounding, SequenceSpan};

/// Heads, key-value heads, and elements of a head.
const SHAPES: [(usize, usize, usize); 8] =
    [(8, 2, 64), (2, 2, 128), (4, 2, 80), (4, 1, 256), (7, 1, 64), (8, 1, 128), (3, 3, 64), (6, 3, 80)];
/// Context and rows of each sequence: decodes and prefill chunks, within a block, at its edge and over many.
const WORK: [(u32, u32); 11] = [
    (600, 1),
    (37, 37),
    (1, 1),
    (64, 1),
    (100, 20),
    (16, 16),
    (17, 1),
    (129, 1),
    (257, 17),
    (48, 16),
    (2, 1),
];

/// Checks `attention` on mixed batches of decodes and prefill chunks: grouped heads, windows, soft cap, sinks, slopes.
///
/// # Panics
/// If a number is out of bounds.
pub fn check_attention(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(30);
    for (i, (heads, kv_heads, head_dim)) in SHAPES.into_iter().enumerate().step_by(every(3)) {
        let shape = HeadShape { heads, kv_heads, head_dim };
        for (j, setting) in settings(shape, &mut random).into_iter().enumerate() {
            // The first shape is tried with every setting, the others with two plain ones and two mixtures.
            if (i > 0 && (i + j) % 3 != 0) || j % every(2) != 0 {
                continue;
            }
            for &kv_type in kv_types(shape) {
                check_scene(make, shape, kv_type, &setting, &mut random);
            }
        }
    }
}

/// Checks cross-attention (`attention` with `memory`): to all keys of a sequence, including later ones, to a part of
/// them, or to none.
///
/// # Panics
/// If a number is out of bounds.
pub fn check_memory_attention(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(34);
    for (heads, kv_heads, head_dim) in [(6, 6, 64), (4, 2, 80)].into_iter().step_by(every(2)) {
        let shape = HeadShape { heads, kv_heads, head_dim };
        let setting = AttentionCase { memory: true, ..plain(shape) };
        for &kv_type in kv_types(shape) {
            check_scene(make, shape, kv_type, &setting, &mut random);
        }
    }
}

/// Checks `attention` with rows that see each other, like those of an image: within the step, through a window, and
/// with the same bits however a step is cut between images.
///
/// # Panics
/// If a number is out of bounds, or a bit differs.
pub fn check_mutual_attention(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(35);
    let rounding = make().facts().rounding;
    for (heads, kv_heads, head_dim) in [(6, 3, 64), (4, 1, 80)].into_iter().step_by(every(2)) {
        let shape = HeadShape { heads, kv_heads, head_dim };
        let mutual = |mutual| AttentionCase { mutual: Some(mutual), ..plain(shape) };
        let windowed = AttentionCase { window: Some(20), grouped: true, ..mutual(24) };
        for setting in [mutual(16), mutual(70), windowed.clone()] {
            for &kv_type in kv_types(shape) {
                check_scene(make, shape, kv_type, &setting, &mut random);
            }
        }
        let lengths = [24, 200, 100, 51];
        for setting in [mutual(24), windowed] {
            let scene = Scene::new(shape, KvType::F16, rounding, &lengths, setting.window, &mut random);
            let mut rig = Rig::new(make(), &scene.limits());
            let expected = scene.play(&mut rig, &setting, &[whole(&lengths, &[0, 1, 2, 3])], 0);
            let alone: Vec<Vec<Chunk>> = (0..lengths.len()).map(|i| whole(&lengths, &[i])).collect();
            let by_one = cut(&lengths, &mut || 24);
            let by_some = cut(&lengths, &mut || 24 * (1 + random.below(3) as u32));
            for (steps, name) in [(alone, "alone"), (by_one, "one by one"), (by_some, "some by some")] {
                let found = scene.play(&mut rig, &setting, &steps, 0);
                for (sequence, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let what = format!("attention, {shape:?}, {setting:?}, sequence {sequence}, {name}");
                    same_bits(&what, found, expected, shape.q_width());
                }
            }
        }
    }
}

/// Checks that a row's bits are the same in one step, in chunks, token by token, alone, among others, in any order and
/// in any blocks.
///
/// # Panics
/// If a bit differs.
pub fn check_attention_invariance(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(31);
    let rounding = make().facts().rounding;
    let lengths = [1, 19, 50, 130, 200];
    let tokens = lengths.iter().sum::<u32>() as usize;
    assert!(tokens <= STEP_ROWS_MAX, "all sequences fit one step");
    for (heads, kv_heads, head_dim) in [(7, 1, 64), (4, 2, 128), (2, 2, 80)].into_iter().step_by(every(2)) {
        let shape = HeadShape { heads, kv_heads, head_dim };
        let plain = plain(shape);
        let sinks = Some(random.normals(heads));
        let slopes = slopes(shape);
        let full = AttentionCase {
            softcap: Some(20.0),
            window: Some(45),
            sinks,
            slopes,
            grouped: true,
            ..plain.clone()
        };
        let chunked = AttentionCase { softcap: None, chunked: true, ..full.clone() };
        let settings = [plain, full, chunked]
            .map(|setting| kv_types(shape).iter().map(move |&kv_type| (kv_type, setting.clone())));
        for (kv_type, setting) in settings.into_iter().flatten() {
            let mut scene = Scene::new(shape, kv_type, rounding, &lengths, setting.window, &mut random);
            let mut rig = Rig::new(make(), &scene.limits());
            let together = vec![whole(&lengths, &[0, 1, 2, 3, 4])];
            let expected = scene.play(&mut rig, &setting, &together, 0);
            let mut same = |scene: &Scene, name: &str, steps: &[Vec<Chunk>]| {
                let found = scene.play(&mut rig, &setting, steps, 0);
                for (sequence, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let what =
                        format!("attention, {shape:?}, {kv_type}, {setting:?}, sequence {sequence}, {name}");
                    same_bits(&what, found, expected, shape.q_width());
                }
            };
            let alone: Vec<Vec<Chunk>> = (0..lengths.len()).map(|i| whole(&lengths, &[i])).collect();
            same(&scene, "alone", &alone);
            same(&scene, "in another order", &[whole(&lengths, &[3, 1, 4, 0, 2])]);
            same(&scene, "token by token", &cut(&lengths, &mut || 1));
            same(&scene, "in blocks", &cut(&lengths, &mut || 16));
            same(&scene, "in ragged chunks", &cut(&lengths, &mut || 1 + random.below(60) as u32));
            scene.move_blocks(&mut Random::new(32));
            same(&scene, "in other blocks", &together);
        }
    }
}

/// Checks that the last rows of contexts over a thousand tokens have the same bits together and one by one. A device
/// may split so many keys into parts, and the thread that computes a part must not matter.
///
/// # Panics
/// If a bit differs.
pub fn check_attention_long_contexts(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(33);
    let rounding = make().facts().rounding;
    let (lengths, starts) = ([1300, 1030], [1294, 1020]);
    let shape = HeadShape { heads: 4, kv_heads: 2, head_dim: 64 };
    let plain = plain(shape);
    let sinks = Some(random.normals(shape.heads));
    let slopes = slopes(shape);
    let full = AttentionCase {
        softcap: Some(20.0),
        window: Some(600),
        sinks,
        slopes,
        grouped: true,
        ..plain.clone()
    };
    let settings =
        [plain, full].map(|setting| kv_types(shape).iter().map(move |&kv_type| (kv_type, setting.clone())));
    for (kv_type, setting) in settings.into_iter().flatten().step_by(every(3)) {
        let scene = Scene::new(shape, kv_type, rounding, &lengths, setting.window, &mut random);
        let mut rig = Rig::new(make(), &scene.limits());
        let mut play = |steps: Vec<Vec<Chunk>>| {
            let before = history(&starts);
            let attend_from = before.len();
            scene.play(&mut rig, &setting, &[before, steps].concat(), attend_from)
        };
        let rest = |sequence: usize, start: u32, end: u32| Chunk { sequence, start, rows: end - start };
        let expected = play(vec![(0..2).map(|i| rest(i, starts[i], lengths[i])).collect()]);
        let singly = |i: usize| (starts[i]..lengths[i]).map(move |at| vec![rest(i, at, at + 1)]);
        let alone = play((0..2).flat_map(singly).collect());
        let mut in_step: Vec<Vec<Chunk>> = singly(1).collect();
        in_step.iter_mut().zip(singly(0)).for_each(|(step, other)| step.extend(other));
        let beside = play(in_step);
        for (found, name) in [(alone, "one by one"), (beside, "one by one beside another")] {
            for (sequence, &start) in starts.iter().enumerate() {
                let first = start as usize * shape.q_width();
                let what = format!("attention, {kv_type}, {setting:?}, long sequence {sequence}, {name}");
                same_bits(&what, &found[sequence][first..], &expected[sequence][first..], shape.q_width());
            }
        }
    }
}

/// Settings of attention, plain and mixed.
fn settings(shape: HeadShape, random: &mut Random) -> Vec<AttentionCase> {
    let plain = plain(shape);
    // From a sink that takes nearly everything to one that takes nearly nothing.
    let sinks =
        Some((0..shape.heads).map(|head| 12.0 - 5.0 * head as f32 + random.normal()).collect::<Vec<f32>>());
    let window = |window| AttentionCase { window: Some(window), ..plain.clone() };
    let grouped = |length| AttentionCase { grouped: true, ..window(length) };
    vec![
        plain.clone(),
        window(1),
        grouped(7),
        window(32),
        grouped(100),
        AttentionCase { chunked: true, ..window(40) },
        AttentionCase { chunked: true, ..grouped(24) },
        AttentionCase { softcap: Some(5.0), ..plain.clone() },
        AttentionCase { sinks: sinks.clone(), ..plain.clone() },
        AttentionCase { softcap: Some(30.0), sinks: sinks.clone(), scale: 0.2, ..window(50) },
        AttentionCase { slopes: slopes(shape), ..plain.clone() },
        AttentionCase { softcap: Some(10.0), sinks: sinks.clone(), ..plain.clone() },
        // A sink has no distance, so that the distances themselves matter and not only their differences.
        AttentionCase { slopes: slopes(shape), sinks, ..window(50) },
        AttentionCase { scale: 1.5 * plain.scale, sinks: Some(vec![-1e30; shape.heads]), ..plain },
    ]
}

/// Slope of each head: from a head that sees little but its own token to one that sees nearly all tokens alike.
fn slopes(shape: HeadShape) -> Option<Vec<f32>> {
    Some((0..shape.heads).map(|head| 0.5 / (1 << head) as f32).collect())
}

/// Nothing but the usual scale.
fn plain(shape: HeadShape) -> AttentionCase {
    AttentionCase {
        scale: usual_scale(shape),
        softcap: None,
        window: None,
        chunked: false,
        memory: false,
        mutual: None,
        sinks: None,
        slopes: None,
        grouped: false,
    }
}

/// Cache types that can hold such heads.
fn kv_types(shape: HeadShape) -> &'static [KvType] {
    let whole = shape.head_dim.is_multiple_of(KvType::Q8_0.group());
    if whole { KvType::ALL } else { &[KvType::F16, KvType::Fp8] }
}

fn usual_scale(shape: HeadShape) -> f32 {
    1.0 / (shape.head_dim as f32).sqrt()
}

/// A step of whole sequences in this order.
fn whole(lengths: &[u32], order: &[usize]) -> Vec<Chunk> {
    order.iter().map(|&sequence| Chunk { sequence, start: 0, rows: lengths[sequence] }).collect()
}

/// Steps in which every unfinished sequence gets its next chunk, whose size the function returns.
fn cut(lengths: &[u32], size: &mut dyn FnMut() -> u32) -> Vec<Vec<Chunk>> {
    let mut done = vec![0; lengths.len()];
    let mut steps = Vec::new();
    while done != lengths {
        let mut step = Vec::new();
        for (sequence, start) in done.iter_mut().enumerate().filter(|(i, start)| **start < lengths[*i]) {
            let rows = size().min(lengths[sequence] - *start);
            step.push(Chunk { sequence, start: *start, rows });
            *start += rows;
        }
        steps.push(step);
    }
    steps
}

fn check_scene(
    make: &dyn Fn() -> AnyBackend,
    shape: HeadShape,
    kv_type: KvType,
    setting: &AttentionCase,
    random: &mut Random,
) {
    let lengths: Vec<u32> = WORK.iter().map(|w| w.0).collect();
    let starts: Vec<u32> = WORK.iter().map(|w| w.0 - w.1).collect();
    let rounding = make().facts().rounding;
    let scene = Scene::new(shape, kv_type, rounding, &lengths, setting.window, random);
    let mut steps = history(&starts);
    let attend_from = steps.len();
    let chunk =
        |(sequence, &(context, rows)): (usize, &(u32, u32))| Chunk { sequence, start: context - rows, rows };
    steps.push(WORK.iter().enumerate().map(chunk).collect());

    let found = scene.play(&mut Rig::new(make(), &scene.limits()), setting, &steps, attend_from);
    let mut reference = Rig::new(AnyBackend::new(ReferenceBackend::new()), &scene.limits());
    let expected = scene.play(&mut reference, setting, &steps, attend_from);
    let what = format!("attention, {shape:?}, {kv_type}, {setting:?}");
    let mut errors = CaseErrors::of_operands(what, rounding);
    for (sequence, &(context, rows)) in WORK.iter().enumerate() {
        for row in 0..rows {
            let span = SequenceSpan { row_first: 0, rows, context, table_first: 0 };
            let position = context - rows + row;
            let sigmas = sigmas(&scene, setting, rounding, sequence, span, row);
            let at = position as usize * shape.q_width();
            for (col, sigma) in sigmas.into_iter().enumerate() {
                let (found, expected) = (found[sequence][at + col], expected[sequence][at + col]);
                errors.check(1000 * sequence + row as usize, col, found, expected, sigma, 1e-7);
            }
        }
    }
    errors.finish();
}

/// σ of a row of output, if a device may hold queries and softmax weights in f16, or in the precision of its operands
/// if that is lower (the figures below are then scaled). Rounding the query moves score j by σ_j = `scale 2⁻¹² sqrt(Σ
/// (q k_j)²)`, and rounding weight p_j moves it by 2⁻¹² of itself. A change of ε in score j moves the output by `p_j ε
/// (v_j - out)`, so the output moves by at most `Σ p_j (σ_j + 2⁻¹²) |v_j - out|` even if all scores moved together.
/// Sums in f32 add [`FLOAT`] of `Σ p_j |v_j|`. Queries for keys of Q8_0 may be rounded to 1/127 of the largest of
/// their 32 elements, an error uniform over one step, of variance step²/12.
fn sigmas(
    scene: &Scene,
    setting: &AttentionCase,
    rounding: Rounding,
    sequence: usize,
    span: SequenceSpan,
    row: u32,
) -> Vec<f64> {
    let unit = HALF.max(operand_sigma(rounding));
    let HeadShape { heads, kv_heads, head_dim } = scene.shape;
    let width = scene.shape.qkv_width();
    let qkv = &scene.sequences[sequence].qkv;
    let params = AttentionParams::<()> {
        shape: scene.shape,
        scale: setting.scale,
        softcap: setting.softcap,
        window: setting.window,
        chunked: setting.chunked,
        sinks: None,
        queries_alone: false,
        memory: setting.memory,
        slopes: None,
    };
    let keys = match setting.memory {
        true => {
            let seen = |(rows, _): &(Range<u32>, _)| rows.contains(&row);
            memory_parts(span.rows, span.context).find(seen).map_or(0..0, |(_, keys)| keys)
        }
        false => {
            let sees = setting.sees(span.context - span.rows + row, span.context);
            visible(&params, &Batch::default(), &span, row).start..sees
        }
    };
    let position = (span.context - span.rows + row) as usize;
    let element = |position: usize, head: usize| &qkv[position * width + head * head_dim..][..head_dim];
    let mut out = Vec::with_capacity(heads * head_dim);
    for head in 0..heads {
        let kv_head = head * kv_heads / heads;
        let query = element(position, head);
        let mut scores = Vec::new();
        let mut moves = Vec::new();
        for key in keys.clone() {
            let key = element(key as usize, heads + kv_head);
            scores.push(formulas::score(query, key, setting.scale, setting.softcap));
            let squares: f32 = query.iter().zip(key).map(|(q, k)| (q * k).powi(2)).sum();
            let coded = rounding_variance(scene.kv_type, query, key);
            let moved = (unit * unit * f64::from(squares) + coded).sqrt();
            moves.push(f64::from(setting.scale) * moved + unit);
        }
        if let Some(slopes) = &setting.slopes {
            formulas::lose_by_distance(&mut scores, slopes[head], position as u32, keys.clone());
        }
        let sink = setting.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
        let largest = scores.iter().copied().fold(sink, f64::max);
        let total = (sink - largest).exp() + scores.iter().map(|s| (s - largest).exp()).sum::<f64>();
        let value = |key: u32| element(key as usize, heads + kv_heads + kv_head);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp() / total).collect();
        let mut mean = vec![0.0; head_dim];
        for (key, p) in keys.clone().zip(&weights) {
            mean.iter_mut().zip(value(key)).for_each(|(mean, &v)| *mean += p * f64::from(v));
        }
        let mut sigma = vec![0.0; head_dim];
        for ((key, p), moved) in keys.clone().zip(&weights).zip(&moves) {
            for ((sigma, &v), mean) in sigma.iter_mut().zip(value(key)).zip(&mean) {
                *sigma += p * (moved * (f64::from(v) - mean).abs() + FLOAT * f64::from(v).abs());
            }
        }
        out.extend(sigma);
    }
    out
}

/// Variance of a dot product from rounding the query, as the cache type allows.
fn rounding_variance(kv_type: KvType, query: &[f32], key: &[f32]) -> f64 {
    match kv_type {
        KvType::F16 | KvType::Fp8 => 0.0,
        KvType::Q8_0 => {
            let groups = query.chunks(kv_type.group()).zip(key.chunks(kv_type.group()));
            let variance = |(query, key): (&[f32], &[f32])| {
                let step = f64::from(query.iter().fold(0.0f32, |largest, q| largest.max(q.abs()))) / 127.0;
                step * step / 12.0 * key.iter().map(|&k| f64::from(k).powi(2)).sum::<f64>()
            };
            groups.map(variance).sum()
        }
    }
}
