//! Pictures and sounds for a question: files named by options, and paths in a typed line, as terminals insert
//! them for dropped files.

use crate::error::CliError;
use hanzo_engine_proto::v1::{ContentPart, Media, content_part::Part};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Kind of media file, with the daemon's limits.
struct MediaKind {
    what: &'static str,
    option: &'static str,
    mime_type: &'static str,
    files_max: usize,
    bytes_max: usize,
    /// File extensions that identify a word of a typed line as such a file.
    endings: &'static [&'static str],
}

const PICTURE: MediaKind = MediaKind {
    what: "picture",
    option: "--image",
    mime_type: "",
    files_max: 16,
    bytes_max: 20 << 20,
    endings: &["jpg", "jpeg", "png", "webp", "gif"],
};
const SOUND: MediaKind = MediaKind {
    what: "sound",
    option: "--sound",
    mime_type: "audio/*",
    files_max: 16,
    bytes_max: 25 << 20,
    endings: &["wav", "mp3", "flac", "ogg", "opus", "webm", "m4a", "aac", "aiff"],
};

/// Reads the files named by options as parts of a message: pictures, then sounds.
pub(crate) fn of_options(images: &[PathBuf], sounds: &[PathBuf]) -> Result<Vec<ContentPart>, CliError> {
    let mut parts = Vec::new();
    for (kind, files) in [(&PICTURE, images), (&SOUND, sounds)] {
        let MediaKind { option, files_max, .. } = kind;
        if files.len() > *files_max {
            let count = files.len();
            return Err(CliError::Usage(format!("{option} is given {count} times, {files_max} is the most")));
        }
        for file in files {
            parts.push(part(kind, file)?);
        }
    }
    Ok(parts)
}

/// Reads a file as part of a message, in any format.
fn part(kind: &MediaKind, path: &Path) -> Result<ContentPart, CliError> {
    let (data, mime_type) = (bytes(kind, path)?.into(), kind.mime_type.to_owned());
    let media = Media { mime_type, data, ..Media::default() };
    Ok(ContentPart { part: Some(Part::Media(Box::new(media))) })
}

/// Reads a picture file.
///
/// # Errors
/// If it cannot be read, or exceeds the daemon's limit.
pub(crate) fn picture(path: &Path) -> Result<Vec<u8>, CliError> {
    bytes(&PICTURE, path)
}

fn bytes(kind: &MediaKind, path: &Path) -> Result<Vec<u8>, CliError> {
    let unusable = |why: String| CliError::Input(format!("{}: {why}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| unusable(error.to_string()))?;
    let mut data = Vec::new();
    let most = kind.bytes_max as u64 + 1;
    file.take(most).read_to_end(&mut data).map_err(|error| unusable(error.to_string()))?;
    if data.len() > kind.bytes_max {
        return Err(unusable(format!("it is longer than {} bytes", kind.bytes_max)));
    }
    Ok(data)
}

/// Typed line, split into media files and text.
pub(crate) struct MediaLine {
    /// Media files in the order of the line.
    pub(crate) parts: Vec<ContentPart>,
    /// Descriptions for people: `picture a.png`.
    pub(crate) names: Vec<String>,
    /// Line without the paths.
    pub(crate) text: String,
}

/// Takes the paths of pictures and sounds out of a typed line. Paths may be quoted, escaped with `\`, or plain.
///
/// # Errors
/// If a file exists and cannot be read.
pub(crate) fn dropped(line: &str) -> Result<MediaLine, CliError> {
    let mut found = MediaLine { parts: Vec::new(), names: Vec::new(), text: String::new() };
    let mut rest = line;
    while let Some(letter) = rest.chars().next() {
        let (path, length) = match letter {
            '\'' | '"' => quoted(rest, letter),
            _ => plain(rest),
        };
        let path = PathBuf::from(path);
        let kind = [PICTURE, SOUND].into_iter().find(|kind| {
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            kind.endings.iter().any(|known| ending.eq_ignore_ascii_case(known))
        });
        let at_word = found.text.is_empty() || found.text.ends_with(char::is_whitespace);
        if let Some(kind) = kind.filter(|_| at_word && path.is_file()) {
            found.parts.push(part(&kind, &path)?);
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.names.push(format!("{} {name}", kind.what));
            rest = rest[length..].trim_start();
        } else {
            found.text.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    found.text.truncate(found.text.trim_end().len());
    Ok(found)
}

/// Text between two quotes, and its length with them. Length 0 if the closing quote is missing.
fn quoted(text: &str, quote: char) -> (String, usize) {
    match text[1..].find(quote) {
        Some(end) => (text[1..=end].to_owned(), end + 2),
        None => (String::new(), 0),
    }
}

/// Unescaped word, and its length in the text.
fn plain(text: &str) -> (String, usize) {
    let (mut word, mut letters) = (String::new(), text.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            letter if letter.is_whitespace() => return (word, at),
            // Windows uses it in paths.
            '\\' if cfg!(not(windows)) => word.extend(letters.next().map(|(_, letter)| letter)),
            letter => word.push(letter),
        }
    }
    (word, text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_a_line_are_shown_and_the_rest_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, name).unwrap();
            path.display().to_string()
        };
        let (plain, spaced, sound, text) = (at("a.PNG"), at("b c.jpg"), at("d.wav"), at("e.txt"));
        let look = |line: &str| {
            let found = dropped(line).unwrap();
            let bytes = |part: ContentPart| match part.part {
                Some(Part::Media(media)) => {
                    format!("{}{}", media.mime_type, String::from_utf8_lossy(&media.data))
                }
                _ => panic!("a file is no text"),
            };
            (found.names, found.parts.into_iter().map(bytes).collect::<Vec<_>>().join(" "), found.text)
        };
        let seen = |names: &[&str], bytes: &str, text: &str| {
            (
                names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(),
                bytes.to_owned(),
                text.to_owned(),
            )
        };
        let escaped = spaced.replace(' ', "\\ ");
        assert_eq!(look(&plain), seen(&["picture a.PNG"], "a.PNG", ""));
        for line in [&format!("what's in '{spaced}' ?"), &format!("what's in \"{spaced}\" ?")] {
            assert_eq!(look(line), seen(&["picture b c.jpg"], "b c.jpg", "what's in ?"));
        }
        let two = format!("{sound} or {escaped}  which?");
        let both = seen(&["sound d.wav", "picture b c.jpg"], "audio/*d.wav b c.jpg", "or which?");
        assert_eq!(look(&two), both);
        // Of another kind, missing, or part of a longer word.
        let (other, inside) = (format!("read {text}"), format!("x{plain}"));
        for line in [other.as_str(), "a.png is 3\\4 'of it", &inside, "it's", "é\\"] {
            assert_eq!(look(line), seen(&[], "", line), "{line}");
        }
    }
}
