//! A step allocates nothing: an allocator that counts sees the same number before and after.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops as ops;
use hanzo_engine_ops::quant::quantize_row;
use hanzo_engine_ops::{
    Activation, AnyBackend, AttentionParams, BLOCK_TOKENS, Batch, BufferRole, ConvolutionParams, DType,
    ExpertParts, ExpertScoring, GateKind, HeadOperands, HeadShape, KernelError, KvLayout, KvSpec, KvType,
    LayerNormParams, MatrixShape, MatrixSource, MoeOperands, MoeParams, NormColumns, Op, OutputGateParams,
    OutputNorm, PositionBias, QkvParams, RecurrenceParams, Rope, RopeKind, RowIds, RowSource, SampleSpec,
    SampleSpecs, SelfAttentionParams, SequenceSpan, Shape, StateRule, StateShape, StepLimits,
};

/// The system's allocator, counted.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const WIDTH: usize = 256;
const HIDDEN: usize = 512;
const VOCAB: usize = 300;
const HEADS: HeadShape = HeadShape { heads: 4, kv_heads: 2, head_dim: 64 };
const LIMITS: StepLimits = StepLimits {
    rows: 24,
    sequences: 3,
    logit_rows: 3,
    context: 1200,
    width: 2 * HIDDEN,
    vocab: VOCAB,
    heads: HEADS,
    experts: 6,
    experts_used: 2,
    experts_width: 2 * HIDDEN,
    kv_groups: 1,
    heads_matmul_width: 0,
};

const STATE: StateShape = StateShape {
    rule: StateRule::Delta,
    key_heads: 2,
    value_heads: 4,
    key_dim: 32,
    value_dim: 32,
    taps: 4,
    tiled: false,
};

/// Sequences of (rows, context), each with blocks of its own.
fn batch(sequences: &[(u32, u32)]) -> Batch {
    let mut batch = Batch::default();
    let blocks = LIMITS.context.div_ceil(BLOCK_TOKENS) as u32;
    for (index, &(rows, context)) in sequences.iter().enumerate() {
        let first = index as u32 * blocks;
        batch.sequences.push(SequenceSpan {
            row_first: batch.rows() as u32,
            rows,
            context,
            table_first: batch.block_tables.len() as u32,
        });
        batch.block_tables.extend(first..first + context.div_ceil(BLOCK_TOKENS as u32));
        for position in context - rows..context {
            batch.sources.push(RowSource::Token(position % VOCAB as u32));
            batch.positions.push(position);
            batch.slots.push(first * BLOCK_TOKENS as u32 + position);
        }
        batch.logit_rows.push(batch.rows() as u32 - 1);
        batch.states.push(2 - index as u32);
    }
    batch
}

/// Parts of `rows` each, as a file holds them.
fn encoded(types: &[DType], rows: usize, cols: usize) -> Vec<(MatrixShape, Vec<u8>)> {
    let weights: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.7).sin() * 0.05).collect();
    let encode = |&dtype: &DType| {
        let mut bytes = vec![0; dtype.bytes_of(rows * cols).expect("whole blocks")];
        quantize_row(dtype, &weights, &mut bytes);
        (MatrixShape { rows, cols, dtype }, bytes)
    };
    types.iter().map(encode).collect()
}

fn sources(parts: &[(MatrixShape, Vec<u8>)]) -> Vec<MatrixSource<'_>> {
    parts.iter().map(|(shape, bytes)| MatrixSource { name: "w", shape: *shape, bytes }).collect()
}

/// A matrix of such parts.
fn stacked(
    backend: &AnyBackend,
    types: &[DType],
    rows: usize,
    cols: usize,
) -> Result<ops::Matrix, KernelError> {
    backend.pack(&sources(&encoded(types, rows, cols)))
}

/// How three rows are drawn: of all tokens, of those that everything there is leaves, and the most likely one. (Lists of the most
/// likely tokens are made for whoever asked, and kept by nobody here.)
fn specs() -> SampleSpecs {
    let shape = Shape { top_n_sigma: 3.0, typical_p: 0.9, probability_min: 0.001, ..Shape::default() };
    let drawn = SampleSpec { temperature: 1.0, uniform: 0.5, logprobs: Some(0), ..SampleSpec::default() };
    SampleSpecs {
        rows: vec![
            SampleSpec { top_k: VOCAB as u32 - 1, top_p: 0.99, ..drawn.clone() },
            SampleSpec { shape, top_p: 0.9, repetition: 1.1, seen: 0..9, mask: Some(0), ..drawn },
            SampleSpec::default(),
        ],
        seen: vec![0x1234_5678; 9],
        masks: vec![0x7fff_ffff; VOCAB.div_ceil(32)],
        mask_words: VOCAB.div_ceil(32),
        ..SampleSpecs::default()
    }
}

