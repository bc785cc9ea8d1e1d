//! Values of a template's variables. They are immutable, except namespaces, which cannot hold other namespaces. No
//! value contains itself, and none is deeper than [`TEMPLATE_VALUE_DEPTH_MAX`], so code may recurse over values.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use super::{
    compare,
    looping::Loop,
    meter::{Meter, Outcome, fail},
    text::Text,
};
use crate::limits::TEMPLATE_VALUE_DEPTH_MAX;

/// Value.
#[derive(Clone)]
pub(super) enum Value {
    Undefined(FailedLookup),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    List(Rc<List>),
    Dict(Rc<Dict>),
    Range(Span),
    Object(Rc<Object>),
}

/// Name whose lookup gave an undefined value.
#[derive(Clone)]
pub(super) enum FailedLookup {
    Name(Arc<str>),
    Attribute(&'static str, Arc<str>),
    Element(&'static str),
}

/// Values in order.
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) kind: ListKind,
    depth: u16,
    holds_objects: bool,
}

/// Corresponding Python type.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ListKind {
    List,
    Tuple,
    /// Tuple of `grouper` and `list`.
    Group,
    /// Generator: true even if empty, and without a length.
    Generator,
    /// View of a dictionary, with its name in Python.
    View(&'static str),
}

/// Values by keys, in insertion order.
pub(super) struct Dict {
    pub(super) entries: Vec<(Value, Value)>,
    depth: u16,
    holds_objects: bool,
}

/// Range of whole numbers from `start` until `stop`, `len` of them.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: i128,
    pub(super) stop: i128,
    pub(super) step: i128,
    pub(super) len: usize,
}

/// Stateful or callable value.
pub(super) enum Object {
    Namespace(RefCell<Vec<(Arc<str>, Value)>>),
    /// Macro, and its defining scope: index and serial number.
    Macro {
        id: u32,
        scope: u32,
        serial: u64,
    },
    Loop(Loop),
    Function(Function),
    Method(Value, Text),
    Joiner {
        /// Holds no other values, and is no object.
        separator: Value,
        used: Cell<bool>,
    },
    Cycler {
        items: Vec<Value>,
        /// Depth of its items, counted once, because cyclers may share items.
        depth: u16,
        at: Cell<usize>,
    },
}

/// Global function.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    Joiner,
    Cycler,
    RaiseException,
    StrftimeNow,
}

impl Span {
    /// Number at an index.
    pub(super) fn at(&self, index: usize) -> Value {
        // Both ends were checked when the range was made.
        Value::Int(self.start + self.step * index as i128)
    }
}

