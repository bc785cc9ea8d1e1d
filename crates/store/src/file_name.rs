//! Checks of file names within a model, as servers and archives state them. A name is accepted only if it means
//! the same file on every machine and stays within the model's folder. Anything else is refused, never
//! repaired.

use crate::limits::{FILE_FOLDERS_MAX, FILE_NAME_BYTES_MAX};

/// Checks a file name such as `folder/file`. Parts must be printable ASCII. No part may be hidden, lead
/// upwards, or have a special meaning on some file system.
///
/// # Errors
/// The rule it breaks.
pub(crate) fn check_file_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("it is empty");
    }
    if name.len() > FILE_NAME_BYTES_MAX {
        return Err("it is longer than 255 bytes");
    }
    if name.matches('/').count() > FILE_FOLDERS_MAX {
        return Err("it lies more than 4 folders deep");
    }
    for part in name.split('/') {
        check_part(part)?;
    }
    Ok(())
}

fn check_part(part: &str) -> Result<(), &'static str> {
    if part.is_empty() {
        return Err("it has an empty part, or is absolute");
    }
    if part.starts_with('.') {
        return Err("a part of it begins with '.'");
    }
    // Readers cannot tell apart letters that look alike, join or reverse the line.
    if !part.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        return Err("it has characters other than printable ASCII");
    }
    if part.contains(['\\', ':', '*', '?', '"', '<', '>', '|', '%', '$', '`', '~']) {
        return Err("it has a character that file systems or shells take for something else");
    }
    if part.ends_with([' ', '.']) || part.starts_with([' ', '-']) {
        return Err("a part of it ends in a space or '.', or begins with a space or '-'");
    }
    let stem = part.split('.').next().unwrap_or(part).to_ascii_uppercase();
    let numbered = |word: &str| {
        stem.strip_prefix(word).is_some_and(|rest| rest.len() == 1 && rest.as_bytes()[0].is_ascii_digit())
    };
    if matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL") || numbered("COM") || numbered("LPT") {
        return Err("it is the name of a device");
    }
    Ok(())
}

/// Returns the first name that occurs twice (ignoring letter case) or that another name needs as a folder.
pub(crate) fn clash<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut folded: Vec<String> = names.into_iter().map(str::to_ascii_lowercase).collect();
    folded.sort_unstable();
    let set: std::collections::HashSet<&str> = folded.iter().map(String::as_str).collect();
    let twice = folded.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone());
    twice.or_else(|| {
        let mut folders = folded.iter().flat_map(|name| name.match_indices('/').map(|(at, _)| &name[..at]));
        folders.find(|folder| set.contains(folder)).map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_taken_and_tricks_are_not() {
        for good in [
            "model.gguf",
            "1_Pooling/config.json",
            "Qwen3-4B-Q4_K_M-00001-of-00002.gguf",
            "a/b/c/d/e.json",
            "READ ME.txt",
            "model (1)+x=y,@z#!.bin",
            "COM.json",
        ] {
            check_file_name(good).unwrap();
        }
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            ".hidden",
            "a/.git/config",
            "a\\b",
            "C:x",
            "x\0y",
            "x\n",
            "modél",
            "a\u{202e}b",
            "\u{ff0e}\u{ff0e}/x",
            "a.",
            "a ",
            " a",
            "-rf",
            "nul",
            "COM1.txt",
            "~/x",
            "a/b/c/d/e/f",
            "$HOME",
            "%2e%2e",
            &"a".repeat(256),
        ] {
            assert!(check_file_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn clashes_are_found() {
        assert_eq!(clash(["a", "b", "A"]), Some("a".into()));
        assert_eq!(clash(["a/b", "a"]), Some("a".into()));
        assert_eq!(clash(["a/b", "a/c", "ab"]), None);
    }
}
