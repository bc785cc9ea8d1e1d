//! SentencePiece models (`tokenizer.model`), converted to the metadata that a GGUF file would have. The fields of the
//! protocol buffer (github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto) that determine
//! tokenization are read, within the bounds of the file; an unsupported setting is refused.

use std::collections::BTreeMap;
use std::mem;

use serde_json::Value as Json;

use super::added::{self, AddedToken};
use crate::error::LoadError;
use crate::gguf::{Array, Metadata, Value};
use crate::limits::VOCAB_MAX;

/// Type of a normal piece, equal to that in `tokenizer.ggml.token_type`.
const NORMAL: u64 = 1;
/// Token types of GGUF for special tokens.
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Algorithms of choosing pieces: `TrainerSpec.model_type`.
const UNIGRAM: u64 = 1;
const BYTE_PAIRS: u64 = 2;

/// Classes of Unigram tokenizers whose token ids are the numbers of the pieces.
const UNIGRAM_CLASSES: [&str; 4] = ["LlamaTokenizer", "GemmaTokenizer", "PreTrainedTokenizer", SIGLIP];
/// Class that ends every text with a token, and begins none.
const SIGLIP: &str = "SiglipTokenizer";

/// A model, as far as it is used.
#[derive(Debug)]
struct Model {
    pieces: Vec<(String, f32, i32)>,
    kind: u64,
    bos: i64,
    eos: i64,
    unknown: i64,
    whitespace_suffix: bool,
    charsmap: Vec<u8>,
    dummy_prefix: bool,
    remove_extra: bool,
    escape: bool,
}

/// Content of a field.
enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Protocol buffer, read field by field.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, &'static str> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or("it ends inside a number")?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number is longer than 64 bits")
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], &'static str> {
        let length = usize::try_from(length).ok().filter(|&length| length <= self.0.len());
        let (taken, rest) = self.0.split_at(length.ok_or("a field reaches past its end")?);
        self.0 = rest;
        Ok(taken)
    }

    fn next(&mut self) -> Result<Option<(u64, FieldValue<'a>)>, &'static str> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let held = match tag & 7 {
            0 => FieldValue::Number(self.varint()?),
            1 => FieldValue::Bytes(self.take(8)?),
            2 => {
                let length = self.varint()?;
                FieldValue::Bytes(self.take(length)?)
            }
            5 => FieldValue::Bytes(self.take(4)?),
            _ => return Err("a field has a wire type that there is not"),
        };
        Ok(Some((tag >> 3, held)))
    }
}

fn text(bytes: &[u8]) -> Result<String, &'static str> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a piece is not UTF-8")
}

fn read(bytes: &[u8]) -> Result<Model, String> {
    let mut model = Model {
        pieces: Vec::new(),
        kind: UNIGRAM,
        bos: 1,
        eos: 2,
        unknown: 0,
        whitespace_suffix: false,
        charsmap: Vec::new(),
        dummy_prefix: true,
        remove_extra: true,
        escape: true,
    };
    let mut fields = Fields(bytes);
    while let Some(field) = fields.next()? {
        match field {
            (1, FieldValue::Bytes(piece)) => {
                if model.pieces.len() == VOCAB_MAX {
                    return Err(format!("it has over {VOCAB_MAX} pieces, which is the most there may be"));
                }
                model.pieces.push(read_piece(piece)?);
            }
            (2, FieldValue::Bytes(trainer)) => read_trainer(trainer, &mut model)?,
            (3, FieldValue::Bytes(normalizer)) => read_normalizer(normalizer, &mut model)?,
            _ => {}
        }
    }
    if model.pieces.is_empty() { Err("it has no pieces".into()) } else { Ok(model) }
}

