//! Texts from the command line, a file or a pipe, one at a time: lines of text, or JSON Lines with the text in
//! a field. Memory is bounded by one line. An invalid line is reported as such, and reading goes on.

use crate::args::InputFormat;
use crate::error::CliError;
use crate::shown::picture;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

/// Maximum bytes of a line. Of a longer line only the start is read, and it is refused.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Default field of a JSON line that has the text.
const FIELD: &str = "text";

/// Source of texts.
#[derive(Debug)]
enum TextSource {
    Words(Vec<String>),
    /// Texts, followed by picture files.
    Shown(Vec<String>, Vec<PathBuf>),
    File(PathBuf),
    Stdin,
}

/// Source of texts and their format.
#[derive(Debug)]
pub(crate) struct Input {
    source: TextSource,
    pub(crate) format: InputFormat,
    /// Field of JSON lines that has the text.
    pub(crate) field: String,
}

/// Result of a first pass over a whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Number of items.
    pub(crate) rows: u64,
    /// SHA-256 of the bytes, in hexadecimal.
    pub(crate) sha256: String,
}

/// Item: a line, or a text of the command line.
#[derive(Debug)]
pub(crate) struct Item {
    /// Number of its line or text, from 1.
    pub(crate) number: u64,
    /// Running digest of this line and all before it.
    pub(crate) chain: u64,
    /// Line as read, without its line ending.
    pub(crate) line: Vec<u8>,
    /// Field `id` of a JSON line.
    pub(crate) id: Option<Box<RawValue>>,
    pub(crate) text: ItemText,
}

/// Text of an item.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ItemText {
    Some(String),
    /// Empty line of a text file. It keeps its place and has no vector.
    Blank,
    /// Picture file in place of a text.
    Picture(PathBuf),
    /// Unusable item, with the reason.
    Bad(String),
}

impl Input {
    /// Interprets a command's texts and options. None if neither texts nor a file are given.
    pub(crate) fn new(
        words: &[String],
        path: Option<&str>,
        format: Option<InputFormat>,
        field: Option<&str>,
    ) -> Result<Option<Self>, CliError> {
        let source = match path {
            None if words.is_empty() => return Ok(None),
            None => TextSource::Words(words.to_vec()),
            Some("-") => TextSource::Stdin,
            Some(path) => TextSource::File(path.into()),
        };
        let format = match (&source, format) {
            (TextSource::Words(_), Some(_)) => {
                return Err(CliError::Usage("--input-format is for --input".to_owned()));
            }
            (_, Some(format)) => format,
            (TextSource::File(path), None) => {
                let end = path.extension().map(|end| end.to_string_lossy().to_lowercase());
                match end.as_deref() {
                    Some("txt" | "text") => InputFormat::Txt,
                    Some("jsonl" | "ndjson") => InputFormat::Jsonl,
                    _ => {
                        let path = path.display();
                        let message =
                            format!("{path} ends neither in .txt nor in .jsonl: add --input-format");
                        return Err(CliError::Usage(message));
                    }
                }
            }
            (_, None) => InputFormat::Txt,
        };
        if field.is_some() && format == InputFormat::Txt {
            return Err(CliError::Usage("--field is for JSON lines".to_owned()));
        }
        Ok(Some(Self { source, format, field: field.unwrap_or(FIELD).to_owned() }))
    }

    /// Texts of a command, followed by pictures. Each is written as an object that names its kind, as JSON
    /// lines are.
    pub(crate) fn with_pictures(words: &[String], pictures: &[PathBuf]) -> Self {
        let source = TextSource::Shown(words.to_vec(), pictures.to_vec());
        Self { source, format: InputFormat::Jsonl, field: FIELD.to_owned() }
    }

    /// Name for messages.
    pub(crate) fn name(&self) -> String {
        match &self.source {
            TextSource::Words(_) => "the texts".to_owned(),
            TextSource::Shown(..) => "the texts and pictures".to_owned(),
            TextSource::File(path) => path.display().to_string(),
            TextSource::Stdin => "stdin".to_owned(),
        }
    }

    /// Position of an item, in the style of compilers.
    pub(crate) fn at(&self, number: u64) -> String {
        match &self.source {
            TextSource::Words(_) => format!("text {number}"),
            TextSource::Shown(words, pictures) => {
                match pictures.get((number as usize).wrapping_sub(words.len() + 1)) {
                    Some(picture) => picture.display().to_string(),
                    None => format!("text {number}"),
                }
            }
            _ => format!("{}:{number}", self.name()),
        }
    }

