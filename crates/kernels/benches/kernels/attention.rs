//! Attention over a cache of several layers, at a short and at a long context.

use criterion::{BenchmarkId, Criterion, Throughput};

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, AttentionParams, BLOCK_TOKENS, BufferRole, KvLayout, KvSpec, KvType, QkvParams,
};

use crate::bed;

/// At the long context the layers together are more than the caches.
const LAYERS: usize = 24;
const CONTEXTS: [usize; 2] = [512, bed::CONTEXT];

/// One row: bytes of keys and values, each read once. Many: operations on the pairs a row may see.
pub(crate) fn decode_and_prefill(criterion: &mut Criterion) {
    let mut backend = bed::backend();
    let spec = KvSpec {
        layers: vec![
            KvLayout::Heads {
                kv_heads: bed::HEADS.kv_heads,
                head_dim: bed::HEADS.head_dim,
                window: None
            };
            LAYERS
        ],
        blocks: bed::CONTEXT / BLOCK_TOKENS,
        kv_type: KvType::F16,
        ..KvSpec::default()
    };
    let token_bytes = backend.kv_bytes(&spec) / (LAYERS * bed::CONTEXT);
    let params = AttentionParams::of(bed::HEADS, 0.1);
    let qkv = bed::filled(&mut backend, bed::PREFILL, bed::HEADS.qkv_width());
    let mut out = backend
        .buffer(BufferRole::Operand, bed::PREFILL, bed::HEADS.q_width())
        .expect("memory for activations");
    // Made when the first benchmark that passes the filter wants it.
    let mut cache = None;
    for (name, rows) in [("decode", 1), ("prefill", bed::PREFILL)] {
        let mut group = criterion.benchmark_group(format!("attention/{name}"));
        for context in CONTEXTS {
            let pairs = rows * context - rows * (rows - 1) / 2;
            group.throughput(if rows == 1 {
                Throughput::Bytes((context * token_bytes) as u64)
            } else {
                Throughput::Elements(4 * (pairs * bed::HEADS.q_width()) as u64)
            });
            group.bench_function(BenchmarkId::from_parameter(context), |bencher| {
                let kv: &ops::Kv = cache.get_or_insert_with(|| written(&mut backend, &spec));
                let mut layers = (0..LAYERS).cycle();
                bed::step(&mut backend, rows, context, |backend| {
                    bencher.iter(|| {
                        let layer = layers.next().unwrap_or(0);
                        backend.attention(&qkv, &params, kv, layer, &mut out);
                    });
                });
            });
        }
        group.finish();
    }
}

/// A cache that has been written: pages that never were are one page of zeros, which is always near.
fn written(backend: &mut AnyBackend, spec: &KvSpec) -> ops::Kv {
    let mut kv = backend.kv(spec).expect("memory for the cache");
    let params = QkvParams::plain(bed::HEADS);
    for context in (bed::PREFILL..=bed::CONTEXT).step_by(bed::PREFILL) {
        let mut qkv = bed::filled(backend, bed::PREFILL, bed::HEADS.qkv_width());
        bed::step(backend, bed::PREFILL, context, |backend| {
            for layer in 0..LAYERS {
                backend.rope_to_cache(&mut qkv, &params, &mut kv, layer);
            }
        });
    }
    kv
}
