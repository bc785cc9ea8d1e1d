//! Python's string methods, which keep track of each character's origin.

mod search;
mod split;

pub(super) use split::{Line, is_line_break, lines};

use std::ops::Range;

use super::{
    eval::CallArgs,
    filters::whole,
    format,
    lexer::is_space,
    meter::{Meter, Outcome, fail},
    operators, print,
    run::Run,
    text::{Text, TextBuilder},
    value::{Items, ListKind, Value},
};

/// Whether strings have the method.
pub(super) fn has(name: &str) -> bool {
    const NAMES: [&str; 44] = [
        "capitalize",
        "casefold",
        "center",
        "count",
        "encode",
        "endswith",
        "expandtabs",
        "find",
        "format",
        "format_map",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "ljust",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rjust",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
    ];
    NAMES.contains(&name) || name == "zfill"
}

/// `text.method(…)`, for strings with or without markup.
#[inline(never)]
pub(super) fn call(run: &mut Run<'_>, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
    let meter = run.meter;
    meter.scan(text.len())?;
    match method {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(method, ["chars"])?;
            strip(meter, text, optional_text(chars)?.as_ref(), method).map(Value::Text)
        }
        "upper" => text.map(meter, |c, push| c.to_uppercase().try_for_each(push)).map(Value::Text),
        "lower" | "casefold" => lower(meter, text).map(Value::Text),
        "swapcase" => swap_case(meter, text).map(Value::Text),
        "title" | "capitalize" => capitalize(meter, text, method).map(Value::Text),
        "split" | "rsplit" => {
            let ranges = split::at_separators(meter, text, method, args)?;
            parts(meter, text, ranges)
        }
        "splitlines" => {
            let [keep] = args.bind(method, ["keepends"])?;
            let keep = keep.is_some_and(|keep| keep.is_true());
            let range = |line: Line| if keep { line.content.start..line.whole_end } else { line.content };
            parts(meter, text, lines(text.as_str()).map(range))
        }
        "partition" | "rpartition" => split::partition(meter, text, method, args),
        "startswith" | "endswith" => search::has_affix(meter, text, method, args),
        "removeprefix" | "removesuffix" => search::without_affix(meter, text, method, args),
        "replace" => {
            let [old, new, count] = args.bind(method, ["old", "new", "count"])?;
            let (old, new) = (needed_text(old, method)?, needed_text(new, method)?);
            let count = count.map_or(Ok(-1), |count| whole(&count, "count of replace"))?;
            replace(meter, text, &old, &new, count).map(Value::Text)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search::find(meter, text, method, args),
        "join" => join(meter, text, method, args),
        "center" | "ljust" | "rjust" | "zfill" => pad(meter, text, method, args),
        "expandtabs" => expand_tabs(meter, text, method, args),
        "format_map" => format_map(run, text, method, args),
        "format" => format::braces(run, text, args).map(Value::Text),
        "encode" => fail("bytes are not for chat templates"),
        _ => {
            let [] = args.bind(method, [])?;
            meter.scan(8 * text.len())?;
            Ok(Value::Bool(holds(text.as_str(), method)))
        }
    }
}

/// `str.swapcase`.
fn swap_case(meter: &Meter, text: &Text) -> Outcome<Text> {
    text.map(meter, |c, push| match c.is_uppercase() {
        true => c.to_lowercase().try_for_each(push),
        false => c.to_uppercase().try_for_each(push),
    })
}

/// `str.title` and `str.capitalize`.
fn capitalize(meter: &Meter, text: &Text, method: &str) -> Outcome<Text> {
    let mut begins = true;
    text.map(meter, |c, push| {
        let was_first = begins;
        begins = method == "title" && !c.is_alphabetic();
        if was_first { c.to_uppercase().try_for_each(push) } else { c.to_lowercase().try_for_each(push) }
    })
}

