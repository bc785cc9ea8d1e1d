//! Export and import of models in one file, for machines without a network. The file is a tar archive. Its
//! first entry is `hanzo-engine.json`, which describes the models. Each blob follows once, named by its digest.
//! An import verifies every digest, and publishes nothing until it has read the whole archive.

use crate::digest::{Digest, Hasher, is_hex};
use crate::download::write_failed;
use crate::file_system;
use crate::limits::{FILES_MAX, MANIFEST_BYTES_MAX, SPARE_BYTES};
use crate::name::{cut_name, fold};
use crate::publish::{ArrivedFile, ArrivedModel};
use crate::record::{Description, ModelRecord, Role};
use crate::unix_time::now_unix_ms;
use crate::{ModelLookup, PullError, Store, StoreError, alias};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tar::{Archive, Builder, EntryType, Header};

const CONTENTS: &str = "hanzo-engine.json";
const VERSION: u32 = 1;
/// Maximum number of models in one archive.
const ARCHIVE_MODELS_MAX: usize = 1_000;

#[derive(Serialize, Deserialize)]
struct Contents {
    version: u32,
    models: Vec<ArchivedModel>,
}

/// Description of one model in an archive.
#[derive(Serialize, Deserialize)]
struct ArchivedModel {
    name: String,
    reference: String,
    source: String,
    revision: Option<String>,
    format: String,
    architecture: String,
    quantization: String,
    parameters: u64,
    context_tokens_max: u32,
    license: Option<String>,
    files: Vec<PackedFile>,
}

#[derive(Serialize, Deserialize)]
struct PackedFile {
    name: String,
    sha256: String,
    size_bytes: u64,
    role: Role,
}

/// Result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportResult {
    /// Names of the exported models.
    pub models: Vec<String>,
    /// Total size of their files in bytes. Each file counts once.
    pub bytes: u64,
}

impl Store {
    /// Writes models as one archive, with all their files, including those outside the store. Calls `seen` with
    /// the size of each piece written. If `seen` returns false, the export stops.
    ///
    /// # Errors
    /// As [`Store::get`]. [`StoreError::File`] if a file cannot be read or has changed, or if `to` cannot be
    /// written.
    pub fn export(
        &self,
        names: &[String],
        to: impl Write,
        mut seen: impl FnMut(u64) -> bool,
    ) -> Result<ExportResult, StoreError> {
        let mut models = Vec::with_capacity(names.len());
        for name in names {
            let record = match self.resolve(name)? {
                ModelLookup::Stored(record) => record,
                ModelLookup::Missing(_) => self.get(name)?,
            };
            // A model whose files lie outside the store may have no digests yet.
            models.push(self.digest(&record.name)?);
        }
        let packed = models.iter().map(|model| self.packed(model)).collect::<Result<Vec<_>, _>>()?;
        let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
        for (model, packed) in models.iter().zip(&packed) {
            for (file, packed) in model.files.iter().zip(&packed.files) {
                files.entry(packed.sha256.clone()).or_insert_with(|| file.path.clone());
            }
        }
        let mut exported =
            ExportResult { models: models.into_iter().map(|model| model.name).collect(), bytes: 0 };
        let corrupt = |error: serde_json::Error| StoreError::Archive { why: error.to_string() };
        let contents =
            serde_json::to_vec_pretty(&Contents { version: VERSION, models: packed }).map_err(corrupt)?;
        let archive = Path::new("the archive");
        let mut tar = Builder::new(to);
        append(&mut tar, CONTENTS, contents.len() as u64, &contents[..])
            .map_err(StoreError::file(archive))?;
        for (sha256, path) in files {
            let file = File::open(&path).map_err(StoreError::file(&path))?;
            let bytes = file.metadata().map_err(StoreError::file(&path))?.len();
            let mut reading = DigestWriter { file, hasher: Hasher::new(None), seen: &mut seen };
            append(&mut tar, &blob_name(&sha256), bytes, &mut reading).map_err(StoreError::file(&path))?;
            let (found, _) = reading.hasher.finish(None);
            if found != sha256 {
                let why = io::Error::other(format!("its SHA-256 is {found}, and was {sha256}"));
                return Err(StoreError::file(&path)(why));
            }
            exported.bytes += bytes;
        }
        let done = tar.into_inner().and_then(|mut to| to.flush());
        done.map_err(StoreError::file(archive))?;
        Ok(exported)
    }

