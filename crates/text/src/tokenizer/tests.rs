//! Tokenizers against their reference implementations (`testdata/make.py`), and with broken files.

mod long;
mod plain;
mod words;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use hanzo_engine_model_files::gguf::{Array, Metadata, Value, open};
use serde_json::{Value as Json, json};

use super::*;
use crate::{chat::ChatOpening, text_files::GenerationDefaults};

struct Case {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

fn cases(list: &Json) -> Vec<Case> {
    let text = |case: &Json, key: &str| case[key].as_str().expect("text").to_owned();
    let case = |case: &Json| Case {
        text: text(case, "text"),
        ids: case["ids"]
            .as_array()
            .expect("ids")
            .iter()
            .map(|id| id.as_u64().expect("an id") as u32)
            .collect(),
        decoded: text(case, "decoded"),
    };
    list.as_array().expect("cases").iter().map(case).collect()
}

fn demo_cases() -> Vec<Case> {
    cases(&serde_json::from_str(include_str!("../../testdata/demo_tokens.json")).expect("JSON"))
}

fn demo_metadata() -> Metadata {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
    let (file, _) = open(&path).expect("the demo model opens");
    Metadata::clone(&file.metadata)
}

fn files(tokenizer: TokenizerSource) -> TextFiles {
    TextFiles {
        file: "models/m".into(),
        tokenizer,
        chat_template: None,
        bos: None,
        eos: Vec::new(),
        generation: GenerationDefaults::default(),
        opening: ChatOpening::default(),
    }
}

fn from_metadata(metadata: Metadata) -> Result<Tokenizer, LoadError> {
    Tokenizer::load(&files(TokenizerSource::Gguf(Arc::new(metadata))))
}

fn from_json(tokenizer_json: Vec<u8>, tokenizer_config: Option<Json>) -> Result<Tokenizer, LoadError> {
    Tokenizer::load(&files(TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config }))
}

fn assert_cases(tokenizer: &Tokenizer, cases: &[Case]) {
    for case in cases {
        let ids = tokenizer.encode(&case.text, false).expect("encodes");
        assert_eq!(ids, case.ids, "{:?}", case.text);
        assert_eq!(tokenizer.decode(&ids, false), case.decoded, "{:?}", case.text);
    }
}

/// The demo's tokenizer as a `tokenizer.json`, from its GGUF metadata.
fn demo_json() -> Json {
    let metadata = demo_metadata();
    let tokens = metadata.strings("tokenizer.ggml.tokens").expect("typed").expect("there");
    let types = metadata.integers("tokenizer.ggml.token_type").expect("typed").expect("there");
    let is_added = |id: usize| types[id] == 3 || types[id] == 4;
    let added = |id: usize| {
        json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": types[id] == 3})
    };
    let vocab: serde_json::Map<String, Json> =
        (0..tokens.len()).filter(|&id| !is_added(id)).map(|id| (tokens[id].clone(), json!(id))).collect();
    let merges = metadata.strings("tokenizer.ggml.merges").expect("typed").expect("there");
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": (0..tokens.len()).filter(|&id| is_added(id)).map(added).collect::<Vec<_>>(),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "behavior": "Isolated", "invert": false,
             "pattern": {"Regex": pre::by_name("qwen2").expect("known").patterns[0]}},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocab, "merges": merges},
    })
}

fn bytes(json: &Json) -> Vec<u8> {
    serde_json::to_vec(json).expect("JSON")
}

#[test]
fn the_demos_tokens_are_those_of_its_reference_tokenizer() {
    let gguf = from_metadata(demo_metadata()).expect("loads");
    assert_eq!(gguf.vocab_size(), 4096);
    assert_cases(&gguf, &demo_cases());
    let json = from_json(bytes(&demo_json()), None).expect("loads");
    assert_eq!(json.vocab_size(), 4096);
    assert_cases(&json, &demo_cases());
    for id in 0..4100 {
        assert_eq!(gguf.token_bytes(id), json.token_bytes(id));
        assert_eq!(gguf.is_special(id), json.is_special(id));
    }
    let end = gguf.token_id("<|im_end|>").expect("a token");
    assert!(gguf.is_special(end) && !gguf.is_special(gguf.token_id("<think>").expect("a token")));
    assert_eq!(gguf.decode(&[end, 278, end], true).as_bytes(), gguf.token_bytes(278));
    assert_eq!(gguf.token_bytes(4096), b"");
    assert_eq!(gguf.token_id("no such token"), None);
}

