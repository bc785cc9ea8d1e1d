//! Converts `tokenizer.json` to the `tokenizer.ggml` keys of a GGUF file. Supported are byte pairs, with the name
//! of the pre-tokenizer that splits texts as the file does, and SentencePiece pieces, whose scores are the ranks of
//! their merges. Anything that such keys cannot express is refused.

use std::collections::{BTreeMap, HashMap};

use hanzo_engine_model_files::error::{LoadError, shorten};
use hanzo_engine_model_files::gguf::{Array, Value};
use hanzo_engine_model_files::json;
use serde_json::Value as Json;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

use super::hf::{self, AddedEntry, File, Model, Source, TokenSpelling};
use super::{Tokenizer, gguf, guard, pre, sentencepiece::byte_token};

/// Token types, as in `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Texts that distinguish pre-tokenizers.
const PROBES: &[&str] = &[
    "I've 'told' 1234567 WE'LL don't\u{2019}t HE'S you'Re",
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n a  b   c\r\n\r\nd ",
    "3 33 333 3333 33333 3.3 3..3 x9 9x \u{661}\u{662}\u{663}\u{664} ½¾ Ⅷ2",
    "(normal) !!!??? ``` \"\"\" ------======= a/b//c\n/x #tag @you $5 %% ^^ ~~ {x}[y]",
    "camelCaseWORDS XMLHttpRequest naïve e\u{301}\u{327}a ÀÉ ﬁ ß \u{1e9e} Dž ʰa aʰ",
    "你好，世界。我想在apple工作 こんにちは カタカナ 한국어 ไทย हिन्दी العربية кириллица ελληνικά",
    "🚀🙂👩‍👩‍👧‍👦🇨🇭 \u{200b}\u{feff}x \u{a0}y\u{3000}z \u{2028}q",
    "def f(x):\n\treturn {\"a\": [1, 2.5e-3]}  # ok\n",
    "  leading and trailing  ",
];

/// Tokens at a text's start and end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Token that ends a text.
    pub eos: Option<u32>,
}

/// Whether a tokenizer adds the token that begins texts, and the one that ends them.
///
/// # Errors
/// `Unsupported` if it adds other tokens.
pub fn around(file: &str, tokenizer: &Tokenizer, ends: &mut Ends) -> Result<[bool; 2], LoadError> {
    let one = |tokens: &[u32], known: &mut Option<u32>| match tokens {
        [] => Ok(false),
        &[token] if known.is_none_or(|known| known == token) => {
            *known = Some(token);
            Ok(true)
        }
        tokens => Err(Source(file).unsupported(
            "post_processor",
            format!("{tokens:?}"),
            "GGUF files say only whether the begin and the end token are around texts",
        )),
    };
    let affixes = &tokenizer.affixes;
    Ok([one(&affixes.prefix, &mut ends.bos)?, one(&affixes.suffix, &mut ends.eos)?])
}

/// Checks that two tokenizers make the same tokens from texts, a sample of the first one's vocabulary included. The
/// token for unknown text may differ.
///
/// # Errors
/// The first text for which they differ.
pub fn agree(first: &Tokenizer, second: &Tokenizer, unknown: Option<u32>) -> Result<(), String> {
    const SAMPLED: usize = 2000;
    let tokens = |of: &Tokenizer, text: &str| {
        let mut tokens = of.encode_plain(text, true).ok()?;
        tokens.retain(|&token| Some(token) != unknown);
        Some(tokens)
    };
    let differ = |text: &str| match (tokens(first, text), tokens(second, text)) {
        (Some(first), Some(second)) if first == second => Ok(()),
        _ => Err(shorten(text.to_owned())),
    };
    PROBES.iter().chain(guard::SAMPLES).try_for_each(|text| differ(text))?;
    let count = first.vocab_size();
    (0..count).step_by(count.div_ceil(SAMPLED).max(1)).try_for_each(|id| {
        match std::str::from_utf8(first.token_bytes(id as u32)) {
            Ok(text) if !first.is_special(id as u32) => differ(text),
            _ => Ok(()),
        }
    })
}

