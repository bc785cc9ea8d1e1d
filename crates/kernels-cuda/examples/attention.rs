//! Benchmark of attention on a GPU, as lines of JSON. At the end of long contexts for each shape, context and number
//! of rows: the bytes of keys and values read in a second, each sequence's counted once. For prompts, which are rows
//! of one sequence after its cached keys: the operations of the formula's products of queries, keys, weights and
//! values.
//! usage: attention [CARD]

use std::time::Instant;

use hanzo_engine_kernels_cuda::{Card, CudaBackend, Driver, check};
use hanzo_engine_ops::{
    AnyBackend, AttentionParams, BLOCK_TOKENS, Batch, BufferRole, HeadShape, KernelError, KvLayout, KvSpec,
    KvType, RowSource, StepLimits,
};

/// Shapes of Qwen3's 0.6B and 4B, and of a Gemma 3 of 1B.
const SHAPES: [(usize, usize, usize); 3] = [(16, 8, 128), (32, 8, 128), (4, 1, 256)];
const CONTEXTS: [usize; 5] = [128, 512, 2048, 8192, 32768];
const ROWS: [usize; 4] = [1, 4, 16, 64];
/// Rows of a prompt, and the number of keys in the cache before them.
const PROMPTS: [(usize, usize); 4] = [(512, 0), (2048, 0), (512, 8192), (2048, 8192)];
/// Bytes to go through, if there are enough layers: keys and values in a GPU's caches say nothing of its memory.
const BYTES: usize = 1 << 30;
const LAYERS_MAX: usize = 32;
const REPEATS: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ordinal: usize = std::env::args().nth(1).map_or(Ok(0), |text| text.parse())?;
    let card = Driver::default().open(ordinal)?;
    check(&card)?;
    for (heads, kv_heads, head_dim) in SHAPES {
        let shape = HeadShape { heads, kv_heads, head_dim };
        for (context, rows) in CONTEXTS.into_iter().flat_map(|context| ROWS.map(|rows| (context, rows))) {
            let bytes = 2 * 2 * rows * context * kv_heads * head_dim;
            if bytes > 8 * BYTES {
                continue;
            }
            let layers = (BYTES / bytes).clamp(1, LAYERS_MAX);
            let of = |shares| seconds(&card, shape, (KvType::F16, layers), &vec![(1, context); rows], shares);
            let (whole, shared) = (of(false)?, of(true)?);
            println!(
                "{{\"heads\": {heads}, \"kv_heads\": {kv_heads}, \"head_dim\": {head_dim}, \"context\": {context}, \"rows\": {rows}, \
                 \"layer_s\": {shared:.3e}, \"bytes_per_s\": {:.3e}, \"rows_not_shared_layer_s\": {whole:.3e}}}",
                bytes as f64 / shared
            );
        }
        for (rows, before) in PROMPTS {
            for &kv_type in KvType::ALL {
                let prompt = seconds(&card, shape, (kv_type, 8), &[(rows, before + rows)], true)?;
                let operations =
                    4.0 * (heads * head_dim * rows) as f64 * (before as f64 + (rows + 1) as f64 / 2.0);
                println!(
                    "{{\"heads\": {heads}, \"kv_heads\": {kv_heads}, \"head_dim\": {head_dim}, \"cache\": \"{kv_type}\", \"before\": {before}, \
                     \"prompt_rows\": {rows}, \"layer_s\": {prompt:.3e}, \"operations_per_s\": {:.3e}}}",
                    operations / prompt
                );
            }
        }
    }
    Ok(())
}

/// Shortest of some times of a layer, for sequences of so many rows at the end of a context, with or without shared
/// rows.
fn seconds(
    card: &Card,
    shape: HeadShape,
    (kv_type, layers): (KvType, usize),
    sequences: &[(usize, usize)],
    shares: bool,
) -> Result<f64, KernelError> {
    let rows = sequences.iter().map(|&(rows, _)| rows).sum();
    let context = sequences.iter().map(|&(_, context)| context).max().unwrap_or_default();
    let mut backend = CudaBackend::new(card.clone());
    if !shares {
        backend = backend.without_shared_rows();
    }
    let mut backend = AnyBackend::new(backend);
    backend.reserve(&StepLimits {
        rows,
        sequences: sequences.len(),
        logit_rows: 1,
        context,
        width: 1,
        vocab: 1,
        heads: shape,
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    })?;
    let HeadShape { kv_heads, head_dim, .. } = shape;
    let each = context.div_ceil(BLOCK_TOKENS);
    let of_layer = KvLayout::Heads { kv_heads, head_dim, window: None };
    let spec = KvSpec {
        layers: vec![of_layer; layers],
        blocks: sequences.len() * each,
        kv_type,
        ..KvSpec::default()
    };
    let kv = backend.kv(&spec)?;
    let qkv = backend.buffer(BufferRole::Operand, rows, shape.qkv_width())?;
    let mut out = backend.buffer(BufferRole::Operand, rows, shape.q_width())?;
    let mut batch = Batch::default();
    for (index, &(rows, context)) in sequences.iter().enumerate() {
        batch.sources.extend((0..rows).map(|row| RowSource::Token(row as u32)));
        batch.push_sequence(rows, context, |_, at| (index * each + at) as u32);
    }
    let params = AttentionParams::of(shape, 0.1);
    let mut least = f64::INFINITY;
    for _ in 0..REPEATS {
        let began = Instant::now();
        backend.begin(&batch)?;
        for layer in 0..layers {
            backend.attention(&qkv, &params, &kv, layer, &mut out);
        }
        backend.end()?;
        least = least.min(began.elapsed().as_secs_f64());
    }
    Ok(least / layers as f64)
}
