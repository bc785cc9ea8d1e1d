//! Tokenizers from Hugging Face's `tokenizer.json` and `tokenizer_config.json`. Model types: BPE, byte-level or
//! SentencePiece style, WordPiece and Unigram. Only the parts listed here go to the `tokenizers` crate. Padding,
//! truncation, post-processing and decoding are read here, or ignored.

use std::collections::HashMap;

use hanzo_engine_model_files::{error::LoadError, json};
use serde::Deserialize;
use serde_json::Value;
use tokenizers::{AddedToken, normalizers::Precompiled};

use super::{
    Encoder, Tokenizer, affixes,
    bpe::{Part, Parts},
    byte_level::ByteChars,
    chars_map, pieces,
    sentencepiece::byte_token,
    table::TokenTable,
    words::Words,
};

use crate::limits::{
    ADDED_TOKEN_BYTES_MAX, ADDED_TOKENS_MAX, MERGES_MAX, ONE_ADDED_TOKEN_BYTES_MAX,
    TOKENIZER_PATTERN_BYTES_MAX, TOKENIZER_STEP_VALUES_MAX, VOCAB_MAX,
};

/// Maximum number of characters that all steps of a normalizer together make from one, or put before a text.
const INSERT_CHARS_MAX: usize = 16;

/// Supported steps that change text before it is split.
const NORMALIZERS: &[&str] = &[
    "Sequence",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Prepend",
    "Replace",
    "Lowercase",
    "Strip",
    "StripAccents",
    "BertNormalizer",
    "Precompiled",
    "Nmt",
];
/// Supported steps that split text into words.
const PRE_TOKENIZERS: &[&str] = &[
    "Sequence",
    "Split",
    "ByteLevel",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Whitespace",
    "WhitespaceSplit",
    "BertPreTokenizer",
];

/// Part of a tokenizer.
pub(super) type Step = json::Small<TOKENIZER_STEP_VALUES_MAX>;

/// All parts except the model. Only the model's kind is read, because it decides how the rest is read.
#[derive(Deserialize)]
pub(super) struct File {
    #[serde(default, deserialize_with = "json::list::<_, _, ADDED_TOKENS_MAX>")]
    pub(super) added_tokens: Vec<AddedEntry>,
    pub(super) normalizer: Option<Step>,
    pub(super) pre_tokenizer: Option<Step>,
    post_processor: Option<Step>,
    pub(super) decoder: Option<Step>,
    model: Kind,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: Option<Step>,
}

/// Only the model.
#[derive(Deserialize)]
struct OfModel<M> {
    model: M,
}

/// Entry of `added_tokens`.
#[derive(Deserialize)]
pub(super) struct AddedEntry {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}

#[derive(Deserialize)]
pub(super) struct Model {
    #[serde(deserialize_with = "json::entries::<_, _, _, VOCAB_MAX>")]
    pub(super) vocab: HashMap<String, u32>,
    #[serde(deserialize_with = "json::list::<_, _, MERGES_MAX>")]
    pub(super) merges: Vec<Merge>,
    dropout: Option<f32>,
    pub(super) unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Merge {
    Pair(String, String),
    Line(String),
}

/// Spelling of bytes in a model's token texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TokenSpelling {
    /// GPT-2's characters.
    ByteLevel,
    /// SentencePiece's `▁`, and `<0x00>` with byte fallback.
    Metaspace { strips_space: bool },
    /// Words separated by spaces; a prefix marks pieces inside a word.
    WordPiece,
}

/// Default mark of a piece inside a word.
const CONTINUING: &str = "##";

/// Name of the file for errors.
pub(super) struct Source<'a>(pub(super) &'a str);

impl Source<'_> {
    pub(super) fn corrupt(&self, key: &str, reason: impl Into<String>) -> LoadError {
        LoadError::Corrupt { file: self.0.to_owned(), what: format!("key {key}"), reason: reason.into() }
    }

    pub(super) fn unsupported(&self, key: &str, value: impl Into<String>, reason: &str) -> LoadError {
        LoadError::Unsupported {
            file: self.0.to_owned(),
            key: key.to_owned(),
            value: value.into(),
            reason: reason.to_owned(),
        }
    }
}

