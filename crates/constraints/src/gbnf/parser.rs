//! Parser of GBNF: rules `name ::= …` of literals, character classes, groups, alternatives and repetitions.
//! Comments begin with #.

use std::collections::HashMap;

use super::{Expr, Rules};
use crate::{
    error::CompileError,
    limits::{GBNF_RULES_MAX, NESTING_MAX, REPEAT_MAX},
};

pub(super) fn parse(source: &str) -> Result<Rules, CompileError> {
    let mut parser = Parser { source, at: 0, names: HashMap::new(), rules: Vec::new() };
    parser.skip(true);
    while parser.peek().is_some() {
        parser.rule()?;
    }
    let Some(&root) = parser.names.get("root") else {
        return Err(CompileError::new("there is no rule named root"));
    };
    let mut rules = Vec::with_capacity(parser.rules.len());
    for (name, rule) in parser.rules {
        match rule {
            RuleState::Said(expr) => rules.push(expr),
            RuleState::Used(at) => {
                return Err(wrong(source, at, &format!("there is no rule named {name}")));
            }
        }
    }
    Ok(Rules { rules, root })
}

struct Parser<'a> {
    source: &'a str,
    at: usize, // offset of the next byte
    names: HashMap<&'a str, usize>,
    rules: Vec<(&'a str, RuleState)>,
}

/// State of a rule during parsing.
enum RuleState {
    Said(Expr),
    /// Used at that offset, not yet defined.
    Used(usize),
}

impl<'a> Parser<'a> {
    fn rule(&mut self) -> Result<(), CompileError> {
        let at = self.at;
        let name = self.name().ok_or_else(|| self.wrong("a rule begins with its name"))?;
        let index = self.index(name, at)?;
        if matches!(self.rules[index].1, RuleState::Said(_)) {
            return Err(wrong(self.source, at, &format!("there is another rule named {name}")));
        }
        self.skip(false);
        if !self.source[self.at..].starts_with("::=") {
            return Err(self.wrong("::= follows a rule's name"));
        }
        self.at += "::=".len();
        self.skip(true);
        let expr = self.alternatives(0)?;
        match self.peek() {
            None | Some('\n' | '\r') => self.skip(true),
            Some(c) => return Err(self.wrong(&format!("{c:?} cannot stand here"))),
        }
        self.rules[index].1 = RuleState::Said(expr);
        Ok(())
    }

    fn index(&mut self, name: &'a str, at: usize) -> Result<usize, CompileError> {
        if let Some(&index) = self.names.get(name) {
            return Ok(index);
        }
        if self.rules.len() == GBNF_RULES_MAX {
            return Err(wrong(self.source, at, &format!("there are more than {GBNF_RULES_MAX} rules")));
        }
        self.names.insert(name, self.rules.len());
        self.rules.push((name, RuleState::Used(at)));
        Ok(self.rules.len() - 1)
    }

    /// Parses alternatives up to the end of the group or rule.
    fn alternatives(&mut self, depth: usize) -> Result<Expr, CompileError> {
        if depth > NESTING_MAX {
            return Err(self.wrong(&format!("groups are nested more than {NESTING_MAX} deep")));
        }
        let mut alternatives = vec![self.sequence(depth)?];
        loop {
            // An alternative may begin on a new line.
            let before = self.at;
            self.skip(true);
            if self.peek() != Some('|') {
                self.at = if depth == 0 { before } else { self.at };
                break;
            }
            self.at += 1;
            self.skip(true);
            alternatives.push(self.sequence(depth)?);
        }
        Ok(match alternatives.pop() {
            Some(only) if alternatives.is_empty() => only,
            last => Expr::Alternatives(alternatives.into_iter().chain(last).collect()),
        })
    }

