//! Tests that the output depends only on the prompt and previous tokens, through the whole engine, including every
//! reported number.

use std::collections::BTreeMap;

use hanzo_engine_kernels_cuda::CudaBackend;
use hanzo_engine_ops::{KvType, TokenLogprob};
use hanzo_engine_runtime::{Engine, EngineConfig, Event, EventKind, Job, SamplingParams};

use crate::driver::card;
use crate::engine::{config, engine, golden_prompts, job};

const TOKENS: usize = 6;
/// Requests of a batch.
const JOBS: usize = 32;
/// Length from which blocks share a row's keys.
const LONG: usize = 330;

/// Output of a request: its tokens with their log probabilities and the five most likely ones, and the number of
/// cached prompt tokens.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<TokenLogprob>,
    cached: u32,
}

fn answers(engine: &mut Engine, prompts: &[(usize, &[u32])]) -> BTreeMap<usize, Answer> {
    let sampling = SamplingParams { temperature: 0.0, logprobs: Some(5), ..SamplingParams::default() };
    for &(id, prompt) in prompts {
        engine.submit(&Job { sampling: sampling.clone(), ..job(id, prompt, TOKENS) });
    }
    let (mut answers, mut events) = (BTreeMap::<usize, Answer>::new(), Vec::new());
    while !engine.is_idle() {
        engine.step(&mut events).expect("a step");
        for Event { job, kind, .. } in events.drain(..) {
            let answer = answers.entry(job.0 as usize).or_default();
            match kind {
                EventKind::Delta { logprobs, .. } => {
                    answer.tokens.extend(logprobs.into_iter().map(|of_text| of_text.logprob));
                }
                EventKind::Finished { usage, .. } => answer.cached = usage.cached_tokens,
                EventKind::Failed => panic!("the demo model computed something that is not a number"),
                _ => {}
            }
        }
    }
    answers
}

#[test]
fn an_answer_is_the_same_alone_in_a_batch_in_chunks_and_out_of_the_cache() {
    let goldens = golden_prompts();
    let all: Vec<u32> = goldens.iter().flatten().copied().cycle().take(LONG).collect();
    // A long prompt, one with the same beginning, and short ones.
    let mut prompts = vec![all.clone(), all[..LONG - 40].to_vec()];
    prompts.extend((2..JOBS).map(|at| goldens[at % goldens.len()][..4 + at % 3].to_vec()));
    let numbered: Vec<(usize, &[u32])> = prompts.iter().map(Vec::as_slice).enumerate().collect();
    let card = card();
    let make = |config: EngineConfig| engine(CudaBackend::new(card.clone()), config);
    for kv_type in [KvType::F16, KvType::Q8_0] {
        let own = EngineConfig { context_tokens_max: 384, ..config(kv_type, JOBS) };
        let together = answers(&mut make(own), &numbered);
        assert!(together.values().all(|answer| answer.tokens.len() > TOKENS / 2), "{together:?}");
        let same = |way: &str, config: EngineConfig, asked: &[(usize, &[u32])]| {
            let mut engine = make(config);
            let first = answers(&mut engine, asked);
            let again = answers(&mut engine, asked);
            for (id, answer) in first {
                assert_eq!(answer.tokens, together[&id].tokens, "{kv_type}, prompt {id}, {way}");
                assert_eq!(answer.tokens, again[&id].tokens, "{kv_type}, prompt {id}, {way}, cached");
                let blocks = (asked[0].1.len() - 1) as u32 / 16;
                assert!(
                    id > 0 || again[&id].cached >= 16 * blocks,
                    "{} tokens of prompt {id} were cached",
                    again[&id].cached
                );
            }
        };
        same("alone", own, &numbered[..1]);
        same(
            "beside another, in chunks",
            EngineConfig { step_tokens_max: 24, prefill_tokens_beside_decodes: 8, sequences_max: 3, ..own },
            &numbered[..3],
        );
    }
}
