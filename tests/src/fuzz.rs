//! What is read of strangers, each kind as a target for a fuzzer: bytes in, no panic, no endless loop, no memory beyond a
//! small multiple of the bytes; and where a reader makes a promise, the promise. `tests/tests/fuzz.rs` runs them briefly,
//! `fuzz/run` for as long as somebody likes.

mod mutate;
mod splitter;

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use hanzo_engine_constraints::{ConstraintVocabulary, Grammar, Spec, Word};
use hanzo_engine_daemon::{fuzz as daemon, store::Store, store::fuzz as store};
use hanzo_engine_gateway::fuzz as gateway;
use hanzo_engine_media as media;
use hanzo_engine_ops::DType;
use hanzo_engine_proto::v1;
use hanzo_engine_runtime::{
    ModelFiles, OpenedModel, TextModel,
    chat::{Chat, ChatOpening, Message},
    encoder::{EncoderFiles, is_encoder_gguf},
    gguf::Gguf,
    load::{GenerationDefaults, TextFiles, TokenizerSource},
    mapped::ModelBytes,
    pytorch,
    quantise::Importance,
    safetensors,
    template::ChatTemplate,
    tensor::Tensor,
    tokenizer::{CutSide, Tokenizer},
};
use hanzo_engine_sound as sounds;
use prost::Message as _;
use serde_json::json;
use tempfile::TempDir;

pub use mutate::Mutator;

/// A kind of input.
pub struct Target {
    /// The folder of its corpus, and what `fuzz/run` calls it.
    pub name: &'static str,
    /// Reads one input.
    pub read: fn(&[u8]),
    /// Mutations of its corpus that a test tries: a second or two of them.
    pub mutations: usize,
}

/// All of them.
pub const TARGETS: [Target; 17] = [
    Target { name: "gguf", read: gguf, mutations: 4000 },
    Target { name: "safetensors", read: safetensors, mutations: 20_000 },
    Target { name: "pickle", read: pickle, mutations: 20_000 },
    Target { name: "tokenizer", read: tokenizer, mutations: 2000 },
    Target { name: "config", read: config, mutations: 4000 },
    Target { name: "importance", read: importance, mutations: 4000 },
    Target { name: "quantised", read: quantised, mutations: 2000 },
    Target { name: "template", read: template, mutations: 4000 },
    Target { name: "body", read: gateway::body, mutations: 4000 },
    Target { name: "proto", read: proto, mutations: 10_000 },
    Target { name: "archive", read: archive, mutations: 2000 },
    Target { name: "constraint", read: constraint, mutations: 1000 },
    Target { name: "splitter", read: splitter::read, mutations: 6000 },
    Target { name: "ledger", read: store::ledger, mutations: 10_000 },
    Target { name: "picture", read: picture, mutations: 10_000 },
    Target { name: "sound", read: heard, mutations: 3000 },
    Target { name: "manifest", read: store::manifest, mutations: 10_000 },
];

