//! Metadata of a GGUF file: typed values under dotted keys. The meaning of the keys is defined elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::LoadError;
use crate::override_record::OverrideRecord;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of values of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// All key-value pairs of a GGUF file, and the file's name for errors. A key of the wrong type is an error that names
/// file, key and both types; any integer width is accepted for an integer.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    file: String,
    entries: BTreeMap<String, Value>,
    watched: OverrideRecord,
}

impl Metadata {
    /// Metadata of `file` with these entries.
    pub fn new(file: impl Into<String>, entries: BTreeMap<String, Value>) -> Self {
        Self { file: file.into(), entries, watched: OverrideRecord::default() }
    }

    /// The file's name, for errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The value under a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.watched.read(key);
        self.entries.get(key)
    }

    /// Replaces a value of the file.
    pub fn set(&mut self, key: &str, value: Value) {
        self.entries.insert(key.to_owned(), value);
    }

    /// Removes a key and returns its value.
    pub fn take(&mut self, key: &str) -> Option<Value> {
        self.watched.read(key);
        self.entries.remove(key)
    }

    /// Reports to `watched` from now on which keys are read.
    pub fn watch(&mut self, watched: OverrideRecord) {
        self.watched = watched;
    }

    /// All entries, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A string.
    pub fn string(&self, key: &str) -> Result<Option<&str>, LoadError> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An integer of any width.
    pub fn integer(&self, key: &str) -> Result<Option<i64>, LoadError> {
        self.typed(key, "an integer", |value| match *value {
            Value::U8(n) => Some(n.into()),
            Value::I8(n) => Some(n.into()),
            Value::U16(n) => Some(n.into()),
            Value::I16(n) => Some(n.into()),
            Value::U32(n) => Some(n.into()),
            Value::I32(n) => Some(n.into()),
            Value::U64(n) => i64::try_from(n).ok(),
            Value::I64(n) => Some(n),
            _ => None,
        })
    }

    /// An integer of any width whose value is a `u32`.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, LoadError> {
        let Some(number) = self.integer(key)? else { return Ok(None) };
        u32::try_from(number).map(Some).map_err(|_| self.corrupt(key, format!("{number} is not a u32")))
    }

    /// An integer of any width whose value is an `i32`.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, LoadError> {
        let Some(number) = self.integer(key)? else { return Ok(None) };
        i32::try_from(number).map(Some).map_err(|_| self.corrupt(key, format!("{number} is not an i32")))
    }

    /// A float.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.typed(key, "a float", |value| match *value {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            _ => None,
        })
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.typed(key, "a bool", |value| match *value {
            Value::Bool(truth) => Some(truth),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, LoadError> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::String(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any width.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, LoadError> {
        fn widen<T: Copy + Into<i64>>(numbers: &[T]) -> Option<Vec<i64>> {
            Some(numbers.iter().map(|&n| n.into()).collect())
        }
        self.typed(key, "an array of integers", |value| match value {
            Value::Array(Array::U8(n)) => widen(n),
            Value::Array(Array::I8(n)) => widen(n),
            Value::Array(Array::U16(n)) => widen(n),
            Value::Array(Array::I16(n)) => widen(n),
            Value::Array(Array::U32(n)) => widen(n),
            Value::Array(Array::I32(n)) => widen(n),
            Value::Array(Array::I64(n)) => Some(n.clone()),
            Value::Array(Array::U64(n)) => n.iter().map(|&n| i64::try_from(n).ok()).collect(),
            _ => None,
        })
    }

    /// An array of floats.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, LoadError> {
        self.typed(key, "an array of floats", |value| match value {
            Value::Array(Array::F32(x)) => Some(x.clone()),
            Value::Array(Array::F64(x)) => Some(x.iter().map(|&x| x as f32).collect()),
            _ => None,
        })
    }

    /// An array of bytes, signed or not.
    pub fn bytes(&self, key: &str) -> Result<Option<&[u8]>, LoadError> {
        self.typed(key, "an array of bytes", |value| match value {
            Value::Array(Array::U8(bytes)) => Some(bytes.as_slice()),
            Value::Array(Array::I8(bytes)) => Some(bytemuck::cast_slice(bytes)),
            _ => None,
        })
    }

    /// Error for a key whose value makes no sense.
    pub fn corrupt(&self, key: &str, reason: impl Into<String>) -> LoadError {
        LoadError::Corrupt { file: self.file.clone(), what: format!("key {key}"), reason: reason.into() }
    }

    /// Error for a required key that is missing.
    pub fn missing(&self, key: &str) -> LoadError {
        LoadError::Missing { file: self.file.clone(), what: format!("key {key}"), hint: String::new() }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.corrupt(key, format!("expected {wanted}, found {}", value.type_name()))),
        }
    }
}

impl Value {
    /// Name of the type, for errors.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::F32(_) => "f32",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(n) => write!(f, "{n}"),
            Value::I8(n) => write!(f, "{n}"),
            Value::U16(n) => write!(f, "{n}"),
            Value::I16(n) => write!(f, "{n}"),
            Value::U32(n) => write!(f, "{n}"),
            Value::I32(n) => write!(f, "{n}"),
            Value::F32(x) => write!(f, "{x}"),
            Value::Bool(truth) => write!(f, "{truth}"),
            Value::String(text) => f.write_str(text),
            Value::Array(array) => write!(f, "array of {}", array.len()),
            Value::U64(n) => write!(f, "{n}"),
            Value::I64(n) => write!(f, "{n}"),
            Value::F64(x) => write!(f, "{x}"),
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(x) => x.len(),
            Array::I8(x) => x.len(),
            Array::U16(x) => x.len(),
            Array::I16(x) => x.len(),
            Array::U32(x) => x.len(),
            Array::I32(x) => x.len(),
            Array::F32(x) => x.len(),
            Array::Bool(x) => x.len(),
            Array::String(x) => x.len(),
            Array::Array(x) => x.len(),
            Array::U64(x) => x.len(),
            Array::I64(x) => x.len(),
            Array::F64(x) => x.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
