//! Tests that an engine behind a socket gives the same results as one in this process, whatever the order of
//! requests. If its other end is gone, refuses or hangs, the error says so.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use hanzo_engine_constraints::{Grammar, Spec};
use hanzo_engine_media::PixelLimits;
use hanzo_engine_ops::KvType;
use hanzo_engine_runtime::{
    CallReading, EmbedInput, EmbedJob, Event, EventKind, Job, JobId, Network, OpenedModel, Output, Overrides,
    SamplingParams, Speculation, StepError, StopConditions, Tool, ToolFormat,
    sampler::{DRY_BREAKERS, Dry, Mirostat},
};

use super::{wire::Message, *};
use crate::{clock::Bell, source::ModelSource};

const PATIENCE: Duration = Duration::from_secs(60);

fn section() -> EngineSection {
    EngineSection { threads: Some(2), ..EngineSection::default() }
}

/// Device whose other end is a thread.
fn on_threads(section: &EngineSection) -> IsolatedDevice {
    let start = |stream| {
        thread::spawn(|| child::serve(stream, || ()));
        Ok(None)
    };
    IsolatedDevice::starting(section, &LogConfig::default(), Box::new(start)).unwrap()
}

/// Device whose other end runs `act` after the order to open the model.
fn answering(silence_ms: u64, act: fn(UnixStream)) -> IsolatedDevice {
    let start = move |stream: UnixStream| {
        thread::spawn(move || {
            let mut orders = wire::FrameReader::new(stream.try_clone().unwrap());
            assert!(matches!(orders.next().unwrap(), Some(WorkerOrder::Open(_))));
            act(stream);
        });
        Ok(None)
    };
    let section = EngineSection { worker_silence_ms: silence_ms, ..section() };
    IsolatedDevice::starting(&section, &LogConfig::default(), Box::new(start)).unwrap()
}

fn say(stream: &UnixStream, message: &Message) {
    wire::FrameWriter::new(stream.try_clone().unwrap()).write(message).unwrap();
}

fn size() -> EngineSize {
    EngineSize::Decoder(EngineConfig {
        kv_blocks: 96,
        kv_type: KvType::F16,
        kv_resident: false,
        step_tokens_max: 64,
        prefill_tokens_beside_decodes: 32,
        sequences_max: 8,
        context_tokens_max: 512,
        prefix_cache: true,
        speculation: Speculation::Ngram,
    })
}

fn origin(source: ModelSource) -> Origin {
    Origin {
        source,
        overrides: Overrides::default(),
        draft: None,
        tool_format: None,
        pictures: PixelLimits::default(),
        sharing: None,
        memory: EngineMemory::default(),
        kept: None,
        bell: Bell::default(),
    }
}

/// Model in the test data.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

fn sides(files: &OpenedModel) -> Sides {
    let text = Arc::new(files.text_model().unwrap());
    let embedder = Arc::new(files.embedder(&text.tokenizer, 512).unwrap());
    Sides { text, embedder, listener: None, script: None }
}

fn build(device: &dyn Device, source: ModelSource) -> Result<(Box<dyn Steps>, Sides), LoadError> {
    let files = source.open().unwrap();
    let sides = sides(&files);
    let size = match &files.network {
        Network::Decoder(_) => size(),
        Network::Encoder(_) => EngineSize::Encoder(hanzo_engine_runtime::EncoderConfig {
            step_tokens: 64,
            sequences_max: 4,
            input_tokens_max: 64,
        }),
        Network::Whisper(_) | Network::Voice(_) => panic!("it runs in no process of its own"),
    };
    let engine = device.build(
        &origin(source),
        EngineFiles { model: &files, draft: None },
        sides.clone(),
        size,
        &mut |_| (),
    )?;
    Ok((engine, sides))
}

