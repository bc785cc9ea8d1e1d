//! Tests of attention over long contexts: blocks that share a row's keys give the bits of a block with all of them,
//! whatever else is in the batch, and the right numbers.

use half::f16;
use hanzo_engine_cuda_emulator::EmulatedDevice;
use hanzo_engine_kernels_cuda::{CudaBackend, CudaVector, Device, Kernel};
use hanzo_engine_ops::{
    AttentionParams, BLOCK_TOKENS, Backend, Batch, BufferRole, DeviceMemory, HeadShape, KvLayout, KvSpec,
    KvType, QkvParams, RowSource, StepLimits,
};

use crate::driver::card;
use crate::replay::{limits, numbers};
use crate::typed::TypedOps;

/// Rows of the steps that fill the cache, and of the largest step with attention.
const ROWS: usize = 96;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    shape: HeadShape,
    kv_type: KvType,
    window: Option<u32>,
    chunked: bool,
    softcap: Option<f32>,
    sinks: bool,
    slopes: bool,
}

pub(crate) const fn plain(heads: usize, kv_heads: usize, head_dim: usize, kv_type: KvType) -> Setting {
    let shape = HeadShape { heads, kv_heads, head_dim };
    Setting { shape, kv_type, window: None, chunked: false, softcap: None, sinks: false, slopes: false }
}

/// Settings with groups of two, three, one and five heads, and windows that begin within a span. The last width is no
/// whole number of copies, for the kernels by rows.
const SETTINGS: [Setting; 5] = [
    plain(4, 2, 64, KvType::F16),
    Setting { window: Some(300), sinks: true, ..plain(3, 1, 32, KvType::Q8_0) },
    Setting { window: Some(200), chunked: true, softcap: Some(3.0), ..plain(2, 2, 96, KvType::F16) },
    Setting { window: Some(257), slopes: true, sinks: true, ..plain(5, 1, 64, KvType::F16) },
    Setting { window: Some(300), slopes: true, sinks: true, ..plain(3, 1, 36, KvType::F16) },
];
/// Contexts below, at and above a span, and of several spans.
const CONTEXTS: [usize; 5] = [1, 128, 129, 300, 700];
const SCALE: f32 = 0.4;

/// Settings with groups of one, two, four, seven, eight and of more heads than a tile has queries, in all cache types.
const RUN_SETTINGS: [Setting; 8] = [
    plain(2, 2, 64, KvType::F16),
    Setting { window: Some(150), sinks: true, ..plain(4, 2, 64, KvType::Q8_0) },
    Setting { window: Some(200), sinks: true, ..plain(4, 2, 64, KvType::Fp8) },
    Setting { window: Some(100), chunked: true, softcap: Some(3.0), ..plain(4, 1, 96, KvType::F16) },
    Setting { window: Some(129), slopes: true, sinks: true, ..plain(7, 1, 32, KvType::Q8_0) },
    Setting { slopes: true, ..plain(8, 1, 80, KvType::F16) },
    Setting { window: Some(20), ..plain(20, 1, 32, KvType::F16) },
    plain(2, 1, 256, KvType::F16),
];
/// Settings with groups of one, two, four, eight and of more heads, narrow and wide, for kernels that support only an
/// F16 cache.
const HALVES_SETTINGS: [Setting; 7] = [
    Setting { sinks: true, ..plain(2, 2, 64, KvType::F16) },
    Setting { window: Some(150), ..plain(4, 2, 128, KvType::F16) },
    Setting { window: Some(100), chunked: true, softcap: Some(3.0), ..plain(4, 1, 96, KvType::F16) },
    Setting { window: Some(129), slopes: true, sinks: true, ..plain(8, 1, 128, KvType::F16) },
    Setting { slopes: true, ..plain(7, 1, 80, KvType::F16) },
    Setting { window: Some(20), ..plain(20, 1, 32, KvType::F16) },
    Setting { softcap: Some(2.0), ..plain(130, 1, 64, KvType::F16) },
];
/// Context of each sequence, and its number of rows in the step.
const RUNS: [(usize, usize); 7] = [(300, 33), (129, 1), (200, 17), (64, 2), (140, 16), (260, 15), (17, 1)];

/// Sequences whose keys and values are in the cache.
pub(crate) struct Bench<D: Device> {
    backend: CudaBackend<D>,
    setting: Setting,
    contexts: Vec<usize>,
    kv: <CudaBackend<D> as DeviceMemory>::Kv,
    qkv: <CudaBackend<D> as DeviceMemory>::Buffer,
    out: <CudaBackend<D> as DeviceMemory>::Buffer,
    of_heads: [Option<CudaVector<D>>; 2],
    planned: Vec<Kernel>, // by the last step
}

