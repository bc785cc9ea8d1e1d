//! Filters of lists and dictionaries.

use std::rc::Rc;

use super::{
    call::generator,
    checks, compare,
    eval::CallArgs,
    filters,
    filters::whole,
    meter::{Meter, Outcome, fail},
    operators, print,
    run::Run,
    text::TextBuilder,
    tree::Math,
    value::{Dict, ListKind, Value},
};

/// Entries of a dictionary as pairs.
pub(super) fn pairs(meter: &Meter, dict: &Rc<Dict>) -> Outcome<Vec<Value>> {
    meter.values(4 * dict.entries.len())?;
    dict.entries.iter().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()])).collect()
}

fn is(flag: Option<Value>) -> bool {
    flag.is_some_and(|flag| flag.is_true())
}

fn given(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !matches!(value, Value::None))
}

/// Lookup of a path such as `a.b.0`.
struct Path {
    parts: Vec<Value>,
    default: Option<Value>,
}

impl Path {
    /// Without an attribute it returns the value itself.
    fn new(run: &Run<'_>, attribute: Option<Value>, default: Option<Value>) -> Outcome<Path> {
        let parts = match given(attribute) {
            None => Vec::new(),
            Some(Value::Text(path)) => {
                let mut parts = Vec::new();
                let mut start = 0;
                for part in path.as_str().split('.') {
                    run.meter.values(1)?;
                    parts.push(match part.parse() {
                        Ok(index) if part.bytes().all(|byte| byte.is_ascii_digit()) => Value::Int(index),
                        _ => Value::Text(path.slice(run.meter, start..start + part.len())?),
                    });
                    start += part.len() + 1;
                }
                parts
            }
            Some(other) => vec![other],
        };
        Ok(Path { parts, default })
    }

    fn follow(&self, run: &mut Run<'_>, value: &Value) -> Outcome<Value> {
        let mut value = value.clone();
        for part in &self.parts {
            run.meter.steps(1)?;
            value = run.item(&value, part)?;
            if let (Value::Undefined(_), Some(default)) = (&value, &self.default) {
                value = default.clone();
            }
        }
        Ok(value)
    }
}

/// Sort key of a value: strings are lowered, unless case matters.
fn key_of(run: &mut Run<'_>, path: &Path, value: &Value, case_sensitive: bool) -> Outcome<Value> {
    let key = path.follow(run, value)?;
    match &key {
        Value::Text(text) if !case_sensitive => super::strings::lower(run.meter, text).map(Value::Text),
        _ => Ok(key),
    }
}

fn keyed(
    run: &mut Run<'_>,
    value: &Value,
    path: &Path,
    case_sensitive: bool,
) -> Outcome<Vec<(Value, Value)>> {
    let items = value.items(run.meter)?;
    run.meter.values(2 * items.len())?;
    let keyed = |item: Value| Ok((key_of(run, path, &item, case_sensitive)?, item));
    items.into_iter().map(keyed).collect()
}

pub(super) fn sort(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [reverse, case_sensitive, attribute] =
        args.bind("sort", ["reverse", "case_sensitive", "attribute"])?;
    let paths = match given(attribute) {
        // several attributes, separated by commas
        Some(Value::Text(text)) if text.as_str().contains(',') => {
            let mut paths = Vec::new();
            let mut start = 0;
            for part in text.as_str().split(',') {
                let attribute = Value::Text(text.slice(run.meter, start..start + part.len())?);
                paths.push(Path::new(run, Some(attribute), None)?);
                start += part.len() + 1;
            }
            paths
        }
        attribute => vec![Path::new(run, attribute, None)?],
    };
    let case_sensitive = is(case_sensitive);
    let mut keyed = Vec::new();
    for item in value.items(run.meter)? {
        run.meter.values(2 + paths.len())?;
        let keys: Outcome<Vec<Value>> =
            paths.iter().map(|path| key_of(run, path, &item, case_sensitive)).collect();
        keyed.push((Value::list(keys?)?, item));
    }
    compare::sort(run.meter, &mut keyed, is(reverse))?;
    Value::list(keyed.into_iter().map(|(_, item)| item).collect())
}