/// Keys for a tokenizer that loads, with a token for each of the embedding's `rows` rows: `model`, `pre`, `tokens`,
/// `token_type`, `scores`, `merges` and `add_space_prefix`.
///
/// # Errors
/// `Unsupported` naming the part that the keys cannot express.
pub fn of_json(
    file: &str,
    tokenizer_json: &[u8],
    config: Option<&Json>,
    rows: usize,
) -> Result<BTreeMap<String, Value>, LoadError> {
    let source = Source(file);
    let parsed: File =
        serde_json::from_slice(tokenizer_json).map_err(|error| source.corrupt("JSON", error.to_string()))?;
    let kind = hf::kind(tokenizer_json).unwrap_or_else(|| "BPE".to_owned());
    if kind != "BPE" {
        return Err(source.unsupported("model.type", kind, "GGUF files of decoders are written with BPE"));
    }
    let model = hf::model(&source, tokenizer_json)?;
    let spelling = hf::spelling(&source, hf::value_of(&parsed.decoder))?;
    let mut vocabulary = Vocabulary::of(&source, &model, &parsed.added_tokens, rows)?;
    vocabulary.mark_named(config);
    let mut keys = BTreeMap::new();
    let mut set = |key: &str, value: Value| keys.insert(format!("tokenizer.ggml.{key}"), value);
    match spelling {
        TokenSpelling::ByteLevel => {
            let pre = pre_name(&source, &parsed, &model)?;
            set("model", Value::String("gpt2".into()));
            set("pre", Value::String(pre.into()));
            let pairs = hf::merges(&source, model.merges)?;
            let lines = pairs.into_iter().map(|(left, right)| format!("{left} {right}")).collect();
            set("merges", Value::Array(Array::String(lines)));
        }
        TokenSpelling::Metaspace { .. } if model.byte_fallback => {
            vocabulary.mark_pieces(&model);
            set("model", Value::String("llama".into()));
            set("pre", Value::String("default".into()));
            set("add_space_prefix", Value::Bool(begins_with_space(&parsed)));
            let scores = scores(&vocabulary, hf::merges(&source, model.merges)?);
            set("scores", Value::Array(Array::F32(scores)));
        }
        _ => {
            return Err(source.unsupported(
                "model",
                "BPE",
                "GGUF files are written of bytes, or with byte fallback",
            ));
        }
    }
    set("tokens", Value::Array(Array::String(vocabulary.texts)));
    set("token_type", Value::Array(Array::I32(vocabulary.types)));
    Ok(keys)
}

/// Tokens and their types by ID.
struct Vocabulary {
    texts: Vec<String>,
    types: Vec<i32>,
}

impl Vocabulary {
    fn of(source: &Source<'_>, model: &Model, added: &[AddedEntry], rows: usize) -> Result<Self, LoadError> {
        let mut texts: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![UNUSED; rows];
        let known = model.vocab.iter().map(|(text, &id)| (text, id, NORMAL));
        let added = added.iter().map(|added| {
            let special = added.special || looks_special(&added.content);
            (&added.content, added.id, if special { CONTROL } else { USER_DEFINED })
        });
        for (text, id, kind) in known.chain(added) {
            let at = id as usize;
            if at >= rows {
                let reason = format!("token {id} has no row in the embedding, which has {rows}");
                return Err(source.corrupt("model.vocab", reason));
            }
            // Readers search for such tokens in the original text.
            texts[at] = if kind == USER_DEFINED { text.replace('▁', " ") } else { text.clone() };
            types[at] = kind;
        }
        Ok(Self { texts, types })
    }

    /// Marks the tokens that the settings name as control tokens, as the library does.
    fn mark_named(&mut self, config: Option<&Json>) {
        for key in
            ["bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token"]
        {
            let Some(text) = config.and_then(|config| config.get(key)).and_then(hf::token_text) else {
                continue;
            };
            if let Some(id) = self.texts.iter().position(|token| token == text) {
                self.types[id] = CONTROL;
            }
        }
    }

