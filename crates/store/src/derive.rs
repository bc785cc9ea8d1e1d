//! Making a model from a stored one or from uploaded blobs: the same files under another name, with their own
//! texts. Weights are not copied: blobs get another link, and files outside the store are linked to.

use std::io::Read;
use std::path::Path;

use crate::digest::{is_hex, sha256_of};
use crate::name::{self, cut_name, fold};
use crate::pins::Pin;
use crate::publish::{ArrivedFile, ArrivedModel, Inspect};
use crate::record::{Description, FileOwner, FileRecord, ModelRecord, Role, SideTexts};
use crate::unix_time::now_unix_ms;
use crate::{Store, StoreError, alias};

/// Prefix of the reference of a model that was made here.
const MADE: &str = "made://";

/// Files that a new model is made from.
#[derive(Clone, Debug)]
pub enum Base {
    /// A stored model.
    Model(String),
    /// Blobs of the store by SHA-256, each with its file name within the model: one GGUF file, or the files of
    /// a folder.
    Files(Vec<(String, String)>),
}

impl Store {
    /// Returns true if the store has a blob with this SHA-256 (hexadecimal) and its bytes match.
    ///
    /// # Errors
    /// [`StoreError::File`], [`StoreError::Database`].
    pub fn has_blob(&self, sha256: &str) -> Result<bool, StoreError> {
        if !is_hex(sha256, 64) {
            return Ok(false);
        }
        self.has_sound_blob(sha256, |_| true)
    }

    /// Reads `from` into the blob with this SHA-256 (hexadecimal). The blob may be collected after an hour
    /// unless a model uses it.
    ///
    /// # Errors
    /// [`StoreError::NoBlob`] if `sha256` is no digest, [`StoreError::OtherBlob`] if the bytes have another
    /// digest, [`StoreError::DiskFull`], [`StoreError::File`].
    pub fn put_blob(&self, sha256: &str, mut from: impl Read) -> Result<(), StoreError> {
        if !is_hex(sha256, 64) {
            return Err(StoreError::NoBlob { sha256: cut_name(sha256) });
        }
        let mut pin = self.pin();
        pin.hold(sha256);
        self.take_blob(sha256, &mut from, &mut |_| true)
    }

    /// Makes the model `name` from a stored model or from blobs, with exactly these texts. Replaces an earlier
    /// model that was made under this name.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] and the like if there is no such model. [`StoreError::NoBlob`] if there is no
    /// such blob. [`StoreError::Unreadable`] if `inspect` cannot read the files. [`StoreError::BadName`].
    /// [`StoreError::NameTaken`] if `name` is another model's. [`StoreError::File`], [`StoreError::DiskFull`],
    /// [`StoreError::Limit`], [`StoreError::Database`].
    pub fn derive(
        &self,
        of: &Base,
        name: &str,
        texts: &SideTexts,
        inspect: Option<&Inspect>,
    ) -> Result<ModelRecord, StoreError> {
        self.check_free(name)?;
        let mut pin = self.pin();
        let mut model = match of {
            Base::Model(base) => of_model(self.get(base)?),
            Base::Files(files) => self.of_files(files, &mut pin)?,
        };
        for (text, file, role) in [
            (&texts.template, "made-template.txt", Role::Template),
            (&texts.system, "made-system.txt", Role::System),
            (&texts.params, "made-params.json", Role::Params),
            (&texts.messages, "made-messages.json", Role::Messages),
            (&texts.license, "made-license.txt", Role::License),
        ] {
            let Some(text) = text.as_ref().filter(|text| !text.is_empty()) else { continue };
            let sha256 = sha256_of(text.as_bytes());
            pin.hold(&sha256);
            self.take_blob(&sha256, &mut text.as_bytes(), &mut |_| true)?;
            model.files.push(ArrivedFile { name: file.to_owned(), sha256: Some(sha256), role, at: None });
        }
        let blobs = model.files.iter().filter(|file| file.at.is_none());
        blobs.filter_map(|file| file.sha256.as_deref()).for_each(|sha256| pin.hold(sha256));
        (model.name, model.reference) = (name.to_owned(), made(name));
        let inspect = inspect.filter(|_| model.must_open);
        self.publish(model, inspect, now_unix_ms())
    }

    /// Collects a model's files from blobs. `pin` protects the blobs from collection.
    fn of_files(&self, files: &[(String, String)], pin: &mut Pin) -> Result<ArrivedModel, StoreError> {
        let mut model = ArrivedModel { source: MADE.to_owned(), must_open: true, ..ArrivedModel::default() };
        for (name, sha256) in files {
            pin.hold(sha256);
            if !self.has_blob(sha256)? {
                return Err(StoreError::NoBlob { sha256: cut_name(sha256) });
            }
            let file =
                ArrivedFile { name: name.clone(), sha256: Some(sha256.clone()), role: Role::Model, at: None };
            model.files.push(file);
        }
        Ok(model)
    }

    /// Checks that the name is free, or that a model was made under it before.
    fn check_free(&self, name: &str) -> Result<(), StoreError> {
        name::check_name(name)?;
        let bad = |why| Err(StoreError::BadName { name: name.to_owned(), why });
        if name::is_reserved(name) {
            return bad("it is that of the model that is built into this program");
        }
        if self.database.alias(name)?.is_some() {
            return bad("it is your own name for another model");
        }
        if !matches!(alias::lookup(name), Ok(None)) {
            return bad("it is an alias of this program for another model");
        }
        let Some(entry) = self.database.exact(name)? else { return Ok(()) };
        match self.database.decode(&entry) {
            Ok(known) if known.reference == made(name) => Ok(()),
            known => {
                let path = known.map(|known| known.path).unwrap_or_default();
                Err(StoreError::NameTaken { name: name.to_owned(), path })
            }
        }
    }
}

/// Takes the files of a stored model, without its texts.
fn of_model(base: ModelRecord) -> ArrivedModel {
    let root = if base.path.is_dir() { base.path.clone() } else { parent(&base.path) };
    let is_kept = |file: &&FileRecord| matches!(file.role, Role::Model | Role::Projector | Role::Adapter);
    ArrivedModel {
        source: base.source.clone(),
        said: Description {
            format: base.format.clone(),
            architecture: base.architecture.clone(),
            quantization: base.quantization.clone(),
            parameters: base.parameters,
            context_tokens_max: base.context_tokens_max,
            license: base.license.clone(),
        },
        files: base.files.iter().filter(is_kept).map(|file| kept(file, &root)).collect(),
        ..ArrivedModel::default()
    }
}

fn made(name: &str) -> String {
    format!("{MADE}{}", fold(name))
}

fn parent(path: &Path) -> std::path::PathBuf {
    path.parent().unwrap_or(path).to_owned()
}

/// Takes one file of the base model, under the name that it has there.
fn kept(file: &FileRecord, root: &Path) -> ArrivedFile {
    let within = file.path.strip_prefix(root).ok().and_then(Path::to_str);
    let name = within.or_else(|| file.path.file_name()?.to_str()).unwrap_or("model").to_owned();
    let at = (file.held != FileOwner::Blob || file.sha256.is_none()).then(|| file.path.clone());
    ArrivedFile { name, sha256: file.sha256.clone(), role: file.role, at }
}
