//! Append-only ledger, from which the database can be rebuilt. It has one line for each change of models and
//! aliases, which is on disk before the database is changed. Each line has its own digest, so damage costs only
//! the lines it touches. A last line without its newline was cut off by a crash and was never acknowledged.
//!
//! Format of a line: `<digest> <number> <kind> <JSON>`. The digest is the first 16 hexadecimal digits of the
//! SHA-256 of the text after it. Numbers count up by one.

use crate::digest::sha256_of;
use crate::file_system;
use crate::limits::{LEDGER_SLACK_BYTES, RECORD_BYTES_MAX};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Maximum bytes of a line: a record and the fields before it.
const LINE_BYTES_MAX: u64 = RECORD_BYTES_MAX as u64 + 1_024;
const DIGEST_DIGITS: usize = 16;

/// Change recorded in the ledger. Keys are folded names, values are encoded records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LedgerEntry<'a> {
    /// Schema version of the lines that follow.
    Schema(u32),
    Model(&'a [u8]),
    Gone(&'a str),
    Alias(&'a [u8]),
    Unalias(&'a str),
}

/// Models and aliases by folded name, encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) models: BTreeMap<String, Vec<u8>>,
    pub(crate) aliases: BTreeMap<String, Vec<u8>>,
}

/// Result of reading a ledger.
#[derive(Debug, Default)]
pub(crate) struct LedgerReplay {
    pub(crate) contents: Contents,
    /// Schema version of the records.
    pub(crate) version: u32,
    /// Number of the last line.
    pub(crate) last: u64,
    /// Key that the last line changed.
    pub(crate) last_key: Option<String>,
    /// Damaged lines: their apparent subject, and the reason.
    pub(crate) damaged: Vec<(String, String)>,
    /// Bytes of complete lines.
    bytes: u64,
}

/// Open ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    file: File,
    /// Bytes of complete lines.
    bytes: u64,
    /// Size in bytes when it was last compacted.
    bytes_anew: u64,
    last: u64,
}

/// Position in a ledger before a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    bytes: u64,
    last: u64,
}

/// Reads the ledger at `path`. None if it does not exist.
pub(crate) fn read(path: &Path) -> io::Result<Option<LedgerReplay>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    tell(BufReader::new(file)).map(Some)
}

/// Reads a ledger from start to end.
pub(crate) fn tell(mut reader: impl BufRead) -> io::Result<LedgerReplay> {
    let mut told = LedgerReplay::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(told);
        }
        let whole = line.pop_if(|last| *last == b'\n').is_some();
        match parse(&line) {
            _ if !whole && line.len() as u64 + 1 < LINE_BYTES_MAX => return Ok(told),
            Ok((number, _)) if told.last > 0 && number != told.last + 1 => {
                let lines = format!("lines {} to {}", told.last + 1, number.saturating_sub(1));
                told.damaged.push((lines, "they are not there".to_owned()));
                told.take(number, &line);
            }
            Ok((number, _)) => told.take(number, &line),
            Err(why) => {
                let what = seems(&line).unwrap_or_else(|| format!("the line after {}", told.last));
                told.damaged.push((what, why.to_owned()));
                // Count the damaged line too, so that numbering stays in step.
                told.last += u64::from(whole && told.last > 0);
            }
        }
        told.bytes += line.len() as u64 + u64::from(whole);
    }
}

impl LedgerReplay {
    fn take(&mut self, number: u64, line: &[u8]) {
        let Ok((_, entry)) = parse(line) else { return };
        self.last = number;
        let name = |encoded: &[u8], field: &str| {
            let value: Option<serde_json::Value> = serde_json::from_slice(encoded).ok();
            value.and_then(|value| value[field].as_str().map(crate::name::fold)).unwrap_or_default()
        };
        let contents = &mut self.contents;
        let key = match entry {
            LedgerEntry::Schema(version) => {
                self.version = version;
                return;
            }
            LedgerEntry::Model(encoded) => {
                let key = name(encoded, "name");
                contents.models.insert(key.clone(), encoded.to_vec());
                key
            }
            LedgerEntry::Gone(key) => {
                contents.models.remove(key);
                key.to_owned()
            }
            LedgerEntry::Alias(encoded) => {
                let key = name(encoded, "alias");
                contents.aliases.insert(key.clone(), encoded.to_vec());
                key
            }
            LedgerEntry::Unalias(key) => {
                contents.aliases.remove(key);
                key.to_owned()
            }
        };
        self.last_key = Some(key);
    }
}

