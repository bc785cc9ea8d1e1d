//! Checks of sampling, and of rows that come from draws or from the host.

use super::bounds::same_bits;
use super::extent::every;
use super::random::Random;
use super::rig::{Rig, ok, rows_batch};
use super::weights::Weights;
use crate::sampling::{Adjustment, Change, SampleSpec, SampleSpecs, SampledToken, Shape};
use crate::{AnyBackend, DType, HeadOperands, RowSource, reference};

const ROWS: usize = 12;
const COLS: usize = 64;

/// A head in which every third token equals the one before.
fn head(vocab: usize, random: &mut Random) -> Weights {
    let mut floats = random.normals(vocab * COLS);
    for token in (1..vocab).filter(|token| token % 3 == 0) {
        floats.copy_within((token - 1) * COLS..token * COLS, token * COLS);
    }
    Weights::of(DType::F32, vocab, COLS, &floats)
}

/// Settings of a row; each is neutral half of the time.
fn spec(vocab: usize, specs: &mut SampleSpecs, random: &mut Random) {
    let first = specs.adjustments.len() as u32;
    for _ in 0..random.below(2) * random.below(2 * vocab.min(40)) {
        // Some tokens more than once, some outside the vocabulary.
        let token = random.below(vocab.min(30) + 2) as u32;
        let change = match random.below(3) {
            0 => Change::Add(8.0 * random.normal()),
            1 => Change::Penalize(0.5 + 2.0 * random.uniform()),
            _ => Change::Add(if random.below(4) == 0 { f32::NEG_INFINITY } else { -1.5 }),
        };
        specs.adjustments.push(Adjustment { token, change });
    }
    let mut or = |neutral: f32, value: f32| if random.below(2) == 0 { neutral } else { value };
    // At a temperature of a hundred all tokens weigh nearly the same, so the remaining set decides the draw.
    let temperature = or(0.0, 1.0) * or(1.0, 0.4) * or(1.0, 4.0) * or(1.0, 100.0);
    let (top_p, min_p) = (or(1.0, 0.8) * or(1.0, 0.5), or(0.0, 0.05));
    let top_k = [0, 0, 1, 5, 40, 300, 300, vocab as u32, u32::MAX][random.below(9)];
    let logprobs = [None, Some(0), Some(3), Some(vocab as u32 + 1)][random.below(4)];
    let mask = (random.below(3) == 0).then(|| masked(vocab, specs, random));
    let seen_first = specs.seen.len() as u32;
    if random.below(2) == 0 {
        // Fewer words than the vocabulary has, or more.
        let words = random.below(vocab.div_ceil(32) + 2);
        specs.seen.extend((0..words).map(|_| random.below(1 << 32) as u32 & random.below(1 << 32) as u32));
    }
    let repetition = [1.0, 1.3, 0.7, 5.0][random.below(4)];
    let uniform = [0.0, 1.0 - f64::EPSILON / 2.0, random.uniform().into(), random.uniform().into()];
    let shape = shape(random);
    // Settings that a device may draw by itself.
    let plain = random.below(2) == 0;
    specs.rows.push(SampleSpec {
        temperature,
        top_k,
        top_p,
        min_p,
        uniform: uniform[random.below(4)],
        shape: if plain { Shape::default() } else { shape },
        logprobs: logprobs.filter(|_| !plain),
        given: if !plain && random.below(5) == 0 { Some(random.below(vocab) as u32) } else { None },
        repetition,
        seen: seen_first..specs.seen.len() as u32,
        adjustments: first..specs.adjustments.len() as u32,
        mask,
    });
}

/// A mask that allows anything between nothing and everything; it may be too short for the last tokens.
fn masked(vocab: usize, specs: &mut SampleSpecs, random: &mut Random) -> u32 {
    specs.mask_words = vocab.div_ceil(32).max(2) - 1;
    let index = specs.masks.len() / specs.mask_words;
    for _ in 0..specs.mask_words {
        let word = random.below(1 << 32) as u32;
        specs.masks.push([0, !0, word, word & random.below(1 << 32) as u32][random.below(4)]);
    }
    index as u32
}

/// Half of all shapes are neutral, and half of the settings of the others.
fn shape(random: &mut Random) -> Shape {
    let shaped = random.below(2) == 0;
    let mut of = |neutral: f32, values: [f32; 3]| {
        if shaped && random.below(2) == 0 { values[random.below(3)] } else { neutral }
    };
    Shape {
        top_n_sigma: of(0.0, [0.5, 1.0, 3.0]),
        temperature_range: of(0.0, [0.3, 1.0, 2.0]),
        temperature_exponent: of(1.0, [0.0, 0.5, 3.0]),
        typical_p: of(1.0, [0.2, 0.6, 0.95]),
        xtc_threshold: of(1.0, [0.0, 0.05, 0.3]),
        probability_min: of(0.0, [0.001, 0.05, 0.4]),
    }
}

