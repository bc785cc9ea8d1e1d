//! Tests of the demo model through the whole engine with scheduler, cache and sampler, and the driver.

use std::sync::{Arc, OnceLock};

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_kernels_cuda::CudaBackend;
use hanzo_engine_ops::reference::ReferenceBackend;
use hanzo_engine_ops::{AnyBackend, Backend, DType, KvType, quant};
use hanzo_engine_runtime::decoder::Decoder;
use hanzo_engine_runtime::gguf::{Gguf, TensorEntry, Writer};
use hanzo_engine_runtime::mapped::ModelBytes;
use hanzo_engine_runtime::{
    Engine, EngineConfig, Event, EventKind, Job, JobId, OpenedModel, SamplingParams, Speculation,
    StopConditions,
};
use serde_json::Value;

use crate::driver::card;

pub(crate) const DEMO: &[u8] = include_bytes!("../../../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
/// Output of transformers for the same model in float32.
const GOLDEN: &str = include_str!("../../../../tests/data/golden.json");
const TOKENS: usize = 64;
/// Gap between the two best logits below which other arithmetic may choose the other token.
const MARGIN_MIN: f64 = 0.05;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("an array of ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Prompts with golden output.
pub(crate) fn golden_prompts() -> Vec<Vec<u32>> {
    let golden: Value = serde_json::from_str(GOLDEN).expect("JSON");
    let rows = golden["prompts"].as_array().expect("prompts");
    rows.iter().map(|row| ids(&row["prompt_ids"])).collect()
}

/// Type of the demo model's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// As published. The CPU rounds their inputs to 1/127 of the largest of a block; neither a GPU nor the formula
    /// does.
    Q8_0,
    /// Rounded to F16, which every device multiplies without rounding.
    F16,
}

impl Weights {
    /// File of the model.
    fn gguf(self) -> &'static [u8] {
        static F16: OnceLock<Vec<u8>> = OnceLock::new();
        match self {
            Weights::Q8_0 => DEMO,
            Weights::F16 => F16.get_or_init(in_f16),
        }
    }
}

/// The demo model with its matrices in F16.
fn in_f16() -> Vec<u8> {
    let gguf =
        Gguf::parse("hanzo-demo", &ModelBytes::from_static(DEMO)).expect("the embedded model is sound");
    let dtype = |of: DType| if of == DType::Q8_0 { DType::F16 } else { of };
    let planned: Vec<TensorEntry> = gguf
        .tensors
        .iter()
        .map(|tensor| TensorEntry {
            name: tensor.name.clone(),
            dtype: dtype(tensor.dtype),
            shape: tensor.shape.clone(),
        })
        .collect();
    let path = std::env::temp_dir().join(format!("hanzo-demo-f16-{}.gguf", std::process::id()));
    let mut writer = Writer::create(&path, gguf.metadata.iter(), &planned).expect("a file to write");
    for tensor in &gguf.tensors {
        if tensor.dtype != DType::Q8_0 {
            writer.write(&tensor.bytes).expect("room on the disk");
            continue;
        }
        let mut numbers = vec![0.0; tensor.elements()];
        quant::dequantize_row(tensor.dtype, &tensor.bytes, &mut numbers);
        let mut made = vec![0; 2 * numbers.len()];
        quant::quantize_row(DType::F16, &numbers, &mut made);
        writer.write(&made).expect("room on the disk");
    }
    writer.finish().expect("room on the disk");
    let bytes = std::fs::read(&path).expect("what was written");
    std::fs::remove_file(&path).expect("what was written");
    bytes
}

/// Greedy continuations of all prompts in one batch.
pub(crate) fn continuations(
    backend: impl Backend,
    weights: Weights,
    kv_type: KvType,
    prompts: &[Vec<u32>],
) -> Vec<Vec<u32>> {
    ran_on(AnyBackend::new(backend), weights, kv_type, prompts).0
}

/// Engine of the demo model on a backend.
pub(crate) fn engine(backend: impl Backend, config: EngineConfig) -> Engine {
    engine_on(AnyBackend::new(backend), config)
}

/// Same as `engine`.
pub(crate) fn engine_on(backend: AnyBackend, config: EngineConfig) -> Engine {
    engine_of(backend, Weights::Q8_0, config)
}

fn engine_of(backend: AnyBackend, weights: Weights, config: EngineConfig) -> Engine {
    let opened = OpenedModel::from_static("hanzo-demo", weights.gguf()).expect("the embedded model is sound");
    let text = Arc::new(opened.text_model().expect("the embedded tokenizer is sound"));
    let files = opened.decoder().expect("the embedded model is a decoder");
    let decoder = Decoder::load(&backend, files, &mut |_| ()).expect("the embedded weights are sound");
    let embedder = opened.embedder(&text.tokenizer, config.context_tokens_max).expect("and embeds");
    Engine::new(backend, decoder, text, Arc::new(embedder), config).expect("memory for the demo model")
}

