//! Publishing a model. Its files are assembled in a hidden folder, the folder is renamed, and one transaction
//! writes the record. A crash before the transaction leaves an orphan, a later one a complete model.

use crate::database::Change;
use crate::digest::sha256_of;
use crate::file_system;
use crate::layout::MANIFEST;
use crate::limits::{FILES_MAX, MODEL_BYTES_MAX};
use crate::name::fold;
use crate::record::{Description, FileOwner, FileRecord, ModelRecord, Role, absolute, cut};
use crate::schema;
use crate::{Store, StoreError, file_name, name};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Model whose files are all present.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrivedModel {
    /// Proposed name. If another model has it, the new model gets a different one.
    pub(crate) name: String,
    /// See [`ModelRecord::reference`].
    pub(crate) reference: String,
    /// See [`ModelRecord::source`].
    pub(crate) source: String,
    /// See [`ModelRecord::revision`].
    pub(crate) revision: Option<String>,
    /// Description of the model by its source.
    pub(crate) said: Description,
    /// Files, weights first.
    pub(crate) files: Vec<ArrivedFile>,
    /// Key of the pull that this completes.
    pub(crate) ends_pull: Option<String>,
    /// If true, unreadable files are an error and nothing is published.
    pub(crate) must_open: bool,
}

/// File of [`ArrivedModel`].
#[derive(Clone, Debug)]
pub(crate) struct ArrivedFile {
    /// Name of the file within the model.
    pub(crate) name: String,
    pub(crate) sha256: Option<String>,
    pub(crate) role: Role,
    /// Path of another program's file. None: the blob with that digest.
    pub(crate) at: Option<PathBuf>,
}

/// Callback that reads a model's description from its files. The runtime provides it, because the store parses
/// no model file. The path is the GGUF file or the folder. An error is logged and the model is kept: another
/// version may open it.
pub type Inspect = Arc<dyn Fn(&Path) -> Result<Description, String> + Send + Sync>;

impl Store {
    /// Publishes the model under its name. Replaces an earlier model of the same reference.
    pub(crate) fn publish(
        &self,
        model: ArrivedModel,
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
                // A folder that cannot be deleted is collected later, like leftovers of a crash.
                let _ = std::fs::remove_dir_all(&stage);
                return Err(StoreError::Unreadable { why });
            }
            Err(why) => {
                tracing::warn!(model = name, why, "the model's files cannot be read by this version");
                None
            }
            Ok(inspected) => inspected,
        };
        // The folder's final name is known only after the rename, but the manifest is written before it. So
        // paths in the manifest are relative.
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

    /// Returns the name for the model, and the earlier record of the same reference.
    fn name_for(&self, model: &ArrivedModel) -> Result<(String, Option<ModelRecord>), StoreError> {
        crate::check_name(&model.name)?;
        let mut name = model.name.clone();
        for number in 2_u64.. {
            match self.database.exact(&name)?.map(|entry| self.database.decode(&entry)) {
                Some(Ok(known)) if fold(&known.reference) == fold(&model.reference) => {
                    return Ok((known.name.clone(), Some(known)));
                }
                Some(Ok(_)) => {}
                // A name whose record is unreadable counts as free.
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

    fn record(
        &self,
        model: &ArrivedModel,
        read: Description,
        stage: &Path,
    ) -> Result<ModelRecord, StoreError> {
        let mut files = Vec::with_capacity(model.files.len());
        for file in &model.files {
            let path = stage.join(&file.name);
            let seen = FileRecord::of(path.clone()).map_err(StoreError::file(&path))?;
            let held = if file.at.is_some() { FileOwner::Linked } else { FileOwner::Blob };
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
            in_place: files.iter().all(|file| file.held != FileOwner::Blob),
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

/// Returns the file that the runtime opens: the first GGUF file with the model's weights, or a single-file
/// model of Piper or whisper.cpp. None means the folder.
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

/// Name of the folder: the model's name and a digest of its contents.
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
