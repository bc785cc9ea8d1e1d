//! Conversion of a folder's tokenizer to GGUF's keys: SentencePiece's model if there is one, otherwise the library's
//! `tokenizer.json`; then begin and end tokens, and the chat template.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::LoadError;
use crate::gguf::{Array, Gguf, Value};
use crate::load::{TokenizerSource, huggingface};
use crate::model_files::ModelFiles;
use crate::tokenizer::{self, Ends, Tokenizer, hf::token_text};

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Keys of the tokenizer.
pub(super) fn keys(directory: &Path, files: &ModelFiles) -> Result<BTreeMap<String, Value>, LoadError> {
    let tokenizer = Tokenizer::load(&files.text)?;
    let (file, rows) = (directory.display().to_string(), files.spec.vocab);
    let pieces = directory.join("tokenizer.model");
    let mut config = None;
    let mut keys = match (&files.text.tokenizer, pieces.exists()) {
        (TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config }, with_pieces) => {
            config = tokenizer_config.as_ref();
            let scored = with_pieces.then(|| huggingface::tokenizer_at(&pieces).ok()).flatten();
            match scored.and_then(of_metadata) {
                Some(keys) => keys,
                None => tokenizer::of_json(&format!("{file}/tokenizer.json"), tokenizer_json, config, rows)?,
            }
        }
        (source, _) => of_metadata(source.clone()).unwrap_or_default(),
    };
    fill(&mut keys, rows);
    let named = |key: &str| {
        let text = config?.get(key).and_then(token_text)?;
        tokenizer.token_id(text)
    };
    let mut set = |key: &str, value: Value| keys.insert(format!("tokenizer.{key}"), value);
    let mut rest = files.text.eos.clone();
    let first = named("eos_token").filter(|token| rest.contains(token)).or(rest.first().copied());
    rest.retain(|&token| Some(token) != first);
    let mut ends = Ends { bos: files.text.bos, eos: first };
    let [add_bos, add_eos] = tokenizer::around(&file, &tokenizer, &mut ends)?;
    let more = ["eot", "eom"];
    if rest.len() > more.len() {
        return Err(LoadError::Unsupported {
            file,
            key: "eos_token_id".into(),
            value: format!("{:?}", files.text.eos),
            reason: "a GGUF file says at most three tokens that end a text".into(),
        });
    }
    let settings = huggingface::read_config(directory, "config.json")?;
    let padding = settings.and_then(|settings| settings.get("pad_token_id")?.as_u64());
    let padding = padding.filter(|&token| token < rows as u64).map(|token| token as u32);
    let more = more.into_iter().zip(rest.into_iter().map(Some));
    let ids = [
        ("bos", ends.bos),
        ("eos", ends.eos),
        ("padding", named("pad_token").or(padding)),
        ("unknown", named("unk_token")),
    ];
    for (name, id) in ids.into_iter().chain(more) {
        if let Some(id) = id {
            set(&format!("ggml.{name}_token_id"), Value::U32(id));
        }
    }
    set("ggml.add_bos_token", Value::Bool(add_bos));
    set("ggml.add_eos_token", Value::Bool(add_eos));
    if let Some(template) = &files.text.chat_template {
        set("chat_template", Value::String(template.clone()));
    }
    Ok(keys)
}

/// Checks that the keys' tokenizer gives the same tokens as the folder's.
///
/// # Errors
/// `Unsupported` naming a text with different tokens.
pub(super) fn check(files: &ModelFiles, gguf: &Gguf) -> Result<(), LoadError> {
    let made = Tokenizer::load(&crate::load::gguf::text_files(&gguf.metadata)?)?;
    let unknown = gguf.metadata.u32("tokenizer.ggml.unknown_token_id")?;
    tokenizer::agree(&Tokenizer::load(&files.text)?, &made, unknown).map_err(|text| LoadError::Unsupported {
        file: files.text.file.clone(),
        key: "tokenizer".into(),
        value: text,
        reason: "of this text a GGUF file's would make other tokens".into(),
    })
}

fn of_metadata(source: TokenizerSource) -> Option<BTreeMap<String, Value>> {
    let TokenizerSource::Gguf(metadata) = source else { return None };
    Some(metadata.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect())
}

/// Fills the vocabulary up to the embedding's rows with tokens that no text produces.
fn fill(keys: &mut BTreeMap<String, Value>, rows: usize) {
    const UNUSED: i32 = 5;
    if let Some(Value::Array(Array::String(tokens))) = keys.get_mut(TOKENS) {
        let named = tokens.len();
        tokens.extend((named..rows).map(|id| format!("[PAD{id}]")));
    }
    if let Some(Value::Array(Array::I32(types))) = keys.get_mut("tokenizer.ggml.token_type") {
        types.resize(types.len().max(rows), UNUSED);
    }
    if let Some(Value::Array(Array::F32(scores))) = keys.get_mut("tokenizer.ggml.scores") {
        scores.resize(scores.len().max(rows), -10_000.0);
    }
}
