//! Translation of GBNF, llama.cpp's grammar notation, into Lark. Rules that are not recursive become terminals:
//! they are matched like regular expressions, without committing to an alternative too early. Recursive rules
//! stay rules. Between rules a terminal matches greedily, so a part becomes one only if that loses no text
//! (`lexemes`). The source is read in one pass; errors carry line and column.

mod lexemes;
mod parser;

use std::fmt::Write as _;

use self::lexemes::Lexemes;
use crate::error::CompileError;

/// Body of a rule.
#[derive(Debug)]
enum Expr {
    Literal(String),
    /// Character ranges, both ends included.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// Reference to a rule by its number.
    Rule(usize),
    /// Control token, as Lark spells it.
    Control(String),
    Sequence(Vec<Expr>),
    Alternatives(Vec<Expr>),
    /// Repetition with minimum and maximum count; None: unbounded.
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// Rules by number. Answers begin with rule `root`, the first one of that name.
#[derive(Debug)]
struct Rules {
    rules: Vec<Expr>,
    root: usize,
}

/// Translates GBNF into Lark.
pub(crate) fn to_lark(source: &str) -> Result<String, CompileError> {
    let rules = parser::parse(source)?;
    let terminal = terminals(&rules.rules);
    let lexemes = Lexemes::of(&rules.rules, &terminal, rules.root);
    let mut lark = String::with_capacity(2 * source.len());
    let in_rule = ExpressionContext { lexemes: Some(&lexemes), terminal: &terminal };
    let in_terminal = ExpressionContext { lexemes: None, terminal: &terminal };
    lark.push_str("start: ");
    in_rule.push_name(rules.root, &mut lark);
    lark.push('\n');
    for (index, rule) in rules.rules.iter().enumerate() {
        if terminal[index] {
            _ = write!(lark, "T{index}: ");
            in_terminal.push(rule, &mut lark);
            lark.push('\n');
        }
        if !lexemes.is_rule(index) {
            _ = write!(lark, "r{index}: ");
            in_rule.push(rule, &mut lark);
            lark.push('\n');
        }
    }
    Ok(lark)
}

/// Marks the rules from which neither recursion nor a control token can be reached.
fn terminals(rules: &[Expr]) -> Vec<bool> {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); rules.len()];
    let mut waits: Vec<usize> = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        let mut count = 0;
        visit(rule, &mut |expr| match expr {
            Expr::Rule(used) => {
                users[*used].push(index);
                count += 1;
            }
            Expr::Control(_) => count += 1, // never becomes zero
            _ => {}
        });
        waits.push(count);
    }
    let mut ready: Vec<usize> = (0..rules.len()).filter(|&rule| waits[rule] == 0).collect();
    let mut terminal = vec![false; rules.len()];
    while let Some(rule) = ready.pop() {
        terminal[rule] = true;
        for &user in &users[rule] {
            waits[user] -= 1;
            if waits[user] == 0 {
                ready.push(user);
            }
        }
    }
    terminal
}

fn visit(expr: &Expr, see: &mut impl FnMut(&Expr)) {
    see(expr);
    match expr {
        Expr::Sequence(parts) | Expr::Alternatives(parts) => parts.iter().for_each(|part| visit(part, see)),
        Expr::Repeat(part, ..) => visit(part, see),
        Expr::Literal(_) | Expr::Class { .. } | Expr::Rule(_) | Expr::Control(_) => {}
    }
}

/// Context in which an expression is written.
struct ExpressionContext<'a> {
    /// Within a rule: parts of the grammar that are lexemes.
    lexemes: Option<&'a Lexemes<'a>>,
    terminal: &'a [bool],
}

impl ExpressionContext<'_> {
    fn push_name(&self, rule: usize, lark: &mut String) {
        let terminal = self.lexemes.map_or(self.terminal[rule], |lexemes| lexemes.is_rule(rule));
        _ = write!(lark, "{}{rule}", if terminal { 'T' } else { 'r' });
    }

    fn push(&self, expr: &Expr, lark: &mut String) {
        match expr {
            Expr::Literal(text)
                if text.chars().nth(1).is_some()
                    && self.lexemes.is_some_and(|lexemes| !lexemes.is_literal(text)) =>
            {
                lark.push('(');
                for (at, c) in text.char_indices() {
                    lark.push_str(if at > 0 { " " } else { "" });
                    push_literal(&text[at..at + c.len_utf8()], lark);
                }
                lark.push(')');
            }
            Expr::Literal(text) => push_literal(text, lark),
            Expr::Class { negated, ranges } => push_class(*negated, ranges, lark),
            Expr::Rule(rule) => self.push_name(*rule, lark),
            Expr::Control(token) => lark.push_str(token),
            Expr::Sequence(parts) if parts.is_empty() => lark.push_str("\"\""),
            Expr::Sequence(parts) => self.push_parts(parts, " ", lark),
            Expr::Alternatives(parts) => self.push_parts(parts, " | ", lark),
            Expr::Repeat(part, least, most) => {
                lark.push('(');
                self.push(part, lark);
                lark.push(')');
                match (least, most) {
                    (0, None) => lark.push('*'),
                    (1, None) => lark.push('+'),
                    (0, Some(1)) => lark.push('?'),
                    (least, None) => _ = write!(lark, "{{{least},}}"),
                    (least, Some(most)) => _ = write!(lark, "{{{least},{most}}}"),
                }
            }
        }
    }

    fn push_parts(&self, parts: &[Expr], between: &str, lark: &mut String) {
        lark.push('(');
        for (index, part) in parts.iter().enumerate() {
            lark.push_str(if index > 0 { between } else { "" });
            self.push(part, lark);
        }
        lark.push(')');
    }
}

/// Writes a Lark string literal: a JSON string with control characters escaped.
pub(crate) fn push_literal(text: &str, lark: &mut String) {
    lark.push('"');
    for c in text.chars() {
        match c {
            '"' => lark.push_str("\\\""),
            '\\' => lark.push_str("\\\\"),
            '\0'..='\x1F' | '\x7F' => _ = write!(lark, "\\u{:04x}", u32::from(c)),
            _ => lark.push(c),
        }
    }
    lark.push('"');
}

fn push_class(negated: bool, ranges: &[(char, char)], lark: &mut String) {
    // `(?s)` has no effect within brackets. An empty negated class is any character, a newline too.
    if ranges.is_empty() {
        lark.push_str(if negated { "/(?s:.)/" } else { "/[^\\x{0}-\\x{10FFFF}]/" });
        return;
    }
    lark.push_str(if negated { "/[^" } else { "/[" });
    for &(first, last) in ranges {
        _ = write!(lark, "\\x{{{:X}}}-\\x{{{:X}}}", u32::from(first), u32::from(last));
    }
    lark.push_str("]/");
}
