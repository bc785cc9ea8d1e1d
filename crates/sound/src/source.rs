//! Source of a sound's bytes: a reader that is read once, in order. A container whose index may be at its end
//! is read completely first, within the limit. All others are decoded as they arrive.

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use symphonia::core::io::{MediaSource, ReadOnlySource};

use crate::error::SoundError;

/// Number of first bytes that identify a container.
const HEAD_BYTES: usize = 12;

/// Reader that fails if there are more bytes than allowed.
struct BoundedReader<R> {
    inner: R,
    left: u64,
    over: Over,
}

/// Error of a bounded reader with too many bytes. It is found again within any error that wraps it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Over(pub(crate) u64);

impl std::fmt::Display for Over {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "more than {} bytes", self.0)
    }
}

impl std::error::Error for Over {}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            let mut one = [0];
            return match self.inner.read(&mut one)? {
                0 => Ok(0),
                _ => Err(io::Error::other(self.over)),
            };
        }
        let room = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..room])?;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Bytes of a sound, and its first bytes.
pub(crate) struct SoundSource {
    pub(crate) head: Vec<u8>,
    pub(crate) media: Box<dyn MediaSource>,
}

/// Reads at most `bytes_max` bytes of `reader`.
pub(crate) fn open<R: Read + Send + Sync + 'static>(
    reader: R,
    bytes_max: u64,
) -> Result<SoundSource, SoundError> {
    let mut reader = BoundedReader { inner: reader, left: bytes_max, over: Over(bytes_max) };
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&mut reader).take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(|error| failed(error, bytes_max))?;
    if head.is_empty() {
        return Err(SoundError::Empty);
    }
    let media: Box<dyn MediaSource> = if index_may_be_last(&head) {
        let mut whole = head.clone();
        reader.read_to_end(&mut whole).map_err(|error| failed(error, bytes_max))?;
        Box::new(MemorySource(Cursor::new(whole)))
    } else {
        Box::new(ReadOnlySource::new(Cursor::new(head.clone()).chain(reader)))
    };
    Ok(SoundSource { head, media })
}

/// Converts a reader's error: too many bytes, or the original error.
pub(crate) fn failed(error: io::Error, bytes_max: u64) -> SoundError {
    match error.get_ref().is_some_and(|inner| inner.is::<Over>()) {
        true => SoundError::TooManyBytes { max: bytes_max },
        false => SoundError::Read(error),
    }
}

/// MP4: phones write the index after the sound.
fn index_may_be_last(head: &[u8]) -> bool {
    head.get(4..8).is_some_and(|kind| {
        [b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"].iter().any(|known| kind == *known)
    })
}

/// Bytes that are all in memory.
struct MemorySource(Cursor<Vec<u8>>);

impl Read for MemorySource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Seek for MemorySource {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl MediaSource for MemorySource {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.0.get_ref().len() as u64)
    }
}
