//! Every setting of every small model's files, replaced by what nobody would write there: the model is refused, or it loads
//! and runs. It never panics, and never takes memory that was not counted first.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hanzo_engine_kernels::KvType;
use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_runtime::decoder::Decoder;
use hanzo_engine_runtime::embedding::PairPrompt;
use hanzo_engine_runtime::encoder::{Encoder, WeightType};
use hanzo_engine_runtime::job::{EmbedInput, EmbedJob, Job, JobId, StopConditions};
use hanzo_engine_runtime::tokenizer::CutSide;
use hanzo_engine_runtime::{
    EncoderConfig, EncoderEngine, Engine, EngineConfig, Network, Opened, Output, Prompt, Speculation, Task,
};
use serde_json::{Value, json};

/// Models whose weights are a directory's, one of each family.
const MODELS: &[&str] = &[
    "tiny/qwen3",
    "tiny/llama3",
    "tiny/llama-linear",
    "tiny/mistral",
    "tiny/mixtral",
    "tiny/qwen2-yarn",
    "tiny/qwen3-moe",
    "tiny/qwen3-moe-mixed",
    "formats/mlx-mixed",
    "formats/gptq-4",
    "formats/awq-gemm",
    "formats/compressed-4",
    "formats/compressed-nvfp4",
    "formats/fp8-blocks",
    "formats/bnb-nf4",
    "formats/hqq-4",
    "encoders/bert-classifier",
    "encoders/bert-cls-dense",
    "encoders/bert-crossencoder",
    "encoders/bert-mean",
    "encoders/bert-splade",
    "encoders/bge-m3",
    "encoders/deberta-v2",
    "encoders/distilbert",
    "encoders/embeddinggemma",
    "encoders/gte-new",
    "encoders/jina-bert-v2",
    "encoders/jina-bert-v2-code",
    "encoders/modernbert",
    "encoders/mpnet",
    "encoders/nomic-bert",
    "encoders/nomic-bert-moe",
    "encoders/qwen3-embedding",
    "encoders/qwen3-reranker",
    "encoders/roberta",
    "encoders/xlm-roberta-reranker",
];
/// Changes tried of each model; all of those there are would take minutes.
const CHANGES: usize = 120;
/// What a small engine may take.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// What this whole process may: the largest engine, what opening takes, and the program.
const PEAK_KIB_MAX: u64 = 1 << 20;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

fn nasty() -> Vec<Value> {
    let mut values = vec![
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(7),
        json!(-1),
        json!(33),
        json!(65_537),
        json!(1_048_576),
        json!(i32::MAX),
        json!(u32::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(0.5),
        json!(-0.0),
        json!(1e-45),
        json!(1e38),
        json!(1e300),
        json!(""),
        json!("mean"),
        json!(true),
        json!(false),
        json!(null),
        json!([]),
        json!([0]),
        json!({}),
    ];
    values.push(json!("x".repeat(10_000)));
    values
}

/// Where the settings of a file are, vocabularies left out.
fn leaves(value: &Value, at: String, found: &mut Vec<String>) {
    let below = |key: &str| format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter().filter(|(key, _)| !matches!(key.as_str(), "vocab" | "merges")) {
                leaves(value, below(key), found);
            }
        }
        // All items of a long list are alike.
        Value::Array(list) => {
            list.iter()
                .take(4)
                .enumerate()
                .for_each(|(index, value)| leaves(value, below(&index.to_string()), found));
        }
        _ => found.push(at),
    }
}

fn tree(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a file of the test").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&to).expect("a file of the test");
            tree(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("a file of the test");
        }
    }
}

/// All JSON files of a folder that a model is read from.
fn settings(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a file of the test").flatten() {
        let path = entry.path();
        if path.is_dir() {
            settings(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "json")
            && !path.ends_with("golden.json")
        {
            found.push(path);
        }
    }
    found.sort();
}

