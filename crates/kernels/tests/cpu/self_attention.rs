//! The same bits with any number of threads, which cut the same work into other items.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{
    AnyBackend, Batch, BufferRole, HeadShape, KernelError, PositionBias, RowSource, SelfAttentionParams,
    SequenceSpan, StepLimits,
};

use super::limits;

const HEADS: HeadShape = HeadShape { heads: 4, kv_heads: 2, head_dim: 40 };
const LENGTHS: [usize; 6] = [3, 300, 1, 97, 530, 64];
/// Of the disentangled bias.
const BUCKETS: usize = 9;
const REACH: u32 = 6;

/// What the op is asked for: a kind of bias, and whether one value is infinite.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: usize,
    reach: Option<u32>,
    infinite: bool,
}

/// Attention inside sequences of LENGTHS.
fn attend(tier: Tier, threads: usize, case: Case) -> Result<Vec<f32>, KernelError> {
    let Case { kind, reach, infinite } = case;
    let rows = LENGTHS.iter().sum();
    let mut backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(threads)), tier));
    backend.reserve(&StepLimits {
        sequences: LENGTHS.len(),
        logit_rows: 0,
        heads: HEADS,
        ..limits(rows, HEADS.qkv_width())
    })?;
    let numbers = |count: usize| (0..count).map(|i| (i as f32 * 0.731).sin()).collect::<Vec<f32>>();
    let mut qkv = backend.buffer(BufferRole::Operand, rows, HEADS.qkv_width())?;
    let mut projected = numbers(rows * HEADS.qkv_width());
    if infinite {
        // In the middle of a step of keys, which an item may see half of.
        let (row, value) = (LENGTHS[0] + 50, HEADS.q_width() + HEADS.kv_heads * HEADS.head_dim);
        projected[row * HEADS.qkv_width() + value] = f32::INFINITY;
    }
    backend.write_rows(&mut qkv, 0, &projected)?;
    let mut out = backend.buffer(BufferRole::Operand, rows, HEADS.q_width())?;
    let mut batch = Batch::default();
    for length in LENGTHS {
        let (row_first, rows) = (batch.rows() as u32, length as u32);
        batch.sequences.push(SequenceSpan { row_first, rows, context: rows, table_first: 0 });
        batch.sources.extend((0..rows).map(RowSource::Token));
        batch.positions.extend(0..rows);
    }
    let table = backend.vector(&numbers(HEADS.heads * (2 * REACH as usize + 1)))?;
    let keys = backend.vector(&numbers(BUCKETS * HEADS.q_width()))?;
    let bucket_of: Vec<u32> = (0..2 * REACH + 1).map(|i| i * 5 % BUCKETS as u32).collect();
    let bias = match kind {
        0 => PositionBias::None,
        1 => PositionBias::ByDistance { table: &table, reach: REACH },
        _ => PositionBias::Disentangled {
            keys: Some(&keys),
            queries: Some(&keys),
            buckets: BUCKETS as u32,
            bucket_of: &bucket_of[..],
            reach: REACH,
        },
    };
    let params = SelfAttentionParams { heads: HEADS, scale: 0.3, reach, padding: 0, bias };
    backend.begin(&batch)?;
    backend.self_attention(&qkv, &params, &mut out);
    backend.end()?;
    let mut result = vec![0.0; rows * HEADS.q_width()];
    backend.read_rows(&out, 0, &mut result)?;
    Ok(result)
}

#[test]
fn any_number_of_threads_gives_the_same_bits() -> Result<(), KernelError> {
    for tier in Tier::available() {
        for (kind, reach) in (0..3).flat_map(|kind| [None, Some(70), Some(0)].map(|reach| (kind, reach))) {
            for infinite in [false, true] {
                let case = Case { kind, reach, infinite };
                let expected = attend(tier, 1, case)?;
                assert_eq!(expected.iter().all(|x| x.is_finite()), !infinite, "{tier}, {case:?}");
                for threads in [2, 3, 7, 32] {
                    let found = attend(tier, threads, case)?;
                    let same =
                        |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                    assert!(found.iter().zip(&expected).all(same), "{tier}, {threads} threads, {case:?}");
                }
            }
        }
    }
    Ok(())
}
