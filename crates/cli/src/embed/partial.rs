//! What is done of a bulk job, on disk: `OUTPUT.partial`. It is a line that says what it is, a header (JSON: the model,
//! the options and the input), then a record for each item in the input's order. Header and records are frames with a
//! length and a checksum, so that whatever ends the process leaves whole records and at most one torn one, which is cut
//! off when the job goes on. Integers are little-endian.

use crate::error::PartialError;
use crate::input::short;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"hanzo-engine embed, partial result 1\n";
/// Length (u32) and checksum (u64) before a frame's bytes.
const FRAME_HEAD: usize = 12;
/// Of a frame's bytes: a line of input and a vector fit well.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// What becomes of one item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Of its line, from 1.
    pub(crate) number: u64,
    /// Stands for the input up to and with this item.
    pub(crate) chain: u64,
    /// What the output repeats of the item.
    pub(crate) carried: Vec<u8>,
    pub(crate) outcome: Outcome,
}

/// See [`Record`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// (dimensions) f32, little-endian.
    Vector(Vec<u8>),
    /// An empty line of text has no vector.
    Blank,
    /// Why there is none.
    Failed(String),
}

/// A partial result that this process alone writes.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    file: BufWriter<File>,
    /// Where the records begin.
    body: u64,
    /// Of the records it has.
    pub(crate) counts: RowCounts,
    /// Of the last record.
    pub(crate) chain: u64,
    /// The first item that failed: its number, and why.
    pub(crate) failed: Option<(u64, String)>,
}

/// How many records there are, and how many of them have no vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowCounts {
    pub(crate) rows: u64,
    pub(crate) blank: u64,
    pub(crate) failed: u64,
}

impl RowCounts {
    /// With one more.
    pub(crate) fn count(&mut self, outcome: &Outcome) {
        self.rows += 1;
        match outcome {
            Outcome::Vector(_) => {}
            Outcome::Blank => self.blank += 1,
            Outcome::Failed(_) => self.failed += 1,
        }
    }
}

impl Partial {
    /// Opens what `path` has, which must have begun with `header`, and cuts off what is torn; or begins it.
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

    /// Removes what is at `path`, if it is a partial result that nobody writes.
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

    /// A file that is new, or ended within its header.
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

    /// Finds the end of what is whole, and cuts there.
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
        if let (Outcome::Failed(why), None) = (&record.outcome, &self.failed) {
            self.failed = Some((record.number, why.clone()));
        }
    }

    /// Adds a record; it is kept once [`Partial::flush`] returns.
    pub(crate) fn add(&mut self, record: &Record) -> Result<(), PartialError> {
        self.frame(&record.encode())?;
        self.count(record);
        Ok(())
    }

    /// Hands what was added to the system: whatever happens to this process then, it is kept.
    pub(crate) fn flush(&mut self) -> Result<(), PartialError> {
        self.file.flush().map_err(|error| self.io(error))
    }

    /// Reads the records again from the first.
    pub(crate) fn records(&self) -> Result<Records, PartialError> {
        let file = File::open(&self.path).map_err(|error| self.io(error))?;
        let mut file = BufReader::with_capacity(1 << 18, file);
        file.seek(SeekFrom::Start(self.body)).map_err(|error| self.io(error))?;
        Ok(Records { path: self.path.clone(), file })
    }

    /// Removes it: its result is elsewhere, or there is none.
    pub(crate) fn remove(self) -> Result<(), PartialError> {
        std::fs::remove_file(&self.path).map_err(|error| self.io(error))
    }

    /// Where it is.
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

/// The records of a partial result, in order.
pub(crate) struct Records {
    path: PathBuf,
    file: BufReader<File>,
}

impl Records {
    /// The next one.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, PartialError> {
        let bytes = frame(&mut self.file);
        let bytes = bytes.map_err(|source| PartialError::Io { path: self.path.clone(), source })?;
        Ok(bytes.as_deref().and_then(Record::decode))
    }
}

fn lock(file: &File, path: &Path) -> Result<(), PartialError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(PartialError::Busy { path: path.to_owned() }),
        // Where the file system knows no locks there is nobody to ask.
        Err(TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => {
            Err(PartialError::Io { path: path.to_owned(), source: error })
        }
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// The next whole frame's bytes; none where the file ends, or ends being what it should be.
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
    /// Kind, number, chain, length of what is carried, what is carried, then the vector or the message.
    fn encode(&self) -> Vec<u8> {
        let (kind, rest) = match &self.outcome {
            Outcome::Vector(vector) => (VECTOR, vector.as_slice()),
            Outcome::Blank => (BLANK, &[][..]),
            Outcome::Failed(why) => (FAILED, why.as_bytes()),
        };
        let len = (self.carried.len() as u64).to_le_bytes();
        [&[kind], &self.number.to_le_bytes()[..], &self.chain.to_le_bytes(), &len, &self.carried, rest]
            .concat()
    }

    /// From the bytes of a frame; none if they are no record.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (number, rest) = integer(rest)?;
        let (chain, rest) = integer(rest)?;
        let (len, rest) = integer(rest)?;
        let (carried, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        let outcome = match *kind {
            VECTOR => Outcome::Vector(rest.to_vec()),
            BLANK => Outcome::Blank,
            FAILED => Outcome::Failed(String::from_utf8(rest.to_vec()).ok()?),
            _ => return None,
        };
        Some(Self { number, chain, carried: carried.to_vec(), outcome })
    }
}

fn integer(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (bytes, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*bytes), rest))
}

/// Which entries differ, for people; none if none does.
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
            record(1, "one", Outcome::Vector(vec![1, 2, 3, 4])),
            record(2, "", Outcome::Blank),
            record(4, "{}", Outcome::Failed("it has none".into())),
            record(5, "five", Outcome::Vector(vec![9; 16])),
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
