//! Whole models, from texts to vectors and scores, against transformers and sentence-transformers
//! (`tests/data/encoders`, whose script makes the golden results). Results are the same alone, together and in any
//! order.

mod pictures;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{AnyBackend, KvType};
use serde_json::Value;

use super::*;
use crate::decoder::Decoder;
use crate::encoder::{Encoder, WeightType};
use crate::error::RequestError;
use crate::job::{EmbedJob, EventKind, JobId};
use crate::text::TextModel;
use crate::tokenizer::CutSide;
use crate::vision::Tower;
use crate::{EncoderConfig, EncoderEngine, Engine, EngineConfig, Event, Network, OpenedModel, Speculation};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/encoders")
}

/// A model that runs.
struct Model {
    text: Arc<TextModel>,
    embedder: Arc<Embedder>,
    engine: AnyEngine,
    jobs: u64,
}

enum AnyEngine {
    Decoder(Engine),
    Encoder(EncoderEngine),
}

impl Model {
    fn open(path: &Path) -> Model {
        Model::on(path, Tier::detect().unwrap())
    }

    fn on(path: &Path, tier: Tier) -> Model {
        let opened = OpenedModel::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let text = Arc::new(opened.text_model().unwrap());
        let embedder = Arc::new(opened.embedder(&text.tokenizer, 4096).unwrap());
        let pool = Arc::new(ThreadPool::new(2));
        let backend = AnyBackend::new(CpuBackend::new(pool.clone(), tier));
        let engine = match &opened.network {
            Network::Whisper(_) | Network::Voice(_) => panic!("it embeds nothing"),
            Network::Encoder(files) => {
                let config = EncoderConfig {
                    step_tokens: 300,
                    sequences_max: 16,
                    input_tokens_max: embedder.tokens_max,
                };
                let encoder = Encoder::load(&backend, files, WeightType::Stored, &mut |_| ()).unwrap();
                let engine = EncoderEngine::new(backend, encoder, embedder.clone(), config).unwrap();
                AnyEngine::Encoder(match &files.tower {
                    Some(tower) => {
                        let tower =
                            Tower::load(AnyBackend::new(CpuBackend::new(pool, tier)), tower, 1).unwrap();
                        engine.with_tower(Box::new(tower))
                    }
                    None => engine,
                })
            }
            Network::Decoder(files) => {
                let context_tokens_max = files.spec.context_tokens_max as usize;
                let config = EngineConfig {
                    kv_blocks: 4 * context_tokens_max.div_ceil(16),
                    kv_type: KvType::F16,
                    kv_resident: false,
                    step_tokens_max: 100,
                    prefill_tokens_beside_decodes: 50,
                    sequences_max: 16,
                    context_tokens_max,
                    prefix_cache: true,
                    speculation: Speculation::Ngram,
                };
                let decoder = Decoder::load(&backend, files, &mut |_| ()).unwrap();
                let engine = Engine::new(backend, decoder, text.clone(), embedder.clone(), config).unwrap();
                AnyEngine::Decoder(match &files.tower {
                    Some(tower) => {
                        let tower = Tower::load(
                            AnyBackend::new(CpuBackend::new(pool, tier)),
                            tower,
                            context_tokens_max,
                        )
                        .unwrap();
                        engine.with_tower(Box::new(tower))
                    }
                    None => engine,
                })
            }
        };
        Model { text, embedder, engine, jobs: 0 }
    }

