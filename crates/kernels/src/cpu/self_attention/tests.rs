//! The same bits with any number of threads, which cut the same work into other items.

use std::sync::Arc;

use crate::cpu::{CpuBackend, ThreadPool, Tier};
use crate::{
    Backend, Batch, HeadShape, KernelError, PositionBias, SelfAttentionParams, SequenceSpan, StepLimits,
};

const HEADS: HeadShape = HeadShape { heads: 4, kv_heads: 2, head_dim: 40 };
const LENGTHS: [usize; 6] = [3, 300, 1, 97, 530, 64];
/// Of the disentangled bias.
const BUCKETS: usize = 9;
const REACH: u32 = 6;

/// Attention inside sequences of LENGTHS with a bias of some kind.
fn attend(tier: Tier, threads: usize, kind: usize, reach: Option<u32>) -> Result<Vec<f32>, KernelError> {
    let rows = LENGTHS.iter().sum();
    let mut backend = CpuBackend::new(Arc::new(ThreadPool::new(threads)), tier);
    backend.reserve(&StepLimits {
        rows,
        sequences: LENGTHS.len(),
        logit_rows: 0,
        context: rows,
        width: HEADS.qkv_width(),
        vocab: 1,
        heads: HEADS,
        experts: 0,
        experts_used: 0,
    })?;
    let numbers = |count: usize| (0..count).map(|i| (i as f32 * 0.731).sin()).collect::<Vec<f32>>();
    let mut qkv = backend.buffer(rows, HEADS.qkv_width())?;
    backend.write_rows(&mut qkv, 0, &numbers(rows * HEADS.qkv_width()))?;
    let mut out = backend.buffer(rows, HEADS.q_width())?;
    let mut batch = Batch::default();
    for length in LENGTHS {
        let (row_first, rows) = (batch.rows() as u32, length as u32);
        batch.sequences.push(SequenceSpan { row_first, rows, context: rows, table_first: 0 });
        batch.tokens.extend(0..rows);
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
            bucket_of: &bucket_of,
            reach: REACH,
        },
    };
    let params = SelfAttentionParams { heads: HEADS, scale: 0.3, reach, causal: false, bias };
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
        for kind in 0..3 {
            for reach in [None, Some(70)] {
                let expected = attend(tier, 1, kind, reach)?;
                assert!(expected.iter().all(|x| x.is_finite()));
                for threads in [2, 3, 7, 32] {
                    let found = attend(tier, threads, kind, reach)?;
                    let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{tier}, {threads} threads, bias {kind}, reach {reach:?}");
                }
            }
        }
    }
    Ok(())
}
