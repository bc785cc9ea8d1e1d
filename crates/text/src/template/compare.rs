//! Equality, order and membership as in Python.

use std::cmp::Ordering;

use super::{
    meter::{Meter, Outcome, fail},
    value::{ListKind, Value},
};

/// `==`.
pub(super) fn equal(meter: &Meter, a: &Value, b: &Value) -> Outcome<bool> {
    Ok(match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            meter.scan(a.len())?;
            a.as_str() == b.as_str()
        }
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::List(a), Value::List(b)) => {
            let of_one_kind = a.kind == b.kind && matches!(a.kind, ListKind::List | ListKind::Tuple);
            if !of_one_kind || a.items.len() != b.items.len() {
                return Ok(false);
            }
            meter.steps(a.items.len() as u64)?;
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(meter, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            meter.steps(a.entries.len() as u64)?;
            for (key, value) in &a.entries {
                match b.get(meter, key)? {
                    Some(other) if equal(meter, value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(a), Value::Range(b)) => {
            a.len == b.len && (a.len == 0 || (a.start == b.start && (a.len == 1 || a.step == b.step)))
        }
        (Value::Object(a), Value::Object(b)) => std::rc::Rc::ptr_eq(a, b),
        _ => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => matches!((a.as_float(), b.as_float()), (Some(a), Some(b)) if a == b),
        },
    })
}

/// `<`, `>` and the like; an error if Python has no order.
pub(super) fn order(meter: &Meter, a: &Value, b: &Value) -> Outcome<Option<Ordering>> {
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            meter.scan(a.len().min(b.len()))?;
            Ok(Some(a.as_str().cmp(b.as_str())))
        }
        (Value::List(a), Value::List(b))
            if a.kind == b.kind && matches!(a.kind, ListKind::List | ListKind::Tuple) =>
        {
            for (a, b) in a.items.iter().zip(&b.items) {
                meter.steps(1)?;
                if !equal(meter, a, b)? {
                    return order(meter, a, b);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => {
            if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
                return Ok(Some(a.cmp(&b)));
            }
            if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
                return Ok(a.partial_cmp(&b));
            }
            a.defined()?;
            b.defined()?;
            let (a, b) = (a.type_name(), b.type_name());
            fail(format!("'<' not supported between instances of '{a}' and '{b}'"))
        }
    }
}

/// `in`.
pub(super) fn contains(meter: &Meter, container: &Value, value: &Value) -> Outcome<bool> {
    match container {
        Value::Text(text) => match value {
            Value::Text(part) => {
                meter.scan(4 * text.len() + 4 * part.len())?;
                Ok(part.len() <= text.len() && text.as_str().contains(part.as_str()))
            }
            other => {
                other.defined()?;
                let kind = other.type_name();
                fail(format!("'in <string>' requires string as left operand, not {kind}"))
            }
        },
        Value::List(list) => {
            meter.steps(list.items.len() as u64)?;
            for item in &list.items {
                if equal(meter, item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Dict(dict) => Ok(dict.get(meter, value)?.is_some()),
        Value::Range(span) => Ok(value.as_int().is_some_and(|value| {
            let ahead = value.saturating_sub(span.start);
            // `None` if a range with step -1 is as far from the smallest number as possible.
            let at = ahead.checked_div(span.step).filter(|_| ahead.wrapping_rem(span.step) == 0);
            at.and_then(|at| usize::try_from(at).ok()).is_some_and(|at| at < span.len)
        })),
        Value::Undefined(_) => Ok(false),
        other => fail(format!("argument of type '{}' is not iterable", other.type_name())),
    }
}

/// Sorts stably by keys, as Python's `sorted`. It uses merge sort, which ends for any comparison, because values of
/// a template need not have an order (NaN). Stops if two keys cannot be compared.
pub(super) fn sort(meter: &Meter, keyed: &mut Vec<(Value, Value)>, reverse: bool) -> Outcome<()> {
    let len = keyed.len();
    meter.steps(len as u64 * u64::from(usize::BITS - len.leading_zeros()))?;
    meter.values(2 * len)?;
    meter.bytes(2 * len * size_of::<usize>())?;
    // Indices of the keys; the runs double in length each time.
    let mut sorted: Vec<usize> = (0..len).collect();
    let mut merged: Vec<usize> = Vec::with_capacity(len);
    let wanted = if reverse { Ordering::Greater } else { Ordering::Less };
    let mut run = 1;
    while run < len {
        merged.clear();
        for pair in sorted.chunks(2 * run) {
            let (mut left, mut right) = pair.split_at(run.min(pair.len()));
            while let (Some((&a, left_rest)), Some((&b, right_rest))) =
                (left.split_first(), right.split_first())
            {
                // The right one goes first only if it must.
                if order(meter, &keyed[b].0, &keyed[a].0)? == Some(wanted) {
                    merged.push(b);
                    right = right_rest;
                } else {
                    merged.push(a);
                    left = left_rest;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(&mut sorted, &mut merged);
        run *= 2;
    }
    *keyed = sorted.into_iter().map(|at| keyed[at].clone()).collect();
    Ok(())
}
