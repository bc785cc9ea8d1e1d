//! Byte-pair vocabularies without a `tokenizer.json`, converted to the metadata that a GGUF file would have:
//! tiktoken's lines of tokens and ranks, Mistral's `tekken.json`, and GPT-2's `vocab.json` and `merges.txt`.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::Value as Json;

use super::added::{self, AddedToken};
use crate::error::LoadError;
use crate::gguf::{Array, Metadata, Value};
use crate::json;
use crate::limits::{MERGES_MAX, PIECE_BYTES_MAX, VOCAB_MAX};
use crate::tokenizer::{byte_char, hf::token_text};

/// Tokenizers with tiktoken files, and the pre-tokenizer of each.
const TIKTOKEN: &[(&str, &str)] =
    &[("QWenTokenizer", "qwen2"), ("TikTokenTokenizer", "kimi-k2"), ("ChatGLM4Tokenizer", "chatglm-bpe")];

/// Tokenizers with GPT-2's files, the pre-tokenizer of each, and whether texts have tokens around them.
const GPT2: &[(&str, &str, bool)] = &[
    ("GPT2Tokenizer", "gpt-2", false),
    ("Qwen2Tokenizer", "qwen2", false),
    ("RobertaTokenizer", "roberta-bpe", true),
];

/// Tokenizer classes of families whose files name none.
const CLASSES: &[(&str, &str)] = &[
    ("gpt2", "GPT2Tokenizer"),
    ("qwen2", "Qwen2Tokenizer"),
    ("qwen3", "Qwen2Tokenizer"),
    ("roberta", "RobertaTokenizer"),
    ("qwen", "QWenTokenizer"),
];

/// A directory's relevant settings.
pub(super) struct Settings<'a> {
    /// File name for errors.
    pub(super) file: &'a str,
    /// `tokenizer_config.json`
    pub(super) config: Option<&'a Json>,
    /// `model_type` of `config.json`
    pub(super) family: Option<&'a str>,
    /// `added_tokens.json`, if it is read
    pub(super) more: Option<&'a Json>,
}

impl Settings<'_> {
    fn class(&self) -> &str {
        let stated = self.config.and_then(|config| config.get("tokenizer_class")?.as_str());
        let own = || CLASSES.iter().find(|(family, _)| Some(*family) == self.family).map(|&(_, class)| class);
        let class = stated.or_else(own).unwrap_or_default();
        class.strip_suffix("Fast").unwrap_or(class)
    }

    fn unsupported(&self, known: &[&str]) -> LoadError {
        LoadError::Unsupported {
            file: self.file.to_owned(),
            key: "tokenizer_class".into(),
            value: self.class().to_owned(),
            reason: format!("without a tokenizer.json {} are", known.join(", ")),
        }
    }

    fn corrupt(&self, what: &str, reason: impl Into<String>) -> LoadError {
        LoadError::Corrupt { file: self.file.to_owned(), what: what.into(), reason: reason.into() }
    }

    fn named(&self, key: &str) -> Option<&str> {
        self.config?.get(key).and_then(token_text)
    }
}

/// A vocabulary under construction.
struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
}

impl Vocabulary {
    fn put(&mut self, settings: &Settings<'_>, added: AddedToken) -> Result<(), LoadError> {
        let at = added.id as usize;
        if at >= VOCAB_MAX {
            let reason = format!("token {at} is above the limit of {VOCAB_MAX}");
            return Err(added::corrupt(settings.file, reason));
        }
        while self.tokens.len() <= at {
            // Gaps are filled with tokens that no text produces.
            self.tokens.push(String::new());
            self.types.push(5);
        }
        if !self.tokens[at].is_empty() && self.tokens[at] != added.text {
            let reason = format!("token {at} is {:?} and {:?}", self.tokens[at], added.text);
            return Err(added::corrupt(settings.file, reason));
        }
        self.types[at] = if added.special { 3 } else { 4 };
        self.tokens[at] = added.text;
        Ok(())
    }

