//! Source for a model on this machine: used in place, or copied into the store.

use crate::PullError;
use crate::download::disk;
use crate::limits::FILES_MAX;
use crate::name::derive_name;
use crate::plan::{ModelPlan, Origin, PlanFile};
use crate::record::Description;
use crate::source::choose::{Globs, ListedFile, VOICES, Wish, choose, role_of};
use crate::source::hub::parse_modules;
use std::fs;
use std::path::Path;

/// Plans a copy of the file or folder.
pub(crate) fn plan(path: &Path, include: &Globs, exclude: &Globs) -> Result<ModelPlan, PullError> {
    let path = path.canonicalize().map_err(disk(path))?;
    let shown = path.display().to_string();
    let is_dir = path.is_dir();
    let folder = if is_dir { path.as_path() } else { path.parent().unwrap_or(&path) };
    let mut listing = Vec::new();
    let modules = folder.join("modules.json");
    let folders = match is_dir && modules.is_file() {
        true => parse_modules(&fs::read(&modules).map_err(disk(&modules))?)
            .map_err(|why| PullError::refused(modules.display().to_string(), why))?,
        false => Vec::new(),
    };
    list(folder, "", &mut listing)?;
    for below in &folders {
        crate::file_name::check_file_name(below).map_err(|why| PullError::refused(below, why))?;
        // A module without files (Normalize) has an empty folder, which git does not keep.
        let below_folder = folder.join(below);
        if below_folder.is_dir() {
            list(&below_folder, &format!("{below}/"), &mut listing)?;
        }
    }
    // Kokoro's voices, which `modules.json` does not name.
    let voices = folder.join(VOICES);
    if is_dir && voices.is_dir() && listing.iter().any(|file| file.name.ends_with(".pth")) {
        list(&voices, &format!("{VOICES}/"), &mut listing)?;
    }
    let asked = if is_dir { None } else { path.file_name().and_then(|name| name.to_str()) };
    let wish = Wish { choice: asked, mlx: false, include, exclude };
    let chosen = choose(&shown, &listing, &folders, &wish)?;
    let files = chosen.files.iter().map(|at| {
        let ListedFile { name, size_bytes, digest } = listing[*at].clone();
        let role = role_of(&name);
        PlanFile { origin: Origin::Copy(folder.join(&name)), name, role, size_bytes, digest }
    });
    Ok(ModelPlan {
        name: derive_name(&path),
        reference: format!("file://{shown}"),
        source: format!("file://{shown}"),
        revision: None,
        said: Description {
            format: chosen.format.to_owned(),
            quantization: chosen.quantization.clone().unwrap_or_default(),
            ..Description::default()
        },
        files: files.collect(),
    })
}

/// Lists regular files. Follows links, because many models' folders consist of links.
fn list(folder: &Path, prefix: &str, listing: &mut Vec<ListedFile>) -> Result<(), PullError> {
    for entry in fs::read_dir(folder).map_err(disk(folder))?.flatten() {
        let Ok(meta) = fs::metadata(entry.path()) else { continue };
        if let (true, Ok(name)) = (meta.is_file(), entry.file_name().into_string())
            && listing.len() < 16 * FILES_MAX
        {
            listing.push(ListedFile {
                name: format!("{prefix}{name}"),
                size_bytes: Some(meta.len()),
                digest: None,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sentence-transformers model cloned by git, whose last module has no files.
    #[test]
    fn a_folder_that_git_did_not_keep_holds_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        write("config.json", "{}");
        write("model.safetensors", "weights");
        write("1_Pooling/config.json", "{}");
        write(
            "modules.json",
            r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#,
        );
        let none = Globs::default();
        let plan = plan(folder.path(), &none, &none).unwrap();
        let mut names: Vec<&str> = plan.files.iter().map(|file| file.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["1_Pooling/config.json", "config.json", "model.safetensors", "modules.json"]);
    }
}