impl Dict {
    /// Value of a key.
    pub(super) fn get(&self, meter: &Meter, key: &Value) -> Outcome<Option<&Value>> {
        if let Value::Text(text) = key {
            return self.get_str(meter, text.as_str());
        }
        meter.steps(self.entries.len() as u64 / 4)?;
        for (own, value) in &self.entries {
            if compare::equal(meter, own, key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Value of a string key.
    pub(super) fn get_str(&self, meter: &Meter, key: &str) -> Outcome<Option<&Value>> {
        if self.entries.len() > 16 || key.len() > 256 {
            meter.steps(self.entries.len() as u64 * (1 + key.len() as u64 / 64) / 4)?;
        }
        let is_key = |own: &Value| matches!(own, Value::Text(text) if text.as_str() == key);
        Ok(self.entries.iter().find(|(own, _)| is_key(own)).map(|(_, value)| value))
    }
}

impl Value {
    /// String of the template.
    pub(super) fn template(text: &str) -> Value {
        Value::Text(Text::template(text))
    }

    /// Undefined value.
    pub(super) fn undefined(what: &'static str) -> Value {
        Value::Undefined(FailedLookup::Element(what))
    }

    /// List of a kind.
    pub(super) fn list_of(kind: ListKind, items: Vec<Value>) -> Outcome<Value> {
        let (depth, holds_objects) = header(items.iter())?;
        Ok(Value::List(Rc::new(List { items, kind, depth, holds_objects })))
    }

    /// A list.
    pub(super) fn list(items: Vec<Value>) -> Outcome<Value> {
        Value::list_of(ListKind::List, items)
    }

    /// A tuple.
    pub(super) fn tuple(items: Vec<Value>) -> Outcome<Value> {
        Value::list_of(ListKind::Tuple, items)
    }

    /// Dictionary of entries with distinct keys.
    pub(super) fn dict(entries: Vec<(Value, Value)>) -> Outcome<Value> {
        let (depth, holds_objects) = header(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Value::Dict(Rc::new(Dict { entries, depth, holds_objects })))
    }

    /// A function.
    pub(super) fn function(function: Function) -> Value {
        Value::Object(Rc::new(Object::Function(function)))
    }

    /// Converts a JSON value of the request.
    pub(super) fn from_json(json: &serde_json::Value) -> Outcome<Value> {
        Value::from_json_at(json, 0)
    }

    fn from_json_at(json: &serde_json::Value, depth: usize) -> Outcome<Value> {
        if depth > TEMPLATE_VALUE_DEPTH_MAX {
            return too_deep();
        }
        Ok(match json {
            serde_json::Value::Null => Value::None,
            serde_json::Value::Bool(value) => Value::Bool(*value),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Value::Int(value.into()),
                (_, Some(value)) => Value::Int(value.into()),
                _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Value::Text(Text::request(text.as_str())),
            serde_json::Value::Array(items) => {
                let items: Outcome<Vec<Value>> =
                    items.iter().map(|item| Value::from_json_at(item, depth + 1)).collect();
                Value::list(items?)?
            }
            serde_json::Value::Object(entries) => {
                let entry = |(key, item): (&String, &serde_json::Value)| {
                    Ok((Value::Text(Text::request(key.as_str())), Value::from_json_at(item, depth + 1)?))
                };
                let entries: Outcome<Vec<(Value, Value)>> = entries.iter().map(entry).collect();
                Value::dict(entries?)?
            }
        })
    }

    /// Truth in Python.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) => text.len() > 0,
            Value::List(list) => list.kind == ListKind::Generator || !list.items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            Value::Range(span) => span.len > 0,
            Value::Object(_) => true,
        }
    }

    /// Name of its type in Python.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "str",
            Value::List(list) => match list.kind {
                ListKind::List => "list",
                ListKind::Tuple | ListKind::Group => "tuple",
                ListKind::Generator => "generator",
                ListKind::View(name) => name,
            },
            Value::Dict(_) => "dict",
            Value::Range(_) => "range",
            Value::Object(object) => match &**object {
                Object::Namespace(_) => "Namespace",
                Object::Macro { .. } => "Macro",
                Object::Loop(_) => "LoopContext",
                Object::Function(_) | Object::Method(..) => "builtin_function_or_method",
                Object::Joiner { .. } => "Joiner",
                Object::Cycler { .. } => "Cycler",
            },
        }
    }

    /// Whole number, if it is one; booleans count as in Python.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some((*value).into()),
            _ => None,
        }
    }

    /// Number as a float, if it is one.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            _ => self.as_int().map(|value| value as f64),
        }
    }

    /// String, if it is one.
    pub(super) fn as_text(&self) -> Option<&Text> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Levels of nested values.
    fn depth(&self) -> u16 {
        match self {
            Value::List(list) => list.depth,
            Value::Dict(dict) => dict.depth,
            Value::Object(object) => match &**object {
                Object::Namespace(_) => 1,
                Object::Method(receiver, _) => receiver.depth() + 1,
                Object::Cycler { depth, .. } => *depth,
                Object::Loop(_) => TEMPLATE_VALUE_DEPTH_MAX as u16,
                Object::Joiner { .. } | Object::Macro { .. } | Object::Function(_) => 0,
            },
            _ => 0,
        }
    }

    /// Depth of a container with these values.
    pub(super) fn depth_around(values: &[Value]) -> Outcome<u16> {
        Ok(header(values.iter())?.0)
    }

    /// Whether something in it could later hold it.
    pub(super) fn holds_objects(&self) -> bool {
        match self {
            Value::List(list) => list.holds_objects,
            Value::Dict(dict) => dict.holds_objects,
            Value::Object(object) => !matches!(**object, Object::Macro { .. } | Object::Function(_)),
            _ => false,
        }
    }

    /// Fails if the value is undefined.
    pub(super) fn defined(&self) -> Outcome<()> {
        match self {
            Value::Undefined(missing) => fail(missing.words()),
            _ => Ok(()),
        }
    }
}

