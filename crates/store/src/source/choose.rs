//! Choice of the files in a repository that make a model. For GGUF, the files of one quantisation. For
//! safetensors, or PyTorch files if there are none, all weights with tokenizer and configuration. For
//! whisper.cpp and Piper voices, one file.

use crate::PullError;
use crate::digest::Digest;
use crate::limits::GLOBS_MAX;
use crate::record::Role;
use globset::{Glob, GlobSet, GlobSetBuilder};
use std::collections::{BTreeMap, HashSet};

/// File that a source lists.
#[derive(Clone, Debug)]
pub(crate) struct ListedFile {
    pub(crate) name: String,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) digest: Option<Digest>,
}

/// Requirements for the choice.
pub(crate) struct Wish<'a> {
    /// Quantisation, or a file's name.
    pub(crate) choice: Option<&'a str>,
    /// Take safetensors even if there are GGUF files.
    pub(crate) mlx: bool,
    pub(crate) include: &'a Globs,
    pub(crate) exclude: &'a Globs,
}

/// Result of the choice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// Indices into the listing, weights first.
    pub(crate) files: Vec<usize>,
    /// `gguf`, `safetensors`, `pytorch`, `ggml` (whisper.cpp) or `onnx` (Piper).
    pub(crate) format: &'static str,
    /// Quantisation of the GGUF files, or a file's name if that states none. For whisper.cpp and Piper, the
    /// file's name.
    pub(crate) choice: Option<String>,
    /// Quantisation in upper case.
    pub(crate) quantization: Option<String>,
}

/// Globs over file names. Without globs, nothing matches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Globs(Option<GlobSet>);

impl Globs {
    pub(crate) fn new(field: &str, patterns: &[String]) -> Result<Self, PullError> {
        if patterns.is_empty() {
            return Ok(Self(None));
        }
        if patterns.len() > GLOBS_MAX {
            return Err(PullError::refused(field, format!("more than {GLOBS_MAX} patterns")));
        }
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            let glob = Glob::new(pattern).map_err(|error| PullError::refused(field, error.to_string()))?;
            set.add(glob);
        }
        set.build().map(|set| Self(Some(set))).map_err(|error| PullError::refused(field, error.to_string()))
    }

    fn matches(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|set| set.is_match(name))
    }
}

/// Quantisations, as the names of GGUF files state them.
const QUANTIZATIONS: &[&str] = &[
    "Q2_K_S",
    "Q2_K_L",
    "Q2_K_XL",
    "Q2_K",
    "Q3_K_S",
    "Q3_K_M",
    "Q3_K_L",
    "Q3_K_XL",
    "Q3_K",
    "Q4_K_S",
    "Q4_K_M",
    "Q4_K_L",
    "Q4_K_XL",
    "Q4_K",
    "Q5_K_S",
    "Q5_K_M",
    "Q5_K_L",
    "Q5_K_XL",
    "Q5_K",
    "Q6_K_L",
    "Q6_K_XL",
    "Q6_K",
    "Q8_K_XL",
    "Q4_0_4_4",
    "Q4_0_4_8",
    "Q4_0_8_8",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q8_1",
    "IQ1_S",
    "IQ1_M",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ2_M",
    "IQ3_XXS",
    "IQ3_XS",
    "IQ3_S",
    "IQ3_M",
    "IQ4_XS",
    "IQ4_NL",
    "TQ1_0",
    "TQ2_0",
    "MXFP4_MOE",
    "MXFP4",
    "BF16",
    "F16",
    "F32",
    "FP16",
    "FP32",
];

/// Folder of Kokoro's voices.
pub(crate) const VOICES: &str = "voices";

/// Default quantisations, in order of preference.
const DEFAULTS: &[&str] = &["Q4_K_M", "Q8_0"];

