//! Header of a safetensors file to write; tensors follow it in the listed order.

use serde_json::{Map, json};

use super::LENGTH_BYTES;

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// Name.
    pub name: String,
    /// Type, as named in the format.
    pub dtype: &'static str,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Size in bytes.
    pub bytes: u64,
}

/// Bytes before the first tensor. `format` names the library whose naming is used: `mlx`, `pt`.
pub fn begin(format: &str, tensors: &[Written]) -> Vec<u8> {
    let mut all = Map::new();
    all.insert("__metadata__".into(), json!({"format": format}));
    let mut first = 0;
    for Written { name, dtype, shape, bytes } in tensors {
        let end = first + bytes;
        all.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [first, end]}));
        first = end;
    }
    let mut text = serde_json::Value::Object(all).to_string().into_bytes();
    // Tensors begin at whole words.
    text.resize(text.len().next_multiple_of(LENGTH_BYTES), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text].concat()
}
