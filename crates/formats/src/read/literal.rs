//! Calls in the notation of a programming language: Python's `name(key=value, …)`, and Gemma's
//! `call:name{key:value,…}`. Values are literals, converted to JSON while they arrive. With an expression that
//! is no literal, the text is no call.

use super::{KnownTools, ReadStep};
use crate::{
    json::{Scan, escape},
    limits::{ARGUMENTS_DEPTH_MAX, HEAD_CHARS_MAX, VALUE_BYTES_MAX},
    piece::Sink,
    tools::NAME_SIGNS,
};

/// Notation of a family.
#[derive(Debug)]
pub(crate) struct Style {
    /// Mark that ends the calls if no bracket does.
    pub(crate) close: &'static str,
    /// Mark around strings, if not Python's quotes. Keys are then unquoted.
    pub(crate) quote: Option<&'static str>,
}

/// `[f(a=1), g()]`, in brackets, or on separate lines up to the end.
pub(crate) static BRACKETS: Style = Style { close: "", quote: None };
/// Calls in a Markdown code fence.
pub(crate) static FENCE: Style = Style { close: "```", quote: None };
/// Calls in tags.
pub(crate) static FUNCTION_CALLS: Style = Style { close: "</function_calls>", quote: None };
/// `call:f{a:1}`
pub(crate) static GEMMA_4: Style = Style { close: "<tool_call|>", quote: Some("<|\"|>") };
/// FunctionGemma: the same with other marks.
pub(crate) static FUNCTION_GEMMA: Style = Style { close: "<end_function_call>", quote: Some("<escape>") };

/// Reader of one call, or of several in a row.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    style: &'static Style,
    bracket: bool,
    made: bool,
    wrapped: bool, // in print(…)
    at: LiteralState,
}

#[derive(Clone, Debug)]
enum LiteralState {
    Between { comma: bool },
    Name { held: String },
    Arguments { literal: Literal },
    Close { held: String },
}

impl Calls {
    /// Starts right after the marker.
    pub(crate) fn new(style: &'static Style) -> Calls {
        Calls {
            style,
            bracket: false,
            made: false,
            wrapped: false,
            at: LiteralState::Between { comma: true },
        }
    }

    /// Returns true if everything read is complete calls.
    pub(crate) fn is_between(&self) -> bool {
        self.made && matches!(self.at, LiteralState::Between { .. } | LiteralState::Close { .. })
    }

    pub(crate) fn push(&mut self, c: char, known: KnownTools, sink: &mut Sink) -> ReadStep {
        let style = self.style;
        let braces = style.quote.is_some();
        match &mut self.at {
            LiteralState::Between { .. } => self.between(c),
            LiteralState::Close { held } => {
                held.push(c);
                match style.close.starts_with(held.as_str()) {
                    true => self.closed(),
                    false => ReadStep::Fail,
                }
            }
            LiteralState::Name { held } => match c {
                '(' if held == "print" && !self.wrapped => {
                    self.wrapped = true;
                    self.at = LiteralState::Between { comma: true };
                    ReadStep::More
                }
                '(' if !braces => match named(held, known) {
                    Some(name) => self.begin(name, sink),
                    None => ReadStep::Fail,
                },
                '{' if braces => {
                    let name = held.strip_prefix("call:").map(|name| name.trim().to_owned());
                    match name.filter(|name| known.has(name)) {
                        Some(name) => self.begin(name, sink),
                        None => ReadStep::Fail,
                    }
                }
                c if held.len() <= HEAD_CHARS_MAX
                    && (c.is_alphanumeric() || c == ' ' || NAME_SIGNS.contains(c)) =>
                {
                    held.push(c);
                    ReadStep::More
                }
                _ => ReadStep::Fail,
            },
            LiteralState::Arguments { literal } => {
                let mut out = String::new();
                let scan = literal.push(c, &mut out);
                sink.arguments(&out);
                match scan {
                    Scan::Took => ReadStep::More,
                    Scan::Ended => {
                        sink.end();
                        self.made = true;
                        self.at = LiteralState::Between { comma: false };
                        ReadStep::More
                    }
                    Scan::EndedBefore | Scan::Bad => ReadStep::Fail,
                }
            }
        }
    }

