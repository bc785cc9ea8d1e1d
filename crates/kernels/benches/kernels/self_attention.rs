//! Attention inside sequences, of all-MiniLM-L6-v2's shape and BERT-base's.

use criterion::{BenchmarkId, Criterion, Throughput};
use hanzo_engine_ops::{BufferRole, HeadShape, PositionBias, SelfAttentionParams};

use crate::bed;

const MINILM: HeadShape = HeadShape { heads: 12, kv_heads: 12, head_dim: 32 };
const BERT: HeadShape = HeadShape { heads: 12, kv_heads: 12, head_dim: 64 };

/// Operations of both products.
pub(crate) fn encoders(criterion: &mut Criterion) {
    let mixed: Vec<usize> = (0..16).map(|i| 12 + i * 397 % 389).collect();
    for (name, heads, lengths) in [
        ("minilm/64", MINILM, vec![64; 16]),
        ("minilm/256", MINILM, vec![256; 8]),
        ("minilm/mixed", MINILM, mixed),
        ("bert/256", BERT, vec![256; 4]),
        ("bert/512", BERT, vec![512; 2]),
    ] {
        let rows = lengths.iter().sum();
        let mut backend = bed::backend_for(heads, rows, lengths.len());
        let qkv = bed::filled(&mut backend, rows, heads.qkv_width());
        let mut out =
            backend.buffer(BufferRole::Operand, rows, heads.q_width()).expect("memory for activations");
        let params = SelfAttentionParams {
            heads,
            scale: 1.0 / (heads.head_dim as f32).sqrt(),
            reach: None,
            padding: 0,
            bias: PositionBias::None,
        };
        let pairs: usize = lengths.iter().map(|length| length * length).sum();
        let mut group = criterion.benchmark_group("self_attention");
        group.throughput(Throughput::Elements(4 * (pairs * heads.q_width()) as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bed::step_of(&mut backend, &bed::whole(&lengths), |backend| {
                bencher.iter(|| backend.self_attention(&qkv, &params, &mut out));
            });
        });
        group.finish();
    }
}
