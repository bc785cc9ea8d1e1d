//! How fast the CPU kernels are here: bytes of weights read per second with one row of activations (decode), and
//! multiplies and adds per second with many (prefill), for each element type and tier.
//!
//! `cargo run --release -p hanzo-engine-kernels --example throughput [threads] [tier] [type]`

use std::sync::Arc;
use std::time::Instant;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_kernels::quant::quantize_row;
use hanzo_engine_kernels::{
    BLOCK_TOKENS, Backend, Batch, DType, HeadShape, KernelError, MatrixShape, MatrixSource, SequenceSpan,
    StepLimits,
};

const ROWS: usize = 3072;
const COLS: usize = 1024;
const PREFILL: usize = 512;
const HEADS: HeadShape = HeadShape { heads: 16, kv_heads: 8, head_dim: 128 };
/// Weights to cycle through, so that decode reads memory and not a cache.
const COLD_BYTES: usize = 384 << 20;
const TYPES: [DType; 7] =
    [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K];

fn batch(rows: usize, context: usize) -> Batch {
    let first = (context - rows) as u32;
    Batch {
        tokens: vec![0; rows],
        positions: (first..context as u32).collect(),
        slots: (first..context as u32).collect(),
        sequences: vec![SequenceSpan {
            row_first: 0,
            rows: rows as u32,
            context: context as u32,
            table_first: 0,
        }],
        block_tables: (0..context.div_ceil(BLOCK_TOKENS) as u32).collect(),
        logit_rows: Vec::new(),
    }
}

/// Seconds of one call: the best of a few batches of calls.
fn seconds(mut call: impl FnMut()) -> f64 {
    call();
    let mut best = f64::MAX;
    for _ in 0..5 {
        let (start, mut calls) = (Instant::now(), 0);
        while calls == 0 || start.elapsed().as_secs_f64() < 0.1 {
            call();
            calls += 1;
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(calls));
    }
    best
}

fn main() -> Result<(), KernelError> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let (tier_name, type_name) = (arguments.next(), arguments.next());
    let pool = Arc::new(ThreadPool::new(threads));
    let weights: Vec<f32> = (0..ROWS * COLS).map(|i| ((i * 7919 % 1000) as f32 - 500.0) * 1e-4).collect();
    for tier in Tier::available().filter(|tier| tier_name.as_deref().is_none_or(|name| name == tier.name())) {
        let mut backend = CpuBackend::new(Arc::clone(&pool), tier);
        println!("{}", backend.device());
        backend.reserve(&StepLimits {
            rows: PREFILL,
            sequences: 1,
            logit_rows: 1,
            context: PREFILL,
            width: ROWS.max(COLS),
            vocab: 1,
            heads: HEADS,
        })?;
        let mut x = backend.buffer(PREFILL, COLS)?;
        let numbers: Vec<f32> = (0..PREFILL * COLS).map(|i| (i as f32 * 0.37).sin()).collect();
        backend.write_rows(&mut x, 0, &numbers)?;
        let mut out = backend.buffer(PREFILL, ROWS)?;
        for dtype in TYPES.into_iter().filter(|t| type_name.as_deref().is_none_or(|name| name == t.label())) {
            let shape = MatrixShape { rows: ROWS, cols: COLS, dtype };
            let mut bytes = vec![0; dtype.bytes_of(ROWS * COLS).unwrap_or(0)];
            quantize_row(dtype, &weights, &mut bytes);
            let packed = backend.matrix_bytes(&[shape]);
            let copies = if tier == Tier::Portable { 1 } else { COLD_BYTES / packed };
            let source = [MatrixSource { name: "w", shape, bytes: &bytes }];
            let start = Instant::now();
            let matrices = (0..copies).map(|_| backend.pack(&source)).collect::<Result<Vec<_>, _>>()?;
            let pack = (copies * ROWS * COLS) as f64 / start.elapsed().as_secs_f64();

            print!("{:>5} pack {:5.2} Gw/s", dtype.label(), pack * 1e-9);
            for rows in [1, 4, 8] {
                backend.begin(&batch(rows, rows))?;
                let all = seconds(|| {
                    for matrix in &matrices {
                        backend.matmul(matrix, None, &x, &mut out);
                    }
                });
                backend.end()?;
                print!("  {rows} rows {:6.2} GB/s", (copies * packed) as f64 / all * 1e-9);
            }
            backend.begin(&batch(PREFILL, PREFILL))?;
            let one = seconds(|| backend.matmul(&matrices[0], None, &x, &mut out));
            backend.end()?;
            let gops = 2.0 * (PREFILL * ROWS * COLS) as f64 / one * 1e-9;
            println!("  {PREFILL} rows {gops:7.1} GOP/s");
        }
    }
    Ok(())
}
