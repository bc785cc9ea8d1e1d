//! Filters by name: those of Jinja2 that make sense without HTML, and `tojson`. Filters of lists are in
//! `sequences.rs`. Code shared with Python's string methods is in `strings.rs`.

use super::{
    eval::CallArgs,
    format, json,
    lexer::is_space,
    markup,
    meter::{Outcome, fail},
    operators, print,
    run::Run,
    sequences, strings,
    text::{Text, TextBuilder},
    tree::Math,
    value::{Items, ListKind, Value},
};

/// Implementation of a filter.
pub(super) type Filter = for<'a, 'r> fn(&'r mut Run<'a>, Value, CallArgs) -> Outcome<Value>;

/// Filter with this name.
pub(super) fn by_name(name: &str) -> Option<Filter> {
    Some(match name {
        "abs" => abs,
        "attr" => attr,
        "batch" => sequences::batch,
        "capitalize" => |run, value, args| text_filter(run, value, args, "capitalize"),
        "center" => |run, value, args| text_filter(run, value, args, "center"),
        "count" | "length" => length,
        "d" | "default" => default,
        "dictsort" => sequences::dictsort,
        "e" | "escape" => |run, value, args| escape(run, value, args, "escape"),
        "forceescape" => |run, value, args| escape(run, value, args, "forceescape"),
        "filesizeformat" => filesizeformat,
        "first" => first,
        "float" => float,
        "format" => format_filter,
        "groupby" => sequences::groupby,
        "indent" => indent,
        "int" => int,
        "items" => items,
        "join" => sequences::join,
        "last" => last,
        "list" => |run, value, args| {
            let [] = args.bind("list", [])?;
            Value::list(value.items(run.meter)?)
        },
        "lower" => |run, value, args| text_filter(run, value, args, "lower"),
        "map" => sequences::map,
        "max" => |run, value, args| sequences::extreme(run, value, args, true),
        "min" => |run, value, args| sequences::extreme(run, value, args, false),
        "random" => |_, _, _| fail("random is not for chat templates: a prompt is the same every time"),
        "reject" => |run, value, args| sequences::select(run, value, args, false),
        "rejectattr" => |run, value, args| sequences::select_by(run, value, args, false),
        "replace" => replace,
        "reverse" => reverse,
        "round" => round,
        "safe" => |run, value, _| Ok(Value::Text(print::to_text(run.meter, &value)?.marked(true))),
        "select" => |run, value, args| sequences::select(run, value, args, true),
        "selectattr" => |run, value, args| sequences::select_by(run, value, args, true),
        "slice" => sequences::slice,
        "sort" => sequences::sort,
        "string" => |run, value, _| Ok(Value::Text(print::to_text(run.meter, &value)?)),
        "sum" => sequences::sum,
        "title" => title,
        "tojson" => |run, value, args| json::tojson(run.meter, &value, args).map(Value::Text),
        "trim" => |run, value, args| text_filter(run, value, args, "strip"),
        "truncate" => truncate,
        "unique" => sequences::unique,
        "upper" => |run, value, args| text_filter(run, value, args, "upper"),
        "urlencode" => urlencode,
        "wordcount" => wordcount,
        _ => return None,
    })
}

/// Applies a filter. It is a function so that recursion through filters is counted.
#[inline(never)]
pub(super) fn apply(run: &mut Run<'_>, filter: Filter, value: Value, args: CallArgs) -> Outcome<Value> {
    run.enter()?;
    run.meter.steps(4)?;
    let value = filter(run, value, args)?;
    run.leave();
    Ok(value)
}

/// String method as a filter of any value.
fn text_filter(run: &mut Run<'_>, value: Value, args: CallArgs, method: &str) -> Outcome<Value> {
    let text = print::to_text(run.meter, &value)?;
    let args = match (method, args.named.len()) {
        (_, 0) => args,
        ("center", _) => CallArgs::of(args.bind("center", ["width"])?.into_iter().flatten().collect()),
        _ => CallArgs::of(args.bind("trim", ["chars"])?.into_iter().flatten().collect()),
    };
    let args = match method {
        "center" if args.positional.is_empty() => CallArgs::of(vec![Value::Int(80)]),
        _ => args,
    };
    markup::call(run, &text, method, args)
}

