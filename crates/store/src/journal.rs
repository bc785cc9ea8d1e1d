//! Journal of a part file: the ranges that are on disk already. A header line identifies the file. One line
//! follows for each finished range. A last line without its newline was cut off by a crash and is ignored.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// Identity of the file that the ranges belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// URL without its query.
    pub(crate) url: String,
    /// Digest promised by the source.
    pub(crate) digest: Option<String>,
    /// Length of the file in bytes.
    pub(crate) total: u64,
    /// Entity tag of the server's version of the file.
    pub(crate) etag: Option<String>,
}

/// Open journal.
pub(crate) struct Journal {
    file: File,
    pub(crate) header: Header,
    pub(crate) done: Ranges,
}

impl Journal {
    /// Reads the journal at `path`. None if it does not exist or is no journal.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = match OpenOptions::new().read(true).append(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut text = String::new();
        if (&file).take(JOURNAL_BYTES_MAX).read_to_string(&mut text).is_err() {
            return Ok(None);
        }
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines();
        let header: Option<Header> = lines.next().and_then(|line| serde_json::from_str(line).ok());
        let Some(header) = header else { return Ok(None) };
        let mut done = Ranges::default();
        for line in lines {
            let range =
                line.split_once(' ').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
            match range {
                Some((from, to)) if from < to && to <= header.total => done.add(from, to),
                _ => return Ok(None),
            }
        }
        if whole.len() + 1 < text.len() {
            // Cut the incomplete line off, or the next line would be joined to it.
            file.set_len(whole.len() as u64 + 1)?;
        }
        Ok(Some(Self { file, header, done }))
    }

    /// Starts a journal at `path` and replaces an existing one.
    pub(crate) fn create(path: &Path, header: Header) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(path)?;
        let mut line = serde_json::to_string(&header)?;
        line.push('\n');
        file.write_all(line.as_bytes())?;
        drop(file);
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(Self { file, header, done: Ranges::default() })
    }

    /// Notes that the bytes `from..to` are written.
    pub(crate) fn note(&mut self, from: u64, to: u64) -> io::Result<()> {
        self.file.write_all(format!("{from} {to}\n").as_bytes())?;
        self.done.add(from, to);
        Ok(())
    }
}

/// Byte ranges, each half-open, in order and not touching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub(crate) fn add(&mut self, from: u64, to: u64) {
        let first = self.0.partition_point(|range| range.1 < from);
        let last = self.0.partition_point(|range| range.0 <= to);
        let merged = self.0[first..last]
            .iter()
            .fold((from, to), |all, range| (all.0.min(range.0), all.1.max(range.1)));
        self.0.splice(first..last, [merged]);
    }

    /// Number of bytes from the start without a gap.
    pub(crate) fn prefix(&self) -> u64 {
        self.0.first().filter(|range| range.0 == 0).map_or(0, |range| range.1)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.1 - range.0).sum()
    }

    /// Returns the first gap at or after `from`, cut at `to`.
    pub(crate) fn gap(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let mut from = from;
        for range in &self.0 {
            if range.0 > from {
                return (from < to).then(|| (from, range.0.min(to)));
            }
            from = from.max(range.1);
        }
        (from < to).then_some((from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_have_gaps() {
        let mut ranges = Ranges::default();
        assert_eq!((ranges.prefix(), ranges.gap(0, 10)), (0, Some((0, 10))));
        ranges.add(4, 6);
        ranges.add(8, 9);
        assert_eq!(ranges.gap(0, 10), Some((0, 4)));
        assert_eq!(ranges.gap(4, 10), Some((6, 8)));
        assert_eq!(ranges.gap(8, 10), Some((9, 10)));
        assert_eq!(ranges.gap(8, 9), None);
        ranges.add(0, 4);
        assert_eq!((ranges.prefix(), ranges.bytes()), (6, 7));
        ranges.add(5, 12);
        assert_eq!(ranges, Ranges(vec![(0, 12)]));
    }

    #[test]
    fn a_journal_is_read_again_whatever_was_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let header = Header { url: "u".into(), digest: None, total: 100, etag: Some("e".into()) };
        let mut journal = Journal::create(&path, header.clone()).unwrap();
        journal.note(0, 10).unwrap();
        journal.note(50, 60).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let Some(mut read) = Journal::open(&path).unwrap() else {
                assert!(cut <= first, "{cut}");
                continue;
            };
            assert_eq!(read.header, header);
            assert!(read.done.bytes() <= 20 && (cut < whole.len() || read.done.bytes() == 20));
            let before = read.done.bytes();
            read.note(90, 95).unwrap();
            assert_eq!(Journal::open(&path).unwrap().unwrap().done.bytes(), before + 5, "cut at {cut}");
        }
        std::fs::write(&path, [&whole[..], b"0 101\n"].concat()).unwrap();
        assert!(Journal::open(&path).unwrap().is_none(), "a range beyond the file is no range of it");
    }
}
