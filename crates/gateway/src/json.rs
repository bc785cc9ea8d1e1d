//! JSON without a tree. A text is validated once, and a value is a slice of it. A body takes no memory but its
//! bytes, whatever it contains; an array of a million elements is iterated, not built. `fields` reads requests
//! on top of it.

mod check;
pub(crate) mod partial;

use std::borrow::Cow;

use crate::{error::quote, limits::PARAM_BYTES_MAX};

#[cfg(test)]
thread_local! {
    /// Number of path searches on this thread.
    pub(crate) static SEARCHES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

pub(crate) use check::Fault;
use check::check;

/// JSON value: its text, which is valid and has no surrounding white space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Json<'a>(&'a str);

impl<'a> Json<'a> {
    /// Validates a text. Strings may contain unpaired surrogates.
    pub(crate) fn parse(text: &'a str) -> Result<Json<'a>, Fault> {
        check(text)?;
        Ok(Json(text.trim_matches(BLANKS)))
    }

    pub(crate) fn is_null(self) -> bool {
        self.0 == "null"
    }

    pub(crate) fn is_boolean(self) -> bool {
        self.as_bool().is_some()
    }

    pub(crate) fn is_number(self) -> bool {
        self.as_number().is_some()
    }

    pub(crate) fn is_string(self) -> bool {
        self.0.starts_with('"')
    }

    pub(crate) fn is_array(self) -> bool {
        self.0.starts_with('[')
    }

    pub(crate) fn is_object(self) -> bool {
        self.0.starts_with('{')
    }

    pub(crate) fn as_bool(self) -> Option<bool> {
        match self.0 {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// Number as written.
    pub(crate) fn as_number(self) -> Option<&'a str> {
        self.0.starts_with(|c: char| c == '-' || c.is_ascii_digit()).then_some(self.0)
    }

    /// Nearest f64 of a number; infinite if it is too large.
    pub(crate) fn as_f64(self) -> Option<f64> {
        self.as_number()?.parse().ok()
    }

    /// Number that is written as an integer and fits an i64.
    pub(crate) fn as_i64(self) -> Option<i64> {
        self.as_number()?.parse().ok()
    }

    /// Number that is written as an integer and fits a u64.
    pub(crate) fn as_u64(self) -> Option<u64> {
        match self.as_number()? {
            "-0" => Some(0),
            digits => digits.parse().ok(),
        }
    }

    /// Text of a string. An unpaired surrogate becomes U+FFFD: clients cut texts anywhere.
    pub(crate) fn as_str(self) -> Option<Cow<'a, str>> {
        let inner = self.0.strip_prefix('"')?.strip_suffix('"')?;
        Some(unescaped(inner))
    }

    /// Elements of an array.
    pub(crate) fn elements(self) -> Option<Elements<'a>> {
        Some(Elements(Pieces::of(self.0, '[', ']')?))
    }

    /// Members of an object in order; repeated names are kept.
    pub(crate) fn members(self) -> Option<Members<'a>> {
        Some(Members(Pieces::of(self.0, '{', '}')?))
    }

    /// JSON of the value, without white space. Unpaired surrogates become U+FFFD.
    pub(crate) fn to_text(self) -> String {
        let mut text = String::with_capacity(self.0.len());
        let mut rest = self.0;
        while let Some(quote) = rest.find('"') {
            text.extend(rest[..quote].split(BLANKS));
            let end = quote + string_end(&rest.as_bytes()[quote..]);
            sound_surrogates(&rest[quote..end], &mut text);
            rest = &rest[end..];
        }
        text.extend(rest.split(BLANKS));
        text
    }

    /// Path of this value in `document`, of which it is a slice, such as `messages[2].content`; empty for the
    /// whole. It is searched for from the start, so use it for errors only.
    pub(crate) fn path_in(self, document: Json<'_>) -> String {
        #[cfg(test)]
        SEARCHES.with(|searches| searches.set(searches.get() + 1));
        let within = |outer: Json<'_>, inner: Json<'_>| {
            let start = (inner.0.as_ptr() as usize).wrapping_sub(outer.0.as_ptr() as usize);
            start < outer.0.len()
        };
        let (mut path, mut outer) = (String::new(), document);
        while outer.0.as_ptr() != self.0.as_ptr() && path.len() <= PARAM_BYTES_MAX {
            if let Some((name, value)) = outer.members().and_then(|mut all| all.find(|m| within(m.1, self))) {
                path = joined(&path, &name);
                outer = value;
            } else if let Some((i, value)) =
                outer.elements().and_then(|all| all.enumerate().find(|e| within(e.1, self)))
            {
                path = format!("{path}[{i}]");
                outer = value;
            } else {
                break;
            }
        }
        path
    }
}