/// Random generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Job that sets every field a worker must receive.
    fn job(&mut self, id: u64, sides: &Sides) -> Job {
        let text = &sides.text;
        let words = ["Once upon a time", "The cat", "{\"name\":", "one two three one two three"];
        let prompt = text.tokenizer.encode(words[self.below(4) as usize], true).unwrap();
        let spec = match self.below(6) {
            0 => Some(Spec::Regex("[a-z ]{1,20}".to_owned())),
            1 => Some(Spec::Choices(vec!["red".to_owned(), "green apples".to_owned()])),
            _ => None,
        };
        let compiled = |spec: Spec| Grammar::compile(&spec, &text.vocabulary().unwrap()).unwrap();
        let constraint = spec.map(compiled);
        let warm = self.one_in(2);
        Job {
            id: JobId(id),
            choices: 1 + self.below(3) as u32,
            sampling: SamplingParams {
                temperature: if warm { 0.9 } else { 0.0 },
                top_k: self.below(40) as u32,
                min_p: 0.01 * self.below(3) as f32,
                repetition_penalty: 1.0 + 0.1 * self.below(3) as f32,
                mirostat: (warm && self.one_in(4)).then(Mirostat::default),
                dry: self.one_in(3).then(|| Dry {
                    multiplier: 0.8,
                    base: 1.75,
                    allowed_length: 2,
                    last_n: Some(64),
                    breakers: DRY_BREAKERS.map(str::to_owned).into(),
                }),
                logit_bias: vec![(300 + self.below(100) as u32, 3.0)],
                seed: self.below(1000),
                logprobs: self.one_in(3).then_some(2),
                ..SamplingParams::default()
            },
            stop: StopConditions {
                max_tokens: 4 + self.below(40) as u32,
                strings: if self.one_in(3) { vec!["the".to_owned()] } else { Vec::new() },
                ignore_eos: constraint.is_none() && self.one_in(2),
                ..StopConditions::default()
            },
            calls: (constraint.is_none() && self.one_in(4)).then(|| CallReading {
                format: ToolFormat::Hermes,
                tools: Arc::new([Tool {
                    name: "look".to_owned(),
                    parameters: serde_json::json!({"type": "object", "properties": {"at": {"type": "string"}}}),
                    strict: false,
                }]),
                required: false,
                parallel: true,
            }),
            constraint,
            priority: self.below(3) as i32 - 1,
            client: self.one_in(2).then_some(hanzo_engine_runtime::job::ClientId(id % 3)),
            prompt_logprobs: self.one_in(5).then_some(1),
            prediction: if self.one_in(4) { prompt.clone().into() } else { Arc::default() },
            cache_salt: if self.one_in(3) { Arc::new(*b"salt") } else { Arc::default() },
            skip_cache: self.one_in(6),
            prompt: prompt.into(),
            ..Job::default()
        }
    }
}

/// Output of one completion or input, without the parts that depend on timing.
#[derive(Debug, Default, PartialEq)]
struct Came {
    deltas: Option<EventKind>,
    scored: Vec<hanzo_engine_runtime::TokenLogprob>,
    end: Option<String>,
}

impl Came {
    fn add(&mut self, kind: EventKind) {
        assert!(self.end.is_none(), "{kind:?} after the end");
        match kind {
            EventKind::Started { .. } => {}
            EventKind::Scored(scores) => self.scored.extend(scores),
            EventKind::Delta { .. } => match &mut self.deltas {
                Some(deltas) => deltas.append(kind),
                None => self.deltas = Some(kind),
            },
            EventKind::Finished { reason, stop_string, usage } => {
                let usage = (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens);
                self.end = Some(format!("{reason:?} {stop_string:?} {usage:?}"));
            }
            other => self.end = Some(format!("{other:?}")),
        }
    }
}

