//! Arithmetic, subscripts and slices. Whole numbers have 128 bits, and overflow is an error. Strings are indexed by
//! code points.

use super::{
    format::percent,
    meter::{Meter, Outcome, fail},
    text::{Text, TextBuilder},
    tree::Math,
    value::{FailedLookup, ListKind, Value},
};

/// Applies an operator.
pub(super) fn math(meter: &Meter, operator: Math, a: &Value, b: &Value) -> Outcome<Value> {
    if let (Value::Int(a), Value::Int(b)) = (a, b) {
        return integers(operator, *a, *b);
    }
    match (operator, a, b) {
        (Math::Add, Value::Text(a), Value::Text(b)) if a.is_markup() || b.is_markup() => {
            let (a, b) = (a.escaped(meter)?, b.escaped(meter)?);
            let mut made = TextBuilder::new(meter);
            made.push_text(&a)?;
            made.push_text(&b)?;
            return Ok(Value::Text(made.finish()?.marked(true)));
        }
        (Math::Add, Value::Text(a), Value::Text(b)) => {
            let mut made = TextBuilder::new(meter);
            made.push_text(a)?;
            made.push_text(b)?;
            return Ok(Value::Text(made.finish()?));
        }
        (Math::Add, Value::List(a), Value::List(b))
            if a.kind == b.kind && matches!(a.kind, ListKind::List | ListKind::Tuple) =>
        {
            meter.values(a.items.len() + b.items.len())?;
            return Value::list_of(a.kind, [a.items.as_slice(), &b.items].concat());
        }
        (Math::Mul, Value::Text(text), times) | (Math::Mul, times, Value::Text(text)) => {
            if let Some(times) = times.as_int() {
                let mut made = TextBuilder::new(meter);
                made.push_times(text, usize::try_from(times.max(0)).unwrap_or(usize::MAX))?;
                return Ok(Value::Text(made.finish()?.marked(text.is_markup())));
            }
        }
        (Math::Mul, Value::List(list), times) | (Math::Mul, times, Value::List(list)) => {
            if let (Some(times), ListKind::List | ListKind::Tuple) = (times.as_int(), list.kind) {
                let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
                let times = if list.items.is_empty() { 0 } else { times };
                meter.values(list.items.len().saturating_mul(times))?;
                let len = list.items.len() * times;
                return Value::list_of(list.kind, list.items.iter().cycle().take(len).cloned().collect());
            }
        }
        (Math::Rem, Value::Text(format), values) => {
            let values = match values {
                Value::List(list) if list.kind == ListKind::Tuple => list.items.as_slice(),
                other => std::slice::from_ref(other),
            };
            return percent(meter, format, values, b).map(Value::Text);
        }
        _ => {}
    }
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
        return integers(operator, a, b);
    }
    if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
        return floats(operator, a, b);
    }
    a.defined()?;
    b.defined()?;
    let sign = match operator {
        Math::Add => "+",
        Math::Sub => "-",
        Math::Mul => "*",
        Math::Div => "/",
        Math::FloorDiv => "//",
        Math::Rem => "%",
        Math::Pow => "** or pow()",
    };
    let (a, b) = (a.type_name(), b.type_name());
    fail(format!("unsupported operand type(s) for {sign}: '{a}' and '{b}'"))
}

fn integers(operator: Math, a: i128, b: i128) -> Outcome<Value> {
    if b == 0 && matches!(operator, Math::Div | Math::FloorDiv | Math::Rem) {
        return fail("division by zero");
    }
    let result = match operator {
        Math::Add => a.checked_add(b),
        Math::Sub => a.checked_sub(b),
        Math::Mul => a.checked_mul(b),
        Math::Div => return Ok(Value::Float(a as f64 / b as f64)),
        Math::FloorDiv => {
            a.checked_div(b).map(|quotient| quotient - i128::from(a % b != 0 && (a < 0) != (b < 0)))
        }
        Math::Rem => Some(match a.wrapping_rem(b) {
            rem if rem != 0 && (rem < 0) != (b < 0) => rem + b,
            rem => rem,
        }),
        Math::Pow if b < 0 => return floats(operator, a as f64, b as f64),
        Math::Pow => match a {
            0 | 1 => Some(if b == 0 { 1 } else { a }),
            -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
            _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        },
    };
    result.map_or_else(|| fail("a whole number of over 128 bits"), |number| Ok(Value::Int(number)))
}

fn floats(operator: Math, a: f64, b: f64) -> Outcome<Value> {
    if b == 0.0 && matches!(operator, Math::Div | Math::FloorDiv | Math::Rem) {
        return fail("division by zero");
    }
    if a == 0.0 && b < 0.0 && operator == Math::Pow {
        return fail("zero cannot be raised to a negative power");
    }
    Ok(Value::Float(match operator {
        Math::Add => a + b,
        Math::Sub => a - b,
        Math::Mul => a * b,
        Math::Div => a / b,
        Math::FloorDiv => (a / b).floor(),
        Math::Rem => {
            let rem = a % b;
            if rem != 0.0 && (rem < 0.0) != (b < 0.0) { rem + b } else { rem }
        }
        Math::Pow => a.powf(b),
    }))
}

