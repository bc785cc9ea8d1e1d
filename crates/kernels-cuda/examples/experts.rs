//! Benchmark of a layer's mixture of experts on a GPU: one line of JSON for each shape and number of rows, with the
//! bytes of weights read in a second, each expert's counted once, and the operations.
//! usage: experts [CARD]

use std::time::Instant;

use hanzo_engine_kernels_cuda::{Card, CudaBackend, Driver, check};
use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    Activation, AnyBackend, Batch, BufferRole, DType, ExpertParts, ExpertScoring, HeadShape, KernelError,
    MatrixShape, MatrixSource, MoeOperands, MoeParams, RowSource, StepLimits,
};

/// Columns, inner width, experts, experts of a row, and type.
struct Shape {
    name: &'static str,
    cols: usize,
    ffn: usize,
    experts: usize,
    used: usize,
    dtype: DType,
    activation: Activation,
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "Qwen3-30B-A3B",
        cols: 2048,
        ffn: 768,
        experts: 128,
        used: 8,
        dtype: DType::Q4_K,
        activation: Activation::Silu,
    },
    Shape {
        name: "gpt-oss-20b",
        cols: 2880,
        ffn: 2880,
        experts: 32,
        used: 4,
        dtype: DType::MXFP4,
        activation: Activation::ClampedSwish,
    },
];
const ROWS: [usize; 6] = [1, 4, 16, 64, 128, 512];
/// Number of layers: weights in a GPU's caches say nothing of its memory, but one row's experts of so many layers do
/// not fit.
const LAYERS: usize = 6;
const REPEATS: usize = 10;

type Layer = (ops::Matrix, ops::Experts);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ordinal: usize = std::env::args().nth(1).map_or(Ok(0), |text| text.parse())?;
    let card = Driver::default().open(ordinal)?;
    check(&card)?;
    SHAPES.iter().try_for_each(|shape| time(&card, shape))?;
    Ok(())
}

/// Bytes without a scale of NaN, whatever type they are read as.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8 & 0x3b
    };
    (0..count).map(next).collect()
}

/// Numbers between -1 and 1.
fn numbers(count: usize) -> Vec<f32> {
    bytes(2 * count).chunks(2).map(|of| f32::from(of[0] ^ (of[1] << 1)) / 64.0 - 1.0).collect()
}

fn layer(backend: &AnyBackend, shape: &Shape, seed: usize) -> Result<Layer, KernelError> {
    let &Shape { cols, ffn, experts, dtype, .. } = shape;
    let scores: Vec<u8> =
        numbers(seed + experts * cols)[seed..].iter().flat_map(|of| of.to_le_bytes()).collect();
    let of = |rows, cols, dtype| MatrixShape { rows, cols, dtype };
    let source = |shape, bytes| MatrixSource { name: "numbers", shape, bytes };
    let router = backend.pack(&[source(of(experts, cols, DType::F32), &scores)])?;
    let (first, second) = (of(ffn, cols, dtype), of(cols, ffn, dtype));
    let stored = bytes(dtype.bytes_of(cols).expect("whole blocks") * ffn);
    let shapes = vec![ExpertParts { gate_up: vec![first; 2], down: vec![second] }; experts];
    let mut packed = backend.experts(&shapes)?;
    for _ in 0..experts {
        let (first, second) = (source(first, &stored), source(second, &stored));
        let parts = ExpertParts { gate_up: vec![first; 2], down: vec![second] };
        backend.pack_expert(&mut packed, &parts)?;
    }
    Ok((router, packed))
}

/// Shortest of some times, by number of rows.
fn time(card: &Card, shape: &Shape) -> Result<(), KernelError> {
    let &Shape { name, cols, ffn, experts, used, dtype, activation } = shape;
    let rows_max = ROWS.into_iter().max().unwrap_or_default();
    let mut backend = AnyBackend::new(CudaBackend::new(card.clone()));
    backend.reserve(&StepLimits {
        rows: rows_max,
        sequences: 1,
        logit_rows: 1,
        context: rows_max,
        width: cols.max(2 * ffn),
        vocab: 1,
        heads: HeadShape { heads: 1, kv_heads: 1, head_dim: 32 },
        experts,
        experts_used: used,
        experts_width: cols.max(2 * ffn),
        kv_groups: 1,
        heads_matmul_width: 0,
    })?;
    let layers = (0..LAYERS).map(|seed| layer(&backend, shape, seed)).collect::<Result<Vec<Layer>, _>>()?;
    let mut x = backend.buffer(BufferRole::Operand, rows_max, cols)?;
    let mut hidden = backend.buffer(BufferRole::Operand, rows_max, used * ffn)?;
    let mut out = backend.buffer(BufferRole::Operand, rows_max, cols)?;
    backend.write_rows(&mut x, 0, &numbers(rows_max * cols))?;
    let params = MoeParams {
        experts_used: used,
        scoring: ExpertScoring::Softmax,
        normalized: true,
        scale: 1.0,
        activation,
        gated: true,
        groups: None,
        scales_input: false,
    };
    for rows in ROWS {
        let mut batch = Batch::default();
        batch.sources.extend((0..rows as u32).map(RowSource::Token));
        batch.push_sequence(rows, rows, |_, at| at as u32);
        let mut least = f64::INFINITY;
        for _ in 0..REPEATS {
            let began = Instant::now();
            backend.begin(&batch)?;
            for (router, packed) in &layers {
                backend.moe(&MoeOperands::plain(router, packed), &params, &x, &mut hidden, &mut out);
            }
            backend.end()?;
            least = least.min(began.elapsed().as_secs_f64());
        }
        let layer_s = least / LAYERS as f64;
        let weights = (3 * cols * ffn) as f64;
        // Expected number of experts that rows reach if they choose at random.
        let reached = experts as f64 * (1.0 - (1.0 - used as f64 / experts as f64).powi(rows as i32));
        let bytes = reached * weights / cols as f64 * dtype.bytes_of(cols).expect("whole blocks") as f64;
        let operations = 2.0 * weights * (rows * used) as f64;
        println!(
            "{{\"shape\": \"{name}\", \"type\": \"{dtype}\", \"rows\": {rows}, \"layer_us\": {:.1}, \"bytes_per_s\": {:.3e}, \
             \"operations_per_s\": {:.3e}}}",
            1e6 * layer_s,
            bytes / layer_s,
            operations / layer_s
        );
    }
    Ok(())
}
