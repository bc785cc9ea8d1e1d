//! Parser for statements: from tokens to the blocks of a [`Tree`]. Expressions are in `expressions.rs`. Nesting of
//! blocks and expressions is counted, so that no source makes the parser or the run recurse deeper than
//! [`TEMPLATE_NESTING_MAX`].

use std::sync::Arc;

use super::{
    lexer::{Kind, Parsed, SyntaxError, Token, tokens},
    text::Text,
    tree::{Block, Expr, ExprId, For, Macro, NameId, Parameters, Statement, Target, Tree},
};
use crate::limits::{TEMPLATE_NESTING_MAX, TEMPLATE_SOURCE_BYTES_MAX};

/// Parses a template.
pub(super) fn parse(source: &str) -> Parsed<Tree> {
    if source.len() > TEMPLATE_SOURCE_BYTES_MAX {
        let reason = format!("{} bytes; {TEMPLATE_SOURCE_BYTES_MAX} is the most", source.len());
        return Err(SyntaxError { line: 1, reason });
    }
    let mut parser = Parser { tokens: tokens(source)?, at: 0, nesting: 0, loops: 0, tree: Tree::default() };
    let (root, end) = parser.block(&[])?;
    match end {
        None => {
            parser.tree.root = root;
            Ok(parser.tree)
        }
        Some(tag) => parser.error(format!("unexpected {tag}")),
    }
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    nesting: usize,
    /// Enclosing loops within the current macro.
    loops: usize,
    pub(super) tree: Tree,
}

impl Parser {
    pub(super) fn kind(&self) -> &Kind {
        &self.tokens[self.at].kind
    }

    pub(super) fn next_kind(&self) -> &Kind {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].kind
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    /// Advances to the next token; stays at the last one.
    pub(super) fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    #[cold]
    pub(super) fn error<T>(&self, reason: impl Into<String>) -> Parsed<T> {
        Err(SyntaxError { line: self.line(), reason: reason.into() })
    }

    #[cold]
    pub(super) fn unexpected<T>(&self, expected: &str) -> Parsed<T> {
        let found = match self.kind() {
            Kind::Data(_) => "text".to_owned(),
            Kind::BlockBegin => "{%".to_owned(),
            Kind::BlockEnd => "%}".to_owned(),
            Kind::VariableBegin => "{{".to_owned(),
            Kind::VariableEnd => "}}".to_owned(),
            Kind::Name(name) => name.chars().take(64).collect(),
            Kind::String(_) => "a string".to_owned(),
            Kind::Integer(_) | Kind::Float(_) => "a number".to_owned(),
            Kind::Operator(operator) => (*operator).to_owned(),
            Kind::End => "the end of the template".to_owned(),
        };
        self.error(format!("unexpected {found}, expected {expected}"))
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.kind(), Kind::Name(found) if **found == *name)
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn is_operator(&self, operator: &str) -> bool {
        matches!(self.kind(), Kind::Operator(found) if *found == operator)
    }

    pub(super) fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn expect_operator(&mut self, operator: &str) -> Parsed<()> {
        if self.skip_operator(operator) { Ok(()) } else { self.unexpected(operator) }
    }

