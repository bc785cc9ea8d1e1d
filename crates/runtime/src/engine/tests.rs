//! The engine on the demo model. An asynchronous device gives the same tokens and events as a synchronous one. So
//! do layers that release blocks outside their windows, and rows with given embeddings behave like any others.

mod adapters;

use std::{collections::BTreeMap, path::Path, sync::OnceLock};

use hanzo_engine_constraints::{Grammar, Spec};
use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{AnyBackend, BLOCK_TOKENS, quant::dequantize_row};

use super::*;
use crate::{
    EmbedInput, EventKind, MediaSpan, Network, OpenedModel, Output, SamplingParams, StopConditions,
    job::Usage,
    sampler::Mirostat,
    spec::{Mask, Part},
};

mod constrained;
mod cut;
mod drafted;
mod kept;
mod longer;
mod mixtures;
mod paced;
mod scored;
mod shifted;
mod states;

fn opened() -> &'static OpenedModel {
    static OPENED: OnceLock<OpenedModel> = OnceLock::new();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
    OPENED.get_or_init(|| OpenedModel::open(&path).unwrap())
}

fn engine(config: EngineConfig, ahead: bool) -> Engine {
    engine_of(opened(), config, ahead)
}

fn engine_of(opened: &OpenedModel, config: EngineConfig, ahead: bool) -> Engine {
    static POOL: OnceLock<Arc<ThreadPool>> = OnceLock::new();
    let pool = POOL.get_or_init(|| Arc::new(ThreadPool::new(2))).clone();
    let backend = CpuBackend::new(pool, Tier::detect().unwrap());
    engine_on(AnyBackend::new(if ahead { backend.with_lookahead() } else { backend }), opened, config)
}

fn engine_on(backend: AnyBackend, opened: &OpenedModel, config: EngineConfig) -> Engine {
    let text = Arc::new(opened.text_model().unwrap());
    let embedder = Arc::new(opened.embedder(&text.tokenizer, config.context_tokens_max).unwrap());
    let decoder = Decoder::load(&backend, opened.decoder().unwrap(), &mut |_| ()).unwrap();
    let mut engine = Engine::new(backend, decoder, text, embedder, config).unwrap();
    // Rows seem almost free, so that every possible draft is tried.
    (0..400).for_each(|step| engine.scheduler.took(1 + step % 8, None, 1.0));
    engine
}

fn config() -> EngineConfig {
    EngineConfig {
        kv_blocks: 64,
        kv_type: KvType::F16,
        kv_resident: false,
        step_tokens_max: 64,
        prefill_tokens_beside_decodes: 32,
        sequences_max: 8,
        context_tokens_max: 512,
        prefix_cache: true,
        speculation: Speculation::Ngram,
    }
}

