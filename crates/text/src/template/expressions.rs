//! Parser for expressions, by Jinja2's grammar: `if`, `or`, `and`, `not`, comparisons, `+ -`, `~`, `* / // %`,
//! `**`, signs, and suffixes of a value: attributes, items, calls, filters and tests.

use std::sync::Arc;

use super::{
    checks, filters,
    lexer::{Kind, Parsed},
    parser::Parser,
    text::Text,
    tree::{Args, Comparison, Expr, ExprId, FilterUse, Math, Postfix},
};

impl Parser {
    /// Parses an expression, or several separated by commas. May only be empty inside parentheses.
    pub(super) fn tuple(&mut self, in_parentheses: bool) -> Parsed<ExprId> {
        self.tuple_of(in_parentheses, Self::expression)
    }

    /// Parses the same without a conditional: a following `if` does not belong to it.
    pub(super) fn tuple_without_cond(&mut self) -> Parsed<ExprId> {
        self.tuple_of(false, |parser| parser.nested(Self::or))
    }

    fn tuple_of(
        &mut self,
        in_parentheses: bool,
        parse: impl Fn(&mut Self) -> Parsed<ExprId>,
    ) -> Parsed<ExprId> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        while !self.is_tuple_end() {
            items.push(parse(self)?);
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
        }
        match items.as_slice() {
            [] if !in_parentheses => self.unexpected("an expression"),
            [only] if !is_tuple => Ok(*only),
            _ => Ok(self.add(Expr::Tuple(items.into()))),
        }
    }

    fn is_tuple_end(&self) -> bool {
        matches!(self.kind(), Kind::VariableEnd | Kind::BlockEnd | Kind::End | Kind::Operator(")"))
    }

    /// Parses a single expression.
    pub(super) fn expression(&mut self) -> Parsed<ExprId> {
        self.nested(Self::cond)
    }

    fn cond(&mut self) -> Parsed<ExprId> {
        let mut then = self.or()?;
        let mut links = 0;
        while self.skip_name("if") {
            links += 1;
            if links > 16 {
                return self.error("too many ifs in one expression");
            }
            let test = self.or()?;
            let otherwise = if self.skip_name("else") { Some(self.expression()?) } else { None };
            then = self.add(Expr::Cond { then, test, otherwise });
        }
        Ok(then)
    }

    fn or(&mut self) -> Parsed<ExprId> {
        self.joined("or", Self::and, Expr::Or)
    }

    fn and(&mut self) -> Parsed<ExprId> {
        self.joined("and", Self::not, Expr::And)
    }

    fn joined(
        &mut self,
        word: &str,
        parse: impl Fn(&mut Self) -> Parsed<ExprId>,
        make: impl Fn(Box<[ExprId]>) -> Expr,
    ) -> Parsed<ExprId> {
        let first = parse(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_name(word) {
            parts.push(parse(self)?);
        }
        Ok(self.add(make(parts.into())))
    }

    fn not(&mut self) -> Parsed<ExprId> {
        let mut times = 0;
        while self.skip_name("not") {
            times += 1;
        }
        let of = self.compare()?;
        Ok(if times == 0 { of } else { self.add(Expr::Not { times, of }) })
    }

    fn compare(&mut self) -> Parsed<ExprId> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparison() {
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { self.add(Expr::Compare { first, rest: rest.into() }) })
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let comparison = match self.kind() {
            Kind::Operator("==") => Comparison::Equal,
            Kind::Operator("!=") => Comparison::NotEqual,
            Kind::Operator("<") => Comparison::Less,
            Kind::Operator("<=") => Comparison::LessOrEqual,
            Kind::Operator(">") => Comparison::Greater,
            Kind::Operator(">=") => Comparison::GreaterOrEqual,
            Kind::Name(name) if **name == *"in" => Comparison::In,
            Kind::Name(name) if **name == *"not" => match self.next_kind() {
                Kind::Name(next) if **next == *"in" => {
                    self.advance();
                    Comparison::NotIn
                }
                _ => return None,
            },
            _ => return None,
        };
        self.advance();
        Some(comparison)
    }

    fn sum(&mut self) -> Parsed<ExprId> {
        self.chain(Self::concat, |operator| match operator {
            "+" => Some(Math::Add),
            "-" => Some(Math::Sub),
            _ => None,
        })
    }

    fn concat(&mut self) -> Parsed<ExprId> {
        let first = self.product()?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_operator("~") {
            parts.push(self.product()?);
        }
        Ok(self.add(Expr::Concat(parts.into())))
    }

    fn product(&mut self) -> Parsed<ExprId> {
        self.chain(Self::power, |operator| match operator {
            "*" => Some(Math::Mul),
            "/" => Some(Math::Div),
            "//" => Some(Math::FloorDiv),
            "%" => Some(Math::Rem),
            _ => None,
        })
    }

    fn power(&mut self) -> Parsed<ExprId> {
        self.chain(Self::unary, |operator| (operator == "**").then_some(Math::Pow))
    }

    fn chain(
        &mut self,
        parse: impl Fn(&mut Self) -> Parsed<ExprId>,
        known: impl Fn(&str) -> Option<Math>,
    ) -> Parsed<ExprId> {
        let first = parse(self)?;
        let mut rest = Vec::new();
        while let Kind::Operator(operator) = self.kind() {
            let Some(math) = known(operator) else { break };
            self.advance();
            rest.push((math, parse(self)?));
        }
        Ok(if rest.is_empty() { first } else { self.add(Expr::Math { first, rest: rest.into() }) })
    }

    /// Parses signs. They bind weaker than attributes, items and calls, and stronger than filters and tests.
    fn unary(&mut self) -> Parsed<ExprId> {
        let mut signs = Vec::new();
        loop {
            match self.kind() {
                Kind::Operator("-") => signs.push(true),
                Kind::Operator("+") => signs.push(false),
                _ => break,
            }
            self.advance();
        }
        let mut base = self.primary()?;
        let mut steps = Vec::new();
        self.postfix(&mut steps)?;
        if !signs.is_empty() {
            base = self.with_steps(base, std::mem::take(&mut steps));
            base = self.add(Expr::Signed { signs: signs.into(), of: base });
        }
        self.filters_and_tests(&mut steps)?;
        Ok(self.with_steps(base, steps))
    }

    fn with_steps(&mut self, base: ExprId, steps: Vec<Postfix>) -> ExprId {
        if steps.is_empty() { base } else { self.add(Expr::Postfix { base, steps: steps.into() }) }
    }

    fn primary(&mut self) -> Parsed<ExprId> {
        let expression = match self.kind() {
            Kind::Name(name) => match &**name {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => {
                    let name = name.clone();
                    Expr::Name(self.name_id(&name))
                }
            },
            Kind::String(first) if !matches!(self.next_kind(), Kind::String(_)) => {
                Expr::Text(Text::template(first.clone()))
            }
            Kind::String(_) => {
                let mut text = String::new();
                while let Kind::String(part) = self.kind() {
                    text.push_str(part);
                    self.advance();
                }
                return Ok(self.add(Expr::Text(Text::template(text))));
            }
            Kind::Integer(value) => Expr::Int(*value),
            Kind::Float(value) => Expr::Float(*value),
            Kind::Operator("(") => {
                self.advance();
                let inside = self.tuple(true)?;
                self.expect_operator(")")?;
                return Ok(inside);
            }
            Kind::Operator("[") => return self.list(),
            Kind::Operator("{") => return self.dict(),
            _ => return self.unexpected("an expression"),
        };
        self.advance();
        Ok(self.add(expression))
    }

    fn list(&mut self) -> Parsed<ExprId> {
        self.advance();
        let mut items = Vec::new();
        while !self.is_operator("]") {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.is_operator("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        self.advance();
        Ok(self.add(Expr::List(items.into())))
    }

    fn dict(&mut self) -> Parsed<ExprId> {
        self.advance();
        let mut entries = Vec::new();
        while !self.is_operator("}") {
            if !entries.is_empty() {
                self.expect_operator(",")?;
                if self.is_operator("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_operator(":")?;
            entries.push((key, self.expression()?));
        }
        self.advance();
        Ok(self.add(Expr::Dict(entries.into())))
    }

    /// Parses attributes, items and calls.
    fn postfix(&mut self, steps: &mut Vec<Postfix>) -> Parsed<()> {
        loop {
            match self.kind() {
                Kind::Operator(".") => {
                    self.advance();
                    if let Kind::Integer(index) = self.kind() {
                        let index = Expr::Int(*index);
                        self.advance();
                        let index = self.add(index);
                        steps.push(Postfix::Item(index));
                    } else {
                        steps.push(Postfix::Attribute(Text::template(self.name()?)));
                    }
                }
                Kind::Operator("[") => {
                    self.advance();
                    steps.push(self.subscript()?);
                }
                Kind::Operator("(") => self.call(steps)?,
                _ => return Ok(()),
            }
        }
    }

    fn call(&mut self, steps: &mut Vec<Postfix>) -> Parsed<()> {
        let args = self.args()?;
        let step = match steps.pop() {
            Some(Postfix::Attribute(name)) => Postfix::Method(name, args),
            other => {
                steps.extend(other);
                Postfix::Call(args)
            }
        };
        steps.push(step);
        Ok(())
    }

    /// Whether an expression ends with a call.
    pub(super) fn is_call(&self, id: ExprId) -> bool {
        let Expr::Postfix { steps, .. } = &self.tree.expressions[id as usize] else { return false };
        matches!(steps.last(), Some(Postfix::Call(_) | Postfix::Method(..)))
    }

    fn subscript(&mut self) -> Parsed<Postfix> {
        let mut parts: [Option<ExprId>; 3] = [None; 3];
        let mut colons = 0;
        while !self.is_operator("]") {
            if self.is_operator(":") && colons < 2 {
                colons += 1;
                self.advance();
                continue;
            }
            if parts[colons].is_some() {
                return self.unexpected("]");
            }
            parts[colons] = Some(self.expression()?);
            if colons == 0 && self.is_operator(",") {
                // a tuple as a key
                let mut items: Vec<ExprId> = parts[0].into_iter().collect();
                while self.skip_operator(",") && !self.is_operator("]") {
                    items.push(self.expression()?);
                }
                parts[0] = Some(self.add(Expr::Tuple(items.into())));
                break;
            }
        }
        self.expect_operator("]")?;
        match (colons, parts[0]) {
            (0, Some(item)) => Ok(Postfix::Item(item)),
            (0, None) => self.error("an empty subscript"),
            _ => Ok(Postfix::Slice(parts)),
        }
    }

    fn args(&mut self) -> Parsed<Args> {
        self.expect_operator("(")?;
        let (mut positional, mut named, mut spread, mut spread_named) = (Vec::new(), Vec::new(), None, None);
        let mut is_first = true;
        while !self.is_operator(")") {
            if !std::mem::take(&mut is_first) {
                self.expect_operator(",")?;
                if self.is_operator(")") {
                    break;
                }
            }
            if spread_named.is_some() {
                return self.error("an argument behind **");
            }
            if self.skip_operator("*") {
                if spread.is_some() {
                    return self.error("two arguments with *");
                }
                spread = Some(self.expression()?);
            } else if self.skip_operator("**") {
                spread_named = Some(self.expression()?);
            } else if matches!(self.next_kind(), Kind::Operator("=")) && matches!(self.kind(), Kind::Name(_))
            {
                let name: Arc<str> = self.name()?;
                self.advance();
                named.push((name, self.expression()?));
            } else if !named.is_empty() || spread.is_some() {
                return self.error("an argument without a name behind one with a name");
            } else {
                positional.push(self.expression()?);
            }
        }
        self.advance();
        Ok(Args { positional: positional.into(), named: named.into(), spread, spread_named })
    }

    fn filters_and_tests(&mut self, steps: &mut Vec<Postfix>) -> Parsed<()> {
        loop {
            if self.skip_operator("|") {
                let filter = self.filter_use()?;
                steps.push(Postfix::Filter(filter));
            } else if self.skip_name("is") {
                let test = self.test()?;
                steps.push(test);
            } else if self.is_operator("(") {
                let args = self.args()?;
                steps.push(Postfix::Call(args));
            } else {
                return Ok(());
            }
        }
    }

    fn dotted(&mut self) -> Parsed<Arc<str>> {
        let mut name = self.name()?;
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.name()?).into();
        }
        Ok(name)
    }

    /// Parses a filter's name and arguments.
    pub(super) fn filter_use(&mut self) -> Parsed<FilterUse> {
        let name = self.dotted()?;
        let args = if self.is_operator("(") { self.args()? } else { Args::default() };
        Ok(FilterUse { filter: filters::by_name(&name), name, args })
    }

    /// Parses further filters, each after a `|`.
    pub(super) fn more_filters(&mut self, mut filters: Vec<FilterUse>) -> Parsed<Box<[FilterUse]>> {
        while self.skip_operator("|") {
            filters.push(self.filter_use()?);
        }
        Ok(filters.into())
    }

    fn test(&mut self) -> Parsed<Postfix> {
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        let args = match self.kind() {
            Kind::Operator("(") => self.args()?,
            Kind::Name(word) if matches!(&**word, "else" | "or" | "and") => Args::default(),
            Kind::Name(word) if **word == *"is" => return self.error("tests cannot be chained with is"),
            Kind::Name(_)
            | Kind::String(_)
            | Kind::Integer(_)
            | Kind::Float(_)
            | Kind::Operator("[")
            | Kind::Operator("{") => {
                let base = self.nested(Self::primary)?;
                let mut steps = Vec::new();
                self.postfix(&mut steps)?;
                Args { positional: [self.with_steps(base, steps)].into(), ..Args::default() }
            }
            _ => Args::default(),
        };
        Ok(Postfix::Test { check: checks::by_name(&name), name, args, negated })
    }
}
