//! Writes a parsed Go template as Jinja. All text is in strings, so rules of white space do not apply to it. A Go
//! variable becomes an attribute of the namespace `go`, because it must outlive the block that changes it.

use super::{
    TranslateError,
    fields::{Kind, field, literal},
    parser::{Arg, Branch, Node, Operand, Pipe},
    pieces,
};

/// Expression and its kind.
#[derive(Clone, Debug)]
struct Value {
    code: String,
    kind: Kind,
}

impl Value {
    fn new(code: impl Into<String>, kind: Kind) -> Value {
        Value { code: code.into(), kind }
    }

    /// Expression for its truth.
    fn truth(&self) -> &str {
        if self.kind.is_struct() { "true" } else { &self.code }
    }

    /// Part of a list or a text between up to two bounds; `None` if it is neither.
    fn sliced(&self, bounds: &[Value]) -> Option<Value> {
        if self.kind.element().is_none() && self.kind != Kind::Text {
            return None;
        }
        let bounds: Vec<&str> = bounds.iter().map(|bound| bound.code.as_str()).collect();
        let bounds = if bounds.len() == 2 { bounds.join(":") } else { format!("{}:", bounds.concat()) };
        Some(Value::new(format!("{}[{bounds}]", self.code), self.kind))
    }

    /// Element at these indices, the outermost first; `None` where there are no elements.
    fn indexed(&self, indices: &[Value]) -> Option<Value> {
        indices.iter().try_fold(self.clone(), |of, at| {
            let kind = match of.kind {
                Kind::Any => Kind::Any,
                kind => kind.element()?,
            };
            Some(Value::new(format!("{}[{}]", of.code, at.code), kind))
        })
    }
}

#[derive(Default)]
struct Writer {
    out: String,
    variables: Vec<(String, Value)>, // variables in scope, the innermost last
    dots: Vec<Value>,
    made: usize, // number of attributes and names so far
    json: bool,
    objects: bool,
    prints: bool,
}

/// Writes a tree as a Jinja template.
pub(super) fn write(nodes: &[Node]) -> Result<String, TranslateError> {
    let mut writer = Writer { dots: vec![Value::new("", Kind::Root)], ..Writer::default() };
    let says = |name: &str| names(nodes).any(|field| field.eq_ignore_ascii_case(name));
    let (before, body) = if says("messages") {
        writer.nodes(nodes)?;
        (pieces::MESSAGES, writer.out.split_off(0))
    } else {
        let mut nodes = nodes.to_vec();
        if !says("response") {
            let fields = vec!["Response".to_owned()];
            let commands = vec![vec![Arg { of: Operand::Dot, fields }]];
            nodes.push(Node::Action(Pipe { line: 1, commands, ..Pipe::default() }));
        }
        writer.out.push_str("{%- macro go_turn() -%}\n");
        writer.nodes(&nodes)?;
        writer.out.push_str("{%- endmacro -%}\n");
        writer.out.push_str(pieces::EACH_TURN);
        writer.variables.clear();
        writer.nodes(&cut(&nodes, &mut false))?;
        (pieces::TURNS, writer.out.split_off(0))
    };
    let needed = [
        ("{#- Translated from a template in Go's language. -#}\n", true),
        (pieces::JSON, writer.json || writer.objects),
        (pieces::OBJECTS, writer.objects),
        (pieces::PRINT, writer.prints),
        (before, true),
        (body.as_str(), true),
    ];
    Ok(needed.into_iter().filter(|(_, needed)| *needed).map(|(text, _)| text).collect())
}

/// All fields that are accessed.
fn names(nodes: &[Node]) -> Box<dyn Iterator<Item = &str> + '_> {
    Box::new(nodes.iter().flat_map(|node| -> Box<dyn Iterator<Item = &str> + '_> {
        match node {
            Node::Action(pipe) => in_pipe(pipe),
            Node::If(of) | Node::With(of) | Node::Range(of) => Box::new(
                in_pipe(&of.pipe)
                    .chain(names(&of.then))
                    .chain(of.otherwise.iter().flat_map(|nodes| names(nodes))),
            ),
            Node::Text(_) | Node::Break | Node::Continue => Box::new(std::iter::empty()),
        }
    }))
}

