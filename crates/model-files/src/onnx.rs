//! ONNX files (onnx.ai, `onnx.proto`) read as data: a graph's initial tensors, by name. No graph is run. Exporters
//! lose the names of weights that they transform before writing. Such a weight is named after the bias of the same
//! node, if that kept its name. Tensors are views of the file's bytes.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use hanzo_engine_ops::DType;

use crate::error::LoadError;
use crate::limits::{GGUF_NAME_BYTES_MAX, ONNX_NODES_MAX, TENSORS_MAX};
use crate::mapped::ModelBytes;
use crate::tensor::Tensor;

/// Maximum number of dimensions of a tensor.
const DIMENSIONS_MAX: usize = 8;
/// Supported `TensorProto.DataType`s.
const TYPES: [(u64, DType); 3] = [(1, DType::F32), (10, DType::F16), (16, DType::BF16)];

/// Maps and parses a file.
///
/// # Errors
/// `Io` where it cannot be mapped, and those of [`parse`].
pub fn open(path: &Path) -> Result<Vec<Tensor>, LoadError> {
    let bytes = ModelBytes::map(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
    parse(&path.display().to_string(), &bytes)
}

/// Parses a file's bytes. `file` is its name, for errors. Leaves out tensors of other types than floats.
///
/// # Errors
/// `Corrupt` naming the tensor or the part of the file; `Unsupported` if tensor data is in other files.
pub fn parse(file: &str, bytes: &ModelBytes) -> Result<Vec<Tensor>, LoadError> {
    let blame = Blame { file };
    let whole = bytes.read();
    let all: &[u8] = &whole;
    let graph = fields(all, 0..all.len())
        .find_map(|field| match field {
            Ok((7, Value::Bytes(graph))) => Some(Ok(graph)),
            Ok(_) => None,
            Err(reason) => Some(Err(reason)),
        })
        .unwrap_or(Err("no graph"))
        .map_err(|reason| blame.corrupt("model", reason))?;
    let shared_file: Arc<str> = file.into();
    let (mut tensors, mut names) = (Vec::new(), HashSet::new());
    let (mut after_bias, mut nodes) = (HashMap::new(), 0);
    for field in fields(all, graph) {
        match field.map_err(|reason| blame.corrupt("graph", reason))? {
            (1, Value::Bytes(node)) => {
                nodes += 1;
                if nodes > ONNX_NODES_MAX {
                    return Err(blame.corrupt("graph", format!("more than {ONNX_NODES_MAX} nodes")));
                }
                let named = name_by_bias(all, node).map_err(|reason| blame.corrupt("node", reason))?;
                after_bias.extend(named);
            }
            (5, Value::Bytes(tensor)) => {
                if tensors.len() >= TENSORS_MAX {
                    return Err(blame.corrupt("graph", format!("more than {TENSORS_MAX} tensors")));
                }
                if let Some(tensor) = blame.tensor(all, tensor, bytes, &shared_file)? {
                    if !names.insert(tensor.name.clone()) {
                        return Err(blame.corrupt(format!("tensor {}", tensor.name), "it is there twice"));
                    }
                    tensors.push(tensor);
                }
            }
            _ => {}
        }
    }
    for tensor in &mut tensors {
        if let Some(name) = after_bias.get(&tensor.name).filter(|name| names.insert((*name).clone())) {
            tensor.name = name.clone();
        }
    }
    Ok(tensors)
}

/// Makes errors about a file.
struct Blame<'a> {
    file: &'a str,
}

/// Value of a field; bytes are given as their range in the file.
enum Value {
    Number(u64),
    Bytes(Range<usize>),
}

/// Name for a node's second input, derived from its third: `a.weight` from `a.bias`. `None` if the second has a
/// meaningful name.
fn name_by_bias(all: &[u8], node: Range<usize>) -> Result<Option<(String, String)>, &'static str> {
    let mut inputs = Vec::new();
    for field in fields(all, node) {
        if let (1, Value::Bytes(name)) = field? {
            inputs.push(name);
        }
        if inputs.len() > 3 {
            return Ok(None);
        }
    }
    let text = |place: &Range<usize>| {
        let short = Some(place).filter(|place| place.len() <= GGUF_NAME_BYTES_MAX);
        short.and_then(|place| std::str::from_utf8(&all[place.clone()]).ok())
    };
    let [_, weight, bias] = &inputs[..] else { return Ok(None) };
    let (Some(weight), Some(bias)) = (text(weight), text(bias)) else { return Ok(None) };
    let module = bias.strip_suffix(".bias").filter(|_| weight.starts_with("onnx::"));
    Ok(module.map(|module| (weight.to_owned(), format!("{module}.weight"))))
}

