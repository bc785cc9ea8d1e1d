//! What attention takes on a card at the end of long contexts, by itself: one line of JSON for each shape, context and number of rows,
//! with the bytes of keys and values that are read in a second, each sequence's once.
//! usage: attention [CARD]

use std::time::Instant;

use hanzo_engine_kernels::{
    AttentionParams, BLOCK_TOKENS, Backend, Batch, BufferRole, HeadShape, KernelError, KvLayout, KvSpec,
    KvType, RowSource, StepLimits,
};
use hanzo_engine_kernels_cuda::{Card, CudaBackend, Driver, check};

/// Of Qwen3's 0.6B and 4B, and of a Gemma 3 of 1B.
const SHAPES: [(usize, usize, usize); 3] = [(16, 8, 128), (32, 8, 128), (4, 1, 256)];
const CONTEXTS: [usize; 5] = [128, 512, 2048, 8192, 32768];
const ROWS: [usize; 4] = [1, 4, 16, 64];
/// Keys and values that lie in a card's own cache say nothing of its memory: so many bytes are gone through, if layers are enough.
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
            let of = |shares| seconds(&card, shape, (context, rows, layers), shares);
            let (whole, shared) = (of(false)?, of(true)?);
            println!(
                "{{\"heads\": {heads}, \"kv_heads\": {kv_heads}, \"head_dim\": {head_dim}, \"context\": {context}, \"rows\": {rows}, \
                 \"layer_s\": {shared:.3e}, \"bytes_per_s\": {:.3e}, \"rows_not_shared_layer_s\": {whole:.3e}}}",
                bytes as f64 / shared
            );
        }
    }
    Ok(())
}

/// Of a layer, the least of some times; blocks share rows or do not.
fn seconds(
    card: &Card,
    shape: HeadShape,
    (context, rows, layers): (usize, usize, usize),
    shares: bool,
) -> Result<f64, KernelError> {
    let mut backend = CudaBackend::new(card.clone());
    if !shares {
        backend = backend.without_shared_rows();
    }
    backend.reserve(&StepLimits {
        rows,
        sequences: rows,
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
        blocks: rows * each,
        kv_type: KvType::F16,
        ..KvSpec::default()
    };
    let kv = backend.kv(&spec)?;
    let qkv = backend.buffer(BufferRole::Operand, rows, shape.qkv_width())?;
    let mut out = backend.buffer(BufferRole::Operand, rows, shape.q_width())?;
    let mut batch = Batch::default();
    for row in 0..rows {
        batch.sources.push(RowSource::Token(row as u32));
        batch.push_sequence(1, context, |_, at| (row * each + at) as u32);
    }
    let params = AttentionParams {
        shape,
        scale: 0.1,
        softcap: None,
        window: None,
        chunked: false,
        sinks: None,
        slopes: None,
        queries_alone: false,
        memory: false,
    };
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