/// Chooses the files of a model. `folders` are those that `modules.json` names.
pub(crate) fn choose(
    what: &str,
    listing: &[ListedFile],
    folders: &[String],
    wish: &Wish<'_>,
) -> Result<Chosen, PullError> {
    let mut chosen = if wish.include.0.is_some() {
        let files = (0..listing.len()).filter(|at| wish.include.matches(&listing[*at].name)).collect();
        Chosen { files, format: "", choice: wish.choice.map(str::to_owned), quantization: None }
    } else {
        let ggufs: Vec<usize> = (0..listing.len()).filter(|at| is_gguf_weights(&listing[*at].name)).collect();
        let has_safetensors = listing.iter().any(|file| is_root(&file.name, ".safetensors"));
        let single: Vec<usize> =
            (0..listing.len()).filter(|at| is_single(listing, &listing[*at].name)).collect();
        let named = wish.choice.filter(|choice| listing.iter().any(|file| file.name == **choice));
        match (named, wish.choice) {
            (Some(name), _) => one_file(what, listing, name)?,
            (None, choice) if !wish.mlx && !ggufs.is_empty() && (choice.is_some() || !has_safetensors) => {
                gguf(what, listing, &ggufs, choice)?
            }
            (None, choice) if !single.is_empty() && (choice.is_some() || !has_safetensors) => {
                one_of(what, listing, &single, choice)?
            }
            (None, Some(choice)) => {
                let candidates = ggufs.iter().map(|at| listing[*at].name.clone()).collect();
                let why = format!("it has no file or quantization {choice:?}");
                return Err(choice_error(what, why, candidates));
            }
            (None, None) => safetensors(listing, folders),
        }
    };
    if wish.include.0.is_none() {
        chosen.files.extend(projector(listing, &chosen.files));
    }
    chosen.files.retain(|at| !wish.exclude.matches(&listing[*at].name));
    chosen.files.sort_by_key(|at| (!is_weights(&listing[*at].name), listing[*at].name.clone()));
    let Some(first) = chosen.files.first().filter(|at| is_weights(&listing[**at].name)) else {
        let why = "no safetensors, GGUF or PyTorch weights are among its files, or those chosen";
        return Err(PullError::refused(what, why));
    };
    let name = &listing[*first].name;
    chosen.format = match () {
        () if is_gguf(name) => "gguf",
        () if is_ggml(name) => "ggml",
        () if is_onnx(name) => "onnx",
        () if [".bin", ".pth"].iter().any(|end| name.to_ascii_lowercase().ends_with(end)) => "pytorch",
        () => "safetensors",
    };
    if chosen.format == "gguf" && chosen.quantization.is_none() {
        chosen.quantization = quantization_of(&listing[*first].name).map(|(label, _)| label);
    }
    Ok(chosen)
}

fn choice_error(what: &str, why: impl Into<String>, mut candidates: Vec<String>) -> PullError {
    candidates.sort();
    candidates.dedup();
    let more = candidates.len().saturating_sub(20);
    candidates.truncate(20);
    match (candidates.is_empty(), more) {
        (true, _) => candidates.push("none".to_owned()),
        (_, 0) => {}
        (_, more) => candidates.push(format!("{more} more")),
    }
    PullError::Choice { what: what.to_owned(), why: why.into(), candidates }
}

/// Chooses a file by name, with the other parts if it is split.
fn one_file(what: &str, listing: &[ListedFile], name: &str) -> Result<Chosen, PullError> {
    let (stem, _) = without_part(name);
    let settings = is_onnx(name).then(|| format!("{name}.json"));
    if settings.as_ref().is_some_and(|settings| !listing.iter().any(|file| file.name == *settings)) {
        return Err(PullError::refused(
            what,
            format!("a voice of Piper's has its settings beside it, in {name}.json"),
        ));
    }
    let is_part =
        |file: &ListedFile| without_part(&file.name).0 == stem || settings.as_ref() == Some(&file.name);
    let files: Vec<usize> = (0..listing.len()).filter(|at| is_part(&listing[*at])).collect();
    check_parts(what, listing, &files)?;
    let quantization = quantization_of(name).map(|(label, _)| label);
    Ok(Chosen { files, format: "", choice: Some(name.to_owned()), quantization })
}

/// Chooses all parts of the requested quantisation, or of the default one.
fn gguf(
    what: &str,
    listing: &[ListedFile],
    ggufs: &[usize],
    choice: Option<&str>,
) -> Result<Chosen, PullError> {
    // Models of the repository: the parts of each, by name without the part number.
    let mut models: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for at in ggufs {
        models.entry(without_part(&listing[*at].name).0).or_default().push(*at);
    }
    let labels = |name: &str| quantization_of(name).map(|(short, long)| [short, long]);
    let having = |wanted: &str| -> Vec<&Vec<usize>> {
        let wanted = wanted.to_ascii_uppercase();
        let has = |name: &String| labels(name).is_some_and(|labels| labels.contains(&wanted));
        models.iter().filter(|(name, _)| has(name)).map(|(_, files)| files).collect()
    };
    let candidates = || {
        let label = |name: &String| labels(name).map_or(name.clone(), |[_, long]| long);
        models.keys().map(label).collect::<Vec<_>>()
    };
    let found = match choice {
        Some(choice) => having(choice),
        None if models.len() == 1 => models.values().collect(),
        None => {
            DEFAULTS.iter().map(|label| having(label)).find(|found| !found.is_empty()).unwrap_or_default()
        }
    };
    let files = match found[..] {
        [files] => files.clone(),
        [] => {
            let why = match choice {
                Some(choice) => format!("it has no quantization {choice:?}"),
                None => "say which quantization (--quant)".to_owned(),
            };
            return Err(choice_error(what, why, candidates()));
        }
        _ => {
            let names = found.iter().filter_map(|files| files.first()).map(|at| listing[*at].name.clone());
            let why = "several models of it have that quantization, so name a file (:FILE)";
            return Err(choice_error(what, why, names.collect()));
        }
    };
    check_parts(what, listing, &files)?;
    let name = &listing[files[0]].name;
    let label =
        quantization_of(name).map(|(short, long)| if having(&short).len() > 1 { long } else { short });
    let choice = label.clone().unwrap_or_else(|| name.clone());
    Ok(Chosen { files, format: "", choice: Some(choice), quantization: label })
}