/// The folder of a target's corpus: small files, made by us; what a fuzzer found is among them once it is mended.
pub fn corpus(name: &str) -> PathBuf {
    data("fuzz").join(name)
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

/// Bytes that copies of a file's numbers may take in all: a test's, not the runtime's.
const READ_BYTES_MAX: usize = 1 << 20;

fn gguf(bytes: &[u8]) {
    let bytes = ModelBytes::from(bytes.to_vec());
    let Ok(gguf) = Gguf::parse("a.gguf", &bytes) else { return };
    let metadata = gguf.metadata.clone();
    sound(&gguf.tensors, bytes.len());
    match is_encoder_gguf(&metadata) {
        Ok(true) => drop(EncoderFiles::from_gguf("a", gguf, Vec::new())),
        _ => {
            if let Ok(files) = ModelFiles::from_bytes("a", bytes) {
                drop(TextModel::load(&files));
            }
        }
    }
    let text = TextFiles {
        file: "a.gguf".to_owned(),
        tokenizer: TokenizerSource::Gguf(metadata),
        chat_template: None,
        bos: None,
        eos: Vec::new(),
        generation: GenerationDefaults::default(),
        opening: ChatOpening::default(),
    };
    if let Ok(tokenizer) = Tokenizer::load(&text) {
        tokens_of(&tokenizer, SAMPLE);
    }
}

fn safetensors(bytes: &[u8]) {
    let bytes = ModelBytes::from(bytes.to_vec());
    if let Ok(tensors) = safetensors::parse("a.safetensors", &bytes) {
        sound(&tensors, bytes.len());
    }
}

fn pickle(bytes: &[u8]) {
    let bytes = ModelBytes::from(bytes.to_vec());
    if let Ok(tensors) = pytorch::parse("pytorch_model.bin", &bytes) {
        sound(&tensors, bytes.len());
    }
}

/// Pixels that a picture of these may have: so many that a few bytes could ask for more.
const PIXELS_MAX: u64 = 1 << 20;

fn picture(bytes: &[u8]) {
    let limits = media::Limits { bytes_max: 1 << 16, pixels_max: PIXELS_MAX };
    let Ok(picture) = media::decode(bytes, &limits) else { return };
    let pixels = u64::from(picture.width) * u64::from(picture.height);
    assert!((1..=PIXELS_MAX).contains(&pixels) && picture.rgb.len() as u64 == 3 * pixels);
    let small = media::resize(&picture, 31, 17, media::Filter::Lanczos);
    assert_eq!(small.rgb.len(), 3 * 31 * 17);
}

/// Seconds that a sound of these may have: so many that a few bytes could say more.
const SOUND_S_MAX: f64 = 20.0;

fn heard(bytes: &[u8]) {
    let limits = sounds::Limits { bytes_max: 1 << 16, seconds_max: SOUND_S_MAX };
    let file = std::io::Cursor::new(bytes.to_vec());
    let Ok(mut sound) = sounds::Sound::open(file, &sounds::Hint::default(), &limits) else { return };
    let (mut gate, mut samples, mut given) = (sounds::Gate::new(), 0, Vec::new());
    while let Ok(Some(chunk)) = sound.next_chunk() {
        assert!(!chunk.is_empty() && chunk.iter().all(|sample| sample.is_finite()));
        samples += chunk.len();
        gate.push(&chunk, &mut given);
    }
    // A sound that changes its rate is rounded up each time.
    assert!(samples as f64 <= (SOUND_S_MAX + 1.0) * f64::from(sounds::SPEECH_RATE), "{samples} samples");
    assert!(given.len() <= samples);
}

/// A tensor has as many bytes as its shape and type say, and is of the file.
fn sound(tensors: &[Tensor], file_bytes: usize) {
    for tensor in tensors {
        assert_eq!(tensor.dtype.bytes_of(tensor.elements()), Some(tensor.bytes.len()), "{tensor:?}");
        assert!(tensor.bytes.len() <= file_bytes, "{tensor:?}");
        if tensor.elements() * 4 <= READ_BYTES_MAX
            && let Ok(numbers) = tensor.to_f32()
        {
            assert_eq!(numbers.len(), tensor.elements());
        }
    }
}

const SAMPLE: &str = "Hello <s> [MASK]\u{a0}naïve 你好 ▁\u{1f600}\u{0} 12345 don't";

/// `tokenizer.json`; behind a NUL `tokenizer_config.json`; behind another a text.
fn tokenizer(bytes: &[u8]) {
    let mut parts = bytes.splitn(3, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let (tokenizer_json, settings, text) = (part().to_vec(), part(), part());
    let files = TextFiles {
        file: "a".to_owned(),
        tokenizer: TokenizerSource::HuggingFace {
            tokenizer_json,
            tokenizer_config: serde_json::from_slice(settings).ok(),
        },
        chat_template: None,
        bos: None,
        eos: vec![0],
        generation: GenerationDefaults::default(),
        opening: ChatOpening::default(),
    };
    let Ok(tokenizer) = Tokenizer::load(&files) else { return };
    tokens_of(&tokenizer, SAMPLE);
    tokens_of(&tokenizer, &String::from_utf8_lossy(text));
}

/// Encodes and decodes a text in every way. What comes out is of the vocabulary, and cuts are as long as they may be.
fn tokens_of(tokenizer: &Tokenizer, text: &str) {
    for plain in [false, true] {
        let encoded = match plain {
            true => tokenizer.encode_plain(text, true),
            false => tokenizer.encode(text, true),
        };
        let Ok(tokens) = encoded else { continue };
        assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocab_size()), "{tokens:?}");
        tokenizer.decode(&tokens, true);
        tokenizer.decode(&tokens, false);
    }
    for side in [CutSide::Left, CutSide::Right] {
        if let Ok((tokens, _)) = tokenizer.encode_cut(text, 4, side, &|| false) {
            assert!(tokens.len() <= 4, "{tokens:?}");
        }
        if let Ok(Some(pair)) = tokenizer.encode_pair(text, text, 12, side, &|| false) {
            assert!(pair.tokens.len() <= 12 && pair.tokens.len() == pair.types.len(), "{pair:?}");
        }
    }
}