    /// Reads a file once completely. None for a pipe, which cannot be read twice.
    pub(crate) fn survey(&self) -> Result<Option<Survey>, CliError> {
        let mut sha = Sha256::new();
        let path = match &self.source {
            TextSource::Words(words) => {
                for word in words {
                    sha.update((word.len() as u64).to_le_bytes());
                    sha.update(word);
                }
                return Ok(Some(Survey { rows: words.len() as u64, sha256: hex(&sha.finalize()) }));
            }
            TextSource::Shown(words, pictures) => {
                for word in words {
                    sha.update((word.len() as u64).to_le_bytes());
                    sha.update(word);
                }
                for path in pictures {
                    let data = picture(path)?;
                    sha.update((data.len() as u64).to_le_bytes());
                    sha.update(data);
                }
                let rows = (words.len() + pictures.len()) as u64;
                return Ok(Some(Survey { rows, sha256: hex(&sha.finalize()) }));
            }
            TextSource::Stdin => return Ok(None),
            TextSource::File(path) => path,
        };
        let failed = |source| CliError::Path { path: path.clone(), source };
        let file = File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Ok(None);
        }
        let mut lines = Lines::new(BufReader::with_capacity(1 << 18, HashedFile { from: file, sha }));
        let mut rows = 0;
        while let Some(line) = lines.next().map_err(failed)? {
            rows += u64::from(is_item(self.format, &line.bytes));
        }
        Ok(Some(Survey { rows, sha256: hex(&lines.from.into_inner().sha.finalize()) }))
    }

    /// Starts to read.
    pub(crate) fn items(&self) -> Result<Items, CliError> {
        let lines =
            |from: Box<dyn Read + Send>| Supply::Lines(Lines::new(BufReader::with_capacity(1 << 18, from)));
        let from = match &self.source {
            TextSource::Words(words) => Supply::Words(words.clone().into_iter()),
            TextSource::Shown(words, pictures) => {
                Supply::Shown(words.clone().into_iter(), pictures.clone().into_iter())
            }
            TextSource::Stdin => lines(Box::new(io::stdin())),
            TextSource::File(path) => {
                let file = File::open(path);
                lines(Box::new(file.map_err(|source| CliError::Path { path: path.clone(), source })?))
            }
        };
        Ok(Items { from, format: self.format, field: self.field.clone(), number: 0, chain: 0, picture: None })
    }
}

/// Reader of the items of an input.
pub(crate) struct Items {
    from: Supply,
    format: InputFormat,
    field: String,
    number: u64,
    chain: u64,
    /// Picture of the item that was read last.
    picture: Option<PathBuf>,
}

enum Supply {
    Words(std::vec::IntoIter<String>),
    Shown(std::vec::IntoIter<String>, std::vec::IntoIter<PathBuf>),
    Lines(Lines<Box<dyn Read + Send>>),
}

impl Items {
    /// Reads the next item.
    pub(crate) fn next(&mut self) -> io::Result<Option<Item>> {
        let Some(line) = self.line()? else { return Ok(None) };
        let mut item = Item {
            number: self.number,
            chain: self.chain,
            line: Vec::new(),
            id: None,
            text: ItemText::Blank,
        };
        item.text = match &self.from {
            _ if let Some(picture) = self.picture.take() => ItemText::Picture(picture),
            _ if line.cut => ItemText::Bad(format!("the line has over {LINE_BYTES_MAX} bytes")),
            Supply::Words(_) if line.bytes.is_empty() => ItemText::Bad("the text is empty".to_owned()),
            _ => match std::str::from_utf8(&line.bytes) {
                Err(error) => ItemText::Bad(format!("it is not UTF-8 at byte {}", error.valid_up_to())),
                Ok(text) => match self.format {
                    InputFormat::Txt if text.is_empty() => ItemText::Blank,
                    InputFormat::Txt => ItemText::Some(text.to_owned()),
                    InputFormat::Jsonl => match Object::read(text) {
                        Err(why) => ItemText::Bad(why),
                        Ok(object) => {
                            item.id = object.get("id").map(ToOwned::to_owned);
                            text_of(&object, &self.field)
                        }
                    },
                },
            },
        };
        if !line.cut {
            item.line = line.bytes;
        }
        Ok(Some(item))
    }

    /// Skips items that are done. Returns their running digest, or None if there are fewer.
    pub(crate) fn skip(&mut self, rows: u64) -> io::Result<Option<u64>> {
        for _ in 0..rows {
            if self.line()?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(self.chain))
    }