fn job(id: u64, prompt: Vec<u32>, max_tokens: u32) -> Job {
    Job {
        id: JobId(id),
        prompt: prompt.into(),
        stop: StopConditions { max_tokens, ignore_eos: true, ..StopConditions::default() },
        ..Job::default()
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Random number from `first` to `last`.
    fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.bits() % (last - first + 1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.bits().is_multiple_of(n)
    }

    fn or<T>(&mut self, usual: T, value: T) -> T {
        if self.one_in(3) { value } else { usual }
    }

    /// Random prompt; prompts of the same family share a prefix.
    fn prompt(&mut self, tokens_max: u64) -> Vec<u32> {
        let family = self.between(0, 2) as u32;
        let len = self.between(1, tokens_max) as u32;
        let own = self.between(0, 40) as u32;
        (0..len).map(|i| 300 + (family * 97 + i * 31 + if i > 40 { own } else { 0 }) % 3000).collect()
    }

    fn job(&mut self, id: u64, context: usize) -> Job {
        let max_tokens = self.between(1, 40).min(context as u64 / 2) as u32;
        let longest = context - max_tokens as usize;
        let mut prompt = self.prompt(longest as u64);
        if self.one_in(3) {
            prompt.resize(longest, 301); // ends with the context
        }
        let penalized = self.one_in(4);
        let shaped = self.one_in(4);
        let sampling = SamplingParams {
            temperature: self.or(1.0, 0.0),
            top_k: self.or(0, 30),
            top_p: self.or(1.0, 0.8),
            min_p: self.or(0.0, 0.02),
            repetition_penalty: if penalized { self.or(1.0, 1.3) } else { 1.0 },
            frequency_penalty: if penalized { self.or(0.0, 0.5) } else { 0.0 },
            presence_penalty: if penalized { self.or(0.0, -0.5) } else { 0.0 },
            logit_bias: if self.one_in(4) { vec![(400, 5.0), (278, -3.0)] } else { Vec::new() },
            seed: self.bits(),
            logprobs: if self.one_in(4) { Some(2) } else { None },
            repeat_last_n: if penalized && self.one_in(2) { Some(8) } else { None },
            typical_p: if shaped { self.or(1.0, 0.7) } else { 1.0 },
            xtc_probability: if shaped { self.or(0.0, 0.5) } else { 0.0 },
            dynatemp_range: if shaped { self.or(0.0, 0.5) } else { 0.0 },
            mirostat: if shaped && self.one_in(3) { Some(Mirostat { tau: 3.0, eta: 0.2 }) } else { None },
            ..SamplingParams::default()
        };
        let scored = self.one_in(4);
        let max_tokens = if scored && self.one_in(3) { 0 } else { max_tokens };
        let prediction: Arc<[u32]> = if self.one_in(4) { self.prompt(60).into() } else { Arc::default() };
        let constraint = if self.one_in(3) { Some(self.grammar()) } else { None };
        let reasons = constraint.is_some() && self.one_in(3);
        let many = (0..60).map(|_| self.between(0, 3999) as u32).collect();
        let stop = StopConditions {
            max_tokens,
            min_tokens: self.or(0, max_tokens / 2),
            strings: if self.one_in(3) { vec!["e".into(), " the".into(), "a b".into()] } else { Vec::new() },
            token_ids: if self.one_in(2) { many } else { Vec::new() },
            ignore_eos: self.one_in(2),
            include_stop_string: self.one_in(2),
        };
        Job {
            sampling,
            stop,
            choices: self.between(1, 3) as u32,
            priority: self.or(0, 1),
            prompt_logprobs: if scored { Some(self.between(0, 3) as u8) } else { None },
            prediction,
            constraint,
            split_reasoning: reasons,
            starts_in_reasoning: reasons,
            ..job(id, prompt, 1)
        }
    }

    /// Random grammar under which a model with this vocabulary repeats itself; some of its texts end.
    fn grammar(&mut self) -> Arc<Grammar> {
        static GRAMMARS: OnceLock<Vec<Arc<Grammar>>> = OnceLock::new();
        let compile = || {
            let vocabulary = opened().text_model().unwrap().vocabulary().unwrap();
            let schema = r#"{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"size":{"enum":[1,2]}},"required":["name","size"],"additionalProperties":false}}"#;
            let specs = [
                Spec::Regex("( the| a| of|, and|[b-g]{2})*".into()),
                Spec::Regex("([0-9]{3}-)+".into()),
                Spec::JsonSchema(schema.into()),
                Spec::Choices(vec!["yes and yes and yes and no".into(), "no and no and no".into()]),
            ];
            specs.iter().map(|spec| Grammar::compile(spec, &vocabulary).unwrap()).collect()
        };
        let grammars = GRAMMARS.get_or_init(compile);
        grammars[self.between(0, grammars.len() as u64 - 1) as usize].clone()
    }

    fn inputs(&mut self, id: u64, context: usize) -> EmbedJob {
        let inputs = (0..self.between(1, 4))
            .map(|_| EmbedInput { tokens: self.prompt(context as u64).into(), ..EmbedInput::default() });
        let inputs = inputs.collect();
        let output = if self.one_in(2) {
            Output::Tokens
        } else {
            Output::Vector { dimensions: Some(8), normalize: None }
        };
        EmbedJob { id: JobId(id), inputs, output, priority: 0, client: None }
    }
}

/// Script of what happens to an engine, by step number.
#[derive(Default)]
struct Script {
    jobs: Vec<(u64, Job)>,
    inputs: Vec<(u64, EmbedJob)>,
    cancels: Vec<(u64, JobId)>,
    pauses: Vec<(u64, u64, JobId)>,
}

impl Script {
    fn new(random: &mut Random, context: usize) -> Script {
        let mut script = Script::default();
        for id in 0..random.between(2, 9) {
            let at = random.between(0, 30);
            let job_id = JobId(id);
            match random.between(0, 5) {
                0 => script.inputs.push((at, random.inputs(id, context))),
                _ => script.jobs.push((at, random.job(id, context))),
            }
            match random.between(0, 9) {
                0 => script.cancels.push((at + random.between(0, 25), job_id)),
                1 => script.pauses.push((at + random.between(0, 9), at + random.between(10, 30), job_id)),
                _ => {}
            }
        }
        script
    }

    /// Plays the script to the end. Returns the events of each completion and input, with all text in one piece.
    /// Leaves out cached and draft tokens, which depend on timing. Counts the steps still in flight when their call
    /// returned.
    fn play(&self, engine: &mut Engine, under_way: &mut usize) -> BTreeMap<(JobId, u32), Vec<EventKind>> {
        let mut found = BTreeMap::<(JobId, u32), Vec<EventKind>>::new();
        let mut events = Vec::new();
        for now in 0.. {
            assert!(now < 5000, "still work: {:?}", engine.stats());
            self.jobs.iter().filter(|job| job.0 == now).for_each(|(_, job)| {
                job.validate(engine.text(), 10_000).unwrap();
                engine.submit(job);
            });
            self.inputs.iter().filter(|job| job.0 == now).for_each(|(_, job)| engine.submit_inputs(job));
            for &(from, until, job) in &self.pauses {
                if now == from || now == until {
                    engine.set_paused(job, now == from);
                }
            }
            self.cancels.iter().filter(|cancel| cancel.0 == now).for_each(|&(_, job)| engine.cancel(job));
            if now > 60 && engine.is_idle() {
                break;
            }
            engine.step(&mut events).unwrap();
            *under_way += usize::from(engine.flight.is_some());
            engine.check();
            for Event { job, choice, mut kind } in events.drain(..) {
                match &mut kind {
                    EventKind::Started { cached_tokens } => *cached_tokens = 0,
                    EventKind::Finished { usage, .. } => {
                        *usage =
                            Usage { cached_tokens: 0, draft_tokens: 0, accepted_draft_tokens: 0, ..*usage };
                    }
                    _ => {}
                }
                let said = found.entry((job, choice)).or_default();
                match (said.last_mut(), kind) {
                    (Some(last @ EventKind::Delta { .. }), kind @ EventKind::Delta { .. }) => {
                        last.append(kind)
                    }
                    (Some(EventKind::Scored(last)), EventKind::Scored(next)) => last.extend(next),
                    (_, kind) => said.push(kind),
                }
            }
        }
        found
    }
}

/// Completions that ran to the end are identical whatever else the engine did: tokens, texts, log probabilities,
/// finish reasons, usage. This holds on an asynchronous device, with draft tokens, and with both.
#[test]
fn however_it_is_computed_the_same_is_said() {
    let (mut finished, mut preemptions, mut cancelled, mut under_way) = (0, 0, 0, 0);
    let (mut accepted, mut rejected) = (0, 0);
    for seed in 0..40 {
        let mut random = Random(seed);
        let config = EngineConfig {
            kv_blocks: random.between(6, 40) as usize,
            step_tokens_max: random.between(8, 64) as usize,
            prefill_tokens_beside_decodes: random.between(4, 32) as usize,
            sequences_max: random.between(1, 8) as usize,
            prefix_cache: random.one_in(2),
            ..config()
        };
        let context = random.between(20, (config.kv_blocks as u64 * 16).min(200)) as usize;
        let config = EngineConfig { context_tokens_max: context, ..config };
        let script = Script::new(&mut random, context);
        let ways = [(false, false), (true, false), (false, true), (true, true)];
        let [plain, others @ ..] = ways.map(|(ahead, drafts)| {
            let speculation = if drafts { Speculation::Ngram } else { Speculation::Off };
            let mut engine = engine(EngineConfig { speculation, ..config }, ahead);
            let found = script.play(&mut engine, &mut under_way);
            let stats = engine.stats();
            accepted += stats.accepted_draft_tokens;
            rejected += stats.draft_tokens - stats.accepted_draft_tokens;
            let left = (stats.running, stats.waiting, stats.blocks_used, engine.has_work());
            assert_eq!(left, (0, 0, 0, false), "seed {seed}: something is left");
            preemptions += stats.preemptions;
            found
        });
        let ends = |kinds: &[EventKind]| {
            let end = |kind: &&EventKind| matches!(kind, EventKind::Finished { .. } | EventKind::Computed(_));
            kinds.iter().filter(end).count()
        };
        let empty = Vec::new();
        for (key, other) in plain.iter().chain(others.iter().flatten()) {
            let one = plain.get(key).unwrap_or(&empty);
            if script.cancels.iter().any(|&(_, job)| job == key.0) {
                // As far as both came.
                let (one, other) = (tokens_said(one), tokens_said(other));
                let both = one.len().min(other.len());
                assert_eq!(one[..both], other[..both], "seed {seed}, {key:?}, cancelled");
                cancelled += 1;
            } else {
                assert_eq!(ends(one), 1, "seed {seed}, {key:?}: {one:?}");
                assert_eq!(one, other, "seed {seed}, {key:?}");
                finished += 1;
            }
        }
    }
    assert!(under_way > 1000, "{under_way} steps were under way while the next was made");
    let seen = [finished, preemptions, cancelled, accepted, rejected];
    let least = [400, 40, 20, 200, 100];
    assert!(seen.iter().zip(least).all(|(&seen, least)| seen > least), "{seen:?}");
}

fn tokens_said(kinds: &[EventKind]) -> Vec<u32> {
    let tokens =
        |kind: &EventKind| if let EventKind::Delta { tokens, .. } = kind { tokens.clone() } else { vec![] };
    kinds.iter().flat_map(tokens).collect()
}

/// Demo model whose layers have these windows in turn. With `keeps`, blocks outside a window are not released.
fn with_windows(windows: &[Option<u32>], keeps: bool) -> OpenedModel {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
    let mut opened = OpenedModel::open(&path).unwrap();
    let Network::Decoder(files) = &mut opened.network else { panic!("a decoder") };
    files.spec = files.spec.clone().with_layers(|layer, spec| {
        spec.attention.mask = Mask::Causal { window: windows[layer % windows.len()] };
    });
    if keeps {
        // A window as long as the context never releases blocks.
        files.spec.context_tokens_max = 1;
    }
    opened
}

/// In any batch, with few or many blocks, with prompts beyond windows, with or without prefix hits: a request sees
/// the same numbers as on an engine that keeps all blocks.
#[test]
fn layers_that_let_go_of_blocks_compute_the_same() {
    let kinds: [&[Option<u32>]; 3] = [&[None, Some(20)], &[Some(33)], &[Some(50), None, Some(7)]];
    let opened = kinds.map(|windows| [true, false].map(|keeps| with_windows(windows, keeps)));
    let (mut finished, mut preemptions, mut hits, mut spared) = (0, 0, 0, 0);
    for seed in 0..30 {
        let mut random = Random(1000 + seed);
        let [kept, let_go] = &opened[seed as usize % 3];
        let [all, spec] = [kept, let_go].map(|opened| &opened.decoder().unwrap().spec);
        let step_tokens_max = random.between(8, 64) as usize;
        let context = random.between(60, 250) as usize;
        let needed = spec.kv_room(step_tokens_max).blocks_of(context);
        assert_eq!(all.kv_groups().count(), 1);
        spared += spec.kv_groups().count() * context.div_ceil(BLOCK_TOKENS) - needed;
        let small = EngineConfig {
            kv_blocks: needed + random.between(0, 12) as usize,
            kv_type: random.or(KvType::F16, KvType::Q8_0),
            step_tokens_max,
            prefill_tokens_beside_decodes: random.between(4, 32) as usize,
            sequences_max: random.between(1, 8) as usize,
            context_tokens_max: context,
            prefix_cache: !random.one_in(4),
            ..config()
        };
        let large = EngineConfig { kv_blocks: 500, sequences_max: 8, prefix_cache: false, ..small };
        let ahead = random.one_in(3);
        let script = Script::new(&mut random, context);
        let [plain, found] = [(kept, large, false), (let_go, small, ahead)].map(|(opened, config, ahead)| {
            let mut engine = engine_of(opened, config, ahead);
            let found = script.play(&mut engine, &mut 0);
            let stats = engine.stats();
            assert_eq!((stats.running, stats.waiting, stats.blocks_used), (0, 0, 0), "seed {seed}");
            preemptions += stats.preemptions;
            hits += stats.prefix_hit_tokens;
            found
        });
        for (key, plain) in plain {
            if script.cancels.iter().all(|&(_, job)| job != key.0) {
                assert_eq!(found.get(&key), Some(&plain), "seed {seed}, {key:?}");
                finished += 1;
            }
        }
    }
    assert!(
        finished > 150 && preemptions > 20 && hits > 500 && spared > 50,
        "{finished} {preemptions} {hits} {spared}"
    );
}

fn tokens_of(engine: &mut Engine, job: &Job) -> (Vec<u32>, u32) {
    engine.submit(job);
    let (mut events, mut found, mut cached) = (Vec::new(), Vec::new(), 0);
    while engine.has_work() {
        engine.step(&mut events).unwrap();
    }
    for event in events {
        match event.kind {
            EventKind::Delta { tokens, .. } => found.extend(tokens),
            EventKind::Started { cached_tokens } => cached = cached_tokens,
            _ => {}
        }
    }
    (found, cached)
}

/// Span of a prompt whose embeddings are those of other tokens.
fn span(first: usize, tokens: &[u32], digest: u8) -> MediaSpan {
    let files = opened().decoder().unwrap();
    let (tensor, hidden) = (files.tensors.get(Part::TokenEmbedding.weight()), files.spec.hidden);
    let mut embedding = vec![0.0; files.spec.vocab * hidden];
    dequantize_row(tensor.dtype, &tensor.bytes, &mut embedding);
    let rows = tokens.iter().flat_map(|&token| &embedding[token as usize * hidden..][..hidden]);
    MediaSpan {
        remembered: [0; 2],
        first,
        tokens: tokens.len(),
        digest: [digest; 32],
        rows: rows.copied().collect(),
        grid: [1, tokens.len() as u32],
        ..MediaSpan::default()
    }
}

#[test]
fn given_rows_are_computed_like_tokens() {
    for ahead in [false, true] {
        let tokens: Vec<u32> = (0..150).map(|i| 300 + i * 7 % 2000).collect();
        let expected = tokens_of(&mut engine(config(), ahead), &job(1, tokens.clone(), 20)).0;
        let mut prompt = tokens.clone();
        prompt[10..75].fill(5);
        prompt[80..81].fill(5);
        prompt[140..150].fill(5);
        let media =
            [span(10, &tokens[10..75], 1), span(80, &tokens[80..81], 2), span(140, &tokens[140..], 3)];
        let given = Job { media: media.into(), ..job(1, prompt.clone(), 20) };
        given.validate(&opened().text_model().unwrap(), 512).unwrap();
        assert_eq!(tokens_of(&mut engine(config(), ahead), &given).0, expected);
        assert_ne!(tokens_of(&mut engine(config(), ahead), &job(1, prompt, 20)).0, expected, "placeholders");
    }
}

#[test]
fn prompts_share_no_block_from_other_media_on() {
    let mut engine = engine(config(), false);
    let prompt: Vec<u32> = (0..120).map(|i| if (40..70).contains(&i) { 5 } else { 300 + i }).collect();
    let with = |id, digest, tokens: &[u32]| Job {
        media: [span(40, tokens, digest)].into(),
        ..job(id, prompt.clone(), 4)
    };
    let (cats, dogs): (Vec<u32>, Vec<u32>) = ((500..530).collect(), (700..730).collect());
    let first = tokens_of(&mut engine, &with(1, 1, &cats));
    assert_eq!(first.1, 0);
    assert_eq!(tokens_of(&mut engine, &with(2, 1, &cats)), (first.0, 112), "the same media");
    let other = tokens_of(&mut engine, &with(3, 2, &dogs));
    assert_eq!(other.1, 32, "what is before other media");
    assert_eq!(tokens_of(&mut engine, &job(4, prompt.clone(), 4)).1, 32, "no media");
    assert_eq!(tokens_of(&mut engine, &with(5, 2, &dogs)), (other.0, 112));
}

/// Runs one job. Returns its events and the number of steps.
fn run(engine: &mut Engine, job: &Job) -> (Vec<Event>, u64) {
    let before = engine.stats().steps;
    engine.submit(job);
    let mut events = Vec::new();
    while engine.has_work() {
        engine.step(&mut events).unwrap();
    }
    (events, engine.stats().steps - before)
}

/// Repeated text takes fewer steps, and a correct prediction fewer still, with the same tokens, greedy and sampled.
#[test]
fn a_copy_takes_fewer_steps() {
    let prompt: Vec<u32> = (0..40).map(|i| 300 + i * 7).collect();
    for temperature in [0.0, 0.8] {
        let sampling = SamplingParams { temperature, seed: 3, ..SamplingParams::default() };
        let plain = Job { sampling, ..job(1, prompt.clone(), 120) };
        let off = EngineConfig { speculation: Speculation::Off, ..config() };
        let (events, slow) = run(&mut engine(off, false), &plain);
        let kinds: Vec<EventKind> = events.into_iter().map(|event| event.kind).collect();
        let tokens = tokens_said(&kinds);
        assert_eq!((tokens.len(), slow), (120, 120), "one token a step");
        let predicted = Job { prediction: tokens.clone().into(), ..plain.clone() };
        let (events, fast) = run(&mut engine(config(), false), &predicted);
        let kinds: Vec<EventKind> = events.into_iter().map(|event| event.kind).collect();
        assert_eq!(tokens_said(&kinds), tokens);
        assert!(fast < slow / 6, "{fast} steps with a prediction, {slow} without");
        let Some(EventKind::Finished { usage, .. }) = kinds.last() else { panic!("no end: {kinds:?}") };
        assert_eq!(u64::from(usage.accepted_draft_tokens), 120 - fast);
        // A wrong prediction costs little, and changes nothing.
        let wrong = Job { prediction: (0..120).map(|i| 900 + i).collect(), ..plain.clone() };
        let (events, steps) = run(&mut engine(config(), false), &wrong);
        let kinds: Vec<EventKind> = events.into_iter().map(|event| event.kind).collect();
        assert_eq!(tokens_said(&kinds), tokens);
        assert!(steps <= slow);
    }
}

#[test]
fn what_is_drawn_after_a_draft_has_the_models_distribution() {
    let prompt: Vec<u32> = (0..20).map(|i| 500 + i * 11).collect();
    let mut engine = engine(config(), false);
    let first = tokens_of(&mut engine, &job(1, prompt.clone(), 3)).0;
    check_distribution(&mut engine, &prompt, &first);
}

/// Checks by Pearson's chi-square that tokens sampled from rows of draft tokens have the model's distribution.
fn check_distribution(engine: &mut Engine, prompt: &[u32], prediction: &[u32]) {
    let sampling = SamplingParams { temperature: 1.5, top_k: 4, logprobs: Some(4), ..Default::default() };
    // For each pair of previous tokens: counts of third tokens, and the four candidates with their log
    // probabilities.
    let mut found = BTreeMap::<Vec<u32>, (BTreeMap<u32, f64>, Vec<(u32, f32)>)>::new();
    for id in 2..150 {
        let sampling = SamplingParams { seed: id * 8, ..sampling.clone() };
        let prediction = prediction.into();
        let (events, _) =
            run(engine, &Job { choices: 8, sampling, prediction, ..job(id, prompt.to_vec(), 3) });
        for choice in 0..8 {
            let of_choice = events.iter().filter(|event| event.choice == choice);
            let logprobs: Vec<crate::job::TextLogprob> = of_choice
                .filter_map(|event| match &event.kind {
                    EventKind::Delta { logprobs, .. } => Some(logprobs.clone()),
                    _ => None,
                })
                .flatten()
                .collect();
            let [one, two, three] = &logprobs[..] else { continue };
            let (one, two, three) = (&one.logprob, &two.logprob, &three.logprob);
            let (counts, top) = found.entry(vec![one.token, two.token]).or_default();
            *counts.entry(three.token).or_default() += 1.0;
            top.clone_from(&three.top);
        }
    }
    let accepted = engine.stats().accepted_draft_tokens;
    assert!(accepted > 50, "{accepted} drafted tokens were drawn: too few to say anything");
    let (mut statistic, mut freedom) = (0.0, 0.0);
    for (counts, top) in found.values() {
        let weights: Vec<f64> = top.iter().map(|&(_, logprob)| f64::from(logprob / 1.5).exp()).collect();
        let (sum, total) = (weights.iter().sum::<f64>(), counts.values().sum::<f64>());
        let (mut rest, mut bins) = ((0.0, 0.0), Vec::new());
        for (&(token, _), weight) in top.iter().zip(&weights) {
            let bin = (counts.get(&token).copied().unwrap_or(0.0), total * weight / sum);
            match bin.1 >= 5.0 {
                true => bins.push(bin),
                false => rest = (rest.0 + bin.0, rest.1 + bin.1),
            }
        }
        bins.extend((rest.1 >= 5.0).then_some(rest));
        statistic += bins.iter().map(|(came, expected)| (came - expected).powi(2) / expected).sum::<f64>();
        freedom += bins.len().saturating_sub(1) as f64;
    }
    // Five standard deviations of this statistic above its mean.
    assert!(
        freedom >= 3.0 && statistic < freedom + 5.0 * f64::sqrt(2.0 * freedom),
        "{statistic} of {freedom}"
    );
}
