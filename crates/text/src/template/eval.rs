//! Evaluation of expressions. Only parentheses, brackets and arguments recurse, and that recursion is counted.

use std::sync::Arc;

use super::{
    compare, filters,
    meter::{Fault, Meter, Outcome, fail},
    methods, operators, print,
    run::Run,
    text::{Text, TextBuilder},
    tree::{Args, Comparison, Expr, ExprId, FilterUse, Math, Postfix},
    value::{FailedLookup, ListKind, Object, Value},
};

/// Evaluated arguments.
#[derive(Default)]
pub(super) struct CallArgs {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl CallArgs {
    /// Arguments without names.
    pub(super) fn of(positional: Vec<Value>) -> CallArgs {
        CallArgs { positional, named: Vec::new() }
    }

    /// Arguments in the order of parameters with these names.
    pub(super) fn bind<const N: usize>(self, of: &str, names: [&str; N]) -> Outcome<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            let given = self.positional.len();
            return fail(format!("{of} takes at most {N} arguments, {given} were given"));
        }
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|own| **own == *name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value),
                Some(_) => return fail(format!("{of} got two values for argument '{name}'")),
                None => {
                    let name: String = name.chars().take(64).collect();
                    return fail(format!("{of} got an unexpected keyword argument '{name}'"));
                }
            }
        }
        Ok(bound)
    }
}

impl<'a> Run<'a> {
    /// Value of an expression.
    pub(super) fn eval(&mut self, id: ExprId) -> Outcome<Value> {
        self.meter.steps(1)?;
        Ok(match &self.tree.expressions[id as usize] {
            Expr::None => Value::None,
            Expr::Bool(value) => Value::Bool(*value),
            Expr::Int(value) => Value::Int(*value),
            Expr::Float(value) => Value::Float(*value),
            Expr::Text(text) => Value::Text(text.clone()),
            Expr::Name(name) => return self.lookup(*name),
            deeper => {
                self.enter()?;
                let value = match deeper {
                    Expr::Postfix { base, steps } => self.postfix(*base, steps)?,
                    Expr::Compare { first, rest } => Value::Bool(self.compare(*first, rest)?),
                    Expr::And(parts) => self.first_where(parts, false)?,
                    Expr::Or(parts) => self.first_where(parts, true)?,
                    Expr::Not { times, of } => Value::Bool(self.eval(*of)?.is_true() == (times % 2 == 0)),
                    other => self.compound(other)?,
                };
                self.leave();
                value
            }
        })
    }

    /// First value whose truth is `wanted`, or the last one.
    fn first_where(&mut self, parts: &'a [ExprId], wanted: bool) -> Outcome<Value> {
        let mut value = Value::None;
        for &part in parts {
            value = self.eval(part)?;
            if value.is_true() == wanted {
                break;
            }
        }
        Ok(value)
    }

    #[inline(never)]
    fn compare(&mut self, first: ExprId, rest: &'a [(Comparison, ExprId)]) -> Outcome<bool> {
        let mut left = self.eval(first)?;
        for (comparison, right) in rest {
            let right = self.eval(*right)?;
            let meter = self.meter;
            let order = |wanted: fn(std::cmp::Ordering) -> bool| {
                Ok::<bool, Box<Fault>>(compare::order(meter, &left, &right)?.is_some_and(wanted))
            };
            let holds = match comparison {
                Comparison::Equal => compare::equal(meter, &left, &right)?,
                Comparison::NotEqual => !compare::equal(meter, &left, &right)?,
                Comparison::Less => order(std::cmp::Ordering::is_lt)?,
                Comparison::LessOrEqual => order(std::cmp::Ordering::is_le)?,
                Comparison::Greater => order(std::cmp::Ordering::is_gt)?,
                Comparison::GreaterOrEqual => order(std::cmp::Ordering::is_ge)?,
                Comparison::In => compare::contains(meter, &right, &left)?,
                Comparison::NotIn => !compare::contains(meter, &right, &left)?,
            };
            if !holds {
                return Ok(false);
            }
            left = right;
        }
        Ok(true)
    }

