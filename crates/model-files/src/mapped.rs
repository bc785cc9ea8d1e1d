//! Bytes of model files: mapped from disk, built into the program, or in memory. This is the only module of the
//! crate with `unsafe`; no other module knows that files can be mapped.

use std::borrow::Cow;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use memmap2::{Mmap, MmapMut};

use crate::regular;

/// Cheaply cloned view of bytes. The bytes live as long as any view of them.
#[derive(Clone)]
pub struct ModelBytes {
    storage: Storage,
    range: Range<usize>, // within the storage
}

#[derive(Clone)]
enum Storage {
    Mapped(Arc<Mmap>),
    /// Anonymous map, so that its memory returns to the system when the last view is dropped.
    Anonymous(Arc<Mmap>),
    Static(&'static [u8]),
    Owned(Arc<[u8]>),
    Rows(Arc<Rows>),
}

/// Produces the bytes of whole rows.
type MakeRows = dyn Fn(Range<usize>, &mut [u8]) + Send + Sync;

/// Rows of equal length that are computed from other bytes when they are read.
struct Rows {
    length: usize,
    row_bytes: usize,
    make: Box<MakeRows>,
    sources: Vec<ModelBytes>,
    /// All rows, kept once a caller has asked for a permanent view.
    kept: OnceLock<Box<[u8]>>,
}

impl Rows {
    /// The bytes of a range, computed anew.
    fn made(&self, range: Range<usize>) -> Vec<u8> {
        let rows = range.start / self.row_bytes..range.end.div_ceil(self.row_bytes);
        let first = range.start - rows.start * self.row_bytes;
        let mut bytes = vec![0; rows.len() * self.row_bytes];
        (self.make)(rows, &mut bytes);
        bytes.truncate(first + range.len());
        bytes.drain(..first);
        bytes
    }
}

impl ModelBytes {
    /// Maps a whole regular file read-only; an empty file gives empty bytes. Truncating a mapped file ends the
    /// process at the next read past its new end. So model files must be replaced by renaming, never rewritten in
    /// place.
    ///
    /// # Errors
    /// The system's, when the file cannot be opened or mapped; one that names what is there where it is no regular
    /// file.
    pub fn map(path: &Path) -> io::Result<Self> {
        let (file, length) = regular::open(path)?;
        if length == 0 {
            return Ok(Self::from_static(&[]));
        }
        // SAFETY: the map is private to this module and handed out only as `&[u8]`, for which any bit pattern
        // is valid. Another process that writes to the file could change bytes under a reader: every reader in
        // this crate copies a number or a string out before it checks it, and no check guards a later re-read
        // (weights are data, all of whose values are valid).
        let map = unsafe { Mmap::map(&file)? };
        let range = 0..map.len();
        Ok(Self { storage: Storage::Mapped(Arc::new(map)), range })
    }

    /// Creates zeroed bytes and lets `fill` write them.
    ///
    /// # Errors
    /// The system's, when it has no memory for them.
    pub fn made(length: usize, fill: impl FnOnce(&mut [u8])) -> io::Result<Self> {
        if length == 0 {
            return Ok(Self::from_static(&[]));
        }
        let mut map = MmapMut::map_anon(length)?;
        fill(&mut map);
        Ok(Self { storage: Storage::Anonymous(Arc::new(map.make_read_only()?)), range: 0..length })
    }

    /// Creates bytes of `rows` rows that `make` computes from `sources` whenever they are read
    /// ([`ModelBytes::read`]). `make` gets a range of rows and zeroed bytes to fill.
    pub fn of_rows(
        rows: usize,
        row_bytes: usize,
        sources: Vec<ModelBytes>,
        make: impl Fn(Range<usize>, &mut [u8]) + Send + Sync + 'static,
    ) -> Self {
        let (length, make) = (rows * row_bytes, Box::new(make));
        let rows = Rows { length, row_bytes: row_bytes.max(1), make, sources, kept: OnceLock::new() };
        Self { storage: Storage::Rows(Arc::new(rows)), range: 0..length }
    }

    /// Number of bytes; computes no rows.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// The bytes, for a single use. Rows that are computed when read are not kept, unlike with a view of them.
    pub fn read(&self) -> Cow<'_, [u8]> {
        match &self.storage {
            Storage::Rows(rows) if rows.kept.get().is_none() => Cow::Owned(rows.made(self.range.clone())),
            _ => Cow::Borrowed(self),
        }
    }

