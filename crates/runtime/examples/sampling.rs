//! How long it takes to draw one token from 152,000, the best of 50:
//! `cargo run --release -p hanzo-engine-runtime --example sampling`.

use std::{path::Path, time::Instant};

use hanzo_engine_ops::{Draws, SampleSpecs};
use hanzo_engine_runtime::{LoadError, OpenedModel, SamplingParams, sampler::Sampler};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");

/// A sum of uniforms: bell-shaped, like a model's. Uniforms by splitmix64.
fn pseudo_logits(n: usize, spread: f32) -> Vec<f32> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
    };
    (0..n).map(|_| ((0..6).map(|_| uniform()).sum::<f32>() - 3.0) * spread).collect()
}

fn neutral() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..SamplingParams::default() }
}

fn main() -> Result<(), LoadError> {
    let vocab = 152_000;
    // Only DRY reads texts of tokens, which is not timed.
    let tokenizer = OpenedModel::open(Path::new(DEMO))?.text_model()?.tokenizer;
    let cases = [
        ("greedy", SamplingParams::default(), 2.5),
        ("plain", neutral(), 2.5),
        ("top_k 40", SamplingParams { top_k: 40, ..neutral() }, 2.5),
        ("top_p 0.9", SamplingParams { top_p: 0.9, ..neutral() }, 2.5),
        ("top_p 0.9, flat", SamplingParams { top_p: 0.9, ..neutral() }, 0.2),
        (
            "all",
            SamplingParams { top_k: 40, top_p: 0.9, min_p: 0.05, repetition_penalty: 1.1, ..neutral() },
            2.5,
        ),
        ("logprobs", SamplingParams { logprobs: Some(20), ..neutral() }, 2.5),
    ];
    for (name, params, spread) in cases {
        let logits = pseudo_logits(vocab, spread);
        let mut sampler = Sampler::new(&params, 1, vocab, &[], &tokenizer);
        let (mut specs, mut draws) = (SampleSpecs::default(), Draws::default());
        let mut best = f64::INFINITY;
        for _ in 0..50 {
            let mut scratch = logits.clone();
            let start = Instant::now();
            specs.clear();
            sampler.ask(&[], &mut specs);
            draws.draw(&specs, &mut scratch);
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!("{name}: {:.0} us", best * 1e6);
    }
    Ok(())
}
