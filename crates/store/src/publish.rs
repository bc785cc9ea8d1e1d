//! Making a model visible: its files are assembled in a folder nobody sees, the folder gets its name, and then one
//! transaction makes the record. A crash before the transaction leaves an orphan, and after it a model.

use crate::database::Change;
use crate::digest::sha256_of;
use crate::file_system;
use crate::layout::MANIFEST;
use crate::limits::{FILES_MAX, MODEL_BYTES_MAX};
use crate::name::fold;
use crate::record::{Description, FileRecord, Held, ModelRecord, Role, absolute, cut};
use crate::schema;
use crate::{Store, StoreError, file_name, name};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model whose files are all there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    /// The name it should have; another model's name is left to that one.
    pub(crate) name: String,
    /// See [`ModelRecord::reference`].
    pub(crate) reference: String,
    /// See [`ModelRecord::source`].
    pub(crate) source: String,
    /// See [`ModelRecord::revision`].
    pub(crate) revision: Option<String>,
    /// What the source says of the model.
    pub(crate) said: Description,
    /// Weights first.
    pub(crate) files: Vec<ArrivedFile>,
    /// The pull that ends with it.
    pub(crate) ends_pull: Option<String>,
    /// Files that cannot be read are an error, and nothing becomes visible.
    pub(crate) must_open: bool,
}

/// A file of [`Arrived`].
#[derive(Clone, Debug)]
pub(crate) struct ArrivedFile {
    /// Its name within the model.
    pub(crate) name: String,
    pub(crate) sha256: Option<String>,
    pub(crate) role: Role,
    /// A file of another program; none: the blob of that digest.
    pub(crate) at: Option<PathBuf>,
}

/// Reads what a model's files say of it: the runtime does, which the store knows nothing of. The path is the GGUF
/// file or the folder. An error is noted in the log and the model is kept: another version may open it.
pub type Inspect = Arc<dyn Fn(&Path) -> Result<Description, String> + Send + Sync>;

impl Store {
    /// Makes the model visible under its name, in place of what its reference gave before.
    pub(crate) fn publish(
        &self,
        model: Arrived,
        inspect: Option<&Inspect>,
        now_unix_ms: i64,
    ) -> Result<ModelRecord, StoreError> {
        if model.files.is_empty() || model.files.len() > FILES_MAX {
            let what = format!("the number of files of {}", model.reference);
            return Err(StoreError::limit(what, model.files.len() as u64, FILES_MAX as u64));
        }
        let mut named = model.files.iter().map(|file| file.name.as_str());
        if let Some(name) = named.clone().find(|name| file_name::check_file_name(name).is_err()) {
            return Err(StoreError::Archive { why: format!("{name:?} is no file name") });
        }
        if let Some(name) = file_name::clash(named.by_ref()) {
            return Err(StoreError::Archive { why: format!("{name:?} stands there twice") });
        }
        let _writing = self.lock();
        let (name, before) = self.name_for(&model)?;
        if before.is_none() {
            self.check_room_for_one()?;
        }
        let folder = folder_name(&name, &model.files);
        let stage = self.layout.stage(&folder).map_err(StoreError::file(&self.layout.models()))?;
        for file in &model.files {
            self.place(file, &stage).map_err(StoreError::file(&stage.join(&file.name)))?;
        }
        let entry = entry_file(&model.files);
        let at = |folder: &Path| entry.map_or(folder.to_owned(), |name| folder.join(name));
        let inspected = match inspect.map(|inspect| inspect(&at(&stage))).transpose() {
            Err(why) if model.must_open => {
                // What is left of it is collected as what crashes leave.
                let _ = std::fs::remove_dir_all(&stage);
                return Err(StoreError::Unreadable { why });
            }
            Err(why) => {
                tracing::warn!(model = name, why, "the model's files cannot be read by this version");
                None
            }
            Ok(inspected) => inspected,
        };
        // The folder's final name is only known once it has it, and its manifest is written before: paths in
        // the manifest are relative.
        let mut record =
            ModelRecord { name: name.clone(), ..self.record(&model, inspected.unwrap_or_default(), &stage)? };
        (record.added_at_unix_ms, record.used_at_unix_ms) =
            before.as_ref().map_or((now_unix_ms, 0), |before| (now_unix_ms, before.used_at_unix_ms));
        let total: u64 = record.files.iter().map(|file| file.size_bytes).sum();
        if total > MODEL_BYTES_MAX {
            return Err(StoreError::limit(format!("the size of {name}"), total, MODEL_BYTES_MAX));
        }
        record.path = at(Path::new(""));
        for (file, arrived) in record.files.iter_mut().zip(&model.files) {
            file.path = PathBuf::from(&arrived.name);
        }
        let manifest = stage.join(MANIFEST);
        file_system::write_new(&manifest, &schema::encode(&record, Path::new(""))?)
            .map_err(StoreError::file(&manifest))?;
        let folder = self.layout.publish(&stage, &folder).map_err(StoreError::file(&stage))?;
        absolute(&mut record, &folder);
        let ends_pull = model.ends_pull.as_deref();
        let orphans = self.database.apply(&Change { put: Some(&record), ends_pull, remove: None })?;
        if let Some(before) = before {
            self.release(&before, &orphans);
        }
        Ok(record)
    }