/// Runs jobs one after the other, pausing, resuming and cancelling some, and collects their output.
fn played(engine: &mut dyn Steps, sides: &Sides, seed: u64) -> BTreeMap<(u64, u32), Came> {
    let mut random = Random(seed);
    let jobs: Vec<Job> = (0..12).map(|id| random.job(id, sides)).collect();
    let cancelled: BTreeSet<u64> = (0..12).filter(|_| random.one_in(6)).collect();
    let (mut came, mut paused) = (BTreeMap::<(u64, u32), Came>::new(), BTreeSet::new());
    let mut left: BTreeMap<u64, u32> =
        jobs.iter().filter(|job| !cancelled.contains(&job.id.0)).map(|job| (job.id.0, job.choices)).collect();
    let (mut next, mut events, since) = (0, Vec::new(), Instant::now());
    while !left.is_empty() {
        assert!(since.elapsed() < PATIENCE, "{left:?} go on");
        if random.one_in(2)
            && let Some(job) = jobs.get(next)
        {
            engine.generator().unwrap().submit(job.into());
            next += 1;
        }
        let id = random.below(12);
        match random.below(8) {
            0 if (id as usize) < next => {
                engine.set_paused(JobId(id), true);
                paused.insert(id);
            }
            1 | 2 => {
                if let Some(id) = paused.pop_first() {
                    engine.set_paused(JobId(id), false);
                }
            }
            3 if cancelled.contains(&id) && (id as usize) < next => engine.cancel(JobId(id)),
            _ => {}
        }
        if next == jobs.len() && !engine.has_work() {
            cancelled.iter().for_each(|&id| engine.cancel(JobId(id)));
            if let Some(id) = paused.pop_first() {
                engine.set_paused(JobId(id), false);
            }
        }
        engine.step(&mut events).unwrap();
        for Event { job, choice, kind } in events.drain(..) {
            if cancelled.contains(&job.0) {
                continue;
            }
            assert!(!paused.contains(&job.0), "an event of a job that is paused");
            let of = came.entry((job.0, choice)).or_default();
            of.add(kind);
            if of.end.is_some() {
                let choices = left.get_mut(&job.0).unwrap();
                *choices -= 1;
                if *choices == 0 {
                    left.remove(&job.0);
                }
            }
        }
    }
    came
}

#[test]
fn an_engine_elsewhere_gives_the_same() {
    let section = section();
    let (here, elsewhere) = (Cpu::new(section.threads).unwrap(), on_threads(&section));
    let (mut engine, sides) = build(&here, ModelSource::Demo).unwrap();
    let (mut remote, _) = build(&elsewhere, ModelSource::Demo).unwrap();
    for seed in 0..6 {
        let expected = played(&mut *engine, &sides, seed);
        // When the local engine pauses a job, the events of the previous step are already out.
        assert_eq!(played(&mut *remote, &sides, seed), expected, "seed {seed}");
    }
}

fn embedded(engine: &mut dyn Steps, sides: &Sides) -> Vec<EventKind> {
    let input = |text: &str| EmbedInput {
        tokens: sides.text.tokenizer.encode(text, true).unwrap().into(),
        ..EmbedInput::default()
    };
    let inputs = vec![input("a cat"), input("the sea at night"), input("a cat")];
    let output = Output::Vector { dimensions: None, normalize: None };
    engine.submit_inputs(&EmbedJob { id: JobId(1000), inputs, output, priority: 0, client: None });
    let (mut events, mut computed, since) = (Vec::new(), BTreeMap::new(), Instant::now());
    while computed.len() < 3 {
        assert!(since.elapsed() < PATIENCE);
        engine.step(&mut events).unwrap();
        for event in events.drain(..) {
            if let EventKind::Computed(_) = &event.kind {
                computed.insert(event.choice, event.kind);
            }
        }
    }
    computed.into_values().collect()
}

#[test]
fn vectors_and_adapters_are_the_same_elsewhere() {
    let section = section();
    let (here, elsewhere) = (Cpu::new(section.threads).unwrap(), on_threads(&section));
    let encoder = || ModelSource::Path(data("encoders/bert-mean"));
    let [mut engine, mut remote] =
        [&here as &dyn Device, &elsewhere].map(|device| build(device, encoder()).unwrap());
    assert!(remote.0.generator().is_none());
    assert_eq!(embedded(&mut *remote.0, &remote.1), embedded(&mut *engine.0, &engine.1));

    let tiny = || ModelSource::Path(data("tiny/qwen3"));
    let files = tiny().open().unwrap();
    let base = files.decoder().unwrap().adapter_base();
    let adapters =
        ["qwen3-all", "qwen3-layer"].map(|name| Adapter::open(&data("adapters").join(name), &base).unwrap());
    let answers = [&here as &dyn Device, &elsewhere].map(|device| {
        let (mut engine, _) = build(device, tiny()).unwrap();
        let mut next = 0;
        let mut ask = |engine: &mut dyn Steps, adapter| {
            next += 1;
            let prompt = (0..40).map(|i| 3 + i * 7 % 150).collect();
            let stop = StopConditions { max_tokens: 12, ignore_eos: true, ..StopConditions::default() };
            let job = Job { id: JobId(next), prompt, adapter, stop, ..Job::default() };
            engine.generator().unwrap().submit((&job).into());
            drop(job);
            let (mut events, mut tokens, since) = (Vec::new(), Vec::new(), Instant::now());
            loop {
                assert!(since.elapsed() < PATIENCE);
                engine.step(&mut events).unwrap();
                for event in events.drain(..) {
                    match event.kind {
                        EventKind::Delta { tokens: more, .. } => tokens.extend(more),
                        EventKind::Finished { .. } => return tokens,
                        _ => {}
                    }
                }
            }
        };
        let mut answers = vec![ask(&mut *engine, None)];
        for adapter in adapters.iter().chain(&adapters) {
            let loaded = engine.generator().unwrap().load_adapter(adapter, Box::new(())).unwrap();
            answers.push(ask(&mut *engine, Some(loaded)));
            engine.generator().unwrap().free_adapters();
        }
        let mut missing = Adapter::open(&data("adapters/qwen3-all"), &base).unwrap();
        missing.digest[0] ^= 1;
        let changed = engine.generator().unwrap().load_adapter(&missing, Box::new(()));
        (answers, changed.map(drop).map_err(|error| error.to_string()))
    });
    let [(expected, _), (answers, changed)] = answers;
    assert_eq!(answers, expected);
    assert_ne!(answers[0], answers[1]);
    assert!(changed.unwrap_err().contains("was changed while it was being loaded"));
}