#[test]
fn long_texts_are_encoded_whole() {
    let tokenizer = from_metadata(demo_metadata()).expect("loads");
    for text in [" ", "\n", "a", "é", "1", "!", "a ", " \n", "\u{301}", "😀", "<", "'s"] {
        let text = text.repeat(100_000);
        let ids = tokenizer.encode(&text, false).expect("encodes");
        assert_eq!(tokenizer.decode(&ids, false), text);
    }
    let too_long = " ".repeat(PROMPT_BYTES_MAX + 1);
    assert!(matches!(tokenizer.encode(&too_long, false), Err(RequestError::Invalid { field: "prompt", .. })));
}

/// Metadata of the SentencePiece model in the fixture, with these token types.
fn sentencepiece(fixture: &Json, types: Vec<i32>) -> BTreeMap<String, Value> {
    let list = |key: &str| fixture[key].as_array().expect("a list").clone();
    let tokens = list("tokens").iter().map(|token| token.as_str().expect("text").to_owned()).collect();
    let scores = list("scores").iter().map(|score| score.as_f64().expect("a number") as f32).collect();
    BTreeMap::from([
        ("tokenizer.ggml.model".into(), Value::String("llama".into())),
        ("tokenizer.ggml.tokens".into(), Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.scores".into(), Value::Array(Array::F32(scores))),
        ("tokenizer.ggml.token_type".into(), Value::Array(Array::I32(types))),
        ("tokenizer.ggml.bos_token_id".into(), Value::U32(1)),
        ("tokenizer.ggml.eos_token_id".into(), Value::U32(2)),
    ])
}

fn sentencepiece_fixture() -> (Json, Vec<i32>) {
    let fixture: Json =
        serde_json::from_str(include_str!("../../testdata/sentencepiece.json")).expect("JSON");
    let types =
        fixture["types"].as_array().expect("types").iter().map(|kind| kind.as_i64().expect("a type") as i32);
    let types = types.collect();
    (fixture, types)
}

#[test]
fn sentencepiece_tokens_are_sentencepieces() {
    let (fixture, mut types) = sentencepiece_fixture();
    let tokenizer =
        from_metadata(Metadata::new("s.gguf", sentencepiece(&fixture, types.clone()))).expect("loads");
    assert_cases(&tokenizer, &cases(&fixture["cases"]));
    assert_eq!(tokenizer.encode("", true).expect("encodes"), [1]);
    for id in fixture["unused"].as_array().expect("ids") {
        types[id.as_u64().expect("an id") as usize] = 5;
    }
    let tokenizer = from_metadata(Metadata::new("s.gguf", sentencepiece(&fixture, types))).expect("loads");
    for case in cases(&fixture["cases_with_unused"]) {
        assert_eq!(tokenizer.encode(&case.text, false).expect("encodes"), case.ids, "{:?}", case.text);
    }
}

#[test]
fn sentencepiece_settings_are_honoured() {
    let (fixture, types) = sentencepiece_fixture();
    let load = |changes: &[(&str, Value)], types: &[i32]| {
        let mut entries = sentencepiece(&fixture, types.to_vec());
        entries.extend(changes.iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value.clone())));
        from_metadata(Metadata::new("s.gguf", entries)).expect("loads")
    };
    let plain = load(&[], &types);
    let hi = plain.encode("hi", false).expect("encodes");
    let marked = plain.encode("hi<s>hi</s>", true).expect("encodes");
    assert_eq!(
        marked,
        [&[1], &hi[..], &[1], &hi[..], &[2]].concat(),
        "a space goes after control tokens too"
    );
    assert_eq!(plain.decode(&marked, true), "hi hi");
    let bare = load(&[("add_space_prefix", Value::Bool(false))], &types);
    assert_eq!(bare.decode(&bare.encode("hi", false).expect("encodes"), false), "hi");
    assert_ne!(bare.encode("hi", false).expect("encodes"), hi);
    let ends = load(&[("add_bos_token", Value::Bool(false)), ("add_eos_token", Value::Bool(true))], &types);
    assert_eq!(ends.encode("hi", true).expect("encodes"), [&hi[..], &[2]].concat());
    // Without byte tokens, consecutive characters without a piece become a single unknown token.
    let byteless: Vec<i32> = types.iter().map(|&kind| if kind == 6 { 3 } else { kind }).collect();
    let byteless = load(&[], &byteless);
    let ids = byteless.encode("hi 😀😀hi", false).expect("encodes");
    assert_eq!(ids.iter().filter(|&&id| id == 0).count(), 1);
}

