//! Files of models: what is no file, what makes no sense to the tokenizer, what does not fit. Each is refused by name, and the daemon answers after it as before.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use hanzo_engine_proto::v1::{
    EmbedInput, EmbedRequest, LoadRequest, RerankRequest, ShowRequest, StatsRequest, UnloadRequest,
    embed_input::Input,
};
use hanzo_engine_tests::rig::Rig;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::bloat::opened;

/// Longer than any of these takes on a slow machine, and shorter than for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

/// A copy of a model's directory, to be spoilt.
pub(crate) fn copy(name: &str) -> TempDir {
    fn tree(from: &Path, to: &Path) {
        for entry in std::fs::read_dir(from).expect("a model").flatten() {
            let to = to.join(entry.file_name());
            if entry.path().is_dir() {
                std::fs::create_dir(&to).expect("a folder");
                tree(&entry.path(), &to);
            } else {
                std::fs::copy(entry.path(), to).expect("a copy");
            }
        }
    }
    let copy = tempfile::tempdir().expect("a temporary folder");
    tree(&data(name), copy.path());
    copy
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut json: Value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON");
    change(&mut json);
    std::fs::write(path, json.to_string()).expect("written");
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

async fn load(rig: &Rig, path: &Path, alias: &str) -> Result<(), Status> {
    let request = LoadRequest { model: text(path), alias: alias.into(), ..Default::default() };
    let load = async { rig.grpc().await.load(request).await.map(drop) };
    timeout(PATIENCE, load).await.expect("a load ends")
}

async fn show(rig: &Rig, path: &Path) -> Result<(), Status> {
    let request = ShowRequest { model: text(path), known_only: false };
    timeout(PATIENCE, async { rig.grpc().await.show(request).await.map(drop) }).await.expect("a show ends")
}

/// The daemon answers, and no worker was ever restarted.
async fn still_answers(rig: &Rig) {
    let (status, _, answer) = rig.chat("Hello", json!({"max_tokens": 4})).await;
    assert_eq!(status, 200, "{answer}");
    timeout(PATIENCE, async { rig.grpc().await.stats(StatsRequest::default()).await })
        .await
        .expect("in time")
        .expect("stats");
}

fn pipe(path: &Path) {
    drop(std::fs::remove_file(path));
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
}

fn zeros(path: &Path) {
    drop(std::fs::remove_file(path));
    std::os::unix::fs::symlink("/dev/zero", path).expect("a link");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_file_is_refused_by_name_wherever_it_stands() {
    let rig = Rig::start().await;
    let places = [
        ("tiny/qwen3", "config.json"),
        ("tiny/qwen3", "generation_config.json"),
        ("tiny/qwen3", "tokenizer.json"),
        ("tiny/qwen3", "tokenizer_config.json"),
        ("tiny/qwen3", "chat_template.jinja"),
        ("tiny/qwen3", "model.safetensors"),
        ("tiny/qwen3", "model.safetensors.index.json"),
        ("encoders/bert-cls-dense", "config.json"),
        ("encoders/bert-cls-dense", "modules.json"),
        ("encoders/bert-cls-dense", "sentence_bert_config.json"),
        ("encoders/bert-cls-dense", "config_sentence_transformers.json"),
        ("encoders/bert-cls-dense", "1_Pooling/config.json"),
        ("encoders/bert-cls-dense", "2_Dense/config.json"),
        ("encoders/bert-cls-dense", "2_Dense/model.safetensors"),
        ("encoders/bge-m3", "sparse_linear.pt"),
    ];
    for (model, file) in places {
        for (spoil, kind) in [(pipe as fn(&Path), "a named pipe"), (zeros, "a device")] {
            let copy = copy(model);
            spoil(&copy.path().join(file));
            for answer in [show(&rig, copy.path()).await, load(&rig, copy.path(), "").await] {
                let refusal = answer.expect_err(file);
                let said = refusal.message();
                assert!(said.contains(file) && said.contains(kind), "{file}: {said}");
                assert_eq!(refusal.code(), Code::FailedPrecondition, "{said}");
            }
        }
    }
    // In place of weights that are in PyTorch's file, of a vocabulary, and of a GGUF file.
    let copy = copy("encoders/bert-mean");
    std::fs::remove_file(copy.path().join("model.safetensors")).expect("removed");
    zeros(&copy.path().join("pytorch_model.bin"));
    assert!(
        show(&rig, copy.path())
            .await
            .expect_err("refused")
            .message()
            .contains("pytorch_model.bin: is a device")
    );
    std::fs::remove_file(copy.path().join("tokenizer.json")).expect("removed");
    std::fs::copy(data("encoders/bert-mean/model.safetensors"), copy.path().join("model.safetensors"))
        .expect("copied");
    pipe(&copy.path().join("vocab.txt"));
    assert!(
        show(&rig, copy.path()).await.expect_err("refused").message().contains("vocab.txt: is a named pipe")
    );
    for spoil in [pipe as fn(&Path), zeros] {
        let path = copy.path().join("m.gguf");
        spoil(&path);
        for answer in [show(&rig, &path).await, load(&rig, &path, "").await] {
            assert!(answer.is_err());
        }
    }
    still_answers(&rig).await;
    rig.ended().await;
}

/// What is done to a `tokenizer.json`.
type Change = fn(&mut Value);

/// Tokenizers that panicked, or asked for all memory, at their load or at each text.
const TOKENIZERS: &[(&str, Change)] = &[
    ("an empty pattern", |json| {
        json["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x"});
    }),
    ("a pattern of nothing", |json| {
        json["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": "a*"}, "content": ""});
    }),
    ("an empty text", |json| {
        json["normalizer"] = json!({"type": "Replace", "pattern": {"String": ""}, "content": "xy"});
    }),
    ("a split at nothing", |json| {
        json["pre_tokenizer"] =
            json!({"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": true});
    }),
    ("a long pattern", |json| {
        json["normalizer"] =
            json!({"type": "Replace", "pattern": {"Regex": "a".repeat(100_000)}, "content": ""});
    }),
    ("a map of 4 GiB", |json| {
        json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="});
    }),
    ("an empty map", |json| {
        json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="});
    }),
    ("a map that points outside", |json| {
        json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAD///8="});
    }),
    ("no map", |json| json["normalizer"] = json!({"type": "Precompiled"})),
    ("steps that nest", |json| {
        let mut step = json!({"type": "NFC"});
        for _ in 0..50 {
            step = json!({"type": "Sequence", "normalizers": [step]});
        }
        json["normalizer"] = step;
    }),
    ("a mark of nothing", |json| json["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": ""})),
    ("a wrong post-processor", |json| {
        json["post_processor"] = json!({"type": "TemplateProcessing", "single": 7})
    }),
    ("a wrong decoder", |json| json["decoder"] = json!({"type": "Sequence", "decoders": [[[]]]})),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tokenizer_that_makes_no_sense_costs_its_own_load_or_request() {
    let rig = Rig::start().await;
    let mut refused = 0;
    for (what, change) in TOKENIZERS {
        let copy = copy("encoders/bert-mean");
        edit(&copy.path().join("tokenizer.json"), change);
        let (came, peak) = opened(copy.path());
        assert!(peak < 256 * MIB, "{what}: {} MiB: {came}", peak / MIB);
        if load(&rig, copy.path(), "spoilt").await.is_err() {
            refused += 1;
            continue;
        }
        for text in ["a", "Hello, world!", "naïve é 你好"] {
            // An answer or a refusal, and never the end of a worker.
            if let Err(refusal) = embed(&rig, "spoilt", text, false).await {
                assert_eq!(refusal.code(), Code::InvalidArgument, "{what}: {refusal}");
            }
        }
        let unload = UnloadRequest { model: "spoilt".into(), force: true };
        rig.grpc().await.unload(unload).await.expect("unloaded");
    }
    assert!(refused >= 6, "only {refused} were refused at their load");
    still_answers(&rig).await;
    rig.ended().await;
}

