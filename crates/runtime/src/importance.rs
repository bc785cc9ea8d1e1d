//! Importance matrices: the importance of each column of each matrix, which is the mean square of its input when a
//! model ran over texts. Read in the formats of llama-imatrix: GGUF (`NAME.in_sum2`, `NAME.counts`), or the older
//! format `count i32, [length i32, name, calls i32, values i32, f32 ...]`, little endian.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{LoadError, shorten};
use crate::gguf::{Array, Gguf, Metadata, Value};
use crate::limits::{IMPORTANCE_BYTES_MAX, IMPORTANCE_ENTRIES_MAX};
use crate::mapped::ModelBytes;
use crate::regular;
use crate::tensor::Tensor;

/// Importance matrix.
#[derive(Debug)]
pub struct Importance {
    file: String,
    /// Importance of columns by the tensor's name, matrix after matrix.
    columns: BTreeMap<String, Vec<f32>>,
    datasets: Vec<String>,
    chunks: Option<u32>,
}

impl Importance {
    /// Reads a file.
    ///
    /// # Errors
    /// `Io`; `Corrupt` for a file that is in neither format, is truncated, repeats an entry, or has numbers that are
    /// not finite or negative; `Missing` for a GGUF file with other content.
    pub fn open(path: &Path) -> Result<Importance, LoadError> {
        let failed = |source| LoadError::Io { path: path.to_owned(), source };
        let file = path.display().to_string();
        let (mut opened, bytes) = regular::open(path).map_err(failed)?;
        if bytes > IMPORTANCE_BYTES_MAX {
            let reason = format!("{bytes} bytes are more than the {IMPORTANCE_BYTES_MAX} that it may have");
            return Err(LoadError::Corrupt { file, what: "size".to_owned(), reason });
        }
        let mut magic = [0; 4];
        let is_gguf = std::io::Read::read_exact(&mut opened, &mut magic).is_ok() && &magic == b"GGUF";
        let bytes = ModelBytes::map(path).map_err(failed)?;
        let mut importance =
            Importance { file, columns: BTreeMap::new(), datasets: Vec::new(), chunks: None };
        if is_gguf {
            importance.read_gguf(&bytes)?
        } else {
            importance.read_legacy(&bytes)?
        }
        if importance.columns.is_empty() {
            return Err(importance.corrupt("entries", "there are none"));
        }
        Ok(importance)
    }

    /// Weight of an error in each column of a tensor, matrix by matrix for a stack; `None` if unknown.
    ///
    /// # Errors
    /// `Corrupt` if the entry is of a tensor of another shape.
    pub fn of(&self, tensor: &Tensor) -> Result<Option<&[f32]>, LoadError> {
        let Some(columns) = self.columns.get(&tensor.name) else { return Ok(None) };
        let wide = tensor.shape.last().copied().unwrap_or_default();
        let matrices: usize = tensor.shape.iter().rev().skip(2).product();
        if wide.checked_mul(matrices) == Some(columns.len()) {
            return Ok(Some(columns));
        }
        let reason = format!(
            "{} values, and the tensor has {matrices} x {wide} columns: it is another model's",
            columns.len()
        );
        Err(self.corrupt(&tensor.name, &reason))
    }

    /// Same as [`Importance::of`], for a matrix by its name, which may be `STACK[i]` for one matrix of a stack.
    ///
    /// # Errors
    /// `Corrupt` if the entry has another number of columns, or fewer matrices.
    pub(crate) fn of_matrix(&self, name: &str, columns: usize) -> Result<Option<&[f32]>, LoadError> {
        let stacked = name.strip_suffix(']').and_then(|name| name.rsplit_once('['));
        let stacked = stacked.and_then(|(stack, at)| Some((stack, at.parse::<usize>().ok()?)));
        let Some(known) = self.columns.get(stacked.map_or(name, |(stack, _)| stack)) else { return Ok(None) };
        let whole = known.len().is_multiple_of(columns) && (stacked.is_some() || known.len() == columns);
        let found = known.chunks_exact(columns.max(1)).nth(stacked.map_or(0, |(_, at)| at));
        found.filter(|_| whole).map(Some).ok_or_else(|| {
            let values = known.len();
            self.corrupt(
                name,
                &format!("{values} values do not fit its {columns} columns: it is another model's"),
            )
        })
    }