    pub(super) fn name(&mut self) -> Parsed<Arc<str>> {
        match self.kind() {
            Kind::Name(name) => {
                let name = name.clone();
                self.advance();
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn block_end(&mut self) -> Parsed<()> {
        if *self.kind() != Kind::BlockEnd {
            return self.unexpected("%}");
        }
        self.advance();
        Ok(())
    }

    /// ID of a variable's name.
    pub(super) fn name_id(&mut self, name: &Arc<str>) -> NameId {
        let Tree { names, name_ids, .. } = &mut self.tree;
        *name_ids.entry(name.clone()).or_insert_with(|| {
            names.push(name.clone());
            names.len() as NameId - 1
        })
    }

    pub(super) fn add(&mut self, expression: Expr) -> ExprId {
        self.tree.expressions.push(expression);
        self.tree.expressions.len() as ExprId - 1
    }

    /// Parses a nested construct.
    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.nesting >= TEMPLATE_NESTING_MAX {
            return self.error(format!("nested deeper than {TEMPLATE_NESTING_MAX}"));
        }
        self.nesting += 1;
        let parsed = parse(self);
        self.nesting -= 1;
        parsed
    }

    /// Parses statements up to one of the end tags, whose name is consumed; without tags, up to the end of the
    /// template.
    fn block(&mut self, ends: &[&str]) -> Parsed<(Block, Option<Arc<str>>)> {
        self.nested(|parser| parser.block_inside(ends))
    }

    fn block_inside(&mut self, ends: &[&str]) -> Parsed<(Block, Option<Arc<str>>)> {
        let mut statements = Vec::new();
        loop {
            let line = self.line();
            let statement = match self.kind() {
                Kind::Data(text) => {
                    let text = Text::template(text.clone());
                    self.advance();
                    Statement::Text(text)
                }
                Kind::VariableBegin => {
                    self.advance();
                    let printed = self.tuple(false)?;
                    if *self.kind() != Kind::VariableEnd {
                        return self.unexpected("}}");
                    }
                    self.advance();
                    Statement::Print([printed].into())
                }
                Kind::BlockBegin => {
                    self.advance();
                    let tag = self.name()?;
                    if ends.contains(&&*tag) {
                        return Ok((statements.into(), Some(tag)));
                    }
                    let statement = self.statement(&tag, line)?;
                    self.block_end()?;
                    statement
                }
                Kind::End if ends.is_empty() => return Ok((statements.into(), None)),
                _ => return self.unexpected(&ends.join(" or ")),
            };
            self.tree.statements.push((line, statement));
            statements.push(self.tree.statements.len() as u32 - 1);
        }
    }

    /// Parses a body up to its only end tag.
    fn body(&mut self, end: &str) -> Parsed<Block> {
        self.block_end()?;
        Ok(self.block(&[end])?.0)
    }

    fn statement(&mut self, tag: &str, line: u32) -> Parsed<Statement> {
        match tag {
            "if" => self.if_statement(),
            "for" => self.for_statement(),
            "set" => self.set_statement(),
            "with" => self.with_statement(),
            "macro" => {
                let name = self.name()?;
                let id = self.macro_definition(name.clone(), "endmacro")?;
                Ok(Statement::Macro { name: self.name_id(&name), id })
            }
            "call" => {
                // The parameters come before the call, and the body after it.
                let parameters = if self.is_operator("(") { self.signature()? } else { Box::default() };
                let call = self.expression()?;
                if !self.is_call(call) {
                    return self.error("call needs a call of a macro");
                }
                let body = self.macro_body("endcall")?;
                self.tree.macros.push(Macro { name: "caller".into(), parameters, body });
                Ok(Statement::Call { call, caller: self.tree.macros.len() as u32 - 1 })
            }
            "filter" => {
                let first = self.filter_use()?;
                let filters = self.more_filters(vec![first])?;
                Ok(Statement::Filter { filters, body: self.body("endfilter")? })
            }
            "print" => {
                let mut printed = Vec::new();
                while *self.kind() != Kind::BlockEnd {
                    if !printed.is_empty() {
                        self.expect_operator(",")?;
                    }
                    printed.push(self.expression()?);
                }
                Ok(Statement::Print(printed.into()))
            }
            // Marks text for training; has no effect here.
            "generation" => Ok(Statement::Scope(self.body("endgeneration")?)),
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.error(format!("{tag} outside of a loop"));
                }
                Ok(if tag == "break" { Statement::Break } else { Statement::Continue })
            }
            "block" | "extends" | "include" | "import" | "from" | "autoescape" | "do" => {
                self.error(format!("{tag} is not for chat templates"))
            }
            _ => Err(SyntaxError { line, reason: format!("unknown tag {}", short(tag)) }),
        }
    }