    /// The name a model gets, and what its reference gave before.
    fn name_for(&self, model: &Arrived) -> Result<(String, Option<ModelRecord>), StoreError> {
        crate::check_name(&model.name)?;
        let mut name = model.name.clone();
        for number in 2_u64.. {
            match self.database.exact(&name)?.map(|entry| self.database.decode(&entry)) {
                Some(Ok(known)) if fold(&known.reference) == fold(&model.reference) => {
                    return Ok((known.name.clone(), Some(known)));
                }
                Some(Ok(_)) => {}
                // A record that cannot be read is no model any more.
                Some(Err(_)) | None if !name::is_reserved(&name) => break,
                Some(Err(_)) | None => {}
            }
            name = format!("{}-{number}", model.name);
        }
        Ok((name, None))
    }

    fn place(&self, file: &ArrivedFile, stage: &Path) -> std::io::Result<()> {
        let to = stage.join(&file.name);
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        match (&file.at, &file.sha256) {
            (Some(at), _) => file_system::symlink(&at.canonicalize()?, &to),
            (None, Some(sha256)) => file_system::link(&self.layout.blob(sha256), &to),
            (None, None) => Err(std::io::Error::other("a blob without a digest")),
        }
    }

    fn record(&self, model: &Arrived, read: Description, stage: &Path) -> Result<ModelRecord, StoreError> {
        let mut files = Vec::with_capacity(model.files.len());
        for file in &model.files {
            let path = stage.join(&file.name);
            let seen = FileRecord::of(path.clone()).map_err(StoreError::file(&path))?;
            let held = if file.at.is_some() { Held::Linked } else { Held::Blob };
            files.push(FileRecord { sha256: file.sha256.clone(), role: file.role, held, ..seen });
        }
        let said = model.said.clone();
        let first = |read: String, said: String| cut(if read.is_empty() { said } else { read });
        Ok(ModelRecord {
            name: String::new(),
            format: first(read.format, said.format),
            architecture: first(read.architecture, said.architecture),
            quantization: first(read.quantization, said.quantization),
            parameters: if read.parameters == 0 { said.parameters } else { read.parameters },
            size_bytes: files.iter().map(|file| file.size_bytes).sum(),
            context_tokens_max: read.context_tokens_max.max(said.context_tokens_max),
            path: PathBuf::new(),
            in_place: files.iter().all(|file| file.held != Held::Blob),
            files,
            source: model.source.clone(),
            added_at_unix_ms: 0,
            used_at_unix_ms: 0,
            license: read.license.or(said.license).map(cut),
            reference: model.reference.clone(),
            revision: model.revision.clone(),
        })
    }
}

/// What the runtime opens: the first GGUF file of the model itself, Piper's or whisper.cpp's file, or the folder.
fn entry_file(files: &[ArrivedFile]) -> Option<&str> {
    let is_gguf = |name: &str| {
        let file = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let piper = file.ends_with(".onnx") && files.iter().any(|file| file.name == format!("{name}.json"));
        file.ends_with(".gguf") || piper || file.starts_with("ggml-") && file.ends_with(".bin")
    };
    let mut weights: Vec<&str> = files
        .iter()
        .filter(|file| file.role == Role::Model && is_gguf(&file.name))
        .map(|file| file.name.as_str())
        .collect();
    weights.sort_unstable();
    weights.first().copied()
}

/// A name for the folder: the model's, and a digest of what is in it.
fn folder_name(name: &str, files: &[ArrivedFile]) -> String {
    let plain: String = fold(name)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' })
        .take(80)
        .collect();
    let mut text = fold(name);
    for file in files {
        text += &format!("\n{}\0{:?}\0{:?}", file.name, file.sha256, file.at);
    }
    format!("{plain}-{}", &sha256_of(text.as_bytes())[..12])
}