fn in_pipe(pipe: &Pipe) -> Box<dyn Iterator<Item = &str> + '_> {
    Box::new(pipe.commands.iter().flatten().flat_map(|arg| {
        let inside: Box<dyn Iterator<Item = &str>> = match &arg.of {
            Operand::Pipe(pipe) => in_pipe(pipe),
            _ => Box::new(std::iter::empty()),
        };
        arg.fields.iter().map(String::as_str).chain(inside)
    }))
}

/// Nodes up to and including the first printed `.Response`. Sets `done` if it was found.
fn cut(nodes: &[Node], done: &mut bool) -> Vec<Node> {
    let mut kept = Vec::new();
    for node in nodes {
        if *done {
            break;
        }
        let mut branch = |of: &Branch| {
            let then = cut(&of.then, done);
            let otherwise = of.otherwise.as_ref().filter(|_| !*done).map(|nodes| cut(nodes, done));
            Branch { pipe: of.pipe.clone(), then, otherwise }
        };
        kept.push(match node {
            Node::If(of) => Node::If(branch(of)),
            Node::With(of) => Node::With(branch(of)),
            Node::Range(of) => Node::Range(branch(of)),
            Node::Action(pipe) => {
                *done = in_pipe(pipe).any(|field| field == "Response");
                node.clone()
            }
            _ => node.clone(),
        });
    }
    kept
}

impl Writer {
    fn nodes(&mut self, nodes: &[Node]) -> Result<(), TranslateError> {
        let seen = self.variables.len();
        for node in nodes {
            match node {
                Node::Text(text) => self.print(&literal(text)),
                Node::Action(pipe) => self.action(pipe)?,
                Node::If(branch) => {
                    let kept = self.variables.len();
                    let value = self.pipe(&branch.pipe)?;
                    let value = self.named(&branch.pipe, value)?;
                    self.tag(&format!("if {}", value.truth()));
                    self.nodes(&branch.then)?;
                    self.otherwise(branch)?;
                    self.tag("endif");
                    self.variables.truncate(kept);
                }
                Node::With(branch) => {
                    let kept = self.variables.len();
                    let value = self.pipe(&branch.pipe)?;
                    let value = self.named(&branch.pipe, value)?;
                    let value = self.keep(value);
                    self.tag(&format!("if {}", value.truth()));
                    self.dots.push(value);
                    self.nodes(&branch.then)?;
                    self.dots.pop();
                    self.otherwise(branch)?;
                    self.tag("endif");
                    self.variables.truncate(kept);
                }
                Node::Range(branch) => self.range(branch)?,
                Node::Break => self.tag("break"),
                Node::Continue => self.tag("continue"),
            }
        }
        self.variables.truncate(seen);
        Ok(())
    }

    fn otherwise(&mut self, branch: &Branch) -> Result<(), TranslateError> {
        let Some(nodes) = &branch.otherwise else { return Ok(()) };
        self.tag("else");
        self.nodes(nodes)
    }