    fn line(&mut self) -> io::Result<Option<InputLine>> {
        let line = loop {
            let line = match &mut self.from {
                Supply::Words(words) => words.next().map(|word| InputLine {
                    len: word.len() as u64,
                    bytes: word.into(),
                    cut: false,
                }),
                Supply::Shown(words, pictures) => {
                    let shown = words.next().map(|word| (FIELD, word));
                    self.picture = if shown.is_none() { pictures.next() } else { None };
                    let named = self.picture.as_ref().map(|path| ("image", path.display().to_string()));
                    let line =
                        shown.or(named).map(|(name, value)| serde_json::json!({ name: value }).to_string());
                    line.map(|line| InputLine { len: line.len() as u64, bytes: line.into(), cut: false })
                }
                Supply::Lines(lines) => lines.next()?,
            };
            let Some(line) = line else { return Ok(None) };
            self.number += 1;
            if matches!(self.from, Supply::Words(_)) || is_item(self.format, &line.bytes) {
                break line;
            }
        };
        let mut sha = Sha256::new();
        sha.update(self.chain.to_le_bytes());
        // The last line may or may not end with a line feed.
        let len = if line.cut { line.len } else { line.bytes.len() as u64 };
        sha.update(len.to_le_bytes());
        sha.update(&line.bytes);
        self.chain = short(&sha.finalize());
        Ok(Some(line))
    }
}

/// Returns true if the line is an item: blank lines between JSON objects are not, but an empty line of text is.
fn is_item(format: InputFormat, line: &[u8]) -> bool {
    format == InputFormat::Txt || !line.trim_ascii().is_empty()
}

fn text_of(object: &Object, field: &str) -> ItemText {
    match object.get(field).map(|value| serde_json::from_str::<String>(value.get())) {
        None => ItemText::Bad(format!("it has no field {field:?}")),
        Some(Err(_)) => ItemText::Bad(format!("its field {field:?} is no string")),
        Some(Ok(text)) if text.is_empty() => ItemText::Bad("its text is empty".to_owned()),
        Some(Ok(text)) => ItemText::Some(text),
    }
}

/// First 8 bytes of a digest.
pub(crate) fn short(digest: &[u8]) -> u64 {
    digest.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// JSON object whose values stay as they were written.
pub(crate) struct Object(pub(crate) Vec<(String, Box<RawValue>)>);

impl Object {
    /// Parses an object, or returns the reason why it is invalid.
    pub(crate) fn read(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| {
            let text = error.to_string();
            let what = text.split(" at line ").next().unwrap_or_default();
            format!("it is no JSON object: {what} at column {}", error.column())
        })
    }

    fn get(&self, field: &str) -> Option<&RawValue> {
        // The last of equal names counts, as is usual for JSON.
        self.0.iter().rev().find(|(name, _)| name == field).map(|(_, value)| value.as_ref())
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// File that is hashed while it is read.
struct HashedFile {
    from: File,
    sha: Sha256,
}

impl Read for HashedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        self.sha.update(&into[..count]);
        Ok(count)
    }
}

/// Reader of lines of bytes, without their endings (`\n` or `\r\n`) and without a byte order mark.
struct Lines<R> {
    from: BufReader<R>,
    first: bool,
}

struct InputLine {
    /// At most [`LINE_BYTES_MAX`] bytes of the line.
    bytes: Vec<u8>,
    /// Bytes of the whole line, ending included.
    len: u64,
    cut: bool,
}

impl<R: Read> Lines<R> {
    fn new(from: BufReader<R>) -> Self {
        Self { from, first: true }
    }

