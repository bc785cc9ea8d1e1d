//! Every setting of every small model's files, replaced by what nobody would write there: the model is refused, or it loads
//! and runs. It never panics, and never takes memory that was not counted first. `MUTATIONS=1000` tries that many of each
//! format of quantised weights, and asks that each was done with within a second.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{AnyBackend, KvType};
use hanzo_engine_runtime::decoder::Decoder;
use hanzo_engine_runtime::embedding::PairPrompt;
use hanzo_engine_runtime::encoder::{Encoder, WeightType};
use hanzo_engine_runtime::job::{EmbedJob, Job, JobId, StopConditions};
use hanzo_engine_runtime::tokenizer::CutSide;
use hanzo_engine_runtime::{
    EmbedInput, EncoderConfig, EncoderEngine, Engine, EngineConfig, Network, OpenedModel, Output, Prompt,
    Speculation, Task,
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
/// Changes tried of each format of quantised weights, where `MUTATIONS` does not say.
const CHANGES_OF_FORMATS: usize = 40;
/// What a changed file of a small quantised model may take, beside what there was, and for how long: with `MUTATIONS`, as
/// other tests run beside this one.
const FORMATS_KIB_MAX: u64 = 100 << 10;
const FORMATS_TIME_MAX: Duration = Duration::from_secs(1);
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

/// Where the settings of all JSON files of a folder are.
fn places(folder: &Path) -> Vec<(PathBuf, String)> {
    let (mut files, mut places) = (Vec::new(), Vec::new());
    settings(folder, &mut files);
    for file in files {
        let value: Value = serde_json::from_slice(&std::fs::read(&file).expect("a file of the test"))
            .expect("a file of the test");
        let mut found = Vec::new();
        leaves(&value, String::new(), &mut found);
        places.extend(found.into_iter().map(|place| (file.clone(), place)));
    }
    places
}

fn refused(error: impl ToString) -> String {
    error.to_string()
}

/// Loads a model and runs one request of each kind it takes. The error is why it is refused.
fn run(path: &Path) -> Result<(), String> {
    let opened = OpenedModel::open(path).map_err(refused)?;
    let text = Arc::new(opened.text_model().map_err(refused)?);
    let context = opened.tokens_max().clamp(1, 128);
    let embedder = Arc::new(opened.embedder(&text.tokenizer, context).map_err(refused)?);
    let backend =
        AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().expect("a tier")));
    let inputs = || {
        let side = Some(CutSide::Right);
        let mut inputs = Vec::new();
        if embedder.tasks.iter().any(|task| matches!(task, Task::Embed | Task::Classify)) {
            inputs.extend(
                embedder
                    .text(&text.tokenizer, "The quick brown fox, café 12!", &Prompt::Default, side, &|| {
                        false
                    })
                    .ok(),
            );
        }
        if embedder.pair.as_ref().is_some_and(|pair| !matches!(pair, PairPrompt::Unfit { .. })) {
            inputs.extend(
                embedder.pair(&text.tokenizer, "a question", "an answer", None, side, &|| false).ok(),
            );
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

/// The tests here measure the memory of the process that they share.
fn alone() -> impl Drop {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy of a model, all of whose settings can be changed.
fn copy_of(model: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a file of the test");
    tree(&data(model), copy.path());
    if model.starts_with("tiny/") || model.starts_with("formats/") {
        // Theirs are of a kind that only the library that made them reads.
        let of = if model.contains("bert") { "bert-mean" } else { "qwen3-embedding" };
        let tokenizer = data("encoders").join(of).join("tokenizer.json");
        std::fs::copy(tokenizer, copy.path().join("tokenizer.json")).expect("a file of the test");
    }
    copy
}

/// A number that this process is told of itself, in KiB.
fn of_process(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse().ok())
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
    let _alone = alone();
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
    let _alone = alone();
    let (nasty, mut state, mut ran, mut tried) = (nasty(), 0x9e37_79b9_7f4a_7c15_u64, 0, 0);
    let mut faults = Vec::new();
    for model in MODELS {
        let copy = copy_of(model);
        assert_eq!(run(copy.path()), Ok(()), "{model} as it is");
        let places = places(copy.path());
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
    let Some(peak) = of_process("VmHWM:") else { return };
    assert!(peak < PEAK_KIB_MAX, "{peak} KiB at most");
    println!("{ran} of {tried} ran; {} MiB at most", peak / 1024);
}

/// A file of weights, changed: what its header says of a tensor, a few of its bytes, or its length.
fn changed_weights(whole: &[u8], nasty: &[Value], state: &mut u64) -> (Vec<u8>, String) {
    let header_bytes = u64::from_le_bytes(whole[..8].try_into().expect("a file of the test")) as usize;
    let (header, data) = whole[8..].split_at(header_bytes);
    match draw(state, 4) {
        0 | 1 => {
            let mut value: Value = serde_json::from_slice(header).expect("a file of the test");
            let mut found = Vec::new();
            leaves(&value, String::new(), &mut found);
            let place = &found[draw(state, found.len())];
            const TYPES: [&str; 8] = ["F32", "F16", "BF16", "U8", "I8", "I32", "F8_E4M3", "F64"];
            let new = match place.ends_with("/dtype") && draw(state, 2) == 0 {
                true => json!(TYPES[draw(state, TYPES.len())]),
                false => nasty[draw(state, nasty.len())].clone(),
            };
            let said = format!("{place} = {:.40}", new.to_string());
            *value.pointer_mut(place).expect("a file of the test") = new;
            let header = value.to_string();
            ([&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat(), said)
        }
        2 => {
            let mut bytes = whole.to_vec();
            let from = draw(state, whole.len());
            let count = (1 + draw(state, 64)).min(whole.len() - from);
            bytes[from..from + count].iter_mut().for_each(|byte| *byte = draw(state, 256) as u8);
            (bytes, format!("{count} bytes from {from}"))
        }
        _ => {
            let length = draw(state, whole.len());
            (whole[..length].to_vec(), format!("cut after {length} bytes"))
        }
    }
}

/// Settings and weights of each format of quantised checkpoints.
#[test]
fn quantised_files_that_nobody_would_write_are_refused_or_run() {
    let _alone = alone();
    let asked: Option<usize> = std::env::var("MUTATIONS").ok().map(|count| count.parse().expect("a number"));
    let (nasty, mut state) = (nasty(), 0x1357_9bdf_0246_8ace_u64);
    let mut formats: Vec<String> = std::fs::read_dir(data("formats"))
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| format!("formats/{}", entry.file_name().display()))
        .collect();
    formats.sort();
    assert!(formats.len() > 40, "{} formats", formats.len());
    let (mut faults, mut tried, mut ran, mut slowest, mut most) = (Vec::new(), 0, 0, Duration::ZERO, 0);
    for model in &formats {
        let copy = copy_of(model);
        std::fs::remove_file(copy.path().join("golden.safetensors")).unwrap();
        assert_eq!(run(copy.path()), Ok(()), "{model} as it is");
        let places = places(copy.path());
        let weights = copy.path().join("model.safetensors");
        let whole = std::fs::read(&weights).unwrap();
        // What a change takes at most is then this process's peak from here on.
        let resets = std::fs::write("/proc/self/clear_refs", "5").is_ok();
        let before_kib = of_process("VmRSS:").filter(|_| resets);
        for _ in 0..asked.unwrap_or(CHANGES_OF_FORMATS) {
            let (file, kept, new, said) = match draw(&mut state, 2) {
                0 => {
                    let (file, place) = &places[draw(&mut state, places.len())];
                    let new = &nasty[draw(&mut state, nasty.len())];
                    let kept = std::fs::read(file).unwrap();
                    let mut value: Value = serde_json::from_slice(&kept).unwrap();
                    *value.pointer_mut(place).unwrap() = new.clone();
                    let said = format!("{place} = {:.40}", new.to_string());
                    (file.clone(), kept, value.to_string().into_bytes(), said)
                }
                _ => {
                    let (new, said) = changed_weights(&whole, &nasty, &mut state);
                    (weights.clone(), whole.clone(), new, said)
                }
            };
            std::fs::write(&file, new).unwrap();
            tried += 1;
            let from = Instant::now();
            let name = file.strip_prefix(copy.path()).unwrap().display();
            match catch_unwind(AssertUnwindSafe(|| run(copy.path()))) {
                Ok(came) => ran += usize::from(came.is_ok()),
                Err(_) => faults.push(format!("{model}: {name}: {said}: a panic")),
            }
            if from.elapsed() > FORMATS_TIME_MAX && asked.is_some() {
                faults.push(format!("{model}: {name}: {said}: {:.1} s", from.elapsed().as_secs_f32()));
            }
            slowest = slowest.max(from.elapsed());
            std::fs::write(&file, kept).unwrap();
        }
        if let (Some(before), Some(peak)) = (before_kib, of_process("VmHWM:")) {
            most = most.max(peak.saturating_sub(before));
            if peak.saturating_sub(before) > FORMATS_KIB_MAX {
                faults.push(format!("{model}: {} MiB more than before", (peak - before) / 1024));
            }
        }
    }
    assert!(faults.is_empty(), "{} of {tried}:\n  {}", faults.len(), faults.join("\n  "));
    assert!(ran > tried / 10 && ran < tried, "{ran} of {tried} ran");
    println!("{} formats: {ran} of {tried} ran; {slowest:?} and {} MiB at most", formats.len(), most / 1024);
}