    /// The metadata. `around`: whether texts are enclosed by the begin and end tokens.
    fn metadata(mut self, settings: &Settings<'_>, pre: &str, around: bool) -> Result<Metadata, LoadError> {
        let mut added = added::of_list(settings.file, settings.more)?;
        added.extend(added::of_config(settings.file, settings.config)?);
        added.into_iter().try_for_each(|added| self.put(settings, added))?;
        // Tokens named by the settings are control tokens, wherever they are listed.
        let names =
            ["bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token"];
        let mut ids = BTreeMap::new();
        for key in names {
            let Some(text) = settings.named(key) else { continue };
            if let Some(id) = self.tokens.iter().position(|token| token == text) {
                self.types[id] = 3;
                ids.insert(key, id as u32);
            }
        }
        let mut entries = BTreeMap::new();
        let mut set = |key: &str, value: Value| entries.insert(format!("tokenizer.ggml.{key}"), value);
        set("model", Value::String("gpt2".into()));
        set("pre", Value::String(pre.into()));
        for (key, id) in [
            ("bos_token_id", ids.get("bos_token")),
            ("eos_token_id", ids.get("eos_token")),
            ("seperator_token_id", ids.get("sep_token")),
        ] {
            if let Some(&id) = id {
                set(key, Value::U32(id));
            }
        }
        for key in ["add_bos_token", "add_eos_token"] {
            let stated = settings.config.and_then(|config| config.get(key)).and_then(Json::as_bool);
            if let Some(flag) = stated.or(around.then_some(true)) {
                set(key, Value::Bool(flag));
            }
        }
        if around {
            set("add_sep_token", Value::Bool(true));
        }
        set("tokens", Value::Array(Array::String(self.tokens)));
        set("token_type", Value::Array(Array::I32(self.types)));
        set("merges", Value::Array(Array::String(self.merges)));
        Ok(Metadata::new(settings.file, entries))
    }
}

/// Bytes written in GPT-2's characters.
fn spelled(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| byte_char(byte)).collect()
}

fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0_u32);
    let end = text.iter().rposition(|&byte| byte != b'=').map_or(0, |last| last + 1);
    for &byte in &text[..end] {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(digit)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

/// A vocabulary of tokens in order of rank, the first of which has the id `first`. Two neighbouring tokens that
/// together form a token are merged, lowest rank first.
fn of_ranks(settings: &Settings<'_>, ranked: Vec<Vec<u8>>, first: usize) -> Result<Vocabulary, LoadError> {
    let corrupt = |reason: String| settings.corrupt("ranks", reason);
    if ranked.len() + first > VOCAB_MAX {
        return Err(corrupt(format!("{} tokens; at most {VOCAB_MAX} are possible", ranked.len())));
    }
    let mut ranks: HashMap<&[u8], u32> = HashMap::with_capacity(ranked.len());
    for (rank, token) in ranked.iter().enumerate() {
        if token.is_empty() || token.len() > PIECE_BYTES_MAX {
            let reason =
                format!("token {rank} has {} bytes; 1 to {PIECE_BYTES_MAX} are possible", token.len());
            return Err(corrupt(reason));
        }
        if let Some(other) = ranks.insert(token, rank as u32) {
            return Err(corrupt(format!("tokens {other} and {rank} are the same")));
        }
    }
    let mut merges = Vec::new();
    for token in ranked.iter().filter(|token| token.len() > 1) {
        let halves = (1..token.len()).filter_map(|at| {
            let (left, right) = token.split_at(at);
            Some((*ranks.get(left)?, *ranks.get(right)?, at))
        });
        let mut halves: Vec<_> = halves.collect();
        halves.sort_unstable();
        if merges.len() + halves.len() > MERGES_MAX {
            return Err(corrupt(format!("its tokens are made in over {MERGES_MAX} ways")));
        }
        let merge =
            |(_, _, at): (u32, u32, usize)| format!("{} {}", spelled(&token[..at]), spelled(&token[at..]));
        merges.extend(halves.into_iter().map(merge));
    }
    let mut tokens = vec![String::new(); first];
    let mut types = vec![5; first];
    tokens.extend(ranked.iter().map(|token| spelled(token)));
    types.extend(ranked.iter().map(|_| 1));
    Ok(Vocabulary { tokens, types, merges })
}

/// Whether a file consists of tiktoken's lines.
pub(super) fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut parts = line.split(|&byte| byte == b' ');
    let (token, rank, rest) = (parts.next(), parts.next(), parts.next());
    rest.is_none()
        && token.and_then(base64).is_some_and(|token| !token.is_empty())
        && rank.is_some_and(|rank| rank.trim_ascii_end().iter().all(u8::is_ascii_digit) && !rank.is_empty())
}