/// Applies a sign.
pub(super) fn negated(value: &Value, minus: bool) -> Outcome<Value> {
    match (value, value.as_int()) {
        (_, Some(number)) if !minus => Ok(Value::Int(number)),
        (_, Some(number)) => match number.checked_neg() {
            Some(number) => Ok(Value::Int(number)),
            None => fail("a whole number of over 128 bits"),
        },
        (Value::Float(number), _) => Ok(Value::Float(if minus { -number } else { *number })),
        _ => {
            value.defined()?;
            fail(format!("bad operand type for a sign: '{}'", value.type_name()))
        }
    }
}

/// `list[index]`, `string[index]`, `range[index]`; `None` if there is nothing at the index.
pub(super) fn at_index(meter: &Meter, value: &Value, index: i128) -> Outcome<Option<Value>> {
    let place = |len: usize| {
        let index = if index < 0 { index + len as i128 } else { index };
        usize::try_from(index).ok().filter(|&index| index < len)
    };
    Ok(match value {
        Value::List(list) if matches!(list.kind, ListKind::List | ListKind::Tuple | ListKind::Group) => {
            place(list.items.len()).map(|at| list.items[at].clone())
        }
        Value::Range(span) => place(span.len).map(|at| span.at(at)),
        Value::Text(text) => {
            // from the nearer end
            let skipped = usize::try_from(if index < 0 { -(index + 1) } else { index }).unwrap_or(usize::MAX);
            meter.scan(skipped.min(text.len()) * 8)?;
            let found = if index < 0 {
                text.as_str().char_indices().nth_back(skipped)
            } else {
                text.as_str().char_indices().nth(skipped)
            };
            match found {
                Some((at, c)) => Some(Value::Text(text.slice(meter, at..at + c.len_utf8())?)),
                None => None,
            }
        }
        _ => None,
    })
}

/// `value[start:stop:step]`.
pub(super) fn slice(meter: &Meter, value: &Value, bounds: [Option<Value>; 3]) -> Outcome<Value> {
    value.defined()?;
    let mut parts = [None; 3];
    for (part, bound) in parts.iter_mut().zip(&bounds) {
        *part = match bound {
            None | Some(Value::None) => None,
            Some(bound) => match bound.as_int() {
                Some(number) => Some(number),
                None => return fail("slice indices must be integers or None"),
            },
        };
    }
    let [start, stop, step] = parts;
    let step = step.unwrap_or(1);
    if step == 0 {
        return fail("slice step cannot be zero");
    }
    match value {
        Value::Text(text) if step == 1 => text_slice(meter, text, start, stop).map(Value::Text),
        Value::Text(text) => {
            let chars: Vec<(usize, char)> = {
                meter.bytes(text.len().saturating_mul(16))?;
                text.as_str().char_indices().collect()
            };
            let mut made = TextBuilder::new(meter);
            for at in places(chars.len(), start, stop, step) {
                let (at, c) = chars[at];
                made.push_part(text, at..at + c.len_utf8())?;
            }
            Ok(Value::Text(made.finish()?.marked(text.is_markup())))
        }
        Value::List(list) if matches!(list.kind, ListKind::List | ListKind::Tuple) => {
            let item = |at: usize| {
                meter.values(1)?;
                Ok(list.items[at].clone())
            };
            let places = places(list.items.len(), start, stop, step);
            Value::list_of(list.kind, places.map(item).collect::<Outcome<_>>()?)
        }
        Value::Range(span) => {
            let places: Vec<usize> = {
                meter.values(span.len)?;
                places(span.len, start, stop, step).collect()
            };
            Value::list(places.into_iter().map(|at| span.at(at)).collect())
        }
        other => {
            Ok(Value::Undefined(FailedLookup::Attribute(other.type_name(), std::sync::Arc::from("a slice"))))
        }
    }
}

/// Indices of a slice, in order.
fn places(
    len: usize,
    start: Option<i128>,
    stop: Option<i128>,
    step: i128,
) -> Box<dyn Iterator<Item = usize>> {
    let len = len as i128;
    let from_end = |place: i128| if place < 0 { place.saturating_add(len) } else { place };
    // Steps larger than the length reach nothing more.
    let step = step.clamp(-len - 1, len + 1);
    if step > 0 {
        let start = from_end(start.unwrap_or(0)).clamp(0, len) as usize;
        let stop = from_end(stop.unwrap_or(len)).clamp(0, len) as usize;
        Box::new((start..stop).step_by(step as usize))
    } else {
        let start = start.map_or(len - 1, |start| from_end(start).clamp(-1, len - 1));
        let stop = stop.map_or(-1, |stop| from_end(stop).clamp(-1, len - 1));
        let count = if start > stop { (start - stop - 1) / -step + 1 } else { 0 };
        Box::new((0..count).map(move |nth| (start + nth * step) as usize))
    }
}

fn text_slice(meter: &Meter, text: &Text, start: Option<i128>, stop: Option<i128>) -> Outcome<Text> {
    let string = text.as_str();
    let byte = |place: Option<i128>, otherwise: usize| -> Outcome<usize> {
        let Some(place) = place else { return Ok(otherwise) };
        let skipped = usize::try_from(place.unsigned_abs()).unwrap_or(usize::MAX);
        meter.scan(skipped.min(string.len()) * 8)?;
        Ok(match (place, skipped) {
            (0, _) => 0,
            (1.., _) => string.char_indices().nth(skipped).map_or(string.len(), |(at, _)| at),
            _ => string.char_indices().nth_back(skipped - 1).map_or(0, |(at, _)| at),
        })
    };
    let start = byte(start, 0)?;
    let stop = byte(stop, string.len())?;
    text.slice(meter, start..stop.max(start))
}