/// `str.join`.
fn join(meter: &Meter, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
    let [items] = args.bind(method, ["iterable"])?;
    let Some(items) = items else { return fail("join needs a list") };
    items.defined()?;
    let items = Items::of(meter, &items)?;
    let mut made = TextBuilder::new(meter);
    for at in 0..items.len() {
        meter.steps(1)?;
        if at > 0 {
            made.push_text(text)?;
        }
        match items.get(at) {
            Some(Value::Text(item)) => made.push_text(&item)?,
            other => {
                let kind = other.map_or("NoneType", |other| other.type_name());
                return fail(format!("sequence item {at}: expected str instance, {kind} found"));
            }
        }
    }
    Ok(Value::Text(made.finish()?))
}

/// `str.center`, `ljust`, `rjust` and `zfill`.
fn pad(meter: &Meter, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
    let [width, fill] = args.bind(method, ["width", "fillchar"])?;
    let width = width.map_or_else(|| fail("needs a width"), |width| whole(&width, "width"))?;
    let fill = match optional_text(fill)? {
        Some(fill) => fill,
        None => Text::template(if method == "zfill" { "0" } else { " " }),
    };
    if fill.as_str().chars().count() != 1 {
        return fail("the fill character must be exactly one character long");
    }
    justify(meter, text, width, &fill, method).map(Value::Text)
}

/// `str.expandtabs`.
fn expand_tabs(meter: &Meter, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
    let [size] = args.bind(method, ["tabsize"])?;
    let size = size.map_or(Ok(8), |size| whole(&size, "tabsize"))?.clamp(0, 1 << 40) as usize;
    let (mut made, mut column) = (TextBuilder::new(meter), 0);
    meter.steps(text.len() as u64)?;
    for (c, from_request) in text.chars() {
        match c {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                made.push_times(&Text::of(" ", from_request), spaces)?;
                column += spaces;
            }
            other => {
                column = if matches!(other, '\n' | '\r') { 0 } else { column + 1 };
                made.push_char(other, from_request)?;
            }
        }
    }
    Ok(Value::Text(made.finish()?))
}

/// `str.format_map`.
fn format_map(run: &mut Run<'_>, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
    let [mapping] = args.bind(method, ["mapping"])?;
    let Some(Value::Dict(dict)) = mapping else { return fail("format_map needs a dictionary") };
    run.meter.values(dict.entries.len())?;
    let named = dict.entries.iter();
    let named = named.filter_map(|(key, value)| key.as_text().map(|key| (key.shared(), value.clone())));
    let args = CallArgs { positional: Vec::new(), named: named.collect() };
    format::braces(run, text, args).map(Value::Text)
}

fn optional_text(value: Option<Value>) -> Outcome<Option<Text>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text)),
        Some(other) => {
            other.defined()?;
            fail(format!("must be str or None, not {}", other.type_name()))
        }
    }
}

fn needed_text(value: Option<Value>, of: &str) -> Outcome<Text> {
    match optional_text(value)? {
        Some(text) => Ok(text),
        None => fail(format!("{of} needs a string")),
    }
}

/// `text[start:end]`.
fn between(meter: &Meter, text: &Text, start: Option<Value>, end: Option<Value>) -> Outcome<Text> {
    if start.is_none() && end.is_none() {
        return Ok(text.clone());
    }
    match operators::slice(meter, &Value::Text(text.clone()), [start, end, None])? {
        Value::Text(text) => Ok(text),
        _ => Ok(text.clone()),
    }
}

fn parts(meter: &Meter, text: &Text, ranges: impl IntoIterator<Item = Range<usize>>) -> Outcome<Value> {
    let part = |range| {
        meter.values(1)?;
        text.slice(meter, range).map(Value::Text)
    };
    Value::list(ranges.into_iter().map(part).collect::<Outcome<_>>()?)
}

/// Text in lower case.
pub(super) fn lower(meter: &Meter, text: &Text) -> Outcome<Text> {
    if text.as_str().contains('Σ') {
        // Its lower case depends on its neighbours.
        meter.bytes(text.len() * 2)?;
        return Ok(Text::of(text.as_str().to_lowercase(), text.has_request()));
    }
    text.map(meter, |c, push| c.to_lowercase().try_for_each(push))
}