/// Metadata of a tiktoken file.
///
/// # Errors
/// `Corrupt` with the line, `Unsupported` for an unknown class.
pub(super) fn of_tiktoken(settings: &Settings<'_>, bytes: &[u8]) -> Result<Metadata, LoadError> {
    let class = settings.class();
    let Some(&(_, pre)) = TIKTOKEN.iter().find(|(name, _)| *name == class) else {
        return Err(settings.unsupported(&TIKTOKEN.map_names()));
    };
    let mut ranked = Vec::new();
    for (at, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii_end();
        if line.is_empty() {
            continue;
        }
        let wrong = |reason: &str| settings.corrupt(&format!("line {}", at + 1), reason);
        let space = line.iter().position(|&byte| byte == b' ').ok_or_else(|| wrong("has no rank"))?;
        let token = base64(&line[..space]).ok_or_else(|| wrong("is not written in base 64"))?;
        let rank = str::from_utf8(&line[space + 1..]).ok().and_then(|rank| rank.parse::<usize>().ok());
        if rank != Some(ranked.len()) {
            return Err(wrong(&format!("expected rank {}", ranked.len())));
        }
        if ranked.len() == VOCAB_MAX {
            return Err(wrong(&format!("at most {VOCAB_MAX} tokens are possible")));
        }
        ranked.push(token);
    }
    let count = ranked.len();
    let mut vocabulary = of_ranks(settings, ranked, 0)?;
    if class == "QWenTokenizer" {
        let extra = (0..205).map(|number| format!("<|extra_{number}|>"));
        let special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
        for (at, text) in special.into_iter().chain(extra).enumerate() {
            vocabulary.put(settings, AddedToken { id: (count + at) as u32, text, special: true })?;
        }
    }
    vocabulary.metadata(settings, pre, false)
}

/// Names of a table.
trait Names {
    fn map_names(&self) -> Vec<&'static str>;
}

impl Names for [(&'static str, &'static str)] {
    fn map_names(&self) -> Vec<&'static str> {
        self.iter().map(|(name, _)| *name).collect()
    }
}

#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    #[serde(deserialize_with = "json::list::<_, _, VOCAB_MAX>")]
    vocab: Vec<TekkenToken>,
    #[serde(default, deserialize_with = "json::list::<_, _, VOCAB_MAX>")]
    special_tokens: Vec<TekkenSpecial>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: u32,
    token_str: String,
}

