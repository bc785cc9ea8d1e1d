//! Tokens added to a vocabulary: `added_tokens_decoder` of `tokenizer_config.json`, and `added_tokens.json`.

use serde_json::Value;

use crate::error::LoadError;
use crate::limits::{ADDED_TOKENS_MAX, VOCAB_MAX};

/// Token added to a vocabulary.
#[derive(Debug, PartialEq)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) text: String,
    /// Whether it is a special token, which is no part of a text.
    pub(super) special: bool,
}

pub(super) fn corrupt(file: &str, reason: impl Into<String>) -> LoadError {
    LoadError::Corrupt { file: file.to_owned(), what: "added tokens".into(), reason: reason.into() }
}

fn id_of(file: &str, number: Option<u64>) -> Result<u32, LoadError> {
    let id = number.and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < VOCAB_MAX);
    id.ok_or_else(|| corrupt(file, format!("a number of one is no number from 0 to {VOCAB_MAX}")))
}

fn bounded(file: &str, count: usize) -> Result<(), LoadError> {
    match count {
        0..=ADDED_TOKENS_MAX => Ok(()),
        _ => Err(corrupt(file, format!("{count} of them; at most {ADDED_TOKENS_MAX} are possible"))),
    }
}

/// Added tokens of `tokenizer_config.json`, in order of id.
///
/// # Errors
/// `Corrupt` if it is not a list of tokens.
pub(super) fn of_config(file: &str, config: Option<&Value>) -> Result<Vec<AddedToken>, LoadError> {
    let Some(Value::Object(listed)) = config.and_then(|config| config.get("added_tokens_decoder")) else {
        return Ok(Vec::new());
    };
    bounded(file, listed.len())?;
    let mut added = Vec::with_capacity(listed.len());
    for (id, token) in listed {
        let text = token.get("content").and_then(Value::as_str).unwrap_or_default();
        if text.is_empty() {
            return Err(corrupt(file, format!("token {id} has no content")));
        }
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        added.push(AddedToken { id: id_of(file, id.parse().ok())?, text: text.to_owned(), special });
    }
    added.sort_by_key(|added| added.id);
    Ok(added)
}

/// Added tokens of `added_tokens.json`, used if no other file has more about them.
///
/// # Errors
/// As [`of_config`].
pub(super) fn of_list(file: &str, list: Option<&Value>) -> Result<Vec<AddedToken>, LoadError> {
    let Some(Value::Object(listed)) = list else { return Ok(Vec::new()) };
    bounded(file, listed.len())?;
    let mut added = Vec::with_capacity(listed.len());
    for (text, id) in listed {
        if text.is_empty() {
            return Err(corrupt(file, format!("token {id} has no content")));
        }
        // Such files do not say which tokens are special, so tokens in the form of control tokens are.
        let special = crate::tokenizer::has_control_form(text);
        added.push(AddedToken { id: id_of(file, id.as_u64())?, text: text.clone(), special });
    }
    added.sort_by_key(|added| added.id);
    Ok(added)
}
