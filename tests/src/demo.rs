//! The demo model on an engine of its own, with no daemon around it.

use std::sync::{Arc, OnceLock};

use hanzo_engine_daemon::DEMO_GGUF;
use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::AnyBackend;
use hanzo_engine_runtime::{
    Engine, EngineConfig, Event, EventKind, FinishReason, Job, JobId, OpenedModel, SamplingParams,
    Speculation, StopConditions, TextModel,
    chat::{Chat, Message},
    decoder::Decoder,
};
use serde_json::Value;

fn opened() -> OpenedModel {
    OpenedModel::from_static("hanzo-demo", DEMO_GGUF).expect("the embedded model is sound")
}

/// Its tokenizer and template.
pub fn text() -> Arc<TextModel> {
    static TEXT: OnceLock<Arc<TextModel>> = OnceLock::new();
    TEXT.get_or_init(|| Arc::new(opened().text_model().expect("the embedded tokenizer is sound"))).clone()
}

/// An engine with room for everything at once.
pub fn engine() -> Engine {
    engine_with(|_| ())
}

/// An engine of another size.
pub fn engine_with(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig {
        kv_blocks: 2048,
        kv_type: hanzo_engine_ops::KvType::F16,
        kv_resident: false,
        step_tokens_max: 512,
        prefill_tokens_beside_decodes: 128,
        sequences_max: 32,
        context_tokens_max: 4096,
        prefix_cache: true,
        speculation: Speculation::Ngram,
    };
    change(&mut config);
    static POOL: OnceLock<Arc<ThreadPool>> = OnceLock::new();
    let pool = POOL.get_or_init(|| Arc::new(ThreadPool::new(2))).clone();
    let backend = AnyBackend::new(CpuBackend::new(
        pool,
        Tier::detect().expect("a sound HANZO_ENGINE_CPU_TIER, or none"),
    ));
    let (opened, text) = (opened(), text());
    let files = opened.decoder().expect("the embedded model is a decoder");
    let decoder = Decoder::load(&backend, files, &mut |_| ()).expect("the embedded weights are sound");
    let embedder = opened.embedder(&text.tokenizer, config.context_tokens_max).expect("and embeds");
    Engine::new(backend, decoder, text, Arc::new(embedder), config).expect("memory for the demo model")
}

/// A conversation from the JSON of the model's evaluation.
pub fn chat(messages: &Value, tools: &Value, enable_thinking: bool) -> Chat {
    let message = |value: &Value| Message {
        role: value["role"].as_str().expect("a role").to_string(),
        content: value["content"].as_str().unwrap_or_default().to_string(),
        tool_calls: value["tool_calls"].as_array().cloned().unwrap_or_default(),
        reasoning_content: value["reasoning_content"].as_str().map(str::to_string),
        ..Message::default()
    };
    let mut kwargs = serde_json::Map::new();
    kwargs.insert("enable_thinking".into(), enable_thinking.into());
    Chat {
        messages: messages.as_array().expect("messages").iter().map(message).collect(),
        tools: tools.as_array().cloned().unwrap_or_default(),
        kwargs,
        add_generation_prompt: true,
        continue_final_message: false,
        pictures: 0,
        sounds: 0,
    }
}

/// A prompt and how to go on from it.
#[derive(Clone, Debug)]
pub struct Asked {
    prompt: Vec<u32>,
    sampling: SamplingParams,
    stop: StopConditions,
}

impl Asked {
    /// Take the most likely token, 64 times at most.
    pub fn greedy(prompt: Vec<u32>) -> Asked {
        let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        Asked { prompt, sampling, stop: StopConditions { max_tokens: 64, ..StopConditions::default() } }
    }

    /// So many tokens at most.
    pub fn tokens(mut self, max_tokens: u32) -> Asked {
        self.stop.max_tokens = max_tokens;
        self
    }

    /// The end token is a token like any other.
    pub fn past_the_end(mut self) -> Asked {
        self.stop.ignore_eos = true;
        self
    }

    /// Draw at temperature 1 instead.
    pub fn drawn(mut self, seed: u64) -> Asked {
        self.sampling.temperature = 1.0;
        self.sampling.seed = seed;
        self
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The text, special tokens left out.
    pub text: String,
    /// The tokens, the end token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub reason: Option<FinishReason>,
}

/// Runs all of them at once, to the end.
pub fn run(engine: &mut Engine, asked: impl IntoIterator<Item = Asked>) -> Vec<Answer> {
    let mut answers = Vec::new();
    for (id, one) in asked.into_iter().enumerate() {
        let job = Job {
            id: JobId(id as u64),
            prompt: one.prompt.into(),
            sampling: one.sampling,
            stop: one.stop,
            ..Job::default()
        };
        job.validate(engine.text(), 4096).expect("a sound job");
        engine.submit(&job);
        answers.push(Answer::default());
    }
    let mut events = Vec::new();
    while !engine.is_idle() {
        let report = engine.step(&mut events).expect("a step");
        assert!(report.sequences > 0 || !events.is_empty(), "there is work and nothing runs");
        for Event { job, kind, .. } in events.drain(..) {
            let answer = &mut answers[job.0 as usize];
            match kind {
                EventKind::Started { .. } | EventKind::Scored(_) => {}
                EventKind::Delta { text, tokens, .. } => {
                    answer.text.push_str(&text);
                    answer.tokens.extend(tokens);
                }
                EventKind::Finished { reason, .. } => answer.reason = Some(reason),
                EventKind::Computed(_)
                | EventKind::Heard(_)
                | EventKind::Said(_)
                | EventKind::Unsayable { .. } => panic!("nothing was to be embedded or heard"),
                EventKind::Failed => panic!("the demo model computed something that is not a number"),
                EventKind::ConstraintFailed { reason } => panic!("there was no constraint: {reason}"),
            }
        }
    }
    assert!(answers.iter().all(|answer| answer.reason.is_some()), "an answer never ended");
    answers
}