    /// Reads a character between calls.
    fn between(&mut self, c: char) -> ReadStep {
        let style = self.style;
        let LiteralState::Between { comma } = &mut self.at else { return ReadStep::Fail };
        match c {
            c if c.is_whitespace() => {
                // Outside brackets a line break counts as a comma.
                *comma |= !self.bracket;
                ReadStep::More
            }
            '[' if !self.bracket && !self.made && style.quote.is_none() => {
                self.bracket = true;
                ReadStep::More
            }
            ']' if self.bracket && self.made => ReadStep::Done,
            ')' if self.wrapped => {
                self.wrapped = false;
                ReadStep::More
            }
            ',' | ';' if self.made && !*comma => {
                *comma = true;
                ReadStep::More
            }
            ';' if self.made && !self.bracket => ReadStep::More,
            c if self.made && !self.bracket && style.close.starts_with(c) => {
                self.at = LiteralState::Close { held: c.to_string() };
                self.closed()
            }
            c if *comma && (c.is_alphanumeric() || NAME_SIGNS.contains(c)) => {
                self.at = LiteralState::Name { held: c.to_string() };
                ReadStep::More
            }
            _ if self.made && !self.bracket && style.close.is_empty() => ReadStep::DoneBefore,
            _ => ReadStep::Fail,
        }
    }

    /// Emits an unfinished number.
    pub(crate) fn cut(&self, sink: &mut Sink) {
        if let LiteralState::Arguments { literal: Literal { at: Within::Word(word), .. } } = &self.at {
            let number = crate::json::whole(word).filter(|json| !json.starts_with(char::is_alphabetic));
            sink.arguments(&number.unwrap_or_default());
        }
    }

    /// Returns true if the text may continue as a call.
    pub(crate) fn may_be_call(&self, known: KnownTools) -> bool {
        let LiteralState::Name { held } = &self.at else { return true };
        let written = held.trim();
        let before = ["print", "default_api.", "call:"];
        let name = before.iter().find_map(|before| written.strip_prefix(before)).unwrap_or(written);
        known.may_begin(name.trim()) || before.iter().any(|before| before.starts_with(written))
    }

    fn begin(&mut self, name: String, sink: &mut Sink) -> ReadStep {
        sink.start(&name, None);
        sink.arguments("{");
        self.at = LiteralState::Arguments { literal: Literal::new(self.style) };
        ReadStep::More
    }

    fn closed(&self) -> ReadStep {
        match &self.at {
            LiteralState::Close { held } if held == self.style.close => ReadStep::Done,
            _ => ReadStep::More,
        }
    }
}

/// Tool with this name in Python notation, which may include a module.
fn named(written: &str, known: KnownTools) -> Option<String> {
    let written = written.trim();
    let names = [Some(written), written.strip_suffix(".call"), written.strip_prefix("default_api.")];
    names.into_iter().flatten().find(|name| known.has(name)).map(str::to_owned)
}

/// State of reading a value. The outermost one is the argument list, after its opening bracket.
#[derive(Clone, Debug)]
struct Literal {
    quote: Option<&'static str>,
    open: Vec<Frame>,
    at: Within,
    comma: bool, // pending before the next value
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Arguments,
    Dict,
    List,
    Tuple,
}

#[derive(Clone, Debug)]
enum Within {
    Key,                    // a key, or the end
    KeyWord(String),        // a key without quotes
    Separator,              // after a key
    Item { may_end: bool }, // a value
    Word(String),           // a number or a name
    Quotes { quote: char, count: u8, key: bool },
    Text { quote: char, triple: bool, ends: u8, key: bool, escape: Option<String> },
    Marked { held: String, key: bool }, // string between marks
    Mark { held: String, key: bool },   // opening mark of a string
    After,
}

impl Literal {
    fn new(style: &Style) -> Literal {
        let frame = if style.quote.is_some() { Frame::Dict } else { Frame::Arguments };
        Literal { quote: style.quote, open: vec![frame], at: Within::Key, comma: false }
    }

    fn frame(&self) -> Frame {
        self.open.last().copied().unwrap_or(Frame::Arguments)
    }

    fn go(&mut self, at: Within) -> Scan {
        self.at = at;
        Scan::Took
    }

    /// Writes the pending comma, now that a value follows.
    fn owed(&mut self, out: &mut String) {
        if std::mem::take(&mut self.comma) {
            out.push_str(", ");
        }
    }

