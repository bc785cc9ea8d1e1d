//! Writing of GGUF files: version 3, little endian. The header contains every tensor's offset, so their bytes follow
//! in pieces of any size. A file gets its name when it is complete. Until then it is named `….part` and is deleted if
//! it is abandoned.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use hanzo_engine_ops::DType;

use super::{ALIGNMENT_DEFAULT, Array, Value};

/// Entry of a tensor that will be written.
#[derive(Clone, Debug)]
pub struct TensorEntry {
    /// Name.
    pub name: String,
    /// Element type, one of GGUF's.
    pub dtype: DType,
    /// Shape with the outermost dimension first; the last is whole blocks.
    pub shape: Vec<usize>,
}

impl TensorEntry {
    /// Size in bytes.
    ///
    /// # Errors
    /// `InvalidInput` if its rows are not whole blocks, or the size overflows.
    pub fn bytes(&self) -> io::Result<u64> {
        let Self { name, dtype, shape } = self;
        let columns = shape.last().copied().unwrap_or_default();
        let rows = shape.iter().rev().skip(1).try_fold(1usize, |rows, &size| rows.checked_mul(size));
        let bytes = rows.and_then(|rows| dtype.bytes_of(columns)?.checked_mul(rows));
        bytes.map(|bytes| bytes as u64).ok_or_else(|| invalid(format!("tensor {name}: {shape:?} of {dtype}")))
    }
}

/// GGUF file that is being written.
#[derive(Debug)]
pub struct Writer {
    out: BufWriter<File>,
    part: Part,
    /// Bytes still to come and padding of each incomplete tensor, the last tensor first.
    left: Vec<(u64, u64)>,
}