/// Kind of the model in a `tokenizer.json`, if stated.
pub fn kind(tokenizer_json: &[u8]) -> Option<String> {
    let parsed: OfModel<Kind> = serde_json::from_slice(tokenizer_json).ok()?;
    parsed.model.kind.map(|json::Small(kind)| text_of(&kind))
}

/// Loads the tokenizer of a directory's two files; `file` names the first in errors.
pub(super) fn load(
    file: &str,
    tokenizer_json: &[u8],
    config: Option<&Value>,
) -> Result<Tokenizer, LoadError> {
    let source = Source(file);
    let parsed: File = serde_json::from_slice(tokenizer_json).map_err(|error| LoadError::Corrupt {
        file: file.to_owned(),
        what: "JSON".into(),
        reason: error.to_string(),
    })?;
    let kind = match &parsed.model.kind {
        None => "BPE".to_owned(),
        Some(json::Small(kind)) => text_of(kind),
    };
    match kind.as_str() {
        "WordPiece" | "Unigram" => return load_pieces(&source, &kind, parsed, tokenizer_json, config),
        "BPE" => {}
        _ => return Err(source.unsupported("model.type", kind, "BPE, WordPiece and Unigram are")),
    }
    let model = model(&source, tokenizer_json)?;
    let spelling = spelling(&source, value_of(&parsed.decoder))?;
    let mut vocab = model.vocab;
    let (added, special) = added(&source, parsed.added_tokens, &mut vocab)?;
    let table = table(&source, &vocab, &special, spelling, model.byte_fallback)?;
    let affixes = affixes::of_json(&source, value_of(&parsed.post_processor), config, &vocab)?;
    let parts = Parts {
        vocab,
        merges: merges(&source, model.merges)?,
        added,
        normalizer: step(&source, "normalizer", parsed.normalizer, NORMALIZERS)?,
        pre_tokenizer: step(&source, "pre_tokenizer", parsed.pre_tokenizer, PRE_TOKENIZERS)?,
        ignore_merges: model.ignore_merges,
        byte_fallback: model.byte_fallback,
        unknown: model.unk_token,
        fuse_unknown: model.fuse_unk,
        word_end: model.end_of_word_suffix.filter(|end| !end.is_empty()),
    };
    let tokenizer = parts.build().map_err(|unusable| {
        let key = match unusable.part {
            Part::Vocab => "model.vocab",
            Part::Merges => "model.merges",
            Part::Added => "added_tokens",
            Part::Unknown => "model.unk_token",
            Part::Normalizer => "normalizer",
        };
        source.corrupt(key, unusable.reason)
    })?;
    let strips_space = spelling == TokenSpelling::Metaspace { strips_space: true };
    let encoder = encoder(&source, tokenizer, &table, None)?;
    Ok(Tokenizer { encoder, affixes, table, strips_space })
}

#[derive(Deserialize)]
struct WordPieceModel {
    #[serde(deserialize_with = "json::entries::<_, _, _, VOCAB_MAX>")]
    vocab: HashMap<String, u32>,
    unk_token: String,
    #[serde(default = "continuing")]
    continuing_subword_prefix: String,
    max_input_chars_per_word: Option<usize>,
}

#[derive(Deserialize)]
struct UnigramModel {
    #[serde(deserialize_with = "json::list::<_, _, VOCAB_MAX>")]
    vocab: Vec<(String, f64)>,
    unk_id: Option<usize>,
    #[serde(default)]
    byte_fallback: bool,
}

fn continuing() -> String {
    CONTINUING.to_owned()
}