    /// Names of the tensors with entries.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.keys().map(String::as_str)
    }

    /// Name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Metadata of a quantised file about it, under the keys of llama-quantize.
    pub(super) fn entries(&self) -> impl Iterator<Item = (String, Value)> {
        let key = |name: &str| format!("quantize.imatrix.{name}");
        let count = u32::try_from(self.columns.len()).unwrap_or(u32::MAX);
        let entries = [
            Some((key("file"), Value::String(self.file.clone()))),
            self.datasets.first().map(|text| (key("dataset"), Value::String(text.clone()))),
            Some((key("entries_count"), Value::U32(count))),
            self.chunks.map(|chunks| (key("chunks_count"), Value::U32(chunks))),
        ];
        entries.into_iter().flatten()
    }

    fn corrupt(&self, what: &str, reason: &str) -> LoadError {
        LoadError::Corrupt {
            file: self.file.clone(),
            what: format!("importance matrix, {}", shorten(what.to_owned())),
            reason: reason.to_owned(),
        }
    }

    fn read_gguf(&mut self, bytes: &ModelBytes) -> Result<(), LoadError> {
        let gguf = Gguf::parse(&self.file, bytes)?;
        self.chunks = gguf.metadata.u32("imatrix.chunk_count")?;
        self.datasets = datasets(&gguf.metadata)?;
        let tensors: BTreeMap<&str, &Tensor> = gguf.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        for (name, sums) in &tensors {
            let Some(name) = name.strip_suffix(".in_sum2") else { continue };
            let Some(counts) = tensors.get(format!("{name}.counts").as_str()) else {
                return Err(self.corrupt(name, "it has no counts"));
            };
            let (mut values, counts) = (sums.to_f32()?, counts.to_f32()?);
            if counts.is_empty() || values.is_empty() || values.len() % counts.len() != 0 {
                let reason = format!("{} sums and {} counts", values.len(), counts.len());
                return Err(self.corrupt(name, &reason));
            }
            let columns = values.len() / counts.len();
            for (values, &count) in values.chunks_mut(columns).zip(&counts) {
                // A matrix without any input is unknown.
                values.iter_mut().for_each(|value| *value = if count > 0.0 { *value / count } else { 1.0 });
            }
            self.add(name.to_owned(), values)?;
        }
        if self.columns.is_empty() {
            return Err(LoadError::Missing {
                file: self.file.clone(),
                what: "a tensor NAME.in_sum2".to_owned(),
                hint: ": this GGUF file is no importance matrix".to_owned(),
            });
        }
        Ok(())
    }

    fn read_legacy(&mut self, bytes: &ModelBytes) -> Result<(), LoadError> {
        let bytes = bytes.read();
        let mut rest = &bytes[..];
        let entries = self.number(&mut rest, "entries")?;
        if entries > IMPORTANCE_ENTRIES_MAX {
            return Err(self.corrupt("entries", &format!("{entries} are no importance matrix's")));
        }
        for entry in 0..entries {
            let what = format!("entry {entry}");
            let length = self.number(&mut rest, &what)?;
            let name = self.take(&mut rest, length, &what)?;
            let name = std::str::from_utf8(name).map_err(|_| self.corrupt(&what, "its name is no text"))?;
            let (calls, values) = (self.number(&mut rest, name)?, self.number(&mut rest, name)?);
            let values = self.take(&mut rest, values.saturating_mul(4), name)?;
            let calls = calls.max(1) as f32;
            let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes) / calls;
            self.add(name.to_owned(), values.as_chunks::<4>().0.iter().map(number).collect())?;
        }
        // The rest is optional: the number of chunks, and the dataset.
        if !rest.is_empty() {
            self.chunks = u32::try_from(self.number(&mut rest, "chunks")?).ok();
            if let Ok(length) = self.number(&mut rest, "dataset") {
                let text = self.take(&mut rest, length, "dataset")?;
                self.datasets = vec![String::from_utf8_lossy(text).into_owned()];
            }
        }
        Ok(())
    }

    fn add(&mut self, name: String, values: Vec<f32>) -> Result<(), LoadError> {
        if let Some(at) = values.iter().position(|value| !(value.is_finite() && *value >= 0.0)) {
            return Err(self.corrupt(&name, &format!("{} of column {at} is no mean of squares", values[at])));
        }
        if values.is_empty() {
            return Err(self.corrupt(&name, "it has no values"));
        }
        if self.columns.contains_key(&name) {
            return Err(self.corrupt(&name, "it is there twice"));
        }
        self.columns.insert(name, values);
        Ok(())
    }

    /// A number that is not negative.
    fn number(&self, rest: &mut &[u8], what: &str) -> Result<usize, LoadError> {
        let bytes = self.take(rest, 4, what)?;
        let number = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        usize::try_from(number).map_err(|_| self.corrupt(what, &format!("a length of {number}")))
    }

    fn take<'a>(&self, rest: &mut &'a [u8], length: usize, what: &str) -> Result<&'a [u8], LoadError> {
        let Some((taken, left)) = rest.split_at_checked(length) else {
            let reason = format!("{length} bytes are needed and {} are left", rest.len());
            return Err(self.corrupt(what, &reason));
        };
        *rest = left;
        Ok(taken)
    }
}

