//! Tests of running ahead: whatever the requests, and whoever comes and goes, the output equals that of steps that are
//! waited for before the next is prepared.

use std::collections::BTreeMap;

use hanzo_engine_kernels_cuda::{Card, CudaBackend};
use hanzo_engine_ops::{AnyBackend, KvType, conformance};
use hanzo_engine_runtime::{
    Engine, EngineConfig, Event, EventKind, Job, JobId, SamplingParams, StopConditions, Usage,
};

use crate::driver::card;
use crate::engine::{config, engine, golden_prompts, job};

/// splitmix64.
struct Random(u64);

impl Random {
    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn or<T>(&mut self, usual: T, value: T) -> T {
        if self.below(3) == 0 { value } else { usual }
    }

    /// A request that the GPU draws alone, and sometimes one that needs the host.
    fn job(&mut self, id: u64, prompts: &[Vec<u32>]) -> Job {
        let prompt = &prompts[self.below(prompts.len() as u64) as usize];
        let penalized = self.below(3) == 0;
        let sampling = SamplingParams {
            temperature: self.or(1.0, 0.0),
            top_k: self.or(0, 30),
            top_p: self.or(1.0, 0.8),
            min_p: self.or(0.0, 0.02),
            repetition_penalty: if penalized { 1.3 } else { 1.0 },
            frequency_penalty: if penalized { 0.5 } else { 0.0 },
            logit_bias: if self.below(4) == 0 { vec![(400, 5.0), (278, -3.0)] } else { Vec::new() },
            seed: self.below(u64::MAX),
            logprobs: if self.below(6) == 0 { Some(2) } else { None },
            typical_p: if self.below(6) == 0 { 0.7 } else { 1.0 },
            ..SamplingParams::default()
        };
        let stop = StopConditions {
            max_tokens: 1 + self.below(14) as u32,
            strings: if self.below(3) == 0 { vec!["e".into(), " the".into()] } else { Vec::new() },
            ignore_eos: self.below(2) == 0,
            ..StopConditions::default()
        };
        Job { sampling, stop, choices: 1 + self.below(2) as u32, ..job(id as usize, prompt, 1) }
    }
}

/// Requests by the step in which they come, and the one that leaves.
struct Script {
    jobs: Vec<(u64, Job)>,
    leaves: (u64, JobId),
}

type Said = BTreeMap<(JobId, u32), Vec<EventKind>>;

impl Script {
    fn new(random: &mut Random, prompts: &[Vec<u32>]) -> Script {
        let jobs: Vec<_> = (0..5).map(|id| (random.below(8), random.job(id, prompts))).collect();
        Script { leaves: (4 + random.below(8), JobId(random.below(5))), jobs }
    }

    /// Events of each completion, with its text in one piece, and the number of preemptions.
    fn play(&self, mut engine: Engine) -> (Said, u64) {
        let (mut said, mut events) = (Said::new(), Vec::new());
        for now in 0.. {
            self.jobs.iter().filter(|job| job.0 == now).for_each(|(_, job)| engine.submit(job));
            if now == self.leaves.0 {
                engine.cancel(self.leaves.1);
            }
            if now > 12 && engine.is_idle() {
                break;
            }
            engine.step(&mut events).expect("a step");
            engine.check();
            for Event { job, choice, mut kind } in events.drain(..) {
                match &mut kind {
                    // What others leave in the cache depends on when they go.
                    EventKind::Started { cached_tokens } => *cached_tokens = 0,
                    EventKind::Finished { usage, .. } => *usage = Usage { cached_tokens: 0, ..*usage },
                    _ => {}
                }
                let said = said.entry((job, choice)).or_default();
                match (said.last_mut(), kind) {
                    (Some(last @ EventKind::Delta { .. }), kind @ EventKind::Delta { .. }) => {
                        last.append(kind);
                    }
                    (_, kind) => said.push(kind),
                }
            }
        }
        (said, engine.stats().preemptions)
    }
}

/// Backends without and with running ahead.
fn backends(card: &Card) -> [CudaBackend<Card>; 2] {
    [CudaBackend::new(card.clone()).without_lookahead(), CudaBackend::new(card.clone())]
}

#[test]
fn events_are_those_of_steps_that_are_waited_for() {
    let card = card();
    let mut prompts = golden_prompts();
    prompts.iter_mut().for_each(|prompt| prompt.truncate(40)); // so that its answer fits the context
    let (mut finished, mut preempted) = (0, 0);
    for seed in 0..8 {
        let mut random = Random(seed);
        let script = Script::new(&mut random, &prompts);
        let kv_type = if seed % 2 == 0 { KvType::F16 } else { KvType::Q8_0 };
        // So few blocks that some sequences are preempted.
        let tight = EngineConfig {
            kv_blocks: 4 + random.below(3) as usize,
            step_tokens_max: 8 + random.below(24) as usize,
            prefill_tokens_beside_decodes: 8,
            context_tokens_max: 64,
            prefix_cache: seed % 3 > 0,
            ..config(kv_type, 4)
        };
        let [(waiting, _), (ahead, preemptions)] =
            backends(&card).map(|backend| script.play(engine(backend, tight)));
        preempted += preemptions;
        for (key, said) in &waiting {
            if key.0 == script.leaves.1 {
                continue; // it got everything generated before it left
            }
            let end = said.iter().filter(|kind| matches!(kind, EventKind::Finished { .. })).count();
            assert_eq!(end, 1, "seed {seed}, {key:?}: {said:?}");
            assert_eq!(Some(said), ahead.get(key), "seed {seed}, {key:?}");
            finished += 1;
        }
    }
    assert!(finished > 30 && preempted > 0, "{finished} answers, {preempted} preemptions");
}

/// Checks that the host prepares the next step before it has the last one's result.
#[test]
fn a_step_is_made_before_the_last_is_known() {
    let prompts = golden_prompts();
    let heard = backends(&card()).map(|backend| {
        let mut engine = engine(backend, config(KvType::F16, 1));
        engine.submit(job(0, &prompts[0][..4], 3));
        let mut steps = Vec::new();
        while !engine.is_idle() {
            let mut events = Vec::new();
            engine.step(&mut events).expect("a step");
            let is_delta = |event: &&Event| matches!(event.kind, EventKind::Delta { .. });
            steps.push(events.iter().filter(is_delta).count());
        }
        steps
    });
    assert_eq!(heard[0][..3], [1, 1, 1]);
    assert_eq!(heard[1][..4], [0, 1, 1, 1]);
}

/// Checks that a draw of a step still in flight can be a row of the next, at any place.
#[test]
fn rows_come_from_draws_that_nobody_knows() {
    let card = card();
    conformance::check_running_ahead(&|| AnyBackend::new(CudaBackend::new(card.clone())));
}