/// Loads a WordPiece or Unigram tokenizer.
fn load_pieces(
    source: &Source,
    kind: &str,
    parsed: File,
    tokenizer_json: &[u8],
    config: Option<&Value>,
) -> Result<Tokenizer, LoadError> {
    let mut unknown = None;
    let (model, mut vocab, spelling, byte_fallback) = if kind == "WordPiece" {
        let model: WordPieceModel = model_of(source, tokenizer_json)?;
        let parts = pieces::Model::WordPiece {
            vocab: model.vocab.clone(),
            unknown: model.unk_token,
            continuing: model.continuing_subword_prefix,
            word_chars_max: model.max_input_chars_per_word.unwrap_or(100),
        };
        (parts, model.vocab, TokenSpelling::WordPiece, false)
    } else {
        let model: UnigramModel = model_of(source, tokenizer_json)?;
        let mut vocab = HashMap::with_capacity(model.vocab.len());
        for (id, (piece, _)) in model.vocab.iter().enumerate() {
            // If pieces are equal, the first is found; the others only take up IDs.
            vocab.entry(piece.clone()).or_insert(id as u32);
        }
        let byte_fallback = model.byte_fallback;
        unknown = model.unk_id;
        let parts = pieces::Model::Unigram { pieces: model.vocab, unknown, byte_fallback };
        (parts, vocab, TokenSpelling::Metaspace { strips_space: true }, byte_fallback)
    };
    let (added, special) = added(source, parsed.added_tokens, &mut vocab)?;
    let table = table(source, &vocab, &special, spelling, byte_fallback)?;
    let affixes = affixes::of_json(source, value_of(&parsed.post_processor), config, &vocab)?;
    let parts = pieces::Parts {
        model,
        added,
        normalizer: step(source, "normalizer", parsed.normalizer, NORMALIZERS)?,
        pre_tokenizer: step(source, "pre_tokenizer", parsed.pre_tokenizer, PRE_TOKENIZERS)?,
    };
    let tokenizer = parts.build().map_err(|unusable| {
        let key = match unusable.part {
            "normalizer" | "added_tokens" => unusable.part.to_owned(),
            part => format!("model.{part}"),
        };
        source.corrupt(&key, unusable.reason)
    })?;
    let encoder = encoder(source, tokenizer, &table, unknown)?;
    Ok(Tokenizer { encoder, affixes, table, strips_space: true })
}

/// Encoder of the crate's tokenizer; `unknown` is the unknown token of a Unigram model.
fn encoder(
    source: &Source,
    tokenizer: tokenizers::Tokenizer,
    table: &TokenTable,
    unknown: Option<usize>,
) -> Result<Encoder, LoadError> {
    let words = Words::new(tokenizer, table).map_err(|reason| source.corrupt("added_tokens", reason))?;
    Ok(Encoder::Words(Box::new(words.with_unknown(unknown))))
}

/// Parses the model of a file as one of its kind.
fn model_of<M: serde::de::DeserializeOwned>(source: &Source, tokenizer_json: &[u8]) -> Result<M, LoadError> {
    let parsed: Result<OfModel<M>, _> = serde_json::from_slice(tokenizer_json);
    parsed.map(|parsed| parsed.model).map_err(|error| source.corrupt("model", error.to_string()))
}

pub(super) fn value_of(step: &Option<Step>) -> Option<&Value> {
    step.as_ref().map(|json::Small(value)| value)
}

/// Added tokens, which join the vocabulary, and whether each is special, by ID.
fn added(
    source: &Source,
    tokens: Vec<AddedEntry>,
    vocab: &mut HashMap<String, u32>,
) -> Result<(Vec<AddedToken>, HashMap<u32, bool>), LoadError> {
    let bytes: usize = tokens.iter().map(|token| token.content.len()).sum();
    if bytes > ADDED_TOKEN_BYTES_MAX {
        let reason = format!("their texts have {bytes} bytes; at most {ADDED_TOKEN_BYTES_MAX} are possible");
        return Err(source.corrupt("added_tokens", reason));
    }
    let mut special = HashMap::new();
    let mut added = Vec::with_capacity(tokens.len());
    for token in tokens {
        if token.content.is_empty() {
            return Err(source.corrupt("added_tokens", format!("token {} has no content", token.id)));
        }
        let length = token.content.len();
        if length > ONE_ADDED_TOKEN_BYTES_MAX {
            let reason = format!(
                "token {} has {length} bytes; at most {ONE_ADDED_TOKEN_BYTES_MAX} are possible",
                token.id
            );
            return Err(source.corrupt("added_tokens", reason));
        }
        let id = *vocab.entry(token.content.clone()).or_insert(token.id);
        if id != token.id {
            let reason =
                format!("{:?} is token {} here and token {id} in the vocabulary", token.content, token.id);
            return Err(source.corrupt("added_tokens", reason));
        }
        special.insert(id, token.special);
        added.push(
            AddedToken::from(token.content, token.special)
                .single_word(token.single_word)
                .lstrip(token.lstrip)
                .rstrip(token.rstrip)
                .normalized(token.normalized),
        );
    }
    Ok((added, special))
}