async fn embed(rig: &Rig, model: &str, text: &str, truncate: bool) -> Result<(), Status> {
    let input = EmbedInput { input: Some(Input::Text(text.into())) };
    let request = EmbedRequest { model: model.into(), inputs: vec![input], truncate, ..Default::default() };
    timeout(PATIENCE, async { rig.grpc().await.embed(request).await.map(drop) }).await.expect("an answer")
}

async fn rerank(rig: &Rig, model: &str, query: &str, document: &str, truncate: bool) -> Result<(), Status> {
    let documents = vec![document.to_owned()];
    let request =
        RerankRequest { model: model.into(), query: query.into(), documents, truncate, ..Default::default() };
    timeout(PATIENCE, async { rig.grpc().await.rerank(request).await.map(drop) }).await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_without_room_is_refused_with_its_numbers() {
    let rig = Rig::start().await;
    let load_with = async |path: &str, alias: &str, tokens: u32| {
        let request = LoadRequest {
            model: text(&data(path)),
            alias: alias.into(),
            context_tokens_max: tokens,
            ..Default::default()
        };
        timeout(PATIENCE, async { rig.grpc().await.load(request).await.map(drop) })
            .await
            .expect("a load ends")
    };
    // What stands around a question alone is longer than this.
    for path in ["encoders/qwen3-reranker", "encoders/qwen3-reranker.gguf"] {
        let refusal = load_with(path, "small", 64).await.expect_err(path);
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
        let said = refusal.message();
        assert!(
            said.contains("context_tokens_max = 64") && said.contains("tokens with the shortest"),
            "{said}"
        );
        let needed = said.split("needs ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
        let needed: u32 = needed.parse().expect("a number");
        load_with(path, "large", needed).await.expect("it says how many are enough");
        rerank(&rig, "large", "q", "d", false).await.or_else(named).expect("an answer or a name");
        let long = "word ".repeat(1000);
        for (query, document) in [("q", long.as_str()), (long.as_str(), "d"), (long.as_str(), long.as_str())]
        {
            rerank(&rig, "large", query, document, true).await.or_else(named).expect("an answer or a name");
            let refusal = rerank(&rig, "large", query, document, false).await.expect_err("too long");
            assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal}");
        }
        rig.grpc()
            .await
            .unload(UnloadRequest { model: "large".into(), force: true })
            .await
            .expect("unloaded");
    }
    // Encoders: a text needs one token between its own two, a pair one for each.
    for tokens in 1..8 {
        for path in [
            "encoders/bert-cls-dense",
            "encoders/bert-crossencoder",
            "encoders/xlm-roberta-reranker",
            "encoders/nomic-bert",
        ] {
            match load_with(path, "short", tokens).await {
                Err(refusal) => {
                    assert!(tokens < 3, "{path}: {refusal}");
                    named(refusal).expect("by name");
                    continue;
                }
                Ok(()) => assert!(tokens >= 3, "{path} with {tokens} tokens"),
            }
            for text in ["a", "a much longer text than that"] {
                for truncate in [false, true] {
                    for answer in [
                        embed(&rig, "short", text, truncate).await,
                        rerank(&rig, "short", text, text, truncate).await,
                    ] {
                        answer
                            .or_else(named)
                            .unwrap_or_else(|error| panic!("{path}, {tokens} tokens: {error}"));
                    }
                }
            }
            rig.grpc()
                .await
                .unload(UnloadRequest { model: "short".into(), force: true })
                .await
                .expect("unloaded");
        }
    }
    still_answers(&rig).await;
    rig.ended().await;
}

/// Nothing, of a refusal that is the request's or the file's fault.
fn named(refusal: Status) -> Result<(), Status> {
    match refusal.code() {
        Code::InvalidArgument | Code::FailedPrecondition => Ok(()),
        _ => Err(refusal),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_types_that_the_network_does_not_know_are_refused_by_name() {
    let rig = Rig::start().await;
    let copy = copy("encoders/bert-crossencoder");
    edit(&copy.path().join("tokenizer.json"), |json| {
        for piece in json["post_processor"]["pair"].as_array_mut().expect("a template") {
            for kind in ["Sequence", "SpecialToken"] {
                if let Some(piece) = piece.get_mut(kind) {
                    piece["type_id"] = json!(33);
                }
            }
        }
    });
    load(&rig, copy.path(), "types").await.expect("texts alone can still be classified");
    let refusal = rerank(&rig, "types", "q", "d", true).await.expect_err("refused");
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal}");
    assert!(refusal.message().contains("token type 33, and its network knows 2"), "{refusal}");
    still_answers(&rig).await;
    rig.ended().await;
}
