//! Tests of offloading layers to the CPU: wherever the demo model is divided, its output is that of the CPU alone, and
//! the layers on the GPU are replayed as one plan.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_kernels_cuda::{Card, CudaBackend, Driver};
use hanzo_engine_ops::{AnyBackend, KvType, Pipeline, PipelineCut};

use crate::again::{in_a_process, is_again};
use crate::driver::{card, library};
use crate::engine::{Weights, continuations, golden_prompts, ran_on};

/// Golden prompts whose choices are never close, whatever the CPU rounds before products.
const SURE: [usize; 2] = [3, 6];
/// Golden prompts with the closest choices.
const CLOSE: [usize; 2] = [8, 10];
const LAYERS: usize = 6;

/// Number of plans that a device has replayed as one.
fn replays(device: &AnyBackend) -> u64 {
    device.downcast_ref::<CudaBackend<Card>>().expect("a card").replays()
}

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
    // The head is the embedding, which is on the GPU in any case.
    for on_card in 0..=LAYERS {
        let cut = PipelineCut { layers: LAYERS - on_card, caches: LAYERS - on_card, inputs: false };
        let devices = vec![AnyBackend::new(cpu()), AnyBackend::new(CudaBackend::new(card.clone()))];
        let (found, engine) =
            ran_on(AnyBackend::of_executor(Pipeline::new(devices, vec![cut])), weights, kv_type, &prompts);
        assert_eq!(found, expected, "{weights:?}, {kv_type}, {on_card} layers on the card");
        // To the GPU with the residual sum and its norm, back with the embeddings; without layers there, to it with
        // the head's input.
        let passes = match on_card {
            0 => 2,
            LAYERS => 0,
            _ => 3,
        };
        let pipeline = engine.backend().executor_ref::<Pipeline>().expect("a pipeline");
        assert_eq!(pipeline.passes(), passes * engine.stats().steps, "buffers that crossed");
        let replays = replays(&pipeline.devices()[1]);
        assert!(replays > 40, "{replays} steps were replayed");
    }
}

/// Checks GPUs without peer access, with and without the CPU before them.
#[test]
fn the_demo_model_says_the_same_on_several_cards() {
    if !is_again() {
        let test = "offload::the_demo_model_says_the_same_on_several_cards";
        return in_a_process(test, &[("HANZO_ENGINE_EMULATED_CARDS", "3")]);
    }
    let prompts = SURE.map(|at| golden_prompts()[at].clone());
    let pool = Arc::new(ThreadPool::new(2));
    let cpu =
        || CpuBackend::new(pool.clone(), Tier::detect().expect("a sound HANZO_ENGINE_CPU_TIER, or none"));
    let cards: Vec<Card> = (0..3)
        .map(|ordinal| Driver::at(&library()).open(ordinal).expect("the emulated card opens"))
        .collect();
    // Layers of the CPU, and of each GPU.
    for (kv_type, on_cpu, on_cards) in [
        (KvType::F16, 0, vec![3, 3]),
        (KvType::Q8_0, 0, vec![2, 1, 3]),
        (KvType::F16, 1, vec![4, 1]),
        (KvType::Q8_0, 2, vec![1, 1, 2]),
    ] {
        assert_eq!(on_cpu + on_cards.iter().sum::<usize>(), LAYERS);
        let expected = continuations(cpu(), Weights::Q8_0, kv_type, &prompts);
        let used = cards.iter().take(on_cards.len());
        let mut devices: Vec<AnyBackend> =
            used.map(|card| AnyBackend::new(CudaBackend::new(card.clone()))).collect();
        let mut counts = on_cards.clone();
        if on_cpu > 0 {
            devices.insert(0, AnyBackend::new(cpu()));
            counts.insert(0, on_cpu);
        }
        let mut layers = 0;
        let ends = counts.iter().take(counts.len() - 1).map(|count| {
            layers += count;
            PipelineCut { layers, caches: layers, inputs: false }
        });
        let pipeline = AnyBackend::of_executor(Pipeline::new(devices, ends.collect()));
        let (found, engine) = ran_on(pipeline, Weights::Q8_0, kv_type, &prompts);
        assert_eq!(found, expected, "{kv_type}, {on_cpu} and {on_cards:?} layers");
        let pipeline = engine.backend().executor_ref::<Pipeline>().expect("a pipeline");
        // From each device to the next with the residual sum and its norm, and back with the embeddings.
        let passes = 2 * (counts.len() - 1) + 1;
        assert_eq!(pipeline.passes(), passes as u64 * engine.stats().steps, "buffers that crossed");
        let cards = &pipeline.devices()[counts.len() - on_cards.len()..];
        assert!(cards.iter().all(|card| replays(card) > 40), "all cards compute");
    }
}
