//! Partial result of a bulk job on disk, `OUTPUT.partial`: a line that identifies the format, a header (JSON:
//! the model, the options and the input), then a record for each item in input order. Header and records are
//! frames with a length and a checksum. If the process dies, complete records remain, and at most one torn
//! record, which is cut off when the job resumes. Integers are little-endian.

use crate::error::PartialError;
use crate::input::short;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"hanzo-engine embed, partial result 1\n";
/// Bytes of length (u32) and checksum (u64) before a frame.
const FRAME_HEAD: usize = 12;
/// Maximum bytes of a frame: enough for a line of input and a vector.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// Result of one item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Line number, from 1.
    pub(crate) number: u64,
    /// Running digest of the input up to and including this item.
    pub(crate) chain: u64,
    /// Item data that the output needs.
    pub(crate) carried: Vec<u8>,
    pub(crate) outcome: ItemOutcome,
}

/// Outcome of an item, see [`Record`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ItemOutcome {
    /// Vector: (dimensions) f32, little-endian.
    Vector(Vec<u8>),
    /// Empty line of text, which has no vector.
    Blank,
    /// Error that prevented a vector.
    Failed(String),
}

/// Partial result, locked by this process.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    file: BufWriter<File>,
    /// Offset of the first record.
    body: u64,
    /// Counts of its records.
    pub(crate) counts: RowCounts,
    /// Running digest of the last record.
    pub(crate) chain: u64,
    /// First failed item: its number, and the error.
    pub(crate) failed: Option<(u64, String)>,
}

/// Number of records, and of those without a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowCounts {
    pub(crate) rows: u64,
    pub(crate) blank: u64,
    pub(crate) failed: u64,
}

impl RowCounts {
    /// Counts one more record.
    pub(crate) fn count(&mut self, outcome: &ItemOutcome) {
        self.rows += 1;
        match outcome {
            ItemOutcome::Vector(_) => {}
            ItemOutcome::Blank => self.blank += 1,
            ItemOutcome::Failed(_) => self.failed += 1,
        }
    }
}

impl Partial {
    /// Opens the partial result at `path` and cuts off a torn record, or starts one. An existing one must begin
    /// with `header`.
    pub(crate) fn open(path: &Path, header: &Map<String, Value>) -> Result<Self, PartialError> {
        let io = |source| PartialError::Io { path: path.to_owned(), source };
        let foreign = || PartialError::Foreign { path: path.to_owned() };
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        lock(&file, path)?;
        let mut reader = BufReader::with_capacity(1 << 18, &file);
        let mut magic = Vec::new();
        reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic).map_err(io)?;
        if !MAGIC.starts_with(&magic) {
            return Err(foreign());
        }
        let begun = match magic.len() == MAGIC.len() {
            true => frame(&mut reader).map_err(io)?,
            false => None,
        };
        let mut partial = Self {
            path: path.to_owned(),
            file: BufWriter::new(file.try_clone().map_err(io)?),
            body: 0,
            counts: RowCounts::default(),
            chain: 0,
            failed: None,
        };
        match begun {
            None => partial.begin(header)?,
            Some(begun) => {
                let begun: Map<String, Value> = serde_json::from_slice(&begun).map_err(|_| foreign())?;
                if let Some(what) = difference(&begun, header) {
                    return Err(PartialError::Differs { path: path.to_owned(), what });
                }
                partial.body = reader.stream_position().map_err(io)?;
                partial.scan(&mut reader)?;
            }
        }
        Ok(partial)
    }

    /// Removes the partial result at `path`, if no process is writing it.
    pub(crate) fn discard(path: &Path) -> Result<(), PartialError> {
        let io = |source| PartialError::Io { path: path.to_owned(), source };
        let file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            file => file.map_err(io)?,
        };
        lock(&file, path)?;
        let mut magic = Vec::new();
        file.take(MAGIC.len() as u64).read_to_end(&mut magic).map_err(io)?;
        if !MAGIC.starts_with(&magic) {
            return Err(PartialError::Foreign { path: path.to_owned() });
        }
        std::fs::remove_file(path).map_err(io)
    }

    /// Starts a file that is new, or that ends within its header.
    fn begin(&mut self, header: &Map<String, Value>) -> Result<(), PartialError> {
        let text = Value::Object(header.clone()).to_string();
        let begun = self.file.get_ref().set_len(0).and_then(|()| self.file.rewind());
        let begun = begun.and_then(|()| self.file.write_all(MAGIC));
        begun.map_err(|error| self.io(error))?;
        self.frame(text.as_bytes())?;
        self.flush()?;
        self.body = (MAGIC.len() + FRAME_HEAD + text.len()) as u64;
        Ok(())
    }

    /// Finds the end of the complete records, and truncates the file there.
    fn scan(&mut self, reader: &mut BufReader<&File>) -> Result<(), PartialError> {
        let mut end = self.body;
        while let Some(bytes) = frame(reader).map_err(|error| self.io(error))? {
            let Some(record) = Record::decode(&bytes) else { break };
            self.count(&record);
            end += (FRAME_HEAD + bytes.len()) as u64;
        }
        let cut = self.file.get_ref().set_len(end).and_then(|()| self.file.seek(SeekFrom::Start(end)));
        cut.map(drop).map_err(|error| self.io(error))
    }

    fn count(&mut self, record: &Record) {
        self.counts.count(&record.outcome);
        self.chain = record.chain;
        if let (ItemOutcome::Failed(why), None) = (&record.outcome, &self.failed) {
            self.failed = Some((record.number, why.clone()));
        }
    }

    /// Adds a record. It is safe once [`Partial::flush`] returns.
    pub(crate) fn add(&mut self, record: &Record) -> Result<(), PartialError> {
        self.frame(&record.encode())?;
        self.count(record);
        Ok(())
    }

    /// Passes added records to the operating system. They then survive the death of this process.
    pub(crate) fn flush(&mut self) -> Result<(), PartialError> {
        self.file.flush().map_err(|error| self.io(error))
    }

    /// Reads the records from the start.
    pub(crate) fn records(&self) -> Result<Records, PartialError> {
        let file = File::open(&self.path).map_err(|error| self.io(error))?;
        let mut file = BufReader::with_capacity(1 << 18, file);
        file.seek(SeekFrom::Start(self.body)).map_err(|error| self.io(error))?;
        Ok(Records { path: self.path.clone(), file })
    }

    /// Removes the file: its result is elsewhere, or there is none.
    pub(crate) fn remove(self) -> Result<(), PartialError> {
        std::fs::remove_file(&self.path).map_err(|error| self.io(error))
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn frame(&mut self, bytes: &[u8]) -> Result<(), PartialError> {
        if bytes.len() > FRAME_BYTES_MAX {
            return Err(PartialError::TooLong { path: self.path.clone(), bytes: bytes.len() });
        }
        let mut head = [0; FRAME_HEAD];
        head[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&checksum(bytes).to_le_bytes());
        let written = self.file.write_all(&head).and_then(|()| self.file.write_all(bytes));
        written.map_err(|error| self.io(error))
    }

    fn io(&self, source: io::Error) -> PartialError {
        PartialError::Io { path: self.path.clone(), source }
    }
}

