//! The conformance suite on every tier this processor has, and what it does not reach. It is no part of the library's unit tests,
//! for which every tier would be compiled once more.

mod attention;
mod floats;
mod fp8;
mod lines;
mod moe;
mod pipeline;
mod ranks;
mod self_attention;

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, TIER_VARIABLE, ThreadPool, Tier};
use hanzo_engine_ops::quant::quantize_row;
use hanzo_engine_ops::{
    AnyBackend, Batch, BufferRole, DType, HeadShape, KernelError, MatrixShape, MatrixSource, RowSource,
    SequenceSpan, StepLimits, conformance,
};

/// Ops that no other network than a vocoder needs.
#[test]
fn vocoders_ops_conform_on_every_tier() {
    let pool = Arc::new(ThreadPool::new(3));
    for tier in Tier::available() {
        conformance::check_vocoder_ops(&|| AnyBackend::new(CpuBackend::new(Arc::clone(&pool), tier)));
    }
}

#[test]
fn every_tier_conforms() {
    let pool = Arc::new(ThreadPool::new(3));
    // Or the one that is asked for: in an emulator each takes minutes.
    let one = std::env::var_os(TIER_VARIABLE).map(|_| Tier::detect().expect("a tier of this processor"));
    for tier in Tier::available().filter(|tier| one.is_none_or(|one| one == *tier)) {
        println!("tier {tier}");
        let check = || {
            let cpu = || CpuBackend::new(Arc::clone(&pool), tier);
            conformance::check_all(&|| AnyBackend::new(cpu()));
            conformance::check_running_ahead(&|| AnyBackend::new(cpu().with_lookahead()));
        };
        // What other processors have as their best is tried more briefly here, and wholly there.
        if [Some(Tier::Portable), Tier::available().last()].contains(&Some(tier)) {
            check();
        } else {
            conformance::briefly(check);
        }
    }
}

/// The tier's promise: matrix instructions change nothing but the time.
#[test]
fn amx_has_the_bits_of_avx512vnni() {
    for (dtype, cols) in [(DType::Q4_K, 1280), (DType::Q5_K, 256), (DType::Q6_K, 768), (DType::Q8_0, 1120)] {
        same_bits([Tier::Avx512Vnni, Tier::Amx], dtype, cols, &[(1024, 150), (48, 24), (72, 33)]);
    }
}

/// The tier's promise, as above; and a column has the same bits in tiles of one column, of two and of four.
#[test]
fn neoni8mm_has_the_bits_of_neondot() {
    for (dtype, cols) in [
        (DType::F16, 96),
        (DType::Q4_0, 1056),
        (DType::Q4_1, 96),
        (DType::Q5_0, 96),
        (DType::Q5_1, 96),
        (DType::Q8_0, 1120),
        (DType::IQ4_NL, 96),
        (DType::MXFP4, 96),
        (DType::Q2_K, 256),
        (DType::Q3_K, 256),
        (DType::Q4_K, 1280),
        (DType::Q5_K, 256),
        (DType::Q6_K, 768),
        (DType::IQ4_XS, 256),
        (DType::TQ2_0, 256),
    ] {
        same_bits([Tier::NeonDot, Tier::NeonI8mm], dtype, cols, &[(72, 11), (16, 8), (48, 33), (40, 3)]);
    }
}

/// Checks that products of some `(rows, columns)` have the same bits on both tiers, if the processor has the second.
fn same_bits(tiers: [Tier; 2], dtype: DType, cols: usize, shapes: &[(usize, usize)]) {
    if !tiers[1].is_available() {
        println!("skipped: this processor has no {}", tiers[1]);
        return;
    }
    let pool = Arc::new(ThreadPool::new(2));
    for &(rows, columns) in shapes {
        let weights: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919 % 1013) as f32 - 506.0) * 1e-3).collect();
        let mut bytes = vec![0; dtype.bytes_of(rows * cols).expect("whole blocks")];
        quantize_row(dtype, &weights, &mut bytes);
        let source = MatrixSource { name: "w", shape: MatrixShape { rows, cols, dtype }, bytes: &bytes };
        let x: Vec<f32> = (0..columns * cols).map(|i| (i as f32 * 0.37).sin() + 0.1).collect();
        let results = tiers.map(|tier| {
            let mut backend = AnyBackend::new(CpuBackend::new(Arc::clone(&pool), tier));
            product(&mut backend, &source, &x, columns).expect("a product")
        });
        let bits = |result: &[f32]| result.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&results[0]) == bits(&results[1]), "{dtype} [{rows}, {cols}] by {columns}");
    }
}

/// Limits of a step of one sequence and so many rows, for matrices up to `width` wide, without experts.
fn limits(rows: usize, width: usize) -> StepLimits {
    StepLimits {
        rows,
        sequences: 1,
        logit_rows: 1,
        context: rows,
        width,
        vocab: 1,
        heads: HeadShape { heads: 1, kv_heads: 1, head_dim: 16 },
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

/// `matrix · x` for each of `rows` rows of `x`.
fn product(
    backend: &mut AnyBackend,
    source: &MatrixSource<'_>,
    x: &[f32],
    rows: usize,
) -> Result<Vec<f32>, KernelError> {
    let MatrixShape { rows: outputs, cols, .. } = source.shape;
    backend.reserve(&limits(rows, outputs.max(cols)))?;
    let matrix = backend.pack(&[*source])?;
    let (mut input, mut output) = (
        backend.buffer(BufferRole::Operand, rows, cols)?,
        backend.buffer(BufferRole::Operand, rows, outputs)?,
    );
    backend.write_rows(&mut input, 0, x)?;
    let count = rows as u32;
    backend.begin(&Batch {
        sources: vec![RowSource::Token(0); rows],
        positions: (0..count).collect(),
        axes: Vec::new(),
        types: Vec::new(),
        slots: (0..count).collect(),
        sequences: vec![SequenceSpan { row_first: 0, rows: count, context: count, table_first: 0 }],
        adapters: Vec::new(),
        sees: Vec::new(),
        memories: Vec::new(),
        memory_tables: Vec::new(),
        states: Vec::new(),
        block_tables: (0..count.div_ceil(16)).collect(),
        logit_rows: Vec::new(),
        windows: Vec::new(),
    })?;
    backend.matmul(&matrix, None, &input, &mut output);
    backend.end()?;
    let mut result = vec![0.0; rows * outputs];
    backend.read_rows(&output, 0, &mut result)?;
    Ok(result)
}