fn datasets(metadata: &Metadata) -> Result<Vec<String>, LoadError> {
    match metadata.get("imatrix.datasets") {
        Some(Value::Array(Array::String(_))) => {
            Ok(metadata.strings("imatrix.datasets")?.unwrap_or_default().to_vec())
        }
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_ops::DType;

    use super::*;
    use crate::gguf::{TensorEntry, Writer};

    fn tensor(name: &str, shape: &[usize]) -> Tensor {
        Tensor {
            file: "m.gguf".into(),
            name: name.to_owned(),
            dtype: DType::F16,
            shape: shape.to_vec(),
            bytes: ModelBytes::from_static(&[]),
        }
    }

    fn floats(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn legacy(entries: i32, name: &str, values: &[f32]) -> Vec<u8> {
        let mut bytes = entries.to_le_bytes().to_vec();
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(4i32.to_le_bytes());
        bytes.extend((values.len() as i32).to_le_bytes());
        bytes.extend(floats(values));
        bytes
    }

    #[test]
    fn both_formats_are_means_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let of = |name: &str, shape: &[usize]| TensorEntry {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: shape.to_vec(),
        };
        let planned = [of("a.weight.in_sum2", &[2, 3]), of("a.weight.counts", &[2, 1])];
        let entries = [
            ("general.type", Value::String("imatrix".into())),
            ("imatrix.chunk_count", Value::U32(9)),
            ("imatrix.datasets", Value::Array(Array::String(vec!["t.txt".into()]))),
        ];
        let mut writer = Writer::create(&path, entries.iter().map(|(k, v)| (*k, v)), &planned).unwrap();
        writer.write(&floats(&[2.0, 4.0, 6.0, 5.0, 5.0, 5.0])).unwrap();
        writer.write(&floats(&[2.0, 0.0])).unwrap();
        writer.finish().unwrap();
        let read = Importance::open(&path).unwrap();
        let known = read.of(&tensor("a.weight", &[2, 7, 3])).unwrap();
        assert_eq!(
            known,
            Some(&[1.0, 2.0, 3.0, 1.0, 1.0, 1.0][..]),
            "an expert that met nothing counts alike"
        );
        assert_eq!(read.of(&tensor("b.weight", &[7, 3])).unwrap(), None);
        let error = read.of(&tensor("a.weight", &[7, 3])).unwrap_err().to_string();
        assert!(error.contains("a.weight") && error.contains("1 x 3"), "{error}");
        let entries: BTreeMap<String, Value> = read.entries().collect();
        assert_eq!(entries["quantize.imatrix.dataset"], Value::String("t.txt".into()));
        assert_eq!(entries["quantize.imatrix.chunks_count"], Value::U32(9));

        let path = dir.path().join("m.dat");
        let mut bytes = legacy(1, "a.weight", &[4.0, 8.0]);
        bytes.extend([5i32.to_le_bytes(), 1i32.to_le_bytes()].concat());
        bytes.push(b't');
        std::fs::write(&path, &bytes).unwrap();
        let read = Importance::open(&path).unwrap();
        assert_eq!(read.of(&tensor("a.weight", &[7, 2])).unwrap(), Some(&[1.0, 2.0][..]));
        assert_eq!((read.chunks, read.datasets), (Some(5), vec!["t".to_owned()]));
    }

    #[test]
    fn what_is_broken_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.dat");
        let whole = legacy(1, "a", &[1.0, 2.0]);
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            Importance::open(&path).unwrap_err();
        }
        let twice = [legacy(2, "a", &[1.0]), legacy(1, "a", &[1.0]).split_off(4)].concat();
        for (bytes, part) in [
            (legacy(i32::MAX, "a", &[1.0]), "no importance matrix"),
            (legacy(-1, "a", &[1.0]), "length of -1"),
            (legacy(0, "a", &[1.0])[..4].to_vec(), "there are none"),
            (legacy(1, "a", &[]), "no values"),
            (legacy(1, "a", &[1.0, f32::NAN]), "column 1"),
            (legacy(1, "a", &[-1.0]), "column 0"),
            (twice, "twice"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = Importance::open(&path).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("m.dat"), "{part}: {error}");
        }
    }
}