/// Projection of a token.
fn token(shape: HeadShape, sequence: usize, position: usize) -> Vec<f32> {
    numbers(7 + 1000 * sequence + position, shape.qkv_width())
}

fn sink(head: usize) -> f32 {
    2.0 - head as f32
}

fn slope(head: usize) -> f32 {
    0.02 * 0.5_f32.powi(head as i32)
}

impl<D: Device> Bench<D> {
    pub(crate) fn new(mut backend: CudaBackend<D>, setting: Setting, contexts: &[usize]) -> Self {
        let HeadShape { heads, kv_heads, head_dim } = setting.shape;
        let context = contexts.iter().copied().max().unwrap_or(1);
        let sequences = contexts.len();
        let own = StepLimits {
            rows: ROWS,
            sequences,
            context,
            width: setting.shape.qkv_width(),
            heads: setting.shape,
            ..limits()
        };
        backend.reserve(&own).expect("memory");
        let layers = vec![KvLayout::Heads { kv_heads, head_dim, window: None }];
        let blocks = sequences * context.div_ceil(BLOCK_TOKENS);
        let spec = KvSpec { layers, blocks, kv_type: setting.kv_type, ..KvSpec::default() };
        let kv = backend.kv(&spec).expect("memory");
        let qkv = backend.buffer(BufferRole::Operand, ROWS, setting.shape.qkv_width()).expect("memory");
        let out = backend.buffer(BufferRole::Operand, ROWS, setting.shape.q_width()).expect("memory");
        let of = |has: bool, number: fn(usize) -> f32| {
            let numbers: Vec<f32> = (0..heads).map(number).collect();
            has.then(|| backend.vector(&numbers).expect("memory"))
        };
        let of_heads = [of(setting.sinks, sink), of(setting.slopes, slope)];
        let contexts = contexts.to_vec();
        let planned = Vec::new();
        let mut bench = Self { backend, setting, contexts, kv, qkv, out, of_heads, planned };
        for sequence in 0..sequences {
            for first in (0..bench.contexts[sequence]).step_by(ROWS) {
                let end = bench.contexts[sequence].min(first + ROWS);
                bench.step(&[(sequence, end - first, end)], false);
            }
        }
        bench
    }

    /// Attention of a step with the last rows of sequences up to a context, given as (sequence, rows, context).
    pub(crate) fn step(&mut self, parts: &[(usize, usize, usize)], attends: bool) -> Vec<f32> {
        let shape = self.setting.shape;
        let each = self.contexts.iter().max().unwrap_or(&1).div_ceil(BLOCK_TOKENS);
        let (mut batch, mut given) = (Batch::default(), Vec::new());
        for &(sequence, rows, context) in parts {
            batch.sources.extend((0..rows).map(|row| RowSource::Token(row as u32)));
            // The first block of a sequence is the last in the cache.
            batch.push_sequence(rows, context, |_, at| (sequence * each + each - 1 - at) as u32);
            (context - rows..context).for_each(|position| given.extend(token(shape, sequence, position)));
        }
        self.backend.write_rows(&mut self.qkv, 0, &given).expect("a copy");
        self.backend.begin(&batch).expect("a step");
        self.backend.rope_to_cache(&mut self.qkv, QkvParams::plain(shape), &mut self.kv, 0);
        let [sinks, slopes] = &self.of_heads;
        let params = AttentionParams {
            shape,
            scale: SCALE,
            softcap: self.setting.softcap,
            window: self.setting.window,
            chunked: self.setting.chunked,
            sinks: sinks.as_ref(),
            slopes: slopes.as_ref(),
            queries_alone: false,
            memory: false,
        };
        if attends {
            self.backend.attention(&self.qkv, params, &mut self.kv, 0, &mut self.out);
        }
        self.planned = self.backend.planned();
        self.backend.end().expect("a step");
        let mut out = vec![0.0; if attends { batch.rows() * shape.q_width() } else { 0 }];
        self.backend.read_rows(&self.out, 0, &mut out).expect("a copy");
        out
    }

    pub(crate) fn has_planned(&self, kernel: Kernel) -> bool {
        self.planned.contains(&kernel)
    }

    /// Attention of the last token of some sequences.
    fn last_of(&mut self, sequences: &[usize]) -> Vec<f32> {
        let parts: Vec<_> =
            sequences.iter().map(|&sequence| (sequence, 1, self.contexts[sequence])).collect();
        self.step(&parts, true)
    }
}

