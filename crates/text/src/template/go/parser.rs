//! Parser of Go templates, by the rules of `text/template/parse`.

use super::{
    NESTING_MAX, TranslateError,
    lexer::{Kind, Part, Token},
};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Text(String),
    /// Prints a pipeline, or assigns it to a variable.
    Action(Pipe),
    If(Branch),
    With(Branch),
    Range(Branch),
    Break,
    Continue,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Branch {
    pub(super) pipe: Pipe,
    pub(super) then: Vec<Node>,
    pub(super) otherwise: Option<Vec<Node>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pipe {
    pub(super) line: usize,
    /// Variables it is assigned to, with their `$`.
    pub(super) variables: Vec<String>,
    /// Assigned by `=`: the variables already exist.
    pub(super) again: bool,
    /// Commands; each but the first gets the previous one as its last argument.
    pub(super) commands: Vec<Vec<Arg>>,
}

/// Operand and the fields accessed on it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arg {
    pub(super) of: Operand,
    pub(super) fields: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    Dot,
    Nil,
    Bool(bool),
    Number(String),
    Text(String),
    Variable(String),
    Function(String),
    Pipe(Box<Pipe>),
}

/// Nodes of a whole template.
pub(super) fn parse(parts: &[Part]) -> Result<Vec<Node>, TranslateError> {
    let mut parser = Parser { parts, at: 0, depth: 0, loops: 0 };
    match parser.list()? {
        (nodes, None) => Ok(nodes),
        (_, Some(end)) => {
            let word = if end.otherwise { "else" } else { "end" };
            TranslateError::at(end.line, format!("{word} that belongs to nothing"))
        }
    }
}

/// End of a list of nodes.
struct End<'a> {
    line: usize,
    /// Ended by `else`, followed by `rest`.
    otherwise: bool,
    rest: &'a [Token],
}

struct Parser<'a> {
    parts: &'a [Part],
    at: usize,
    depth: usize,
    loops: usize, // open ranges
}

impl<'a> Parser<'a> {
    fn list(&mut self) -> Result<(Vec<Node>, Option<End<'a>>), TranslateError> {
        let mut nodes = Vec::new();
        while let Some(part) = self.parts.get(self.at) {
            self.at += 1;
            let tokens = match part {
                Part::Text(text) => {
                    nodes.push(Node::Text(text.clone()));
                    continue;
                }
                Part::Action(tokens) => tokens.as_slice(),
            };
            let Some(first) = tokens.first() else {
                return TranslateError::at(1, "an action with nothing in it");
            };
            let (line, rest) = (first.line, &tokens[1..]);
            let Kind::Word(word) = &first.kind else {
                nodes.push(Node::Action(pipe(tokens, line, false)?));
                continue;
            };
            match word.as_str() {
                "end" | "else" => {
                    return Ok((nodes, Some(End { line, otherwise: word == "else", rest })));
                }
                "if" | "with" | "range" => nodes.push(self.branch(word, rest, line)?),
                "break" | "continue" if rest.is_empty() => {
                    if self.loops == 0 {
                        return TranslateError::at(line, format!("{word} outside of range"));
                    }
                    nodes.push(if word == "break" { Node::Break } else { Node::Continue });
                }
                "define" | "template" | "block" => {
                    return TranslateError::at(
                        line,
                        format!("{word}: templates that use others are not supported"),
                    );
                }
                _ => nodes.push(Node::Action(pipe(tokens, line, false)?)),
            }
        }
        Ok((nodes, None))
    }

    fn branch(&mut self, word: &str, head: &[Token], line: usize) -> Result<Node, TranslateError> {
        self.depth += 1;
        if self.depth > NESTING_MAX {
            return TranslateError::at(line, format!("over {NESTING_MAX} blocks inside of others"));
        }
        let pipe = pipe(head, line, word == "range")?;
        self.loops += usize::from(word == "range");
        let (then, end) = self.list()?;
        self.loops -= usize::from(word == "range");
        let Some(end) = end else { return TranslateError::at(line, format!("{word} without its end")) };
        let otherwise = if end.otherwise { Some(self.otherwise(&end, word)?) } else { None };
        self.depth -= 1;
        let branch = Branch { pipe, then, otherwise };
        Ok(match word {
            "if" => Node::If(branch),
            "with" => Node::With(branch),
            _ => Node::Range(branch),
        })
    }