/// Runs one step that draws.
fn draw(
    rig: &mut Rig,
    head: &crate::Matrix,
    x: &crate::Buffer,
    wanted: &[u32],
    specs: &SampleSpecs,
    vocab: usize,
) -> Vec<Option<SampledToken>> {
    let mut batch = rows_batch(&[0; ROWS]);
    batch.logit_rows = wanted.to_vec();
    let mut room = vec![0.0; wanted.len() * vocab];
    let mut drawn = vec![None; 99];
    ok("begin", rig.backend.begin(&batch));
    ok("sample", rig.backend.sample(&HeadOperands::of(head), x.id(), specs, &mut room));
    let ticket = ok("submit", rig.backend.submit());
    ok("wait", rig.backend.wait(ticket, &mut drawn));
    drawn
}

/// Checks `sample`: the tokens of the formula on the device's own logits, for every setting, and none for rows that
/// are not numbers.
///
/// # Panics
/// If a token differs, or a log probability by more than 1e-5.
pub fn check_sample(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(77);
    for vocab in [1, 7, 333, 4100] {
        let mut rig = Rig::for_rows(make(), ROWS, COLS, vocab);
        let head = rig.matrix(&[head(vocab, &mut random)]);
        for round in (0..40).step_by(every(4)) {
            let factor = [0.05, 0.3, 1.0][round % 3];
            let mut x: Vec<f32> = random.normals(ROWS * COLS).iter().map(|v| v * factor).collect();
            if round % 5 == 4 {
                x[3 * COLS + 1] = f32::NAN;
            }
            let x = rig.upload(&x, COLS);
            let wanted: Vec<u32> = (0..ROWS as u32).filter(|_| random.below(4) > 0).collect();
            let mut logits = vec![0.0; wanted.len() * vocab];
            let mut batch = rows_batch(&[0; ROWS]);
            batch.logit_rows = wanted.clone();
            rig.step(&batch, |rig| {
                ok("logits", rig.backend.logits(&HeadOperands::of(&head), x.id(), &mut logits))
            });
            let softcap = (round % 4 == 1).then_some(0.8);
            let bias = (round % 4 < 2 && round % 3 == 0).then(|| random.normals(vocab).into());
            let mut specs = SampleSpecs { softcap, bias, ..SampleSpecs::default() };
            wanted.iter().for_each(|_| spec(vocab, &mut specs, &mut random));
            let drawn = draw(&mut rig, &head, &x, &wanted, &specs, vocab);
            assert_eq!(drawn.len(), wanted.len(), "a draw for each row that was asked for");
            for (row, found) in drawn.iter().enumerate() {
                let (spec, edits) = (&specs.rows[row], specs.edits_of(row));
                let expected = reference::draw(&logits[row * vocab..][..vocab], spec, edits);
                let what = format!("sample of a vocabulary of {vocab}, {spec:?}, {:?}", edits.adjustments);
                compare(&what, found.as_ref(), expected.as_ref());
            }
        }
    }
}

fn compare(what: &str, found: Option<&SampledToken>, expected: Option<&SampledToken>) {
    let (Some(found), Some(expected)) = (found, expected) else {
        assert_eq!(found, expected, "{what}");
        return;
    };
    assert_eq!(found.token, expected.token, "{what}");
    assert_eq!(found.probability, expected.probability, "{what}: its probability");
    let (Some(found), Some(expected)) = (&found.logprob, &expected.logprob) else {
        assert_eq!(found.logprob, expected.logprob, "{what}: log probabilities");
        return;
    };
    let listed = |top: &[(u32, f32)]| top.iter().map(|&(token, _)| token).collect::<Vec<u32>>();
    assert_eq!(
        (found.token, listed(&found.top)),
        (expected.token, listed(&expected.top)),
        "{what}: log probabilities"
    );
    let values = |logprob: &crate::TokenLogprob| {
        let top = logprob.top.iter().map(|&(_, value)| value);
        top.chain([logprob.logprob]).collect::<Vec<f32>>()
    };
    for (found, expected) in values(found).into_iter().zip(values(expected)) {
        let same = found == expected || (found - expected).abs() <= 1e-5 * expected.abs().max(1.0);
        assert!(same, "{what}: log probabilities: {found}, not {expected}");
    }
}

