//! Makes a `tokenizer.json` from the `vocab.txt` of BERT's first models, which have no other tokenizer file.

use serde_json::{Map, Value, json};

use crate::error::LoadError;
use crate::limits::VOCAB_MAX;

/// Tokenizers that need only a `vocab.txt`, without the `Fast` at the end of some names.
const CLASSES: &[&str] = &["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "PreTrainedTokenizer"];
/// The library's limit, which is not a setting.
const CHARACTERS_MAX: usize = 100;

/// Settings of a tokenizer.
struct Settings<'a> {
    /// Name of the file, for errors.
    file: &'a str,
    settings: Option<&'a Map<String, Value>>,
}

impl Settings<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.settings.and_then(|settings| settings.get(key)).filter(|value| !value.is_null())
    }

    fn unsupported(&self, key: &str, value: &Value, reason: &str) -> LoadError {
        LoadError::Unsupported {
            file: self.file.to_owned(),
            key: key.to_owned(),
            value: value.to_string(),
            reason: reason.to_owned(),
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, LoadError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.unsupported(key, other, "true or false is expected")),
        }
    }

    /// Refuses a tokenizer of another kind than BERT's.
    fn check_kind(&self) -> Result<(), LoadError> {
        if let Some(class) = self.get("tokenizer_class") {
            let name = class.as_str().unwrap_or_default();
            if !CLASSES.contains(&name.strip_suffix("Fast").unwrap_or(name)) {
                let reason = "without tokenizer.json, only BERT's tokenizer can be made of vocab.txt";
                return Err(self.unsupported("tokenizer_class", class, reason));
            }
        }
        if !self.flag("do_basic_tokenize", true)? {
            let reason = "texts are split at spaces and punctuation first";
            return Err(self.unsupported("do_basic_tokenize", &json!(false), reason));
        }
        Ok(())
    }

    /// A special token, written as a text or as an object that has one.
    fn token(&self, key: &str, default: &str) -> String {
        let text = self.get(key).and_then(|value| value.as_str().or_else(|| value.get("content")?.as_str()));
        text.unwrap_or(default).to_owned()
    }
}

/// Makes a tokenizer from a vocabulary, one token a line, and the settings in `tokenizer_config.json`.
///
/// # Errors
/// `Unsupported` for a tokenizer of another kind, `Corrupt` for an invalid vocabulary.
pub(super) fn tokenizer_json(
    file: &str,
    vocab: &[u8],
    tokenizer_config: Option<&Value>,
) -> Result<Vec<u8>, LoadError> {
    let settings = Settings { file, settings: tokenizer_config.and_then(Value::as_object) };
    settings.check_kind()?;
    let corrupt =
        |reason: String| LoadError::Corrupt { file: file.to_owned(), what: "vocab.txt".into(), reason };
    let text = std::str::from_utf8(vocab).map_err(|error| corrupt(error.to_string()))?;
    // Of equal lines the last counts, as in the library.
    let ids: Map<String, Value> =
        text.lines().enumerate().map(|(id, token)| (token.to_owned(), id.into())).collect();
    if ids.len() > VOCAB_MAX {
        return Err(corrupt(format!("{} tokens; at most {VOCAB_MAX} are allowed", ids.len())));
    }
    let special = [
        ("pad_token", "[PAD]"),
        ("unk_token", "[UNK]"),
        ("cls_token", "[CLS]"),
        ("sep_token", "[SEP]"),
        ("mask_token", "[MASK]"),
    ]
    .map(|(key, default)| settings.token(key, default));
    let [_, unknown, first, separator, _] = &special;
    let id =
        |token: &String| ids.get(token).cloned().ok_or_else(|| corrupt(format!("there is no {token} in it")));
    let (first_id, separator_id) = (id(first)?, id(separator)?);
    id(unknown)?;
    let added: Vec<Value> = special
        .iter()
        .filter_map(|token| {
            let id = ids.get(token)?;
            Some(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }))
        })
        .collect();
    let one = |token: &str, kind: u32| json!({"SpecialToken": {"id": token, "type_id": kind}});
    let text = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
    let single = [one(first, 0), text("A", 0), one(separator, 0)];
    let mut pair = single.to_vec();
    pair.extend([text("B", 1), one(separator, 1)]);
    let mut around = Map::new();
    for (token, id) in [(first, first_id), (separator, separator_id)] {
        around.insert(token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}));
    }
    let strips = match settings.get("strip_accents") {
        None => Value::Null,
        Some(_) => settings.flag("strip_accents", false)?.into(),
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "strip_accents": strips,
            "handle_chinese_chars": settings.flag("tokenize_chinese_chars", true)?,
            "lowercase": settings.flag("do_lower_case", true)?,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": around},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": CHARACTERS_MAX, "vocab": ids,
        },
    });
    Ok(tokenizer.to_string().into_bytes())
}