pub(crate) fn config(kv_type: KvType, sequences_max: usize) -> EngineConfig {
    EngineConfig {
        kv_blocks: 256,
        kv_type,
        kv_resident: false,
        step_tokens_max: 64,
        prefill_tokens_beside_decodes: 32,
        sequences_max,
        context_tokens_max: 256,
        prefix_cache: true,
        speculation: Speculation::Off,
    }
}

/// A request for a greedy continuation of a prompt, of so many tokens.
pub(crate) fn job(id: usize, prompt: &[u32], tokens: usize) -> Job {
    Job {
        id: JobId(id as u64),
        prompt: prompt.into(),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        stop: StopConditions { max_tokens: tokens as u32, ignore_eos: true, ..StopConditions::default() },
        ..Job::default()
    }
}

/// Same as `continuations`, with the engine that ran them.
pub(crate) fn ran_on(
    backend: AnyBackend,
    weights: Weights,
    kv_type: KvType,
    prompts: &[Vec<u32>],
) -> (Vec<Vec<u32>>, Engine) {
    let mut engine = engine_of(backend, weights, config(kv_type, prompts.len()));
    for (id, prompt) in prompts.iter().enumerate() {
        engine.submit(job(id, prompt, TOKENS));
    }
    let (mut answers, mut events) = (vec![Vec::new(); prompts.len()], Vec::new());
    while !engine.is_idle() {
        engine.step(&mut events).expect("a step");
        for Event { job, kind, .. } in events.drain(..) {
            match kind {
                EventKind::Delta { tokens, .. } => answers[job.0 as usize].extend(tokens),
                EventKind::Failed => panic!("the demo model computed something that is not a number"),
                _ => {}
            }
        }
    }
    (answers, engine)
}

/// Checks all 64 tokens of every answer against the formula, which rounds for no device. Where choices are not close,
/// also against an independent implementation and the CPU, whose products with these weights round their inputs.
#[test]
fn the_demo_model_says_what_its_formula_says() {
    let golden: Value = serde_json::from_str(GOLDEN).expect("JSON");
    let rows = golden["prompts"].as_array().expect("prompts");
    let prompts = golden_prompts();
    assert_eq!(prompts.len(), 12);
    let pool = Arc::new(ThreadPool::new(2));
    let tier = Tier::detect().expect("a sound HANZO_ENGINE_CPU_TIER, or none");
    let card = card();
    for kv_type in [KvType::F16, KvType::Q8_0] {
        let said_by_formula = continuations(ReferenceBackend::new(), Weights::Q8_0, kv_type, &prompts);
        let on_cpu = continuations(CpuBackend::new(pool.clone(), tier), Weights::Q8_0, kv_type, &prompts);
        let found = continuations(CudaBackend::new(card.clone()), Weights::Q8_0, kv_type, &prompts);
        assert_eq!(found, said_by_formula, "{kv_type}");
        for (at, row) in rows.iter().enumerate() {
            assert_eq!(found[at].len(), TOKENS);
            // Nothing was recorded at and after the end token, which is never drawn here; if a choice is that close,
            // rounding decides.
            let margin = row["smallest_margin_until_eos"].as_f64().expect("a margin");
            let until = row["ids_until_eos"].as_u64().expect("a count") as usize;
            let sure = until - usize::from(until < TOKENS);
            let same = |other: &[u32]| found[at].iter().zip(other).take_while(|(a, b)| a == b).count();
            let (as_cpu, as_golden) = (same(&on_cpu[at]), same(&ids(&row["greedy_ids"])));
            assert!(
                margin < MARGIN_MIN || as_cpu.min(as_golden) >= sure,
                "{kv_type}, prompt {at}: {as_cpu}, {as_golden}"
            );
        }
    }
}

/// Checks all 64 tokens of every answer against the CPU, with weights and a cache for which no device rounds inputs.
#[test]
fn the_demo_model_in_f16_says_what_it_says_on_the_cpu() {
    let prompts = golden_prompts();
    let tier = Tier::detect().expect("a sound HANZO_ENGINE_CPU_TIER, or none");
    let cpu = CpuBackend::new(Arc::new(ThreadPool::new(2)), tier);
    let on_cpu = continuations(cpu, Weights::F16, KvType::F16, &prompts);
    let found = continuations(CudaBackend::new(card()), Weights::F16, KvType::F16, &prompts);
    assert!(found.len() == 12 && found.iter().all(|answer| answer.len() == TOKENS));
    assert_eq!(found, on_cpu);
}