/// Checks that rows from the last step's draws are the rows of those tokens, to the bit, and that rows written by the
/// host stay as they are.
///
/// # Panics
/// If a bit differs.
pub fn check_row_sources(make: &dyn Fn() -> AnyBackend) {
    let vocab = 200;
    let mut random = Random::new(78);
    let mut rig = Rig::for_rows(make(), ROWS, COLS, vocab);
    let table = rig.matrix(&[head(vocab, &mut random)]);
    for round in 0..6 {
        let mut x = random.normals(ROWS * COLS);
        if round % 2 == 1 {
            x[5 * COLS] = f32::NAN;
        }
        let x = rig.upload(&x, COLS);
        let mut specs = SampleSpecs::default();
        let wanted = [1, 2, 5, 8, 11];
        wanted.iter().for_each(|_| spec(vocab, &mut specs, &mut random));
        specs.rows.iter_mut().for_each(|spec| spec.adjustments = 0..0);
        let drawn = draw(&mut rig, &table, &x, &wanted, &specs, vocab);
        let token = |index: usize| drawn[index].as_ref().map_or(0, |sampled| sampled.token);
        let written: Vec<f32> = random.normals(2 * COLS);
        let mut embed = |sources: [RowSource; ROWS]| {
            let mut batch = rows_batch(&[0; ROWS]);
            batch.sources = sources.to_vec();
            let mut out = rig.blank_sum(ROWS, COLS);
            rig.step(&batch, |rig| {
                ok("write_rows", rig.backend.write_rows(&mut out, 6, &written));
                rig.backend.embed(&table, 0.5, &mut out);
            });
            rig.download("rows of every source", &out, ROWS, COLS)
        };
        let mut sources = std::array::from_fn(|row| RowSource::Token((row * 13) as u32));
        (sources[6], sources[7]) = (RowSource::Embedding, RowSource::Embedding);
        let order = random.permutation(wanted.len());
        let places = [0, 3, 8, 11];
        for (&place, &index) in places.iter().zip(&order) {
            sources[place] = RowSource::Sampled(index as u32);
        }
        let found = embed(sources);
        for (&place, &index) in places.iter().zip(&order) {
            sources[place] = RowSource::Token(token(index));
        }
        let mut expected = embed(sources.map(|source| match source {
            RowSource::Embedding => RowSource::Token(0),
            other => other,
        }));
        expected[6 * COLS..8 * COLS].copy_from_slice(&written);
        same_bits("rows of every source", &found, &expected, COLS);
    }
}

/// Checks running ahead, on devices that do: two steps in flight, the second from the first's draws, and a third that
/// draws nothing, give the results of sequential steps. Each is waited for after the next is submitted.
///
/// # Panics
/// If a draw differs.
pub fn check_running_ahead(make: &dyn Fn() -> AnyBackend) {
    if make().facts().lookahead == 0 {
        return;
    }
    let vocab = 200;
    let mut random = Random::new(79);
    for _ in 0..6 {
        let (table, x) = (head(vocab, &mut random), random.normals(ROWS * COLS));
        let mut specs = SampleSpecs::default();
        (0..ROWS).for_each(|_| spec(vocab, &mut specs, &mut random));
        specs.rows.iter_mut().for_each(|spec| spec.adjustments = 0..0);
        let [ahead, alone] = [true, false].map(|ahead| three_steps(make(), ahead, &table, &x, &specs));
        assert!(ahead == alone, "two steps under way: {ahead:?} is not {alone:?}");
    }
}

/// Draws of three steps, with two of them in flight or one.
fn three_steps(
    backend: AnyBackend,
    ahead: bool,
    table: &Weights,
    x: &[f32],
    specs: &SampleSpecs,
) -> [Vec<Option<SampledToken>>; 3] {
    let vocab = table.shape.rows;
    let mut rig = Rig::for_rows(backend, ROWS, COLS, vocab);
    let (table, x) = (rig.matrix(std::slice::from_ref(table)), rig.upload(x, COLS));
    let mut room = vec![0.0; ROWS * vocab];
    let mut drawn = [(); 3].map(|()| Vec::new());
    let mut batch = rows_batch(&[0; ROWS]);
    batch.logit_rows = (0..ROWS as u32).collect();
    ok("begin", rig.backend.begin(&batch));
    ok("sample", rig.backend.sample(&HeadOperands::of(&table), x.id(), specs, &mut room));
    let mut first = Some(ok("submit", rig.backend.submit()));
    if !ahead && let Some(ticket) = first.take() {
        ok("wait", rig.backend.wait(ticket, &mut drawn[0]));
    }

    let mut rows = rig.blank_sum(ROWS, COLS);
    let token = |row: usize| drawn[0][row].as_ref().map_or(0, |sampled| sampled.token);
    let source = |row| if ahead { RowSource::Sampled(row as u32) } else { RowSource::Token(token(row)) };
    batch.sources = (0..ROWS).rev().map(source).collect();
    ok("begin", rig.backend.begin(&batch));
    rig.backend.embed(&table, 0.5, &mut rows);
    ok("sample", rig.backend.sample(&HeadOperands::of(&table), rows.id(), specs, &mut room));
    let mut second = Some(ok("submit", rig.backend.submit()));
    if let Some(ticket) = first {
        ok("wait", rig.backend.wait(ticket, &mut drawn[0]));
    }
    if !ahead && let Some(ticket) = second.take() {
        ok("wait", rig.backend.wait(ticket, &mut drawn[1]));
    }

    batch.sources = vec![RowSource::Token(1); ROWS];
    batch.logit_rows.clear();
    ok("begin", rig.backend.begin(&batch));
    rig.backend.embed(&table, 0.5, &mut rows);
    let third = ok("submit", rig.backend.submit());
    if let Some(ticket) = second {
        ok("wait", rig.backend.wait(ticket, &mut drawn[1]));
    }
    ok("wait", rig.backend.wait(third, &mut drawn[2]));
    drawn
}
