//! Opens followed files without waiting. A named pipe in place of a file would block its reader for ever, and the
//! watcher with it.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

/// Opens a regular file, also through a symbolic link. None: it is a pipe, a device or a directory.
///
/// # Errors
/// The operating system's.
pub(crate) fn open(path: &Path) -> io::Result<Option<File>> {
    // Checked before opening, because opening a pipe waits for a writer.
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = File::open(path)?;
    // It may have been replaced since.
    let is_file = file.metadata()?.is_file();
    Ok(is_file.then_some(file))
}