    fn packed(&self, model: &ModelRecord) -> Result<ArchivedModel, StoreError> {
        let folder = self.folder_of(model);
        let is_dir = model.path.is_dir();
        let base = folder.as_deref().or(if is_dir { Some(&model.path) } else { model.path.parent() });
        let file = |file: &crate::FileRecord| {
            let below = base.and_then(|base| file.path.strip_prefix(base).ok()).unwrap_or(&file.path);
            let unusable =
                || StoreError::file(&file.path)(io::Error::other("its name will not do in an archive"));
            let name = below.to_str().filter(|name| crate::file_name::check_file_name(name).is_ok());
            let (name, sha256) =
                (name.ok_or_else(unusable)?.to_owned(), file.sha256.clone().ok_or_else(unusable)?);
            Ok(PackedFile { name, sha256, size_bytes: file.size_bytes, role: file.role })
        };
        Ok(ArchivedModel {
            files: model.files.iter().map(file).collect::<Result<_, StoreError>>()?,
            name: model.name.clone(),
            reference: model.reference.clone(),
            source: model.source.clone(),
            revision: model.revision.clone(),
            format: model.format.clone(),
            architecture: model.architecture.clone(),
            quantization: model.quantization.clone(),
            parameters: model.parameters,
            context_tokens_max: model.context_tokens_max,
            license: model.license.clone(),
        })
    }

    /// Imports the models of an archive. Calls `seen` with the size of each piece read. If `seen` returns
    /// false, the import stops. After a failure the blobs already read stay, for the next attempt.
    ///
    /// # Errors
    /// [`StoreError::Archive`] for an archive that no export writes, [`StoreError::DiskFull`],
    /// [`StoreError::File`], [`StoreError::Limit`], [`StoreError::Database`].
    pub fn import(
        &self,
        from: impl Read,
        mut seen: impl FnMut(u64) -> bool,
    ) -> Result<Vec<ModelRecord>, StoreError> {
        let mut pin = self.pin();
        let mut archive = Archive::new(from);
        // Raw mode: long names and sparse files appear as entries of their own type, which are refused.
        let mut entries = archive.entries().map_err(refused_by_reader)?.raw(true);
        let mut first = match entries.next() {
            Some(first) => first.map_err(refused_by_reader)?,
            None => return Err(refused("it is empty")),
        };
        if path_of(&first)? != CONTENTS || first.header().entry_type() != EntryType::Regular {
            return Err(refused(format!("it does not begin with {CONTENTS}")));
        }
        if first.size() > MANIFEST_BYTES_MAX as u64 {
            return Err(refused(format!("{CONTENTS} is too long")));
        }
        let mut text = Vec::new();
        first.read_to_end(&mut text).map_err(refused_by_reader)?;
        let contents: Contents =
            serde_json::from_slice(&text).map_err(|error| refused(format!("{CONTENTS}: {error}")))?;
        let mut missing = check(&contents)?;
        for model in &contents.models {
            if let Some(alias) = self.database.alias(&model.name)? {
                let (name, target) = (&model.name, alias.target);
                let why =
                    format!("{name:?} is your own name for {target}: `hanzo-engine rm {name}` forgets that");
                return Err(refused(why));
            }
        }
        missing.keys().for_each(|sha256| pin.hold(sha256));
        let is_there = |sha256: &String, bytes: &u64| {
            std::fs::metadata(self.layout.blob(sha256)).is_ok_and(|meta| meta.len() == *bytes)
        };
        let needed_bytes =
            missing.iter().filter(|(sha, bytes)| !is_there(sha, bytes)).map(|(_, bytes)| bytes).sum();
        let free_bytes = file_system::free_bytes(self.dir()).map_err(StoreError::file(self.dir()))?;
        if needed_bytes > free_bytes.saturating_sub(SPARE_BYTES) {
            return Err(StoreError::DiskFull { dir: self.dir().to_owned(), needed_bytes, free_bytes });
        }
        for entry in entries {
            let mut entry = entry.map_err(refused_by_reader)?;
            let name = path_of(&entry)?;
            let sha256 = name.strip_prefix("blobs/sha256-").filter(|hex| is_hex(hex, 64)).map(str::to_owned);
            let Some(sha256) = sha256.filter(|_| entry.header().entry_type() == EntryType::Regular) else {
                return Err(refused(format!("{:?} is no blob", cut_name(&name))));
            };
            let promised = missing.remove(&sha256);
            if promised != Some(entry.size()) {
                return Err(refused(format!("{name} stands there twice, or is no file of its models")));
            }
            if is_there(&sha256, &entry.size()) && self.has_sound_blob(&sha256, |_| seen(0))? {
                continue;
            }
            self.take_blob(&sha256, &mut entry, &mut seen).map_err(|error| match error {
                StoreError::OtherBlob { sha256, found } => {
                    refused(format!("blobs/sha256-{sha256} has SHA-256 {found}"))
                }
                error => error,
            })?;
        }
        for (sha256, bytes) in &missing {
            if !is_there(sha256, bytes) || !self.has_sound_blob(sha256, |_| seen(0))? {
                return Err(refused(format!("blobs/sha256-{sha256} is not in it; was it cut off?")));
            }
        }
        contents.models.into_iter().map(|model| self.publish(arrived(model), None, now_unix_ms())).collect()
    }

