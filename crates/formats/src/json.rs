//! Streaming JSON scanner, character by character. Invalid JSON is detected at its first wrong character.

use crate::limits::ARGUMENTS_DEPTH_MAX;

/// Result of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// The character belongs to the value.
    Took,
    /// The character ends the value.
    Ended,
    /// The value, a number, ended before the character.
    EndedBefore,
    /// The character is not valid here.
    Bad,
}

/// State of scanning a JSON value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Json {
    open: Vec<Frame>,
    at: JsonState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Object,
    Array,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum JsonState {
    #[default]
    Value,
    FirstItem, // a value or the end of an empty array
    FirstKey,  // a key or the end of an empty object
    Key,
    Colon,
    After, // a comma or an end
    Text {
        key: bool,
    },
    Escape {
        key: bool,
    },
    Hex {
        key: bool,
        left: u8,
    },
    Number(Digits),
    Word {
        of: &'static str,
        next: usize,
    },
}

/// State within a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digits {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Json {
    /// Takes a character and appends it to `out`. Control characters in strings, which JSON forbids but models
    /// write, are escaped.
    pub(crate) fn push(&mut self, c: char, out: &mut String) -> Scan {
        let scan = self.step(c);
        match scan {
            Scan::Took | Scan::Ended if c < ' ' && matches!(self.at, JsonState::Text { .. }) => {
                out.push_str(match c {
                    '\n' => "\\n",
                    '\t' => "\\t",
                    '\r' => "\\r",
                    _ => return Scan::Bad,
                });
            }
            Scan::Took | Scan::Ended => out.push(c),
            Scan::EndedBefore | Scan::Bad => {}
        }
        scan
    }

    /// Returns true if nothing of the value was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.at == JsonState::Value && self.open.is_empty()
    }

    /// Returns true within a string.
    pub(crate) fn is_in_text(&self) -> bool {
        matches!(self.at, JsonState::Text { .. } | JsonState::Escape { .. } | JsonState::Hex { .. })
    }

    fn step(&mut self, c: char) -> Scan {
        let space = matches!(c, ' ' | '\n' | '\r' | '\t');
        match self.at {
            JsonState::Text { key } => match c {
                '"' if key => self.go(JsonState::Colon),
                '"' => self.ended(),
                '\\' => self.go(JsonState::Escape { key }),
                _ => Scan::Took,
            },
            JsonState::Escape { key } => match c {
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => self.go(JsonState::Text { key }),
                'u' => self.go(JsonState::Hex { key, left: 4 }),
                _ => Scan::Bad,
            },
            JsonState::Hex { key, left } if c.is_ascii_hexdigit() => self.go(if left == 1 {
                JsonState::Text { key }
            } else {
                JsonState::Hex { key, left: left - 1 }
            }),
            JsonState::Hex { .. } => Scan::Bad,
            JsonState::Number(digits) => self.number(digits, c),
            JsonState::Word { of, next } => match of[next..].starts_with(c) {
                true if next + 1 == of.len() => self.ended(),
                true => self.go(JsonState::Word { of, next: next + 1 }),
                false => Scan::Bad,
            },
            _ if space => Scan::Took,
            JsonState::FirstItem if c == ']' => self.close(),
            JsonState::FirstKey if c == '}' => self.close(),
            JsonState::Value | JsonState::FirstItem => self.value(c),
            JsonState::FirstKey | JsonState::Key if c == '"' => self.go(JsonState::Text { key: true }),
            JsonState::FirstKey | JsonState::Key => Scan::Bad,
            JsonState::Colon if c == ':' => self.go(JsonState::Value),
            JsonState::Colon => Scan::Bad,
            JsonState::After => match (self.open.last(), c) {
                (Some(Frame::Object), ',') => self.go(JsonState::Key),
                (Some(Frame::Array), ',') => self.go(JsonState::Value),
                (Some(Frame::Object), '}') | (Some(Frame::Array), ']') => self.close(),
                _ => Scan::Bad,
            },
        }
    }

    fn go(&mut self, at: JsonState) -> Scan {
        self.at = at;
        Scan::Took
    }

    fn value(&mut self, c: char) -> Scan {
        let word = |of| JsonState::Word { of, next: 1 };
        let at = match c {
            '{' | '[' => {
                if self.open.len() == ARGUMENTS_DEPTH_MAX {
                    return Scan::Bad;
                }
                self.open.push(if c == '{' { Frame::Object } else { Frame::Array });
                if c == '{' { JsonState::FirstKey } else { JsonState::FirstItem }
            }
            '"' => JsonState::Text { key: false },
            '-' => JsonState::Number(Digits::Minus),
            '0' => JsonState::Number(Digits::Zero),
            '1'..='9' => JsonState::Number(Digits::Whole),
            't' => word("true"),
            'f' => word("false"),
            'n' => word("null"),
            _ => return Scan::Bad,
        };
        self.go(at)
    }

    fn number(&mut self, digits: Digits, c: char) -> Scan {
        use Digits::{Exponent, Fraction, Minus, Point, Power, Sign, Whole, Zero};
        let next = match (digits, c) {
            (Minus, '0') => Zero,
            (Minus, '1'..='9') | (Whole, '0'..='9') => Whole,
            (Zero | Whole, '.') => Point,
            (Point | Fraction, '0'..='9') => Fraction,
            (Zero | Whole | Fraction, 'e' | 'E') => Exponent,
            (Exponent, '+' | '-') => Sign,
            (Exponent | Sign | Power, '0'..='9') => Power,
            (Zero | Whole | Fraction | Power, _) => {
                return match self.ended() {
                    Scan::Ended => Scan::EndedBefore,
                    _ => self.step(c),
                };
            }
            _ => return Scan::Bad,
        };
        self.go(JsonState::Number(next))
    }

    fn close(&mut self) -> Scan {
        self.open.pop();
        self.ended()
    }

    /// Handles the end of a value: the whole one, or a nested one.
    fn ended(&mut self) -> Scan {
        self.at = JsonState::After;
        if self.open.is_empty() { Scan::Ended } else { Scan::Took }
    }
}

