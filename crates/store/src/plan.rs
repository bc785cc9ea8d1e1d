//! What a pull is going to do: the files of a model and where each comes from. A plan is made by a source from what
//! a server says, and checked here before anything is done with it.

use crate::PullError;
use crate::digest::Digest;
use crate::file_name;
use crate::http::Auth;
use crate::limits::{FILE_BYTES_MAX, FILES_MAX, MODEL_BYTES_MAX};
use crate::name::cut_name;
use crate::record::{Description, Role};
use reqwest::Url;
use std::path::PathBuf;

/// How a model is to be pulled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// Fetch everything again, whatever is there.
    pub force: bool,
    /// Such as `Q4_K_M`; none: the reference's, or the default.
    pub quantization: Option<String>,
    /// A branch, tag or commit; none: the reference's, or `main`.
    pub revision: Option<String>,
    /// Globs: exactly the files that match one, instead of the usual choice.
    pub include: Vec<String>,
    /// Globs: none of the files that match one.
    pub exclude: Vec<String>,
    /// Copy a file of this machine into the store instead of using it where it lies.
    pub copy: bool,
}

/// A model as its source describes it.
pub(crate) struct Plan {
    /// The name it should have in the store.
    pub(crate) name: String,
    /// The reference with every choice made.
    pub(crate) reference: String,
    /// Where to look at it.
    pub(crate) source: String,
    pub(crate) revision: Option<String>,
    pub(crate) said: Description,
    pub(crate) files: Vec<PlanFile>,
}

/// A file of a model.
#[derive(Clone)]
pub(crate) struct PlanFile {
    /// Its name within the model.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Bytes; none where the source does not say.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) digest: Option<Digest>,
    pub(crate) origin: Origin,
}

/// Where a file is.
#[derive(Clone)]
pub(crate) enum Origin {
    /// On a server.
    Url { url: Url, auth: Option<Auth> },
    /// On this machine, to be used where it lies.
    Here(PathBuf),
    /// On this machine, to be copied.
    Copy(PathBuf),
}

/// What a pull would do, for a user to decide about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The name the model will have.
    pub name: String,
    /// The reference with every choice made.
    pub reference: String,
    /// Its files, with sizes in bytes where the source says them.
    pub files: Vec<(String, Option<u64>)>,
    /// Bytes that have to be fetched or copied, as far as the source says.
    pub fetch_bytes: u64,
    /// Bytes that are on this machine already.
    pub present_bytes: u64,
    /// The license's name, where the source says it.
    pub license: Option<String>,
}

impl Plan {
    /// Refuses what no model may be: names that lead elsewhere or stand twice, sizes beyond all bounds.
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
            // No sum of so few such sizes overflows.
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
