//! Layers that are left to the processor: wherever the demo model is cut, it says what it says on the processor alone, and what is
//! on the card is replayed as one plan.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_kernels::{Cut, KvType, Split};
use hanzo_engine_kernels_cuda::CudaBackend;

use crate::driver::card;
use crate::engine::{continuations, ran};

/// Prompts of the goldens whose choices are never close.
const PROMPTS: [usize; 2] = [3, 6];

#[test]
fn the_demo_model_says_the_same_wherever_it_is_cut() {
    let prompts = PROMPTS.map(|at| crate::engine::golden_prompts()[at].clone());
    let pool = Arc::new(ThreadPool::new(2));
    let cpu =
        || CpuBackend::new(pool.clone(), Tier::detect().expect("a sound HANZO_ENGINE_CPU_TIER, or none"));
    let card = card();
    // One layer, half of them, and all but one on the card. Its head is its embedding, so that is there too.
    for (kv_type, on_card) in [(KvType::F16, 1), (KvType::Q8_0, 3), (KvType::F16, 5)] {
        let expected = continuations(cpu(), kv_type, &prompts);
        let cut = Cut { layers: 6 - on_card, caches: 6 - on_card, inputs: false };
        let split = Split::new(cpu(), CudaBackend::new(card.clone()), cut);
        let (found, engine) = ran(split, kv_type, &prompts);
        assert_eq!(found, expected, "{kv_type}, {on_card} layers on the card");
        // Up with the sum and its norm, down with the embeddings.
        let split = engine.backend();
        assert_eq!(split.passes(), 3 * engine.stats().steps, "buffers that crossed");
        assert!(split.second().replays() > 40, "{} steps were replayed", split.second().replays());
    }
}