    /// Reads `from` into the blob with this digest. Concurrent calls for the same digest use separate part
    /// files.
    pub(crate) fn take_blob(
        &self,
        sha256: &str,
        from: &mut impl Read,
        seen: &mut impl FnMut(u64) -> bool,
    ) -> Result<(), StoreError> {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let name = format!("import-{sha256}-{}.part", TAKEN.fetch_add(1, Ordering::Relaxed));
        let part = self.layout.partial().join(name);
        let taken = self.take_into(&part, sha256, from, seen);
        if taken.is_err() {
            // The first error matters more than a failed deletion.
            let _ = file_system::delete_file(&part);
        }
        taken
    }

    fn take_into(
        &self,
        part: &Path,
        sha256: &str,
        from: &mut impl Read,
        seen: &mut impl FnMut(u64) -> bool,
    ) -> Result<(), StoreError> {
        let opened = OpenOptions::new().write(true).create(true).truncate(true).open(part);
        let mut to = opened.map_err(StoreError::file(part))?;
        let mut hasher = Hasher::new(None);
        let mut piece = vec![0_u8; 1 << 20];
        loop {
            let read = from.read(&mut piece).map_err(refused_by_reader)?;
            if read == 0 {
                break;
            }
            to.write_all(&piece[..read]).map_err(|error| match write_failed(part, read as u64, error) {
                PullError::Store(error) => error,
                other => StoreError::file(part)(io::Error::other(other.to_string())),
            })?;
            hasher.update(&piece[..read]);
            if !seen(read as u64) {
                return Err(StoreError::file(part)(io::ErrorKind::Interrupted.into()));
            }
        }
        let (found, _) = hasher.finish(None);
        if found != sha256 {
            return Err(StoreError::OtherBlob { sha256: sha256.to_owned(), found });
        }
        let blob = self.layout.blob(sha256);
        file_system::publish(part, &blob).map_err(StoreError::file(&blob))
    }
}