fn refused(error: impl ToString) -> String {
    error.to_string()
}

/// Loads a model and runs one request of each kind it takes. The error is why it is refused.
fn run(path: &Path) -> Result<(), String> {
    let opened = Opened::open(path).map_err(refused)?;
    let text = Arc::new(opened.text_model().map_err(refused)?);
    let context = opened.tokens_max().clamp(1, 128);
    let embedder = Arc::new(opened.embedder(&text.tokenizer, context).map_err(refused)?);
    let backend = CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().expect("a tier"));
    let inputs = || {
        let side = Some(CutSide::Right);
        let mut inputs = Vec::new();
        if embedder.tasks.iter().any(|task| matches!(task, Task::Embed | Task::Classify)) {
            inputs.extend(
                embedder.text(&text.tokenizer, "The quick brown fox, café 12!", &Prompt::Default, side).ok(),
            );
        }
        if embedder.pair.as_ref().is_some_and(|pair| !matches!(pair, PairPrompt::Unfit { .. })) {
            inputs.extend(embedder.pair(&text.tokenizer, "a question", "an answer", None, side).ok());
        }
        inputs
    };
    let output = match embedder.classifier {
        Some(_) => Output::Scores { raw: false },
        None => Output::Vector { dimensions: None, normalize: None },
    };
    let job = |inputs: Vec<EmbedInput>| EmbedJob { id: JobId(1), inputs, output, priority: 0, client: None };
    let mut events = Vec::new();
    match &opened.network {
        Network::Whisper(_) | Network::Voice(_) => return Err(refused("it reads no texts")),
        Network::Encoder(files) => {
            let config = EncoderConfig { step_tokens: 128, sequences_max: 4, input_tokens_max: context };
            if EncoderEngine::memory(&backend, files, WeightType::Stored, &config).total() > MEMORY_BYTES_MAX
            {
                return Err(refused("it takes too much memory"));
            }
            let encoder = Encoder::load(&backend, files, WeightType::Stored, &mut |_| ()).map_err(refused)?;
            let mut engine =
                EncoderEngine::new(backend, encoder, embedder.clone(), config).map_err(refused)?;
            let inputs = inputs();
            if !inputs.is_empty() {
                engine.submit_inputs(&job(inputs));
            }
            while engine.step(&mut events).map_err(refused)?.sequences > 0 {}
        }
        Network::Decoder(files) => {
            let config = EngineConfig {
                kv_blocks: 4 * files.spec.kv_room(128).blocks_of(context),
                kv_type: KvType::F16,
                kv_resident: false,
                step_tokens_max: 128,
                prefill_tokens_beside_decodes: 64,
                sequences_max: 4,
                context_tokens_max: context,
                prefix_cache: true,
                speculation: Speculation::Ngram,
            };
            if Engine::memory(&backend, files, &config).total() > MEMORY_BYTES_MAX {
                return Err(refused("it takes too much memory"));
            }
            config.kv_spec(&files.spec).check().map_err(refused)?;
            let decoder = Decoder::load(&backend, files, &mut |_| ()).map_err(refused)?;
            let mut engine =
                Engine::new(backend, decoder, text.clone(), embedder.clone(), config).map_err(refused)?;
            let inputs = inputs();
            if !inputs.is_empty() {
                engine.submit_inputs(&job(inputs));
            }
            let job = Job {
                id: JobId(2),
                prompt: [1, 5, 9].into(),
                choices: 2,
                stop: StopConditions { max_tokens: 3, min_tokens: 3, ..Default::default() },
                ..Job::default()
            };
            if opened.generates() && job.validate(&text, context).is_ok() {
                engine.submit(&job);
            }
            while engine.step(&mut events).map_err(refused)?.sequences > 0 {}
        }
    }
    Ok(())
}

/// The next of a row of numbers that depends on the seed alone (xorshift64*).
fn draw(state: &mut u64, below: usize) -> usize {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
}