/// Special tokens of Mistral's first files, which do not list them.
const TEKKEN_SPECIAL: &[&str] = &[
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Metadata of a `tekken.json`.
///
/// # Errors
/// `Corrupt` naming the part, `Unsupported` for another pattern than the one that all of them have.
pub(super) fn of_tekken(settings: &Settings<'_>, bytes: &[u8]) -> Result<Metadata, LoadError> {
    let tekken: Tekken =
        serde_json::from_slice(bytes).map_err(|error| settings.corrupt("tekken.json", error.to_string()))?;
    if tekken.config.pattern != crate::tokenizer::TEKKEN_PATTERN {
        return Err(LoadError::Unsupported {
            file: settings.file.to_owned(),
            key: "config.pattern".into(),
            value: crate::error::shorten(tekken.config.pattern),
            reason: "the one of Mistral's Tekken is".into(),
        });
    }
    let first = tekken.config.default_num_special_tokens;
    let count =
        tekken.config.default_vocab_size.checked_sub(first).filter(|&count| count <= tekken.vocab.len());
    let Some(count) = count.filter(|_| first <= VOCAB_MAX) else {
        let reason = format!(
            "of its {} tokens, {} and {first} others are used",
            tekken.vocab.len(),
            tekken.config.default_vocab_size
        );
        return Err(settings.corrupt("config", reason));
    };
    let token = |(at, token): (usize, TekkenToken)| {
        let bytes = base64(token.token_bytes.as_bytes()).filter(|_| token.rank == at);
        bytes.ok_or_else(|| {
            settings.corrupt("vocab", format!("token {at} has another rank, or is not written in base 64"))
        })
    };
    let ranked = tekken.vocab.into_iter().take(count).enumerate().map(token).collect::<Result<_, _>>()?;
    let mut vocabulary = of_ranks(settings, ranked, first)?;
    let mut special: Vec<(u32, String)> =
        tekken.special_tokens.into_iter().map(|token| (token.rank, token.token_str)).collect();
    if special.is_empty() {
        special = (0..).zip(TEKKEN_SPECIAL.iter().map(|text| (*text).to_owned())).collect();
    }
    for (id, text) in special {
        if id as usize >= first || text.is_empty() {
            return Err(
                settings.corrupt("special_tokens", format!("token {id} is none of the first {first}"))
            );
        }
        vocabulary.put(settings, AddedToken { id, text, special: true })?;
    }
    let named = |text: &str| vocabulary.tokens.iter().position(|token| token == text).map(|id| id as u32);
    let (bos, eos) = (named("<s>"), named("</s>"));
    let mut metadata = vocabulary.metadata(settings, "tekken", false)?;
    for (key, id) in [("tokenizer.ggml.bos_token_id", bos), ("tokenizer.ggml.eos_token_id", eos)] {
        if let Some(id) = id {
            metadata.set(key, Value::U32(id));
        }
    }
    Ok(metadata)
}

/// Token ids of GPT-2's `vocab.json`.
#[derive(Deserialize)]
struct Ids(#[serde(deserialize_with = "json::entries::<_, _, _, VOCAB_MAX>")] HashMap<String, u32>);

/// Metadata of `vocab.json` and `merges.txt`.
///
/// # Errors
/// `Corrupt` naming the file, `Unsupported` for an unknown class.
pub(super) fn of_gpt2(settings: &Settings<'_>, vocab: &[u8], merges: &str) -> Result<Metadata, LoadError> {
    let class = settings.class();
    let Some(&(_, pre, around)) = GPT2.iter().find(|(name, ..)| *name == class) else {
        let known: Vec<&str> = GPT2.iter().map(|(name, ..)| *name).collect();
        return Err(settings.unsupported(&known));
    };
    let Ids(ids) = serde_json::from_slice(vocab)
        .map_err(|error: serde_json::Error| settings.corrupt("vocab.json", error.to_string()))?;
    let count = ids.values().max().map_or(0, |&id| id as usize + 1);
    if count == 0 || count > VOCAB_MAX {
        return Err(settings
            .corrupt("vocab.json", format!("its numbers go up to {count}, and {VOCAB_MAX} are possible")));
    }
    let mut vocabulary =
        Vocabulary { tokens: vec![String::new(); count], types: vec![5; count], merges: Vec::new() };
    for (text, id) in ids {
        let at = id as usize;
        if !vocabulary.tokens[at].is_empty() {
            return Err(settings.corrupt("vocab.json", format!("two tokens have the number {id}")));
        }
        (vocabulary.tokens[at], vocabulary.types[at]) = (text, 1);
    }
    let lines = merges.lines().filter(|line| !line.starts_with("#version") && !line.trim().is_empty());
    for line in lines {
        if vocabulary.merges.len() == MERGES_MAX {
            return Err(settings.corrupt("merges.txt", format!("over {MERGES_MAX} merges")));
        }
        vocabulary.merges.push(line.trim_end().to_owned());
    }
    vocabulary.metadata(settings, pre, around)
}