pub(super) fn model(source: &Source, tokenizer_json: &[u8]) -> Result<Model, LoadError> {
    let model: Model = model_of(source, tokenizer_json)?;
    if let Some(dropout) = model.dropout.filter(|&dropout| dropout != 0.0) {
        return Err(source.unsupported(
            "model.dropout",
            dropout.to_string(),
            "only none is: text has one encoding",
        ));
    }
    if let Some(prefix) = model.continuing_subword_prefix.as_ref().filter(|prefix| !prefix.is_empty()) {
        return Err(source.unsupported("model.continuing_subword_prefix", prefix, "only none is"));
    }
    // It is appended to every word before tokenizing.
    if let Some(end) = model.end_of_word_suffix.as_ref().filter(|end| end.len() > INSERT_CHARS_MAX) {
        let length = end.len();
        let reason = format!("it has {length} bytes; at most {INSERT_CHARS_MAX} are possible");
        return Err(source.corrupt("model.end_of_word_suffix", reason));
    }
    Ok(model)
}

pub(super) fn merges(source: &Source, merges: Vec<Merge>) -> Result<Vec<(String, String)>, LoadError> {
    let pair = |(rank, merge)| match merge {
        Merge::Pair(left, right) => Ok((left, right)),
        Merge::Line(line) => match line.split_once(' ') {
            Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
            None => Err(source
                .corrupt("model.merges", format!("merge {rank} is {line:?}, not two tokens and a space"))),
        },
    };
    merges.into_iter().enumerate().map(pair).collect()
}

/// Parses a normalizer or pre-tokenizer after checking every step.
fn step<T: serde::de::DeserializeOwned>(
    source: &Source,
    key: &str,
    value: Option<Step>,
    known: &[&str],
) -> Result<Option<T>, LoadError> {
    let Some(json::Small(value)) = value else { return Ok(None) };
    let mut steps = vec![&value];
    let mut inserted_chars = 1usize;
    while let Some(step) = steps.pop() {
        let kind = step.get("type").map(text_of).unwrap_or_default();
        if !known.contains(&kind.as_str()) {
            return Err(source.unsupported(key, kind, &format!("{} are", known.join(", "))));
        }
        if let Some(pattern) = step.pointer("/pattern/Regex").or_else(|| step.pointer("/pattern/String")) {
            let length = pattern.as_str().map_or(0, str::len);
            if length > TOKENIZER_PATTERN_BYTES_MAX {
                let reason = format!(
                    "a pattern of {length} bytes; at most {TOKENIZER_PATTERN_BYTES_MAX} are possible"
                );
                return Err(source.corrupt(key, reason));
            }
        }
        // The crate panics on a map it cannot read; it only accepts text.
        if kind == "Precompiled" {
            let map = step.get("precompiled_charsmap").and_then(Value::as_str).unwrap_or_default();
            chars_map::check_base64(map)
                .map_err(|reason| source.corrupt(&format!("{key}.precompiled_charsmap"), reason))?;
            serde_json::from_str::<Precompiled>(&step.to_string())
                .map_err(|error| source.corrupt(key, format!("Precompiled: {error}")))?;
        }
        for list in ["normalizers", "pretokenizers"] {
            steps.extend(step.get(list).and_then(Value::as_array).into_iter().flatten());
        }
        // Each step works on the output of the one before, so their factors multiply.
        for inserted in ["content", "prepend"] {
            let chars = step.get(inserted).and_then(Value::as_str).map_or(1, |text| text.chars().count());
            inserted_chars = inserted_chars.saturating_mul(chars.max(1));
        }
        if inserted_chars > INSERT_CHARS_MAX {
            return Err(source.corrupt(key, format!("it inserts over {INSERT_CHARS_MAX} characters for one")));
        }
    }
    serde_json::from_value(value).map(Some).map_err(|error| source.corrupt(key, error.to_string()))
}