#[test]
fn headers_that_nobody_would_write_are_refused_or_run() {
    const NASTY: [u32; 9] = [0, 1, 3, 33, 0x7f80_0000, 0x7fc0_0000, 0x7fff_ffff, 0x8000_0001, u32::MAX];
    let (mut state, mut ran, mut faults) = (0x0123_4567_89ab_cdef_u64, 0, Vec::new());
    for model in ["bert-mean.gguf", "nomic-bert.gguf", "qwen3-embedding.gguf", "qwen3-reranker.gguf"] {
        let whole = std::fs::read(data("encoders").join(model)).unwrap();
        let copy = tempfile::tempdir().unwrap();
        let path = copy.path().join(model);
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(run(&path), Ok(()), "{model} as it is");
        for _ in 0..CHANGES {
            let mut bytes = whole.clone();
            // Keys and their values are in the first thousands of bytes.
            let (at, new) = (draw(&mut state, 3000), NASTY[draw(&mut state, NASTY.len())]);
            bytes[at..at + 4].copy_from_slice(&new.to_le_bytes());
            std::fs::write(&path, bytes).unwrap();
            match catch_unwind(AssertUnwindSafe(|| run(&path))) {
                Ok(came) => ran += usize::from(came.is_ok()),
                Err(_) => faults.push(format!("{model}: {new:#x} at {at}")),
            }
        }
    }
    assert!(faults.is_empty(), "{} panic:\n  {}", faults.len(), faults.join("\n  "));
    assert!(ran > CHANGES / 10, "only {ran} ran");
}

#[test]
fn settings_that_nobody_would_write_are_refused_or_run() {
    let (nasty, mut state, mut ran, mut tried) = (nasty(), 0x9e37_79b9_7f4a_7c15_u64, 0, 0);
    let mut faults = Vec::new();
    for model in MODELS {
        let copy = tempfile::tempdir().unwrap();
        tree(&data(model), copy.path());
        if model.starts_with("tiny/") || model.starts_with("formats/") {
            // Theirs are of a kind that only the library that made them reads.
            let tokenizer = data("encoders/qwen3-embedding/tokenizer.json");
            std::fs::copy(tokenizer, copy.path().join("tokenizer.json")).unwrap();
        }
        assert_eq!(run(copy.path()), Ok(()), "{model} as it is");
        let mut files = Vec::new();
        settings(copy.path(), &mut files);
        let mut places = Vec::new();
        for file in &files {
            let value: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            let mut found = Vec::new();
            leaves(&value, String::new(), &mut found);
            places.extend(found.into_iter().map(|place| (file.clone(), place)));
        }
        for _ in 0..CHANGES {
            let (file, place) = &places[draw(&mut state, places.len())];
            let new = &nasty[draw(&mut state, nasty.len())];
            let before = std::fs::read(file).unwrap();
            let mut value: Value = serde_json::from_slice(&before).unwrap();
            *value.pointer_mut(place).unwrap() = new.clone();
            std::fs::write(file, value.to_string()).unwrap();
            tried += 1;
            match catch_unwind(AssertUnwindSafe(|| run(copy.path()))) {
                Ok(Ok(())) => ran += 1,
                Ok(Err(_)) => {}
                Err(_) => {
                    let file = file.strip_prefix(copy.path()).unwrap().display().to_string();
                    faults.push(format!("{model}: {file}: {place} = {:.40}", new.to_string()));
                }
            }
            std::fs::write(file, before).unwrap();
        }
    }
    assert!(faults.is_empty(), "{} of {tried} panic:\n  {}", faults.len(), faults.join("\n  "));
    assert!(ran > tried / 10 && ran < tried, "{ran} of {tried} ran");
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")).unwrap();
    let peak: u64 = peak.parse().unwrap();
    assert!(peak < PEAK_KIB_MAX, "{peak} KiB at most");
    println!("{ran} of {tried} ran; {} MiB at most", peak / 1024);
}
