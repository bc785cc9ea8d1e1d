//! Output formats: the choice by file name, the item data that each format needs, and the final step of a bulk
//! job, which turns its partial result into the file. The file is renamed into place, so it appears complete or
//! not at all.

use super::npy;
use super::parquet::{CarriedFields, Ids, ParquetWriter};
use super::partial::{ItemOutcome, Partial, Record};
use crate::args::InputFormat;
use crate::error::{CliError, PartialError};
use crate::input::{Item, ItemText, Object};
use ::parquet::errors::ParquetError;
use serde_json::value::to_raw_value;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VectorFormat {
    /// JSON object on each line: the item's own with `embedding` added.
    Jsonl,
    /// Single f32 array of shape (rows, dimensions).
    Npy,
    Parquet {
        with_text: bool,
    },
}

impl VectorFormat {
    /// Format by the name of `path`.
    pub(crate) fn of(path: &Path, with_text: bool) -> Result<Self, CliError> {
        let end = path.extension().map(|end| end.to_string_lossy().to_lowercase());
        match end.as_deref() {
            Some("jsonl" | "ndjson") => Ok(Self::Jsonl),
            Some("npy") => Ok(Self::Npy),
            Some("parquet") => Ok(Self::Parquet { with_text }),
            _ => {
                let path = path.display();
                let message = format!("--output {path} ends neither in .jsonl, .npy nor .parquet");
                Err(CliError::Usage(message))
            }
        }
    }

    /// Extracts the data of an item that the output will need.
    pub(crate) fn carried(self, item: &mut Item) -> Vec<u8> {
        match self {
            Self::Jsonl => std::mem::take(&mut item.line),
            Self::Npy => Vec::new(),
            Self::Parquet { with_text } => {
                let text = match &item.text {
                    ItemText::Some(text) if with_text => Some(text.clone()),
                    _ => None,
                };
                let carried = CarriedFields { id: item.id.take(), text };
                serde_json::to_vec(&carried).expect("values that were read can be written")
            }
        }
    }
}

/// JSON line for a record: the object that was read, or one with the text, and the vector. Without a vector it
/// is null, or replaced by the error.
pub(crate) fn json_line(record: &Record, format: InputFormat) -> io::Result<Vec<u8>> {
    let line = String::from_utf8_lossy(&record.carried);
    let mut object = match (format, &record.outcome) {
        (InputFormat::Jsonl, _) => Object::read(&line).unwrap_or(Object(Vec::new())),
        (InputFormat::Txt, ItemOutcome::Failed(_)) if line.is_empty() => Object(Vec::new()),
        (InputFormat::Txt, _) => Object(vec![("text".to_owned(), to_raw_value(&line)?)]),
    };
    object.0.retain(|(name, _)| name != "embedding");
    let (name, value) = match &record.outcome {
        ItemOutcome::Vector(vector) => {
            let (values, _) = vector.as_chunks();
            let values: Vec<f32> = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            ("embedding", to_raw_value(&values)?)
        }
        ItemOutcome::Blank => ("embedding", to_raw_value(&())?),
        ItemOutcome::Failed(why) => {
            object.0.retain(|(name, _)| name != "error");
            ("error", to_raw_value(&format!("line {}: {why}", record.number))?)
        }
    };
    object.0.push((name.to_owned(), value));
    let mut line = serde_json::to_vec(&object)?;
    line.push(b'\n');
    Ok(line)
}

/// Turns a partial result into the file at `path`, and removes the partial result.
pub(crate) fn finish(
    partial: Partial,
    path: &Path,
    kind: VectorFormat,
    format: InputFormat,
    dimensions: u32,
) -> Result<(), CliError> {
    let beside = with_suffix(path, ".finishing");
    let failed = |source| CliError::Path { path: beside.clone(), source };
    let written = File::create(&beside).map_err(failed).and_then(|file| {
        let file = write(&partial, file, kind, format, dimensions).map_err(|error| match error {
            Failure::Partial(error) => error,
            Failure::Output(source) => failed(source),
        })?;
        file.sync_all().map_err(failed)?;
        hanzo_engine_files::rename_over(&beside, path).map_err(failed)
    });
    if written.is_err() {
        // The incomplete file is useless, and the disk may be full.
        let _ = std::fs::remove_file(&beside);
    }
    written?;
    Ok(partial.remove()?)
}