/// Path of an object's member.
pub(crate) fn joined(path: &str, name: &str) -> String {
    let short = quote(name);
    let short = short.trim_matches('"');
    if path.is_empty() { short.to_owned() } else { format!("{path}.{short}") }
}

/// Elements of an array.
#[derive(Debug, Clone)]
pub(crate) struct Elements<'a>(Pieces<'a>);

impl<'a> Iterator for Elements<'a> {
    type Item = Json<'a>;

    fn next(&mut self) -> Option<Json<'a>> {
        self.0.begin()?;
        Some(self.0.value())
    }
}

/// Members of an object.
#[derive(Debug, Clone)]
pub(crate) struct Members<'a>(Pieces<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = (Cow<'a, str>, Json<'a>);

    fn next(&mut self) -> Option<(Cow<'a, str>, Json<'a>)> {
        self.0.begin()?;
        let name = self.0.value().as_str()?;
        self.0.rest = self.0.rest.trim_start_matches(BLANKS).strip_prefix(':')?;
        Some((name, self.0.value()))
    }
}

/// Raw rest of an array's or object's content. The text is valid.
#[derive(Debug, Clone)]
struct Pieces<'a> {
    rest: &'a str,
}

impl<'a> Pieces<'a> {
    fn of(text: &'a str, open: char, close: char) -> Option<Pieces<'a>> {
        Some(Pieces { rest: text.strip_prefix(open)?.strip_suffix(close)? })
    }

    /// Moves to the next element, if there is one.
    fn begin(&mut self) -> Option<()> {
        let rest = self.rest.trim_start_matches(BLANKS);
        self.rest = rest.strip_prefix(',').unwrap_or(rest).trim_start_matches(BLANKS);
        (!self.rest.is_empty()).then_some(())
    }

    /// Takes the next value.
    fn value(&mut self) -> Json<'a> {
        self.rest = self.rest.trim_start_matches(BLANKS);
        let (value, rest) = self.rest.split_at(value_end(self.rest.as_bytes()));
        self.rest = rest;
        Json(value)
    }
}

const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// End of the value that valid JSON begins with.
fn value_end(bytes: &[u8]) -> usize {
    let ends_word = |byte: &u8| is_blank(*byte) || matches!(byte, b',' | b']' | b'}' | b':');
    match bytes.first() {
        Some(b'"') => string_end(bytes),
        Some(b'[' | b'{') => {
            let (mut depth, mut at) = (0_usize, 0);
            while let Some(byte) = bytes.get(at) {
                at += match byte {
                    b'"' => string_end(&bytes[at..]),
                    _ => 1,
                };
                match byte {
                    b'[' | b'{' => depth += 1,
                    b']' | b'}' => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    return at;
                }
            }
            bytes.len()
        }
        _ => bytes.iter().position(ends_word).unwrap_or(bytes.len()),
    }
}