/// Reader of the records of a partial result, in order.
pub(crate) struct Records {
    path: PathBuf,
    file: BufReader<File>,
}

impl Records {
    /// Reads the next record.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, PartialError> {
        let bytes = frame(&mut self.file);
        let bytes = bytes.map_err(|source| PartialError::Io { path: self.path.clone(), source })?;
        Ok(bytes.as_deref().and_then(Record::decode))
    }
}

fn lock(file: &File, path: &Path) -> Result<(), PartialError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(PartialError::Busy { path: path.to_owned() }),
        // On a file system without locks, go on without one.
        Err(TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => {
            Err(PartialError::Io { path: path.to_owned(), source: error })
        }
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Reads the next complete frame. None at the end of the file, or at a damaged frame.
fn frame(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; FRAME_HEAD];
    match from.read_exact(&mut head) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let [a, b, c, d, sum @ ..] = head;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    if len > FRAME_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    from.take(len as u64).read_to_end(&mut bytes)?;
    let whole = bytes.len() == len && checksum(&bytes) == u64::from_le_bytes(sum);
    Ok(whole.then_some(bytes))
}

fn checksum(bytes: &[u8]) -> u64 {
    short(&Sha256::digest(bytes))
}

const VECTOR: u8 = 0;
const BLANK: u8 = 1;
const FAILED: u8 = 2;

impl Record {
    /// Layout: kind, number, chain, length of the carried data, carried data, then the vector or the message.
    fn encode(&self) -> Vec<u8> {
        let (kind, rest) = match &self.outcome {
            ItemOutcome::Vector(vector) => (VECTOR, vector.as_slice()),
            ItemOutcome::Blank => (BLANK, &[][..]),
            ItemOutcome::Failed(why) => (FAILED, why.as_bytes()),
        };
        let len = (self.carried.len() as u64).to_le_bytes();
        [&[kind], &self.number.to_le_bytes()[..], &self.chain.to_le_bytes(), &len, &self.carried, rest]
            .concat()
    }

    /// Decodes the bytes of a frame. None if they are no record.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (number, rest) = integer(rest)?;
        let (chain, rest) = integer(rest)?;
        let (len, rest) = integer(rest)?;
        let (carried, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        let outcome = match *kind {
            VECTOR => ItemOutcome::Vector(rest.to_vec()),
            BLANK => ItemOutcome::Blank,
            FAILED => ItemOutcome::Failed(String::from_utf8(rest.to_vec()).ok()?),
            _ => return None,
        };
        Some(Self { number, chain, carried: carried.to_vec(), outcome })
    }
}

fn integer(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (bytes, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*bytes), rest))
}