/// Expected result for the last token of a sequence, with a cache in F16.
fn expected(setting: &Setting, sequence: usize, context: usize) -> Vec<f64> {
    let HeadShape { heads, kv_heads, head_dim } = setting.shape;
    let position = context - 1;
    let first = match setting.window.map(|window| window as usize) {
        None => 0,
        Some(window) if setting.chunked => position / window * window,
        Some(window) => context.saturating_sub(window),
    };
    let kept = |value: f32| f64::from(f16::from_f32(value).to_f32());
    let tokens: Vec<Vec<f32>> =
        (first..context).map(|position| token(setting.shape, sequence, position)).collect();
    let mut out = Vec::new();
    for head in 0..heads {
        let query = &tokens[position - first][head * head_dim..][..head_dim];
        let key_at = (heads + head * kv_heads / heads) * head_dim;
        let value_at = key_at + kv_heads * head_dim;
        let mut scores: Vec<f64> = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            let pairs = query.iter().zip(&token[key_at..]);
            let mut score = f64::from(SCALE) * pairs.map(|(&q, &k)| f64::from(q) * kept(k)).sum::<f64>();
            if let Some(cap) = setting.softcap.map(f64::from) {
                score = cap * (score / cap).tanh();
            }
            let distance = (position - first - at) as f64;
            scores.push(score - if setting.slopes { f64::from(slope(head)) * distance } else { 0.0 });
        }
        let sink = if setting.sinks { f64::from(sink(head)).exp() } else { 0.0 };
        let total: f64 = sink + scores.iter().map(|score| score.exp()).sum::<f64>();
        out.extend((0..head_dim).map(|i| {
            let value = |(token, score): (&Vec<f32>, &f64)| score.exp() / total * kept(token[value_at + i]);
            tokens.iter().zip(&scores).map(value).sum::<f64>()
        }));
    }
    out
}

pub(crate) fn same_bits(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let differs =
        found.iter().zip(expected).position(|(found, expected)| found.to_bits() != expected.to_bits());
    if let Some(at) = differs {
        panic!("{what}: {} has not the bits of {} at {at}", found[at], expected[at]);
    }
}

/// Checks the last tokens of sequences: together, alone and in a chunk, with and without blocks that share rows.
pub(crate) fn check_shared_rows<D: Device>(make: &dyn Fn() -> CudaBackend<D>) {
    for setting in SETTINGS {
        let width = setting.shape.q_width();
        let mut sharing = Bench::new(make(), setting, &CONTEXTS);
        let mut whole = Bench::new(make().without_shared_rows(), setting, &CONTEXTS);
        let together = sharing.last_of(&[0, 1, 2, 3, 4]);
        if setting.kv_type == KvType::F16 {
            for (sequence, context) in CONTEXTS.into_iter().enumerate() {
                check_numbers(&setting, (sequence, context), &together[sequence * width..][..width]);
            }
        }
        let what = format!("attention of {setting:?}");
        same_bits(&format!("{what}, rows that are not shared"), &whole.last_of(&[0, 1, 2, 3, 4]), &together);
        for (sequence, context) in CONTEXTS.into_iter().enumerate() {
            let own = &together[sequence * width..][..width];
            same_bits(&format!("{what}, {context} keys, alone"), &sharing.last_of(&[sequence]), own);
            let rows = context.min(40);
            let chunk = sharing.step(&[(sequence, rows, context)], true);
            same_bits(&format!("{what}, {context} keys, in a chunk"), &chunk[(rows - 1) * width..], own);
        }
    }
}

/// Checks consecutive rows of a sequence, with others of theirs and of other sequences: each has the bits that it has
/// alone, whichever kernel computes it, and the right numbers.
pub(crate) fn check_runs<D: Device>(make: &dyn Fn() -> CudaBackend<D>) {
    let contexts = RUNS.map(|(context, _)| context);
    let parts: Vec<_> =
        (0..RUNS.len()).map(|sequence| (sequence, RUNS[sequence].1, contexts[sequence])).collect();
    for setting in RUN_SETTINGS {
        let width = setting.shape.q_width();
        let mut few = Bench::new(make(), setting, &contexts);
        let mut many = Bench::new(make().with_many_queries_from(1), setting, &contexts);
        let what = format!("attention of {setting:?}");
        let together = few.step(&parts, true);
        same_bits(&format!("{what}, as of many"), &many.step(&parts, true), &together);
        let alone = many.step(&parts[..1], true);
        same_bits(&format!("{what}, as of many, alone"), &alone, &together[..alone.len()]);
        let rows = parts.iter().flat_map(|&(sequence, rows, context)| {
            (context + 1 - rows..=context).map(move |context| (sequence, context))
        });
        for (row, (sequence, context)) in rows.enumerate() {
            let own = &together[row * width..][..width];
            if setting.kv_type == KvType::F16 {
                check_numbers(&setting, (sequence, context), own);
            }
            if row % 3 == 0 || context == contexts[sequence] {
                let alone = few.step(&[(sequence, 1, context)], true);
                same_bits(&format!("{what}, {context} keys, alone"), &alone, own);
            }
        }
    }
}