    fn range(&mut self, branch: &Branch) -> Result<(), TranslateError> {
        let pipe = &branch.pipe;
        let over = self.pipe(pipe)?;
        let Some(element) = over.kind.element() else {
            return TranslateError::at(pipe.line, "range over what is no list, or may be none");
        };
        let (kept, number) = (self.variables.len(), self.number());
        let (name, item) = (format!("name_{number}"), Value::new(format!("item_{number}"), element));
        let key = match over.kind.is_map() {
            true => {
                let map = format!("({0} if {0} is mapping else {{}})", over.code);
                self.tag(&format!("for {name}, {} in {map}|dictsort(true)", item.code));
                Value::new(name, Kind::Text)
            }
            false => {
                self.tag(&format!("for {} in {}", item.code, over.code));
                Value::new("loop.index0", Kind::Number)
            }
        };
        let values = match pipe.variables.len() {
            2 => vec![key, item.clone()],
            _ => vec![item.clone()],
        };
        for (variable, value) in pipe.variables.iter().zip(values) {
            self.give(pipe, variable, value)?;
        }
        self.dots.push(item);
        self.nodes(&branch.then)?;
        self.dots.pop();
        self.otherwise(branch)?;
        self.tag("endfor");
        self.variables.truncate(kept);
        Ok(())
    }

    fn action(&mut self, pipe: &Pipe) -> Result<(), TranslateError> {
        let value = self.pipe(pipe)?;
        if !pipe.variables.is_empty() {
            self.named(pipe, value)?;
            return Ok(());
        }
        let code = self.printed(value, pipe.line)?;
        self.print(&code);
        Ok(())
    }

    /// Assigns the value to the pipeline's variable, if it has one.
    fn named(&mut self, pipe: &Pipe, value: Value) -> Result<Value, TranslateError> {
        match pipe.variables.first() {
            Some(variable) => self.give(pipe, variable, value),
            None => Ok(value),
        }
    }

    fn give(&mut self, pipe: &Pipe, variable: &str, value: Value) -> Result<Value, TranslateError> {
        if !pipe.again {
            let kept = self.keep(value);
            self.variables.push((variable.to_owned(), kept.clone()));
            return Ok(kept);
        }
        let Some((_, place)) = self.variables.iter().rfind(|(name, _)| name == variable) else {
            return TranslateError::at(pipe.line, format!("{variable} was not made by :="));
        };
        if place.kind != value.kind {
            return TranslateError::at(pipe.line, format!("{variable} becomes another kind of value"));
        }
        let place = place.clone();
        self.tag(&format!("set {} = {}", place.code, value.code));
        Ok(place)
    }

    /// Stores the value, so that it stays the same when its sources change.
    fn keep(&mut self, value: Value) -> Value {
        if value.kind == Kind::Root {
            return value;
        }
        let place = format!("go.value_{}", self.number());
        self.tag(&format!("set {place} = {}", value.code));
        Value::new(place, value.kind)
    }

    fn number(&mut self) -> usize {
        self.made += 1;
        self.made
    }

    fn tag(&mut self, code: &str) {
        self.out.push_str(&format!("{{%- {code} -%}}\n"));
    }

    fn print(&mut self, code: &str) {
        self.out.push_str(&format!("{{{{- {code} -}}}}\n"));
    }

    /// Expression for Go's printed form of a value.
    fn printed(&mut self, Value { code, kind }: Value, line: usize) -> Result<String, TranslateError> {
        Ok(match kind {
            Kind::Text | Kind::Number => code,
            Kind::Bool => format!("('true' if {code} else 'false')"),
            Kind::Types => format!("({code} if {code} is string else ('[' ~ {code}|join(' ') ~ ']'))"),
            Kind::Arguments => {
                self.json = true;
                format!("({code} if {code} is string else go_json({code}))")
            }
            Kind::Any | Kind::Values => {
                self.prints = true;
                format!("go_print({code})")
            }
            kind => match kind.as_json() {
                Some(object) if !object.is_empty() => {
                    self.objects = true;
                    format!("go_object({code}, '{object}')")
                }
                _ => return TranslateError::at(line, "what is printed is no text: one of its fields may be"),
            },
        })
    }

    fn pipe(&mut self, pipe: &Pipe) -> Result<Value, TranslateError> {
        let mut last = None;
        for command in &pipe.commands {
            last = Some(self.command(command, last, pipe.line)?);
        }
        match last {
            Some(value) => Ok(value),
            None => TranslateError::at(pipe.line, "an action that lacks a value"),
        }
    }