pub(super) fn spelling(source: &Source, decoder: Option<&Value>) -> Result<TokenSpelling, LoadError> {
    let refuse =
        |kind: String| source.unsupported("decoder.type", kind, "ByteLevel, Metaspace and their like are");
    let Some(decoder) = decoder else { return Err(refuse("null".into())) };
    let steps = match decoder.get("decoders").and_then(Value::as_array) {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(decoder),
    };
    let mut spelling = None;
    for step in steps {
        let kind = step.get("type").map(text_of).unwrap_or_default();
        match kind.as_str() {
            "ByteLevel" => spelling = Some(TokenSpelling::ByteLevel),
            "Metaspace" => {
                let never = step.get("prepend_scheme").is_some_and(|scheme| scheme == "never")
                    || step.get("add_prefix_space").is_some_and(|add| add == false);
                spelling = Some(TokenSpelling::Metaspace { strips_space: !never });
                let replacement = step.get("replacement").map(text_of).unwrap_or_default();
                if replacement != "▁" {
                    return Err(source.unsupported("decoder.replacement", replacement, "▁ is"));
                }
            }
            "Replace" => {
                let from = step.pointer("/pattern/String").map(text_of).unwrap_or_default();
                if from != "▁" || step.get("content").is_none_or(|to| to != " ") {
                    return Err(source.unsupported("decoder.pattern", from, "▁ for a space is"));
                }
                spelling.get_or_insert(TokenSpelling::Metaspace { strips_space: false });
            }
            "Strip" => {
                let is_one_space = step.get("content").is_some_and(|content| content == " ")
                    && step.get("start").is_some_and(|start| start == 1)
                    && step.get("stop").is_some_and(|stop| stop == 0);
                if !is_one_space {
                    return Err(source.unsupported(
                        "decoder",
                        step.to_string(),
                        "stripping one space in front is",
                    ));
                }
                spelling = Some(TokenSpelling::Metaspace { strips_space: true });
            }
            "ByteFallback" | "Fuse" => {}
            _ => return Err(refuse(kind)),
        }
    }
    spelling.ok_or_else(|| refuse(decoder.get("type").map(text_of).unwrap_or_default()))
}

fn table(
    source: &Source,
    vocab: &HashMap<String, u32>,
    special: &HashMap<u32, bool>,
    spelling: TokenSpelling,
    byte_fallback: bool,
) -> Result<TokenTable, LoadError> {
    let mut count = 0;
    for (text, &id) in vocab {
        if id as usize >= VOCAB_MAX {
            let reason = format!("token {text:?} has id {id}, above the limit of {VOCAB_MAX}");
            return Err(source.corrupt("model.vocab", reason));
        }
        count = count.max(id as usize + 1);
    }
    let mut texts: Vec<Option<&str>> = vec![None; count];
    for (text, &id) in vocab {
        if let Some(other) = texts[id as usize].replace(text) {
            return Err(source.corrupt("model.vocab", format!("token {id} is both {other:?} and {text:?}")));
        }
    }
    let chars = ByteChars::new();
    let tokens = texts.into_iter().enumerate().map(|(id, text)| {
        let mut bytes = Vec::new();
        let text = text.unwrap_or_default();
        match (special.get(&(id as u32)), spelling) {
            (Some(_), _) => bytes.extend_from_slice(text.as_bytes()),
            (None, TokenSpelling::ByteLevel) => chars.decode(text, &mut bytes),
            (None, TokenSpelling::WordPiece) => match text.strip_prefix(CONTINUING) {
                Some(inside) => bytes.extend_from_slice(inside.as_bytes()),
                None => {
                    bytes.push(b' ');
                    bytes.extend_from_slice(text.as_bytes());
                }
            },
            (None, TokenSpelling::Metaspace { .. }) => match byte_token(text).filter(|_| byte_fallback) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(text.replace('▁', " ").as_bytes()),
            },
        }
        (bytes, special.get(&(id as u32)) == Some(&true))
    });
    TokenTable::new(tokens).ok_or_else(|| source.corrupt("model.vocab", "the tokens' texts are over 4 GiB"))
}

/// Text of a token in `tokenizer_config.json`, which is a string or an object with it.
pub fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

pub(super) fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
