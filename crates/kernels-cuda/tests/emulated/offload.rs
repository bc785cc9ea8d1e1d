//! Layers that are left to the processor: wherever the demo model is cut, it says what it says on the processor alone, and what is
//! on the card is replayed as one plan.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_kernels::{Cut, KvType, Split};
use hanzo_engine_kernels_cuda::{CudaBackend, Driver};

use crate::again::{in_a_process, is_again};
use crate::driver::{card, library};
use crate::engine::{Weights, continuations, golden_prompts, ran};

/// Prompts of the goldens whose choices are never close, whatever the processor rounds before products.
const SURE: [usize; 2] = [3, 6];
/// Those with the closest choices.
const CLOSE: [usize; 2] = [8, 10];
const LAYERS: usize = 6;

#[test]
fn the_demo_model_says_the_same_wherever_it_is_cut() {
    says_the_same_wherever_it_is_cut(Weights::Q8_0, KvType::Q8_0, SURE);
}

#[test]
fn the_demo_model_in_f16_says_the_same_wherever_it_is_cut() {
    says_the_same_wherever_it_is_cut(Weights::F16, KvType::F16, CLOSE);
}

fn says_the_same_wherever_it_is_cut(weights: Weights, kv_type: KvType, prompts: [usize; 2]) {
    let pool = Arc::new(ThreadPool::new(2));
    let cpu =
        || CpuBackend::new(pool.clone(), Tier::detect().expect("a sound HANZO_ENGINE_CPU_TIER, or none"));
    let card = card();
    let prompts = prompts.map(|at| golden_prompts()[at].clone());
    let expected = continuations(cpu(), weights, kv_type, &prompts);
    // The head is the embedding, so that is on the card in any case.
    for on_card in 0..=LAYERS {
        let cut = Cut { layers: LAYERS - on_card, caches: LAYERS - on_card, inputs: false };
        let split = Split::new(cpu(), CudaBackend::new(card.clone()), cut);
        let (found, engine) = ran(split, weights, kv_type, &prompts);
        assert_eq!(found, expected, "{weights:?}, {kv_type}, {on_card} layers on the card");
        // Up with the sum and its norm, down with the embeddings; without layers there, up with what the head reads.
        let passes = match on_card {
            0 => 2,
            LAYERS => 0,
            _ => 3,
        };
        let split = engine.backend();
        assert_eq!(split.passes(), passes * engine.stats().steps, "buffers that crossed");
        assert!(split.second().replays() > 40, "{} steps were replayed", split.second().replays());
    }
}

/// Two cards, neither of which sees the other's memory, and the processor before them or not.
#[test]
fn the_demo_model_says_the_same_on_two_cards() {
    if !is_again() {
        let test = "offload::the_demo_model_says_the_same_on_two_cards";
        return in_a_process(test, &[("HANZO_ENGINE_EMULATED_CARDS", "2")]);
    }
    let prompts = SURE.map(|at| golden_prompts()[at].clone());
    let pool = Arc::new(ThreadPool::new(2));
    let cpu =
        || CpuBackend::new(pool.clone(), Tier::detect().expect("a sound HANZO_ENGINE_CPU_TIER, or none"));
    let cards = [0, 1].map(|ordinal| Driver::at(&library()).open(ordinal).expect("the emulated card opens"));
    let cut = |layers| Cut { layers, caches: layers, inputs: false };
    // Layers of the processor, the first card and the second.
    for (kv_type, [on_cpu, on_first, on_second]) in [
        (KvType::F16, [0, 3, 3]),
        (KvType::Q8_0, [0, 1, 5]),
        (KvType::F16, [1, 4, 1]),
        (KvType::Q8_0, [2, 2, 2]),
    ] {
        assert_eq!(on_cpu + on_first + on_second, LAYERS);
        let expected = continuations(cpu(), Weights::Q8_0, kv_type, &prompts);
        let [first, second] = cards.clone().map(CudaBackend::new);
        let split = Split::new(cpu(), Split::new(first, second, cut(on_first)), cut(on_cpu));
        let (found, engine) = ran(split, Weights::Q8_0, kv_type, &prompts);
        assert_eq!(found, expected, "{kv_type}, {on_cpu}, {on_first} and {on_second} layers");
        let pair = engine.backend().second();
        assert!(pair.passes() > 0 && pair.second().replays() > 40, "both cards compute");
    }
}