#[test]
fn a_step_allocates_nothing() -> Result<(), KernelError> {
    let pool = Arc::new(ThreadPool::new(3));
    for (tier, &kv_type) in Tier::available().flat_map(|tier| KvType::ALL.iter().map(move |t| (tier, t))) {
        let mut backend = AnyBackend::new(CpuBackend::new(Arc::clone(&pool), tier));
        backend.reserve(&LIMITS)?;
        let matrix = |backend: &AnyBackend, dtype: DType, rows: usize, cols: usize| {
            stacked(backend, &[dtype], rows, cols)
        };
        let table = matrix(&backend, DType::Q6_K, VOCAB, WIDTH)?;
        let qkv_weight = matrix(&backend, DType::Q4_K, HEADS.qkv_width(), WIDTH)?;
        let gate_up = matrix(&backend, DType::Q8_0, 2 * HIDDEN, WIDTH)?;
        let down = matrix(&backend, DType::F16, WIDTH, HIDDEN)?;
        let router = matrix(&backend, DType::F32, LIMITS.experts, WIDTH)?;
        // Experts of every kind of activations, and one whose gate and up differ in it.
        let types = [DType::Q4_K, DType::Q8_0, DType::F16];
        let mut experts = backend.experts(&[])?;
        for expert in 0..LIMITS.experts {
            let dtype = types[expert % types.len()];
            let up = if expert == 1 { DType::Q6_K } else { dtype };
            let (gate_up, down) = (encoded(&[dtype, up], HIDDEN, WIDTH), encoded(&[dtype], WIDTH, HIDDEN));
            let parts = ExpertParts { gate_up: sources(&gate_up), down: sources(&down) };
            backend.pack_expert(&mut experts, &parts)?;
        }
        let mixture = MoeParams {
            experts_used: LIMITS.experts_used,
            scoring: ExpertScoring::Softmax,
            normalized: false,
            scale: 1.0,
            activation: Activation::Silu,
            gated: true,
            groups: None,
            scales_input: false,
        };
        let weights = MoeOperands::plain(&router, &experts);
        let norm = backend.vector(&[1.0; WIDTH])?;
        let inv_freq = backend.vector(&[0.1; 32])?;
        let mut kv = backend.kv(&KvSpec {
            layers: vec![
                KvLayout::Heads { kv_heads: HEADS.kv_heads, head_dim: HEADS.head_dim, window: None },
                KvLayout::State(STATE),
            ],
            states: LIMITS.sequences,
            blocks: LIMITS.sequences * LIMITS.context.div_ceil(BLOCK_TOKENS),
            kv_type,
            ..KvSpec::default()
        })?;
        let (mut x, mut residual) = (
            backend.buffer(BufferRole::Operand, LIMITS.rows, WIDTH)?,
            backend.buffer(BufferRole::Operand, LIMITS.rows, WIDTH)?,
        );
        let mut qkv = backend.buffer(BufferRole::Operand, LIMITS.rows, HEADS.qkv_width())?;
        let mut mixed = backend.buffer(BufferRole::Operand, LIMITS.rows, HEADS.q_width())?;
        let mut hidden = backend.buffer(BufferRole::Operand, LIMITS.rows, HIDDEN)?;
        let mut hidden_experts =
            backend.buffer(BufferRole::Operand, LIMITS.rows, LIMITS.experts_used * HIDDEN)?;
        let mut logits = vec![0.0; LIMITS.logit_rows * VOCAB];
        let mut own = backend.buffer(BufferRole::Operand, LIMITS.rows, STATE.width())?;
        let mut given = backend.buffer(BufferRole::Operand, LIMITS.rows, STATE.value_width())?;
        let convolution = backend.vector(&[0.1; STATE.taps * STATE.channels()])?;
        let (decay, steps) =
            (backend.vector(&[-1.0; STATE.value_heads])?, backend.vector(&[0.1; STATE.value_heads])?);
        let part_norm = backend.vector(&[1.0; STATE.value_dim])?;
        let convolution = ConvolutionParams { shape: STATE, weight: &convolution, bias: None };
        let recurrence = RecurrenceParams {
            shape: STATE,
            decay: &decay,
            step_bias: &steps,
            step_limits: [0.0, f32::INFINITY],
            skip: None,
        };
        let gate = OutputGateParams {
            column: STATE.channels(),
            kind: GateKind::Silu,
            norm: Some(OutputNorm {
                weight: &part_norm,
                eps: 1e-6,
                part: STATE.value_dim,
                before_gate: true,
            }),
        };
        let qkv_params = QkvParams {
            rope: Some(Rope {
                kind: RopeKind::Neox,
                inv_freq: &inv_freq,
                magnitude: 1.0,
                axes: None,
                long: None,
            }),
            ..QkvParams::plain(HEADS)
        };
        let attention = AttentionParams::of(HEADS, 0.125);
        let batches = [batch(&[(20, 20)]), batch(&[(1, 1200)]), batch(&[(1, 21), (20, 700), (3, 3)])];
        let drawn_batch = &batches[2];
        let specs = specs();
        let mut room = vec![0.0; LIMITS.logit_rows * VOCAB];
        let mut drawn = Vec::with_capacity(LIMITS.logit_rows);
        let mut tickets = [None, None];
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        for batch in &batches {
            backend.begin(batch)?;
            backend.embed(&table, 1.0, &mut residual);
            backend.rms_norm(&residual, &norm, 1e-6, &mut x);
            backend.matmul(&qkv_weight, None, &x, &mut qkv);
            backend.rope_to_cache(&mut qkv, &qkv_params, &mut kv, 0);
            backend.attention(&qkv, &attention, &kv, 0, &mut mixed);
            backend.convolve(&mut own, &convolution, &mut kv, 1);
            backend.recur(&own, &recurrence, &mut kv, 1, &mut given);
            backend.gate_output(&own, &gate, &mut given);
            backend.add_rms_norm(&mut residual, &mixed, &norm, 1e-6, &mut x);
            backend.gated_mlp(&gate_up, &down, Activation::Silu, &x, &mut hidden, &mut mixed);
            backend.add_rms_norm(&mut residual, &mixed, &norm, 1e-6, &mut x);
            backend.moe(&weights, &mixture, &x, &mut hidden_experts, &mut mixed);
            backend.logits(
                &HeadOperands::of(&table),
                mixed.id(),
                &mut logits[..batch.logit_rows.len() * VOCAB],
            )?;
            backend.end()?;
        }
        // Steps that draw, two of them under way at a time.
        for step in 0..6 {
            backend.begin(drawn_batch)?;
            backend.embed(&table, 1.0, &mut mixed);
            backend.sample(&HeadOperands::of(&table), mixed.id(), &specs, &mut room)?;
            tickets[step % 2] = Some(backend.submit()?);
            if let Some(ticket) = tickets[(step + 1) % 2].take() {
                backend.wait(ticket, &mut drawn)?;
                assert!(drawn.len() == 3 && drawn.iter().all(Option::is_some));
            }
        }
        let allocations = ALLOCATIONS.load(Ordering::SeqCst) - before;
        assert_eq!(allocations, 0, "allocations in {} steps on {tier}, {kv_type}", batches.len() + 6);
        assert!(logits.iter().all(|x| x.is_finite()));
    }
    for tier in Tier::available() {
        encoder_steps(AnyBackend::new(CpuBackend::new(Arc::clone(&pool), tier)))?;
    }
    Ok(())
}

