//! Searching in texts: `str.startswith`, `endswith`, `removeprefix`, `removesuffix`, `find`, `index` and `count`.

use super::{CallArgs, ListKind, Meter, Outcome, Text, Value, between, fail, needed_text};

/// `str.startswith` and `endswith`.
pub(super) fn has_affix(meter: &Meter, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
    let [affix, start, end] = args.bind(method, [method, "start", "end"])?;
    let text = between(meter, text, start, end)?;
    let Some(affix) = affix else { return fail(format!("{method} needs a string")) };
    let affixes = match &affix {
        Value::Text(_) => vec![affix],
        Value::List(list) if list.kind == ListKind::Tuple => {
            meter.values(list.items.len())?;
            list.items.clone()
        }
        other => {
            other.defined()?;
            let kind = other.type_name();
            return fail(format!("{method} first arg must be str or a tuple of str, not {kind}"));
        }
    };
    for affix in affixes {
        let Value::Text(affix) = affix else { return fail(format!("{method} takes strings")) };
        meter.scan(affix.len().min(text.len()))?;
        let (text, affix) = (text.as_str(), affix.as_str());
        if if method == "startswith" { text.starts_with(affix) } else { text.ends_with(affix) } {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

/// `str.removeprefix` and `removesuffix`.
pub(super) fn without_affix(meter: &Meter, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
    let [affix] = args.bind(method, ["affix"])?;
    let affix = needed_text(affix, method)?;
    let all = text.as_str();
    let range = match method {
        "removeprefix" => all.strip_prefix(affix.as_str()).map(|rest| all.len() - rest.len()..all.len()),
        _ => all.strip_suffix(affix.as_str()).map(|rest| 0..rest.len()),
    };
    text.slice(meter, range.unwrap_or(0..all.len())).map(Value::Text)
}

/// `str.find`, `rfind`, `index`, `rindex` and `count`.
pub(super) fn find(meter: &Meter, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
    let [part, start, end] = args.bind(method, ["sub", "start", "end"])?;
    let part = needed_text(part, method)?;
    let offset = match start.as_ref().and_then(Value::as_int) {
        Some(start @ 0..) => start,
        Some(_) => return fail(format!("{method} from the end is not supported")),
        None => 0,
    };
    let within = between(meter, text, start, end)?;
    meter.scan(8 * within.len() + 4 * part.len())?;
    let (all, part) = (within.as_str(), part.as_str());
    if method == "count" {
        let count = match part.len() {
            0 => all.chars().count() + 1,
            len if len > all.len() => 0,
            _ => all.matches(part).count(),
        };
        return Ok(Value::Int(count as i128));
    }
    let found = match method.starts_with('r') {
        _ if part.len() > all.len() => None,
        true => all.rfind(part),
        false => all.find(part),
    };
    match found {
        Some(at) => Ok(Value::Int(offset.saturating_add(all[..at].chars().count() as i128))),
        None if method.ends_with("find") => Ok(Value::Int(-1)),
        None => fail("substring not found"),
    }
}
