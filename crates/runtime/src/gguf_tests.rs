//! Small GGUF files for tests of the modules that read models.

use std::collections::BTreeMap;

use hanzo_engine_ops::DType;

use crate::gguf::{Array, TensorEntry, Value, Writer};

/// Writer of a small GGUF file.
#[derive(Default)]
pub(crate) struct Builder {
    keys: BTreeMap<String, Value>,
    tensors: Vec<(TensorEntry, Vec<u8>)>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn value(mut self, key: &str, value: Value) -> Self {
        self.keys.insert(key.to_owned(), value);
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.value(key, Value::U32(value))
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.value(key, Value::F32(value))
    }

    pub(crate) fn string(self, key: &str, value: &str) -> Self {
        self.value(key, Value::String(value.to_owned()))
    }

    pub(crate) fn strings(self, key: &str, values: &[&str]) -> Self {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        self.value(key, Value::Array(Array::String(values)))
    }

    /// Adds a tensor, outermost dimension first.
    pub(crate) fn tensor(mut self, name: &str, shape: &[usize], dtype: DType, data: &[u8]) -> Self {
        let entry = TensorEntry { name: name.to_owned(), dtype, shape: shape.to_vec() };
        self.tensors.push((entry, data.to_vec()));
        self
    }

    /// Adds zeros of type F32, outermost dimension first.
    pub(crate) fn zeros(self, name: &str, shape: &[usize]) -> Self {
        let data = vec![0; 4 * shape.iter().product::<usize>()];
        self.tensor(name, shape, DType::F32, &data)
    }

    /// Bytes of the file.
    pub(crate) fn build(&self) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.gguf");
        let entries: Vec<TensorEntry> = self.tensors.iter().map(|(entry, _)| entry.clone()).collect();
        let keys = self.keys.iter().map(|(key, value)| (key.as_str(), value));
        let mut writer = Writer::create(&path, keys, &entries).unwrap();
        for (_, data) in &self.tensors {
            writer.write(data).unwrap();
        }
        writer.finish().unwrap();
        std::fs::read(path).unwrap()
    }
}
