//! Tests that blocks of a GPU's KV cache can be stored elsewhere and restored unchanged, also to another engine: on a
//! single GPU, on one with the CPU, and only to devices with the same division of layers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_kernels_cuda::CudaBackend;
use hanzo_engine_ops::{AnyBackend, BLOCK_TOKENS, KvType, Pipeline, PipelineCut};
use hanzo_engine_runtime::kv::{BlockName, BlockStore, KeptBlock};
use hanzo_engine_runtime::{Engine, Event, EventKind};

use crate::driver::card;
use crate::engine::{config, engine_on, job};

const PROMPT_BLOCKS: usize = 5;

/// Store of blocks in memory.
#[derive(Clone)]
struct Shelf {
    blocks: Arc<Mutex<HashMap<BlockName, Vec<u8>>>>,
    asked: VecDeque<BlockName>,
    bytes: usize,
}

impl BlockStore for Shelf {
    fn has(&self, name: &BlockName) -> bool {
        self.blocks.lock().expect("nobody panics with it").contains_key(name)
    }

    fn put(&mut self, name: BlockName, fill: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        let mut bytes = vec![0; self.bytes];
        assert!(fill(&mut bytes), "a block is read");
        self.blocks.lock().expect("nobody panics with it").insert(name, bytes);
        true
    }

    fn ask(&mut self, name: BlockName) -> bool {
        self.asked.push_back(name);
        true
    }

    fn answer(&mut self) -> Option<KeptBlock> {
        let name = self.asked.pop_front()?;
        let bytes = self.blocks.lock().expect("nobody panics with it")[&name].clone();
        Some(KeptBlock { name, bytes, found: true })
    }

    fn recycle(&mut self, _bytes: Vec<u8>) {}
}

/// Continuation of a prompt, and the number of its tokens found in the cache.
fn said(engine: &mut Engine, prompt: &[u32]) -> (Vec<u32>, u32) {
    engine.submit(job(1, prompt, 20));
    let (mut events, mut tokens, mut cached) = (Vec::new(), Vec::new(), 0);
    while !engine.is_idle() {
        engine.take_fetched().expect("blocks are put into the cache");
        if engine.has_work() {
            engine.step(&mut events).expect("a step");
        }
        for Event { kind, .. } in events.drain(..) {
            match kind {
                EventKind::Delta { tokens: more, .. } => tokens.extend(more),
                EventKind::Finished { usage, .. } => cached = usage.cached_tokens,
                EventKind::Failed => panic!("the demo model computed something that is not a number"),
                _ => {}
            }
        }
    }
    (tokens, cached)
}

/// Name of the blocks of such a backend's cache, after one engine has found what another computed.
fn kept_by(kv_type: KvType, backend: &dyn Fn() -> AnyBackend) -> String {
    let prompt: Vec<u32> = (0..16 * PROMPT_BLOCKS as u32 + 5).map(|i| 300 + i * 31 % 3000).collect();
    let mut shelf = Shelf { blocks: Arc::default(), asked: VecDeque::new(), bytes: 0 };
    let mut form = String::new();
    let mut make = || {
        let mut engine = engine_on(backend(), config(kv_type, 2));
        let found;
        (shelf.bytes, found) = engine.block_form().expect("blocks can be taken out");
        assert!(form.is_empty() || form == found, "{form}, {found}");
        form = found;
        engine.keep_blocks(Box::new(shelf.clone()));
        engine
    };
    let mut first = make();
    let (expected, cached) = said(&mut first, &prompt);
    assert_eq!((expected.len(), cached), (20, 0));
    while first.save_blocks(3) {}
    // Only the stored blocks are left to be found.
    drop(first);
    let mut second = make();
    let cached = (BLOCK_TOKENS * PROMPT_BLOCKS) as u32;
    assert_eq!(said(&mut second, &prompt), (expected, cached), "{kv_type}");
    assert_eq!(second.stats().fetched_blocks, PROMPT_BLOCKS as u64);
    form
}

#[test]
fn another_engine_finds_what_a_card_has_computed() {
    for kv_type in [KvType::F16, KvType::Q8_0] {
        kept_by(kv_type, &|| AnyBackend::new(CudaBackend::new(card())));
    }
    let pool = Arc::new(ThreadPool::new(2));
    let cpu =
        || CpuBackend::new(pool.clone(), Tier::detect().expect("a sound HANZO_ENGINE_CPU_TIER, or none"));
    let shared = |layers: usize| {
        let cut = PipelineCut { layers, caches: layers, inputs: false };
        kept_by(KvType::Q8_0, &|| {
            let card = AnyBackend::new(CudaBackend::new(card()));
            AnyBackend::of_executor(Pipeline::new(vec![AnyBackend::new(cpu()), card], vec![cut]))
        })
    };
    assert_ne!(shared(2), shared(3), "blocks of other cuts mean something else");
}
