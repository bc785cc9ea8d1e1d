//! Splitting of texts into words against Hugging Face's `tokenizers` with another regular expression engine
//! (`testdata/make_pre_tokenizers.py`), and vocabularies that spell plain text.

use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

use super::*;
use crate::tokenizer::{pre::ByteSpelling, threes::CutInThrees};

fn strings(list: &[&str]) -> Value {
    Value::Array(Array::String(list.iter().map(|&text| text.to_owned()).collect()))
}

fn keys(entries: &[(&str, Value)]) -> Metadata {
    let entries = entries.iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value.clone()));
    Metadata::new("w.gguf", entries.collect())
}

/// Byte-pair tokenizer with these tokens, which splits words like `name`.
fn spelling(name: &str, tokens: Vec<String>, merges: &[&str]) -> Tokenizer {
    let keys = keys(&[
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String(name.into())),
        ("tokens", Value::Array(Array::String(tokens))),
        ("merges", strings(merges)),
    ]);
    from_metadata(keys).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Tokenizer of bytes and numbers, whose tokens show where numbers were cut.
pub(super) fn of_bytes(name: &str) -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_level::char_of(byte).to_string()).collect();
    let numbers = ["12", "123", "34", "345", "456", "67", "678", "789", "77", "777", "7777"];
    tokens.extend(numbers.map(str::to_owned));
    let merges = ["1 2", "12 3", "3 4", "34 5", "4 56", "6 7", "67 8", "7 89", "7 7", "77 7", "777 7"];
    let known = |part: &&str| part.split(' ').all(|part| tokens.iter().any(|token| token == part));
    let merges: Vec<&str> = merges.into_iter().filter(known).collect();
    spelling(name, tokens.clone(), &merges)
}

#[test]
fn every_pre_tokenizer_keeps_every_byte() {
    let texts: Vec<String> = demo_cases().into_iter().map(|case| case.decoded).collect();
    let spelled: Vec<String> = (0..=255).map(|byte| byte_level::char_of(byte).to_string()).collect();
    let of_bytes = |name: &&str| pre::by_name(name).expect("known").spelling == ByteSpelling::Bytes;
    for name in pre::names().filter(of_bytes) {
        let tokenizer = spelling(name, spelled.clone(), &[]);
        for text in &texts {
            let ids = tokenizer.encode(text, true).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>(), "{name}: {text:?}");
        }
    }
}

/// The words of a text.
fn split(name: &str, text: &str) -> Vec<String> {
    let pre = pre::by_name(name).expect("known");
    let mut pieces = PreTokenizedString::from(text);
    if let Some(threes) = pre.threes {
        let threes = CutInThrees::new(threes).expect("compiles");
        pieces.split(|_, piece| threes.cut(&piece)).expect("splits");
    }
    let pre = gguf::pre_tokenizer(&pre).expect("compiles");
    pre.pre_tokenize(&mut pieces).expect("splits");
    let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
    splits.into_iter().map(|(_, (start, end), _)| text[start..end].to_owned()).collect()
}

#[test]
fn words_are_those_of_the_reference() {
    let golden: Json =
        serde_json::from_str(include_str!("../../../testdata/pre_tokenizers.json")).expect("JSON");
    let texts: Vec<&str> = golden["texts"].as_array().expect("texts").iter().flat_map(Json::as_str).collect();
    let mut unchecked: Vec<&str> = pre::names().collect();
    for (name, splits) in golden["splits"].as_object().expect("splits") {
        // A string names another pre-tokenizer with the same splits.
        let splits = splits.as_str().map_or(splits, |other| &golden["splits"][other]);
        for (text, expected) in texts.iter().zip(splits.as_array().expect("a list")) {
            let expected: Vec<&str> =
                expected.as_array().expect("words").iter().flat_map(Json::as_str).collect();
            assert_eq!(split(name, text), expected, "{name}: {text:?}");
        }
        unchecked.retain(|other| other != name);
    }
    assert_eq!(unchecked, Vec::<&str>::new());
}

#[test]
fn numbers_are_cut_in_threes_in_time() {
    let text = "7".repeat(200_000);
    for name in ["afmoe", "tiny_aya", "superbpe"] {
        let words = split(name, &text);
        assert_eq!((words.len(), words[0].as_str(), words[1].as_str()), (66_667, "77", "777"), "{name}");
    }
}

