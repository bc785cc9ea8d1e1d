//! Calls: macros, global functions, and methods.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use super::{
    date,
    eval::{CallArgs, insert},
    meter::{Fault, Outcome, fail},
    methods, print,
    run::Run,
    text::Text,
    tree::{Expr, ExprId, Postfix, Statement},
    value::{FailedLookup, Function, ListKind, Object, Span, Value},
};
use crate::limits::TEMPLATE_RECURSION_MAX;

impl<'a> Run<'a> {
    /// `value(…)`.
    #[inline(never)]
    pub(super) fn call(&mut self, value: &Value, args: CallArgs) -> Outcome<Value> {
        let Value::Object(object) = value else {
            if matches!(value, Value::Undefined(FailedLookup::Name(name)) if **name == *"strftime_now") {
                return Err(Box::new(Fault::NoDate));
            }
            value.defined()?;
            return fail(format!("'{}' object is not callable", value.type_name()));
        };
        match &**object {
            Object::Macro { .. } => self.call_macro(object, args, None),
            Object::Function(function) => self.call_function(*function, args),
            Object::Method(receiver, name) => methods::call(self, receiver, name.as_str(), args),
            Object::Loop(state) => {
                let [over] = args.bind("loop", ["iterable"])?;
                let Some(over) = over else { return fail("loop needs what to go through") };
                let (statement, scope, depth) = (state.statement, state.scope, state.depth + 1);
                if !matches!(&self.tree.statements[statement as usize].1, Statement::For(each) if each.recursive)
                {
                    return fail("the loop must have the 'recursive' marker to be called recursively");
                }
                self.recursion(|run| {
                    let text = run.capture(|run| {
                        run.run_loop(statement, &over, depth, scope)?;
                        Ok(super::run::Flow::On)
                    })?;
                    Ok(Value::Text(text))
                })
            }
            Object::Joiner { separator, used } => {
                Ok(if used.replace(true) { separator.clone() } else { Value::template("") })
            }
            Object::Namespace(_) | Object::Cycler { .. } => {
                fail(format!("'{}' object is not callable", value.type_name()))
            }
        }
    }

    /// `value.name(…)`.
    #[inline(never)]
    pub(super) fn call_method(&mut self, value: Value, name: &Text, args: CallArgs) -> Outcome<Value> {
        if methods::exists(&value, name.as_str()) {
            return methods::call(self, &value, name.as_str(), args);
        }
        if let Value::Object(object) = &value {
            match &**object {
                Object::Loop(state) if matches!(name.as_str(), "cycle" | "changed") => {
                    return self.loop_method(state, name.as_str(), args);
                }
                Object::Cycler { items, at, .. } => {
                    let next = match name.as_str() {
                        "next" => items[at.replace((at.get() + 1) % items.len())].clone(),
                        "reset" => {
                            at.set(0);
                            Value::None
                        }
                        _ => return fail("a cycler has next, reset and current"),
                    };
                    return Ok(next);
                }
                _ => {}
            }
        }
        let callee = self.attribute(&value, name)?;
        self.call(&callee, args)
    }

    /// Calls a macro for a `call` block, with the block as its `caller`.
    pub(super) fn eval_call_with(&mut self, call: ExprId, caller: Value) -> Outcome<Value> {
        let Expr::Postfix { base, steps } = &self.tree.expressions[call as usize] else {
            return fail("call needs a call of a macro");
        };
        let Some((last, before)) = steps.split_last() else { return fail("call needs a call of a macro") };
        let mut callee = self.eval(*base)?;
        for step in before {
            callee = match step {
                Postfix::Attribute(name) => self.attribute(&callee, name)?,
                Postfix::Item(key) => {
                    let key = self.eval(*key)?;
                    self.item(&callee, &key)?
                }
                _ => return fail("call needs the name of a macro"),
            };
        }
        let args = match last {
            Postfix::Call(args) => args,
            Postfix::Method(name, args) => {
                callee = self.attribute(&callee, name)?;
                args
            }
            _ => return fail("call needs a call of a macro"),
        };
        let args = self.args(args)?;
        match &callee {
            Value::Object(object) if matches!(**object, Object::Macro { .. }) => {
                self.call_macro(object, args, Some(caller))
            }
            other => {
                other.defined()?;
                fail("call needs a macro")
            }
        }
    }

