//! Tokens that a model expects around a text, and around and between the texts of a pair. BERT's form of a pair is
//! `[CLS] a [SEP] b [SEP]`, with a type for each token.

use std::collections::HashMap;

use hanzo_engine_model_files::error::LoadError;
use serde_json::Value;

use super::hf::{Source, text_of, token_text};

/// Tokens around a text, and around a pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Affixes {
    /// Tokens before a text.
    pub(super) prefix: Vec<u32>,
    /// Tokens after a text.
    pub(super) suffix: Vec<u32>,
    /// Tokens of a pair; `None`: the model does not define pairs.
    pub(super) pair: Option<PairAffixes>,
}

/// Tokens around and between the texts of a pair; each with its type.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PairAffixes {
    pub(super) before: Vec<(u32, u32)>,
    pub(super) between: Vec<(u32, u32)>,
    pub(super) after: Vec<(u32, u32)>,
    /// Types of the texts' own tokens.
    pub(super) types: [u32; 2],
}

impl Affixes {
    /// `cls a sep`, and `cls a sep sep b sep` or, with types, `cls a sep b sep`.
    pub(super) fn of_bert(cls: u32, sep: u32, separators: usize, second_type: u32) -> Affixes {
        Affixes {
            prefix: vec![cls],
            suffix: vec![sep],
            pair: Some(PairAffixes {
                before: vec![(cls, 0)],
                between: vec![(sep, 0); separators],
                after: vec![(sep, second_type)],
                types: [0, second_type],
            }),
        }
    }
}

/// Reads the post-processor of `tokenizer.json`; settings of `tokenizer_config.json` take precedence.
pub(super) fn of_json(
    source: &Source,
    post_processor: Option<&Value>,
    config: Option<&Value>,
    vocab: &HashMap<String, u32>,
) -> Result<Affixes, LoadError> {
    let mut affixes = Affixes::default();
    let processors = match post_processor {
        None => &[],
        Some(value) => match value.get("processors").and_then(Value::as_array) {
            Some(list) => list.as_slice(),
            None => std::slice::from_ref(value),
        },
    };
    for processor in processors {
        let kind = processor.get("type").map(text_of).unwrap_or_default();
        match kind.as_str() {
            "ByteLevel" => {}
            "TemplateProcessing" => affixes = template(source, processor, vocab)?,
            "BertProcessing" | "RobertaProcessing" => {
                let token = |key: &str| {
                    let id = processor.pointer(&format!("/{key}/1")).and_then(Value::as_u64);
                    let id = id.and_then(|id| u32::try_from(id).ok());
                    id.ok_or_else(|| source.corrupt("post_processor", format!("{key} is not a token")))
                };
                let (cls, sep) = (token("cls")?, token("sep")?);
                affixes = match kind.as_str() {
                    "BertProcessing" => Affixes::of_bert(cls, sep, 1, 1),
                    _ => Affixes::of_bert(cls, sep, 2, 0),
                };
            }
            _ => {
                let known = "TemplateProcessing, BertProcessing, RobertaProcessing and ByteLevel are";
                return Err(source.unsupported("post_processor.type", kind, known));
            }
        }
    }
    for (flag, key, side) in [
        ("add_bos_token", "bos_token", &mut affixes.prefix),
        ("add_eos_token", "eos_token", &mut affixes.suffix),
    ] {
        let Some(wanted) = config.and_then(|config| config.get(flag)).and_then(Value::as_bool) else {
            continue;
        };
        side.clear();
        if wanted {
            let token = config.and_then(|config| token_text(config.get(key)?));
            match token.and_then(|token| vocab.get(token).copied()) {
                Some(id) => side.push(id),
                None => {
                    let reason = format!("{flag} is true, and {key} is {}", token.unwrap_or("missing"));
                    return Err(source.corrupt(&format!("tokenizer_config.{key}"), reason));
                }
            }
        }
    }
    Ok(affixes)
}

/// Part of a template: the place of a text, or a token.
enum Piece {
    Text { second: bool, of_type: u32 },
    Token { id: u32, of_type: u32 },
}

fn template(source: &Source, processor: &Value, vocab: &HashMap<String, u32>) -> Result<Affixes, LoadError> {
    let mut affixes = Affixes::default();
    let mut after = false;
    for piece in pieces(source, processor, "single", vocab)? {
        match piece {
            Piece::Text { .. } => after = true,
            Piece::Token { id, .. } if after => affixes.suffix.push(id),
            Piece::Token { id, .. } => affixes.prefix.push(id),
        }
    }
    let mut pair = PairAffixes::default();
    let mut texts = 0;
    for piece in pieces(source, processor, "pair", vocab)? {
        match piece {
            Piece::Text { second, of_type } => {
                if texts == 2 || second != (texts == 1) {
                    return Ok(affixes); // not a, then b: no pair format
                }
                pair.types[texts] = of_type;
                texts += 1;
            }
            Piece::Token { id, of_type } => {
                [&mut pair.before, &mut pair.between, &mut pair.after][texts].push((id, of_type));
            }
        }
    }
    affixes.pair = (texts == 2).then_some(pair);
    Ok(affixes)
}

fn pieces(
    source: &Source,
    processor: &Value,
    key: &str,
    vocab: &HashMap<String, u32>,
) -> Result<Vec<Piece>, LoadError> {
    let corrupt = |piece: &Value| {
        source.corrupt(&format!("post_processor.{key}"), format!("{piece} is neither text nor a token"))
    };
    let list = processor.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let read = |piece: &Value| {
        let of_type = |kind: &str| {
            let number = piece.pointer(&format!("/{kind}/type_id")).and_then(Value::as_u64).unwrap_or(0);
            u32::try_from(number).map_err(|_| corrupt(piece))
        };
        if let Some(text) = piece.get("Sequence") {
            let second = text.get("id").is_some_and(|id| id == "B");
            return Ok(Piece::Text { second, of_type: of_type("Sequence")? });
        }
        let token = piece.pointer("/SpecialToken/id").and_then(Value::as_str);
        let id = token.and_then(|token| vocab.get(token).copied()).ok_or_else(|| corrupt(piece))?;
        Ok(Piece::Token { id, of_type: of_type("SpecialToken")? })
    };
    list.iter().map(read).collect()
}
