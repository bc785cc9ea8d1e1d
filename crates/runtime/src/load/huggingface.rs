//! Text files and settings of a Hugging Face directory: `config.json`, `generation_config.json`, `tokenizer.json`,
//! `tokenizer_config.json` and `chat_template.jinja`.

use std::path::Path;

use serde_json::Value;

use super::{TextFile, TextFiles, TokenizerSource, byte_pairs, generation, sentencepiece, word_pieces};
use crate::chat::ChatOpening;
use crate::error::{LoadError, shorten};
use crate::gguf::Metadata;
use crate::limits::VOCAB_MAX;
use crate::spec::Config;

/// Name of a model in a directory.
pub(crate) fn name_of(directory: &Path) -> String {
    let path = directory.canonicalize().ok();
    let name = path.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| directory.display().to_string())
}

/// Reads a file of settings; `None` if the directory lacks it.
pub(crate) fn read_config(directory: &Path, name: &str) -> Result<Option<Config>, LoadError> {
    let path = directory.join(name);
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(Config::new(path.display().to_string(), TextFile::Settings.read_object(&path)?)))
}

/// Text files of a directory with the settings `config` and `generation_config`. Another `tokenizer` replaces that of
/// the directory.
pub(crate) fn text_files(
    directory: &Path,
    config: &Config,
    generation_config: Option<&Config>,
    tokenizer: Option<TokenizerSource>,
) -> Result<TextFiles, LoadError> {
    let tokenizer_config = tokenizer_config(directory)?;
    Ok(TextFiles {
        file: directory.display().to_string(),
        chat_template: chat_template(directory, tokenizer_config.as_ref())?,
        tokenizer: match tokenizer {
            Some(tokenizer) => tokenizer,
            None => tokenizer_in(directory, tokenizer_config)?,
        },
        bos: config.whole("bos_token_id", VOCAB_MAX)?.map(|token| token as u32),
        eos: end_tokens(config, generation_config)?,
        generation: generation_config.map(generation::defaults).transpose()?.unwrap_or_default(),
        opening: ChatOpening::default(),
    })
}

/// Settings of a directory's tokenizer.
pub(crate) fn tokenizer_config(directory: &Path) -> Result<Option<Value>, LoadError> {
    let path = directory.join("tokenizer_config.json");
    let kind = match directory.join("tokenizer.json").exists() {
        true => TextFile::TokenizerSettings,
        false => TextFile::TokenizerSettingsAndTokens,
    };
    match path.exists() {
        true => Ok(Some(Value::Object(kind.read_object(&path)?))),
        false => Ok(None),
    }
}

/// Files of tokenizers without a `tokenizer.json`; the first existing one is read.
const TOKENIZER_FILES: &[&str] = &[
    "tekken.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tiktoken.model",
    "qwen.tiktoken",
    "spiece.model",
];

/// Tokenizer of a directory.
fn tokenizer_in(directory: &Path, tokenizer_config: Option<Value>) -> Result<TokenizerSource, LoadError> {
    let file = |name: &str| Some(directory.join(name)).filter(|path| path.exists());
    if let Some(path) = file("tokenizer.json") {
        let tokenizer_json = TextFile::Tokenizer.read(&path)?;
        return Ok(TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config });
    }
    if let Some(path) = TOKENIZER_FILES.iter().find_map(|name| file(name)) {
        return tokenizer_file(&path, tokenizer_config.as_ref());
    }
    if let (Some(vocab), Some(merges)) = (file("vocab.json"), file("merges.txt")) {
        let (vocab, merges) = (TextFile::Tokenizer.read(&vocab)?, TextFile::Tokenizer.read_text(&merges)?);
        let metadata = with_settings(directory, directory, tokenizer_config.as_ref(), |settings| {
            byte_pairs::of_gpt2(settings, &vocab, &merges)
        })?;
        return Ok(TokenizerSource::Gguf(metadata.into()));
    }
    let Some(words) = file("vocab.txt") else {
        return Err(LoadError::Missing {
            file: directory.display().to_string(),
            what: "tokenizer.json".into(),
            hint: format!(
                "; without it {}, vocab.json with merges.txt, or BERT's vocab.txt can be read",
                TOKENIZER_FILES.join(", ")
            ),
        });
    };
    let vocab = TextFile::Vocabulary.read(&words)?;
    let file = directory.display().to_string();
    let tokenizer_json = word_pieces::tokenizer_json(&file, &vocab, tokenizer_config.as_ref())?;
    Ok(TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config })
}

