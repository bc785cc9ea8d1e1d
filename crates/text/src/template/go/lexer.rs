//! Lexer of Go templates: text, actions, and the tokens of actions, by the rules of `text/template/parse`.

use super::TranslateError;

/// Part of a template.
#[derive(Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    Action(Vec<Token>),
}

#[derive(Debug, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: usize,
    /// Whether white space comes before it: it separates arguments, but not fields of a value.
    pub(super) spaced: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// Keyword or function.
    Word(String),
    /// `.Name`
    Field(String),
    /// `$name`, with its `$`.
    Variable(String),
    /// Content of a string, without quotes.
    Text(String),
    /// Number as written.
    Number(String),
    /// `.`
    Dot,
    /// `:=`, `=`, `,`, `|`, `(`, `)`
    Sign(&'static str),
}

const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];

/// Cuts a template into its parts. Empty texts are left out.
pub(super) fn split(source: &str) -> Result<Vec<Part>, TranslateError> {
    let (mut parts, mut rest, mut line, mut trim) = (Vec::new(), source, 1, false);
    loop {
        let found = rest.find("{{");
        let mut text = &rest[..found.unwrap_or(rest.len())];
        let lines = lines_of(text);
        if trim {
            text = text.trim_start_matches(SPACES);
        }
        let Some(at) = found else {
            push(&mut parts, text);
            return Ok(parts);
        };
        line += lines;
        rest = &rest[at + 2..];
        if let Some(inside) = rest.strip_prefix('-').filter(|inside| inside.starts_with(SPACES)) {
            text = text.trim_end_matches(SPACES);
            rest = inside;
        }
        push(&mut parts, text);
        let inside = rest.trim_start_matches(SPACES);
        let end = match inside.strip_prefix("/*") {
            Some(comment) => {
                let Some(end) = comment.find("*/") else {
                    return TranslateError::at(line, "a comment that does not end");
                };
                let after = rest.len() - comment.len() + end + 2;
                after + close(&rest[after..]).ok_or_else(|| unclosed(line))?
            }
            None => {
                let (tokens, end) = tokens(rest, line)?;
                parts.push(Part::Action(tokens));
                end
            }
        };
        trim = rest[..end].ends_with('-') && rest[..end - 1].ends_with(SPACES);
        line += lines_of(&rest[..end]);
        rest = &rest[end + 2..];
    }
}

fn push(parts: &mut Vec<Part>, text: &str) {
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
}

fn lines_of(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b'\n').count()
}

fn unclosed(line: usize) -> TranslateError {
    TranslateError { line, reason: "an action that does not end: }} is missing".to_owned() }
}

/// Position of the `}}` that ends a comment; only `-` may come before it.
fn close(rest: &str) -> Option<usize> {
    let end = rest.find("}}")?;
    let between = rest[..end].trim_matches(SPACES);
    (between.is_empty() || between == "-").then_some(end)
}

/// Tokens of an action, and the position of its `}}`.
fn tokens(text: &str, first_line: usize) -> Result<(Vec<Token>, usize), TranslateError> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    loop {
        let rest = &text[at..];
        let inside = rest.trim_start_matches(SPACES);
        let spaced = inside.len() < rest.len() || at == 0;
        at += rest.len() - inside.len();
        let line = first_line + lines_of(&text[..at]);
        if inside.starts_with("}}") {
            return Ok((tokens, at));
        }
        if spaced && inside.starts_with("-}}") {
            return Ok((tokens, at + 1));
        }
        let (kind, length) = token(inside, line)?;
        tokens.push(Token { kind, line, spaced });
        at += length;
    }
}

fn token(text: &str, line: usize) -> Result<(Kind, usize), TranslateError> {
    let word = |text: &str| text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    let Some(first) = text.chars().next() else { return Err(unclosed(line)) };
    for sign in [":=", "=", ",", "|", "(", ")"] {
        if text.starts_with(sign) {
            return Ok((Kind::Sign(sign), sign.len()));
        }
    }
    Ok(match first {
        '"' => quoted(text, line)?,
        '`' => match text[1..].find('`') {
            Some(end) => (Kind::Text(text[1..=end].replace('\r', "")), end + 2),
            None => return TranslateError::at(line, "a string that does not end"),
        },
        '.' => match word(&text[1..]) {
            0 => (Kind::Dot, 1),
            // such as .5
            _ if text[1..].starts_with(|c: char| c.is_ascii_digit()) => number(text),
            length => (Kind::Field(text[1..=length].to_owned()), length + 1),
        },
        '$' => {
            let length = 1 + word(&text[1..]);
            (Kind::Variable(text[..length].to_owned()), length)
        }
        '0'..='9' | '+' | '-' => number(text),
        c if c.is_alphabetic() || c == '_' => {
            let length = word(text);
            (Kind::Word(text[..length].to_owned()), length)
        }
        other => return TranslateError::at(line, format!("{other:?} cannot stand in an action here")),
    })
}

fn number(text: &str) -> (Kind, usize) {
    let digits = text[1..].find(|c: char| !(c.is_alphanumeric() || c == '.' || c == '_'));
    let length = digits.map_or(text.len(), |length| length + 1);
    (Kind::Number(text[..length].to_owned()), length)
}

/// String in double quotes, with Go's escapes.
fn quoted(text: &str, line: usize) -> Result<(Kind, usize), TranslateError> {
    let (mut said, mut letters) = (String::new(), text.char_indices().skip(1));
    while let Some((at, letter)) = letters.next() {
        let escape = match letter {
            '"' => return Ok((Kind::Text(said), at + 1)),
            '\n' => break,
            '\\' => letters.next().map_or('\n', |(_, escape)| escape),
            letter => {
                said.push(letter);
                continue;
            }
        };
        let digits = match escape {
            'n' => "\n",
            't' => "\t",
            'r' => "\r",
            '\\' => "\\",
            '"' => "\"",
            'x' | 'u' | 'U' => "",
            other => return TranslateError::at(line, format!("the escape \\{other} in a string")),
        };
        said.push_str(digits);
        if digits.is_empty() {
            let count = match escape {
                'x' => 2,
                'u' => 4,
                _ => 8,
            };
            let digits: String = letters.by_ref().take(count).map(|(_, digit)| digit).collect();
            let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == count);
            // An escaped byte that is no character cannot be part of a text here.
            let letter = code.filter(|&code| escape != 'x' || code < 0x80).and_then(char::from_u32);
            let Some(letter) = letter else {
                return TranslateError::at(line, format!("the escape \\{escape}{digits} in a string"));
            };
            said.push(letter);
        }
    }
    TranslateError::at(line, "a string that does not end")
}
