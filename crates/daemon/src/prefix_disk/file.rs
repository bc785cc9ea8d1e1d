//! File of a block: a header with the block's key, a checksum of header and content, and the content. It gets its
//! final name when it is complete.
//!
//! The checksum detects damage, such as a flipped bit or a part that was never written. It is not cryptographic: an
//! attacker who can write here could compute any digest too. A cryptographic one would take most of the time that a
//! prompt waits for its blocks (0.8 ms of SHA-256 for 1.3 MB, against 0.1 ms).

use std::{
    fs::{self, File, OpenOptions},
    hash::Hasher as _,
    io::{self, Read as _, Write as _},
    path::Path,
    time::SystemTime,
};

use hanzo_engine_runtime::kv::BlockName;
use twox_hash::XxHash64;

use super::Key;

/// Format and version. It is part of [`super::Identity`] too, so blocks of other versions are never looked up.
pub(super) const MAGIC: &[u8; 8] = b"HANZOKV2";
const HEAD_BYTES: usize = 8 + 32 + 16 + 2 + 8;
const CHECK_BYTES: usize = 8;
const ENDING: &str = ".kv";
const UNFINISHED: &str = ".tmp";

/// Result of reading a file.
pub(super) enum FileOutcome {
    /// Complete, with the size of the file in bytes.
    Whole(u64),
    /// The file does not exist or cannot be read now.
    Gone,
    /// The content does not match the name.
    Damaged,
}

/// File name of a block.
pub(super) fn name(name: &BlockName) -> String {
    format!("{}-{}{ENDING}", hex(&name.hash), name.group)
}

/// Block that a file name stands for.
pub(super) fn parse_name(name: &str) -> Option<BlockName> {
    let (hash, group) = name.strip_suffix(ENDING)?.split_once('-')?;
    Some(BlockName { group: group.parse().ok()?, hash: unhex(hash)? })
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Inverse of [`hex`].
pub(super) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |digit: u8| (digit as char).to_digit(16).filter(|_| !digit.is_ascii_uppercase());
    let mut bytes = [0; N];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = (digit(*high)? * 16 + digit(*low)?) as u8;
    }
    Some(bytes)
}

/// Whether the name is that of an unfinished file.
pub(super) fn is_unfinished(name: &str) -> bool {
    name.ends_with(UNFINISHED)
}

/// Size of the file for a block of this many bytes.
pub(super) fn bytes_of(block: usize) -> u64 {
    (HEAD_BYTES + CHECK_BYTES + block) as u64
}

fn head(key: &Key, bytes: usize) -> [u8; HEAD_BYTES] {
    let parts: [&[u8]; 5] = [
        MAGIC,
        key.model.bytes(),
        &key.name.hash,
        &key.name.group.to_le_bytes(),
        &(bytes as u64).to_le_bytes(),
    ];
    let mut head = [0; HEAD_BYTES];
    let mut at = 0;
    for part in parts {
        head[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    head
}

fn check(head: &[u8], content: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hash = XxHash64::with_seed(0);
    hash.write(head);
    hash.write(content);
    hash.finish().to_le_bytes()
}

/// Reads a block into `content`, which is of its size.
pub(super) fn read(path: &Path, key: Key, content: &mut [u8]) -> FileOutcome {
    // Links and special files, such as a pipe that blocks its reader, were not written here.
    match fs::symlink_metadata(path) {
        Err(_) => return FileOutcome::Gone,
        Ok(facts) if !facts.is_file() || facts.len() != bytes_of(content.len()) => {
            return FileOutcome::Damaged;
        }
        Ok(_) => {}
    }
    let mut said = [0; HEAD_BYTES + CHECK_BYTES];
    let read = File::open(path).and_then(|mut file| {
        file.read_exact(&mut said)?;
        file.read_exact(content)?;
        // Records the last use, which the next start sorts by.
        let _ = file.set_modified(SystemTime::now());
        Ok(())
    });
    let (head_said, check_said) = said.split_at(HEAD_BYTES);
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => FileOutcome::Damaged,
        Err(_) => FileOutcome::Gone,
        Ok(()) if head_said == head(&key, content.len()) && check_said == check(head_said, content) => {
            FileOutcome::Whole(bytes_of(content.len()))
        }
        Ok(()) => FileOutcome::Damaged,
    }
}

/// Writes a block under a temporary name and renames it.
///
/// # Errors
/// Errors of the operating system; nothing is left then.
pub(super) fn write(path: &Path, key: Key, content: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension(format!("{}{UNFINISHED}", std::process::id()));
    let head = head(&key, content.len());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // Without fsync: a file cut off by a power failure is detected as damaged.
    let written = options.open(&unfinished).and_then(|mut file| {
        file.write_all(&head)?;
        file.write_all(&check(&head, content))?;
        file.write_all(content)
    });
    let named = written.and_then(|()| fs::rename(&unfinished, path));
    if named.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    named
}