/// A file that is deleted when this is dropped, unless it got its name before.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    target: PathBuf,
    placed: bool,
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.placed {
            // Nobody can be told, and the next run overwrites it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Writer {
    /// Starts a file that will be named `target`, with these entries (except `general.alignment`) and these tensors.
    ///
    /// # Errors
    /// The system's error; `InvalidInput` for a tensor that cannot be written.
    pub fn create<'a>(
        target: &Path,
        entries: impl IntoIterator<Item = (&'a str, &'a Value)>,
        tensors: &[TensorEntry],
    ) -> io::Result<Writer> {
        let mut entries: Vec<_> =
            entries.into_iter().filter(|(key, _)| *key != "general.alignment").collect();
        // Readers look for the architecture before its keys.
        entries.sort_by_key(|(key, _)| !key.starts_with("general."));
        let mut header = Vec::new();
        header.extend(b"GGUF");
        header.extend(3u32.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((entries.len() as u64).to_le_bytes());
        for (key, value) in entries {
            put_text(&mut header, key);
            put_value(&mut header, value);
        }
        let (mut offset, mut left) = (0u64, Vec::with_capacity(tensors.len()));
        for tensor in tensors {
            let bytes = tensor.bytes()?;
            put_entry(&mut header, tensor, offset)?;
            let filled = bytes.next_multiple_of(ALIGNMENT_DEFAULT);
            offset = offset.checked_add(filled).ok_or_else(|| invalid("more bytes than a file can have"))?;
            left.push((bytes, filled - bytes));
        }
        left.reverse();
        header.resize(header.len().next_multiple_of(ALIGNMENT_DEFAULT as usize), 0);

        let mut path = target.as_os_str().to_owned();
        path.push(".part");
        let path = PathBuf::from(path);
        let file = File::create(&path)?;
        let part = Part { path, target: target.to_owned(), placed: false };
        let mut writer = Writer { out: BufWriter::new(file), part, left };
        writer.out.write_all(&header)?;
        Ok(writer)
    }

    /// Writes more bytes of the current tensor; each is written completely before the next begins.
    ///
    /// # Errors
    /// The system's error; `InvalidInput` if the bytes exceed the tensor's size.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some((left, fill)) = self.left.last_mut() else {
            return Err(invalid("bytes after the last tensor"));
        };
        let Some(rest) = left.checked_sub(bytes.len() as u64) else {
            return Err(invalid(format!("{} bytes of a tensor that lacks {left}", bytes.len())));
        };
        *left = rest;
        self.out.write_all(bytes)?;
        if rest == 0 {
            self.out.write_all(&[0; ALIGNMENT_DEFAULT as usize][..*fill as usize])?;
            self.left.pop();
        }
        Ok(())
    }

    /// Flushes the complete file to disk and gives it its name.
    ///
    /// # Errors
    /// The system's error; `InvalidInput` if bytes are missing.
    pub fn finish(mut self) -> io::Result<()> {
        if !self.left.is_empty() {
            return Err(invalid(format!("{} tensors are not written", self.left.len())));
        }
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        hanzo_engine_files::rename_over(&self.part.path, &self.part.target)?;
        self.part.placed = true;
        Ok(())
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_entry(out: &mut Vec<u8>, tensor: &TensorEntry, offset: u64) -> io::Result<()> {
    let id = tensor.dtype as u32;
    if DType::from_ggml(id) != Some(tensor.dtype) {
        return Err(invalid(format!("tensor {}: GGUF has no {}", tensor.name, tensor.dtype)));
    }
    put_text(out, &tensor.name);
    out.extend((tensor.shape.len() as u32).to_le_bytes());
    for &size in tensor.shape.iter().rev() {
        out.extend((size as u64).to_le_bytes());
    }
    out.extend(id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    Ok(())
}

macro_rules! numbers {
    ($out:expr, $of:expr) => {
        $of.iter().for_each(|number| $out.extend(number.to_le_bytes()))
    };
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    out.extend(value_type(value).to_le_bytes());
    match value {
        Value::U8(n) => numbers!(out, [n]),
        Value::I8(n) => numbers!(out, [n]),
        Value::U16(n) => numbers!(out, [n]),
        Value::I16(n) => numbers!(out, [n]),
        Value::U32(n) => numbers!(out, [n]),
        Value::I32(n) => numbers!(out, [n]),
        Value::F32(x) => numbers!(out, [x]),
        Value::Bool(truth) => out.push(u8::from(*truth)),
        Value::String(text) => put_text(out, text),
        Value::Array(array) => put_array(out, array),
        Value::U64(n) => numbers!(out, [n]),
        Value::I64(n) => numbers!(out, [n]),
        Value::F64(x) => numbers!(out, [x]),
    }
}

/// Writes an array; arrays nest as deep as the reader allows.
fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(element_type(array).to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(n) => numbers!(out, n),
        Array::I8(n) => numbers!(out, n),
        Array::U16(n) => numbers!(out, n),
        Array::I16(n) => numbers!(out, n),
        Array::U32(n) => numbers!(out, n),
        Array::I32(n) => numbers!(out, n),
        Array::F32(x) => numbers!(out, x),
        Array::Bool(truths) => out.extend(truths.iter().map(|&truth| u8::from(truth))),
        Array::String(texts) => texts.iter().for_each(|text| put_text(out, text)),
        Array::Array(arrays) => arrays.iter().for_each(|array| put_array(out, array)),
        Array::U64(n) => numbers!(out, n),
        Array::I64(n) => numbers!(out, n),
        Array::F64(x) => numbers!(out, x),
    }
}

fn value_type(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn element_type(array: &Array) -> u32 {
    match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::String(_) => 8,
        Array::Array(_) => 9,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf;

    fn planned(name: &str, dtype: DType, shape: &[usize]) -> TensorEntry {
        TensorEntry { name: name.to_owned(), dtype, shape: shape.to_vec() }
    }

    #[test]
    fn what_is_written_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let texts = Value::Array(Array::String(vec!["a".into(), String::new(), "ü".into()]));
        let nested = Value::Array(Array::Array(vec![Array::U8(vec![1, 2]), Array::Bool(vec![true, false])]));
        let entries = [
            ("b.text", Value::String("x\0y".into())),
            ("a.numbers", Value::Array(Array::I64(vec![-1, i64::MAX]))),
            ("general.alignment", Value::U32(64)),
            ("general.architecture", Value::String("llama".into())),
            ("z.texts", texts),
            ("z.nested", nested),
            ("z.half", Value::F64(0.5)),
            ("z.small", Value::I8(-3)),
        ];
        let tensors = [planned("norm", DType::F32, &[3]), planned("w", DType::Q8_0, &[2, 2, 32])];
        let mut writer =
            Writer::create(&path, entries.iter().map(|(key, value)| (*key, value)), &tensors).unwrap();
        let (norm, weights): (Vec<u8>, Vec<u8>) = ((0..12).collect(), (0..136).collect());
        writer.write(&norm).unwrap();
        assert!(!path.exists(), "it has its name before it is whole");
        writer.write(&weights[..100]).unwrap();
        writer.write(&weights[100..]).unwrap();
        writer.finish().unwrap();
        let (read, _) = gguf::open(&path).unwrap();
        for (key, value) in entries.iter().filter(|(key, _)| *key != "general.alignment") {
            assert_eq!(read.metadata.get(key), Some(value), "{key}");
        }
        assert_eq!(read.metadata.get("general.alignment"), None);
        let found: Vec<_> =
            read.tensors.iter().map(|t| (t.name.as_str(), t.dtype, &t.shape[..], t.bytes.to_vec())).collect();
        let expected = [("norm", DType::F32, &[3][..], norm), ("w", DType::Q8_0, &[2, 2, 32][..], weights)];
        assert_eq!(found, expected);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_not_whole_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let tensors = [planned("a", DType::F32, &[2])];
        let mut writer = Writer::create(&path, [], &tensors).unwrap();
        writer.write(&[0; 4]).unwrap();
        assert!(writer.write(&[0; 5]).is_err(), "more than the tensor takes");
        assert!(writer.finish().is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let own = [planned("a", DType::AFQ4_G64, &[64])];
        assert!(Writer::create(&path, [], &own).is_err(), "a type that GGUF does not have");
        let broken = [planned("a", DType::Q8_0, &[2, 16])];
        assert!(Writer::create(&path, [], &broken).is_err(), "rows that are no whole blocks");
    }
}
