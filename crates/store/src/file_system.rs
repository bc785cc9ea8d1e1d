//! File system operations: links, durable renames, and free space.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Makes `to` the same file as `from` by a hard link. If that fails, creates a symbolic link, which is relative
/// because the store may be moved.
pub(crate) fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) => symlink(&way(to, from), to),
    }
}

/// Returns the relative path from the link at `link` to `target`.
pub(crate) fn way(link: &Path, target: &Path) -> PathBuf {
    let folder = link.parent().unwrap_or(link);
    let same = folder.iter().zip(target.iter()).take_while(|(one, other)| one == other).count();
    let up = folder.iter().skip(same).map(|_| std::ffi::OsStr::new(".."));
    up.chain(target.iter().skip(same)).collect()
}

#[cfg(unix)]
pub(crate) fn symlink(from: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(from, to)
}

/// Writes a small file under a name that must be free.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use io::Write as _;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Moves a finished file to its place durably. Keeps the owner, group and permissions of a file that it
/// replaces.
pub(crate) fn publish(from: &Path, to: &Path) -> io::Result<()> {
    File::open(from)?.sync_all()?;
    hanzo_engine_files::rename_over(from, to)?;
    to.parent().map_or(Ok(()), sync_dir)
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Makes the entries of a directory and of everything below it durable.
pub(crate) fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    sync_dir(dir)
}

/// Free bytes for this user on the disk of `dir`.
pub(crate) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Deletes a file. A missing file is no error.
pub(crate) fn delete_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