    fn command(
        &mut self,
        command: &[Arg],
        piped: Option<Value>,
        line: usize,
    ) -> Result<Value, TranslateError> {
        let Some((first, rest)) = command.split_first() else {
            return TranslateError::at(line, "an action that lacks a value");
        };
        if let Operand::Function(name) = &first.of {
            if !first.fields.is_empty() {
                return TranslateError::at(line, format!("fields of {name}"));
            }
            let mut args = rest.iter().map(|arg| self.value(arg, line)).collect::<Result<Vec<_>, _>>()?;
            args.extend(piped);
            return self.call(name, args, line);
        }
        match rest.is_empty() && piped.is_none() {
            true => self.value(first, line),
            false => TranslateError::at(line, "a value that is called as a function"),
        }
    }

    fn value(&mut self, arg: &Arg, line: usize) -> Result<Value, TranslateError> {
        let mut value = match &arg.of {
            Operand::Dot => self.dots.last().cloned().unwrap_or_else(|| Value::new("", Kind::Root)),
            Operand::Nil => Value::new("none", Kind::Nil),
            Operand::Bool(is) => Value::new(if *is { "true" } else { "false" }, Kind::Bool),
            Operand::Number(digits) if digits.parse::<i64>().is_ok() || is_fraction(digits) => {
                Value::new(format!("({})", digits.trim_start_matches('+')), Kind::Number)
            }
            Operand::Number(digits) => return TranslateError::at(line, format!("the number {digits}")),
            Operand::Text(text) => Value::new(literal(text), Kind::Text),
            Operand::Variable(name) if name == "$" => Value::new("", Kind::Root),
            Operand::Variable(name) => match self.variables.iter().rfind(|(known, _)| known == name) {
                Some((_, value)) => value.clone(),
                None => return TranslateError::at(line, format!("{name} was not made by :=")),
            },
            Operand::Function(name) => self.call(name, Vec::new(), line)?,
            Operand::Pipe(pipe) => self.pipe(pipe)?,
        };
        for name in &arg.fields {
            value = match field(value.kind, &value.code, name) {
                Some((code, kind)) => Value { code, kind },
                None => {
                    let of = if value.kind == Kind::Root {
                        "a conversation".to_owned()
                    } else {
                        format!("{:?}", value.kind).to_lowercase()
                    };
                    return TranslateError::at(line, format!(".{name}: no field of {of} that is known here"));
                }
            };
        }
        Ok(value)
    }