    /// Results of inputs in one job.
    fn run(&mut self, inputs: Vec<EmbedInput>, output: Output) -> Vec<EmbedResult> {
        self.jobs += 1;
        let mut results = vec![None; inputs.len()];
        let job = EmbedJob { id: JobId(self.jobs), inputs, output, priority: 0, client: None };
        match &mut self.engine {
            AnyEngine::Decoder(engine) => engine.submit_inputs(&job),
            AnyEngine::Encoder(engine) => engine.submit_inputs(&job),
        }
        let mut events = Vec::new();
        loop {
            let has_work = match &mut self.engine {
                AnyEngine::Decoder(engine) => {
                    engine.step(&mut events).unwrap();
                    engine.has_work()
                }
                AnyEngine::Encoder(engine) => {
                    engine.step(&mut events).unwrap();
                    engine.has_work()
                }
            };
            for Event { choice, kind, .. } in events.drain(..) {
                match kind {
                    EventKind::Started { .. } => {}
                    EventKind::Computed(computed) => results[choice as usize] = Some(computed),
                    other => panic!("{other:?}"),
                }
            }
            if !has_work {
                return results.into_iter().map(|result| result.expect("an input was forgotten")).collect();
            }
        }
    }

    fn text_input(&self, text: &str, prompt: &Prompt) -> EmbedInput {
        self.embedder.text(&self.text.tokenizer, text, prompt, Some(CutSide::Right), &|| false).unwrap()
    }
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn dense(computed: &EmbedResult) -> &[f32] {
    match computed {
        EmbedResult::Dense { values, .. } => values,
        EmbedResult::Sparse(_) => panic!("sparse"),
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

/// Tolerance for a decoder, whose KV cache has half precision.
const HALVES: f64 = 1e-4;
/// Tolerance for an encoder.
const FLOATS: f64 = 1e-6;

/// Checks the vectors of every embedding in a golden file: against the reference, and alone, together and reversed.
fn check_embeddings(name: &str, golden: &str) -> usize {
    let mut model = Model::open(&data().join(name));
    let text = std::fs::read_to_string(data().join(golden).join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let apart = if matches!(model.engine, AnyEngine::Decoder(_)) { HALVES } else { FLOATS };
    let mut checked = 0;
    let mut plain = Vec::new();
    for case in golden["embeddings"].as_array().unwrap() {
        let has = |key: &str| case.get(key).is_some_and(|value| !value.is_null());
        // Another model's pooling, which is checked with its own files; or no prompt where there is one by default.
        if has("pooling") || has("prompt") {
            continue;
        }
        let prompt = match (case["prompt_name"].as_str(), case["instruction"].as_str()) {
            (Some(name), _) => Prompt::Named(name.to_owned()),
            (_, Some(task)) => Prompt::Instruction(task.to_owned()),
            _ => Prompt::Default,
        };
        let input = model.text_input(case["text"].as_str().unwrap(), &prompt);
        let dimensions = case["truncate_dim"].as_u64().map(|dimensions| dimensions as usize);
        let output = Output::Vector { dimensions, normalize: case["normalize"].as_bool() };
        let computed = model.run(vec![input.clone()], output);
        let (vector, expected) = (dense(&computed[0]), numbers(&case["vector"]));
        let close = cosine(vector, &expected);
        assert!(close > 1.0 - apart, "{name} {case}: cosine {close}, {} tokens", input.tokens.len());
        // sentence-transformers cuts a vector after normalising it; we normalise the cut vector.
        if dimensions.is_none() || case["normalize"] == true {
            let (ours, theirs) = (length(vector), length(&expected));
            assert!((ours / theirs - 1.0).abs() < apart.sqrt(), "{name}: length {ours}, not {theirs}");
        }
        if dimensions.is_none() && !has("normalize") {
            plain.push((input, computed.into_iter().next().unwrap()));
        }
        checked += 1;
    }
    let output = Output::Vector { dimensions: None, normalize: None };
    let (inputs, alone): (Vec<_>, Vec<_>) = plain.into_iter().unzip();
    assert_eq!(model.run(inputs.clone(), output), alone, "{name}: together as alone");
    let mut backwards = model.run(inputs.into_iter().rev().collect(), output);
    backwards.reverse();
    assert_eq!(backwards, alone, "{name}: in any order");
    checked
}

#[test]
fn embeddings_are_those_of_sentence_transformers() {
    let mut checked = 0;
    for name in [
        "bert-mean",
        "bert-cls-dense",
        "bert-pooling-all",
        "roberta",
        "distilbert",
        "mpnet",
        "modernbert",
        "nomic-bert",
        "nomic-bert-moe",
        "gte-new",
        "jina-bert-v2",
        "jina-bert-v2-code",
        "deberta-v2",
        "bge-m3",
        "embeddinggemma",
        "qwen3-embedding",
        "qwen2-embedding",
        "llama-embedding-mean",
    ] {
        let here = check_embeddings(name, name);
        assert!(here >= 5, "{name}: only {here} cases");
        checked += here;
    }
    assert!(checked > 120, "{checked}");
}

#[test]
fn embeddings_of_gguf_files_are_those_of_their_twins() {
    for (file, twin) in [
        ("bert-mean.gguf", "bert-mean"),
        ("nomic-bert.gguf", "nomic-bert"),
        ("qwen3-embedding.gguf", "qwen3-embedding"),
        ("qwen3-embedding-without-eos.gguf", "qwen3-embedding"),
    ] {
        let mut of_file = Model::open(&data().join(file));
        let mut of_twin = Model::open(&data().join(twin));
        let output = Output::Vector { dimensions: None, normalize: Some(true) };
        for text in ["The quick brown fox jumps over the lazy dog.", "naïve café, 42!", "a"] {
            // Neither file's prompts: GGUF has none.
            let prompt = Prompt::Default;
            let (of_file_input, mut of_twin_input) =
                (of_file.text_input(text, &prompt), of_twin.text_input(text, &prompt));
            if of_twin.embedder.spec.default_prompt.is_some() {
                of_twin_input = of_file_input.clone();
            }
            assert_eq!(of_file_input.tokens, of_twin_input.tokens, "{file}: {text}");
            let ours = of_file.run(vec![of_file_input], output);
            let theirs = of_twin.run(vec![of_twin_input], output);
            let close = cosine(dense(&ours[0]), dense(&theirs[0]));
            assert!(close > 1.0 - HALVES, "{file}: cosine {close}");
        }
    }
}

#[test]
fn every_pooling_is_that_of_sentence_transformers() {
    let text = std::fs::read_to_string(data().join("bert-pooling-all/golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let cases = golden["embeddings"].as_array().unwrap();
    let mut checked = 0;
    for folder in std::fs::read_dir(data().join("bert-pooling-all/poolings")).unwrap() {
        let folder = folder.unwrap();
        let mode = folder.file_name().into_string().unwrap();
        // The model with another pooling in its place.
        let copy = tempfile::tempdir().unwrap();
        copy_tree(&data().join("bert-pooling-all"), copy.path());
        std::fs::copy(pooling_config(&folder.path()), copy.path().join("1_Pooling/config.json")).unwrap();
        let mut model = Model::open(copy.path());
        for case in cases.iter().filter(|case| case["pooling"] == mode.as_str()) {
            let prompt = match case["prompt_name"].as_str() {
                Some(name) => Prompt::Named(name.to_owned()),
                None => Prompt::Default,
            };
            let input = model.text_input(case["text"].as_str().unwrap(), &prompt);
            let computed = model.run(vec![input], Output::Vector { dimensions: None, normalize: None });
            let close = cosine(dense(&computed[0]), &numbers(&case["vector"]));
            assert!(close > 1.0 - FLOATS, "{mode} {case}: cosine {close}");
            checked += 1;
        }
    }
    assert!(checked >= 40, "{checked}");
}

#[test]
fn weights_of_pytorch_are_those_of_safetensors() {
    let pytorch = |name: &str| data().join("../pytorch").join(name);
    // Weights in a single file, weights with an index, and weights of a module.
    for (case, indexed, modules) in
        [("bert-mean", false, &[][..]), ("bert-cls-dense", true, &[("2_Dense", "dense.bin")])]
    {
        let copy = tempfile::tempdir().unwrap();
        copy_tree(&data().join(case), copy.path());
        let names = safetensors_names(&copy.path().join("model.safetensors"));
        std::fs::remove_file(copy.path().join("model.safetensors")).unwrap();
        let error = OpenedModel::open(copy.path()).unwrap_err().to_string();
        assert!(error.contains("pytorch_model.bin"), "{error}");
        let file = if indexed { "pytorch_model-00001-of-00001.bin" } else { "pytorch_model.bin" };
        std::fs::copy(pytorch(&format!("{case}.bin")), copy.path().join(file)).unwrap();
        if indexed {
            let map: serde_json::Map<String, Value> =
                names.into_iter().map(|name| (name, file.into())).collect();
            let index = serde_json::json!({"metadata": {}, "weight_map": map}).to_string();
            std::fs::write(copy.path().join("pytorch_model.bin.index.json"), index).unwrap();
        }
        for (folder, file) in modules {
            let folder = copy.path().join(folder);
            std::fs::remove_file(folder.join("model.safetensors")).unwrap();
            std::fs::copy(pytorch(file), folder.join("pytorch_model.bin")).unwrap();
        }
        let opened = OpenedModel::open(copy.path()).unwrap();
        assert_eq!((opened.info().format, opened.info().files.len()), ("pytorch", 1), "{case}");
        let (mut ours, mut twin) = (Model::open(copy.path()), Model::open(&data().join(case)));
        for text in ["The quick brown fox jumps over the lazy dog.", "a"] {
            let output = || Output::Vector { dimensions: None, normalize: None };
            let input = ours.text_input(text, &Prompt::Default);
            assert_eq!(ours.run(vec![input.clone()], output()), twin.run(vec![input], output()), "{case}");
        }
    }
}

#[test]
fn folders_of_the_first_releases_open() {
    // A vocabulary instead of a tokenizer, and the network in a folder, beside a config.json of another kind.
    let folder = tempfile::tempdir().unwrap();
    copy_tree(&data().join("bert-mean"), folder.path());
    let inner = folder.path().join("0_Transformer");
    std::fs::create_dir(&inner).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer_config.json", "sentence_bert_config.json"] {
        std::fs::rename(folder.path().join(name), inner.join(name)).unwrap();
    }
    let tokenizer: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("tokenizer.json")).unwrap()).unwrap();
    let mut vocab: Vec<(&String, u64)> = tokenizer["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(token, id)| (token, id.as_u64().unwrap()))
        .collect();
    vocab.sort_by_key(|&(_, id)| id);
    let lines: String = vocab.iter().map(|(token, _)| format!("{token}\n")).collect();
    std::fs::write(inner.join("vocab.txt"), &lines).unwrap();
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let write =
        |name: &str, value: Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    write("config.json", serde_json::json!({"__version__": "0.3.0"}));
    let path = folder.path().join("modules.json");
    let mut modules: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    modules[0]["path"] = "0_Transformer".into();
    write("modules.json", modules);
    let (mut ours, mut twin) = (Model::open(folder.path()), Model::open(&data().join("bert-mean")));
    let golden = std::fs::read_to_string(data().join("bert-mean/golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    for case in golden["embeddings"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let (input, theirs) =
            (ours.text_input(text, &Prompt::Default), twin.text_input(text, &Prompt::Default));
        assert_eq!((&input.tokens, &input.types), (&theirs.tokens, &theirs.types), "{text}");
        let output = || Output::Vector { dimensions: None, normalize: None };
        assert_eq!(ours.run(vec![input], output()), twin.run(vec![theirs], output()), "{text}");
    }
    // Errors name what is invalid in a BERT vocabulary.
    let refused = |file: &str, content: &str, expected: &str| {
        let before = std::fs::read(inner.join(file)).unwrap();
        std::fs::write(inner.join(file), content).unwrap();
        let error = OpenedModel::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} in {error:?}");
        std::fs::write(inner.join(file), before).unwrap();
    };
    refused("vocab.txt", "a\nb\n", "there is no [CLS] in it");
    refused("tokenizer_config.json", r#"{"tokenizer_class": "BertJapaneseTokenizer"}"#, "tokenizer_class");
    refused("tokenizer_config.json", r#"{"do_basic_tokenize": false}"#, "do_basic_tokenize = false");
    refused("tokenizer_config.json", r#"{"do_lower_case": "no"}"#, "do_lower_case");
}

fn safetensors_names(path: &Path) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = ::safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    header.offset_keys()
}

fn pooling_config(path: &Path) -> PathBuf {
    let inner = path.join("config.json");
    if inner.exists() { inner } else { path.join("1_Pooling/config.json") }
}

fn copy_tree(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn scores_are_those_of_transformers() {
    let mut checked = 0;
    for name in [
        "bert-classifier",
        "bert-multilabel",
        "bert-crossencoder",
        "distilbert-classifier",
        "roberta-classifier",
        "xlm-roberta-reranker",
        "modernbert-classifier",
        "modernbert-classifier-cls",
        "gte-new-reranker",
        "deberta-v2-classifier",
        "qwen3-reranker",
    ] {
        let mut model = Model::open(&data().join(name));
        checked += check_scores(&mut model, name, name);
    }
    let mut model = Model::open(&data().join("qwen3-reranker.gguf"));
    checked += check_scores(&mut model, "qwen3-reranker.gguf", "qwen3-reranker");
    assert!(checked > 60, "{checked}");
}

fn check_scores(model: &mut Model, name: &str, golden: &str) -> usize {
    let text = std::fs::read_to_string(data().join(golden).join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let cases = golden["scores"].as_array().unwrap();
    let decoder = matches!(model.engine, AnyEngine::Decoder(_));
    let all = cases.iter().flat_map(|case| numbers(&case["logits"])).chain([0.0]);
    let (least, most) = all.fold((0_f32, 0_f32), |(least, most), logit| (least.min(logit), most.max(logit)));
    let range = (most - least).max(1.0);
    let mut inputs = Vec::new();
    for case in cases {
        let tokenizer = &model.text.tokenizer;
        let cut = Some(CutSide::Right);
        let input = if let Some(query) = case["query"].as_str() {
            let (document, task) = (case["document"].as_str().unwrap(), case["instruction"].as_str());
            model.embedder.pair(tokenizer, query, document, task, cut, &|| false).unwrap()
        } else if let Some([first, second]) = case["pair"].as_array().map(Vec::as_slice) {
            let (first, second) = (first.as_str().unwrap(), second.as_str().unwrap());
            model.embedder.pair(tokenizer, first, second, None, cut, &|| false).unwrap()
        } else {
            model.text_input(case["text"].as_str().unwrap(), &Prompt::Default)
        };
        let tokens: Vec<f32> = input.tokens.iter().map(|&token| token as f32).collect();
        assert_eq!(tokens, numbers(&case["tokens"]), "{name}: {case}");
        let logits = model.run(vec![input.clone()], Output::Scores { raw: true });
        let scores = model.run(vec![input.clone()], Output::Scores { raw: false });
        let (mut expected_logits, mut expected_scores) =
            (numbers(&case["logits"]), numbers(&case["probabilities"]));
        if case["query"].is_string() {
            // The reference has separate values for no and yes; ours is their difference.
            expected_logits = vec![expected_logits[1] - expected_logits[0]];
            expected_scores = vec![expected_scores[1]];
        }
        // Tolerance relative to the range of all logits, as in the families' tests; probabilities have a range of
        // 1. The KV cache of decoders has half precision.
        for (ours, theirs, range) in
            [(dense(&logits[0]), expected_logits, range), (dense(&scores[0]), expected_scores, 1.0)]
        {
            for (ours, theirs) in ours.iter().zip(&theirs) {
                let bound = if decoder { 2e-2 * theirs.abs().max(1.0) } else { 1e-4 * range };
                assert!((ours - theirs).abs() < bound, "{name} {case}: {ours} is not {theirs}");
            }
        }
        inputs.push((input, logits.into_iter().next().unwrap()));
    }
    let (inputs, alone): (Vec<_>, Vec<_>) = inputs.into_iter().unzip();
    assert_eq!(model.run(inputs, Output::Scores { raw: true }), alone, "{name}: together as alone");
    cases.len()
}

#[test]
fn sparse_weights_are_golden() {
    // A masked-language head, and a layer that computes sparse weights from hidden states.
    for name in ["bert-splade", "bge-m3"] {
        let opened = OpenedModel::open(&data().join(name)).unwrap();
        assert_eq!(opened.tasks(), [Task::Embed, Task::EmbedSparse], "{name}");
        let mut model = Model::open(&data().join(name));
        let text = std::fs::read_to_string(data().join(name).join("golden.json")).unwrap();
        let golden: Value = serde_json::from_str(&text).unwrap();
        let cases = golden["sparse"].as_array().unwrap();
        let input =
            |model: &Model, case: &Value| model.text_input(case["text"].as_str().unwrap(), &Prompt::Default);
        for case in cases {
            let input = input(&model, case);
            let EmbedResult::Sparse(weights) = model.run(vec![input], Output::Sparse).remove(0) else {
                panic!("dense")
            };
            let expected = case["weights"].as_object().unwrap();
            for (token, weight) in &weights {
                let theirs = expected.get(&token.to_string());
                let theirs = theirs.map_or(0.0, |value| value.as_f64().unwrap() as f32);
                assert!((weight - theirs).abs() < 1e-4, "{name}, {token}: {weight} is not {theirs}");
            }
            let ours: Vec<String> = weights.iter().map(|(token, _)| token.to_string()).collect();
            for (token, weight) in expected {
                assert!(
                    ours.contains(token) || weight.as_f64().unwrap() < 1e-4,
                    "{name}, {token} is missing"
                );
            }
        }
        // Together with vectors of the same texts in one step.
        let inputs: Vec<EmbedInput> = cases.iter().map(|case| input(&model, case)).collect();
        let alone: Vec<EmbedResult> =
            inputs.iter().flat_map(|input| model.run(vec![input.clone()], Output::Sparse)).collect();
        assert_eq!(model.run(inputs, Output::Sparse), alone, "{name}: together as alone");
    }
}

#[test]
fn what_a_model_cannot_be_asked_is_said() {
    let model = Model::open(&data().join("bert-mean"));
    let tokenizer = &model.text.tokenizer;
    let text =
        |text: &str, prompt: Prompt, cut| model.embedder.text(tokenizer, text, &prompt, cut, &|| false);
    assert!(text("", Prompt::Default, None).unwrap_err().to_string().contains("empty"));
    let named = text("a", Prompt::Named("nonsense".into()), None).unwrap_err().to_string();
    assert!(named.contains("prompt_name") && named.contains("passage"), "{named}");
    let instruction = text("a", Prompt::Instruction("b".into()), None).unwrap_err().to_string();
    assert!(instruction.contains("instruction"), "{instruction}");
    let long = "word ".repeat(1000);
    let error = text(&long, Prompt::Default, None).unwrap_err();
    assert!(matches!(error, RequestError::InputLength { .. }), "{error}");
    for side in [CutSide::Left, CutSide::Right] {
        let input = text(&long, Prompt::Default, Some(side)).unwrap();
        assert_eq!(input.tokens.len(), model.embedder.tokens_max);
    }
    assert!(model.embedder.tokens(&[], None).is_err());
    assert!(model.embedder.tokens(&[1 << 30], None).unwrap_err().to_string().contains("vocabulary"));
}