impl Ledger {
    /// Opens a ledger that was read before, to append after its last complete line.
    pub(crate) fn open(path: &Path, told: &LedgerReplay) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).open(path)?;
        if file.metadata()?.len() > told.bytes {
            // Cut the incomplete line off, or the next line would be joined to it.
            file.set_len(told.bytes)?;
        }
        let (bytes, last) = (told.bytes, told.last);
        Ok(Self { path: path.to_owned(), file, bytes, bytes_anew: live_bytes(&told.contents), last })
    }

    /// Replaces the ledger at `path` by one with exactly these contents. Line numbers go on from `after`.
    pub(crate) fn write(path: &Path, version: u32, contents: &Contents, after: u64) -> io::Result<Self> {
        let new = path.with_extension("new");
        let mut last = after;
        let mut text = Vec::new();
        let mut add = |entry: LedgerEntry<'_>| {
            last += 1;
            text.extend_from_slice(&line(last, &entry));
        };
        add(LedgerEntry::Schema(version));
        contents.models.values().for_each(|encoded| add(LedgerEntry::Model(encoded)));
        contents.aliases.values().for_each(|encoded| add(LedgerEntry::Alias(encoded)));
        let mut file = File::create(&new)?;
        file.write_all(&text)?;
        drop(file);
        file_system::publish(&new, path)?;
        let file = OpenOptions::new().append(true).open(path)?;
        let bytes = text.len() as u64;
        Ok(Self { path: path.to_owned(), file, bytes, bytes_anew: bytes, last })
    }

    /// Number of the last line.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Returns the current position, for [`Ledger::back_to`].
    pub(crate) fn mark(&self) -> Mark {
        Mark { bytes: self.bytes, last: self.last }
    }

    /// Appends a change durably and returns its line number. A failed append leaves nothing behind.
    pub(crate) fn append(&mut self, entry: &LedgerEntry<'_>) -> io::Result<u64> {
        let line = line(self.last + 1, entry);
        if let Err(error) = self.file.write_all(&line).and_then(|()| self.file.sync_data()) {
            self.back_to(self.mark());
            return Err(error);
        }
        self.bytes += line.len() as u64;
        self.last += 1;
        Ok(self.last)
    }

    /// Removes what was appended since `mark`, because the database refused it.
    pub(crate) fn back_to(&mut self, mark: Mark) {
        (self.bytes, self.last) = (mark.bytes, mark.last);
        if let Err(error) = self.file.set_len(mark.bytes).and_then(|()| self.file.sync_data()) {
            tracing::warn!(path = %self.path.display(), %error, "a change that failed stays in the ledger");
        }
    }

    /// Returns true if the ledger has grown enough to be worth compacting.
    pub(crate) fn is_long(&self) -> bool {
        self.bytes > 2 * self.bytes_anew + LEDGER_SLACK_BYTES
    }
}

fn live_bytes(contents: &Contents) -> u64 {
    contents.models.values().chain(contents.aliases.values()).map(|encoded| encoded.len() as u64 + 48).sum()
}

fn line(number: u64, entry: &LedgerEntry<'_>) -> Vec<u8> {
    let text = |text: &str| serde_json::Value::from(text).to_string().into_bytes();
    let (kind, json) = match entry {
        LedgerEntry::Schema(version) => ("schema", version.to_string().into_bytes()),
        LedgerEntry::Model(encoded) => ("model", encoded.to_vec()),
        LedgerEntry::Gone(key) => ("gone", text(key)),
        LedgerEntry::Alias(encoded) => ("alias", encoded.to_vec()),
        LedgerEntry::Unalias(key) => ("unalias", text(key)),
    };
    let mut body = format!("{number} {kind} ").into_bytes();
    body.extend_from_slice(&json);
    sealed(&body)
}

/// Builds a line from its body: the digest, a space, the body and a newline.
pub(crate) fn sealed(body: &[u8]) -> Vec<u8> {
    let mut line = sha256_of(body).as_bytes()[..DIGEST_DIGITS].to_vec();
    line.push(b' ');
    line.extend_from_slice(body);
    line.push(b'\n');
    line
}