/// Argument that must be a whole number.
pub(super) fn whole(value: &Value, of: &str) -> Outcome<i128> {
    value.as_int().map_or_else(
        || {
            value.defined()?;
            fail(format!("{of} must be a whole number, not {}", value.type_name()))
        },
        Ok,
    )
}

fn abs(_: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [] = args.bind("abs", [])?;
    match (&value, value.as_int()) {
        (Value::Float(number), _) => Ok(Value::Float(number.abs())),
        (_, Some(number)) => match number.checked_abs() {
            Some(number) => Ok(Value::Int(number)),
            None => fail("a whole number of over 128 bits"),
        },
        _ => fail(format!("bad operand type for abs(): '{}'", value.type_name())),
    }
}

fn attr(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [name] = args.bind("attr", ["name"])?;
    let Some(name) = name else { return fail("attr needs a name") };
    let name = print::to_text(run.meter, &name)?;
    match value {
        // attributes only, not a dictionary's entries
        Value::Dict(_) => run.attribute(&Value::dict(Vec::new())?, &name),
        other => run.attribute(&other, &name),
    }
}

fn length(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [] = args.bind("length", [])?;
    let length = match &value {
        Value::Undefined(_) => 0,
        Value::Text(text) => {
            run.meter.scan(4 * text.len())?;
            text.as_str().chars().count()
        }
        Value::List(list) if list.kind != ListKind::Generator => list.items.len(),
        Value::Dict(dict) => dict.entries.len(),
        Value::Range(span) => span.len,
        other => return fail(format!("object of type '{}' has no len()", other.type_name())),
    };
    Ok(Value::Int(length as i128))
}

fn default(_: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [default, boolean] = args.bind("default", ["default_value", "boolean"])?;
    let boolean = boolean.is_some_and(|boolean| boolean.is_true());
    if matches!(value, Value::Undefined(_)) || (boolean && !value.is_true()) {
        return Ok(default.unwrap_or_else(|| Value::template("")));
    }
    Ok(value)
}

fn escape(run: &mut Run<'_>, value: Value, args: CallArgs, name: &'static str) -> Outcome<Value> {
    let [] = args.bind(name, [])?;
    let text = print::to_text(run.meter, &value)?;
    let text = if name == "escape" { text } else { text.marked(false) };
    Ok(Value::Text(text.escaped(run.meter)?))
}