/// Validates the archive's description and returns the size of each blob by its SHA-256.
fn check(contents: &Contents) -> Result<BTreeMap<String, u64>, StoreError> {
    if contents.version != VERSION {
        return Err(refused(format!("its version is {}, and {VERSION} is known", contents.version)));
    }
    if contents.models.is_empty() || contents.models.len() > ARCHIVE_MODELS_MAX {
        return Err(refused(format!("it has {} models", contents.models.len())));
    }
    let mut blobs = BTreeMap::new();
    let mut names = BTreeSet::new();
    for model in &contents.models {
        crate::check_name(&model.name)?;
        let name = &model.name;
        if crate::name::is_reserved(name) {
            return Err(refused(format!(
                "{name:?} is the name of the model that is built into this program"
            )));
        }
        // The name would hide a built-in alias, whose model could then not be reached by it.
        if !matches!(alias::lookup(name), Ok(None)) {
            return Err(refused(format!("{name:?} is an alias of this program for another model")));
        }
        if !names.insert(fold(name)) {
            return Err(refused(format!("the name {name:?} stands there twice")));
        }
        if model.files.is_empty() || model.files.len() > FILES_MAX {
            return Err(refused(format!("{} has {} files", model.name, model.files.len())));
        }
        for file in &model.files {
            if let Err(why) = crate::file_name::check_file_name(&file.name) {
                return Err(refused(format!("the file name {:?} will not do: {why}", cut_name(&file.name))));
            }
            if Digest::sha256(&file.sha256) != Some(Digest::Sha256(file.sha256.clone())) {
                return Err(refused(format!("{} has no digest", file.name)));
            }
            if file.size_bytes > crate::FILE_BYTES_MAX {
                return Err(refused(format!("{} has {} bytes", file.name, file.size_bytes)));
            }
            if *blobs.entry(file.sha256.clone()).or_insert(file.size_bytes) != file.size_bytes {
                return Err(refused(format!("{} has two sizes", file.name)));
            }
        }
        if let Some(name) = crate::file_name::clash(model.files.iter().map(|file| file.name.as_str())) {
            return Err(refused(format!("the file name {name:?} stands there twice")));
        }
    }
    if blobs.values().sum::<u64>() > crate::MODEL_BYTES_MAX {
        return Err(refused("it is too large"));
    }
    Ok(blobs)
}

fn arrived(model: ArchivedModel) -> ArrivedModel {
    let file = |file: PackedFile| ArrivedFile {
        name: file.name,
        sha256: Some(file.sha256),
        role: file.role,
        at: None,
    };
    ArrivedModel {
        name: model.name,
        reference: model.reference,
        source: model.source,
        revision: model.revision,
        said: Description {
            format: model.format,
            architecture: model.architecture,
            quantization: model.quantization,
            parameters: model.parameters,
            context_tokens_max: model.context_tokens_max,
            license: model.license,
        },
        files: model.files.into_iter().map(file).collect(),
        ends_pull: None,
        must_open: false,
    }
}

fn blob_name(sha256: &str) -> String {
    format!("blobs/sha256-{sha256}")
}

fn append(tar: &mut Builder<impl Write>, name: &str, bytes: u64, from: impl Read) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_size(bytes);
    header.set_mode(0o644);
    header.set_entry_type(EntryType::Regular);
    header.set_path(name)?;
    header.set_cksum();
    tar.append(&header, from)
}

fn path_of<R: Read>(entry: &tar::Entry<'_, R>) -> Result<String, StoreError> {
    String::from_utf8(entry.path_bytes().into_owned()).map_err(|_| refused("a name in it is no text"))
}

fn refused(why: impl Into<String>) -> StoreError {
    StoreError::Archive { why: why.into() }
}

fn refused_by_reader(error: io::Error) -> StoreError {
    refused(error.to_string())
}

/// Writer that hashes a file while it is written.
struct DigestWriter<'a, F> {
    file: File,
    hasher: Hasher,
    seen: &'a mut F,
}

impl<F: FnMut(u64) -> bool> Read for DigestWriter<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        if (self.seen)(read as u64) { Ok(read) } else { Err(io::Error::other("ended by its caller")) }
    }
}
