//! Source for a single GGUF file on any server.

use crate::PullError;
use crate::name::derive_name;
use crate::plan::{ModelPlan, Origin, PlanFile};
use crate::record::{Description, Role};
use crate::reference::{Reference, UrlReference};
use crate::source::choose::quantization_of;
use std::path::Path;

/// Plans the download of the file.
pub(crate) fn plan(wanted: &UrlReference) -> Result<ModelPlan, PullError> {
    let name = wanted.url.path().rsplit('/').next().unwrap_or_default().to_owned();
    let origin = Origin::Url { url: wanted.url.clone(), auth: None };
    let digest = wanted.digest.clone();
    let quantization = quantization_of(&name).map(|(label, _)| label).unwrap_or_default();
    Ok(ModelPlan {
        name: derive_name(Path::new(&name)),
        reference: Reference::Url(wanted.clone()).to_string(),
        source: crate::http::shown(&wanted.url),
        revision: None,
        said: Description { format: "gguf".to_owned(), quantization, ..Description::default() },
        files: vec![PlanFile { name, role: Role::Model, size_bytes: None, digest, origin }],
    })
}