#[test]
fn what_goes_with_a_name_is_honoured() {
    let load = |name: &str, more: &[(&str, Value)]| {
        let mut entries = vec![
            ("model", Value::String("gpt2".into())),
            ("pre", Value::String(name.into())),
            ("tokens", strings(&["a", "b", "c", "ab", "abc", "<s>", "</s>", "<mask>", "Ġ", "é"])),
            ("token_type", Value::Array(Array::I32(vec![1, 1, 1, 1, 1, 3, 3, 3, 1, 1]))),
            ("merges", strings(&["a b"])),
            ("bos_token_id", Value::U32(5)),
            ("eos_token_id", Value::U32(6)),
        ];
        entries.extend(more.iter().cloned());
        from_metadata(keys(&entries)).expect("loads")
    };
    let encode = |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text, true).expect("encodes");
    // No merge makes `abc`, but it is a token.
    assert_eq!(encode(&load("chatglm-bpe", &[]), "abc"), [3, 2]);
    for name in ["glm4", "glm5", "minicpm5", "youtu", "granite-embed-multi-97m"] {
        assert_eq!(encode(&load(name, &[]), "abc"), [4], "{name}");
    }
    assert_eq!(encode(&load("jina-v5-nano", &[]), "abc"), [5, 4]);
    assert_eq!(encode(&load("chameleon", &[]), "a"), [5, 0]);
    // A mask token takes the space before it.
    assert_eq!(encode(&load("gpt-2", &[]), "a <mask>"), [0, 8, 7]);
    assert_eq!(encode(&load("roberta-bpe", &[]), "a <mask>"), [0, 7]);
    // Pairs.
    let ends = [("add_bos_token", Value::Bool(true)), ("add_eos_token", Value::Bool(true))];
    let pair = |tokenizer: &Tokenizer| {
        let pair = tokenizer.encode_pair("a", "b", 100, CutSide::Right, &|| false).expect("encodes");
        pair.map(|pair| (pair.tokens, pair.types))
    };
    assert_eq!(pair(&load("modern-bert", &ends)), Some((vec![5, 0, 6, 1, 6], vec![0; 5])));
    let separated = [&ends[..], &[("add_sep_token", Value::Bool(true))]].concat();
    assert_eq!(pair(&load("roberta-bpe", &separated)), Some((vec![5, 0, 6, 6, 1, 6], vec![0; 6])));
    assert_eq!(pair(&load("roberta-bpe", &ends[..1])), None);
}

#[test]
fn vocabularies_that_spell_text_as_it_is() {
    let mut tokens =
        vec!["<unk>", "<bos>", "a", "b", "▁", "▁a", "\n", "\n\n", "▁ab", "▁a\nb", "<|turn>", "ab"];
    let bytes: Vec<String> = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.extend(bytes.iter().map(String::as_str));
    let mut types = vec![2, 3, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1];
    types.extend([6; 256]);
    let entries = [
        ("model", Value::String("gemma4".into())),
        ("tokens", strings(&tokens)),
        ("token_type", Value::Array(Array::I32(types))),
        ("merges", strings(&["▁ a", "\n \n", "▁a b", "a b"])),
        ("bos_token_id", Value::U32(1)),
        ("add_bos_token", Value::Bool(true)),
    ];
    let tokenizer = from_metadata(keys(&entries)).expect("loads");
    let text = " ab\n\nab é  a<|turn>a";
    let ids = tokenizer.encode(text, true).expect("encodes");
    // é is the bytes C3 A9.
    assert_eq!(ids, [1, 8, 7, 11, 4, 12 + 0xc3, 12 + 0xa9, 4, 5, 10, 2]);
    assert_eq!(tokenizer.decode(&ids, true), text);
    // Words of text as it is.
    let entries = [
        ("model", Value::String("whitespace".into())),
        ("pre", Value::String("whitespace".into())),
        ("tokens", strings(&["<unk>", "a", "b", "ab", "é", "."])),
        ("token_type", Value::Array(Array::I32(vec![2, 1, 1, 1, 1, 1]))),
        ("merges", strings(&["a b"])),
        ("normalizer.lowercase", Value::Bool(true)),
    ];
    let tokenizer = from_metadata(keys(&entries)).expect("loads");
    assert_eq!(tokenizer.encode(" AB  b.É日", false).expect("encodes"), [3, 2, 5, 4, 0]);
}

#[test]
fn what_no_pre_tokenizer_is_known_for_is_refused_by_name() {
    let failed = |model: &str, name: &str| {
        failure(from_metadata(keys(&[
            ("model", Value::String(model.into())),
            ("pre", Value::String(name.into())),
            ("tokens", strings(&["a"])),
            ("merges", strings(&[])),
        ])))
    };
    for model in ["rwkv", "plamo2", "hybriddna", "none"] {
        let error = failed(model, "default");
        assert!(error.contains("tokenizer.ggml.model") && error.contains(model), "{error}");
    }
    let error = failed("gpt2", "unheard-of");
    assert!(error.contains("tokenizer.ggml.pre") && error.contains("kimi-k2, "), "{error}");
}
