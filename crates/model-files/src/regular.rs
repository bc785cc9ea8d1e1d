//! Opens a model's files without waiting: regular files only. A pipe, a socket or a device in place of a file could
//! block its reader for ever, or never end.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file, also through a symbolic link, and returns its length in bytes.
///
/// # Errors
/// The system's error, or an error that names the kind of file if it is not regular.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    // Check before opening too: opening some devices has effects.
    check(&std::fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    // The file may have been replaced since: opening a pipe would wait for its writer.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    let found = file.metadata()?;
    check(&found)?;
    Ok((file, found.len()))
}

/// Reads a whole regular file of at most `bytes_max` bytes; `None` if it is longer.
///
/// # Errors
/// As for [`open`].
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let (file, length) = open(path)?;
    if length > bytes_max {
        return Ok(None);
    }
    // The stated length may be wrong: files of `/proc` state 0.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0).saturating_add(1));
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= bytes_max))
}

fn check(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    if found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("is {}; a model's files are regular files, or links to some", kind(found)),
    ))
}

#[cfg(unix)]
fn kind(found: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let kind = found.file_type();
    if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "no file"
    }
}

#[cfg(not(unix))]
fn kind(_: &Metadata) -> &'static str {
    "no file"
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;

    fn refusal(path: &Path) -> String {
        let read = read(path, 1 << 20).unwrap_err().to_string();
        assert_eq!(open(path).unwrap_err().to_string(), read);
        assert_eq!(crate::mapped::ModelBytes::map(path).unwrap_err().to_string(), read);
        read
    }

    #[test]
    fn what_is_no_file_is_named_and_nothing_waits() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
        assert!(made.success());
        let _listener = UnixListener::bind(at("socket")).unwrap();
        symlink("/dev/zero", at("zeros")).unwrap();
        symlink(at("pipe"), at("link")).unwrap();
        assert!(refusal(&at("pipe")).starts_with("is a named pipe"));
        assert!(refusal(&at("link")).starts_with("is a named pipe"));
        assert!(refusal(&at("socket")).starts_with("is a socket"));
        assert!(refusal(&at("zeros")).starts_with("is a device"));
        assert!(refusal(directory.path()).starts_with("is a directory"));
    }

    #[test]
    fn a_link_to_a_file_is_read_and_no_byte_more_than_allowed() {
        let directory = tempfile::tempdir().unwrap();
        let (blob, link) = (directory.path().join("blob"), directory.path().join("config.json"));
        std::fs::write(&blob, b"12345").unwrap();
        symlink(&blob, &link).unwrap();
        assert_eq!(read(&link, 5).unwrap().as_deref(), Some(&b"12345"[..]));
        assert_eq!(read(&link, 4).unwrap(), None);
        // Its stated length is 0.
        if Path::new("/proc/self/status").exists() {
            assert_eq!(read(Path::new("/proc/self/status"), 10).unwrap(), None);
        }
    }
}