/// Makes metadata from the files next to a tokenizer's file.
fn with_settings(
    file: &Path,
    directory: &Path,
    config: Option<&Value>,
    make: impl FnOnce(&byte_pairs::Settings<'_>) -> Result<Metadata, LoadError>,
) -> Result<Metadata, LoadError> {
    let more_path = directory.join("added_tokens.json");
    let more = match more_path.exists() {
        true => Some(Value::Object(TextFile::Settings.read_object(&more_path)?)),
        false => None,
    };
    let model = read_config(directory, "config.json")?;
    let family = model.as_ref().and_then(|model| model.get("model_type")?.as_str());
    make(&byte_pairs::Settings { file: &file.display().to_string(), config, family, more: more.as_ref() })
}

/// Tokenizer of a file that is not a `tokenizer.json`.
fn tokenizer_file(path: &Path, config: Option<&Value>) -> Result<TokenizerSource, LoadError> {
    let bytes = TextFile::Tokenizer.read(path)?;
    let directory = path.parent().unwrap_or(path);
    let metadata = with_settings(path, directory, config, |settings| {
        if path.extension().is_some_and(|extension| extension == "json") {
            byte_pairs::of_tekken(settings, &bytes)
        } else if byte_pairs::is_tiktoken(&bytes) {
            byte_pairs::of_tiktoken(settings, &bytes)
        } else {
            sentencepiece::metadata(settings.file, &bytes, config, settings.more)
        }
    })?;
    Ok(TokenizerSource::Gguf(metadata.into()))
}

/// Tokenizer of a directory, or of one of its files.
pub(crate) fn tokenizer_at(path: &Path) -> Result<TokenizerSource, LoadError> {
    let directory = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let settings = tokenizer_config(directory)?;
    match name {
        _ if path.is_dir() => tokenizer_in(path, settings),
        // Such a file may have any name with this ending.
        _ if name.ends_with(".json") && !name.starts_with("tekken") => Ok(TokenizerSource::HuggingFace {
            tokenizer_json: TextFile::Tokenizer.read(path)?,
            tokenizer_config: settings,
        }),
        _ => tokenizer_file(path, settings.as_ref()),
    }
}

fn chat_template(directory: &Path, tokenizer_config: Option<&Value>) -> Result<Option<String>, LoadError> {
    let path = directory.join("chat_template.jinja");
    if path.exists() {
        return Ok(Some(TextFile::Template.read_text(&path)?));
    }
    match tokenizer_config.and_then(|config| config.get("chat_template")) {
        None | Some(Value::Null) => of_processor(directory),
        Some(Value::String(template)) => Ok(Some(template.clone())),
        Some(Value::Array(named)) => Ok(named
            .iter()
            .find(|entry| entry.get("name").is_some_and(|name| name == "default"))
            .and_then(|entry| entry.get("template")?.as_str())
            .map(str::to_owned)),
        Some(other) => Err(LoadError::Corrupt {
            file: directory.join("tokenizer_config.json").display().to_string(),
            what: "key chat_template".into(),
            reason: format!(
                "expected a string or a list of named templates, found {}",
                shorten(other.to_string())
            ),
        }),
    }
}

/// Chat template of a processor of texts and images, if it is in a separate file.
fn of_processor(directory: &Path) -> Result<Option<String>, LoadError> {
    let Some(settings) = read_config(directory, "chat_template.json")? else { return Ok(None) };
    Ok(settings.string("chat_template")?.map(str::to_owned))
}

/// End tokens of both configurations: chat models add theirs to the second.
fn end_tokens(config: &Config, generation_config: Option<&Config>) -> Result<Vec<u32>, LoadError> {
    const KEY: &str = "eos_token_id";
    let mut tokens = Vec::new();
    for config in [Some(config), generation_config].into_iter().flatten() {
        let values = match config.get(KEY) {
            None => continue,
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        for value in values {
            let token = value.as_u64().and_then(|token| u32::try_from(token).ok());
            tokens.push(token.ok_or_else(|| {
                config.corrupt(KEY, format!("{} is not a token", shorten(value.to_string())))
            })?);
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}
