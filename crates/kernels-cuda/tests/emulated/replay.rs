//! Tests of recorded plans: a replay gives the bits of launches, whatever the batch.

use hanzo_engine_cuda_emulator::EmulatedDevice;
use hanzo_engine_kernels_cuda::{CudaBackend, Device};
use hanzo_engine_ops::{
    AttentionParams, Backend, Batch, BufferRole, DeviceMemory, HeadShape, KvLayout, KvSpec, KvType,
    QkvParams, RowSource, StepLimits,
};

use crate::driver::card;
use crate::typed::TypedOps;

const SHAPE: HeadShape = HeadShape { heads: 4, kv_heads: 2, head_dim: 32 };
const BLOCKS: usize = 12;

pub(crate) fn limits() -> StepLimits {
    StepLimits {
        rows: 8,
        sequences: 4,
        logit_rows: 4,
        context: 64,
        width: 256,
        vocab: 32,
        heads: SHAPE,
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    }
}

/// Numbers from a seed, between -1 and 1.
pub(crate) fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((seed * 7919 + i * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// A backend with a cache and buffers that stay where they are from step to step, as a network's do.
struct Bench<D: Device> {
    backend: CudaBackend<D>,
    kv: <CudaBackend<D> as DeviceMemory>::Kv,
    qkv: <CudaBackend<D> as DeviceMemory>::Buffer,
    out: <CudaBackend<D> as DeviceMemory>::Buffer,
}

impl<D: Device> Bench<D> {
    fn new(mut backend: CudaBackend<D>) -> Self {
        backend.reserve(&limits()).expect("memory");
        let HeadShape { kv_heads, head_dim, .. } = SHAPE;
        let layers = vec![KvLayout::Heads { kv_heads, head_dim, window: None }];
        let spec = KvSpec { layers, blocks: BLOCKS, kv_type: KvType::F16, ..KvSpec::default() };
        let kv = backend.kv(&spec).expect("memory");
        let qkv = backend.buffer(BufferRole::Operand, 8, SHAPE.qkv_width()).expect("memory");
        let out = backend.buffer(BufferRole::Operand, 8, SHAPE.q_width()).expect("memory");
        Self { backend, kv, qkv, out }
    }

    /// Writes every key and value, so that the content does not depend on the cache's address.
    fn fill(&mut self) {
        for block in 0..BLOCKS {
            for context in [8, 16] {
                let mut batch = Batch::default();
                batch.sources.extend((0..8).map(RowSource::Token));
                batch.push_sequence(8, context, |_, _| block as u32);
                self.step(&batch, 100 + block);
            }
        }
    }

    fn step(&mut self, batch: &Batch, seed: usize) -> Vec<f32> {
        self.scaled_step(batch, seed, 0.2)
    }

    /// A step whose attention has this factor on its scores. Another factor makes another plan.
    fn scaled_step(&mut self, batch: &Batch, seed: usize, scale: f32) -> Vec<f32> {
        let rows = batch.rows();
        let qkv = numbers(seed, rows * SHAPE.qkv_width());
        self.backend.write_rows(&mut self.qkv, 0, &qkv).expect("a copy");
        self.backend.begin(batch).expect("a step");
        self.backend.rope_to_cache(&mut self.qkv, QkvParams::plain(SHAPE), &mut self.kv, 0);
        let params = AttentionParams::of(SHAPE, scale);
        self.backend.attention(&self.qkv, params, &mut self.kv, 0, &mut self.out);
        self.backend.end().expect("a step");
        let mut out = vec![0.0; rows * SHAPE.q_width()];
        self.backend.read_rows(&self.out, 0, &mut out).expect("a copy");
        out
    }
}

/// A batch of the last tokens of sequences with these contexts, in blocks from `block_first` on.
pub(crate) fn decodes(contexts: &[usize], block_first: u32) -> Batch {
    let mut batch = Batch::default();
    for (index, &context) in contexts.iter().enumerate() {
        batch.sources.push(RowSource::Token(index as u32));
        batch.push_sequence(1, context, |_, at| (block_first + 3 * index as u32 + at as u32) % BLOCKS as u32);
    }
    batch
}

/// Checks steps of one bucket with different rows, contexts and blocks: the first is launched, the others are
/// replayed.
fn replay_equals_launches<D: Device>(make: impl Fn() -> D) {
    let mut recording = Bench::new(CudaBackend::new(make()));
    let mut batches = Vec::new();
    for step in 0..10 {
        // 3 or 4 sequences: one bucket.
        let contexts: Vec<usize> = (0..3 + step % 2).map(|index| 1 + step + index).collect();
        batches.push(decodes(&contexts, step as u32 / 4));
    }
    let mut launching = Bench::new(CudaBackend::new(make()).without_recording());
    recording.fill();
    launching.fill();
    let before = recording.backend.replays();
    for (step, batch) in batches.iter().enumerate() {
        let (found, expected) = (recording.step(batch, step), launching.step(batch, step));
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "step {step}");
    }
    assert_eq!(launching.backend.replays(), 0, "launched one by one");
    let replays = recording.backend.replays() - before;
    assert_eq!(replays, batches.len() as u64 - 1, "all steps but the first are replayed");
}

#[test]
fn replay_gives_the_bits_of_launches() {
    replay_equals_launches(EmulatedDevice::new);
}

/// Checks that a plan that is run between all others stays recorded, however many others there are.
#[test]
fn the_plan_that_ran_longest_ago_is_forgotten_first() {
    const OTHERS: usize = 150;
    let mut bench = Bench::new(CudaBackend::new(EmulatedDevice::new()));
    bench.fill();
    let batch = decodes(&[5, 6], 0);
    bench.step(&batch, 0);
    let before = bench.backend.replays();
    for other in 0..OTHERS {
        bench.scaled_step(&batch, 0, 0.3 + other as f32 / 1000.0);
        bench.step(&batch, 0);
    }
    assert_eq!(bench.backend.replays() - before, OTHERS as u64);
}

/// Checks replay as CUDA graphs that the driver has captured.
#[test]
fn graphs_of_the_driver_give_the_bits_of_launches() {
    replay_equals_launches(card);
}