fn built(device: &IsolatedDevice) -> Result<Box<dyn Steps>, String> {
    build(device, ModelSource::Demo).map(|(engine, _)| engine).map_err(|error| error.to_string())
}

#[test]
fn a_load_that_cannot_be_is_said() {
    let section = section();
    let files = ModelSource::Demo.open().unwrap();
    let gone = origin(ModelSource::Path(PathBuf::from("/no/such/model.gguf")));
    let built_of = on_threads(&section).build(
        &gone,
        EngineFiles { model: &files, draft: None },
        sides(&files),
        size(),
        &mut |_| (),
    );
    let error = built_of.map(drop).unwrap_err().to_string();
    assert!(error.contains("/no/such/model.gguf"), "{error}");
    let error = built(&answering(2_000, drop)).map(drop).unwrap_err();
    assert_eq!(error, "the model's worker left");
    let ended = |stream: UnixStream| say(&stream, &Message::Ended("the roof fell in".to_owned()));
    assert_eq!(built(&answering(2_000, ended)).map(drop).unwrap_err(), "the roof fell in");
    let no_process = IsolatedDevice::starting(
        &section,
        &LogConfig::default(),
        Box::new(|_| Err(io::Error::other("no more of them"))),
    );
    let error = built(&no_process.unwrap()).map(drop).unwrap_err();
    assert_eq!(error, "no process for the model: no more of them");
}

#[test]
fn one_that_is_gone_or_silent_is_lost_and_says_how() {
    let lost = |device: &IsolatedDevice| {
        let (mut engine, mut events, since) = (built(device).unwrap(), Vec::new(), Instant::now());
        loop {
            // A worker with no other work must notice it too.
            if engine.has_work() {
                match engine.step(&mut events) {
                    Ok(_) => {}
                    Err(StepError::Lost { reason }) => return (reason, since.elapsed()),
                    Err(error) => panic!("{error}"),
                }
            } else {
                engine.rest(Some(since + PATIENCE));
            }
            assert!(since.elapsed() < PATIENCE);
        }
    };
    let (reason, after) = lost(&answering(60_000, |stream| say(&stream, &Message::Ready)));
    assert_eq!(reason, "the model's worker left");
    assert!(after < Duration::from_secs(5), "{after:?}");
    let silent = |stream: UnixStream| {
        say(&stream, &Message::Ready);
        say(&stream, &Message::Pulse { in_step: Duration::ZERO, disk: None });
        thread::sleep(PATIENCE);
    };
    let (reason, after) = lost(&answering(400, silent));
    assert!(reason.starts_with("the model's worker was ended: it said nothing for 0.4"), "{reason}");
    assert!(after < Duration::from_secs(5), "{after:?}");
    let stuck = |stream: UnixStream| {
        say(&stream, &Message::Ready);
        say(&stream, &Message::Pulse { in_step: Duration::from_secs(3_000), disk: None });
        thread::sleep(PATIENCE);
    };
    let (reason, _) = lost(&answering(60_000, stuck));
    assert_eq!(reason, "the model's worker was ended: one step ran for 3000 s");
}
