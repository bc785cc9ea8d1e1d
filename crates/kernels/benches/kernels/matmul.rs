//! Matrix products of every element type that the backend packs.

use criterion::{BenchmarkId, Criterion, Throughput};

use hanzo_engine_ops as ops;
use hanzo_engine_ops::quant::{can_quantize, quantize_row};
use hanzo_engine_ops::{Activation, AnyBackend, BufferRole, DType, ExpertParts, MatrixShape, MatrixSource};

use crate::bed;

/// A projection of Qwen3-0.6B: an MLP's gate.
const ROWS: usize = 3072;
const COLS: usize = 1024;
/// Rows of one panel of weights.
const PANEL: usize = 16;

/// Few rows: bytes of weights, each read once. Many: operations.
pub(crate) fn decode_and_prefill(criterion: &mut Criterion) {
    let mut backend = bed::backend();
    let x = bed::filled(&mut backend, bed::PREFILL, COLS);
    let mut out = backend.buffer(BufferRole::Operand, bed::PREFILL, ROWS).expect("memory for activations");
    for &dtype in DType::ALL {
        if !backend.supports(dtype) {
            continue;
        }
        let shape = MatrixShape { rows: ROWS, cols: COLS, dtype };
        let packed_bytes = backend.matrix_bytes(&[shape]);
        // Packed when the first benchmark that passes the filter wants them.
        let mut weights = None;
        let mut group = criterion.benchmark_group(format!("matmul/{dtype}"));
        for rows in [1, 4, 8, bed::PREFILL] {
            group.throughput(if rows < bed::PREFILL {
                Throughput::Bytes(packed_bytes as u64)
            } else {
                Throughput::Elements(2 * (rows * ROWS * COLS) as u64)
            });
            group.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
                let weights: &Vec<ops::Matrix> =
                    weights.get_or_insert_with(|| matrices(&backend, shape, bed::COLD_BYTES / packed_bytes));
                let mut next = weights.iter().cycle();
                bed::step(&mut backend, rows, rows, |backend| {
                    bencher.iter(|| {
                        if let Some(matrix) = next.next() {
                            backend.matmul(matrix, None, &x, &mut out);
                        }
                    });
                });
            });
        }
        group.finish();
    }
}

/// A matrix of one panel is hardly any work: what is left is preparing the activations, in bytes of f32.
pub(crate) fn activations(criterion: &mut Criterion) {
    let mut backend = bed::backend();
    let x = bed::filled(&mut backend, bed::PREFILL, COLS);
    let mut out = backend.buffer(BufferRole::Operand, bed::PREFILL, PANEL).expect("memory for activations");
    for dtype in [DType::F32, DType::Q8_0, DType::Q4_K] {
        let shape = MatrixShape { rows: PANEL, cols: COLS, dtype };
        let mut group = criterion.benchmark_group(format!("activations/{dtype}"));
        for rows in [1, bed::PREFILL] {
            group.throughput(Throughput::Bytes((rows * COLS * size_of::<f32>()) as u64));
            group.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
                let weights = matrices(&backend, shape, 1);
                bed::step(&mut backend, rows, rows, |backend| {
                    bencher.iter(|| backend.matmul(&weights[0], None, &x, &mut out));
                });
            });
        }
        group.finish();
    }
}

/// An encoder's first MLP matrix, all-MiniLM-L6-v2's shape, with a bias: in operations of the product alone, so that what
/// an activation costs is seen beside none.
pub(crate) fn activated(criterion: &mut Criterion) {
    const HIDDEN: usize = 1536;
    const WIDTH: usize = 384;
    let mut backend = bed::backend();
    let x = bed::filled(&mut backend, bed::PREFILL, WIDTH);
    let mut out = backend.buffer(BufferRole::Operand, bed::PREFILL, HIDDEN).expect("memory for activations");
    let bias = backend.vector(&bed::numbers(HIDDEN)).expect("memory for a vector");
    let shape = MatrixShape { rows: HIDDEN, cols: WIDTH, dtype: DType::F32 };
    let weights = matrices(&backend, shape, 1);
    let mut group = criterion.benchmark_group("matmul_activated/F32");
    group.throughput(Throughput::Elements(2 * (bed::PREFILL * HIDDEN * WIDTH) as u64));
    let activations = [Activation::Relu, Activation::GeluErf, Activation::GeluTanh, Activation::Silu];
    for activation in std::iter::once(None).chain(activations.map(Some)) {
        let name = activation.map_or("none".into(), |activation| format!("{activation:?}"));
        group.bench_function(name, |bencher| {
            bed::step(&mut backend, bed::PREFILL, bed::PREFILL, |backend| {
                bencher.iter(|| match activation {
                    Some(activation) => {
                        backend.matmul_activated(&weights[0], Some(&bias), activation, &x, &mut out);
                    }
                    None => backend.matmul(&weights[0], Some(&bias), &x, &mut out),
                });
            });
        });
    }
    group.finish();
}

pub(crate) fn matrices(backend: &AnyBackend, shape: MatrixShape, count: usize) -> Vec<ops::Matrix> {
    let bytes = blocks(shape);
    let source = [MatrixSource { name: "weights", shape, bytes: &bytes }];
    (0..count.max(1))
        .map(|_| backend.pack(&source).expect("memory, and a type the backend supports"))
        .collect()
}

/// Experts of these shapes, all alike.
pub(crate) fn experts(
    backend: &AnyBackend,
    gate_up: MatrixShape,
    down: MatrixShape,
    count: usize,
) -> ops::Experts {
    let bytes = [blocks(gate_up), blocks(down)];
    let source = |shape, bytes| vec![MatrixSource { name: "weights", shape, bytes }];
    let parts = ExpertParts { gate_up: source(gate_up, &bytes[0]), down: source(down, &bytes[1]) };
    let shapes = vec![ExpertParts { gate_up: vec![gate_up], down: vec![down] }; count];
    let mut experts = backend.experts(&shapes).expect("memory for the experts");
    for _ in 0..count {
        backend.pack_expert(&mut experts, &parts).expect("memory, and a type the backend supports");
    }
    experts
}

/// A tensor of some weights; or, where there is no encoder, of blocks whose bytes are below 64, which are codes and
/// finite scales in every format.
fn blocks(shape: MatrixShape) -> Vec<u8> {
    let weights = shape.rows * shape.cols;
    let size = shape.dtype.bytes_of(weights).expect("a number of columns that is whole blocks of every type");
    let mut bytes = vec![0; size];
    if can_quantize(shape.dtype) {
        quantize_row(shape.dtype, &bed::numbers(weights), &mut bytes);
    } else {
        let mut state = 1_u32;
        for byte in &mut bytes {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 26) as u8;
        }
    }
    bytes
}
