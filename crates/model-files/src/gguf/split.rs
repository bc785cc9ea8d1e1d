//! Models split into several GGUF files, `NAME-00001-of-00003.gguf`. The first holds the metadata, and each holds some
//! of the tensors; opening any of them opens all.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{Gguf, Metadata};
use crate::error::LoadError;
use crate::limits::MODEL_PARTS_MAX;
use crate::mapped::ModelBytes;

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Opens a GGUF file and, if it is part of a split model, the other parts next to it. Also returns the files in order.
///
/// # Errors
/// `Io` for a file that cannot be read, `Missing` for a missing part, and the errors of [`Gguf::parse`].
pub fn open(path: &Path) -> Result<(Gguf, Vec<PathBuf>), LoadError> {
    let opened = parse_file(path)?;
    let count = part_count(&opened.metadata)?;
    if count == 1 {
        return Ok((opened, vec![path.to_owned()]));
    }
    let paths = part_paths(path, count, opened.metadata.file())?;
    let mut parts = Vec::with_capacity(count);
    for (index, part_path) in paths.iter().enumerate() {
        if !part_path.exists() {
            return Err(LoadError::Missing {
                file: path.display().to_string(),
                what: format!("part {}", part_path.display()),
                hint: format!("; this model is split into {count} files that belong side by side"),
            });
        }
        let part = parse_file(part_path)?;
        check_number(&part.metadata, index, count)?;
        parts.push(part);
    }
    let model = join(parts)?;
    Ok((model, paths))
}

/// Files of the model that `path` is a part of, in order, including missing ones.
///
/// # Errors
/// `Corrupt` for a name or number that makes no sense.
pub fn part_files(path: &Path, metadata: &Metadata) -> Result<Vec<PathBuf>, LoadError> {
    match part_count(metadata)? {
        1 => Ok(vec![path.to_owned()]),
        count => part_paths(path, count, metadata.file()),
    }
}

fn parse_file(path: &Path) -> Result<Gguf, LoadError> {
    let bytes = ModelBytes::map(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
    Gguf::parse(&path.display().to_string(), &bytes)
}

fn part_count(metadata: &Metadata) -> Result<usize, LoadError> {
    let count = metadata.u32(COUNT)?.unwrap_or(1) as usize;
    if count > MODEL_PARTS_MAX {
        return Err(metadata.corrupt(COUNT, format!("{count} parts; at most {MODEL_PARTS_MAX} are allowed")));
    }
    Ok(count.max(1))
}

fn check_number(metadata: &Metadata, index: usize, count: usize) -> Result<(), LoadError> {
    let found_count = part_count(metadata)?;
    if found_count != count {
        return Err(metadata.corrupt(COUNT, format!("expected {count}, found {found_count}")));
    }
    match metadata.u32(NUMBER)? {
        Some(number) if number as usize == index => Ok(()),
        Some(number) => Err(metadata.corrupt(NUMBER, format!("expected {index}, found {number}"))),
        None => Err(metadata.missing(NUMBER)),
    }
}

/// Paths of all parts: `NAME-00001-of-00003.gguf` and so on.
fn part_paths(path: &Path, count: usize, file: &str) -> Result<Vec<PathBuf>, LoadError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let suffix = format!("-of-{count:05}.gguf");
    let prefix = name
        .strip_suffix(&suffix)
        .and_then(|stem| stem.rsplit_once('-'))
        .filter(|(_, number)| number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit()))
        .map(|(prefix, _)| prefix);
    let Some(prefix) = prefix else {
        return Err(LoadError::Corrupt {
            file: file.to_owned(),
            what: format!("key {COUNT}"),
            reason: format!("this is one of {count} parts, and its name does not end in -00001{suffix}"),
        });
    };
    Ok((1..=count).map(|number| path.with_file_name(format!("{prefix}-{number:05}{suffix}"))).collect())
}

fn join(mut parts: Vec<Gguf>) -> Result<Gguf, LoadError> {
    let rest = parts.split_off(1);
    let mut model = parts.pop().expect("there is a first part because a split model has at least two");
    model.tensors.extend(rest.into_iter().flat_map(|part| part.tensors));
    let mut names = HashSet::new();
    if let Some(twice) = model.tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        return Err(twice.corrupt("another part has it too"));
    }
    if let Some(expected) = model.metadata.integer(TENSORS)?
        && usize::try_from(expected) != Ok(model.tensors.len())
    {
        let reason = format!("expected {expected} tensors in all parts, found {}", model.tensors.len());
        return Err(model.metadata.corrupt(TENSORS, reason));
    }
    Ok(model)
}
