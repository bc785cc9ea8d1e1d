//! A layer's mixture of experts, of Qwen3-30B-A3B's shape.

use criterion::{BenchmarkId, Criterion, Throughput};

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    Activation, BufferRole, DType, ExpertParts, ExpertScoring, MatrixShape, MoeOperands, MoeParams,
};

use crate::{bed, matmul};

const WIDTH: usize = 2048;
const HIDDEN: usize = 768;
const TYPE: DType = DType::Q4_K;
const PARAMS: MoeParams = MoeParams {
    experts_used: bed::EXPERTS_USED,
    scoring: ExpertScoring::Softmax,
    normalized: true,
    scale: 1.0,
    activation: Activation::Silu,
    gated: true,
    groups: None,
    scales_input: false,
};
/// Inputs of few rows, taken in turns, that choose different experts: together all of them.
const INPUTS: usize = bed::EXPERTS / bed::EXPERTS_USED;

/// The experts of one layer: more than the caches.
struct Layer {
    router: ops::Matrix,
    experts: ops::Experts,
}

/// One row: bytes of the weights of the experts it chose. Many: operations.
pub(crate) fn decode_and_prefill(criterion: &mut Criterion) {
    let mut backend = bed::backend();
    let many = bed::filled(&mut backend, bed::PREFILL, WIDTH);
    let few: Vec<ops::Buffer> = (0..INPUTS)
        .map(|input| {
            // What a router of sines prefers is a matter of phase.
            let phase = input as f32 / INPUTS as f32 * std::f32::consts::TAU;
            let row: Vec<f32> = (0..WIDTH).map(|i| (i as f32 * 0.37 + phase).sin()).collect();
            let mut buffer = backend.buffer(BufferRole::Operand, 1, WIDTH).expect("memory for activations");
            backend.write_rows(&mut buffer, 0, &row).expect("rows the buffer has");
            buffer
        })
        .collect();
    let hidden_width = bed::EXPERTS_USED * HIDDEN;
    let mut hidden =
        backend.buffer(BufferRole::Operand, bed::PREFILL, hidden_width).expect("memory for activations");
    let mut out = backend.buffer(BufferRole::Operand, bed::PREFILL, WIDTH).expect("memory for activations");
    let router = MatrixShape { rows: bed::EXPERTS, cols: WIDTH, dtype: DType::F32 };
    let gate_up = MatrixShape { rows: 2 * HIDDEN, cols: WIDTH, dtype: TYPE };
    let down = MatrixShape { rows: WIDTH, cols: HIDDEN, dtype: TYPE };
    let expert_bytes = backend.experts_bytes(&[ExpertParts { gate_up: vec![gate_up], down: vec![down] }]);
    // Packed when the first benchmark that passes the filter wants them.
    let mut layer = None;
    let mut group = criterion.benchmark_group(format!("moe/{TYPE}"));
    for rows in [1, bed::PREFILL] {
        group.throughput(if rows == 1 {
            Throughput::Bytes((bed::EXPERTS_USED * expert_bytes) as u64)
        } else {
            Throughput::Elements(2 * (rows * bed::EXPERTS_USED * 3 * HIDDEN * WIDTH) as u64)
        });
        group.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
            let Layer { router, experts } = layer.get_or_insert_with(|| Layer {
                router: matmul::matrices(&backend, router, 1).remove(0),
                experts: matmul::experts(&backend, gate_up, down, bed::EXPERTS),
            });
            let mut next = few.iter().cycle();
            bed::step(&mut backend, rows, rows, |backend| {
                bencher.iter(|| {
                    let x = if rows == 1 { next.next().unwrap_or(&many) } else { &many };
                    let weights = MoeOperands::plain(&*router, &*experts);
                    backend.moe(&weights, &PARAMS, x, &mut hidden, &mut out);
                });
            });
        });
    }
    group.finish();
}
