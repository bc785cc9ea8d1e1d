//! Parquet (parquet.apache.org/docs/file-format). Columns: `id` if the input has any, `text` on request, and
//! `embedding`, a list of floats that is null if an item has no vector. Nothing is compressed, because vectors
//! hardly compress.

use super::partial::{ItemOutcome, Record};
use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, FloatType, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::io::Write;
use std::sync::Arc;

/// Maximum bytes of a row group, which is kept in memory until it is written.
const GROUP_BYTES_MAX: usize = 32 << 20;

/// Data of a row besides its vector.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct CarriedFields {
    #[serde(default)]
    pub(crate) id: Option<Box<RawValue>>,
    #[serde(default)]
    pub(crate) text: Option<String>,
}

impl CarriedFields {
    /// Parses the output of [`VectorFormat::carried`].
    pub(crate) fn read(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }
}

/// Type of the ids read so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    None,
    Integers,
    Strings,
}

impl Ids {
    /// Type after one more item: integers only if all are integers.
    pub(crate) fn with(self, carried: &CarriedFields) -> Self {
        match (&carried.id, self) {
            (None, ids) => ids,
            (Some(id), ids) if id.get() == "null" => ids,
            (Some(_), Self::Strings) => Self::Strings,
            (Some(id), _) if id.get().parse::<i64>().is_ok() => Self::Integers,
            (Some(_), _) => Self::Strings,
        }
    }
}

/// Writer of a Parquet file.
pub(crate) struct ParquetWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    ids: Ids,
    with_text: bool,
    group: Group,
}

