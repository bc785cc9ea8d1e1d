//! Lexer, like Jinja2's with `trim_blocks` and `lstrip_blocks`. Removes the line break after a block, and the
//! spaces before a block that starts its line. `-` removes all white space, `+` keeps it.

use std::sync::Arc;

use crate::limits::TEMPLATE_TOKENS_MAX;

/// Syntax error and its line.
#[derive(Debug, PartialEq)]
pub(super) struct SyntaxError {
    pub(super) line: u32,
    pub(super) reason: String,
}

pub(super) type Parsed<T> = Result<T, SyntaxError>;

/// Token and its line.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) line: u32,
    pub(super) kind: Kind,
}

/// Kind of a token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Data(Arc<str>),
    BlockBegin,
    BlockEnd,
    VariableBegin,
    VariableEnd,
    Name(Arc<str>),
    String(Arc<str>),
    Integer(i128),
    Float(f64),
    Operator(&'static str),
    End,
}

/// Longest first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";",
];

/// Cuts a source into tokens; the last one is [`Kind::End`].
pub(super) fn tokens(source: &str) -> Parsed<Vec<Token>> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer =
        Lexer { source: &source, at: 0, line: 1, tokens: Vec::new(), line_starting: true, open: Vec::new() };
    lexer.run()?;
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: u32,
    tokens: Vec<Token>,
    /// The last text read ended with a line break.
    line_starting: bool,
    /// Open brackets, by their closing characters.
    open: Vec<char>,
}

