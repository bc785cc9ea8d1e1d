//! Ops that go over rows of activations once: norms, and what stands between the projections and the cache.

use criterion::{BenchmarkId, Criterion, Throughput};
use hanzo_engine_ops::{
    BLOCK_TOKENS, BufferRole, KvLayout, KvSpec, KvType, LayerNormParams, QkvParams, Rope, RopeKind,
};

use crate::bed;

const COLS: usize = 1024;
/// Those of all-MiniLM-L6-v2.
const ENCODER_COLS: usize = 384;
const ROWS: [usize; 2] = [1, bed::PREFILL];

/// In bytes of activations read.
pub(crate) fn norms(criterion: &mut Criterion) {
    let mut backend = bed::backend();
    let x = bed::filled(&mut backend, bed::PREFILL, COLS);
    let mut residual = bed::filled(&mut backend, bed::PREFILL, COLS);
    let mut out = backend.buffer(BufferRole::Operand, bed::PREFILL, COLS).expect("memory for activations");
    let weight = backend.vector(&bed::numbers(COLS)).expect("memory for a vector");
    let mut group = criterion.benchmark_group("norm/rms");
    for rows in ROWS {
        group.throughput(Throughput::Bytes((rows * COLS * size_of::<f32>()) as u64));
        group.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
            bed::step(&mut backend, rows, rows, |backend| {
                bencher.iter(|| backend.rms_norm(&x, &weight, 1e-6, &mut out));
            });
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("norm/add_rms");
    for rows in ROWS {
        group.throughput(Throughput::Bytes((2 * rows * COLS * size_of::<f32>()) as u64));
        group.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
            bed::step(&mut backend, rows, rows, |backend| {
                bencher.iter(|| backend.add_rms_norm(&mut residual, &x, &weight, 1e-6, &mut out));
            });
        });
    }
    group.finish();
}

/// In bytes of activations read.
pub(crate) fn layer_norms(criterion: &mut Criterion) {
    let mut backend = bed::backend();
    let x = bed::filled(&mut backend, bed::PREFILL, ENCODER_COLS);
    let mut residual = bed::filled(&mut backend, bed::PREFILL, ENCODER_COLS);
    let mut out =
        backend.buffer(BufferRole::Operand, bed::PREFILL, ENCODER_COLS).expect("memory for activations");
    let weight = backend.vector(&bed::numbers(ENCODER_COLS)).expect("memory for a vector");
    let params = LayerNormParams { weight: &weight, bias: Some(&weight), eps: 1e-12 };
    let bytes = (bed::PREFILL * ENCODER_COLS * size_of::<f32>()) as u64;
    let mut group = criterion.benchmark_group("norm/layer");
    group.throughput(Throughput::Bytes(bytes));
    group.bench_function(BenchmarkId::from_parameter(bed::PREFILL), |bencher| {
        bed::step(&mut backend, bed::PREFILL, bed::PREFILL, |backend| {
            bencher.iter(|| backend.layer_norm(&x, &params, &mut out));
        });
    });
    group.finish();
    let mut group = criterion.benchmark_group("norm/add_layer");
    group.throughput(Throughput::Bytes(2 * bytes));
    group.bench_function(BenchmarkId::from_parameter(bed::PREFILL), |bencher| {
        bed::step(&mut backend, bed::PREFILL, bed::PREFILL, |backend| {
            bencher.iter(|| backend.add_layer_norm(&mut residual, &x, &params, &mut out));
        });
    });
    group.finish();
}

/// Norm and rotation of queries and keys, and keys and values into the cache, in bytes of activations read.
pub(crate) fn rope(criterion: &mut Criterion) {
    let mut backend = bed::backend();
    let head_dim = bed::HEADS.head_dim;
    let spec = KvSpec {
        layers: vec![KvLayout::Heads { kv_heads: bed::HEADS.kv_heads, head_dim, window: None }; 1],
        blocks: bed::PREFILL / BLOCK_TOKENS,
        kv_type: KvType::F16,
        ..KvSpec::default()
    };
    let mut kv = backend.kv(&spec).expect("memory for the cache");
    let norm = backend.vector(&vec![1.0; head_dim]).expect("memory for a vector");
    let inv_freq: Vec<f32> =
        (0..head_dim / 2).map(|i| 1e6_f32.powf(-2.0 * i as f32 / head_dim as f32)).collect();
    let inv_freq = backend.vector(&inv_freq).expect("memory for a vector");
    let params = QkvParams {
        q_norm: Some(&norm),
        k_norm: Some(&norm),
        rope: Some(Rope {
            kind: RopeKind::Neox,
            inv_freq: &inv_freq,
            magnitude: 1.0,
            axes: None,
            long: None,
        }),
        ..QkvParams::plain(bed::HEADS)
    };
    let mut qkv = bed::filled(&mut backend, bed::PREFILL, bed::HEADS.qkv_width());
    let mut group = criterion.benchmark_group("rope");
    for rows in ROWS {
        group.throughput(Throughput::Bytes((rows * bed::HEADS.qkv_width() * size_of::<f32>()) as u64));
        group.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
            bed::step(&mut backend, rows, rows, |backend| {
                bencher.iter(|| backend.rope_to_cache(&mut qkv, &params, &mut kv, 0));
            });
        });
    }
    group.finish();
}
