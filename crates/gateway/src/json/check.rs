//! Validation of JSON texts, in one pass and without recursion.

use super::is_blank;
use crate::limits::JSON_DEPTH_MAX;

/// Fault of a text that is not JSON.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fault {
    /// Offset in bytes.
    pub(crate) at: usize,
    pub(crate) problem: &'static str,
}

impl Fault {
    /// Whether a value itself is invalid, such as NaN, rather than the structure around it.
    pub(crate) fn is_of_value(self) -> bool {
        matches!(self.problem, NO_VALUE | NO_NUMBER)
    }
}

const NO_VALUE: &str = "expected a value";
const NO_NUMBER: &str = "invalid number";

/// Checks that the whole of `text` is one value.
pub(super) fn check(text: &str) -> Result<(), Fault> {
    Scan { bytes: text.as_bytes(), at: 0 }.check()
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn check(&mut self) -> Result<(), Fault> {
        let mut closing = Vec::with_capacity(JSON_DEPTH_MAX); // closing brackets of what is open, the innermost last
        loop {
            match self.peek() {
                Some(open @ (b'[' | b'{')) => {
                    if closing.len() == JSON_DEPTH_MAX {
                        return self
                            .fault("recursion limit exceeded: arrays and objects are nested too deep");
                    }
                    closing.push(open + 2); // in ASCII, the closing bracket
                    self.at += 1;
                    if self.peek() != closing.last().copied() {
                        if open == b'{' {
                            self.name()?;
                        }
                        continue;
                    }
                }
                Some(b'"') => self.string()?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word("true")?,
                Some(b'f') => self.word("false")?,
                Some(b'n') => self.word("null")?,
                Some(_) => return self.fault(NO_VALUE),
                None => return self.fault("EOF while parsing a value"),
            }
            // After a value: go on until another value must follow.
            loop {
                match (closing.last(), self.peek()) {
                    (None, None) => return Ok(()),
                    (None, Some(_)) => return self.fault("trailing characters"),
                    (Some(_), None) => return self.fault("EOF while parsing an array or an object"),
                    (Some(close), Some(byte)) if *close == byte => {
                        self.at += 1;
                        closing.pop();
                    }
                    (Some(close), Some(b',')) => {
                        self.at += 1;
                        if *close == b'}' {
                            self.name()?;
                        }
                        break;
                    }
                    (Some(b'}'), Some(_)) => return self.fault("expected `,` or `}`"),
                    (Some(_), Some(_)) => return self.fault("expected `,` or `]`"),
                }
            }
        }
    }

    fn fault(&self, problem: &'static str) -> Result<(), Fault> {
        Err(Fault { at: self.at, problem })
    }

    /// Next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while self.bytes.get(self.at).is_some_and(|byte| is_blank(*byte)) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    /// Reads a member's name and its colon.
    fn name(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Some(b'"') => self.string()?,
            Some(_) => return self.fault("expected a field's name in quotes"),
            None => return self.fault("EOF while parsing an object"),
        }
        match self.peek() {
            Some(b':') => self.at += 1,
            Some(_) => return self.fault("expected `:`"),
            None => return self.fault("EOF while parsing an object"),
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), Fault> {
        self.at += 1;
        loop {
            match self.bytes.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => match self.bytes.get(self.at + 1) {
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
                    Some(b'u') => match self.bytes.get(self.at + 2..self.at + 6) {
                        Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => self.at += 6,
                        _ => return self.fault("invalid escape: \\u needs four hexadecimal digits"),
                    },
                    Some(_) => return self.fault("invalid escape"),
                    None => return self.fault("EOF while parsing a string"),
                },
                Some(0..=0x1F) => return self.fault("a control character in a string; escape it"),
                Some(_) => self.at += 1,
                None => return self.fault("EOF while parsing a string"),
            }
        }
        self.at += 1;
        Ok(())
    }

    fn number(&mut self) -> Result<(), Fault> {
        if self.bytes[self.at] == b'-' {
            self.at += 1;
        }
        if self.bytes.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.bytes.get(self.at) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Fault> {
        let rest = &self.bytes[self.at..];
        let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += count;
        if count == 0 { self.fault(NO_NUMBER) } else { Ok(()) }
    }

    fn word(&mut self, word: &str) -> Result<(), Fault> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return self.fault(NO_VALUE);
        }
        self.at += word.len();
        Ok(())
    }
}