/// Describes the differing entries for people. None if there are none.
fn difference(begun: &Map<String, Value>, header: &Map<String, Value>) -> Option<String> {
    let mut names: Vec<&String> = begun.keys().chain(header.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let show = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "unset".to_owned(),
        Some(value) => value.to_string(),
    };
    let differs = |name: &&String| begun.get(*name) != header.get(*name);
    let said =
        |name: &String| format!("{name} was {} and is {}", show(begun.get(name)), show(header.get(name)));
    let differences: Vec<String> = names.into_iter().filter(differs).map(said).collect();
    (!differences.is_empty()).then(|| differences.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(dimensions: u32) -> Map<String, Value> {
        let value = serde_json::json!({"model": "m", "dimensions": dimensions, "instruction": null});
        value.as_object().unwrap().clone()
    }

    fn records() -> Vec<Record> {
        let record = |number: u64, carried: &str, outcome| Record {
            number,
            chain: number * 1_000_003,
            carried: carried.into(),
            outcome,
        };
        vec![
            record(1, "one", ItemOutcome::Vector(vec![1, 2, 3, 4])),
            record(2, "", ItemOutcome::Blank),
            record(4, "{}", ItemOutcome::Failed("it has none".into())),
            record(5, "five", ItemOutcome::Vector(vec![9; 16])),
        ]
    }

    fn read(partial: &Partial) -> Vec<Record> {
        let mut records = partial.records().unwrap();
        std::iter::from_fn(|| records.next().unwrap()).collect()
    }

    #[test]
    fn cut_at_any_byte_it_keeps_the_whole_records_and_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.partial");
        let mut partial = Partial::open(&path, &header(4)).unwrap();
        let mut ends = vec![partial.body as usize];
        for record in records() {
            partial.add(&record).unwrap();
            partial.flush().unwrap();
            ends.push(std::fs::metadata(&path).unwrap().len() as usize);
        }
        drop(partial);
        let whole = std::fs::read(&path).unwrap();
        for len in 0..=whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            let mut partial = Partial::open(&path, &header(4)).unwrap();
            let kept = ends[1..].iter().filter(|end| **end <= len).count();
            assert_eq!(
                (partial.counts.rows, read(&partial)),
                (kept as u64, records()[..kept].to_vec()),
                "{len}"
            );
            assert_eq!(partial.failed.is_some(), kept >= 3);
            for record in &records()[kept..] {
                partial.add(record).unwrap();
            }
            partial.flush().unwrap();
            assert_eq!(partial.chain, records()[3].chain);
            drop(partial);
            assert_eq!(std::fs::read(&path).unwrap(), whole, "as if it had never been cut, at {len}");
        }
    }

    #[test]
    fn a_byte_that_changed_is_cut_off_with_what_follows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.partial");
        let mut partial = Partial::open(&path, &header(4)).unwrap();
        let body = partial.body as usize;
        records().iter().for_each(|record| partial.add(record).unwrap());
        drop(partial);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(
            Partial::open(&path, &header(4)).unwrap().counts,
            RowCounts { rows: 4, blank: 1, failed: 1 }
        );
        for at in body..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            std::fs::write(&path, &bytes).unwrap();
            let partial = Partial::open(&path, &header(4)).unwrap();
            let kept = read(&partial);
            assert!(kept.len() < 4 && kept == records()[..kept.len()], "{at}");
        }
    }

    #[test]
    fn what_was_begun_otherwise_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.partial");
        let mut partial = Partial::open(&path, &header(4)).unwrap();
        partial.add(&records()[0]).unwrap();
        partial.flush().unwrap();
        assert!(matches!(Partial::open(&path, &header(4)), Err(PartialError::Busy { .. })), "one writer");
        drop(partial);
        let before = std::fs::read(&path).unwrap();
        let error = Partial::open(&path, &header(8)).unwrap_err().to_string();
        assert!(error.contains("dimensions was 4 and is 8") && error.contains("--restart"), "{error}");
        assert!(!error.contains("model"), "only what differs: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
        std::fs::write(&path, "a file of someone's").unwrap();
        assert!(matches!(Partial::open(&path, &header(4)), Err(PartialError::Foreign { .. })));
        assert!(matches!(Partial::discard(&path), Err(PartialError::Foreign { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"a file of someone's");
        std::fs::write(&path, before).unwrap();
        Partial::discard(&path).unwrap();
        assert!(!path.exists());
        Partial::discard(&path).unwrap();
    }

    #[test]
    fn a_disk_that_is_full_is_said() {
        let path = Path::new("/dev/full");
        if !path.exists() {
            return;
        }
        let file = BufWriter::new(OpenOptions::new().write(true).open(path).unwrap());
        let mut partial = Partial {
            path: path.to_owned(),
            file,
            body: 0,
            counts: RowCounts::default(),
            chain: 0,
            failed: None,
        };
        partial.add(&records()[0]).unwrap();
        let error = partial.flush().unwrap_err().to_string();
        assert!(error.contains("/dev/full") && error.contains("No space left"), "{error}");
    }
}