impl Blame<'_> {
    fn corrupt(&self, what: impl Into<String>, reason: impl Into<String>) -> LoadError {
        LoadError::Corrupt { file: self.file.to_owned(), what: what.into(), reason: reason.into() }
    }

    /// Reads a tensor; `None` if it is not one of floats.
    fn tensor(
        &self,
        all: &[u8],
        place: Range<usize>,
        bytes: &ModelBytes,
        file: &Arc<str>,
    ) -> Result<Option<Tensor>, LoadError> {
        let (mut shape, mut kind, mut name, mut raw, mut floats, mut elsewhere) =
            (Vec::new(), 0, None, None, None, false);
        for field in fields(all, place) {
            match field.map_err(|reason| self.corrupt("tensor", reason))? {
                (1, Value::Number(size)) => shape.push(size),
                (1, Value::Bytes(packed)) => {
                    let mut rest = packed;
                    while !rest.is_empty() && shape.len() <= DIMENSIONS_MAX {
                        let size = varint(all, &mut rest).map_err(|reason| self.corrupt("tensor", reason))?;
                        shape.push(size);
                    }
                }
                (2, Value::Number(number)) => kind = number,
                (4, Value::Bytes(place)) => floats = Some(place),
                (8, Value::Bytes(place)) => name = Some(place),
                (9, Value::Bytes(place)) => raw = Some(place),
                (13, _) => elsewhere = true,
                (14, Value::Number(1)) => elsewhere = true,
                _ => {}
            }
            if shape.len() > DIMENSIONS_MAX {
                return Err(self.corrupt("tensor", format!("more than {DIMENSIONS_MAX} dimensions")));
            }
        }
        let Some(&(_, dtype)) = TYPES.iter().find(|(number, _)| *number == kind) else { return Ok(None) };
        let name = name.filter(|name| name.len() <= GGUF_NAME_BYTES_MAX).map(|name| all[name].to_vec());
        let name = name.and_then(|name| String::from_utf8(name).ok());
        let name = name.ok_or_else(|| self.corrupt("tensor", "its name is no text, or too long"))?;
        if elsewhere {
            return Err(LoadError::Unsupported {
                file: self.file.to_owned(),
                key: format!("tensor {name}"),
                value: "data in another file".to_owned(),
                reason: "save the model with its weights inside".to_owned(),
            });
        }
        let shape: Option<Vec<usize>> = shape.iter().map(|&size| usize::try_from(size).ok()).collect();
        let numbers = shape
            .as_ref()
            .and_then(|shape| shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size)));
        let place = raw.or(floats.filter(|_| dtype == DType::F32)).unwrap_or(0..0);
        let size = if dtype == DType::F32 { 4 } else { 2 };
        match (shape, numbers.and_then(|numbers| numbers.checked_mul(size))) {
            (Some(shape), Some(wanted)) if wanted == place.len() => {
                let bytes = bytes.slice(place).ok_or_else(|| self.corrupt("tensor", "out of the file"))?;
                Ok(Some(Tensor { file: file.clone(), name, dtype, shape, bytes }))
            }
            _ => Err(self.corrupt(format!("tensor {name}"), "its numbers are not as many as its shape says")),
        }
    }
}

/// Takes a protobuf varint off the front of `rest`.
fn varint(all: &[u8], rest: &mut Range<usize>) -> Result<u64, &'static str> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = all[rest.clone()].first().ok_or("a number is cut off")?;
        rest.start += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number is too long")
}

/// The fields of a message.
fn fields(
    all: &[u8],
    mut rest: Range<usize>,
) -> impl Iterator<Item = Result<(u64, Value), &'static str>> + '_ {
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed || rest.is_empty() {
            return None;
        }
        let field = one_field(all, &mut rest);
        failed = field.is_err();
        Some(field)
    })
}

fn one_field(all: &[u8], rest: &mut Range<usize>) -> Result<(u64, Value), &'static str> {
    let tag = varint(all, rest)?;
    let length = match tag & 7 {
        0 => return Ok((tag >> 3, Value::Number(varint(all, rest)?))),
        1 => 8,
        2 => varint(all, rest)?,
        5 => 4,
        _ => return Err("a field of a kind that protobuf has no more"),
    };
    let length = usize::try_from(length).ok().filter(|&length| length <= rest.len());
    let start = rest.start;
    rest.start += length.ok_or("a field is longer than what it is in")?;
    Ok((tag >> 3, Value::Bytes(start..rest.start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
        [&[tag << 3 | 2, bytes.len() as u8][..], bytes].concat()
    }

    fn model() -> Vec<u8> {
        let tensor = |name: &str, numbers: &[f32]| {
            let raw: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            let shape = [1 << 3, numbers.len() as u8, 2 << 3, 1];
            field(5, &[&shape[..], &field(8, name.as_bytes()), &field(9, &raw)].concat())
        };
        let node = field(1, &[field(1, b"x"), field(1, b"onnx::Conv_7"), field(1, b"a.bias")].concat());
        let graph = [node, tensor("a.bias", &[1.0]), tensor("onnx::Conv_7", &[2.0, 3.0])].concat();
        field(7, &graph)
    }

    #[test]
    fn tensors_are_named_by_what_stands_beside_them() {
        let tensors = parse("m.onnx", &model().into()).unwrap();
        let all: Vec<_> = tensors.iter().map(|t| (t.name.as_str(), t.to_f32().unwrap())).collect();
        assert_eq!(all, [("a.bias", vec![1.0]), ("a.weight", vec![2.0, 3.0])]);
    }

    #[test]
    fn no_change_of_a_byte_and_no_cut_panics() {
        let whole = model();
        for at in 0..whole.len() {
            let _ = parse("m.onnx", &whole[..at].to_vec().into());
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                let _ = parse("m.onnx", &changed.into());
            }
        }
        let cut = parse("m.onnx", &whole[..whole.len() - 1].to_vec().into());
        assert!(matches!(cut, Err(LoadError::Corrupt { .. })));
    }
}
