//! Python's string methods, which keep track of each character's origin.

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
        "swapcase" => {
            let swapped = text.map(meter, |c, push| match c.is_uppercase() {
                true => c.to_lowercase().try_for_each(push),
                false => c.to_uppercase().try_for_each(push),
            });
            swapped.map(Value::Text)
        }
        "title" | "capitalize" => {
            let mut begins = true;
            let changed = text.map(meter, |c, push| {
                let was_first = begins;
                begins = method == "title" && !c.is_alphabetic();
                if was_first {
                    c.to_uppercase().try_for_each(push)
                } else {
                    c.to_lowercase().try_for_each(push)
                }
            });
            changed.map(Value::Text)
        }
        "split" | "rsplit" => {
            let [separator, limit] = args.bind(method, ["sep", "maxsplit"])?;
            let limit = limit.map_or(Ok(-1), |limit| whole(&limit, "maxsplit"))?;
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let separator = optional_text(separator)?;
            let ranges = split(meter, text, separator.as_ref(), limit, method == "rsplit")?;
            parts(meter, text, ranges)
        }
        "splitlines" => {
            let [keep] = args.bind(method, ["keepends"])?;
            let keep = keep.is_some_and(|keep| keep.is_true());
            let range = |line: Line| if keep { line.content.start..line.whole_end } else { line.content };
            parts(meter, text, lines(text.as_str()).map(range))
        }
        "partition" | "rpartition" => {
            let [separator] = args.bind(method, ["sep"])?;
            let separator = needed_text(separator, method)?;
            if separator.len() == 0 {
                return fail("empty separator");
            }
            meter.scan(4 * text.len() + 4 * separator.len())?;
            let (is_last, len) = (method == "rpartition", text.len());
            let found = match is_last {
                _ if separator.len() > len => None,
                false => text.as_str().find(separator.as_str()),
                true => text.as_str().rfind(separator.as_str()),
            };
            let [a, b, c] = match found {
                Some(at) => [0..at, at..at + separator.len(), at + separator.len()..len],
                None if is_last => [0..0, 0..0, 0..len],
                None => [0..len, len..len, len..len],
            };
            let part = |range| text.slice(meter, range).map(Value::Text);
            Value::tuple(vec![part(a)?, part(b)?, part(c)?])
        }
        "startswith" | "endswith" => {
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
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(method, ["affix"])?;
            let affix = needed_text(affix, method)?;
            let all = text.as_str();
            let range = match method {
                "removeprefix" => {
                    all.strip_prefix(affix.as_str()).map(|rest| all.len() - rest.len()..all.len())
                }
                _ => all.strip_suffix(affix.as_str()).map(|rest| 0..rest.len()),
            };
            text.slice(meter, range.unwrap_or(0..all.len())).map(Value::Text)
        }
        "replace" => {
            let [old, new, count] = args.bind(method, ["old", "new", "count"])?;
            let (old, new) = (needed_text(old, method)?, needed_text(new, method)?);
            let count = count.map_or(Ok(-1), |count| whole(&count, "count of replace"))?;
            replace(meter, text, &old, &new, count).map(Value::Text)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
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
        "join" => {
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
        "center" | "ljust" | "rjust" | "zfill" => {
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
        "expandtabs" => {
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
        "format" => format::braces(run, text, args).map(Value::Text),
        "format_map" => {
            let [mapping] = args.bind(method, ["mapping"])?;
            let Some(Value::Dict(dict)) = mapping else { return fail("format_map needs a dictionary") };
            meter.values(dict.entries.len())?;
            let named = dict.entries.iter();
            let named =
                named.filter_map(|(key, value)| key.as_text().map(|key| (key.shared(), value.clone())));
            let args = CallArgs { positional: Vec::new(), named: named.collect() };
            format::braces(run, text, args).map(Value::Text)
        }
        "encode" => fail("bytes are not for chat templates"),
        _ => {
            let [] = args.bind(method, [])?;
            meter.scan(8 * text.len())?;
            Ok(Value::Bool(holds(text.as_str(), method)))
        }
    }
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

fn split(
    meter: &Meter,
    text: &Text,
    separator: Option<&Text>,
    limit: usize,
    from_end: bool,
) -> Outcome<Vec<Range<usize>>> {
    let all = text.as_str();
    meter.scan(8 * all.len() + 4 * separator.map_or(0, Text::len))?;
    let mut ranges = Vec::new();
    match separator {
        Some(separator) if separator.len() == 0 => return fail("empty separator"),
        Some(separator) if from_end => {
            let mut end = all.len();
            while ranges.len() < limit {
                // A search starts by reading the whole separator.
                if separator.len() > end {
                    break;
                }
                meter.scan(4 * separator.len())?;
                let Some(at) = all[..end].rfind(separator.as_str()) else { break };
                meter.bytes(size_of::<Range<usize>>())?;
                ranges.push(at + separator.len()..end);
                end = at;
            }
            ranges.push(0..end);
            ranges.reverse();
        }
        Some(separator) => {
            let mut start = 0;
            while ranges.len() < limit {
                if separator.len() > all.len() - start {
                    break;
                }
                meter.scan(4 * separator.len())?;
                let Some(at) = all[start..].find(separator.as_str()) else { break };
                meter.bytes(size_of::<Range<usize>>())?;
                ranges.push(start..start + at);
                start += at + separator.len();
            }
            ranges.push(start..all.len());
        }
        None if from_end => {
            let mut end = all.trim_end_matches(is_space).len();
            while end > 0 {
                let start = match ranges.len() < limit {
                    true => all[..end]
                        .rfind(is_space)
                        .map_or(0, |at| at + all[at..].chars().next().map_or(1, char::len_utf8)),
                    false => 0,
                };
                meter.bytes(size_of::<Range<usize>>())?;
                ranges.push(start..end);
                if ranges.len() > limit {
                    break;
                }
                end = all[..start].trim_end_matches(is_space).len();
            }
            ranges.reverse();
        }
        None => {
            let mut start = all.len() - all.trim_start_matches(is_space).len();
            while start < all.len() {
                let end = match ranges.len() < limit {
                    true => all[start..].find(is_space).map_or(all.len(), |at| start + at),
                    false => all.len(),
                };
                meter.bytes(size_of::<Range<usize>>())?;
                ranges.push(start..end);
                if ranges.len() > limit {
                    break;
                }
                start = all.len() - all[end..].trim_start_matches(is_space).len();
            }
        }
    }
    Ok(ranges)
}

/// Line, and its end including the line break.
pub(super) struct Line {
    pub(super) content: Range<usize>,
    pub(super) whole_end: usize,
}

/// Whether `str.splitlines` treats it as a line break.
pub(super) fn is_line_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Lines as of `str.splitlines`.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Line> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start >= text.len() {
            return None;
        }
        let begin = start;
        let end = text[begin..].find(is_line_break).map_or(text.len(), |at| begin + at);
        start = end
            + match text[end..].starts_with("\r\n") {
                true => 2,
                false => text[end..].chars().next().map_or(0, char::len_utf8),
            };
        Some(Line { content: begin..end, whole_end: start })
    })
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