/// Rows of the next row group.
#[derive(Default)]
struct Group {
    ids: Vec<Option<String>>,
    texts: Vec<Option<String>>,
    values: Vec<f32>,
    /// Length of each row's vector. None for a null.
    lengths: Vec<Option<usize>>,
    bytes: usize,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Starts a file.
    pub(crate) fn new(out: W, ids: Ids, with_text: bool) -> Result<Self> {
        let id = match ids {
            Ids::None => "",
            Ids::Integers => "optional int64 id;",
            Ids::Strings => "optional binary id (STRING);",
        };
        let text = if with_text { "optional binary text (STRING);" } else { "" };
        let embedding = "optional group embedding (LIST) { repeated group list { required float element; } }";
        let schema = parse_message_type(&format!("message rows {{ {id} {text} {embedding} }}"))?;
        let properties = WriterProperties::builder()
            .set_created_by(concat!("hanzo-engine ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN)
            .set_statistics_enabled(EnabledStatistics::None)
            .build();
        let file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
        Ok(Self { file, ids, with_text, group: Group::default() })
    }

    /// Adds one row.
    pub(crate) fn row(&mut self, record: &Record) -> Result<()> {
        let CarriedFields { id, text } = CarriedFields::read(&record.carried);
        let group = &mut self.group;
        group.bytes += record.carried.len() + size_of::<[usize; 8]>();
        if self.ids != Ids::None {
            // Strings without their quotes, other values as written.
            let plain = |json: &str| serde_json::from_str(json).unwrap_or_else(|_| json.to_owned());
            group.ids.push(id.filter(|id| id.get() != "null").map(|id| plain(id.get())));
        }
        if self.with_text {
            group.texts.push(text);
        }
        group.lengths.push(match &record.outcome {
            ItemOutcome::Vector(vector) => {
                let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
                let (values, _) = vector.as_chunks();
                group.values.extend(values.iter().map(value));
                group.bytes += vector.len();
                Some(values.len())
            }
            ItemOutcome::Blank | ItemOutcome::Failed(_) => None,
        });
        if group.bytes > GROUP_BYTES_MAX {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the remaining rows and the footer. Returns the underlying writer.
    pub(crate) fn finish(mut self) -> Result<W> {
        self.flush()?;
        self.file.into_inner()
    }

    fn flush(&mut self) -> Result<()> {
        let group = std::mem::take(&mut self.group);
        if group.lengths.is_empty() {
            return Ok(());
        }
        let mut out = self.file.next_row_group()?;
        let bytes = |text: &String| ByteArray::from(text.as_str());
        match self.ids {
            Ids::None => {}
            Ids::Integers => {
                let integer = |id: &String| id.parse().unwrap_or_default();
                column::<Int64Type, _>(&mut out, &group.ids, integer)?;
            }
            Ids::Strings => column::<ByteArrayType, _>(&mut out, &group.ids, bytes)?,
        }
        if self.with_text {
            column::<ByteArrayType, _>(&mut out, &group.texts, bytes)?;
        }
        // Definition levels: 0 null, 1 empty list, 2 value. Repetition levels: 0 starts a row, 1 continues it.
        let (mut definition, mut repetition) = (Vec::new(), Vec::new());
        for length in &group.lengths {
            let values = length.unwrap_or(0);
            definition.push(match length {
                None => 0,
                Some(0) => 1,
                Some(_) => 2,
            });
            repetition.push(0);
            definition.extend(std::iter::repeat_n(2, values.saturating_sub(1)));
            repetition.extend(std::iter::repeat_n(1, values.saturating_sub(1)));
        }
        let mut column = next(&mut out)?;
        column.typed::<FloatType>().write_batch(&group.values, Some(&definition), Some(&repetition))?;
        column.close()?;
        out.close()?;
        Ok(())
    }
}

/// Writes a column of nullable values.
fn column<D: DataType, V>(
    out: &mut SerializedRowGroupWriter<'_, impl Write + Send>,
    cells: &[Option<V>],
    value: impl Fn(&V) -> D::T,
) -> Result<()> {
    let definition: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
    let values: Vec<D::T> = cells.iter().flatten().map(value).collect();
    let mut column = next(out)?;
    column.typed::<D>().write_batch(&values, Some(&definition), None)?;
    column.close()
}

fn next<'a>(
    out: &'a mut SerializedRowGroupWriter<'_, impl Write + Send>,
) -> Result<parquet::file::writer::SerializedColumnWriter<'a>> {
    out.next_column()?.ok_or_else(|| ParquetError::General("the schema has too few columns".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Row;

    fn record(carried: &str, outcome: ItemOutcome) -> Record {
        Record { number: 1, chain: 0, carried: carried.into(), outcome }
    }

    fn vector(values: &[f32]) -> ItemOutcome {
        ItemOutcome::Vector(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Writes records and reads them back with the crate's own reader. Returns each row as JSON-like text.
    fn through(ids: Ids, with_text: bool, records: &[Record]) -> (Vec<String>, usize) {
        let mut writer = ParquetWriter::new(Vec::new(), ids, with_text).unwrap();
        records.iter().for_each(|record| writer.row(record).unwrap());
        let bytes = writer.finish().unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let groups = reader.num_row_groups();
        (
            reader.get_row_iter(None).unwrap().map(|row: Result<Row>| row.unwrap().to_string()).collect(),
            groups,
        )
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let records = [
            record(r#"{"id":7,"text":"größer"}"#, vector(&[1.0, -2.5])),
            record(r#"{"id":null,"text":null}"#, ItemOutcome::Blank),
            record(r#"{"id":-9,"text":"x"}"#, ItemOutcome::Failed("no".into())),
            record(r#"{"text":"y"}"#, vector(&[3.25, 4.0])),
        ];
        let ids =
            records.iter().fold(Ids::None, |ids, record| ids.with(&CarriedFields::read(&record.carried)));
        assert_eq!(ids, Ids::Integers);
        let (rows, _) = through(ids, true, &records);
        assert_eq!(
            rows,
            [
                r#"{id: 7, text: "größer", embedding: [1.0, -2.5E0]}"#,
                "{id: null, text: null, embedding: null}",
                r#"{id: -9, text: "x", embedding: null}"#,
                r#"{id: null, text: "y", embedding: [3.25, 4.0]}"#,
            ]
        );
        let (rows, _) = through(Ids::None, false, &records[..1]);
        assert_eq!(rows, ["{embedding: [1.0, -2.5E0]}"]);
        assert_eq!(through(Ids::None, false, &[]).0, [""; 0]);
    }

    #[test]
    fn ids_are_integers_only_while_all_are() {
        let ids = |ids: &[&str]| {
            let carried = |id: &&str| CarriedFields::read(format!(r#"{{"id":{id}}}"#).as_bytes());
            ids.iter().map(carried).fold(Ids::None, |ids, carried| ids.with(&carried))
        };
        assert_eq!(ids(&["1", "null", "2"]), Ids::Integers);
        assert_eq!(
            (ids(&["1", "\"2\""]), ids(&["\"a\"", "2"]), ids(&["1.5"])),
            (Ids::Strings, Ids::Strings, Ids::Strings)
        );
        assert_eq!((ids(&[]), ids(&["null"])), (Ids::None, Ids::None));
        let records = [record(r#"{"id":"a\n"}"#, vector(&[1.0])), record(r#"{"id":12}"#, vector(&[2.0]))];
        let (rows, _) = through(Ids::Strings, false, &records);
        assert_eq!(rows, ["{id: \"a\n\", embedding: [1.0]}", r#"{id: "12", embedding: [2.0]}"#]);
    }

    #[test]
    fn many_rows_are_several_groups() {
        let records: Vec<Record> =
            (0..20).map(|at| record("{}", vector(&vec![at as f32; 1 << 20]))).collect();
        let (rows, groups) = through(Ids::None, false, &records);
        assert_eq!((rows.len(), groups), (20, 3), "9 of 4 MiB pass 32 MiB");
        assert!(rows[19].contains("[19.0, 19.0"));
    }
}