/// SentencePiece model of the fixture as converted by transformers: merges from scores, byte fallback, `▁`.
fn sentencepiece_json(fixture: &Json) -> Json {
    let tokens: Vec<&str> =
        fixture["tokens"].as_array().expect("a list").iter().flat_map(Json::as_str).collect();
    let kind = |id: usize| fixture["types"][id].as_i64().expect("a type");
    let ids: BTreeMap<&str, usize> = tokens.iter().enumerate().map(|(id, &token)| (token, id)).collect();
    let mut merges = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|&(id, _)| kind(id) == 1) {
        let halves = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let mut both: Vec<_> = halves
            .filter_map(|(l, r)| Some((*ids.get(l)?, *ids.get(r)?)))
            .filter(|&(l, r)| kind(l).max(kind(r)) == 1)
            .collect();
        both.sort_unstable();
        let score = fixture["scores"][id].as_f64().expect("a score");
        merges.extend(both.into_iter().map(|(l, r)| (score, tokens[l], tokens[r])));
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    let special = |id: usize| json!({"id": id, "content": tokens[id], "special": true, "normalized": false});
    json!({
        "added_tokens": [special(0), special(1), special(2)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": ids,
                  "merges": merges.iter().map(|(_, l, r)| json!([l, r])).collect::<Vec<_>>()},
    })
}

#[test]
fn sentencepiece_in_a_tokenizer_json_is_the_same() {
    let (fixture, _) = sentencepiece_fixture();
    let tokenizer = from_json(bytes(&sentencepiece_json(&fixture)), None).expect("loads");
    assert_cases(&tokenizer, &cases(&fixture["cases"]));
    let gguf = from_metadata(Metadata::new("s.gguf", sentencepiece(&fixture, sentencepiece_fixture().1)))
        .expect("loads");
    for id in 0..700 {
        assert_eq!(tokenizer.token_bytes(id), gguf.token_bytes(id), "{id}");
        assert_eq!(tokenizer.is_special(id), gguf.is_special(id), "{id}");
    }
    assert_eq!(tokenizer.token_id("<s>"), gguf.token_id("<s>"));
}