impl FailedLookup {
    /// Jinja2's message for the undefined value.
    pub(super) fn words(&self) -> String {
        let short = |name: &str| name.chars().take(100).collect::<String>();
        match self {
            FailedLookup::Name(name) => format!("'{}' is undefined", short(name)),
            FailedLookup::Attribute(kind, name) => {
                format!("'{kind} object' has no attribute '{}'", short(name))
            }
            FailedLookup::Element(what) => (*what).to_owned(),
        }
    }
}

/// Depth of a container with these values, and whether they hold objects.
fn header<'v>(values: impl Iterator<Item = &'v Value>) -> Outcome<(u16, bool)> {
    let (mut depth, mut holds_objects) = (0, false);
    for value in values {
        depth = depth.max(value.depth());
        holds_objects |= value.holds_objects();
    }
    if usize::from(depth) >= TEMPLATE_VALUE_DEPTH_MAX { too_deep() } else { Ok((depth + 1, holds_objects)) }
}

fn too_deep<T>() -> Outcome<T> {
    fail(format!("values inside values deeper than {TEMPLATE_VALUE_DEPTH_MAX}"))
}

/// Items of a loop or filter.
pub(super) enum Items {
    Shared(Rc<List>),
    Keys(Rc<Dict>),
    Range(Span),
    Made(Vec<Value>),
}

impl Items {
    /// Items of anything that Python can iterate over.
    pub(super) fn of(meter: &Meter, value: &Value) -> Outcome<Items> {
        Ok(match value {
            Value::Undefined(_) => Items::Made(Vec::new()),
            Value::List(list) => Items::Shared(list.clone()),
            Value::Dict(dict) => Items::Keys(dict.clone()),
            Value::Range(span) => Items::Range(*span),
            Value::Text(text) => {
                meter.values(text.len())?;
                let chars = text.as_str().char_indices();
                let char = |(at, c): (usize, char)| -> Outcome<Value> {
                    Ok(Value::Text(text.slice(meter, at..at + c.len_utf8())?.marked(false)))
                };
                Items::Made(chars.map(char).collect::<Outcome<_>>()?)
            }
            other => return fail(format!("'{}' object is not iterable", other.type_name())),
        })
    }

    /// Number of items.
    pub(super) fn len(&self) -> usize {
        match self {
            Items::Shared(list) => list.items.len(),
            Items::Keys(dict) => dict.entries.len(),
            Items::Range(span) => span.len,
            Items::Made(items) => items.len(),
        }
    }

    /// Item at an index.
    pub(super) fn get(&self, index: usize) -> Option<Value> {
        match self {
            Items::Shared(list) => list.items.get(index).cloned(),
            Items::Keys(dict) => dict.entries.get(index).map(|(key, _)| key.clone()),
            Items::Range(span) => (index < span.len).then(|| span.at(index)),
            Items::Made(items) => items.get(index).cloned(),
        }
    }

    /// All items.
    pub(super) fn into_vec(self, meter: &Meter) -> Outcome<Vec<Value>> {
        if let Items::Made(items) = self {
            return Ok(items);
        }
        meter.values(self.len())?;
        Ok((0..self.len()).filter_map(|index| self.get(index)).collect())
    }
}

impl Value {
    /// Items that Python's `list()` would return.
    pub(super) fn items(&self, meter: &Meter) -> Outcome<Vec<Value>> {
        Items::of(meter, self)?.into_vec(meter)
    }
}