    fn push(&mut self, c: char, out: &mut String) -> Scan {
        let space = c.is_whitespace();
        let bare_keys = self.frame() == Frame::Arguments || self.quote.is_some();
        match &mut self.at {
            Within::Key => match c {
                _ if space => Scan::Took,
                ')' | '}' => self.close(c, out),
                '\'' | '"' if !bare_keys => {
                    self.owed(out);
                    self.go(Within::Quotes { quote: c, count: 1, key: true })
                }
                '<' if self.quote.is_some() => {
                    self.owed(out);
                    self.go(Within::Mark { held: "<".to_owned(), key: true })
                }
                c if bare_keys && (c.is_alphabetic() || c == '_') => {
                    self.owed(out);
                    self.go(Within::KeyWord(c.to_string()))
                }
                _ => Scan::Bad,
            },
            Within::KeyWord(word) => match c {
                c if c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$') => {
                    word.push(c);
                    if word.len() > HEAD_CHARS_MAX { Scan::Bad } else { Scan::Took }
                }
                _ => {
                    out.push('"');
                    word.chars().for_each(|c| escape(c, out));
                    out.push('"');
                    self.at = Within::Separator;
                    self.push(c, out)
                }
            },
            Within::Separator => match c {
                _ if space => Scan::Took,
                ':' | '=' if (c == '=') == (self.frame() == Frame::Arguments) => {
                    out.push_str(": ");
                    self.go(Within::Item { may_end: false })
                }
                _ => Scan::Bad,
            },
            Within::Item { may_end } => match c {
                _ if space => Scan::Took,
                ']' | ')' if *may_end => self.close(c, out),
                _ => self.value(c, out),
            },
            Within::Word(_) => self.word(c, out),
            Within::Quotes { .. } => self.quotes(c, out),
            Within::Text { .. } => self.text(c, out),
            Within::Mark { .. } => self.mark(c, out),
            Within::Marked { .. } => self.marked(c, out),
            Within::After => match (c, self.frame()) {
                _ if space => Scan::Took,
                (',', frame) => {
                    self.comma = true;
                    self.go(match frame {
                        Frame::Arguments | Frame::Dict => Within::Key,
                        Frame::List | Frame::Tuple => Within::Item { may_end: true },
                    })
                }
                (')' | ']' | '}', _) => self.close(c, out),
                _ => Scan::Bad,
            },
        }
    }

    /// Reads a character after an opening quote.
    fn quotes(&mut self, c: char, out: &mut String) -> Scan {
        let Within::Quotes { quote, count, key } = &mut self.at else { return Scan::Bad };
        let (quote, key) = (*quote, *key);
        match (*count, c == quote) {
            (1, true) => {
                *count = 2;
                Scan::Took
            }
            (1, false) => {
                out.push('"');
                self.at = Within::Text { quote, triple: false, ends: 0, key, escape: None };
                self.push(c, out)
            }
            (_, true) => {
                out.push('"');
                self.go(Within::Text { quote, triple: true, ends: 0, key, escape: None })
            }
            (_, false) => {
                out.push_str("\"\"");
                self.at = if key { Within::Separator } else { Within::After };
                self.push(c, out)
            }
        }
    }

    /// Reads a character of a string in quotes.
    fn text(&mut self, c: char, out: &mut String) -> Scan {
        let Within::Text { quote, triple, ends, key, escape: escaped } = &mut self.at else {
            return Scan::Bad;
        };
        if let Some(escape) = escaped {
            escape.push(c);
            return match unescaped(escape) {
                Some(text) => {
                    text.chars().for_each(|c| crate::json::escape(c, out));
                    *escaped = None;
                    Scan::Took
                }
                None => Scan::Took,
            };
        }
        if c == *quote {
            *ends += 1;
            if *triple && *ends < 3 {
                return Scan::Took;
            }
            out.push('"');
            let next = if *key { Within::Separator } else { Within::After };
            return self.go(next);
        }
        for _ in 0..std::mem::take(ends) {
            escape(*quote, out);
        }
        match c {
            '\\' => *escaped = Some(String::new()),
            '\n' if !*triple => return Scan::Bad,
            c => escape(c, out),
        }
        Scan::Took
    }

    /// Reads a character of a string's opening mark.
    fn mark(&mut self, c: char, out: &mut String) -> Scan {
        let Within::Mark { held, key } = &mut self.at else { return Scan::Bad };
        held.push(c);
        let (mark, key) = (self.quote.unwrap_or_default(), *key);
        match mark.starts_with(held.as_str()) {
            true if held.len() == mark.len() => {
                out.push('"');
                self.go(Within::Marked { held: String::new(), key })
            }
            true => Scan::Took,
            false => Scan::Bad,
        }
    }

    /// Reads a character of a string between marks.
    fn marked(&mut self, c: char, out: &mut String) -> Scan {
        let Within::Marked { held, key } = &mut self.at else { return Scan::Bad };
        held.push(c);
        let mark = self.quote.unwrap_or_default();
        if held == mark {
            out.push('"');
            let next = if *key { Within::Separator } else { Within::After };
            return self.go(next);
        }
        // Characters that cannot begin the mark are text.
        while !held.is_empty() && !mark.starts_with(held.as_str()) {
            escape(held.remove(0), out);
        }
        Scan::Took
    }

    /// Reads a character of a number or a name.
    fn word(&mut self, c: char, out: &mut String) -> Scan {
        let Within::Word(word) = &mut self.at else { return Scan::Bad };
        match c {
            c if c.is_alphanumeric() || matches!(c, '_' | '+' | '-' | '.') => {
                word.push(c);
                let is_number = !word.starts_with(char::is_alphabetic);
                let most = if is_number { VALUE_BYTES_MAX } else { HEAD_CHARS_MAX };
                if word.len() > most { Scan::Bad } else { Scan::Took }
            }
            _ => match word_as_json(word) {
                Some(json) => {
                    out.push_str(&json);
                    self.at = Within::After;
                    self.push(c, out)
                }
                None => Scan::Bad,
            },
        }
    }

    fn value(&mut self, c: char, out: &mut String) -> Scan {
        self.owed(out);
        let frame = match (c, self.quote) {
            ('{', _) => Frame::Dict,
            ('[', _) => Frame::List,
            ('(', None) => Frame::Tuple,
            ('\'' | '"', None) => return self.go(Within::Quotes { quote: c, count: 1, key: false }),
            ('<', Some(_)) => return self.go(Within::Mark { held: "<".to_owned(), key: false }),
            (c, _) if c.is_alphanumeric() || matches!(c, '-' | '+' | '.') => {
                return self.go(Within::Word(c.to_string()));
            }
            _ => return Scan::Bad,
        };
        if self.open.len() == ARGUMENTS_DEPTH_MAX {
            return Scan::Bad;
        }
        self.open.push(frame);
        out.push(if frame == Frame::Dict { '{' } else { '[' });
        self.go(if frame == Frame::Dict { Within::Key } else { Within::Item { may_end: true } })
    }

    fn close(&mut self, c: char, out: &mut String) -> Scan {
        let own = match self.frame() {
            Frame::Arguments | Frame::Tuple => ')',
            Frame::Dict => '}',
            Frame::List => ']',
        };
        if c != own {
            return Scan::Bad;
        }
        out.push(match self.open.pop() {
            Some(Frame::List | Frame::Tuple) => ']',
            _ => '}',
        });
        self.comma = false;
        self.at = Within::After;
        if self.open.is_empty() { Scan::Ended } else { Scan::Took }
    }
}