/// Chooses one of several single-file models: the one with the requested name, or the only one.
fn one_of(
    what: &str,
    listing: &[ListedFile],
    single: &[usize],
    choice: Option<&str>,
) -> Result<Chosen, PullError> {
    let names = || single.iter().map(|at| listing[*at].name.as_str());
    let found: Vec<&str> = match choice {
        Some(choice) => names().filter(|name| short_name(name).eq_ignore_ascii_case(choice)).collect(),
        None => names().collect(),
    };
    match (&found[..], choice) {
        ([name], _) => one_file(what, listing, name),
        ([], Some(choice)) => {
            let short = names().map(|name| short_name(name).to_owned()).collect();
            Err(choice_error(what, format!("it has no file {choice:?}"), short))
        }
        _ => {
            Err(choice_error(what, "say which of its models", found.into_iter().map(str::to_owned).collect()))
        }
    }
}

/// Returns true if a file is a complete model: whisper.cpp's (except encoders for other hardware), or Piper's
/// with its settings beside it.
fn is_single(listing: &[ListedFile], name: &str) -> bool {
    is_ggml(name) || is_onnx(name) && listing.iter().any(|file| file.name.strip_suffix(".json") == Some(name))
}

fn is_ggml(name: &str) -> bool {
    let file = in_folder(name).1.to_ascii_lowercase();
    file.starts_with("ggml-") && file.ends_with(".bin")
}

fn is_onnx(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".onnx")
}

/// Short name of a single-file model: `base.en-q5_1`, `en_US-lessac-medium`.
pub(crate) fn short_name(name: &str) -> &str {
    let file = in_folder(name).1;
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    stem.strip_prefix("ggml-").filter(|_| is_ggml(name)).unwrap_or(stem)
}

/// Chooses weights, tokenizer and configuration in the root, and the folders that `modules.json` names.
fn safetensors(listing: &[ListedFile], folders: &[String]) -> Chosen {
    // PyTorch weights are used only if there are no safetensors.
    let speaks = is_kokoro(listing);
    let own = |file: &&ListedFile| {
        let file = in_folder(&file.name).1.to_ascii_lowercase();
        file.starts_with("model") && file.ends_with(".safetensors")
    };
    let with_own: HashSet<&str> = listing.iter().filter(own).map(|file| in_folder(&file.name).0).collect();
    let wanted = |name: &str| {
        let (folder, file) = in_folder(name);
        let has_safetensors = with_own.contains(folder);
        if speaks && (is_root(name, ".pth") || folder == VOICES && file.ends_with(".pt")) {
            return true;
        }
        if !folder.is_empty() {
            return folders.iter().any(|known| known == folder) && is_side_file(file, has_safetensors);
        }
        // Some repositories have the same weights a second time in their makers' own layout.
        let twice = has_safetensors && file.starts_with("consolidated");
        !twice && is_side_file(file, has_safetensors)
    };
    let files = (0..listing.len()).filter(|at| wanted(&listing[*at].name)).collect();
    Chosen { files, format: "safetensors", choice: None, quantization: None }
}

/// Returns true for Kokoro's layout: PyTorch weights in the root, and a folder of voices.
fn is_kokoro(listing: &[ListedFile]) -> bool {
    let has = |wanted: &dyn Fn(&str) -> bool| listing.iter().any(|file| wanted(&file.name));
    has(&|name| is_root(name, ".pth")) && has(&|name| in_folder(name).0 == VOICES)
}