    fn recursion<T>(&mut self, run: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.macros >= TEMPLATE_RECURSION_MAX {
            return fail(format!("a recursion of over {TEMPLATE_RECURSION_MAX} macros or loops"));
        }
        self.macros += 1;
        let result = run(self)?;
        self.macros -= 1;
        Ok(result)
    }

    fn call_macro(&mut self, object: &Object, args: CallArgs, caller: Option<Value>) -> Outcome<Value> {
        let &Object::Macro { id, scope, serial } = object else { return fail("not a macro") };
        if !self.is_open(scope, serial) {
            return fail("a macro is called outside of the block that defines it");
        }
        let line = self.line;
        let text = self.recursion(|run| {
            let before = run.open(scope);
            let text = run.capture(|run| {
                run.bind_parameters(id, args, caller)?;
                let tree = run.tree;
                run.block(&tree.macros[id as usize].body)
            })?;
            run.close(before);
            Ok(text)
        })?;
        self.line = line;
        Ok(Value::Text(text))
    }

    #[inline(never)]
    fn bind_parameters(&mut self, id: u32, args: CallArgs, caller: Option<Value>) -> Outcome<()> {
        let tree = self.tree;
        let CallArgs { positional, mut named } = args;
        let (name, parameters) = (&tree.macros[id as usize].name, &tree.macros[id as usize].parameters);
        let mut positional = positional.into_iter();
        let mut absent = Vec::new();
        for (parameter, default) in parameters {
            let own = &tree.names[*parameter as usize];
            self.meter.steps(1 + named.len() as u64 * (1 + own.len() as u64 / 64) / 4)?;
            let by_name = named.iter().position(|(name, _)| name == own);
            let value = match (positional.next(), by_name) {
                (Some(_), Some(_)) => {
                    return fail(format!("macro '{name}' got two values for one argument"));
                }
                (Some(value), None) => value,
                (None, Some(at)) => named.remove(at).1,
                (None, None) => {
                    absent.push((*parameter, *default));
                    Value::Undefined(FailedLookup::Name(own.clone()))
                }
            };
            self.set(*parameter, value)?;
        }
        // Defaults may refer to other parameters. They replace whatever was not passed, whether its name is defined
        // or not.
        for (parameter, default) in absent {
            if let Some(default) = default {
                let value = self.eval(default)?;
                self.set(parameter, value)?;
            }
        }
        let more: Vec<Value> = positional.collect();
        let at = named.iter().position(|(name, _)| **name == *"caller");
        let passed = at.map(|at| named.remove(at).1);
        if let (Some(id), Some(caller)) = (self.own_names.caller, caller.or(passed)) {
            self.set(id, caller)?;
        }
        match self.own_names.varargs {
            Some(id) => self.set(id, Value::tuple(more)?)?,
            None if !more.is_empty() => {
                return fail(format!("macro '{name}' takes not more than {} argument(s)", parameters.len()));
            }
            None => {}
        }
        match (self.own_names.kwargs, named.first()) {
            (Some(id), _) => {
                let mut entries = Vec::new();
                for (key, value) in named {
                    insert(self.meter, &mut entries, Value::Text(Text::request(key)), value)?;
                }
                self.set(id, Value::dict(entries)?)?;
            }
            (None, Some((first, _))) => {
                let first: String = first.chars().take(64).collect();
                return fail(format!("macro '{name}' takes no keyword argument '{first}'"));
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn call_function(&mut self, function: Function, args: CallArgs) -> Outcome<Value> {
        match function {
            Function::Range => range(args),
            Function::Dict => Value::dict(self.entries(args)?),
            Function::Namespace => {
                let mut attributes = Vec::new();
                for (key, value) in self.entries(args)? {
                    let Value::Text(key) = key else { return fail("a namespace's attributes have names") };
                    if value.holds_objects() {
                        return fail("a namespace cannot hold a namespace or a loop");
                    }
                    attributes.push((key.shared(), value));
                }
                Ok(Value::Object(Rc::new(Object::Namespace(RefCell::new(attributes)))))
            }
            Function::Joiner => {
                let [separator] = args.bind("joiner", ["sep"])?;
                let separator = separator.unwrap_or_else(|| Value::template(", "));
                // A separator must not hold values: they could include another joiner.
                if matches!(separator, Value::List(_) | Value::Dict(_) | Value::Range(_) | Value::Object(_)) {
                    return fail("joiner needs a string");
                }
                Ok(Value::Object(Rc::new(Object::Joiner { separator, used: Cell::new(false) })))
            }
            Function::Cycler => {
                let items = args.positional;
                if items.is_empty() {
                    return fail("at least one item has to be provided");
                }
                // A cycler counts as deep as a list.
                let depth = Value::depth_around(&items)?;
                Ok(Value::Object(Rc::new(Object::Cycler { items, depth, at: Cell::new(0) })))
            }
            Function::RaiseException => {
                let [words] = args.bind("raise_exception", ["message"])?;
                let words = words.unwrap_or_else(|| Value::template(""));
                let words = print::to_text(self.meter, &words)?;
                Err(Box::new(Fault::Raised(words.as_str().to_owned())))
            }
            Function::StrftimeNow => {
                let [format] = args.bind("strftime_now", ["format"])?;
                let (Some(Value::Text(format)), Some(now)) = (format, self.now) else {
                    return fail("strftime_now needs a format");
                };
                // The longest directive makes 10 bytes from 2.
                self.meter.bytes(format.len().saturating_mul(8))?;
                match date::strftime(format.as_str(), now) {
                    Ok(text) => Ok(Value::Text(Text::of(text, format.has_request()))),
                    Err(directive) => fail(format!("strftime_now does not know %{directive}")),
                }
            }
        }
    }

    /// Entries of `dict(…)` and `namespace(…)`.
    fn entries(&mut self, args: CallArgs) -> Outcome<Vec<(Value, Value)>> {
        let mut entries = Vec::new();
        if args.positional.len() > 1 {
            return fail("dict expected at most 1 argument");
        }
        match args.positional.into_iter().next() {
            None => {}
            Some(Value::Dict(dict)) => {
                self.meter.values(2 * dict.entries.len())?;
                entries.clone_from(&dict.entries);
            }
            Some(pairs) => {
                pairs.defined()?;
                for pair in pairs.items(self.meter)? {
                    let mut pair = pair.items(self.meter)?.into_iter();
                    let (Some(key), Some(value), None) = (pair.next(), pair.next(), pair.next()) else {
                        return fail("a dictionary is made of pairs");
                    };
                    insert(self.meter, &mut entries, key, value)?;
                }
            }
        }
        for (name, value) in args.named {
            // Names after ** may come from the request.
            insert(self.meter, &mut entries, Value::Text(Text::request(name)), value)?;
        }
        Ok(entries)
    }
}

fn range(args: CallArgs) -> Outcome<Value> {
    let mut numbers = Vec::new();
    for value in &args.positional {
        match value.as_int() {
            Some(number) if number.unsigned_abs() < 1 << 64 => numbers.push(number),
            Some(_) => return fail("range goes too far"),
            None => {
                value.defined()?;
                return fail(format!("'{}' object cannot be interpreted as an integer", value.type_name()));
            }
        }
    }
    let (start, stop, step) = match *numbers.as_slice() {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] => (start, stop, step),
        _ => return fail("range expects 1 to 3 arguments"),
    };
    if step == 0 {
        return fail("range() arg 3 must not be zero");
    }
    let (ahead, step_size) = if step > 0 { (stop - start, step) } else { (start - stop, -step) };
    let len = if ahead <= 0 { 0 } else { (ahead - 1) / step_size + 1 };
    let Ok(len) = usize::try_from(len) else { return fail("range is too long") };
    Ok(Value::Range(Span { start, stop, step, len }))
}

/// Result of jinja2's lazy filters.
pub(super) fn generator(items: Vec<Value>) -> Outcome<Value> {
    Value::list_of(ListKind::Generator, items)
}
