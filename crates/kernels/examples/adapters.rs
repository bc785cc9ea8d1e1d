//! What low-rank adapters cost where they cost most: the products of decoding, without attention and head, for eight
//! sequences on random weights of Qwen3 0.6B's shape in Q8_0. Without adapters, with one for two sequences each of four, and
//! the limit that bytes over bandwidth set to that: `cargo run --release -p hanzo-engine-kernels --example adapters`.

use std::sync::Arc;
use std::time::Instant;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops as ops;
use hanzo_engine_ops::quant::quantize_row;
use hanzo_engine_ops::{
    Activation, AnyBackend, Batch, BufferRole, DType, HeadShape, KernelError, LowRankPair, MatrixShape,
    MatrixSource, OutputDelta, RowSource, SequenceSpan, StepLimits,
};

const LAYERS: usize = 28;
const HIDDEN: usize = 1024;
const QUERIES: usize = 2048;
const KEYS: usize = 1024;
const FFN: usize = 3072;
const RANK: usize = 16;
const ADAPTERS: usize = 4;
const SEQUENCES: usize = 8;

/// A matrix of small numbers.
fn encoded(dtype: DType, rows: usize, cols: usize, seed: usize) -> (MatrixShape, Vec<u8>) {
    let numbers: Vec<f32> = (0..rows * cols).map(|i| (((i + seed) as f32) * 0.7).sin() * 0.02).collect();
    let mut bytes = vec![0; dtype.bytes_of(rows * cols).expect("whole blocks")];
    quantize_row(dtype, &numbers, &mut bytes);
    (MatrixShape { rows, cols, dtype }, bytes)
}

/// A, B, and the first output.
type Pair = (Stored, Stored, usize);
type Stored = (MatrixShape, Vec<u8>);

fn source((shape, bytes): &(MatrixShape, Vec<u8>)) -> MatrixSource<'_> {
    MatrixSource { name: "w", shape: *shape, bytes }
}

fn low_rank_pair((a, b, first): &Pair) -> LowRankPair<'_> {
    LowRankPair { a: Some(source(a)), b: source(b), scale: 2.0, first: *first }
}

struct Layer {
    qkv: ops::Matrix,
    output: ops::Matrix,
    gate_up: ops::Matrix,
    down: ops::Matrix,
    deltas: [Vec<Option<ops::LowRank>>; 4],
}

fn layer(backend: &AnyBackend, seed: usize) -> Result<Layer, KernelError> {
    let matrix = |rows, cols| backend.pack(&[source(&encoded(DType::Q8_0, rows, cols, seed))]);
    let deltas = |cols: usize, parts: &[(usize, usize)]| -> Result<Vec<Option<ops::LowRank>>, KernelError> {
        let adapter = |index: usize| {
            let pairs: Vec<Pair> = parts
                .iter()
                .map(|&(first, outputs)| {
                    let a = encoded(DType::BF16, RANK, cols, index);
                    (a, encoded(DType::BF16, outputs, RANK, index + 7), first)
                })
                .collect();
            let pairs: Vec<LowRankPair<'_>> = pairs.iter().map(low_rank_pair).collect();
            backend.low_rank(&OutputDelta { changes: &[], pairs: &pairs }).map(Some)
        };
        (0..ADAPTERS).map(adapter).collect()
    };
    Ok(Layer {
        qkv: matrix(QUERIES + 2 * KEYS, HIDDEN)?,
        output: matrix(HIDDEN, QUERIES)?,
        gate_up: matrix(2 * FFN, HIDDEN)?,
        down: matrix(HIDDEN, FFN)?,
        deltas: [
            deltas(HIDDEN, &[(0, QUERIES), (QUERIES, KEYS), (QUERIES + KEYS, KEYS)])?,
            deltas(QUERIES, &[(0, HIDDEN)])?,
            deltas(HIDDEN, &[(0, FFN), (FFN, FFN)])?,
            deltas(FFN, &[(0, HIDDEN)])?,
        ],
    })
}