/// Splits a path into folder and file name.
fn in_folder(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

fn is_side_file(file: &str, has_safetensors: bool) -> bool {
    let lower = file.to_ascii_lowercase();
    let ends = [".safetensors", ".json", ".jinja", ".model", ".tiktoken"];
    let whole = ["merges.txt", "vocab.txt", "sparse_linear.pt", "license", "license.txt", "license.md"];
    let pytorch = lower.starts_with("pytorch_model") && lower.ends_with(".bin");
    ends.iter().any(|end| lower.ends_with(end))
        || whole.contains(&lower.as_str())
        || pytorch && !has_safetensors
}

fn is_root(name: &str, end: &str) -> bool {
    !name.contains('/') && name.to_ascii_lowercase().ends_with(end)
}

pub(crate) fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

/// Returns true for GGUF weights, not for a projector or an importance matrix.
fn is_gguf_weights(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    is_gguf(name) && !file.contains("mmproj") && !file.contains("imatrix")
}

/// Returns true for the vision projector of a GGUF model.
fn is_projector(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    is_gguf(name) && file.contains("mmproj")
}

/// Formats of projectors as stated in their names, best first.
const PROJECTORS: [&str; 4] = ["F16", "BF16", "Q8_0", "F32"];

/// Chooses the projector for the chosen GGUF file, from its folder or the root.
fn projector(listing: &[ListedFile], chosen: &[usize]) -> Option<usize> {
    let model = chosen.iter().find(|at| is_gguf_weights(&listing[**at].name))?;
    let folder = in_folder(&listing[*model].name).0;
    let all = (0..listing.len()).filter(|at| is_projector(&listing[*at].name));
    let known = all.filter(|at| ["", folder].contains(&in_folder(&listing[*at].name).0));
    known.min_by_key(|at| {
        let name = &listing[*at].name;
        let stored =
            quantization_of(name).and_then(|(label, _)| PROJECTORS.iter().position(|of| *of == label));
        (in_folder(name).0 != folder, stored.unwrap_or(PROJECTORS.len()), name.clone())
    })
}

/// Role of a file, by its name.
pub(crate) fn role_of(name: &str) -> Role {
    if is_projector(name) { Role::Projector } else { Role::Model }
}

fn is_weights(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    is_gguf_weights(name) || [".safetensors", ".bin", ".onnx", ".pth"].iter().any(|end| lower.ends_with(end))
}

/// Removes `-00001-of-00003` from a name, and returns the number of parts.
fn without_part(name: &str) -> (String, Option<usize>) {
    let Some(stem) = name.len().checked_sub(5).filter(|at| is_gguf(name) && name.is_char_boundary(*at))
    else {
        return (name.to_owned(), None);
    };
    let stem = &name[..stem];
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((head, count)) = stem.rsplit_once("-of-")
        && let Some((model, part)) = head.rsplit_once('-')
        && digits(part)
        && digits(count)
    {
        return (format!("{model}.gguf"), count.parse().ok());
    }
    (name.to_owned(), None)
}

/// Checks that a split model has all of its parts.
fn check_parts(what: &str, listing: &[ListedFile], files: &[usize]) -> Result<(), PullError> {
    let count = files.iter().find_map(|at| without_part(&listing[*at].name).1);
    match count {
        Some(count) if count != files.len() => {
            let why = format!("{} has {} of its {count} parts", listing[files[0]].name, files.len());
            Err(PullError::refused(what, why))
        }
        _ => Ok(()),
    }
}

/// Quantisation stated by a file's name or folder, in upper case: alone, and with its prefix (`UD-Q4_K_XL`).
pub(crate) fn quantization_of(name: &str) -> Option<(String, String)> {
    let upper = name.to_ascii_uppercase();
    let bytes = upper.as_bytes();
    let alone = |at: usize, label: &str| {
        let before = at.checked_sub(1).map(|before| bytes[before]);
        let after = bytes.get(at + label.len());
        before.is_none_or(|byte| !byte.is_ascii_alphanumeric() && byte != b'_')
            && after.is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
    };
    // Take the last match: model names may contain such words too.
    let places = QUANTIZATIONS.iter().flat_map(|label| {
        upper.match_indices(label).filter(|(at, label)| alone(*at, label)).map(|(at, _)| (at, *label))
    });
    let (at, label) = places.max_by_key(|(at, label)| (*at, label.len()))?;
    let prefixed = upper[..at].ends_with("UD-");
    Some((label.to_owned(), if prefixed { format!("UD-{label}") } else { label.to_owned() }))
}

#[cfg(test)]
mod tests;
