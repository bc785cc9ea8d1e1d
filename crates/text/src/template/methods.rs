//! Methods of values. Methods that change a list or a dictionary are refused: values are immutable, as in the
//! sandbox in which transformers runs templates.

use super::{
    compare,
    eval::CallArgs,
    markup,
    meter::{Outcome, fail},
    run::Run,
    sequences, strings,
    value::{ListKind, Value},
};

const DICT: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const DICT_CHANGES: [&str; 5] = ["pop", "update", "setdefault", "clear", "popitem"];
const LIST: [&str; 3] = ["count", "index", "copy"];
const LIST_CHANGES: [&str; 8] = ["append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"];

/// Whether a value has the method.
#[inline]
pub(super) fn exists(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => strings::has(name),
        Value::Dict(_) => DICT.contains(&name) || DICT_CHANGES.contains(&name),
        Value::List(list) => match list.kind {
            ListKind::List => LIST.contains(&name) || LIST_CHANGES.contains(&name),
            ListKind::Tuple => matches!(name, "count" | "index"),
            ListKind::Group => matches!(name, "count" | "index"),
            ListKind::Generator | ListKind::View(_) => false,
        },
        Value::Float(_) => name == "is_integer",
        _ => false,
    }
}

/// `value.method(…)`.
#[inline(never)]
pub(super) fn call(run: &mut Run<'_>, value: &Value, method: &str, args: CallArgs) -> Outcome<Value> {
    let meter = run.meter;
    match value {
        Value::Text(text) => markup::call(run, text, method, args),
        Value::Dict(_) if DICT_CHANGES.contains(&method) => unchangeable("dict", method),
        Value::Dict(dict) => {
            if method == "get" {
                let [key, default] = args.bind("get", ["key", "default"])?;
                let Some(key) = key else { return fail("get needs a key") };
                return Ok(dict.get(meter, &key)?.cloned().or(default).unwrap_or(Value::None));
            }
            let [] = args.bind(method, [])?;
            if method == "copy" {
                return Ok(value.clone());
            }
            meter.values(dict.entries.len())?;
            let (name, items) = match method {
                "items" => ("dict_items", sequences::pairs(meter, dict)?),
                "keys" => ("dict_keys", dict.entries.iter().map(|(key, _)| key.clone()).collect()),
                _ => ("dict_values", dict.entries.iter().map(|(_, value)| value.clone()).collect()),
            };
            Value::list_of(ListKind::View(name), items)
        }
        Value::List(_) if LIST_CHANGES.contains(&method) => unchangeable("list", method),
        Value::List(list) => {
            if method == "copy" {
                return Ok(value.clone());
            }
            let [wanted] = args.bind(method, ["value"])?;
            let Some(wanted) = wanted else { return fail(format!("{method} needs a value")) };
            meter.steps(list.items.len() as u64)?;
            let mut count = 0;
            for (at, item) in list.items.iter().enumerate() {
                if compare::equal(meter, item, &wanted)? {
                    if method == "index" {
                        return Ok(Value::Int(at as i128));
                    }
                    count += 1;
                }
            }
            if method == "index" { fail("the value is not in the list") } else { Ok(Value::Int(count)) }
        }
        Value::Float(number) => Ok(Value::Bool(number.fract() == 0.0)),
        other => fail(format!("'{} object' has no such method", other.type_name())),
    }
}

fn unchangeable<T>(kind: &str, method: &str) -> Outcome<T> {
    fail(format!(
        "a {kind} cannot be changed, so {method} is not there; build a new one with + or a namespace"
    ))
}