    #[inline(never)]
    fn compound(&mut self, expression: &'a Expr) -> Outcome<Value> {
        match expression {
            Expr::Math { first, rest } => self.math(*first, rest),
            Expr::Concat(parts) => {
                let mut made = TextBuilder::new(self.meter);
                for &part in parts {
                    print::print(&self.eval(part)?, &mut made)?;
                }
                Ok(Value::Text(made.finish()?))
            }
            Expr::Cond { then, test, otherwise } => {
                if self.eval(*test)?.is_true() {
                    self.eval(*then)
                } else if let Some(otherwise) = otherwise {
                    self.eval(*otherwise)
                } else {
                    let what = "the inline if-expression evaluated to false and no else section was defined";
                    Ok(Value::undefined(what))
                }
            }
            Expr::List(items) => Value::list(self.all(items)?),
            Expr::Tuple(items) => Value::tuple(self.all(items)?),
            Expr::Dict(entries) => {
                self.meter.values(2 * entries.len())?;
                let mut made = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    let (key, value) = (self.eval(*key)?, self.eval(*value)?);
                    insert(self.meter, &mut made, key, value)?;
                }
                Value::dict(made)
            }
            Expr::Signed { signs, of } => {
                let mut value = self.eval(*of)?;
                for &minus in signs.iter().rev() {
                    self.meter.steps(1)?;
                    value = operators::negated(&value, minus)?;
                }
                Ok(value)
            }
            _ => fail("an expression that has no value"),
        }
    }

    fn all(&mut self, items: &'a [ExprId]) -> Outcome<Vec<Value>> {
        self.meter.values(items.len())?;
        items.iter().map(|&item| self.eval(item)).collect()
    }

    /// Applies operators from the left. Chains of string additions are built into one string.
    fn math(&mut self, first: ExprId, rest: &'a [(Math, ExprId)]) -> Outcome<Value> {
        let mut left = self.eval(first)?;
        let mut rest = rest.iter().peekable();
        while let Some((operator, right)) = rest.next() {
            let right = self.eval(*right)?;
            let (a, b) = match (operator, &left, &right) {
                (Math::Add, Value::Text(a), Value::Text(b)) if !a.is_markup() && !b.is_markup() => (a, b),
                _ => {
                    self.meter.steps(1)?;
                    left = operators::math(self.meter, *operator, &left, &right)?;
                    continue;
                }
            };
            let mut made = TextBuilder::new(self.meter);
            made.push_text(a)?;
            made.push_text(b)?;
            let mut other = None;
            while let Some((Math::Add, right)) = rest.peek() {
                rest.next();
                match self.eval(*right)? {
                    Value::Text(text) if !text.is_markup() => made.push_text(&text)?,
                    value => {
                        other = Some(value);
                        break;
                    }
                }
            }
            left = Value::Text(made.finish()?);
            if let Some(other) = other {
                left = operators::math(self.meter, Math::Add, &left, &other)?;
            }
        }
        Ok(left)
    }

    /// Writes an expression's value. Operands of `~` are written one by one.
    pub(super) fn print(&mut self, id: ExprId) -> Outcome<()> {
        if let Expr::Concat(parts) = &self.tree.expressions[id as usize] {
            for &part in parts {
                let value = self.eval(part)?;
                self.write_value(&value)?;
            }
            return Ok(());
        }
        let value = self.eval(id)?;
        self.write_value(&value)
    }

    fn postfix(&mut self, base: ExprId, steps: &'a [Postfix]) -> Outcome<Value> {
        let mut value = self.eval(base)?;
        for step in steps {
            self.meter.steps(1)?;
            value = match step {
                Postfix::Attribute(name) => self.attribute(&value, name)?,
                Postfix::Item(key) => {
                    let key = self.eval(*key)?;
                    self.item(&value, &key)?
                }
                other => self.applied(value, other)?,
            };
        }
        Ok(value)
    }

    #[inline(never)]
    fn applied(&mut self, value: Value, step: &'a Postfix) -> Outcome<Value> {
        match step {
            Postfix::Method(name, args) => {
                let args = self.args(args)?;
                self.call_method(value, name, args)
            }
            Postfix::Call(args) => {
                // A request for the date fails the same way, whatever the format.
                let args = self.args(args)?;
                self.call(&value, args)
            }
            Postfix::Filter(filter) => self.apply_filter(value, filter),
            Postfix::Test { name, check, args, negated } => {
                let Some(check) = check else {
                    return fail(format!("No test named '{}'", name.chars().take(64).collect::<String>()));
                };
                let args = self.args(args)?;
                Ok(Value::Bool(check(self, &value, args)? != *negated))
            }
            Postfix::Slice(bounds) => {
                let mut values = [None, None, None];
                for (value, bound) in values.iter_mut().zip(bounds) {
                    if let Some(bound) = bound {
                        *value = Some(self.eval(*bound)?);
                    }
                }
                operators::slice(self.meter, &value, values)
            }
            Postfix::Attribute(name) => self.attribute(&value, name),
            Postfix::Item(key) => {
                let key = self.eval(*key)?;
                self.item(&value, &key)
            }
        }
    }

    /// Applies `value|filter(…)`.
    pub(super) fn apply_filter(&mut self, value: Value, filter: &'a FilterUse) -> Outcome<Value> {
        let Some(apply) = filter.filter else {
            let name: String = filter.name.chars().take(64).collect();
            return fail(format!("No filter named '{name}'"));
        };
        let args = self.args(&filter.args)?;
        filters::apply(self, apply, value, args)
    }

    /// Evaluates arguments.
    pub(super) fn args(&mut self, args: &'a Args) -> Outcome<CallArgs> {
        let positional: Outcome<Vec<Value>> = args.positional.iter().map(|&value| self.eval(value)).collect();
        let mut computed = CallArgs { positional: positional?, named: Vec::new() };
        for (name, value) in &args.named {
            let value = self.eval(*value)?;
            computed.named.push((name.clone(), value));
        }
        if let Some(spread) = args.spread {
            let values = self.eval(spread)?;
            computed.positional.extend(values.items(self.meter)?);
        }
        if let Some(spread) = args.spread_named {
            match self.eval(spread)? {
                Value::Dict(dict) => {
                    self.meter.values(dict.entries.len())?;
                    for (key, value) in &dict.entries {
                        let Value::Text(key) = key else { return fail("keywords must be strings") };
                        computed.named.push((key.shared(), value.clone()));
                    }
                }
                other => return fail(format!("argument after ** must be a dict, not {}", other.type_name())),
            }
        }
        Ok(computed)
    }

    /// `value.name`.
    pub(super) fn attribute(&mut self, value: &Value, name: &Text) -> Outcome<Value> {
        let missing = || Value::Undefined(FailedLookup::Attribute(value.type_name(), name.shared()));
        if let Value::Undefined(_) = value {
            value.defined()?;
        }
        if methods::exists(value, name.as_str()) {
            self.meter.bytes(64)?;
            return Ok(Value::Object(std::rc::Rc::new(Object::Method(value.clone(), name.clone()))));
        }
        match value {
            Value::Dict(dict) => {
                Ok(dict.get_str(self.meter, name.as_str())?.cloned().unwrap_or_else(missing))
            }
            Value::Object(object) => {
                Ok(self.object_attribute(object, name.as_str())?.unwrap_or_else(missing))
            }
            Value::List(list) if list.kind == ListKind::Group => {
                let at = ["grouper", "list"].iter().position(|own| *own == name.as_str());
                Ok(at.and_then(|at| list.items.get(at).cloned()).unwrap_or_else(missing))
            }
            _ => Ok(missing()),
        }
    }

    #[inline(never)]
    fn object_attribute(&mut self, object: &Object, name: &str) -> Outcome<Option<Value>> {
        match object {
            Object::Namespace(entries) => {
                let entries = entries.borrow();
                self.meter.steps(entries.len() as u64 * (1 + name.len() as u64 / 64) / 4)?;
                Ok(entries.iter().find(|(own, _)| **own == *name).map(|(_, value)| value.clone()))
            }
            Object::Loop(state) => self.loop_attribute(state, name),
            Object::Macro { id, .. } if name == "name" => {
                Ok(Some(Value::Text(Text::template(self.tree.macros[*id as usize].name.clone()))))
            }
            Object::Cycler { items, at, .. } if name == "current" => {
                Ok(items.get(at.get() % items.len()).cloned())
            }
            _ => Ok(None),
        }
    }

    /// `value[key]`.
    pub(super) fn item(&mut self, value: &Value, key: &Value) -> Outcome<Value> {
        value.defined()?;
        if let Some(index) = key.as_int()
            && let Some(found) = operators::at_index(self.meter, value, index)?
        {
            return Ok(found);
        }
        if let Value::Dict(dict) = value
            && let Some(found) = dict.get(self.meter, key)?
        {
            return Ok(found.clone());
        }
        match key {
            Value::Text(name) => self.attribute(value, name),
            Value::Int(_) => Ok(Value::undefined("there is no element at that index")),
            _ => Ok(Value::undefined("there is no element of that key")),
        }
    }
}

/// Adds an entry to a dictionary under construction.
pub(super) fn insert(
    meter: &Meter,
    entries: &mut Vec<(Value, Value)>,
    key: Value,
    value: Value,
) -> Outcome<()> {
    let is_list = matches!(&key, Value::List(list) if list.kind == ListKind::List);
    if is_list || matches!(key, Value::Dict(_)) {
        return fail(format!("unhashable type: '{}'", key.type_name()));
    }
    meter.steps(1 + entries.len() as u64 / 4)?;
    for (own, old) in entries.iter_mut() {
        if compare::equal(meter, own, &key)? {
            *old = value;
            return Ok(());
        }
    }
    entries.push((key, value));
    Ok(())
}