pub(super) fn dictsort(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [case_sensitive, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let by = by.map_or(Ok("key".to_owned()), |by| {
        print::to_text(run.meter, &by).map(|by| by.as_str().chars().take(8).collect())
    })?;
    let place = match by.as_str() {
        "key" => 0,
        "value" => 1,
        _ => return fail("You can only sort by either \"key\" or \"value\""),
    };
    let Value::Dict(dict) = &value else {
        value.defined()?;
        return fail(format!("'{} object' has no attribute 'items'", value.type_name()));
    };
    let path = Path { parts: vec![Value::Int(place)], default: None };
    let pairs = Value::list(pairs(run.meter, dict)?)?;
    let mut keyed = keyed(run, &pairs, &path, is(case_sensitive))?;
    compare::sort(run.meter, &mut keyed, is(reverse))?;
    Value::list(keyed.into_iter().map(|(_, item)| item).collect())
}

pub(super) fn groupby(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [attribute, default, case_sensitive] =
        args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    let case_sensitive = is(case_sensitive);
    let path = Path::new(run, attribute, default)?;
    let mut keyed = keyed(run, &value, &path, case_sensitive)?;
    compare::sort(run.meter, &mut keyed, false)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    let mut last: Option<Value> = None;
    for (key, item) in keyed {
        run.meter.values(2)?;
        let is_same = match &last {
            Some(last) => compare::equal(run.meter, last, &key)?,
            None => false,
        };
        match groups.last_mut() {
            Some((_, items)) if is_same => items.push(item),
            _ => {
                let grouper = if case_sensitive { key.clone() } else { path.follow(run, &item)? };
                groups.push((grouper, vec![item]));
                last = Some(key);
            }
        }
    }
    let group = |(key, items)| Value::list_of(ListKind::Group, vec![key, Value::list(items)?]);
    Value::list(groups.into_iter().map(group).collect::<Outcome<_>>()?)
}

pub(super) fn unique(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let path = Path::new(run, attribute, None)?;
    let (mut seen, mut found) = (Vec::new(), Vec::new());
    for (key, item) in keyed(run, &value, &path, is(case_sensitive))? {
        run.meter.steps(1 + seen.len() as u64)?;
        let mut is_new = true;
        for other in &seen {
            if compare::equal(run.meter, other, &key)? {
                is_new = false;
                break;
            }
        }
        if is_new {
            seen.push(key);
            found.push(item);
        }
    }
    generator(found)
}

/// `max` and `min`.
pub(super) fn extreme(run: &mut Run<'_>, value: Value, args: CallArgs, largest: bool) -> Outcome<Value> {
    let [case_sensitive, attribute] = args.bind("min or max", ["case_sensitive", "attribute"])?;
    let path = Path::new(run, attribute, None)?;
    let mut best: Option<(Value, Value)> = None;
    for (key, item) in keyed(run, &value, &path, is(case_sensitive))? {
        let is_better = match &best {
            None => true,
            Some((best, _)) => {
                let order = compare::order(run.meter, &key, best)?;
                order.is_some_and(|order| if largest { order.is_gt() } else { order.is_lt() })
            }
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| Value::undefined("No aggregated item, sequence was empty."), |(_, item)| item))
}

pub(super) fn sum(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let path = Path::new(run, attribute, None)?;
    let mut sum = start.unwrap_or(Value::Int(0));
    if let Value::Text(_) = sum {
        return fail("sum() can't sum strings [use ''.join(seq) instead]");
    }
    for item in value.items(run.meter)? {
        let item = path.follow(run, &item)?;
        sum = operators::math(run.meter, Math::Add, &sum, &item)?;
    }
    Ok(sum)
}

pub(super) fn join(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator = separator.unwrap_or_else(|| Value::template(""));
    let separator = print::to_text(run.meter, &separator)?;
    let path = Path::new(run, attribute, None)?;
    let mut made = TextBuilder::new(run.meter);
    for (at, item) in value.items(run.meter)?.into_iter().enumerate() {
        run.meter.steps(1)?;
        if at > 0 {
            made.push_text(&separator)?;
        }
        print::print(&path.follow(run, &item)?, &mut made)?;
    }
    Ok(Value::Text(made.finish()?))
}

pub(super) fn map(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    // A false value counts as empty, whatever its type.
    if !value.is_true() {
        return super::call::generator(Vec::new());
    }
    let CallArgs { mut positional, named } = args;
    let items = value.items(run.meter)?;
    run.meter.values(items.len())?;
    let mut mapped = Vec::with_capacity(items.len());
    if positional.is_empty() {
        let [attribute, default] = CallArgs { positional, named }.bind("map", ["attribute", "default"])?;
        if attribute.is_none() {
            return fail("map requires a filter argument");
        }
        let path = Path::new(run, attribute, default)?;
        for item in items {
            mapped.push(path.follow(run, &item)?);
        }
    } else {
        let name = print::to_text(run.meter, &positional.remove(0))?;
        let Some(filter) = filters::by_name(name.as_str()) else {
            let name: String = name.as_str().chars().take(64).collect();
            return fail(format!("No filter named '{name}'"));
        };
        for item in items {
            run.meter.values(positional.len() + named.len())?;
            let args = CallArgs { positional: positional.clone(), named: named.clone() };
            mapped.push(filters::apply(run, filter, item, args)?);
        }
    }
    generator(mapped)
}

/// `select` and `reject`: by a test, or by truth.
pub(super) fn select(run: &mut Run<'_>, value: Value, args: CallArgs, wanted: bool) -> Outcome<Value> {
    if !value.is_true() {
        return super::call::generator(Vec::new());
    }
    chosen(run, value, &Path { parts: Vec::new(), default: None }, args, wanted)
}

/// `selectattr` and `rejectattr`.
pub(super) fn select_by(run: &mut Run<'_>, value: Value, mut args: CallArgs, wanted: bool) -> Outcome<Value> {
    if !value.is_true() {
        return super::call::generator(Vec::new());
    }
    if args.positional.is_empty() {
        return fail("Missing parameter for attribute name");
    }
    let attribute = args.positional.remove(0);
    let path = Path::new(run, Some(attribute), None)?;
    chosen(run, value, &path, args, wanted)
}

fn chosen(run: &mut Run<'_>, value: Value, path: &Path, mut args: CallArgs, wanted: bool) -> Outcome<Value> {
    let test = if args.positional.is_empty() {
        None
    } else {
        let name = print::to_text(run.meter, &args.positional.remove(0))?;
        match checks::by_name(name.as_str()) {
            Some(test) => Some(test),
            None => {
                let name: String = name.as_str().chars().take(64).collect();
                return fail(format!("No test named '{name}'"));
            }
        }
    };
    let mut found = Vec::new();
    for item in value.items(run.meter)? {
        run.meter.steps(4)?;
        let looked_at = path.follow(run, &item)?;
        let holds = match test {
            None => looked_at.is_true(),
            Some(test) => {
                run.meter.values(args.positional.len() + args.named.len())?;
                let args = CallArgs { positional: args.positional.clone(), named: args.named.clone() };
                test(run, &looked_at, args)?
            }
        };
        if holds == wanted {
            run.meter.values(1)?;
            found.push(item);
        }
    }
    generator(found)
}

pub(super) fn batch(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"])?;
    let Some(count) = count else { return fail("batch needs a count") };
    let count = usize::try_from(whole(&count, "linecount of batch")?.max(0)).unwrap_or(usize::MAX);
    let mut batches = Vec::new();
    let mut batch: Vec<Value> = Vec::new();
    for item in value.items(run.meter)? {
        if batch.len() == count {
            run.meter.values(2)?;
            batches.push(Value::list(std::mem::take(&mut batch))?);
        }
        run.meter.values(1)?;
        batch.push(item);
    }
    if !batch.is_empty() {
        if let Some(fill) = given(fill).filter(|_| batch.len() < count) {
            run.meter.values(count - batch.len())?;
            batch.resize(count, fill);
        }
        batches.push(Value::list(batch)?);
    }
    generator(batches)
}

pub(super) fn slice(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [slices, fill] = args.bind("slice", ["slices", "fill_with"])?;
    let Some(slices) = slices else { return fail("slice needs a count") };
    let slices = usize::try_from(whole(&slices, "slices of slice")?.max(0)).unwrap_or(usize::MAX);
    if slices == 0 {
        return fail("division by zero");
    }
    let fill = given(fill);
    run.meter.values(slices.saturating_mul(4))?;
    let items = value.items(run.meter)?;
    let (each, more) = (items.len() / slices, items.len() % slices);
    let mut items = items.into_iter();
    let mut made = Vec::new();
    for at in 0..slices {
        let mut part: Vec<Value> = items.by_ref().take(each + usize::from(at < more)).collect();
        if let Some(fill) = fill.as_ref().filter(|_| at >= more) {
            part.push(fill.clone());
        }
        made.push(Value::list(part)?);
    }
    generator(made)
}