    fn next(&mut self) -> io::Result<Option<InputLine>> {
        let mut line = InputLine { bytes: Vec::new(), len: 0, cut: false };
        loop {
            let buffer = match self.from.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            if buffer.is_empty() {
                if line.len == 0 {
                    return Ok(None);
                }
                break;
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = &buffer[..end.unwrap_or(buffer.len())];
            let room = LINE_BYTES_MAX - line.bytes.len();
            line.cut |= part.len() > room;
            line.bytes.extend_from_slice(&part[..part.len().min(room)]);
            let count = part.len() + usize::from(end.is_some());
            line.len += count as u64;
            self.from.consume(count);
            if end.is_some() {
                break;
            }
        }
        if line.bytes.last() == Some(&b'\r') {
            line.bytes.pop();
        }
        if std::mem::take(&mut self.first) && line.bytes.starts_with(b"\xef\xbb\xbf") {
            line.bytes.drain(..3);
        }
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use InputFormat::{Jsonl, Txt};

    fn read(format: InputFormat, bytes: &[u8]) -> Vec<Item> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("input");
        std::fs::write(&path, bytes).unwrap();
        let input = Input::new(&[], path.to_str(), Some(format), None).unwrap().unwrap();
        let mut items = input.items().unwrap();
        let read: Vec<Item> = std::iter::from_fn(|| items.next().unwrap()).collect();
        assert_eq!(input.survey().unwrap().unwrap().rows, read.len() as u64, "the survey counts the same");
        read
    }

    fn some(text: &str) -> ItemText {
        ItemText::Some(text.to_owned())
    }

    fn texts(items: Vec<Item>) -> Vec<ItemText> {
        items.into_iter().map(|item| item.text).collect()
    }

    #[test]
    fn lines_of_text_keep_their_places() {
        let expected = vec![some("a"), ItemText::Blank, some(" b "), some("c")];
        assert_eq!(texts(read(Txt, b"\xef\xbb\xbfa\n\n b \r\nc")), expected);
        assert_eq!(texts(read(Txt, b"a\n\n b \nc\n")), expected);
        assert_eq!(texts(read(Txt, b"")), vec![]);
        assert_eq!(texts(read(Txt, b"\n")), vec![ItemText::Blank]);
        let bad = texts(read(Txt, b"ab\xff\nc"));
        assert_eq!(bad, vec![ItemText::Bad("it is not UTF-8 at byte 2".to_owned()), some("c")]);
    }

    #[test]
    fn json_lines_say_what_is_wrong_with_them() {
        let input = concat!(
            "{\"id\": 1.50, \"text\": \"a\\n\"}\n\n",
            "{\"text\": 7}\n{\"txt\": \"a\"}\n[1]\nnull\n{\"text\": \"\"}\n{\"text\": \"a\"} x\n",
            "{\"text\": \"x\", \"text\": \"last\"}"
        );
        let items = read(Jsonl, input.as_bytes());
        assert_eq!(items[0].id.as_ref().unwrap().get(), "1.50", "as it was written");
        let numbers: Vec<u64> = items.iter().map(|item| item.number).collect();
        assert_eq!(numbers, [1, 3, 4, 5, 6, 7, 8, 9], "a blank line is no item, and counts as a line");
        let texts = texts(items);
        assert_eq!((&texts[0], &texts[7]), (&some("a\n"), &some("last")));
        let why = [
            "is no string",
            "no field \"text\"",
            "no JSON object",
            "no JSON object",
            "is empty",
            "column 15",
        ];
        for (text, why) in texts[1..7].iter().zip(why) {
            assert!(matches!(text, ItemText::Bad(said) if said.contains(why)), "{text:?}: {why}");
        }
    }

    #[test]
    fn a_line_without_end_takes_no_more_memory_than_a_line_may() {
        let long = vec![b'x'; LINE_BYTES_MAX + 10];
        let items = read(Txt, &[&long[..], b"\nshort"].concat());
        assert!(matches!(&items[0].text, ItemText::Bad(why) if why.contains("over 16777216 bytes")));
        assert!(items[0].line.is_empty());
        assert_eq!(items[1].text, some("short"));
    }

    #[test]
    fn the_chain_stands_for_every_line_before() {
        let chain = |bytes: &[u8]| read(Txt, bytes).last().unwrap().chain;
        assert_eq!(chain(b"a\nb\nc\n"), chain(b"a\nb\nc\n"));
        let others: [&[u8]; 4] = [b"a\nb\nd\n", b"x\nb\nc\n", b"ab\n\nc\n", b"b\na\nc\n"];
        for other in others {
            assert_ne!(chain(b"a\nb\nc\n"), chain(other));
        }
        let input = Input::new(&["a".into(), "b".into()], None, None, None).unwrap().unwrap();
        let (mut items, mut all) = (input.items().unwrap(), input.items().unwrap());
        assert_eq!(items.skip(1).unwrap(), Some(all.next().unwrap().unwrap().chain));
        assert_eq!(items.skip(2).unwrap(), None, "only one is left");
    }

    #[test]
    fn the_format_follows_the_name() {
        let of = |path| Input::new(&[], Some(path), None, None).map(|input| input.unwrap().format);
        assert_eq!((of("a.TXT").unwrap(), of("a.jsonl").unwrap(), of("-").unwrap()), (Txt, Jsonl, Txt));
        assert!(of("a.csv").unwrap_err().line().contains("--input-format"));
        assert!(Input::new(&[], Some("a.txt"), None, Some("body")).is_err(), "a field of what has none");
        assert!(Input::new(&[], None, None, None).unwrap().is_none());
    }
}
