//! Atomic replacement of files. Readers see either the old content or the new one, never a part. The new file
//! keeps the old one's owner, group and permissions, so that its readers can still read it.

#![forbid(unsafe_code)]

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

/// Replaces the content of the file at `path`, or creates the file, readable by its owner only. Follows a
/// symbolic link.
///
/// # Errors
/// The operating system's. `PermissionDenied` if this user cannot keep the file's owner and group. The file is
/// unchanged then.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(content)?;
    inherit(new.as_file(), path)?;
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
    sync_folder(folder)
}

/// Renames a finished file to `to`. It keeps the permissions of the file that it replaces, and its owner and
/// group as far as this user may set them.
///
/// # Errors
/// The operating system's, from the rename.
pub fn rename_over(from: &Path, to: &Path) -> io::Result<()> {
    if let Ok(new) = File::open(from) {
        // The content matters more than the owner: do not discard a file that took hours to make.
        let _ = inherit(&new, to);
    }
    fs::rename(from, to)
}

/// Gives `new` the owner, group and permissions of the file at `old`, if it exists.
fn inherit(new: &File, old: &Path) -> io::Result<()> {
    let old = match fs::metadata(old) {
        Ok(old) => old,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // The owner first, because a change of owner clears some permissions.
    #[cfg(unix)]
    inherit_owner(new, &old)?;
    new.set_permissions(old.permissions())
}

#[cfg(unix)]
fn inherit_owner(new: &File, old: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, fchown};

    let own = new.metadata()?;
    let (uid, gid) = (old.uid(), old.gid());
    let changed = |own: u32, wanted: u32| (own != wanted).then_some(wanted);
    let (owner, group) = (changed(own.uid(), uid), changed(own.gid(), gid));
    if owner.is_none() && group.is_none() {
        return Ok(());
    }
    fchown(new, owner, group).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let reason = format!("this user cannot keep its owner {uid} and group {gid}; try again as root");
            io::Error::new(error.kind(), reason)
        }
        _ => error,
    })
}

/// Makes the entries of a folder durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(all(test, unix))]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
        path::Path,
    };

    use super::{rename_over, replace};

    /// Owner, group and permissions.
    fn access(path: &Path) -> [u32; 3] {
        let metadata = fs::metadata(path).expect("a temporary file");
        [metadata.uid(), metadata.gid(), metadata.mode() & 0o7777]
    }

    /// Creates a file of another group and, if the test runs as root, of another owner.
    fn file(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("file");
        fs::write(&path, "old").expect("a temporary file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("a temporary file");
        // Only root may give files away.
        let _ = chown(&path, Some(12_345), Some(23_456));
        path
    }

    #[test]
    fn a_replaced_file_keeps_owner_group_and_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path());
        let before = access(&path);
        replace(&path, b"new").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), access(&path)), ("new", before));

        let other = folder.path().join("other");
        fs::write(&other, "newer").unwrap();
        rename_over(&other, &path).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), access(&path)), ("newer", before));
        assert!(!other.exists());
    }

    #[test]
    fn a_link_stays_and_a_new_file_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        replace(&path, b"1").unwrap();
        assert_eq!(access(&path)[2], 0o600);
        symlink(&path, &link).unwrap();
        replace(&link, b"2").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "2");
        // No temporary file is left.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