    /// Whether both are views of the same bytes of the same storage.
    pub fn is_same_view(&self, other: &ModelBytes) -> bool {
        let same = match (&self.storage, &other.storage) {
            (Storage::Mapped(one), Storage::Mapped(other))
            | (Storage::Anonymous(one), Storage::Anonymous(other)) => Arc::ptr_eq(one, other),
            (Storage::Owned(one), Storage::Owned(other)) => Arc::ptr_eq(one, other),
            (Storage::Rows(one), Storage::Rows(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        same && self.range == other.range
    }

    /// Bytes built into the program.
    pub fn from_static(bytes: &'static [u8]) -> Self {
        Self { storage: Storage::Static(bytes), range: 0..bytes.len() }
    }

    /// Part of these bytes, sharing them; `None` if `range` is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Self { storage: self.storage.clone(), range: start..start + range.len() })
    }

    /// Tells the system that these bytes will not be read again soon: the pages of a mapped file leave this
    /// process's memory. A later read fetches them from the file.
    pub fn release(&self) {
        if let Storage::Rows(rows) = &self.storage {
            rows.sources.iter().for_each(ModelBytes::release);
        }
        #[cfg(unix)]
        if let Storage::Mapped(map) = &self.storage {
            // SAFETY: DONTNEED is unsafe for private writable memory, whose content it drops. This map is a
            // read-only view of a file: dropped pages, those of neighbours on the same page included, come back
            // from the file with the same content. The range is inside the map by construction.
            let advised = unsafe {
                map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    self.range.start,
                    self.range.len(),
                )
            };
            // If the advice is not taken, that costs memory only.
            drop(advised);
        }
    }
}

impl From<Vec<u8>> for ModelBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { storage: Storage::Owned(bytes.into()), range }
    }
}

impl Deref for ModelBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.storage {
            Storage::Mapped(map) | Storage::Anonymous(map) => map,
            Storage::Static(bytes) => bytes,
            Storage::Owned(bytes) => bytes,
            Storage::Rows(rows) => rows.kept.get_or_init(|| rows.made(0..rows.length).into()),
        };
        &all[self.range.clone()]
    }
}

impl std::fmt::Debug for ModelBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ModelBytes({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_reads_the_same_before_and_after_release() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weights");
        let content: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let bytes = ModelBytes::map(&path).unwrap();
        assert_eq!(&bytes[..], &content[..]);
        let middle = bytes.slice(4_097..50_001).unwrap();
        middle.release();
        assert_eq!(&middle[..], &content[4_097..50_001]);
        assert_eq!(&bytes[..], &content[..]);
    }

    #[test]
    fn made_bytes_stay_after_release() {
        let bytes = ModelBytes::made(10_000, |bytes| bytes[5_000] = 7).unwrap();
        bytes.release();
        assert_eq!((bytes.len(), bytes[4_999], bytes[5_000]), (10_000, 0, 7));
        assert!(ModelBytes::made(0, |_| panic!("there is nothing to fill")).unwrap().is_empty());
    }

    #[test]
    fn rows_are_made_when_they_are_read() {
        let source = ModelBytes::from((0..12).collect::<Vec<u8>>());
        let from = source.clone();
        let bytes = ModelBytes::of_rows(4, 3, vec![source], move |rows, out| {
            assert_eq!(out.len(), 3 * rows.len());
            let all = rows.flat_map(|row| from[3 * row..3 * row + 3].iter().copied());
            out.iter_mut().zip(all).for_each(|(out, byte)| *out = 10 * byte);
        });
        assert_eq!(bytes.len(), 12);
        assert_eq!(&bytes.slice(3..9).unwrap().read()[..], [30, 40, 50, 60, 70, 80]);
        assert_eq!(&bytes.slice(4..8).unwrap().read()[..], [40, 50, 60, 70]);
        assert!(matches!(bytes.read(), Cow::Owned(_)));
        assert_eq!((bytes[0], bytes[11]), (0, 110));
        assert!(matches!(bytes.read(), Cow::Borrowed(_)));
        bytes.release();
        assert_eq!(bytes[11], 110);
    }

    #[test]
    fn slices_stay_inside() {
        let bytes = ModelBytes::from(vec![1, 2, 3, 4]);
        let part = bytes.slice(1..3).unwrap();
        assert_eq!(&part[..], &[2, 3]);
        assert_eq!(&part.slice(1..2).unwrap()[..], &[3]);
        assert!(part.slice(1..3).is_none());
        assert!(part.slice(0..0).unwrap().is_empty());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = bytes.slice(3..1);
        assert!(reversed.is_none());
    }

    #[test]
    fn an_empty_file_and_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("empty");
        std::fs::write(&path, []).unwrap();
        assert!(ModelBytes::map(&path).unwrap().is_empty());
        assert!(ModelBytes::map(directory.path()).is_err());
    }
}
