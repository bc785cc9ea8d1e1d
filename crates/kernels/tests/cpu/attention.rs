//! What a row does not see does not touch it, not even what is not finite.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{
    AnyBackend, AttentionParams, BLOCK_TOKENS, Batch, BufferRole, HeadShape, KernelError, KvLayout, KvSpec,
    KvType, QkvParams, RowSource, SequenceSpan, StepLimits,
};

use super::limits;

const HEADS: HeadShape = HeadShape { heads: 2, kv_heads: 1, head_dim: 64 };
const ROWS: usize = 150;

/// Attention of a prompt of ROWS with this window.
fn attend(tier: Tier, kv_type: KvType, window: u32, qkv: &[f32]) -> Result<Vec<f32>, KernelError> {
    let mut backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier));
    backend.reserve(&StepLimits { heads: HEADS, ..limits(ROWS, HEADS.qkv_width()) })?;
    let blocks = ROWS.div_ceil(BLOCK_TOKENS);
    let mut kv = backend.kv(&KvSpec {
        layers: vec![KvLayout::Heads { kv_heads: 1, head_dim: HEADS.head_dim, window: None }; 1],
        blocks,
        kv_type,
        ..KvSpec::default()
    })?;
    let mut buffer = backend.buffer(BufferRole::Operand, ROWS, HEADS.qkv_width())?;
    backend.write_rows(&mut buffer, 0, qkv)?;
    let mut out = backend.buffer(BufferRole::Operand, ROWS, HEADS.q_width())?;
    let rows = ROWS as u32;
    backend.begin(&Batch {
        sources: vec![RowSource::Token(0); ROWS],
        positions: (0..rows).collect(),
        axes: Vec::new(),
        types: Vec::new(),
        slots: (0..rows).collect(),
        sequences: vec![SequenceSpan { row_first: 0, rows, context: rows, table_first: 0 }],
        adapters: Vec::new(),
        sees: Vec::new(),
        memories: Vec::new(),
        memory_tables: Vec::new(),
        states: Vec::new(),
        block_tables: (0..blocks as u32).collect(),
        logit_rows: Vec::new(),
        windows: Vec::new(),
    })?;
    let keep = QkvParams::plain(HEADS);
    backend.rope_to_cache(&mut buffer, &keep, &mut kv, 0);
    let params = AttentionParams { window: Some(window), ..AttentionParams::of(HEADS, 0.125) };
    backend.attention(&buffer, &params, &kv, 0, &mut out);
    backend.end()?;
    let mut result = vec![0.0; ROWS * HEADS.q_width()];
    backend.read_rows(&out, 0, &mut result)?;
    Ok(result)
}

#[test]
fn what_a_row_does_not_see_does_not_touch_it() -> Result<(), KernelError> {
    let (bad_row, window) = (70, 20);
    let width = HEADS.qkv_width();
    let good: Vec<f32> = (0..ROWS * width).map(|i| (i as f32 * 0.731).sin()).collect();
    for (tier, &kv_type) in Tier::available().flat_map(|tier| KvType::ALL.iter().map(move |t| (tier, t))) {
        let expected = attend(tier, kv_type, window, &good)?;
        for bad in [f32::NAN, f32::INFINITY] {
            let mut qkv = good.clone();
            // The key and the value of one row.
            qkv[bad_row * width + HEADS.q_width()..(bad_row + 1) * width].fill(bad);
            let found = attend(tier, kv_type, window, &qkv)?;
            let rows = found.chunks(HEADS.q_width()).zip(expected.chunks(HEADS.q_width()));
            for (row, (found, expected)) in rows.enumerate() {
                let sees = (bad_row..bad_row + window as usize).contains(&row);
                let same = found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same != sees, "row {row} beside {bad} in row {bad_row}, {tier}, {kv_type}");
            }
        }
    }
    Ok(())
}
