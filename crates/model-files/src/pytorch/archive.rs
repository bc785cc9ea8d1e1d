//! Zip archives written by torch.save (PKWARE's APPNOTE.TXT): uncompressed files one after the other, and a directory
//! at the end. The directory is read entry by entry and not kept.

use std::ops::Range;

/// Signature of the last record of an archive.
const END: &[u8; 4] = b"PK\x05\x06";
const END_BYTES: usize = 22;
/// Bytes of the longest comment, which follows that record.
const COMMENT_BYTES_MAX: usize = u16::MAX as usize;
/// Signature of the record before it if numbers take 64 bits; it points to the next one.
const LOCATOR: &[u8; 4] = b"PK\x06\x07";
const LOCATOR_BYTES: usize = 20;
const LONG_END: &[u8; 4] = b"PK\x06\x06";
const LONG_END_BYTES: usize = 56;
/// Signature of a directory entry.
const ENTRY: &[u8; 4] = b"PK\x01\x02";
const ENTRY_BYTES: usize = 46;
/// Signature of a file.
const LOCAL: &[u8; 4] = b"PK\x03\x04";
const LOCAL_BYTES: usize = 30;
/// Field of an entry with 64-bit numbers.
const LONG_FIELD: u16 = 1;
/// Flag of an encrypted entry.
const ENCRYPTED: u16 = 1;

/// Directory of an archive.
pub(super) struct Directory<'a> {
    bytes: &'a [u8],
    at: usize,
    left: u64,
}

/// File of an archive.
#[derive(Debug, PartialEq)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    /// Position of its bytes in the archive.
    pub(super) place: Range<usize>,
    /// Whether it is stored uncompressed.
    pub(super) is_stored: bool,
}

impl<'a> Directory<'a> {
    /// Finds the directory of an archive. The error says what is wrong.
    pub(super) fn find(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let first = bytes.len().saturating_sub(END_BYTES + COMMENT_BYTES_MAX);
        let end = (first..=bytes.len().saturating_sub(END_BYTES)).rev().find(|&at| {
            // A comment may contain what looks like a record: the true record's comment ends at the end of the file.
            record::<END_BYTES>(bytes, at, END)
                .is_some_and(|end| at + END_BYTES + usize::from(u16_at(end, 20)) == bytes.len())
        });
        let end = end.ok_or("it has no directory at its end")?;
        let record = record::<END_BYTES>(bytes, end, END).ok_or("it has no directory at its end")?;
        let (mut left, mut at) = (u64::from(u16_at(record, 10)), u64::from(u32_at(record, 16)));
        if let Some(locator) =
            end.checked_sub(LOCATOR_BYTES).and_then(|at| self::record::<LOCATOR_BYTES>(bytes, at, LOCATOR))
        {
            let long = usize::try_from(u64_at(locator, 8)).ok();
            let long = long.and_then(|at| self::record::<LONG_END_BYTES>(bytes, at, LONG_END));
            let long = long.ok_or("its directory is not where it says")?;
            (left, at) = (u64_at(long, 32), u64_at(long, 48));
        }
        let at =
            usize::try_from(at).ok().filter(|&at| at <= end).ok_or("its directory is not where it says")?;
        Ok(Self { bytes, at, left })
    }

    /// Number of files, according to the directory.
    pub(super) fn count(&self) -> u64 {
        self.left
    }

    /// The next file, or none after the last.
    pub(super) fn next(&mut self) -> Result<Option<Entry<'a>>, &'static str> {
        if self.left == 0 {
            return Ok(None);
        }
        let bytes = self.bytes;
        let entry =
            record::<ENTRY_BYTES>(bytes, self.at, ENTRY).ok_or("its directory ends before its last file")?;
        let [name, extra, comment] = [28, 30, 32].map(|at| usize::from(u16_at(entry, at)));
        let name_at = self.at + ENTRY_BYTES;
        let cut = "its directory ends in the middle of a file's name";
        let (name, extra) =
            bytes.get(name_at..name_at + name + extra).map(|fields| fields.split_at(name)).ok_or(cut)?;
        let long = Long::find(extra);
        let (stored, size, at) = (u32_at(entry, 20), u32_at(entry, 24), u32_at(entry, 42));
        // Contains only numbers that do not fit, in this order.
        let mut long = long.iter();
        let mut whole = |short: u32| match short {
            u32::MAX => long.next().ok_or("a file's place is missing in its directory"),
            short => Ok(u64::from(short)),
        };
        let size = whole(size)?;
        whole(stored)?;
        let at = whole(at)?;
        let reaches = "a file in it reaches past its end";
        let place = usize::try_from(at).ok().and_then(|at| {
            let local = record::<LOCAL_BYTES>(bytes, at, LOCAL)?;
            let first = at + LOCAL_BYTES + usize::from(u16_at(local, 26)) + usize::from(u16_at(local, 28));
            Some(first..first.checked_add(usize::try_from(size).ok()?).filter(|&end| end <= bytes.len())?)
        });
        self.at = name_at + name.len() + extra.len() + comment;
        self.left -= 1;
        let is_stored = u16_at(entry, 10) == 0 && u16_at(entry, 8) & ENCRYPTED == 0;
        Ok(Some(Entry { name, place: place.ok_or(reaches)?, is_stored }))
    }
}

/// 64-bit numbers in an entry's fields.
struct Long<'a>(&'a [u8]);

impl<'a> Long<'a> {
    fn find(mut fields: &'a [u8]) -> Self {
        while let Some((head, rest)) = fields.split_first_chunk::<4>() {
            let length = usize::from(u16_at(head, 2)).min(rest.len());
            if u16_at(head, 0) == LONG_FIELD {
                return Self(&rest[..length]);
            }
            fields = &rest[length..];
        }
        Self(&[])
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        self.0.as_chunks::<8>().0.iter().map(|&bytes| u64::from_le_bytes(bytes))
    }
}

/// Record at a position, if it begins with its signature.
fn record<'a, const N: usize>(bytes: &'a [u8], at: usize, signature: &[u8; 4]) -> Option<&'a [u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().filter(|record| record.starts_with(signature))
}

fn u16_at(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([record[at], record[at + 1]])
}

fn u32_at(record: &[u8], at: usize) -> u32 {
    u32::from(u16_at(record, at)) | u32::from(u16_at(record, at + 2)) << 16
}

fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from(u32_at(record, at)) | u64::from(u32_at(record, at + 4)) << 32
}