fn strip(meter: &Meter, text: &Text, chars: Option<&Text>, method: &str) -> Outcome<Text> {
    let of = |c: char| match chars {
        None => is_space(c),
        Some(chars) => chars.as_str().contains(c),
    };
    meter.steps(chars.map_or(0, |chars| (chars.len() as u64 / 8).saturating_mul(text.len() as u64)))?;
    let all = text.as_str();
    let end = if method == "lstrip" { all.len() } else { all.trim_end_matches(of).len() };
    let kept = &all[..end];
    let start = if method == "rstrip" { 0 } else { end - kept.trim_start_matches(of).len() };
    text.slice(meter, start..end)
}

/// `str.replace`; a negative count means all.
pub(super) fn replace(meter: &Meter, text: &Text, old: &Text, new: &Text, count: i128) -> Outcome<Text> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    meter.scan(4 * text.len() + 4 * old.len())?;
    if old.len() > text.len() {
        return Ok(text.clone());
    }
    let mut made = TextBuilder::new(meter);
    let mut at = 0;
    if old.len() == 0 {
        let ends = text.as_str().char_indices().map(|(at, _)| at).chain([text.len()]);
        for place in ends.take(count) {
            meter.steps(1)?;
            made.push_part(text, at..place)?;
            made.push_text(new)?;
            at = place;
        }
    } else {
        for (place, _) in text.as_str().match_indices(old.as_str()).take(count) {
            meter.steps(1)?;
            made.push_part(text, at..place)?;
            made.push_text(new)?;
            at = place + old.len();
        }
        if at == 0 {
            return Ok(text.clone());
        }
    }
    made.push_part(text, at..text.len())?;
    made.finish()
}

fn justify(meter: &Meter, text: &Text, width: i128, fill: &Text, method: &str) -> Outcome<Text> {
    meter.scan(4 * text.len())?;
    let len = text.as_str().chars().count();
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let missing = width.saturating_sub(len);
    if missing == 0 {
        return Ok(text.clone());
    }
    let signed = method == "zfill" && text.as_str().starts_with(['+', '-']);
    let left = match method {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let mut made = TextBuilder::new(meter);
    let sign = usize::from(signed);
    made.push_part(text, 0..sign)?;
    made.push_times(fill, left)?;
    made.push_part(text, sign..text.len())?;
    made.push_times(fill, missing - left)?;
    made.finish()
}

/// `isupper` and `islower`.
pub(super) fn is_cased(text: &str, upper: bool) -> bool {
    let mut cased = false;
    for c in text.chars() {
        if c.is_uppercase() != upper && (c.is_uppercase() || c.is_lowercase()) {
            return false;
        }
        cased |= c.is_uppercase() || c.is_lowercase();
    }
    cased
}

fn holds(text: &str, method: &str) -> bool {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    match method {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdigit" | "isdecimal" => all(|c| c.is_ascii_digit()),
        "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "isidentifier" => {
            all(|c| c == '_' || c.is_alphanumeric()) && !text.starts_with(|c: char| c.is_numeric())
        }
        "isprintable" => text.chars().all(print::is_printable_or_space),
        "isupper" | "islower" => is_cased(text, method == "isupper"),
        _ => {
            // istitle: upper case starts a word, and lower case continues it.
            let (mut inside, mut cased) = (false, false);
            for c in text.chars() {
                if (c.is_uppercase() && inside) || (c.is_lowercase() && !inside) {
                    return false;
                }
                inside = c.is_uppercase() || c.is_lowercase();
                cased |= inside;
            }
            cased
        }
    }
}

/// Python's `int(text, base)`.
pub(super) fn parse_int(text: &str, base: i128) -> Option<i128> {
    let text = text.trim_matches(is_space);
    // Longer texts are not copied.
    if text.len() > 4096 {
        return None;
    }
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let prefix = match base {
        16 => "0x",
        8 => "0o",
        2 => "0b",
        _ => "",
    };
    let digits = lower.strip_prefix(prefix).unwrap_or(&lower);
    let sound = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    if !sound || digits.starts_with(['+', '-']) || !(2..=36).contains(&base) {
        return None;
    }
    let number = i128::from_str_radix(&digits.replace('_', ""), base as u32).ok()?;
    Some(if negative { -number } else { number })
}

/// Python's `float(text)`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    if text.starts_with('_') || text.ends_with('_') || text.contains("__") || text.len() > 4096 {
        return None;
    }
    text.replace('_', "").parse().ok()
}