/// A model's directory around the `config.json` that is read.
fn config(bytes: &[u8]) {
    thread_local! {
        static AROUND: TempDir = {
            let around = tempfile::tempdir().expect("a temporary folder");
            for name in ["tokenizer.json", "model.safetensors"] {
                std::fs::copy(data("tiny/qwen3").join(name), around.path().join(name)).expect("a copy");
            }
            around
        };
    }
    AROUND.with(|around| {
        std::fs::write(around.path().join("config.json"), bytes).expect("written");
        drop(OpenedModel::open(around.path()));
    });
}

/// An importance matrix, in either format: every value is one, and of a matrix that it fits.
fn importance(bytes: &[u8]) {
    thread_local! {
        static FILE: tempfile::NamedTempFile = tempfile::NamedTempFile::new().expect("a temporary file");
    }
    FILE.with(|file| {
        std::fs::write(file.path(), bytes).expect("written");
        let Ok(importance) = Importance::open(file.path()) else { return };
        for name in importance.names() {
            for columns in [1, 3] {
                let tensor = Tensor {
                    file: "a".into(),
                    name: name.to_owned(),
                    dtype: DType::F32,
                    shape: vec![2, columns],
                    bytes: ModelBytes::from_static(&[]),
                };
                if let Ok(Some(values)) = importance.of(&tensor) {
                    assert_eq!(values.len(), columns, "{name}");
                    assert!(
                        values.iter().all(|value| value.is_finite() && *value >= 0.0),
                        "{name}: {values:?}"
                    );
                }
            }
        }
    });
}

/// The configuration of a quantised checkpoint, after a letter for whose tensors lie beside it.
fn quantised(bytes: &[u8]) {
    const FORMATS: [&str; 12] = [
        "mlx-mixed",
        "gptq-4",
        "awq-gemm",
        "compressed-4",
        "fp8-blocks",
        "hqq-4",
        "gptq-marlin",
        "awq-gemv-fast",
        "quanto-4",
        "torchao-int4",
        "torchao-tiles",
        "bert-gptq",
    ];
    thread_local! {
        static AROUND: Vec<TempDir> = FORMATS.iter().map(|format| {
            let around = tempfile::tempdir().expect("a temporary folder");
            for name in ["tokenizer.json", "model.safetensors"] {
                let from = data("formats").join(format).join(name);
                std::fs::copy(from, around.path().join(name)).expect("a copy");
            }
            around
        }).collect();
    }
    let Some((format, config)) = bytes.split_first() else { return };
    AROUND.with(|around| {
        let around = around[usize::from(*format) % FORMATS.len()].path();
        std::fs::write(around.join("config.json"), config).expect("written");
        drop(OpenedModel::open(around));
    });
}

/// A character that no template of the corpus can make: where it is in a prompt, it came from the request.
const MARK: char = '\u{f8ff}';

/// A template; behind a NUL what the user says.
fn template(bytes: &[u8]) {
    let (source, said) = match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &b"Hi"[..]),
    };
    let (Ok(source), said) = (std::str::from_utf8(source), String::from_utf8_lossy(said)) else { return };
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>", "a") else { return };
    let message = |role: &str, content: String| Message { role: role.into(), content, ..Message::default() };
    let call =
        json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, "b"]}}});
    let chat = Chat {
        messages: vec![
            message("system", format!("Be brief.{MARK}")),
            message("user", format!("{MARK}{said}{MARK}")),
            Message { tool_calls: vec![call.clone()], ..message("assistant", String::new()) },
            message("tool", "12".to_owned()),
        ],
        tools: vec![call],
        add_generation_prompt: true,
        ..Chat::default()
    };
    // A template may run for long; how long is bounded by what asks it.
    let looks = RefCell::new(0);
    let interrupted = || looks.replace_with(|looks| *looks + 1) > 100;
    let Ok(rendered) = template.render(&chat, &interrupted) else { return };
    let mut end = 0;
    for range in &rendered.from_request {
        assert!(end <= range.start && range.start < range.end, "{:?}", rendered.from_request);
        assert!(rendered.text.get(range.clone()).is_some(), "{:?} of {:?}", range, rendered.text);
        end = range.end;
    }
    let spelled = ["f8ff", "F8FF", "f8Ff", "174", "239", "\\x", "\\N", "\\u", "\\U"];
    if source.contains(MARK) || spelled.iter().any(|word| source.contains(word)) {
        return;
    }
    for (at, _) in rendered.text.match_indices(MARK) {
        let known = rendered.from_request.iter().any(|range| range.contains(&at));
        assert!(
            known,
            "byte {at} of {:?} is said to be the template's: {:?}",
            rendered.text, rendered.from_request
        );
    }
}