/// Error message of a load that must fail.
fn failure(result: Result<Tokenizer, LoadError>) -> String {
    match result {
        Ok(_) => panic!("a broken tokenizer was loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn broken_metadata_is_refused_by_file_and_key() {
    let strings =
        |list: &[&str]| Value::Array(Array::String(list.iter().map(|&text| text.to_owned()).collect()));
    let byte_level = BTreeMap::from([
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("qwen2".into())),
        ("tokenizer.ggml.tokens", strings(&["a", "b", "ab", "<x>"])),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1, 1, 3]))),
        ("tokenizer.ggml.merges", strings(&["a b"])),
        ("tokenizer.ggml.bos_token_id", Value::U32(3)),
        ("tokenizer.ggml.eos_token_id", Value::U32(3)),
    ]);
    let (fixture, types) = sentencepiece_fixture();
    let sentencepiece = sentencepiece(&fixture, types);
    let load = |base: &BTreeMap<String, Value>, key: &str, value: Option<Value>| {
        let mut entries = base.clone();
        entries.remove(key);
        entries.extend(value.map(|value| (key.to_owned(), value)));
        from_metadata(Metadata::new("dir/t.gguf", entries))
    };
    let byte_level: BTreeMap<String, Value> =
        byte_level.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    assert!(load(&byte_level, "nothing", None).is_ok());
    let cut_down =
        load(&byte_level, "tokenizer.ggml.merges", Some(strings(&["b a", "a b"]))).expect("one merge");
    assert_eq!(cut_down.encode("bab", false).expect("tokens"), [1, 2]);
    let yes = Some(Value::Bool(true));
    let broken = [
        (&byte_level, "model", None),
        (&byte_level, "model", Some(Value::U32(1))),
        (&byte_level, "model", Some(Value::String("rwkv".into()))),
        (&byte_level, "pre", Some(Value::String("nobody-knows".into()))),
        (&byte_level, "tokens", None),
        (&byte_level, "tokens", Some(strings(&[]))),
        (&byte_level, "tokens", Some(strings(&["a", "b", "a", "<x>"]))),
        (&byte_level, "token_type", Some(Value::Array(Array::I32(vec![1, 1])))),
        (&byte_level, "token_type", Some(Value::Array(Array::I32(vec![1, 1, 1, 99])))),
        (&byte_level, "merges", None),
        (&byte_level, "merges", Some(strings(&["ab"]))),
        (&byte_level, "merges", Some(strings(&["a c"]))),
        (&byte_level, "add_space_prefix", yes.clone()),
        (&byte_level, "add_bos_token", Some(Value::U32(1))),
        (&sentencepiece, "scores", None),
        (&sentencepiece, "scores", Some(Value::Array(Array::F32(vec![0.0])))),
        (&sentencepiece, "scores", Some(Value::Array(Array::F32(vec![f32::NAN; 700])))),
        (&sentencepiece, "bos_token_id", Some(Value::U32(700))),
        (&sentencepiece, "bos_token_id", Some(Value::I32(-1))),
    ];
    for (base, key, value) in broken {
        let key = format!("tokenizer.ggml.{key}");
        let error = failure(load(base, &key, value.clone()));
        assert!(error.starts_with("dir/t.gguf") && error.contains(&key), "{key} = {value:?}: {error}");
    }
    let mut no_bos = byte_level.clone();
    no_bos.remove("tokenizer.ggml.bos_token_id");
    assert!(failure(load(&no_bos, "tokenizer.ggml.add_bos_token", yes)).contains("bos_token_id"));
    let mut half: Vec<i32> = sentencepiece_fixture().1;
    half.iter_mut().filter(|kind| **kind == 6).take(100).for_each(|kind| *kind = 1);
    let error =
        failure(load(&sentencepiece, "tokenizer.ggml.token_type", Some(Value::Array(Array::I32(half)))));
    assert!(error.contains("156 of 256 byte tokens"), "{error}");
}

