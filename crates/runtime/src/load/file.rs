//! Text files of a model, each read within the bounds of its kind: as bytes, or as values if it is JSON.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::LoadError;
use crate::json;
use crate::limits::{
    INDEX_FILE_BYTES_MAX, INDEX_VALUES_MAX, SETTINGS_FILE_BYTES_MAX, SETTINGS_VALUES_MAX,
    TEMPLATE_FILE_BYTES_MAX, TOKENIZER_FILE_BYTES_MAX, TOKENIZER_SETTINGS_BYTES_MAX,
    VOCABULARY_FILE_BYTES_MAX,
};
use crate::regular;

/// Kind of a text file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextFile {
    /// `config.json` and similar files.
    Settings,
    /// `tokenizer_config.json`, of which only the settings in [`TOKENIZER_SETTINGS`] are kept.
    TokenizerSettings,
    /// `tokenizer_config.json` with its list of tokens: for vocabularies in other files than `tokenizer.json`.
    TokenizerSettingsAndTokens,
    /// `tokenizer.json`, which the tokenizer parses.
    Tokenizer,
    /// `vocab.txt`.
    Vocabulary,
    /// A chat template.
    Template,
    /// Index of the weight files.
    Index,
}

/// Settings that are read from `tokenizer_config.json`.
const TOKENIZER_SETTINGS: &[&str] = &[
    "add_bos_token",
    "add_eos_token",
    "bos_token",
    "chat_template",
    "cls_token",
    "do_basic_tokenize",
    "do_lower_case",
    "eos_token",
    "mask_token",
    "model_max_length",
    "pad_token",
    "sep_token",
    "strip_accents",
    "tokenize_chinese_chars",
    "tokenizer_class",
    "unk_token",
    ADDED_TOKENS,
];

/// Last of them, which is read if no other file lists the tokens.
const ADDED_TOKENS: &str = "added_tokens_decoder";

impl TextFile {
    fn bytes_max(self) -> u64 {
        match self {
            TextFile::Settings => SETTINGS_FILE_BYTES_MAX,
            TextFile::TokenizerSettings | TextFile::TokenizerSettingsAndTokens => {
                TOKENIZER_SETTINGS_BYTES_MAX
            }
            TextFile::Tokenizer => TOKENIZER_FILE_BYTES_MAX,
            TextFile::Vocabulary => VOCABULARY_FILE_BYTES_MAX,
            TextFile::Template => TEMPLATE_FILE_BYTES_MAX,
            TextFile::Index => INDEX_FILE_BYTES_MAX,
        }
    }

    /// Reads a whole file of this kind.
    ///
    /// # Errors
    /// `Io` if it does not exist or is no regular file, `Corrupt` if it is too long.
    pub(crate) fn read(self, path: &Path) -> Result<Vec<u8>, LoadError> {
        let bytes_max = self.bytes_max();
        match regular::read(path, bytes_max) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(corrupt(
                path,
                format!("it is longer than {bytes_max} bytes, which is the most that is read"),
            )),
            Err(source) => Err(LoadError::Io { path: path.to_owned(), source }),
        }
    }

    /// Reads a UTF-8 file of this kind.
    ///
    /// # Errors
    /// As [`TextFile::read`], and `Corrupt` for other bytes.
    pub(crate) fn read_text(self, path: &Path) -> Result<String, LoadError> {
        String::from_utf8(self.read(path)?).map_err(|error| corrupt(path, error.to_string()))
    }

    /// Reads a JSON object from a file of this kind.
    ///
    /// # Errors
    /// As [`TextFile::read`], and `Corrupt` if it is no object or has too many values.
    pub(crate) fn read_object(self, path: &Path) -> Result<Map<String, Value>, LoadError> {
        let bytes = self.read(path)?;
        let (values_max, keys) = match self {
            TextFile::TokenizerSettings => {
                (SETTINGS_VALUES_MAX, Some(&TOKENIZER_SETTINGS[..TOKENIZER_SETTINGS.len() - 1]))
            }
            TextFile::TokenizerSettingsAndTokens => (SETTINGS_VALUES_MAX, Some(TOKENIZER_SETTINGS)),
            TextFile::Index => (INDEX_VALUES_MAX, None),
            _ => (SETTINGS_VALUES_MAX, None),
        };
        json::object(&bytes, values_max, keys)
            .map_err(|error| corrupt(path, format!("expected a JSON object: {error}")))
    }

    /// Reads a JSON list from a file of this kind.
    ///
    /// # Errors
    /// As [`TextFile::read_object`].
    pub(crate) fn read_list(self, path: &Path) -> Result<Vec<Value>, LoadError> {
        let bytes = self.read(path)?;
        match serde_json::from_slice::<json::Small<SETTINGS_VALUES_MAX>>(&bytes) {
            Ok(json::Small(Value::Array(list))) => Ok(list),
            Ok(_) => Err(corrupt(path, "expected a JSON list".into())),
            Err(error) => Err(corrupt(path, format!("expected a JSON list: {error}"))),
        }
    }
}

fn corrupt(path: &Path, reason: String) -> LoadError {
    LoadError::Corrupt { file: path.display().to_string(), what: "file".into(), reason }
}
