//! Tests by name: what may follow `is`.

use super::{
    compare,
    eval::CallArgs,
    filters,
    meter::{Outcome, fail},
    print,
    run::Run,
    strings,
    value::{ListKind, Object, Value},
};

/// Implementation of a test.
pub(super) type Check = for<'a, 'r, 'v> fn(&'r mut Run<'a>, &'v Value, CallArgs) -> Outcome<bool>;

/// Test with this name.
pub(super) fn by_name(name: &str) -> Option<Check> {
    Some(match name {
        "boolean" => |_, value, _| Ok(matches!(value, Value::Bool(_))),
        "callable" => |_, value, _| {
            let Value::Object(object) = value else { return Ok(false) };
            Ok(!matches!(**object, Object::Namespace(_) | Object::Cycler { .. }))
        },
        "defined" => |_, value, _| Ok(!matches!(value, Value::Undefined(_))),
        "undefined" => |_, value, _| Ok(matches!(value, Value::Undefined(_))),
        "divisibleby" => |_, value, args| {
            let other = operand(args)?;
            let (number, by) = (filters::whole(value, "a number")?, filters::whole(&other, "a divisor")?);
            if by == 0 { fail("division by zero") } else { Ok(number.checked_rem(by).unwrap_or(0) == 0) }
        },
        "even" => |_, value, _| Ok(filters::whole(value, "an even number")? % 2 == 0),
        "odd" => |_, value, _| Ok(filters::whole(value, "an odd number")? % 2 != 0),
        "eq" | "equalto" | "==" => |run, value, args| compare::equal(run.meter, value, &operand(args)?),
        "ne" | "!=" => |run, value, args| Ok(!compare::equal(run.meter, value, &operand(args)?)?),
        "lt" | "lessthan" | "<" => |run, value, args| ordered(run, value, args, std::cmp::Ordering::is_lt),
        "le" | "<=" => |run, value, args| ordered(run, value, args, std::cmp::Ordering::is_le),
        "gt" | "greaterthan" | ">" => |run, value, args| ordered(run, value, args, std::cmp::Ordering::is_gt),
        "ge" | ">=" => |run, value, args| ordered(run, value, args, std::cmp::Ordering::is_ge),
        "in" => |run, value, args| compare::contains(run.meter, &operand(args)?, value),
        "escaped" => |_, value, _| Ok(matches!(value, Value::Text(text) if text.is_markup())),
        "false" => |_, value, _| Ok(matches!(value, Value::Bool(false))),
        "true" => |_, value, _| Ok(matches!(value, Value::Bool(true))),
        "filter" => {
            |_, value, _| Ok(value.as_text().is_some_and(|name| filters::by_name(name.as_str()).is_some()))
        }
        "test" => |_, value, _| Ok(value.as_text().is_some_and(|name| by_name(name.as_str()).is_some())),
        "float" => |_, value, _| Ok(matches!(value, Value::Float(_))),
        "integer" => |_, value, _| Ok(matches!(value, Value::Int(_))),
        "number" => |_, value, _| Ok(matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_))),
        "none" => |_, value, _| Ok(matches!(value, Value::None)),
        "string" => |_, value, _| Ok(matches!(value, Value::Text(_))),
        "mapping" => |_, value, _| Ok(matches!(value, Value::Dict(_))),
        "iterable" => |_, value, _| {
            let is_list = matches!(value, Value::Undefined(_) | Value::Text(_) | Value::List(_));
            let is_loop = matches!(value, Value::Object(object) if matches!(**object, Object::Loop(_)));
            Ok(is_list || is_loop || matches!(value, Value::Dict(_) | Value::Range(_)))
        },
        "sequence" => |_, value, _| {
            Ok(match value {
                Value::List(list) => matches!(list.kind, ListKind::List | ListKind::Tuple | ListKind::Group),
                Value::Undefined(_) | Value::Text(_) | Value::Dict(_) | Value::Range(_) => true,
                _ => false,
            })
        },
        "lower" => |run, value, _| cased(run, value, false),
        "upper" => |run, value, _| cased(run, value, true),
        "sameas" => |run, value, args| {
            let other = operand(args)?;
            Ok(match (value, &other) {
                (Value::Bool(a), Value::Bool(b)) => a == b,
                (Value::Bool(_), _) | (_, Value::Bool(_)) => false,
                (Value::None, other) | (other, Value::None) => matches!(other, Value::None),
                (Value::List(a), Value::List(b)) => std::rc::Rc::ptr_eq(a, b),
                (Value::Dict(a), Value::Dict(b)) => std::rc::Rc::ptr_eq(a, b),
                _ => value.type_name() == other.type_name() && compare::equal(run.meter, value, &other)?,
            })
        },
        _ => return None,
    })
}

fn operand(args: CallArgs) -> Outcome<Value> {
    let [other] = args.bind("the test", ["other"])?;
    other.map_or_else(|| fail("the test needs something to compare with"), Ok)
}

fn ordered(
    run: &mut Run<'_>,
    value: &Value,
    args: CallArgs,
    wanted: fn(std::cmp::Ordering) -> bool,
) -> Outcome<bool> {
    let other = operand(args)?;
    Ok(compare::order(run.meter, value, &other)?.is_some_and(wanted))
}

fn cased(run: &mut Run<'_>, value: &Value, upper: bool) -> Outcome<bool> {
    let text = print::to_text(run.meter, value)?;
    run.meter.scan(4 * text.len())?;
    Ok(strings::is_cased(text.as_str(), upper))
}
