//! Stored responses as files of a directory, one each. A file gets its name when it is complete, and contains a
//! digest of its content. A damaged file counts as missing and is removed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::stored::{RESPONSE, StoredResponse, is_id};
use crate::{error::GatewayError, request_id::random_id};

/// Directory of responses.
#[derive(Debug)]
pub(super) struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// Opens the directory, and creates it if it is missing. Also returns its responses with their sizes, the
    /// least recently used first.
    pub(super) fn open(dir: PathBuf) -> Result<(Disk, Vec<(String, usize)>), GatewayError> {
        let failed = |error: io::Error| {
            GatewayError::Config(format!(
                "responses_dir: {}: {error}; name a directory that this program may write to",
                dir.display()
            ))
        };
        made(&dir).map_err(failed)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(RESPONSE) && name.ends_with(".tmp") {
                // Left by a process that ended while writing.
                let _ = fs::remove_file(entry.path());
            }
            let Some(id) = name.strip_suffix(".json").filter(|id| is_id(id)) else { continue };
            let Ok(metadata) = entry.metadata() else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            files.push((used, id.to_owned(), usize::try_from(metadata.len()).unwrap_or(usize::MAX)));
        }
        files.sort();
        Ok((Disk { dir }, files.into_iter().map(|(_, id, bytes)| (id, bytes)).collect()))
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// Writes a response.
    pub(super) fn write(&self, id: &str, stored: &StoredResponse) -> io::Result<()> {
        let half = self.dir.join(format!("{id}-{}.tmp", &random_id()[..8]));
        let written = private(&half).and_then(|mut file| file.write_all(&stored.to_file()));
        let written = written.and_then(|()| hanzo_engine_files::rename_over(&half, &self.path(id)));
        if written.is_err() {
            let _ = fs::remove_file(&half);
        }
        written
    }

    /// Size of the file of that id; 0 if there is none.
    pub(super) fn bytes(&self, id: &str) -> usize {
        fs::metadata(self.path(id)).map_or(0, |file| usize::try_from(file.len()).unwrap_or(usize::MAX))
    }

    /// Reads the response of that id, and marks it as used.
    pub(super) fn read(&self, id: &str) -> Option<StoredResponse> {
        let bytes = fs::read(self.path(id)).ok()?;
        let stored = StoredResponse::of_file(bytes);
        if stored.is_none() {
            tracing::warn!(id, "the file of a response is damaged and was removed (responses_dir)");
            self.remove(id);
            return None;
        }
        // The time decides which file is removed first after the next start; failing to set it is harmless.
        let file = File::options().append(true).open(self.path(id));
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
        stored
    }

    /// Removes the response of that id.
    pub(super) fn remove(&self, id: &str) {
        if let Err(error) = fs::remove_file(self.path(id))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(id, %error, "the file of a response cannot be removed (responses_dir)");
        }
    }
}

/// Creates a directory that only this user can read, because it contains conversations.
#[cfg(unix)]
fn made(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(not(unix))]
fn made(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)
}

/// Creates a file that only this user can read.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options.open(path)
}