fn read_piece(bytes: &[u8]) -> Result<(String, f32, i32), &'static str> {
    let (mut piece, mut score, mut kind) = (String::new(), 0.0, NORMAL);
    let mut fields = Fields(bytes);
    while let Some(field) = fields.next()? {
        match field {
            (1, FieldValue::Bytes(spelled)) => piece = text(spelled)?,
            (2, FieldValue::Bytes(number)) => {
                score =
                    number.try_into().map(f32::from_le_bytes).map_err(|_| "a score has not four bytes")?;
            }
            (3, FieldValue::Number(number)) => kind = number,
            _ => {}
        }
    }
    match kind {
        1..=6 => Ok((piece, score, kind as i32)),
        _ => Err("a piece is of a kind that there is not"),
    }
}

fn read_trainer(bytes: &[u8], model: &mut Model) -> Result<(), &'static str> {
    let mut fields = Fields(bytes);
    while let Some(field) = fields.next()? {
        match field {
            (3, FieldValue::Number(kind)) => model.kind = kind,
            (24, FieldValue::Number(flag)) => model.whitespace_suffix = flag != 0,
            (40, FieldValue::Number(id)) => model.unknown = id as i64,
            (41, FieldValue::Number(id)) => model.bos = id as i64,
            (42, FieldValue::Number(id)) => model.eos = id as i64,
            _ => {}
        }
    }
    Ok(())
}

fn read_normalizer(bytes: &[u8], model: &mut Model) -> Result<(), &'static str> {
    let mut fields = Fields(bytes);
    while let Some(field) = fields.next()? {
        match field {
            (2, FieldValue::Bytes(map)) => model.charsmap = map.to_vec(),
            (3, FieldValue::Number(flag)) => model.dummy_prefix = flag != 0,
            (4, FieldValue::Number(flag)) => model.remove_extra = flag != 0,
            (5, FieldValue::Number(flag)) => model.escape = flag != 0,
            _ => {}
        }
    }
    Ok(())
}

/// Entries of the model's kind and of its normalization.
fn kind_entries(
    model: &mut Model,
    class: &str,
    unsupported: &dyn Fn(&str, String, &str) -> LoadError,
) -> Result<Vec<(&'static str, Value)>, LoadError> {
    let mut entries = match model.kind {
        BYTE_PAIRS => {
            let mut entries = vec![
                ("model", Value::String("llama".into())),
                ("add_space_prefix", Value::Bool(model.dummy_prefix)),
            ];
            if model.remove_extra {
                entries.push(("remove_extra_whitespaces", Value::Bool(true)));
            }
            entries
        }
        // Classes of encoders number their pieces differently from the model.
        UNIGRAM if UNIGRAM_CLASSES.contains(&class) => vec![
            ("model", Value::String("t5".into())),
            ("around_texts", Value::Bool(false)),
            ("add_space_prefix", Value::Bool(model.dummy_prefix)),
            ("remove_extra_whitespaces", Value::Bool(model.remove_extra)),
        ],
        UNIGRAM => {
            let reason = format!(
                "of a Unigram {} are; others are read from a tokenizer.json",
                UNIGRAM_CLASSES.join(", ")
            );
            return Err(unsupported("tokenizer_class", class.to_owned(), &reason));
        }
        other => {
            return Err(unsupported(
                "model_type",
                other.to_string(),
                "1 (Unigram) and 2 (BPE) are; others are read from a tokenizer.json",
            ));
        }
    };
    if !model.charsmap.is_empty() {
        let charsmap = mem::take(&mut model.charsmap);
        entries.push(("precompiled_charsmap", Value::Array(Array::U8(charsmap))));
    }
    Ok(entries)
}

