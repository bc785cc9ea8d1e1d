//! Self-check of a GPU: a step with known results, run before a model is loaded. It detects a driver that compiles the
//! kernels wrongly and a GPU that computes wrongly.

use half::f16;
use hanzo_engine_ops::{
    AnyBackend, AttentionParams, Batch, BufferRole, DType, HeadShape, KernelError, KvLayout, KvSpec, KvType,
    MatrixShape, MatrixSource, Op, QkvParams, RowSource, StepLimits,
};

use crate::backend::CudaBackend;
use crate::device::Device;

const SHAPE: HeadShape = HeadShape { heads: 2, kv_heads: 1, head_dim: 32 };
const ROWS: usize = 3;
const EPS: f32 = 1e-6;
/// Largest difference to the same result in other arithmetic, absolute up to 1 and relative above. A cache of F16 keys
/// and values may account for half of it.
const FAR_MAX: f32 = 1e-3;

/// Numbers from a seed, between -1 and 1.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((seed * 7919 + i * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// Compares norms, products with a matrix, and attention of three consecutive tokens with the same results computed
/// here.
///
/// # Errors
/// The device's error, or that its results differ.
pub fn check<D: Device>(device: &D) -> Result<(), KernelError> {
    let width = SHAPE.qkv_width();
    let mut backend = AnyBackend::new(CudaBackend::new(device.clone()));
    let limits = StepLimits {
        rows: ROWS,
        sequences: 1,
        logit_rows: 1,
        context: 16,
        width,
        vocab: 1,
        heads: SHAPE,
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    };
    backend.reserve(&limits)?;
    let (given, weights) = (numbers(1, ROWS * width), numbers(2, width));
    // Keeps products about as large as their inputs.
    let even = (width as f32).sqrt().recip();
    let matrix: Vec<f32> = numbers(3, width * width).iter().map(|value| value * even).collect();
    let stored: Vec<u8> = matrix.iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = MatrixShape { rows: width, cols: width, dtype: DType::F32 };
    let source = MatrixSource { name: "known numbers", shape, bytes: &stored };
    let (weight, packed) = (backend.vector(&weights)?, backend.pack(&[source])?);
    let layers = vec![KvLayout::Heads { kv_heads: SHAPE.kv_heads, head_dim: SHAPE.head_dim, window: None }];
    let spec = KvSpec { layers, blocks: 1, kv_type: KvType::F16, ..KvSpec::default() };
    let kv = backend.kv(&spec)?;
    let mut x = backend.buffer(BufferRole::Operand, ROWS, width)?;
    let normed = backend.buffer(BufferRole::Operand, ROWS, width)?;
    let qkv = backend.buffer(BufferRole::Operand, ROWS, width)?;
    let out = backend.buffer(BufferRole::Operand, ROWS, SHAPE.q_width())?;
    backend.write_rows(&mut x, 0, &given)?;
    let mut batch = Batch::default();
    batch.sources.extend((0..ROWS as u32).map(RowSource::Token));
    batch.push_sequence(ROWS, ROWS, |_, _| 0);
    let scale = 1.0 / (SHAPE.head_dim as f32).sqrt();
    let params = AttentionParams::of(SHAPE, scale);
    let program = [
        Op::RmsNorm { x: x.id(), weight: weight.id(), eps: EPS, out: normed.id() },
        Op::MatMul { weight: packed.id(), bias: None, x: normed.id(), out: qkv.id() },
        Op::RopeToCache { qkv: qkv.id(), params: QkvParams::plain(SHAPE), kv: kv.id(), layer: 0 },
        Op::Attention { qkv: qkv.id(), params, kv: kv.id(), layer: 0, out: out.id() },
    ];
    let mut found = vec![0.0; ROWS * SHAPE.q_width()];
    // The second step's kernels are recorded, and the third replays the record.
    for _ in 0..3 {
        backend.begin(&batch)?;
        backend.run_all(&program);
        backend.end()?;
        backend.read_rows(&out, 0, &mut found)?;
        let expected = expected(&given, &weights, &matrix, scale);
        // NaN is far from everything.
        let is_near = |(found, expected): &(&f32, &f32)| {
            (*found - *expected).abs() <= FAR_MAX * expected.abs().max(1.0)
        };
        let far = found.iter().zip(&expected).find(|pair| !is_near(pair));
        if let Some((found, expected)) = far {
            let reason = format!(
                "it computes {found} where {expected} is right: its driver, or the card, is at fault"
            );
            return Err(KernelError::Device { device: device.name(), reason });
        }
    }
    Ok(())
}

/// Expected results, number by number.
fn expected(given: &[f32], weights: &[f32], matrix: &[f32], scale: f32) -> Vec<f32> {
    let (width, dim, q_width) = (SHAPE.qkv_width(), SHAPE.head_dim, SHAPE.q_width());
    // As stored in the cache.
    let kept = |value: f32| f16::from_f32(value).to_f32();
    let mut qkv = Vec::new();
    for row in given.chunks(width) {
        let mean = row.iter().map(|x| x * x).sum::<f32>() / width as f32;
        let factor = 1.0 / (mean + EPS).sqrt();
        let normed: Vec<f32> = row.iter().zip(weights).map(|(x, w)| x * factor * w).collect();
        qkv.extend(matrix.chunks(width).map(|of| of.iter().zip(&normed).map(|(w, x)| w * x).sum::<f32>()));
    }
    let mut out = Vec::new();
    for row in 0..ROWS {
        for head in 0..SHAPE.heads {
            let part = |row: usize, first: usize| &qkv[row * width + first..][..dim];
            let query = part(row, head * dim);
            let dot = |key: &[f32]| scale * query.iter().zip(key).map(|(q, k)| q * kept(*k)).sum::<f32>();
            let scores: Vec<f32> = (0..=row).map(|key| dot(part(key, q_width))).collect();
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let shares: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f32 = shares.iter().sum();
            out.extend((0..dim).map(|i| {
                let value = |(key, share): (usize, &f32)| share / total * kept(part(key, q_width + dim)[i]);
                shares.iter().enumerate().map(value).sum::<f32>()
            }));
        }
    }
    out
}
