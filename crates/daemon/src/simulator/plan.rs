//! Scenario of a seed: an engine, a device, requests with their clients, and commands to the model.

use hanzo_engine_ops::KvType;
use hanzo_engine_runtime::{
    EmbedInput, EngineConfig, Job, Output, SamplingParams, Speculation, StopConditions, sampler::Mirostat,
};

use super::{
    device::DeviceFailure,
    model::{self, MODELS, VOCAB},
    random::{Random, mix},
};
use crate::limits::{EVENTS_MAX, EVENTS_PER_STEP_MAX, SCORED_PER_STEP_MAX};

/// Shortest and longest context length in tokens.
const CONTEXT_LEAST: usize = 32;
const CONTEXT_MOST: usize = 384;

/// Scenario of one model.
pub(super) struct ModelScenario {
    /// Index into [`MODELS`].
    pub(super) model: usize,
    pub(super) config: EngineConfig,
    pub(super) queue_max: usize,
    pub(super) step_us: u64,
    pub(super) row_us: u64,
    /// Whether devices run asynchronously, which is so for every second seed.
    pub(super) runs_ahead: bool,
    /// Way in which the first, second, … worker fails.
    pub(super) ends: Vec<Option<(u64, DeviceFailure)>>,
    pub(super) clients: Vec<ClientPlan>,
    pub(super) orders: Vec<(u64, ModelOrder)>,
}

/// Command to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelOrder {
    Load,
    Unload,
    UnloadNow,
    /// The worker's handle is dropped without a command.
    Abandon,
}

/// Client and its request.
pub(super) struct ClientPlan {
    pub(super) at_us: u64,
    pub(super) ask: Ask,
    /// Time from taking a place in the queue to giving the job to the worker.
    pub(super) prepares_us: u64,
    pub(super) deadline_us: Option<u64>,
    /// Number of attempts after a refusal.
    pub(super) tries: u32,
    /// Time from being woken to reading.
    pub(super) reads_after_us: u64,
    /// Events that it reads at once.
    pub(super) reads_at_once: usize,
    /// Number of events after which it stops reading, and for how long.
    pub(super) pauses: Option<(usize, u64)>,
    pub(super) leaves: Option<Leave>,
    /// Capacity of the event channel.
    pub(super) events_max: usize,
}

/// Time at which a client disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// This long after its arrival.
    After(u64),
    /// After it has read this many events.
    AfterEvents(usize),
}

/// Request of a client.
pub(super) enum Ask {
    Generate(Job),
    Embed { batches: Vec<Vec<EmbedInput>>, output: Output, priority: i32 },
}

impl ModelScenario {
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        // Half of the seeds have attention windows.
        let windowed = 1 + mix(seed, 1) as usize % (MODELS.len() - 1);
        let model = if mix(seed, 2).is_multiple_of(2) { windowed } else { 0 };
        let config = config(random, model);
        let count = random.size(3..=16);
        // All at once, or one after the other.
        let spread_us = random.pick(&[0, 3_000, 20_000, 60_000]);
        let clients = (0..count).map(|_| client(random, &config, spread_us)).collect();
        let restless = random.chance(25);
        let orders = (0..if restless { random.of(1..=3) } else { 0 }).map(|_| {
            let order = random.pick(&[
                ModelOrder::Unload,
                ModelOrder::Unload,
                ModelOrder::UnloadNow,
                ModelOrder::Abandon,
            ]);
            (random.of(0..=spread_us + 20_000), order)
        });
        let mut orders: Vec<(u64, ModelOrder)> = orders.collect();
        let again: Vec<(u64, ModelOrder)> =
            orders.iter().map(|&(at, _)| (at + random.of(0..=10_000), ModelOrder::Load)).collect();
        orders.extend(again);
        let fragile = random.chance(25);
        let mut end = || {
            let how = random.pick(&[
                DeviceFailure::FailsFirst,
                DeviceFailure::FailsLast,
                DeviceFailure::FailsDrawing,
                DeviceFailure::FailsWaiting,
                DeviceFailure::FailsReading,
                DeviceFailure::Panics,
            ]);
            (fragile && random.chance(70)).then(|| (random.of(1..=40), how))
        };
        let ends = (0..4).map(|_| end()).collect();
        Self {
            model,
            config,
            queue_max: random.size(1..=12),
            step_us: random.of(50..=1_000),
            row_us: random.of(0..=20),
            runs_ahead: seed % 2 == 1,
            ends,
            clients,
            orders,
        }
    }
}

fn config(random: &mut Random, model: usize) -> EngineConfig {
    let kv_blocks = random.size(3..=24);
    let sequences_max = random.size(1..=6);
    let step_tokens_max = random.size(sequences_max.max(4)..=64);
    let room = model::room(MODELS[model], step_tokens_max);
    let kv_blocks = kv_blocks.max(room.blocks_of(CONTEXT_LEAST));
    EngineConfig {
        kv_blocks,
        kv_type: KvType::F16,
        kv_resident: false,
        step_tokens_max,
        prefill_tokens_beside_decodes: random.size(1..=step_tokens_max),
        sequences_max,
        context_tokens_max: random.size(CONTEXT_LEAST..=room.tokens_in(kv_blocks).min(CONTEXT_MOST)),
        prefix_cache: random.chance(85),
        speculation: random.pick(&[Speculation::Ngram, Speculation::Ngram, Speculation::Off]),
    }
}