/// Metadata of a GGUF file with this tokenizer. `config` is `tokenizer_config.json`, `more` the list in
/// `added_tokens.json`.
///
/// # Errors
/// `Corrupt` if it is no such model, `Unsupported` if its tokenization is not supported.
pub(super) fn metadata(
    file: &str,
    model: &[u8],
    config: Option<&Json>,
    more: Option<&Json>,
) -> Result<Metadata, LoadError> {
    let corrupt = |reason: String| LoadError::Corrupt {
        file: file.to_owned(),
        what: "SentencePiece model".into(),
        reason,
    };
    let unsupported = |key: &str, value: String, reason: &str| LoadError::Unsupported {
        file: file.to_owned(),
        key: key.into(),
        value,
        reason: reason.into(),
    };
    let mut model = read(model).map_err(corrupt)?;
    if !model.escape {
        return Err(unsupported("escape_whitespaces", "false".into(), "only true is"));
    }
    if model.whitespace_suffix {
        return Err(unsupported("treat_whitespace_as_suffix", "true".into(), "only false is"));
    }
    let (mut tokens, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
    for (piece, score, kind) in mem::take(&mut model.pieces) {
        tokens.push(piece);
        scores.push(score);
        types.push(kind);
    }
    let mut added = added::of_list(file, more)?;
    added.extend(added::of_config(file, config)?);
    place(file, &mut (&mut tokens, &mut scores, &mut types), added)?;
    let id = |id: i64| u32::try_from(id).ok().filter(|&id| (id as usize) < tokens.len());
    let class = config.and_then(|config| config.get("tokenizer_class")?.as_str()).unwrap_or("LlamaTokenizer");
    let class = class.strip_suffix("Fast").unwrap_or(class);
    let mut entries = BTreeMap::new();
    let mut set = |key: &str, value: Value| entries.insert(format!("tokenizer.ggml.{key}"), value);
    for (key, value) in kind_entries(&mut model, class, &unsupported)? {
        set(key, value);
    }
    let named = |key: &str| {
        let text = config?.get(key).and_then(crate::tokenizer::hf::token_text)?;
        tokens.iter().position(|token| token == text).map(|id| id as u32)
    };
    let ends = [
        ("bos_token_id", named("bos_token").or(id(model.bos))),
        ("eos_token_id", named("eos_token").or(id(model.eos))),
        ("unknown_token_id", named("unk_token").or(id(model.unknown))),
    ];
    for (key, id) in ends {
        if let Some(id) = id {
            set(key, Value::U32(id));
        }
    }
    for (key, own) in [("add_bos_token", false), ("add_eos_token", true)] {
        let said = config.and_then(|config| config.get(key)).and_then(Json::as_bool);
        if let Some(flag) = said.or((class == SIGLIP).then_some(own)) {
            set(key, Value::Bool(flag));
        }
    }
    set("tokens", Value::Array(Array::String(tokens)));
    set("scores", Value::Array(Array::F32(scores)));
    set("token_type", Value::Array(Array::I32(types)));
    Ok(Metadata::new(file, entries))
}

/// Tokens, scores and types by id.
type Columns<'a> = (&'a mut Vec<String>, &'a mut Vec<f32>, &'a mut Vec<i32>);

/// Puts added tokens in their places, after the pieces or over pieces of the same text.
fn place(file: &str, columns: &mut Columns<'_>, added: Vec<AddedToken>) -> Result<(), LoadError> {
    let (tokens, scores, types) = columns;
    for AddedToken { id, text, special } in added {
        let at = id as usize;
        let kind = if special { CONTROL } else { USER_DEFINED };
        if at >= VOCAB_MAX {
            return Err(added::corrupt(file, format!("token {id} is above the limit of {VOCAB_MAX}")));
        }
        while tokens.len() <= at {
            // Gaps are filled with tokens that no text produces.
            tokens.push(String::new());
            scores.push(0.0);
            types.push(5);
        }
        if !tokens[at].is_empty() && tokens[at] != text {
            let reason = format!("token {id} is {:?} and {text:?}", tokens[at]);
            return Err(added::corrupt(file, reason));
        }
        // The model's own types of its unknown and byte pieces are kept.
        if !matches!(types[at], 2 | 6) || tokens[at].is_empty() {
            types[at] = kind;
        }
        tokens[at] = text;
    }
    Ok(())
}