/// A message of gRPC: as what it may be, by its first byte.
fn proto(bytes: &[u8]) {
    daemon::headers(bytes);
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 5 {
        0 => v1::InferRequest::decode(bytes).map(daemon::infer),
        1 => v1::TokenizeRequest::decode(bytes).map(daemon::tokenize),
        2 => v1::RerankRequest::decode(bytes).map(daemon::rerank),
        3 => v1::ClassifyRequest::decode(bytes).map(daemon::classify),
        _ => v1::PullRequest::decode(bytes).map(daemon::pull),
    }
    .unwrap_or_default();
}

/// The tokens of answers: every byte, and a few that are longer.
static VOCABULARY: LazyLock<Arc<ConstraintVocabulary>> = LazyLock::new(|| {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let longer = ["{\"", "\":", "true", "ab", "\n\n"].map(str::as_bytes);
    let words = bytes.iter().map(|byte| &byte[..]).chain(longer).map(Word::Text);
    Arc::new(
        ConstraintVocabulary::new(words.chain([Word::Control(b"<|call|>")])).expect("a small vocabulary"),
    )
});

/// A grammar, by the first byte's kind, and an answer that takes what it allows: what is allowed is accepted, and can be taken back.
fn constraint(bytes: &[u8]) {
    let Some((kind, source)) = bytes.split_first() else { return };
    let Ok(source) = std::str::from_utf8(source) else { return };
    let spec = match kind % 5 {
        0 => Spec::JsonSchema(source.to_owned()),
        1 => Spec::Gbnf(source.to_owned()),
        2 => Spec::Regex(source.to_owned()),
        3 => Spec::Choices(source.split('\n').map(str::to_owned).collect()),
        _ => Spec::Lark(source.to_owned()),
    };
    let Ok(grammar) = Grammar::compile(&spec, &VOCABULARY) else { return };
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; VOCABULARY.mask_words()];
    for step in 0..12 {
        if matcher.is_stopped() || matcher.allowed(&mut mask).is_err() {
            return;
        }
        let is_allowed = |&token: &usize| mask[token / 32] >> (token % 32) & 1 == 1;
        let Some(token) = (0..VOCABULARY.tokens()).filter(is_allowed).nth(step % 3) else { return };
        // A row of the parse may become too large; nothing else may keep it from what was allowed.
        if let Err(stuck) = matcher.accept(token as u32) {
            assert!(stuck.to_string().contains("max is"), "{spec:?}: {stuck}");
            return;
        }
    }
}

thread_local! {
    /// The store that archives are imported into.
    static STORE: RefCell<Option<(Store, TempDir)>> = const { RefCell::new(None) };
}

/// Gives up what this thread keeps between inputs. A database that is left to the end of its thread takes half a minute.
pub fn finish() {
    STORE.take();
}

/// An archive that is imported. What it brought is there, and can be removed.
fn archive(bytes: &[u8]) {
    STORE.with_borrow_mut(|kept| {
        let (store, folder) = kept.get_or_insert_with(|| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            (Store::open(folder.path()).expect("a store"), folder)
        });
        let Ok(models) = store.import(bytes, |_| true) else { return };
        let folder = folder.path().canonicalize().expect("a path");
        for model in models {
            assert!(model.path.starts_with(&folder), "{model:?}");
            assert!(model.files.iter().all(|file| file.path.is_file()), "{model:?}");
            store.remove(&model.name).expect("what is there can be removed");
        }
    });
}