#[test]
fn a_broken_tokenizer_json_is_refused_by_file_and_key() {
    let good = json!({
        "added_tokens": [{"id": 3, "content": "<x>", "special": true}],
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    });
    assert!(from_json(bytes(&good), None).is_ok());
    let broken = [
        ("/model/type", json!("WordLevel"), "model.type = WordLevel"),
        ("/model/type", json!(7), "model.type = 7"),
        ("/model/vocab", json!({"a": 0, "b": 1}), "model.merges"),
        ("/model/vocab", json!({"a": 0, "b": 1, "ab": -2}), "key model"),
        ("/model/vocab", json!({"a": 0, "b": 1, "ab": 4_000_000_000u32}), "model.vocab"),
        ("/model/vocab", json!({"a": 0, "b": 1, "ab": 1}), "model.vocab"),
        ("/model/vocab", json!({"a": 0, "b": 1, "ab": 2, "<x>": 5}), "added_tokens"),
        ("/model/merges", json!([["a", "c"]]), "model.merges"),
        ("/model/merges", json!([["ab", "b"]]), "model.merges"),
        ("/model/merges", json!(["ab"]), "model.merges"),
        ("/model/merges", json!([["a"]]), "key model"),
        ("/model/dropout", json!(0.1), "model.dropout"),
        ("/model/unk_token", json!("<unk>"), "model.unk_token"),
        ("/model/continuing_subword_prefix", json!("##"), "model.continuing_subword_prefix"),
        ("/model/end_of_word_suffix", json!("</w>".repeat(1000)), "model.end_of_word_suffix"),
        ("/added_tokens", json!([{"id": 3, "content": ""}]), "added_tokens"),
        ("/added_tokens", json!([{"id": 3}]), "JSON"),
        ("/decoder", json!(null), "decoder.type = null"),
        ("/decoder", json!({"type": "WordPiece"}), "decoder.type = WordPiece"),
        ("/normalizer", json!({"type": "Precompiled"}), "key normalizer.precompiled_charsmap: it ends"),
        ("/normalizer", json!({"type": "Prepend", "prepend": "x".repeat(99)}), "key normalizer"),
        (
            "/normalizer",
            json!({"type": "Sequence", "normalizers": [{"type": "ByteLevel"}]}),
            "normalizer = ByteLevel",
        ),
        (
            "/normalizer",
            json!({"type": "Sequence", "normalizers": vec![
                json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(9)}); 9
            ]}),
            "key normalizer",
        ),
        ("/pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "pre_tokenizer = FixedLength"),
        (
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
            "key pre_tokenizer",
        ),
        ("/post_processor", json!({"type": "BertProcessing"}), "key post_processor: cls is not a token"),
        ("/post_processor", json!({"type": "Unheard"}), "post_processor.type"),
        (
            "/post_processor",
            json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<y>"}}]}),
            "post_processor.single",
        ),
    ];
    for (pointer, value, expected) in broken {
        let mut json = good.clone();
        let (parent, key) = pointer.rsplit_once('/').expect("a path");
        json.pointer_mut(parent).expect("a parent")[key] = value;
        let error = failure(from_json(bytes(&json), None));
        assert!(
            error.starts_with("models/m/tokenizer.json: ") && error.contains(expected),
            "{pointer}: {error}"
        );
    }
}

#[test]
fn the_configuration_decides_what_goes_around_a_text() {
    let template = json!({"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]});
    let encode = |post_processor: &Json, config: Json| {
        let json = json!({
            "added_tokens": [{"id": 3, "content": "<x>", "special": true}],
            "decoder": {"type": "ByteLevel"}, "post_processor": post_processor,
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
        });
        from_json(bytes(&json), Some(config)).map(|tokenizer| tokenizer.encode("ab", true).expect("encodes"))
    };
    let none = json!(null);
    assert_eq!(encode(&none, json!({})).expect("loads"), [2]);
    assert_eq!(encode(&template, json!({})).expect("loads"), [3, 2]);
    assert_eq!(encode(&template, json!({"add_bos_token": false})).expect("loads"), [2]);
    let both = json!({"add_bos_token": true, "bos_token": "<x>", "add_eos_token": true, "eos_token": {"content": "b"}});
    assert_eq!(encode(&none, both).expect("loads"), [3, 2, 1]);
    let error = encode(&none, json!({"add_bos_token": true, "bos_token": "<y>"})).expect_err("no such token");
    assert!(error.to_string().contains("bos_token"), "{error}");
}

#[test]
fn damaged_files_never_panic() {
    let tokenizer_json = bytes(&demo_json());
    let texts: Vec<String> = demo_cases().into_iter().map(|case| case.text).collect();
    let attempt = |damaged: Vec<u8>| match from_json(damaged, None) {
        Ok(tokenizer) => texts.iter().for_each(|text| drop(tokenizer.encode(text, true))),
        Err(error) => assert!(error.to_string().starts_with("models/m/tokenizer.json: "), "{error}"),
    };
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..20 {
        attempt(tokenizer_json[..random(tokenizer_json.len())].to_vec());
    }
    // The first and the last kilobytes hold the structure; changes elsewhere affect tokens and merges.
    let ends = |at: usize, len: usize| if at < 3000 { at } else { len - 1 - (at - 3000) };
    for round in 0..150 {
        let mut damaged = tokenizer_json.clone();
        for _ in 0..1 + round % 3 {
            let at = if round % 2 == 0 { ends(random(6000), damaged.len()) } else { random(damaged.len()) };
            damaged[at] ^= 1 << random(8);
        }
        attempt(damaged);
    }
}