    /// Parses the part after `else`, up to the end of the whole statement.
    fn otherwise(&mut self, end: &End, word: &str) -> Result<Vec<Node>, TranslateError> {
        match end.rest.first().map(|token| &token.kind) {
            None => match self.list()? {
                (nodes, Some(last)) if !last.otherwise => Ok(nodes),
                (_, Some(last)) => TranslateError::at(last.line, "a second else"),
                (_, None) => TranslateError::at(end.line, format!("{word} without its end")),
            },
            // A single end closes both.
            Some(Kind::Word(next)) if matches!(next.as_str(), "if" | "with") && word == next => {
                Ok(vec![self.branch(next, &end.rest[1..], end.line)?])
            }
            Some(_) => TranslateError::at(end.line, format!("what stands behind the else of {word}")),
        }
    }
}

/// Parses all of these tokens as a pipeline.
fn pipe(tokens: &[Token], line: usize, of_range: bool) -> Result<Pipe, TranslateError> {
    let mut reading = PipeParser { tokens, line, depth: 0 };
    let mut variables = Vec::new();
    let sign = |at: usize| match tokens.get(at).map(|token| &token.kind) {
        Some(Kind::Sign(sign)) => *sign,
        _ => "",
    };
    let name = |at: usize| match tokens.get(at).map(|token| &token.kind) {
        Some(Kind::Variable(name)) => Some(name.clone()),
        _ => None,
    };
    let mut again = false;
    match (name(0), sign(1), name(2), sign(3)) {
        (Some(only), ":=" | "=", ..) => {
            (variables, again) = (vec![only], sign(1) == "=");
            reading.tokens = &tokens[2..];
        }
        (Some(one), ",", Some(two), ":=" | "=") if of_range => {
            (variables, again) = (vec![one, two], sign(3) == "=");
            reading.tokens = &tokens[4..];
        }
        _ => {}
    }
    let commands = reading.commands()?;
    match reading.tokens.first() {
        None => Ok(Pipe { line, variables, again, commands }),
        Some(token) => TranslateError::at(token.line, "a pipeline that goes on behind its end"),
    }
}

/// Parser of one pipeline's tokens.
struct PipeParser<'a> {
    tokens: &'a [Token],
    line: usize,
    depth: usize, // open parentheses
}

impl<'a> PipeParser<'a> {
    fn next(&mut self) -> Option<&'a Token> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    /// Parses up to a closing parenthesis, which is not consumed, or the end.
    fn commands(&mut self) -> Result<Vec<Vec<Arg>>, TranslateError> {
        let mut commands = vec![Vec::new()];
        while let Some(token) = self.tokens.first() {
            match &token.kind {
                Kind::Sign(")") if self.depth > 0 => break,
                Kind::Sign("|") => {
                    self.next();
                    commands.push(Vec::new());
                }
                _ => {
                    let arg = self.arg()?;
                    if let Some(last) = commands.last_mut() {
                        last.push(arg);
                    }
                }
            }
        }
        match commands.iter().any(Vec::is_empty) {
            true => TranslateError::at(self.line, "an action that lacks a value"),
            false => Ok(commands),
        }
    }

    fn arg(&mut self) -> Result<Arg, TranslateError> {
        let Some(token) = self.next() else { return TranslateError::at(self.line, "a value is missing") };
        let mut fields = Vec::new();
        let of = match &token.kind {
            Kind::Dot => Operand::Dot,
            Kind::Field(name) => {
                fields.push(name.clone());
                Operand::Dot
            }
            Kind::Variable(name) => Operand::Variable(name.clone()),
            Kind::Text(text) => Operand::Text(text.clone()),
            Kind::Number(text) => Operand::Number(text.clone()),
            Kind::Word(word) => match word.as_str() {
                "nil" => Operand::Nil,
                "true" | "false" => Operand::Bool(word == "true"),
                _ => Operand::Function(word.clone()),
            },
            Kind::Sign("(") => {
                self.depth += 1;
                if self.depth > NESTING_MAX {
                    return TranslateError::at(
                        token.line,
                        format!("over {NESTING_MAX} parentheses inside of others"),
                    );
                }
                let commands = self.commands()?;
                self.depth -= 1;
                if self.next().map(|token| &token.kind) != Some(&Kind::Sign(")")) {
                    return TranslateError::at(token.line, "a parenthesis that is not closed");
                }
                Operand::Pipe(Box::new(Pipe { line: token.line, commands, ..Pipe::default() }))
            }
            Kind::Sign(sign) => return TranslateError::at(token.line, format!("{sign:?} cannot stand here")),
        };
        while let Some(Token { kind: Kind::Field(name), spaced: false, .. }) = self.tokens.first() {
            fields.push(name.clone());
            self.next();
        }
        Ok(Arg { of, fields })
    }
}