/// Tags that begin with `{`.
#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Block,
    Variable,
    Comment,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn error<T>(&self, reason: impl Into<String>) -> Parsed<T> {
        Err(SyntaxError { line: self.line, reason: reason.into() })
    }

    fn push(&mut self, kind: Kind) -> Parsed<()> {
        if self.tokens.len() >= TEMPLATE_TOKENS_MAX {
            return self.error(format!("over {TEMPLATE_TOKENS_MAX} tokens"));
        }
        self.tokens.push(Token { line: self.line, kind });
        Ok(())
    }

    /// Skips `bytes` bytes.
    fn skip(&mut self, bytes: usize) {
        let passed = &self.rest()[..bytes];
        self.line += passed.bytes().filter(|&byte| byte == b'\n').count() as u32;
        if let Some(last) = passed.as_bytes().last() {
            self.line_starting = *last == b'\n';
        }
        self.at += bytes;
    }

    fn skip_whitespace(&mut self) {
        let rest = self.rest();
        self.skip(rest.len() - rest.trim_start_matches(is_space).len());
    }

    fn run(&mut self) -> Parsed<()> {
        while let Some((data, tag)) = self.next_tag() {
            let begin = &self.rest()[data + 2..];
            let sign = begin.chars().next().filter(|sign| matches!(sign, '-' | '+'));
            let text = &self.rest()[..data];
            self.data(match sign {
                Some('-') => text.trim_end_matches(is_space),
                Some(_) => text,
                None if tag == Tag::Variable => text,
                None => self.lstripped(text),
            })?;
            let raw = (tag == Tag::Block).then(|| raw_begin(begin)).flatten();
            self.skip(data + 2);
            if let Some(raw) = raw {
                self.skip(raw);
                self.raw()?;
                continue;
            }
            self.skip(usize::from(sign.is_some()));
            match tag {
                Tag::Comment => self.comment()?,
                Tag::Block => self.code(Kind::BlockBegin, Kind::BlockEnd, '%')?,
                Tag::Variable => self.code(Kind::VariableBegin, Kind::VariableEnd, '}')?,
            }
        }
        self.data(self.rest())?;
        self.skip(self.rest().len());
        self.push(Kind::End)
    }

    /// Bytes up to the next tag, and its kind.
    fn next_tag(&self) -> Option<(usize, Tag)> {
        let rest = self.rest();
        let mut from = 0;
        loop {
            let at = from + rest[from..].find('{')?;
            match rest.as_bytes().get(at + 1) {
                Some(b'%') => return Some((at, Tag::Block)),
                Some(b'{') => return Some((at, Tag::Variable)),
                Some(b'#') => return Some((at, Tag::Comment)),
                _ => from = at + 1,
            }
        }
    }

    /// Text without spaces that stand alone between the start of a line and a tag.
    fn lstripped(&self, text: &'s str) -> &'s str {
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        let alone = (line > 0 || self.line_starting) && text[line..].chars().all(is_space);
        if alone { &text[..line] } else { text }
    }

    fn data(&mut self, text: &str) -> Parsed<()> {
        if text.is_empty() { Ok(()) } else { self.push(Kind::Data(text.into())) }
    }

    fn comment(&mut self) -> Parsed<()> {
        let Some(end) = self.rest().find("#}") else { return self.error("a comment that does not end") };
        let sign = self.rest()[..end].chars().next_back().filter(|sign| matches!(sign, '-' | '+'));
        self.skip(end + 2);
        self.after_block(sign);
        Ok(())
    }

    /// Skips white space after the end of a block or comment.
    fn after_block(&mut self, sign: Option<char>) {
        match sign {
            Some('-') => self.skip_whitespace(),
            None if self.rest().starts_with('\n') => self.skip(1),
            _ => {}
        }
    }

    /// Reads up to `{% endraw %}`.
    fn raw(&mut self) -> Parsed<()> {
        let rest = self.rest();
        let mut from = 0;
        while let Some(at) = rest[from..].find("{%").map(|at| from + at) {
            let (sign, inside) = signed(&rest[at + 2..]);
            let name = inside.trim_start_matches(is_space);
            let after = name.strip_prefix("endraw").map(|after| after.trim_start_matches(is_space));
            if let Some((end, close)) = after.and_then(closed) {
                let text = &rest[..at];
                self.data(match sign {
                    Some('-') => text.trim_end_matches(is_space),
                    Some(_) => text,
                    None => self.lstripped(text),
                })?;
                self.skip(rest.len() - close.len());
                self.after_block(end);
                return Ok(());
            }
            from = at + 2;
        }
        self.error("a raw block that does not end")
    }

    /// Reads the code between `{%` and `%}`, or `{{` and `}}`.
    fn code(&mut self, begin: Kind, end: Kind, closes: char) -> Parsed<()> {
        self.push(begin)?;
        self.open.clear();
        loop {
            self.skip_whitespace();
            let rest = self.rest();
            let Some(c) = rest.chars().next() else {
                return self.error("unexpected end of the template inside of a tag");
            };
            if self.open.is_empty() {
                let (sign, close) = signed(rest);
                let is_block = closes == '%';
                let close = close.strip_prefix(closes).and_then(|close| close.strip_prefix('}'));
                if let Some(close) = close.filter(|_| is_block || sign != Some('+')) {
                    self.push(end)?;
                    self.skip(rest.len() - close.len());
                    match sign {
                        _ if is_block => self.after_block(sign),
                        Some('-') => self.skip_whitespace(),
                        _ => {}
                    }
                    return Ok(());
                }
            }
            match c {
                '0'..='9' => self.number()?,
                '\'' | '"' => self.string(c)?,
                c if c == '_' || c.is_alphabetic() => {
                    let name = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                    self.push(Kind::Name(rest[..name].into()))?;
                    self.skip(name);
                }
                _ => self.operator(c)?,
            }
        }
    }

    fn operator(&mut self, c: char) -> Parsed<()> {
        let Some(operator) = OPERATORS.into_iter().find(|operator| self.rest().starts_with(operator)) else {
            return self.error(format!("unexpected {c:?}"));
        };
        match c {
            '(' => self.open.push(')'),
            '[' => self.open.push(']'),
            '{' => self.open.push('}'),
            ')' | ']' | '}' if self.open.pop() != Some(c) => return self.error(format!("unexpected {c:?}")),
            _ => {}
        }
        self.push(Kind::Operator(operator))?;
        self.skip(operator.len());
        Ok(())
    }

    fn number(&mut self) -> Parsed<()> {
        let rest = self.rest();
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let radix = match rest.as_bytes().get(1).map(u8::to_ascii_lowercase) {
            _ if !rest.starts_with('0') => 10,
            Some(b'x') => 16,
            Some(b'o') => 8,
            Some(b'b') => 2,
            _ => 10,
        };
        if radix != 10 {
            let body = &rest[2..];
            let end = body.find(|c: char| !c.is_digit(radix) && c != '_').unwrap_or(body.len());
            let value = i128::from_str_radix(&body[..end].replace('_', ""), radix);
            let Ok(value) = value else { return self.error("a number that cannot be read") };
            self.push(Kind::Integer(value))?;
            self.skip(2 + end);
            return Ok(());
        }
        let mut end = digits(rest);
        let is_index = matches!(self.tokens.last(), Some(Token { kind: Kind::Operator("."), .. }));
        let mut is_float = false;
        if !is_index {
            let fraction = rest[end..].strip_prefix('.').map(digits).unwrap_or(0);
            if fraction > 0 {
                end += 1 + fraction;
                is_float = true;
            }
            let exponent = rest[end..].strip_prefix(['e', 'E']).map(|exponent| {
                let unsigned = exponent.trim_start_matches(['+', '-']);
                (exponent.len() - unsigned.len(), digits(unsigned))
            });
            if let Some((sign @ 0..=1, number @ 1..)) = exponent {
                end += 1 + sign + number;
                is_float = true;
            }
        }
        let text = rest[..end].replace('_', "");
        let kind =
            if is_float { text.parse().map(Kind::Float).ok() } else { text.parse().map(Kind::Integer).ok() };
        let Some(kind) = kind else { return self.error("a number that is too large") };
        self.push(kind)?;
        self.skip(end);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Parsed<()> {
        let rest = &self.rest()[1..];
        let mut escaped = false;
        let end = rest.char_indices().find(|&(_, c)| {
            let ends = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let Some((end, _)) = end else { return self.error("a string that does not end") };
        let text = match unescaped(&rest[..end]) {
            Ok(text) => text,
            Err(reason) => return self.error(reason),
        };
        self.push(Kind::String(text.into()))?;
        self.skip(end + 2);
        Ok(())
    }
}

/// Whitespace as in Python's regular expressions and `str.strip`.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// Sign at a tag's end or start, and the text after it.
fn signed(text: &str) -> (Option<char>, &str) {
    match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.chars().next(), rest),
        None => (None, text),
    }
}

/// Sign at a block's end and the text after it, if the text begins with one.
fn closed(text: &str) -> Option<(Option<char>, &str)> {
    let (sign, rest) = signed(text);
    rest.strip_prefix("%}").map(|rest| (sign, rest))
}

/// Bytes after `{%` of the rest of a tag that begins a raw block.
fn raw_begin(text: &str) -> Option<usize> {
    let (_, rest) = signed(text);
    let rest = rest.trim_start_matches(is_space).strip_prefix("raw")?.trim_start_matches(is_space);
    let (sign, rest) = closed(rest)?;
    match sign {
        Some('-') => Some(text.len() - rest.trim_start_matches(is_space).len()),
        Some(_) => None,
        None => Some(text.len() - rest.len()),
    }
}

/// Characters of a string literal: Python's escapes; unknown ones stay as they are.
fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else { return Err("a string that ends with \\".into()) };
        rest = &rest[c.len_utf8()..];
        let digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '0'..='7' => {
                let end = rest.bytes().take(2).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
                let digits = format!("{c}{}", &rest[..end]);
                rest = &rest[end..];
                let code = u32::from_str_radix(&digits, 8).unwrap_or(0);
                out.extend(char::from_u32(code));
                continue;
            }
            'N' => return Err("names of characters in strings are not supported".into()),
            _ => 0,
        };
        if digits > 0 {
            let mut code = hex(rest, digits)?;
            rest = &rest[digits..];
            // Two surrogates of one character, as in JSON; Python would keep them apart and fail to write them.
            if (0xd800..0xdc00).contains(&code) && rest.starts_with("\\u") {
                let low = hex(&rest[2..], 4)?;
                if (0xdc00..0xe000).contains(&low) {
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    rest = &rest[6..];
                }
            }
            match char::from_u32(code) {
                Some(c) => out.push(c),
                None => return Err(format!("\\u{code:x} is no character")),
            }
            continue;
        }
        match c {
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'v' => out.push('\x0b'),
            '\n' => {}
            '\\' | '\'' | '"' => out.push(c),
            other => out.extend(['\\', other]),
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn hex(text: &str, digits: usize) -> Result<u32, String> {
    let digits = text.get(..digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    code.ok_or_else(|| "an escape in a string that cannot be read".to_owned())
}