    fn call(&mut self, name: &str, args: Vec<Value>, line: usize) -> Result<Value, TranslateError> {
        let wrong = || TranslateError { line, reason: format!("{name} with such arguments, or so many") };
        let codes = |between: &str| {
            let codes: Vec<&str> = args.iter().map(Value::truth).collect();
            format!("({})", codes.join(between))
        };
        let compared = |sign: &str| match &args[..] {
            [one, other] => Ok(Value::new(format!("({} {sign} {})", one.code, other.code), Kind::Bool)),
            _ => Err(wrong()),
        };
        match (name, &args[..]) {
            ("and" | "or", [first, ..]) => {
                let same = args.iter().all(|arg| arg.kind == first.kind && !arg.kind.is_struct());
                Ok(Value::new(codes(&format!(" {name} ")), if same { first.kind } else { Kind::Any }))
            }
            ("not", [one]) => Ok(Value::new(format!("(not {})", one.truth()), Kind::Bool)),
            ("eq", [first, others @ ..]) if !others.is_empty() => {
                let each: Vec<String> =
                    others.iter().map(|other| format!("{} == {}", first.code, other.code)).collect();
                Ok(Value::new(format!("({})", each.join(" or ")), Kind::Bool))
            }
            ("ne", _) => compared("!="),
            ("lt", _) => compared("<"),
            ("le", _) => compared("<="),
            ("gt", _) => compared(">"),
            ("ge", _) => compared(">="),
            ("len", [one]) if one.kind.element().is_some() || one.kind == Kind::Text => {
                Ok(Value::new(format!("({}|length)", one.code), Kind::Number))
            }
            ("slice", [of, from @ ..]) if from.len() <= 2 && !of.kind.is_map() => {
                of.sliced(from).ok_or_else(wrong)
            }
            ("index", [of, at @ ..]) if !at.is_empty() => of.indexed(at).ok_or_else(wrong),
            ("json", [one]) => match one.kind.as_json() {
                Some("") => {
                    self.json = true;
                    Ok(Value::new(format!("go_json({})", one.code), Kind::Text))
                }
                Some(object) => {
                    self.objects = true;
                    Ok(Value::new(format!("go_object({}, '{object}')", one.code), Kind::Text))
                }
                None => Err(wrong()),
            },
            ("print" | "println", _) if args.iter().all(|arg| arg.kind == Kind::Text) => {
                let end = if name == "println" { vec![literal("\n")] } else { Vec::new() };
                let between = if name == "println" { " ~ ' ' ~ " } else { " ~ " };
                let all: Vec<&str> = args.iter().map(|arg| arg.code.as_str()).collect();
                let all = [vec![all.join(between)], end].concat();
                Ok(Value::new(format!("({})", all.join(" ~ ")), Kind::Text))
            }
            ("printf", [Value { kind: Kind::Text, .. }, ..]) => self.printf(args, line),
            ("currentDate", _) => Ok(Value::new("strftime_now('%Y-%m-%d')", Kind::Text)),
            (
                "and" | "or" | "not" | "eq" | "len" | "slice" | "index" | "json" | "print" | "println"
                | "printf",
                _,
            ) => Err(wrong()),
            _ => TranslateError::at(line, format!("the function {name}")),
        }
    }

    /// Translates `printf` with `%s`, `%v` and `%d` and a literal format.
    fn printf(&mut self, args: Vec<Value>, line: usize) -> Result<Value, TranslateError> {
        let mut args = args.into_iter();
        let format = args.next().and_then(|format| read_literal(&format.code));
        let Some(format) = format else {
            return TranslateError::at(line, "printf with a format that is no string");
        };
        let (mut pieces, mut rest) = (Vec::new(), format.as_str());
        while let Some((before, after)) = rest.split_once('%') {
            pieces.push(literal(before));
            let verb = after.chars().next().unwrap_or(' ');
            match (verb, verb != '%') {
                ('%', _) => pieces.push(literal("%")),
                ('s' | 'v' | 'd', _) => {
                    let Some(value) = args.next() else {
                        return TranslateError::at(line, "printf lacks a value");
                    };
                    pieces.push(self.printed(value, line)?);
                }
                _ => return TranslateError::at(line, format!("printf with %{verb}")),
            }
            rest = &after[verb.len_utf8().min(after.len())..];
        }
        pieces.push(literal(rest));
        pieces.retain(|piece| piece != "''");
        match args.next() {
            Some(_) => TranslateError::at(line, "printf has a value too many"),
            None if pieces.is_empty() => Ok(Value::new("''", Kind::Text)),
            None => Ok(Value::new(format!("({})", pieces.join(" ~ ")), Kind::Text)),
        }
    }
}

fn is_fraction(digits: &str) -> bool {
    digits.bytes().all(|byte| byte.is_ascii_digit() || b".+-".contains(&byte))
        && digits.parse::<f64>().is_ok()
}

/// Text of a string that [`literal`] has written as a single one.
fn read_literal(code: &str) -> Option<String> {
    let quote = code.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inside = code.strip_prefix(quote)?.strip_suffix(quote)?;
    let (mut text, mut letters) = (String::new(), inside.chars());
    while let Some(letter) = letters.next() {
        text.push(match letter {
            '\\' => match letters.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                other => other,
            },
            letter => letter,
        });
    }
    Some(text)
}