/// Converts Python's words and numbers to JSON.
fn word_as_json(word: &str) -> Option<String> {
    let json = match word {
        "True" | "true" => "true",
        "False" | "false" => "false",
        "None" | "null" => "null",
        number => {
            let plain = number.strip_prefix('+').unwrap_or(number).replace('_', "");
            let begins = plain.starts_with(|c: char| c == '-' || c.is_ascii_digit());
            if let Some(number) = crate::json::whole(&plain).filter(|_| begins) {
                return Some(number);
            }
            let float: f64 = plain.parse().ok().filter(|float: &f64| float.is_finite())?;
            let digits = plain.contains(|c: char| c.is_ascii_digit());
            return digits.then(|| serde_json::Value::from(float).to_string());
        }
    };
    Some(json.to_owned())
}

/// Decodes a Python escape, given without its backslash. None if it is incomplete.
fn unescaped(escape: &str) -> Option<String> {
    let hex = |digits: usize| {
        let written = &escape[1..];
        let bad = || Some(format!("\\{escape}"));
        if !written.chars().all(|c| c.is_ascii_hexdigit()) {
            return bad();
        }
        if written.len() < digits {
            return None;
        }
        let code = u32::from_str_radix(written, 16).ok().and_then(char::from_u32);
        Some(code.unwrap_or(char::REPLACEMENT_CHARACTER).to_string())
    };
    match escape.chars().next()? {
        'n' => Some("\n".to_owned()),
        't' => Some("\t".to_owned()),
        'r' => Some("\r".to_owned()),
        'b' => Some("\u{8}".to_owned()),
        'f' => Some("\u{c}".to_owned()),
        c @ ('\\' | '\'' | '"') => Some(c.to_string()),
        '\n' => Some(String::new()),
        'x' => hex(2),
        'u' => hex(4),
        'U' => hex(8),
        other => Some(format!("\\{other}")),
    }
}