    fn sequence(&mut self, depth: usize) -> Result<Expr, CompileError> {
        let mut parts: Vec<Expr> = Vec::new();
        while let Some(c) = self.peek() {
            let part = match c {
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.at += 1;
                    Expr::Class { negated: true, ranges: Vec::new() }
                }
                '(' => {
                    self.at += 1;
                    self.skip(true);
                    let group = self.alternatives(depth + 1)?;
                    if self.peek() != Some(')') {
                        return Err(self.wrong("a group is closed by )"));
                    }
                    self.at += 1;
                    group
                }
                '<' => self.control()?,
                '*' | '+' | '?' | '{' => {
                    let repeated = parts.pop().ok_or_else(|| self.wrong("there is nothing to repeat"))?;
                    let (least, most) = self.repetition()?;
                    Expr::Repeat(Box::new(repeated), least, most)
                }
                c if is_of_name(c) => {
                    let at = self.at;
                    let name = self.name().unwrap_or_default();
                    Expr::Rule(self.index(name, at)?)
                }
                _ => break,
            };
            parts.push(part);
            self.skip(depth > 0);
        }
        Ok(match parts.pop() {
            Some(only) if parts.is_empty() => only,
            last => Expr::Sequence(parts.into_iter().chain(last).collect()),
        })
    }

    fn literal(&mut self) -> Result<Expr, CompileError> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(wrong(self.source, start, "a text is closed by \"")),
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.at += 1;
        Ok(Expr::Literal(text))
    }

    fn class(&mut self) -> Result<Expr, CompileError> {
        let start = self.at;
        self.at += 1;
        let negated = self.peek() == Some('^');
        self.at += usize::from(negated);
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(wrong(self.source, start, "a class is closed by ]")),
                Some(']') => break,
                Some(_) => {}
            }
            let at = self.at;
            let first = self.character()?;
            let mut last = first;
            let rest = &self.source[self.at..];
            if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                last = self.character()?;
            }
            if first > last {
                return Err(wrong(self.source, at, &format!("{first:?} comes after {last:?}")));
            }
            ranges.push((first, last));
        }
        self.at += 1;
        Ok(Expr::Class { negated, ranges })
    }

    /// Parses a control token, given by its text or number.
    fn control(&mut self) -> Result<Expr, CompileError> {
        let rest = &self.source[self.at..];
        let end = rest.find(|c: char| c == '>' || c.is_whitespace());
        let token = end.and_then(|end| rest.get(..=end)).filter(|token| token.ends_with('>'));
        match token {
            Some(token) if token.len() > 2 && !token[1..].contains('<') => {
                self.at += token.len();
                Ok(Expr::Control(token.to_owned()))
            }
            _ => Err(self.wrong("a control token is closed by >")),
        }
    }

    fn repetition(&mut self) -> Result<(u32, Option<u32>), CompileError> {
        let c = self.peek();
        self.at += 1;
        match c {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            _ => {}
        }
        self.skip(true);
        let least = self.number()?;
        self.skip(true);
        let range = self.peek() == Some(',');
        self.at += usize::from(range);
        self.skip(true);
        let most = if self.peek() == Some('}') && range { None } else { Some(self.number_or(least, range)?) };
        self.skip(true);
        if self.peek() != Some('}') {
            return Err(self.wrong("a repetition is closed by }"));
        }
        if most.is_some_and(|most| most < least.unwrap_or(0)) {
            return Err(self.wrong("a repetition's most is less than its least"));
        }
        self.at += 1;
        Ok((least.unwrap_or(0), most))
    }

    fn number_or(&mut self, least: Option<u32>, range: bool) -> Result<u32, CompileError> {
        let number = if range { self.number()? } else { least };
        number.ok_or_else(|| self.wrong("a repetition is {n}, {n,}, {,n} or {m,n}"))
    }

    fn number(&mut self) -> Result<Option<u32>, CompileError> {
        let rest = &self.source[self.at..];
        let digits = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
        if digits.is_empty() {
            return Ok(None);
        }
        let number = digits.parse().ok().filter(|&number| number <= REPEAT_MAX);
        let number = number.ok_or_else(|| self.wrong(&format!("a repetition is at most {REPEAT_MAX}")))?;
        self.at += digits.len();
        Ok(Some(number))
    }

    /// Parses a character of a literal or class.
    fn character(&mut self) -> Result<char, CompileError> {
        let Some(c) = self.peek() else { return Err(self.wrong("the grammar ends within a text or class")) };
        if c != '\\' {
            self.at += c.len_utf8();
            return Ok(c);
        }
        let escape = self.source[self.at + 1..].chars().next();
        let digits = match escape {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => 0,
        };
        let plain = match escape {
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/' | '\'')) => Some(c),
            _ => None,
        };
        if let Some(c) = plain {
            self.at += 2;
            return Ok(c);
        }
        let hex = self.source.get(self.at + 2..self.at + 2 + digits).filter(|_| digits > 0);
        let hex = hex.filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let c = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        let c = c.ok_or_else(|| self.wrong("there is no such escape"))?;
        self.at += 2 + digits;
        Ok(c)
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = &self.source[self.at..];
        let name = &rest[..rest.find(|c| !is_of_name(c)).unwrap_or(rest.len())];
        self.at += name.len();
        (!name.is_empty()).then_some(name)
    }

    fn peek(&self) -> Option<char> {
        self.source[self.at..].chars().next()
    }

    /// Skips spaces and comments; also line ends if `lines` is set.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '#' => {
                    let rest = &self.source[self.at..];
                    self.at += rest.find(['\n', '\r']).unwrap_or(rest.len());
                }
                _ => break,
            }
        }
    }

    fn wrong(&self, reason: &str) -> CompileError {
        wrong(self.source, self.at, reason)
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

fn wrong(source: &str, at: usize, reason: &str) -> CompileError {
    let before = &source[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    CompileError::new(format!("line {line}, column {column}: {reason}"))
}