/// Appends a suffix to `path`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

enum Failure {
    Partial(CliError),
    Output(io::Error),
}

impl From<PartialError> for Failure {
    fn from(error: PartialError) -> Self {
        Self::Partial(error.into())
    }
}

fn write(
    partial: &Partial,
    file: File,
    kind: VectorFormat,
    format: InputFormat,
    dimensions: u32,
) -> Result<File, Failure> {
    let mut out = BufWriter::with_capacity(1 << 18, file);
    let mut records = partial.records()?;
    match kind {
        VectorFormat::Jsonl => {
            while let Some(record) = records.next()? {
                let line = json_line(&record, format).map_err(Failure::Output)?;
                out.write_all(&line).map_err(Failure::Output)?;
            }
        }
        VectorFormat::Npy => {
            out.write_all(&npy::header(partial.counts.rows, dimensions)).map_err(Failure::Output)?;
            while let Some(record) = records.next()? {
                npy::row(&mut out, &record.outcome, dimensions).map_err(Failure::Output)?;
            }
        }
        VectorFormat::Parquet { with_text } => {
            // The types of the ids determine the type of their column, which comes first.
            let mut ids = Ids::None;
            while let Some(record) = records.next()? {
                ids = ids.with(&CarriedFields::read(&record.carried));
            }
            records = partial.records()?;
            let output = |error| Failure::Output(system(error));
            let mut writer = ParquetWriter::new(out, ids, with_text).map_err(output)?;
            while let Some(record) = records.next()? {
                writer.row(&record).map_err(output)?;
            }
            out = writer.finish().map_err(output)?;
        }
    }
    out.into_inner().map_err(|error| Failure::Output(error.into_error()))
}

/// Extracts the operating system's error, if it is one.
fn system(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(source) => io::Error::other(source),
        },
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(format: InputFormat, carried: &str, outcome: ItemOutcome) -> String {
        let record = Record { number: 7, chain: 0, carried: carried.into(), outcome };
        String::from_utf8(json_line(&record, format).unwrap()).unwrap()
    }

    fn vector() -> ItemOutcome {
        ItemOutcome::Vector([1.0f32, 0.1].iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    #[test]
    fn a_json_line_keeps_its_fields_as_they_were_written() {
        let own = r#"{"id":12345678901234567890123, "f":1.50,"embedding":[0],"text":"a\u00e9"}"#;
        let expected =
            "{\"id\":12345678901234567890123,\"f\":1.50,\"text\":\"a\\u00e9\",\"embedding\":[1.0,0.1]}\n";
        assert_eq!(line(InputFormat::Jsonl, own, vector()), expected);
        let failed = ItemOutcome::Failed("it is no good".into());
        let expected = "{\"id\":1,\"error\":\"line 7: it is no good\"}\n";
        assert_eq!(line(InputFormat::Jsonl, r#"{"id":1,"error":"old"}"#, failed.clone()), expected);
        assert_eq!(line(InputFormat::Jsonl, "{broken", failed), "{\"error\":\"line 7: it is no good\"}\n");
    }

    #[test]
    fn a_line_of_text_becomes_an_object() {
        assert_eq!(
            line(InputFormat::Txt, "a \"b\"", vector()),
            "{\"text\":\"a \\\"b\\\"\",\"embedding\":[1.0,0.1]}\n"
        );
        assert_eq!(line(InputFormat::Txt, "", ItemOutcome::Blank), "{\"text\":\"\",\"embedding\":null}\n");
    }

    #[test]
    fn the_name_says_the_format() {
        let of = |path: &str| VectorFormat::of(Path::new(path), false);
        assert_eq!((of("a.jsonl").unwrap(), of("b.NPY").unwrap()), (VectorFormat::Jsonl, VectorFormat::Npy));
        assert_eq!(of("c.parquet").unwrap(), VectorFormat::Parquet { with_text: false });
        assert!(of("d.csv").unwrap_err().line().contains("--output d.csv"));
    }
}
