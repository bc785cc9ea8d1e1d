//! Model names: `[owner/]model`. Case is ignored, and users may leave the owner out. The same rules apply to
//! names in the store and names of loaded models.

use crate::StoreError;
use crate::limits::NAME_BYTES_MAX;
use std::path::Path;

/// Result of matching a typed name against existing names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match<'a> {
    /// Exactly one name matches.
    One(&'a str),
    /// Several owners have a model of that name: their full names, in order.
    Ambiguous(Vec<&'a str>),
    /// No name matches.
    None,
}

/// Finds the name in `names` that `query` stands for. First tries the same name, ignoring case. If the query
/// has no owner, tries models of that name of any owner. If it has no `:quant` either, tries models of that
/// name in any quantisation.
pub fn find_name<'a>(query: &str, names: impl IntoIterator<Item = &'a str>) -> Match<'a> {
    let query = fold(query);
    let mut owned = Vec::new();
    let mut tagged = Vec::new();
    let without_owner = |name: &str| name.split_once('/').map(|(_, model)| model.to_owned());
    for name in names {
        let folded = fold(name);
        if folded == query {
            return Match::One(name);
        }
        if without_owner(&folded).is_some_and(|model| model == query) {
            owned.push(name);
        } else if let Some((untagged, _)) = folded.split_once(':')
            && (untagged == query || without_owner(untagged).is_some_and(|model| model == query))
        {
            tagged.push(name);
        }
    }
    let mut owned = if owned.is_empty() { tagged } else { owned };
    owned.sort_unstable();
    match owned[..] {
        [] => Match::None,
        [one] => Match::One(one),
        _ => Match::Ambiguous(owned),
    }
}

/// Minimum similarity for a suggestion.
const ALIKE_MIN: f64 = 0.7;

/// Returns the most similar name to suggest for an unknown one, or None if none is similar enough. Owners and
/// quantisations may be left out, as in [`find_name`].
pub fn nearest_name<'a>(asked: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let asked = fold(asked);
    let alike = |name: &str| {
        let model = name.split_once('/').map_or(name, |(_, model)| model);
        let bare = model.split_once(':').map_or(model, |(bare, _)| bare);
        let forms = [name, model, bare].map(|form| strsim::normalized_damerau_levenshtein(&asked, form));
        forms.into_iter().fold(0.0, f64::max)
    };
    let rated = names.into_iter().map(|name| (alike(&fold(name)), name));
    let best = rated.reduce(|best, other| if other.0 > best.0 { other } else { best });
    best.filter(|(alike, _)| *alike >= ALIKE_MIN).map(|(_, name)| name)
}

/// Names that no model of a store may have: the model built into the programs uses them.
pub const RESERVED_NAMES: [&str; 1] = ["hanzo-demo"];

/// Returns true if no model of a store may have the name.
pub(crate) fn is_reserved(name: &str) -> bool {
    RESERVED_NAMES.contains(&fold(name).as_str())
}

/// Form of a name for comparison and for keys: lower case.
pub(crate) fn fold(name: &str) -> String {
    name.to_lowercase()
}

/// Checks a model name: `[owner/]model`. Each part has letters, digits and `. _ - :`, and begins with a letter
/// or digit. At most 200 bytes in total.
///
/// # Errors
/// [`StoreError::BadName`] with the rule it breaks.
pub fn check_name(name: &str) -> Result<(), StoreError> {
    let bad = |why| {
        let mut end = name.len().min(NAME_BYTES_MAX);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        Err(StoreError::BadName { name: name[..end].to_owned(), why })
    };
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return bad("it is longer than 200 bytes");
    }
    if name.matches('/').count() > 1 {
        return bad("it may have one '/' at most, between owner and model");
    }
    for part in name.split('/') {
        if !part.starts_with(|c: char| c.is_alphanumeric()) {
            return bad("owner and model each begin with a letter or digit");
        }
        if !part.chars().all(allowed) {
            return bad("it may have letters, digits and the characters . _ - : only");
        }
    }
    Ok(())
}

fn allowed(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ':')
}

/// Derives a name from a path for a model without one: the file's name without `.gguf` and the part number of a
/// split file, or the directory's name. Characters that names may not have become `-`.
pub fn derive_name(path: &Path) -> String {
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = match file.len().checked_sub(5) {
        Some(at) if file.is_char_boundary(at) && file[at..].eq_ignore_ascii_case(".gguf") => &file[..at],
        _ => &file,
    };
    part_name(without_part_number(stem)).unwrap_or_else(|| "model".to_owned())
}

/// Adds the enclosing directory's name as owner to a derived name that is taken.
pub(crate) fn derive_owned_name(path: &Path, model: &str) -> Option<String> {
    let owner = part_name(&path.parent()?.file_name()?.to_string_lossy())?;
    let name = format!("{owner}/{model}");
    check_name(&name).is_ok().then_some(name)
}

/// Turns `text` into the owner or model part of a name. It has at most 90 bytes, so two parts and a number fit
/// the limit.
fn part_name(text: &str) -> Option<String> {
    const PART_BYTES_MAX: usize = 90;
    const { assert!(2 * PART_BYTES_MAX + 12 <= NAME_BYTES_MAX) };
    let mut part: String = text.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    let start = part.find(|c: char| c.is_alphanumeric())?;
    part.drain(..start);
    let mut end = part.len().min(PART_BYTES_MAX);
    while !part.is_char_boundary(end) {
        end -= 1;
    }
    part.truncate(end);
    Some(part)
}

/// Removes the part number from a name such as `model-00001-of-00003`.
fn without_part_number(stem: &str) -> &str {
    let number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let Some((head, count)) = stem.rsplit_once("-of-") else { return stem };
    match head.rsplit_once('-') {
        Some((model, part)) if number(part) && number(count) && !model.is_empty() => model,
        _ => stem,
    }
}

/// Cuts an arbitrary name for a message.
pub(crate) fn cut_name(name: &str) -> String {
    name.chars().take(NAME_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::nearest_name;

    #[test]
    fn the_nearest_name_is_the_one_that_was_meant() {
        let names = ["Qwen/Qwen3-4B:Q4_K_M", "mistral-7b", "hanzo-demo", "zen-nano"];
        for (asked, meant) in [
            ("hanzo-dem", Some("hanzo-demo")),
            ("Hanzo-Demon", Some("hanzo-demo")),
            ("qwen3-4", Some("Qwen/Qwen3-4B:Q4_K_M")),
            ("qwen/qwen3-4b:q8_0", Some("Qwen/Qwen3-4B:Q4_K_M")),
            ("zen-nanno", Some("zen-nano")),
            ("mistral-8b", Some("mistral-7b")),
            ("llama", None),
            ("", None),
        ] {
            assert_eq!(nearest_name(asked, names), meant, "{asked}");
        }
    }
}