fn client(random: &mut Random, config: &EngineConfig, spread_us: u64) -> ClientPlan {
    let ask = if random.chance(25) { embed(random, config) } else { generate(random, config) };
    let choices = if let Ask::Generate(job) = &ask { job.choices as usize } else { 1 };
    let slow = random.chance(30);
    let events_max = 2 * (EVENTS_PER_STEP_MAX * choices + SCORED_PER_STEP_MAX) + random.size(0..=16);
    let leave = [Leave::After(random.of(0..=40_000)), Leave::AfterEvents(random.size(1..=20))];
    ClientPlan {
        at_us: random.of(0..=spread_us),
        ask,
        prepares_us: random.of(0..=500),
        deadline_us: random.chance(15).then(|| random.of(100..=40_000)),
        tries: random.below(4) as u32,
        reads_after_us: if slow { random.of(500..=6_000) } else { random.of(0..=100) },
        reads_at_once: if slow { random.size(1..=6) } else { usize::MAX },
        pauses: random.chance(15).then(|| (random.size(0..=20), random.of(5_000..=80_000))),
        leaves: random.chance(20).then(|| random.pick(&leave)),
        events_max: if random.chance(70) { events_max } else { EVENTS_MAX },
    }
}

/// Random tokens that may share a prefix with others.
fn tokens(random: &mut Random, count: usize) -> Vec<u32> {
    let (family, alike) = (random.below(3), random.size(0..=count));
    let token = |at: usize| mix(family, at as u64) as u32 % VOCAB;
    let mut tokens: Vec<u32> = (0..alike).map(token).collect();
    tokens.extend((alike..count).map(|_| random.below(VOCAB.into()) as u32));
    tokens
}

fn generate(random: &mut Random, config: &EngineConfig) -> Ask {
    let context = config.context_tokens_max;
    let prompt = random.size(1..=(context - 1).min(70));
    let longest = if random.chance(10) { 120 } else { 40 };
    let max_tokens = random.size(1..=(context - prompt).min(longest)) as u32;
    let choices = if random.chance(30) { random.size(1..=config.sequences_max) as u32 } else { 1 };
    let seed = random.below(1 << 40);
    let sampling = SamplingParams {
        temperature: random.pick(&[0.0, 0.0, 0.7, 1.0]),
        top_k: random.pick(&[0, 0, 5]),
        top_p: random.pick(&[1.0, 0.9]),
        repetition_penalty: random.pick(&[1.0, 1.0, 1.1]),
        repeat_last_n: [None, None, Some(5)][seed as usize % 3],
        typical_p: [1.0, 1.0, 1.0, 0.8][seed as usize / 4 % 4],
        mirostat: [None, None, None, None, Some(Mirostat { tau: 3.0, eta: 0.1 })][seed as usize / 16 % 5],
        min_p: [0.0, 0.0, 0.1][seed as usize % 3],
        frequency_penalty: [0.0, 0.0, 0.0, 0.5][seed as usize % 4],
        presence_penalty: [0.0, 0.0, 0.0, 0.0, -0.5][seed as usize % 5],
        logit_bias: if seed.is_multiple_of(7) { vec![(7, 3.0), (21, -100.0)] } else { Vec::new() },
        seed,
        logprobs: random.pick(&[None, None, Some(2)]),
        ..SamplingParams::default()
    };
    let strings = random.pick::<&[&str]>(&[&[], &[], &["a"], &["wb w", "€"]]);
    let stop = StopConditions {
        max_tokens,
        min_tokens: random.of(0..=u64::from(max_tokens.min(5))) as u32,
        strings: strings.iter().map(|&string| string.to_owned()).collect(),
        include_stop_string: random.chance(30),
        ignore_eos: random.chance(50),
        token_ids: if seed.is_multiple_of(6) { vec![9, 30] } else { Vec::new() },
    };
    let predicted = random.pick(&[0, 0, 9]);
    Ask::Generate(Job {
        prompt: tokens(random, prompt).into(),
        choices,
        sampling,
        stop,
        priority: priority(random),
        prompt_logprobs: random.pick(&[None, None, None, Some(1)]),
        prediction: tokens(random, predicted).into(),
        ..Job::default()
    })
}

fn embed(random: &mut Random, config: &EngineConfig) -> Ask {
    let longest = config.context_tokens_max.min(50);
    let input = |random: &mut Random| {
        let count = random.size(1..=longest);
        EmbedInput { tokens: tokens(random, count).into(), ..EmbedInput::default() }
    };
    let batch = |random: &mut Random| (0..random.size(1..=6)).map(|_| input(random)).collect();
    Ask::Embed {
        batches: (0..random.size(1..=4)).map(|_| batch(random)).collect(),
        output: random.pick(&[Output::Vector { dimensions: None, normalize: Some(false) }, Output::Tokens]),
        priority: priority(random),
    }
}

fn priority(random: &mut Random) -> i32 {
    random.pick(&[0, 0, 0, 0, 0, 0, 0, 0, -1, 1])
}