/// End of the string that valid JSON begins with, after its closing quote.
fn string_end(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Text of a string from the content between its quotes.
fn unescaped(inner: &str) -> Cow<'_, str> {
    if !inner.contains('\\') {
        return Cow::Borrowed(inner);
    }
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let (char, bytes) = escaped(&rest.as_bytes()[at..]);
        text.push(char);
        rest = &rest[at + bytes..];
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// Character of a valid escape, and the length of the escape.
fn escaped(bytes: &[u8]) -> (char, usize) {
    let simple = |byte| match byte {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        other => char::from(other), // a quote, a slash, a backslash
    };
    match bytes.get(1) {
        Some(b'u') => {
            let high = unit(bytes).unwrap_or(0xFFFD);
            let low = bytes.get(6..).and_then(unit);
            let pair = low.and_then(|low| char::decode_utf16([high, low]).next()?.ok());
            match pair {
                Some(char) if char.len_utf16() == 2 => (char, 12),
                _ => (char::from_u32(u32::from(high)).unwrap_or(char::REPLACEMENT_CHARACTER), 6),
            }
        }
        byte => (simple(*byte.unwrap_or(&b'\\')), 2),
    }
}

/// UTF-16 code unit of an escape such as `\ud83d`.
fn unit(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Copies the JSON of a string and replaces unpaired surrogates by U+FFFD.
fn sound_surrogates(json: &str, out: &mut String) {
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (char, bytes) = escaped(&rest.as_bytes()[at..]);
        let half = char == char::REPLACEMENT_CHARACTER;
        out.push_str(&rest[..at]);
        out.push_str(if half { "\\ufffd" } else { &rest[at..at + bytes] });
        rest = &rest[at + bytes..];
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::Json;

    /// Value rebuilt from its elements and members.
    fn rebuilt(json: Json<'_>) -> Value {
        if let Some(members) = json.members() {
            return Value::Object(members.map(|(name, value)| (name.into_owned(), rebuilt(value))).collect());
        }
        if let Some(elements) = json.elements() {
            return elements.map(rebuilt).collect();
        }
        if let Some(text) = json.as_str() {
            return Value::from(text.into_owned());
        }
        match (json.as_bool(), json.as_u64(), json.as_i64(), json.as_f64()) {
            (Some(bool), ..) => Value::from(bool),
            (_, Some(number), ..) => Value::from(number),
            (_, _, Some(number), _) => Value::from(number),
            (.., Some(number)) => Value::from(number),
            _ => Value::Null,
        }
    }

    #[test]
    fn what_one_parser_reads_the_other_reads_too() {
        let sound = [
            "0",
            " -0.5e+3 ",
            "18446744073709551615",
            "-9223372036854775808",
            "true",
            "false",
            "null",
            r#""""#,
            "[]",
            "{}",
            "\t[ ]\r\n",
            "{ }",
            r#"{"a":1}"#,
            r#" { "a" : [ 1 , {"b" : [ ] } , "x\"]}," ] , "c" : { } } "#,
            r#""\u00e9\ud83d\ude00\n\/\\\"""#,
            r#"[[],[[]],{"":{}}]"#,
            r#"{"\u0061":"\\","b":"\\\\\""}"#,
            "[1,2]",
            "\"é😀\u{7f}\"",
            r#"[-1,0,1.5,1E5,1e-7]"#,
        ];
        for text in sound {
            let value: Value = serde_json::from_str(text).unwrap();
            let json = Json::parse(text).unwrap_or_else(|fault| panic!("{text}: {fault:?}"));
            assert_eq!(rebuilt(json), value, "{text}");
            assert_eq!(serde_json::from_str::<Value>(&json.to_text()).unwrap(), value, "{text}");
        }
        let unsound = [
            "",
            " ",
            "[",
            "]",
            "{",
            "}",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "{1:2}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            r#"{"a":1 "b":2}"#,
            "[1}",
            "{]",
            "01",
            "1.",
            ".5",
            "-",
            "+1",
            "1e",
            "NaN",
            "-Infinity",
            "tru",
            "nulll",
            "\"",
            "\"\\",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"a\nb\"",
            "\"\u{1}\"",
            "1 2",
            "[] []",
            "'a'",
            "\u{a0}1",
            "\"\\u12",
        ];
        for text in unsound {
            assert!(serde_json::from_str::<Value>(text).is_err(), "{text}");
            assert!(Json::parse(text).is_err(), "{text}");
        }
        assert!(Json::parse(&"[".repeat(128)).unwrap_err().problem.contains("EOF"));
        assert!(Json::parse(&"[".repeat(129)).unwrap_err().problem.contains("recursion"));
    }

    #[test]
    fn every_mutation_is_judged_alike() {
        let seed = r#"{"m":[{"role":"user","c":"a\"\u00e9\n"},-1.5e3,true,null,{}],"n":1,"s":[[],[""]]}"#;
        let bytes = b"\"\\{}[]:,0e.-u \x00x";
        for at in 0..seed.len() {
            for byte in bytes {
                let mut text = seed.as_bytes().to_vec();
                text[at] = *byte;
                let mut removed = seed.as_bytes().to_vec();
                removed.remove(at);
                for text in [text, removed] {
                    let text = String::from_utf8(text).unwrap();
                    let value = serde_json::from_str::<Value>(&text);
                    let json = Json::parse(&text);
                    assert_eq!(json.is_ok(), value.is_ok(), "{text}: {value:?}");
                    if let (Ok(json), Ok(value)) = (json, value) {
                        assert_eq!(rebuilt(json), value, "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn half_a_surrogate_pair_becomes_a_character() {
        for (json, text) in [
            (r#""a\ud83d""#, "a\u{fffd}"),
            (r#""\ude00b""#, "\u{fffd}b"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}😀"),
            (r#""\ud83d\n""#, "\u{fffd}\n"),
            (r#""\ud83d\u0041""#, "\u{fffd}A"),
        ] {
            let json = Json::parse(json).unwrap();
            assert_eq!(json.as_str().unwrap(), text);
            assert_eq!(serde_json::from_str::<String>(&json.to_text()).unwrap(), text);
        }
    }

    #[test]
    fn a_value_knows_its_path() {
        let document = Json::parse(r#" {"a": [1, {"b": [ "x" , {"c.d": 2}]}], "e": 3}"#).unwrap();
        fn check(document: Json<'_>, json: Json<'_>, path: &str) {
            assert_eq!(json.path_in(document), path);
            for (name, value) in json.members().into_iter().flatten() {
                check(document, value, &super::joined(path, &name));
            }
            for (i, value) in json.elements().into_iter().flatten().enumerate() {
                check(document, value, &format!("{path}[{i}]"));
            }
        }
        check(document, document, "");
    }
}