fn filesizeformat(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [binary] = args.bind("filesizeformat", ["binary"])?;
    let binary = binary.is_some_and(|binary| binary.is_true());
    let Value::Float(bytes) = float(run, value, CallArgs::of(Vec::new()))? else {
        return fail("filesizeformat needs a number");
    };
    let (base, units) = match binary {
        true => (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]),
        false => (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]),
    };
    if bytes == 1.0 {
        return Ok(Value::template("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::template(&format!("{bytes:.0} Bytes")));
    }
    let mut size = bytes / base;
    let mut unit = 0;
    while size >= base && unit + 1 < units.len() {
        size /= base;
        unit += 1;
    }
    Ok(Value::template(&format!("{size:.1} {}", units[unit])))
}

fn first(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [] = args.bind("first", [])?;
    let first = match &value {
        Value::Text(_) => operators::at_index(run.meter, &value, 0)?.map(plain),
        other => Items::of(run.meter, other)?.get(0),
    };
    Ok(first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")))
}

/// Character from iterating over a string: without markup.
fn plain(value: Value) -> Value {
    match value {
        Value::Text(text) => Value::Text(text.marked(false)),
        other => other,
    }
}

fn last(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [] = args.bind("last", [])?;
    let last = match &value {
        Value::Text(_) => operators::at_index(run.meter, &value, -1)?.map(plain),
        other => {
            let items = Items::of(run.meter, other)?;
            items.len().checked_sub(1).and_then(|at| items.get(at))
        }
    };
    Ok(last.unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
}

fn float(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [default] = args.bind("float", ["default"])?;
    let number = match &value {
        Value::Text(text) => {
            run.meter.scan(text.len())?;
            strings::parse_float(text.as_str())
        }
        other => other.as_float(),
    };
    Ok(number.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
}

fn int(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [default, base] = args.bind("int", ["default", "base"])?;
    let base = base.map_or(Ok(10), |base| whole(&base, "base of int"))?;
    let trunc = |number: f64| (number.abs() < 1e38).then_some(number.trunc() as i128);
    let number = match &value {
        Value::Text(text) => {
            run.meter.scan(text.len())?;
            strings::parse_int(text.as_str(), base)
                .or_else(|| strings::parse_float(text.as_str()).and_then(trunc))
        }
        Value::Float(number) => trunc(*number),
        other => other.as_int(),
    };
    Ok(number.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
}

fn format_filter(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let text = print::to_text(run.meter, &value)?;
    if args.named.is_empty() {
        let all = Value::tuple(args.positional.clone())?;
        return format::percent(run.meter, &text, &args.positional, &all).map(Value::Text);
    }
    if !args.positional.is_empty() {
        return fail("can't handle positional and keyword arguments at the same time");
    }
    let named = args.named.into_iter().map(|(name, value)| (Value::Text(Text::request(name)), value));
    let mapping = Value::dict(named.collect())?;
    format::percent(run.meter, &text, &[], &mapping).map(Value::Text)
}

fn items(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [] = args.bind("items", [])?;
    match &value {
        Value::Undefined(_) => super::call::generator(Vec::new()),
        Value::Dict(dict) => super::call::generator(sequences::pairs(run.meter, dict)?),
        _ => fail("Can only get item pairs from a mapping."),
    }
}

fn indent(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let text = print::to_text(run.meter, &value)?;
    let indentation = match width {
        Some(Value::Text(text)) => text,
        other => {
            let width = other.map_or(Ok(4), |width| whole(&width, "width of indent"))?;
            let mut spaces = TextBuilder::new(run.meter);
            spaces.push_times(&Text::template(" "), usize::try_from(width.max(0)).unwrap_or(usize::MAX))?;
            spaces.finish()?
        }
    };
    let is = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let (first, blank) = (is(first), is(blank));
    run.meter.scan(4 * text.len())?;
    let mut made = TextBuilder::new(run.meter);
    if first {
        made.push_text(&indentation)?;
    }
    // One extra line, so that a final line break is kept.
    let is_open = text.as_str().chars().next_back().is_none_or(strings::is_line_break);
    let more = strings::Line { content: text.len()..text.len(), whole_end: text.len() };
    let mut is_broken_by_request = false;
    for (at, line) in strings::lines(text.as_str()).chain(is_open.then_some(more)).enumerate() {
        run.meter.steps(1)?;
        let was_broken_by_request = is_broken_by_request;
        is_broken_by_request = text.has_request_in(line.content.end..line.whole_end);
        if at > 0 {
            made.push("\n", was_broken_by_request)?;
            if blank || !line.content.is_empty() {
                made.push_text(&indentation)?;
            }
        }
        made.push_part(&text, line.content)?;
    }
    Ok(Value::Text(made.finish()?.marked(text.is_markup())))
}

fn replace(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [old, new, count] = args.bind("replace", ["old", "new", "count"])?;
    let (Some(old), Some(new)) = (old, new) else { return fail("replace needs what and by what") };
    let text = print::to_text(run.meter, &value)?;
    let (old, new) = (print::to_text(run.meter, &old)?, print::to_text(run.meter, &new)?);
    let count = count.filter(|count| !matches!(count, Value::None));
    let count = count.map_or(Ok(-1), |count| whole(&count, "count of replace"))?;
    let replaced = strings::replace(run.meter, &text, &old, &new, count)?;
    Ok(Value::Text(replaced.marked(false)))
}

fn reverse(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [] = args.bind("reverse", [])?;
    if let Value::Text(_) = value {
        return operators::slice(run.meter, &value, [None, None, Some(Value::Int(-1))]);
    }
    let mut items = value.items(run.meter)?;
    items.reverse();
    super::call::generator(items)
}

fn round(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = precision.map_or(Ok(0), |precision| whole(&precision, "precision of round"))?;
    let Ok(precision) = i32::try_from(precision.clamp(-400, 400)) else { return fail("precision") };
    let method = method.map_or(Ok(Text::template("common")), |method| print::to_text(run.meter, &method))?;
    let Some(number) = value.as_float() else {
        value.defined()?;
        return fail(format!("type {} doesn't define __round__ method", value.type_name()));
    };
    let scale = 10f64.powi(precision);
    let rounded = match method.as_str() {
        "common" => match (value.as_int(), precision) {
            (Some(number), 0..) => return Ok(Value::Int(number)),
            (_, 0..) if number.is_finite() => {
                // exact decimals, halves to even, as in Python
                format!("{number:.*}", precision as usize).parse().unwrap_or(number)
            }
            _ => (number * scale).round_ties_even() / scale,
        },
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        _ => return fail("method must be common, ceil or floor"),
    };
    match value.as_int() {
        Some(_) if method.as_str() == "common" => Ok(Value::Int(rounded as i128)),
        _ => Ok(Value::Float(rounded)),
    }
}

fn title(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [] = args.bind("title", [])?;
    let text = print::to_text(run.meter, &value)?;
    let mut begins = true;
    let titled = text.map(run.meter, |c, push| {
        let was_first = begins;
        begins = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
        match was_first {
            true => c.to_uppercase().try_for_each(push),
            false => c.to_lowercase().try_for_each(push),
        }
    });
    Ok(Value::Text(titled?))
}

fn truncate(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [length, killwords, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let text = print::to_text(run.meter, &value)?;
    let length = length.map_or(Ok(255), |length| whole(&length, "length of truncate"))?;
    let end = end.map_or(Ok(Text::template("...")), |end| print::to_text(run.meter, &end))?;
    let leeway = leeway.filter(|leeway| !matches!(leeway, Value::None));
    let leeway = leeway.map_or(Ok(5), |leeway| whole(&leeway, "leeway of truncate"))?;
    run.meter.scan(8 * (text.len() + end.len()))?;
    let end_chars = end.as_str().chars().count() as i128;
    if length < end_chars || leeway < 0 {
        return fail("truncate expects a length of at least its end's");
    }
    if text.as_str().chars().count() as i128 <= length.saturating_add(leeway) {
        return Ok(Value::Text(text));
    }
    let kept = Some(Value::Int(length - end_chars));
    let cut = operators::slice(run.meter, &Value::Text(text.clone()), [None, kept, None])?;
    let mut kept = cut.as_text().map_or(0, Text::len);
    if !killwords.is_some_and(|killwords| killwords.is_true()) {
        kept = text.as_str()[..kept].rfind(' ').unwrap_or(kept);
    }
    let cut = Value::Text(text.slice(run.meter, 0..kept)?);
    operators::math(run.meter, Math::Add, &cut, &Value::Text(end))
}

fn urlencode(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [] = args.bind("urlencode", [])?;
    let mut made = TextBuilder::new(run.meter);
    let pairs = match &value {
        Value::Dict(dict) => sequences::pairs(run.meter, dict)?,
        Value::List(_) => value.items(run.meter)?,
        other => {
            quote(&print::to_text(run.meter, other)?, false, &mut made)?;
            return Ok(Value::Text(made.finish()?));
        }
    };
    for (at, pair) in pairs.into_iter().enumerate() {
        let mut pair = pair.items(run.meter)?.into_iter();
        let (Some(key), Some(item)) = (pair.next(), pair.next()) else {
            return fail("urlencode needs pairs");
        };
        made.push_own(if at > 0 { "&" } else { "" })?;
        quote(&print::to_text(run.meter, &key)?, true, &mut made)?;
        made.push_own("=")?;
        quote(&print::to_text(run.meter, &item)?, true, &mut made)?;
    }
    Ok(Value::Text(made.finish()?))
}

fn quote(text: &Text, in_query: bool, made: &mut TextBuilder) -> Outcome<()> {
    made.meter().steps(text.len() as u64)?;
    for (c, from_request) in text.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' | '-' | '~' => made.push_char(c, from_request)?,
            '/' if !in_query => made.push_char(c, from_request)?,
            ' ' if in_query => made.push_char('+', from_request)?,
            _ => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    made.push(&format!("%{byte:02X}"), from_request)?;
                }
            }
        }
    }
    Ok(())
}

fn wordcount(run: &mut Run<'_>, value: Value, args: CallArgs) -> Outcome<Value> {
    let [] = args.bind("wordcount", [])?;
    let text = print::to_text(run.meter, &value)?;
    run.meter.scan(16 * text.len())?;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words = text.as_str().split(|c| !is_word(c)).filter(|word| !word.is_empty());
    Ok(Value::Int(words.count() as i128))
}