/// Checks prompts and tokens of sequences in one step: a prompt that continues after cached keys, one from its first
/// token on, and few rows. Two sets of kernels give the same bits; `narrow` must run for heads up to 64 wide, and
/// `wide` for wider ones.
pub(crate) fn check_same_runs<D: Device>(
    [one, other]: [&dyn Fn() -> CudaBackend<D>; 2],
    [narrow, wide]: [Kernel; 2],
) {
    let contexts = RUNS.map(|(context, _)| context);
    let all: Vec<_> =
        (0..RUNS.len()).map(|sequence| (sequence, RUNS[sequence].1, contexts[sequence])).collect();
    let steps = [&all[..], &all[..1], &[(5, ROWS, 260)], &[(0, ROWS, ROWS)], &[(0, 1, 300)], &[(4, 3, 140)]];
    for setting in HALVES_SETTINGS {
        let [mut one, mut other] = [one, other].map(|make| Bench::new(make(), setting, &contexts));
        for parts in steps {
            let found = one.step(parts, true);
            let kernel = if setting.shape.head_dim <= 64 { narrow } else { wide };
            assert!(one.has_planned(kernel), "{setting:?}, {parts:?}: {:?}", one.planned);
            let expected = other.step(parts, true);
            assert!(!other.has_planned(kernel));
            same_bits(&format!("attention of {setting:?}, {parts:?}"), &found, &expected);
        }
    }
}

/// Runs attention kernels for observers of their behaviour: tiles of few and of many queries, and heads that suit no
/// tiles.
pub(crate) fn run_some_attention<D: Device>(make: &dyn Fn() -> CudaBackend<D>) {
    let contexts = [3, 130];
    Bench::new(make(), SETTINGS[0], &contexts).last_of(&[0, 1]);
    Bench::new(make().with_many_queries_from(1), SETTINGS[0], &contexts).step(&[(1, 17, 130)], true);
    Bench::new(make(), SETTINGS[4], &contexts).last_of(&[0, 1]);
}

fn check_numbers(setting: &Setting, (sequence, context): (usize, usize), found: &[f32]) {
    for (at, (&found, right)) in found.iter().zip(expected(setting, sequence, context)).enumerate() {
        assert!(
            (f64::from(found) - right).abs() < 1e-5,
            "attention of {setting:?}, {context} keys: {found} for {right} at {at}"
        );
    }
}

/// Checks more rows than there is room for partial results at once.
pub(crate) fn check_shared_rows_by_turns<D: Device>(make: &dyn Fn() -> CudaBackend<D>) {
    // With 64 heads of 256 elements, a row of 16 spans has partial results of 1 MB, and there is room for 16 MiB.
    let mut contexts = vec![20; 16];
    (contexts[0], contexts[15]) = (1030, 260);
    let all: Vec<usize> = (0..16).collect();
    let setting = plain(64, 1, 256, KvType::F16);
    let shared = Bench::new(make(), setting, &contexts).last_of(&all);
    let whole = Bench::new(make().without_shared_rows(), setting, &contexts).last_of(&all);
    same_bits("rows that take turns", &shared, &whole);
}

#[test]
fn shared_rows_have_the_bits_of_whole_ones() {
    let card = card();
    check_shared_rows(&|| CudaBackend::new(card.clone()));
}

#[test]
fn rows_take_turns_where_their_parts_are_large() {
    let card = card();
    check_shared_rows_by_turns(&|| CudaBackend::new(card.clone()));
}

#[test]
fn rows_of_a_run_have_the_bits_of_each_alone() {
    let card = card();
    check_runs(&|| CudaBackend::new(card.clone()));
}

/// Whichever warp of a block runs ahead.
#[test]
fn the_order_of_warps_does_not_matter_to_attention() {
    let device = EmulatedDevice::new().scheduled_by(5);
    check_shared_rows(&|| CudaBackend::new(device.clone()));
    check_runs(&|| CudaBackend::new(device.clone()));
}
