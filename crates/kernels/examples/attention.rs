//! How fast attention is here at depth: decode by one sequence and by eight, whose limit is reading the cache, and
//! prefill, whose limit is arithmetic. Decode walks through layers whose caches together are larger than any
//! processor's, as a model does.
//!
//! `cargo run --release -p hanzo-engine-kernels --example attention [threads] [tier]`

use std::sync::Arc;
use std::time::Instant;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_kernels::{
    AttentionParams, BLOCK_TOKENS, Backend, Batch, HeadShape, KernelError, KvSpec, KvType, QkvParams,
    SequenceSpan, StepLimits,
};

const CONTEXT: usize = 4096;
/// Those of Qwen3-0.6B.
const HEADS: HeadShape = HeadShape { heads: 16, kv_heads: 8, head_dim: 128 };
/// Sequences, rows of each, and tokens of context of each.
const CASES: [(usize, usize, usize); 6] =
    [(1, 1, CONTEXT), (8, 1, CONTEXT), (4, 3, 1024), (1, 12, CONTEXT), (1, 512, 512), (1, 512, CONTEXT)];
/// Tokens whose keys and values a layer holds, and layers.
const SLOTS: usize = 8 * CONTEXT;
const LAYERS: usize = 8;
const ROWS: usize = 512;

/// Sequences one after the other in the cache, the last rows of each.
fn batch(sequences: usize, rows: usize, context: usize) -> Batch {
    let mut batch = Batch::default();
    for sequence in 0..sequences {
        let first = (sequence * context) as u32;
        batch.sequences.push(SequenceSpan {
            row_first: batch.rows() as u32,
            rows: rows as u32,
            context: context as u32,
            table_first: batch.block_tables.len() as u32,
        });
        for position in (context - rows) as u32..context as u32 {
            batch.tokens.push(0);
            batch.positions.push(position);
            batch.slots.push(first + position);
        }
        let blocks = (context / BLOCK_TOKENS) as u32;
        batch.block_tables.extend((0..blocks).map(|block| first / BLOCK_TOKENS as u32 + block));
    }
    batch
}

/// Seconds of one layer: the best of a second's walks through them.
fn seconds(mut layer: impl FnMut(usize)) -> f64 {
    let (start, mut best) = (Instant::now(), f64::MAX);
    while start.elapsed().as_secs_f64() < 1.0 {
        for index in 0..LAYERS {
            let start = Instant::now();
            layer(index);
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    best
}

fn main() -> Result<(), KernelError> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let tier_name = arguments.next();
    let pool = Arc::new(ThreadPool::new(threads));
    for tier in Tier::available().filter(|tier| tier_name.as_deref().is_none_or(|name| name == tier.name())) {
        let mut backend = CpuBackend::new(Arc::clone(&pool), tier);
        println!("{}", backend.device());
        backend.reserve(&StepLimits {
            rows: ROWS,
            sequences: 8,
            logit_rows: 1,
            context: CONTEXT,
            width: HEADS.qkv_width(),
            vocab: 1,
            heads: HEADS,
        })?;
        let numbers: Vec<f32> = (0..ROWS * HEADS.qkv_width()).map(|i| (i as f32 * 0.37).sin()).collect();
        let mut qkv = backend.buffer(ROWS, HEADS.qkv_width())?;
        backend.write_rows(&mut qkv, 0, &numbers)?;
        let mut mixed = backend.buffer(ROWS, HEADS.q_width())?;
        let keep = QkvParams { shape: HEADS, q_norm: None, k_norm: None, norm_eps: 1e-6, rope: None };
        let params = AttentionParams {
            shape: HEADS,
            scale: 0.088,
            softcap: None,
            window: None,
            sinks: None,
            causal: true,
        };
        for &kv_type in KvType::ALL {
            let spec = KvSpec {
                layers: LAYERS,
                kv_heads: HEADS.kv_heads,
                head_dim: HEADS.head_dim,
                blocks: SLOTS / BLOCK_TOKENS,
                kv_type,
            };
            let mut kv = backend.kv(&spec)?;
            for context in (ROWS..=SLOTS).step_by(ROWS) {
                let mut fill = batch(1, ROWS, ROWS);
                fill.slots.iter_mut().for_each(|slot| *slot += (context - ROWS) as u32);
                fill.block_tables.iter_mut().for_each(|b| *b += ((context - ROWS) / BLOCK_TOKENS) as u32);
                backend.begin(&fill)?;
                (0..LAYERS).for_each(|layer| backend.rope(&mut qkv, &keep, &mut kv, layer));
                backend.end()?;
            }
            let token_bytes = backend.kv_bytes(&spec) / (LAYERS * SLOTS);
            for (sequences, rows, context) in CASES {
                backend.begin(&batch(sequences, rows, context))?;
                let one = seconds(|layer| backend.attention(&qkv, &params, &kv, layer, &mut mixed));
                backend.end()?;
                let pairs = sequences * (rows * context - rows * (rows - 1) / 2);
                let flops = 4.0 * (pairs * HEADS.q_width()) as f64;
                let read = (sequences * context * token_bytes) as f64;
                println!(
                    "{kv_type:?}, {sequences} x {rows:3} rows at {context:4}: {:9.1} us a layer, {:6.1} GFLOP/s, {:5.1} GB/s",
                    one * 1e6,
                    flops / one * 1e-9,
                    read / one * 1e-9
                );
            }
        }
    }
    Ok(())
}
