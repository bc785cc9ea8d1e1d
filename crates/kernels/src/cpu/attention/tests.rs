//! Tests of the division of windows into parts.

use super::{AttentionJob, Share, VECTORS};
use crate::cpu::kv::CpuKv;
use hanzo_engine_ops::{Batch, HeadShape, KernelError, KvGroups, KvLayout, KvSpec, RowSource};

const HEADS: HeadShape = HeadShape { heads: 2, kv_heads: 1, head_dim: 64 };

#[test]
fn a_window_costs_itself_and_not_the_context() -> Result<(), KernelError> {
    let (context, window) = (32_768, 1024);
    let layout = KvLayout::Heads { kv_heads: 1, head_dim: HEADS.head_dim, window: Some(window) };
    let groups = KvGroups { windows: vec![Some(window)], places: Vec::new() };
    let spec = KvSpec { layers: vec![layout], groups, blocks: 1, ..KvSpec::default() };
    let kv = CpuKv::new(&spec)?;
    let (mut seen, mut all) = (Batch { windows: vec![Some(window)], ..Batch::default() }, Batch::default());
    for batch in [&mut seen, &mut all] {
        batch.sources = vec![RowSource::Token(0); 32];
        batch.push_sequence(32, context, |_, index| index as u32);
    }
    // 1055 keys visible to 32 rows, in parts of 512 and blocks of 16.
    assert_eq!((seen.block_tables.len(), all.block_tables.len()), (66, 2048));
    let job = |window| AttentionJob {
        kv: kv.layer(0, &HEADS),
        shape: HEADS,
        q_stride: HEADS.qkv_width(),
        value_dim: HEADS.head_dim,
        latent: false,
        scale: 1.0,
        softcap: None,
        window,
        chunked: false,
        memory: false,
        sinks: None,
        slopes: None,
    };
    assert_eq!(Share::new(&seen, 0, &job(Some(window)), VECTORS).partitions, 3);
    assert_eq!(Share::new(&all, 0, &job(None), VECTORS).partitions, 64);
    Ok(())
}