/// Returns a text that is one JSON value, with control characters escaped. None if it is no JSON. Numbers may
/// have any size.
pub(crate) fn whole(text: &str) -> Option<String> {
    let (mut json, mut out) = (Json::default(), String::with_capacity(text.len()));
    // A number ends only with the character after it.
    let mut chars = text.chars().chain([' ']);
    while let Some(c) = chars.next() {
        match json.push(c, &mut out) {
            Scan::Took => {}
            Scan::Ended => return chars.all(char::is_whitespace).then_some(out),
            Scan::EndedBefore if c.is_whitespace() => return chars.all(char::is_whitespace).then_some(out),
            Scan::EndedBefore | Scan::Bad => return None,
        }
    }
    None
}

/// Appends a character to a JSON string.
pub(crate) fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// Decodes a JSON string as it arrives, after the opening quote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unescape {
    escape: Option<String>, // escape so far, after a backslash
    half: Option<u32>,      // first of a surrogate pair
}

impl Unescape {
    /// Takes a character, and appends the decoded characters. Reports the closing quote.
    pub(crate) fn push(&mut self, c: char, out: &mut String) -> Scan {
        let Some(escape) = &mut self.escape else {
            return match c {
                '"' => {
                    self.flush(out);
                    Scan::Ended
                }
                '\\' => {
                    self.escape = Some(String::new());
                    Scan::Took
                }
                c => {
                    self.flush(out);
                    out.push(c);
                    Scan::Took
                }
            };
        };
        escape.push(c);
        let simple = match escape.as_str() {
            "n" => '\n',
            "t" => '\t',
            "r" => '\r',
            "b" => '\u{8}',
            "f" => '\u{c}',
            "\"" | "\\" | "/" => c,
            hex if hex.starts_with('u') => {
                if hex.len() > 1 && !c.is_ascii_hexdigit() {
                    return Scan::Bad;
                }
                if hex.len() < 5 {
                    return Scan::Took;
                }
                let Ok(unit) = u32::from_str_radix(&hex[1..], 16) else { return Scan::Bad };
                self.escape = None;
                match (self.half.take(), unit) {
                    (Some(high), 0xDC00..=0xDFFF) => {
                        let whole = 0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00);
                        out.push(char::from_u32(whole).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    (high, unit) => {
                        out.extend(high.map(|_| char::REPLACEMENT_CHARACTER));
                        match unit {
                            0xD800..=0xDBFF => self.half = Some(unit),
                            _ => out.push(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)),
                        }
                    }
                }
                return Scan::Took;
            }
            _ => return Scan::Bad,
        };
        self.escape = None;
        self.flush(out);
        out.push(simple);
        Scan::Took
    }

    fn flush(&mut self, out: &mut String) {
        out.extend(self.half.take().map(|_| char::REPLACEMENT_CHARACTER));
    }
}