    fn if_statement(&mut self) -> Parsed<Statement> {
        let (mut branches, mut otherwise) = (Vec::new(), Block::default());
        loop {
            let test = self.tuple_without_cond()?;
            self.block_end()?;
            let (body, end) = self.block(&["elif", "else", "endif"])?;
            branches.push((test, body));
            match end.as_deref() {
                Some("elif") => {}
                Some("else") => {
                    otherwise = self.body("endif")?;
                    break;
                }
                _ => break,
            }
        }
        Ok(Statement::If { branches: branches.into(), otherwise })
    }

    fn for_statement(&mut self) -> Parsed<Statement> {
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return self.unexpected("in");
        }
        let over = self.tuple_without_cond()?;
        let only_if = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.block_end()?;
        self.loops += 1;
        let (body, end) = self.block(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = if end.as_deref() == Some("else") { self.body("endfor")? } else { Block::default() };
        Ok(Statement::For(Box::new(For { target, over, only_if, recursive, body, otherwise })))
    }

    fn set_statement(&mut self) -> Parsed<Statement> {
        let target = self.target(true)?;
        if self.skip_operator("=") {
            return Ok(Statement::Set(target, self.tuple(false)?));
        }
        let filters = self.more_filters(Vec::new())?;
        Ok(Statement::SetBlock { target, filters, body: self.body("endset")? })
    }

    fn with_statement(&mut self) -> Parsed<Statement> {
        let mut assignments = Vec::new();
        while *self.kind() != Kind::BlockEnd {
            if !assignments.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.target(false)?;
            self.expect_operator("=")?;
            assignments.push((target, self.expression()?));
        }
        Ok(Statement::With { assignments: assignments.into(), body: self.body("endwith")? })
    }

    /// Parses parameters and body of a macro after its name.
    fn macro_definition(&mut self, name: Arc<str>, end: &str) -> Parsed<u32> {
        let parameters = self.signature()?;
        let body = self.macro_body(end)?;
        self.tree.macros.push(Macro { name, parameters, body });
        Ok(self.tree.macros.len() as u32 - 1)
    }

    fn macro_body(&mut self, end: &str) -> Parsed<Block> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.body(end);
        self.loops = loops;
        body
    }

    fn signature(&mut self) -> Parsed<Parameters> {
        self.expect_operator("(")?;
        let mut parameters = Vec::new();
        let mut has_defaults = false;
        while !self.is_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.name()?;
            let default = if self.skip_operator("=") { Some(self.expression()?) } else { None };
            if has_defaults && default.is_none() {
                return self.error("a parameter without a default behind one with a default");
            }
            has_defaults |= default.is_some();
            parameters.push((self.name_id(&name), default));
        }
        self.advance();
        Ok(parameters.into())
    }

    /// Parses an assignment target: names, a namespace's attribute, or several in a tuple.
    fn target(&mut self, with_attributes: bool) -> Parsed<Target> {
        let mut targets = vec![self.one_target(with_attributes)?];
        let mut is_tuple = false;
        while self.skip_operator(",") {
            is_tuple = true;
            if !matches!(self.kind(), Kind::Name(name) if **name != *"in") && !self.is_operator("(") {
                break;
            }
            targets.push(self.one_target(with_attributes)?);
        }
        Ok(match targets.pop() {
            Some(only) if !is_tuple => only,
            last => {
                targets.extend(last);
                Target::Tuple(targets.into())
            }
        })
    }

    fn one_target(&mut self, with_attributes: bool) -> Parsed<Target> {
        if self.skip_operator("(") {
            let inside = self.nested(|parser| parser.target(with_attributes))?;
            self.expect_operator(")")?;
            return Ok(inside);
        }
        let name = self.name()?;
        if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
            return self.error(format!("cannot assign to {name}"));
        }
        let id = self.name_id(&name);
        if with_attributes && self.skip_operator(".") {
            return Ok(Target::Attribute(id, self.name()?));
        }
        Ok(Target::Name(id))
    }
}

/// Shortened name for an error.
fn short(name: &str) -> String {
    name.chars().take(64).collect()
}