fn batch(adapted: bool) -> Batch {
    let mut batch = Batch::default();
    for row in 0..SEQUENCES as u32 {
        batch.sources.push(RowSource::Token(0));
        batch.positions.push(0);
        batch.sequences.push(SequenceSpan { row_first: row, rows: 1, context: 1, table_first: 0 });
        if adapted {
            batch.adapters.push(Some(row % ADAPTERS as u32));
        }
    }
    batch
}

fn main() -> Result<(), KernelError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(threads)), Tier::detect()?));
    backend.reserve(&StepLimits {
        rows: SEQUENCES,
        sequences: SEQUENCES,
        logit_rows: SEQUENCES,
        context: 16,
        width: 2 * FFN,
        vocab: 16,
        heads: HeadShape { heads: 16, kv_heads: 8, head_dim: 128 },
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    })?;
    let layers: Vec<Layer> = (0..LAYERS).map(|seed| layer(&backend, seed)).collect::<Result<_, _>>()?;
    let buffer = |role, cols| backend.buffer(role, SEQUENCES, cols);
    let operand = BufferRole::Operand;
    let (mut x, mut qkv) = (buffer(operand, HIDDEN)?, buffer(operand, QUERIES + 2 * KEYS)?);
    let (attended, mut branch) = (buffer(operand, QUERIES)?, buffer(operand, HIDDEN)?);
    let (mut inner, mut low) = (buffer(operand, FFN)?, buffer(operand, 3 * RANK)?);
    let mut both = buffer(BufferRole::Residual, 2 * FFN)?;
    let ones: Vec<f32> = (0..SEQUENCES * HIDDEN).map(|i| (i as f32 * 0.3).sin()).collect();
    backend.write_rows(&mut x, 0, &ones)?;
    let mut best = [f64::INFINITY; 2];
    for round in 0..60 {
        let adapted = round % 2 == 1;
        backend.begin(&batch(adapted))?;
        let start = Instant::now();
        for Layer { qkv: w_qkv, output, gate_up, down, deltas } in &layers {
            backend.matmul(w_qkv, None, &x, &mut qkv);
            if adapted {
                backend.add_low_rank(&deltas[0], &x, Some(&mut low), &mut qkv);
            }
            backend.matmul(output, None, &attended, &mut branch);
            if adapted {
                backend.add_low_rank(&deltas[1], &attended, Some(&mut low), &mut branch);
                backend.matmul(gate_up, None, &x, &mut both);
                backend.add_low_rank(&deltas[2], &x, Some(&mut low), &mut both);
                backend.gate(Activation::Silu, &both, &mut inner);
                backend.matmul(down, None, &inner, &mut branch);
                backend.add_low_rank(&deltas[3], &inner, Some(&mut low), &mut branch);
            } else {
                backend.gated_mlp(gate_up, down, Activation::Silu, &x, &mut inner, &mut branch);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        backend.end()?;
        best[usize::from(adapted)] = best[usize::from(adapted)].min(seconds);
    }
    let matrices = [(QUERIES + 2 * KEYS, HIDDEN), (HIDDEN, QUERIES), (2 * FFN, HIDDEN), (HIDDEN, FFN)];
    let weights: usize = matrices.iter().map(|(rows, cols)| rows * cols * 34 / 32).sum();
    let pairs =
        [(HIDDEN, 3, QUERIES + 2 * KEYS), (QUERIES, 1, HIDDEN), (HIDDEN, 2, 2 * FFN), (FFN, 1, HIDDEN)];
    let of_adapters: usize =
        pairs.iter().map(|(inputs, count, outputs)| ADAPTERS * RANK * 2 * (inputs * count + outputs)).sum();
    println!("{}", backend.facts().device);
    println!("without adapters: {:.2} ms", best[0] * 1e3);
    println!(
        "with {ADAPTERS} of rank {RANK}: {:.2} ms, {:.0} % as fast",
        best[1] * 1e3,
        100.0 * best[0] / best[1]
    );
    let limit = 100.0 * weights as f64 / (weights + of_adapters) as f64;
    println!("bytes of adapters beside weights allow {limit:.0} %");
    Ok(())
}