fn parse(line: &[u8]) -> Result<(u64, LedgerEntry<'_>), &'static str> {
    let (digest, body) = line.split_at_checked(DIGEST_DIGITS).ok_or("it is too short")?;
    let body = body.strip_prefix(b" ").ok_or("it has no digest")?;
    if sha256_of(body).as_bytes()[..DIGEST_DIGITS] != *digest {
        return Err("its digest is wrong");
    }
    let mut parts = body.splitn(3, |byte| *byte == b' ');
    let (number, kind, json) = (parts.next(), parts.next(), parts.next());
    let number = number.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    let (Some(number), Some(kind), Some(json)) = (number, kind, json) else { return Err("it has no parts") };
    let entry = match kind {
        b"schema" => {
            LedgerEntry::Schema(serde_json::from_slice(json).map_err(|_| "its version is no number")?)
        }
        b"model" => LedgerEntry::Model(json),
        b"alias" => LedgerEntry::Alias(json),
        b"gone" => LedgerEntry::Gone(plain(json)?),
        b"unalias" => LedgerEntry::Unalias(plain(json)?),
        _ => return Err("it is of no known kind"),
    };
    Ok((number, entry))
}

/// Reads a quoted name. Names contain nothing that JSON escapes, see [`crate::check_name`].
fn plain(json: &[u8]) -> Result<&str, &'static str> {
    let text = std::str::from_utf8(json).ok().and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
    text.ok_or("its name is no text")
}

/// Guesses the name of the model or alias in a damaged line.
fn seems(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let named = |field: &str| {
        let after = text.split_once(&format!("\"{field}\":\""))?.1;
        let name = after.split('"').next()?;
        crate::check_name(name).is_ok().then(|| name.to_owned())
    };
    named("name").or_else(|| named("alias"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> Vec<u8> {
        format!("{{\"name\":\"{name}\",\"x\":1}}").into_bytes()
    }

    fn written(path: &Path) -> Ledger {
        let mut ledger = Ledger::write(path, 3, &Contents::default(), 0).unwrap();
        for number in 0..10 {
            ledger.append(&LedgerEntry::Model(&model(&format!("M{number}")))).unwrap();
        }
        ledger.append(&LedgerEntry::Gone("m3")).unwrap();
        ledger.append(&LedgerEntry::Alias(b"{\"alias\":\"Best\",\"target\":\"M1\"}")).unwrap();
        ledger
    }

    #[test]
    fn what_is_written_is_read_and_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        assert!(read(&path).unwrap().is_none());
        drop(written(&path));
        let told = read(&path).unwrap().unwrap();
        assert_eq!((told.contents.models.len(), told.version, told.last), (9, 3, 13));
        assert_eq!((told.last_key.as_deref(), told.contents.aliases.len()), (Some("best"), 1));
        assert!(told.damaged.is_empty());
        // A line that is cut off is ignored, and lines appended later are read.
        let whole = std::fs::read(&path).unwrap();
        for cut in [whole.len() - 1, whole.len() - 20] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let told = read(&path).unwrap().unwrap();
            assert!(told.damaged.is_empty() && told.contents.aliases.is_empty() && told.last == 12);
            let mut ledger = Ledger::open(&path, &told).unwrap();
            let mark = ledger.mark();
            ledger.append(&LedgerEntry::Gone("m9")).unwrap();
            ledger.back_to(mark);
            assert_eq!(ledger.append(&LedgerEntry::Unalias("best")).unwrap(), 13);
            let told = read(&path).unwrap().unwrap();
            assert_eq!((told.contents.models.len(), told.damaged.len(), told.last), (9, 0, 13));
        }
    }

    /// Changes each byte in turn. Each change costs one line, which is reported by name if still legible, never
    /// by another line's name.
    #[test]
    fn another_byte_costs_its_own_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        drop(written(&path));
        let whole = std::fs::read(&path).unwrap();
        let before = read(&path).unwrap().unwrap().contents;
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x15;
            std::fs::write(&path, &bytes).unwrap();
            let told = read(&path).unwrap().unwrap();
            let last_end = at + 1 == whole.len();
            assert!(!told.damaged.is_empty() || last_end, "byte {at}");
            let kept =
                told.contents.models.iter().filter(|(key, value)| before.models.get(*key) == Some(value));
            assert!(kept.count() >= 7, "byte {at}: {:?}", told.contents.models.keys());
            for (key, value) in &told.contents.models {
                assert!(before.models.get(key) == Some(value) || key == "m3", "byte {at} made {key}");
            }
        }
    }
}