/// Steps of an encoder's ops, without a cache. (A part of the one test there is: others would allocate beside it.)
fn encoder_steps(mut backend: AnyBackend) -> Result<(), KernelError> {
    backend.reserve(&LIMITS)?;
    let table = stacked(&backend, &[DType::F32], VOCAB, WIDTH)?;
    let qkv_weight = stacked(&backend, &[DType::F32], HEADS.qkv_width(), WIDTH)?;
    let (up, down) =
        (stacked(&backend, &[DType::F32], HIDDEN, WIDTH)?, stacked(&backend, &[DType::BF16], WIDTH, HIDDEN)?);
    let (weight, bias) = (backend.vector(&[1.0; WIDTH])?, backend.vector(&[0.1; HIDDEN])?);
    let inv_freq = backend.vector(&[0.1; 16])?;
    let reach = 20;
    let distances = backend.vector(&vec![0.2; HEADS.heads * (2 * reach as usize + 1)])?;
    let slopes = backend.vector(&[0.2; HEADS.heads])?;
    let buckets = backend.vector(&vec![0.1; 2 * HEADS.q_width()])?;
    let bucket_of: ops::Buckets = (0..2 * reach + 1).map(|i| i % 2).collect();
    let params = |bias| SelfAttentionParams { heads: HEADS, scale: 0.125, reach: None, padding: 0, bias };
    let attentions = [
        params(PositionBias::None),
        params(PositionBias::Alibi { slopes: slopes.id() }),
        params(PositionBias::ByDistance { table: distances.id(), reach }),
        params(PositionBias::Disentangled {
            keys: Some(buckets.id()),
            queries: Some(buckets.id()),
            buckets: 2,
            bucket_of,
            reach,
        }),
    ];
    let norm = LayerNormParams { weight: &weight, bias: None, eps: 1e-12 };
    let head_norm = backend.vector(&[1.0; HEADS.head_dim])?;
    let columns_norm = LayerNormParams { weight: &head_norm, bias: None, eps: 1e-12 };
    let turned = QkvParams {
        q_norm: Some(&head_norm),
        k_norm: Some(&head_norm),
        rope: Some(Rope {
            kind: RopeKind::Neox,
            inv_freq: &inv_freq,
            magnitude: 1.0,
            axes: None,
            long: None,
        }),
        ..QkvParams::plain(HEADS)
    };
    let (mut x, mut residual) = (
        backend.buffer(BufferRole::Operand, LIMITS.rows, WIDTH)?,
        backend.buffer(BufferRole::Operand, LIMITS.rows, WIDTH)?,
    );
    let mut qkv = backend.buffer(BufferRole::Operand, LIMITS.rows, HEADS.qkv_width())?;
    let mixed = backend.buffer(BufferRole::Operand, LIMITS.rows, HEADS.q_width())?;
    let mut hidden = backend.buffer(BufferRole::Operand, LIMITS.rows, HIDDEN)?;
    let mut unfolded = backend.buffer(BufferRole::Operand, LIMITS.rows, 3 * WIDTH)?;
    let batches = [whole(&[20]), whole(&[1, 3, 17])];
    // Made once, as a network's program is.
    let attentions = attentions.map(|params| Op::SelfAttention { qkv: qkv.id(), params, out: mixed.id() });
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    for batch in &batches {
        backend.begin(batch)?;
        backend.embed(&table, 1.0, &mut residual);
        backend.add_embedding(&table, RowIds::Positions { offset: 2 }, &mut residual);
        backend.add_embedding(&table, RowIds::Types, &mut residual);
        backend.layer_norm(&residual, &norm, &mut x);
        backend.matmul(&qkv_weight, None, &x, &mut qkv);
        backend.unfold(&x, 3, &mut unfolded);
        let keys = NormColumns { first: HEADS.head_dim, width: HEADS.head_dim };
        backend.layer_norm_columns(&mut qkv, keys, &columns_norm);
        backend.rope(&mut qkv, &turned);
        for attention in &attentions {
            backend.run(attention);
        }
        backend.add_layer_norm(&mut residual, &mixed, &norm, &mut x);
        backend.matmul_activated(&up, Some(&bias), Activation::GeluErf, &x, &mut hidden);
        backend.matmul(&down, None, &hidden, &mut x);
        backend.end()?;
    }
    let allocations = ALLOCATIONS.load(Ordering::SeqCst) - before;
    assert_eq!(allocations, 0, "allocations in {} steps of {}", batches.len(), backend.facts().device);
    Ok(())
}

/// Whole sequences of these lengths, without a cache.
fn whole(lengths: &[u32]) -> Batch {
    let mut batch = Batch::default();
    for &rows in lengths {
        let row_first = batch.rows() as u32;
        batch.sequences.push(SequenceSpan { row_first, rows, context: rows, table_first: 0 });
        batch.sources.extend((0..rows).map(|token| RowSource::Token(token % VOCAB as u32)));
        batch.positions.extend(0..rows);
        batch.types.extend((0..rows).map(|row| row % 2));
    }
    batch
}
