//! GGUF files in memory, for tests of what describes a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use hanzo_engine_model_files::gguf::{Gguf, Metadata, Value};
use hanzo_engine_model_files::tensor::Tensor;
use hanzo_engine_ops::DType;

/// A small file `a.gguf`.
#[derive(Default)]
pub(super) struct Builder {
    keys: BTreeMap<String, Value>,
    tensors: Vec<Tensor>,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn value(mut self, key: &str, value: Value) -> Self {
        self.keys.insert(key.to_owned(), value);
        self
    }

    pub(super) fn u32(self, key: &str, value: u32) -> Self {
        self.value(key, Value::U32(value))
    }

    pub(super) fn f32(self, key: &str, value: f32) -> Self {
        self.value(key, Value::F32(value))
    }

    pub(super) fn string(self, key: &str, value: &str) -> Self {
        self.value(key, Value::String(value.to_owned()))
    }

    /// Adds a tensor of type F32, outermost dimension first.
    pub(super) fn tensor(mut self, name: &str, shape: &[usize], data: &[u8]) -> Self {
        let (file, name, bytes) = ("a.gguf".into(), name.to_owned(), data.to_vec().into());
        self.tensors.push(Tensor { file, name, dtype: DType::F32, shape: shape.to_vec(), bytes });
        self
    }

    /// Adds zeros.
    pub(super) fn zeros(self, name: &str, shape: &[usize]) -> Self {
        let data = vec![0; 4 * shape.iter().product::<usize>()];
        self.tensor(name, shape, &data)
    }

    pub(super) fn build(&self) -> Gguf {
        let metadata = Metadata::new("a.gguf", self.keys.clone());
        Gguf { version: 3, metadata: Arc::new(metadata), tensors: self.tensors.clone() }
    }
}
