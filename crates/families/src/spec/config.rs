//! Typed access to the settings of a Hugging Face `config.json`: a setting of the wrong type or out of its range is an
//! error that names file and setting. The meaning of the settings is defined elsewhere.

use hanzo_engine_model_files::error::{LoadError, shorten};
use hanzo_engine_model_files::override_record::OverrideRecord;
use serde_json::{Map, Value};

/// Settings of a `config.json`, and the file's name for errors. A setting that is null counts as absent.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file's name, for errors.
    pub file: String,
    /// Settings, unread and read.
    pub settings: Map<String, Value>,
    watched: OverrideRecord,
}

impl Config {
    /// Settings read from `file`.
    pub fn new(file: impl Into<String>, settings: Map<String, Value>) -> Self {
        Self { file: file.into(), settings, watched: OverrideRecord::default() }
    }

    /// Replaces a setting of the file.
    pub fn set(&mut self, key: &str, value: Value) {
        self.settings.insert(key.to_owned(), value);
    }

    /// Reports to `watched` from now on which settings are read.
    pub fn watch(&mut self, watched: OverrideRecord) {
        self.watched = watched;
    }

    /// Value of a setting; a null one counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.watched.read(key);
        self.settings.get(key).filter(|value| !value.is_null())
    }

    /// A string.
    pub fn string(&self, key: &str) -> Result<Option<&str>, LoadError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// A whole number up to `max`.
    pub fn whole(&self, key: &str, max: usize) -> Result<Option<usize>, LoadError> {
        let number = self.typed(key, "a whole number, 0 or more", Value::as_u64)?;
        match number.map(usize::try_from) {
            None => Ok(None),
            Some(Ok(number)) if number <= max => Ok(Some(number)),
            Some(_) => Err(self.corrupt(key, format!("it is more than {max}"))),
        }
    }

    /// A float that is a finite number.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        let number = self.typed(key, "a number", Value::as_f64)?;
        match number.map(|number| number as f32) {
            Some(number) if !number.is_finite() => Err(self.corrupt(key, "it is too large")),
            number => Ok(number),
        }
    }

    /// A whole number from 1 to `max`.
    pub fn count(&self, key: &str, max: usize) -> Result<Option<usize>, LoadError> {
        match self.whole(key, max)? {
            Some(0) => Err(self.corrupt(key, "it is 0")),
            number => Ok(number),
        }
    }

    /// A whole number from 1 to `max` that must be there.
    pub fn required(&self, key: &str, max: usize) -> Result<usize, LoadError> {
        self.count(key, max)?.ok_or_else(|| self.missing(key))
    }

    /// A float above 0.
    pub fn positive(&self, key: &str) -> Result<Option<f32>, LoadError> {
        match self.f32(key)? {
            Some(number) if number <= 0.0 => Err(self.corrupt(key, format!("{number} is not above 0"))),
            number => Ok(number),
        }
    }

    /// Settings inside a setting.
    pub fn object(&self, key: &str) -> Result<Option<Config>, LoadError> {
        let object = self.typed(key, "an object", Value::as_object)?;
        Ok(object.map(|settings| Config::new(self.file.clone(), settings.clone())))
    }

    /// A setting that `read` understands; `wanted` says what that is.
    pub fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.corrupt(key, format!("expected {wanted}, found {}", shortened(value)))),
        }
    }

    /// Error for a setting whose value makes no sense.
    pub fn corrupt(&self, key: &str, reason: impl Into<String>) -> LoadError {
        LoadError::Corrupt { file: self.file.clone(), what: format!("key {key}"), reason: reason.into() }
    }

    /// Error for a setting that is not there.
    pub fn missing(&self, key: &str) -> LoadError {
        LoadError::Missing { file: self.file.clone(), what: format!("key {key}"), hint: String::new() }
    }

    /// Error for a value that is valid and cannot be run.
    pub fn unsupported(&self, key: &str, value: impl ToString, reason: impl Into<String>) -> LoadError {
        let value = shorten(value.to_string());
        LoadError::Unsupported { file: self.file.clone(), key: key.to_owned(), value, reason: reason.into() }
    }
}

fn shortened(value: &Value) -> String {
    shorten(value.to_string())
}