    /// Marks the unknown token and the byte tokens of SentencePiece.
    fn mark_pieces(&mut self, model: &Model) {
        for (text, kind) in self.texts.iter().zip(&mut self.types) {
            if model.unk_token.as_ref() == Some(text) {
                *kind = UNKNOWN;
            } else if *kind == NORMAL && byte_token(text).is_some() {
                *kind = BYTE;
            }
        }
    }
}

/// Whether a token structures prompts although some vocabularies do not mark it as special.
fn looks_special(text: &str) -> bool {
    let between = |start, end| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

/// Whether a space is put before texts.
fn begins_with_space(parsed: &File) -> bool {
    let prepends = |step: &Json| match step.get("type").and_then(Json::as_str) {
        Some("Prepend") => true,
        Some("Metaspace") => {
            step.get("prepend_scheme").is_none_or(|scheme| scheme != "never")
                && step.get("add_prefix_space").is_none_or(|add| add != false)
        }
        _ => false,
    };
    let steps = [hf::value_of(&parsed.normalizer), hf::value_of(&parsed.pre_tokenizer)];
    steps.into_iter().flatten().any(|step| {
        let inner =
            ["normalizers", "pretokenizers"].into_iter().filter_map(|list| step.get(list)?.as_array());
        prepends(step) || inner.flatten().any(prepends)
    })
}

/// Scores from merges. SentencePiece joins the two neighbours that make the piece with the best score, so the piece
/// of the first merge gets the best.
fn scores(vocabulary: &Vocabulary, merges: Vec<(String, String)>) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (rank, (left, right)) in merges.into_iter().enumerate() {
        ranks.entry(left + &right).or_insert(rank);
    }
    let score = |text: &String| ranks.get(text).map_or(0.0, |&rank| -(rank as f32));
    vocabulary.texts.iter().map(score).collect()
}

/// Name of the pre-tokenizer that splits texts as this file does.
fn pre_name(source: &Source<'_>, parsed: &File, model: &Model) -> Result<&'static str, LoadError> {
    const KEY: &str = "pre_tokenizer";
    let steps = |step: &hf::Step| {
        let json::Small(value) = step;
        value.clone()
    };
    let Some(own) = parsed.pre_tokenizer.as_ref().map(steps) else {
        return Err(source.unsupported(KEY, "none", "GGUF files are written of byte pairs in words"));
    };
    let named = own.to_string();
    let own: PreTokenizerWrapper =
        serde_json::from_value(own).map_err(|error| source.corrupt(KEY, error.to_string()))?;
    let normal = parsed.normalizer.as_ref().map(steps);
    let nfc = match &normal {
        None => false,
        Some(step) if step.get("type").is_some_and(|kind| kind == "NFC") => true,
        Some(step) => return Err(source.unsupported("normalizer", step.to_string(), "NFC is, and none")),
    };
    let splits = |pre: &PreTokenizerWrapper| -> Option<Vec<String>> {
        let mut all = Vec::new();
        for text in PROBES {
            let mut split = PreTokenizedString::from(*text);
            pre.pre_tokenize(&mut split).ok()?;
            let pieces = split.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
            all.extend(pieces.into_iter().map(|(piece, ..)| piece.to_owned()));
        }
        Some(all)
    };
    let wanted = splits(&own).ok_or_else(|| source.corrupt(KEY, "it fails at a plain text"))?;
    let fits = |pre: &pre::PreTokenizer| {
        let same_kind =
            pre.spelling == pre::ByteSpelling::Bytes && pre.threes.is_none() && pre.mask.is_none();
        let split = || splits(&gguf::pre_tokenizer(pre).ok()?);
        same_kind && pre.nfc == nfc && split().as_ref() == Some(&wanted)
    };
    let found: Vec<_> = pre::all().filter(|(_, pre)| fits(pre)).collect();
    let best = found.iter().find(|(_, pre)| pre.ignore_merges == model.ignore_merges).or(found.first());
    let Some((names, _)) = best else {
        let reason = "no name of GGUF's stands for how it splits texts";
        return Err(source.unsupported(KEY, shorten(named), reason));
    };
    // The most common of several.
    Ok(names.iter().find(|name| **name == "llama-bpe").unwrap_or(&names[0]))
}
