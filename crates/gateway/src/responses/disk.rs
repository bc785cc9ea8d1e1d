//! Kept responses as files of a directory, one for each. A file has its name when it is whole, and a digest of what is in it: one that is
//! damaged is as good as none, and removed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::kept::{Kept, RESPONSE, is_id};
use crate::{error::GatewayError, request_id::random_id};

/// A directory of responses.
#[derive(Debug)]
pub(super) struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// Opens the directory, which is made where there is none. Also the responses in it with their bytes, the least recently used first.
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
                // Of a process that ended while it wrote.
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
    pub(super) fn write(&self, id: &str, kept: &Kept) -> io::Result<()> {
        let half = self.dir.join(format!("{id}-{}.tmp", &random_id()[..8]));
        let written = private(&half).and_then(|mut file| file.write_all(&kept.to_file()));
        let written = written.and_then(|()| hanzo_engine_files::rename_over(&half, &self.path(id)));
        if written.is_err() {
            let _ = fs::remove_file(&half);
        }
        written
    }

    /// The bytes of the file of that id; 0 where there is none.
    pub(super) fn bytes(&self, id: &str) -> usize {
        fs::metadata(self.path(id)).map_or(0, |file| usize::try_from(file.len()).unwrap_or(usize::MAX))
    }

    /// The response of that id, which has now been used.
    pub(super) fn read(&self, id: &str) -> Option<Kept> {
        let bytes = fs::read(self.path(id)).ok()?;
        let kept = Kept::of_file(bytes);
        if kept.is_none() {
            tracing::warn!(id, "the file of a response is damaged and was removed (responses_dir)");
            self.remove(id);
            return None;
        }
        // Which of them leave first after the next start: no reason to fail.
        let file = File::options().append(true).open(self.path(id));
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
        kept
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

/// Makes a directory that is nobody else's to read: conversations are in it.
#[cfg(unix)]
fn made(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(not(unix))]
fn made(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)
}

/// A new file that is nobody else's to read.
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
