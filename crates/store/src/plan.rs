//! Plan of a pull: a model's files and the origin of each. A source makes the plan from what a server states,
//! and it is checked here before use.

use crate::PullError;
use crate::digest::Digest;
use crate::file_name;
use crate::http::Auth;
use crate::limits::{FILE_BYTES_MAX, FILES_MAX, MODEL_BYTES_MAX};
use crate::name::cut_name;
use crate::record::{Description, Role};
use reqwest::Url;
use std::path::PathBuf;

/// Options of a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// Fetch everything again, even files that are present.
    pub force: bool,
    /// Quantisation such as `Q4_K_M`. None: as in the reference, or the default.
    pub quantization: Option<String>,
    /// Branch, tag or commit. None: as in the reference, or `main`.
    pub revision: Option<String>,
    /// Globs. Takes exactly the files that match one, instead of the usual choice.
    pub include: Vec<String>,
    /// Globs. Takes none of the files that match one.
    pub exclude: Vec<String>,
    /// Copy a local file into the store instead of using it in place.
    pub copy: bool,
}

/// Model as its source describes it.
pub(crate) struct ModelPlan {
    /// Proposed name in the store.
    pub(crate) name: String,
    /// Reference with every choice resolved.
    pub(crate) reference: String,
    /// Address of the model for people.
    pub(crate) source: String,
    pub(crate) revision: Option<String>,
    pub(crate) said: Description,
    pub(crate) files: Vec<PlanFile>,
}

/// File of a model.
#[derive(Clone)]
pub(crate) struct PlanFile {
    /// Name of the file within the model.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Size in bytes. None if the source does not state it.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) digest: Option<Digest>,
    pub(crate) origin: Origin,
}

/// Origin of a file.
#[derive(Clone)]
pub(crate) enum Origin {
    /// On a server.
    Url { url: Url, auth: Option<Auth> },
    /// On this machine, used in place.
    Here(PathBuf),
    /// On this machine, to be copied.
    Copy(PathBuf),
}

/// Preview of a pull, for the user to decide about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Name that the model will have.
    pub name: String,
    /// Reference with every choice resolved.
    pub reference: String,
    /// Names of the files, with sizes in bytes if the source states them.
    pub files: Vec<(String, Option<u64>)>,
    /// Bytes to fetch or copy, as far as the source states them.
    pub fetch_bytes: u64,
    /// Bytes that are on this machine already.
    pub present_bytes: u64,
    /// Name of the license, if the source states it.
    pub license: Option<String>,
}

impl ModelPlan {
    /// Refuses an invalid plan: names that leave the model's folder or occur twice, or sizes above the limits.
    pub(crate) fn check(&self) -> Result<(), PullError> {
        let refused = |why: String| Err(PullError::refused(&self.reference, why));
        crate::check_name(&self.name)?;
        if self.files.is_empty() {
            return refused("it has no files of a model".to_owned());
        }
        if self.files.len() > FILES_MAX {
            return refused(format!("it has {} files, and {FILES_MAX} is the most", self.files.len()));
        }
        let mut total = 0_u64;
        for file in &self.files {
            if let Err(why) = file_name::check_file_name(&file.name) {
                return refused(format!("the file name {:?} will not do: {why}", cut_name(&file.name)));
            }
            let bytes = file.size_bytes.unwrap_or(0);
            if bytes > FILE_BYTES_MAX {
                return refused(format!("{} has {bytes} bytes, and {FILE_BYTES_MAX} is the most", file.name));
            }
            // Cannot overflow: both the number and the size of the files are bounded.
            total += bytes;
        }
        if total > MODEL_BYTES_MAX {
            return refused(format!("its files have {total} bytes, and {MODEL_BYTES_MAX} is the most"));
        }
        match file_name::clash(self.files.iter().map(|file| file.name.as_str())) {
            Some(name) => refused(format!("the file name {name:?} stands there twice")),
            None => Ok(()),
        }
    }
}

const _: () = assert!(FILES_MAX as u128 * (FILE_BYTES_MAX as u128) < u64::MAX as u128);
