//! Reader of numbers, strings and values from the front of a GGUF file. Every length is checked against the remaining
//! bytes before anything is allocated for it, so memory is bounded by a small multiple of the file.

use super::metadata::{Array, Value};
use crate::error::LoadError;
use crate::limits::{
    GGUF_ARRAY_DEPTH_MAX, GGUF_ARRAY_MAX, GGUF_HEADER_BYTES_MAX, GGUF_NAME_BYTES_MAX, GGUF_STRING_BYTES_MAX,
    GGUF_TEXTS_MAX,
};

/// Position in the header.
pub(super) struct Reader<'a> {
    file: &'a str,
    bytes: &'a [u8],
    position: usize,
    /// Number of texts and arrays that values may still hold: each takes many times its file size in memory.
    texts_left: usize,
    /// Item being read, for errors: a key, a tensor, a part of the header.
    pub(super) what: String,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a str, bytes: &'a [u8]) -> Self {
        Self { file, bytes, position: 0, texts_left: GGUF_TEXTS_MAX, what: "header".into() }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Bytes not read yet.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.position
    }

    pub(super) fn corrupt(&self, reason: impl Into<String>) -> LoadError {
        LoadError::Corrupt { file: self.file.to_owned(), what: self.what.clone(), reason: reason.into() }
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], LoadError> {
        if length > self.left() {
            return Err(self.corrupt(format!(
                "the file ends at byte {} where {length} bytes from {} on are needed",
                self.bytes.len(),
                self.position
            )));
        }
        if length > GGUF_HEADER_BYTES_MAX - self.position {
            return Err(self.corrupt(format!(
                "keys, values and tensors' names take more than {GGUF_HEADER_BYTES_MAX} bytes, which is the most that is read"
            )));
        }
        let taken = &self.bytes[self.position..self.position + length];
        self.position += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count whose items take at least `item_bytes` each.
    pub(super) fn count(&mut self, of: &str, max: usize, item_bytes: usize) -> Result<usize, LoadError> {
        let count = self.u64()?;
        match usize::try_from(count) {
            Ok(count) if count > max => Err(self.corrupt(format!("{count} {of}; at most {max} are allowed"))),
            Ok(count) if count > self.left() / item_bytes => {
                Err(self.corrupt(format!("{count} {of} do not fit the {} bytes left", self.left())))
            }
            Ok(count) => Ok(count),
            Err(_) => Err(self.corrupt(format!("{count} {of}; at most {max} are allowed"))),
        }
    }

    fn text(&mut self, max: usize) -> Result<&'a str, LoadError> {
        let length = self.count("bytes of text", max, 1)?;
        let bytes = self.take(length)?;
        str::from_utf8(bytes)
            .map_err(|error| self.corrupt(format!("text is not UTF-8 after {} bytes", error.valid_up_to())))
    }

    /// A key or the name of a tensor.
    pub(super) fn name(&mut self) -> Result<&'a str, LoadError> {
        let name = self.text(GGUF_NAME_BYTES_MAX)?;
        if name.is_empty() {
            return Err(self.corrupt("a name is empty"));
        }
        Ok(name)
    }

    pub(super) fn value(&mut self) -> Result<Value, LoadError> {
        let kind = self.u32()?;
        Ok(match kind {
            0 => Value::U8(self.array::<1>()?[0]),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => {
                let byte = self.array::<1>()?[0];
                Value::Bool(self.truth(byte)?)
            }
            8 => Value::String(self.text(GGUF_STRING_BYTES_MAX)?.to_owned()),
            9 => Value::Array(self.values(1)?),
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            other => return Err(self.corrupt(format!("unknown value type {other}"))),
        })
    }

    fn truth(&self, byte: u8) -> Result<bool, LoadError> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.corrupt(format!("a bool is {other}"))),
        }
    }

    fn values(&mut self, depth: usize) -> Result<Array, LoadError> {
        if depth > GGUF_ARRAY_DEPTH_MAX {
            return Err(self.corrupt(format!("arrays are nested deeper than {GGUF_ARRAY_DEPTH_MAX}")));
        }
        let kind = self.u32()?;
        Ok(match kind {
            0 => Array::U8(self.numbers(u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(f32::from_le_bytes)?),
            7 => {
                let bytes: Vec<u8> = self.numbers(u8::from_le_bytes)?;
                Array::Bool(bytes.into_iter().map(|byte| self.truth(byte)).collect::<Result<_, _>>()?)
            }
            8 => {
                let count = self.items("strings", 8)?;
                let mut texts = Vec::with_capacity(count);
                for _ in 0..count {
                    texts.push(self.text(GGUF_STRING_BYTES_MAX)?.to_owned());
                }
                Array::String(texts)
            }
            9 => {
                let count = self.items("arrays", 12)?;
                let mut arrays = Vec::with_capacity(count);
                for _ in 0..count {
                    arrays.push(self.values(depth + 1)?);
                }
                Array::Array(arrays)
            }
            10 => Array::U64(self.numbers(u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(f64::from_le_bytes)?),
            other => return Err(self.corrupt(format!("unknown array type {other}"))),
        })
    }

    /// A count of texts or arrays in an array.
    fn items(&mut self, of: &str, item_bytes: usize) -> Result<usize, LoadError> {
        let count = self.count(of, GGUF_ARRAY_MAX, item_bytes)?;
        match self.texts_left.checked_sub(count) {
            Some(left) => {
                self.texts_left = left;
                Ok(count)
            }
            None => {
                Err(self
                    .corrupt(format!("with {count} {of} here, there are more than {GGUF_TEXTS_MAX} in all")))
            }
        }
    }

    fn numbers<T, const N: usize>(&mut self, decode: fn([u8; N]) -> T) -> Result<Vec<T>, LoadError> {
        let count = self.count("numbers", GGUF_ARRAY_MAX, N)?;
        let (chunks, _) = self.take(count * N)?.as_chunks::<N>();
        Ok(chunks.iter().map(|&bytes| decode(bytes)).collect())
    }
}
