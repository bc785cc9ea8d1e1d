//! Splitting of texts: `str.split`, `rsplit`, `partition`, `rpartition` and the lines of `splitlines`.

use std::ops::Range;

use super::{CallArgs, Meter, Outcome, Text, Value, fail, is_space, needed_text, optional_text, whole};

/// Ranges of `text.split(sep, maxsplit)` and `text.rsplit(sep, maxsplit)`.
pub(super) fn at_separators(
    meter: &Meter,
    text: &Text,
    method: &str,
    args: CallArgs,
) -> Outcome<Vec<Range<usize>>> {
    let [separator, limit] = args.bind(method, ["sep", "maxsplit"])?;
    let limit = limit.map_or(Ok(-1), |limit| whole(&limit, "maxsplit"))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let separator = optional_text(separator)?;
    let all = text.as_str();
    meter.scan(8 * all.len() + 4 * separator.as_ref().map_or(0, Text::len))?;
    let from_end = method == "rsplit";
    match separator {
        Some(separator) if separator.len() == 0 => fail("empty separator"),
        Some(separator) if from_end => from_last_separator(meter, all, &separator, limit),
        Some(separator) => from_first_separator(meter, all, &separator, limit),
        None if from_end => from_last_word(meter, all, limit),
        None => from_first_word(meter, all, limit),
    }
}

fn from_last_separator(
    meter: &Meter,
    all: &str,
    separator: &Text,
    limit: usize,
) -> Outcome<Vec<Range<usize>>> {
    let mut ranges = Vec::new();
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
    Ok(ranges)
}

fn from_first_separator(
    meter: &Meter,
    all: &str,
    separator: &Text,
    limit: usize,
) -> Outcome<Vec<Range<usize>>> {
    let mut ranges = Vec::new();
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
    Ok(ranges)
}

fn from_last_word(meter: &Meter, all: &str, limit: usize) -> Outcome<Vec<Range<usize>>> {
    let mut ranges = Vec::new();
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
    Ok(ranges)
}

fn from_first_word(meter: &Meter, all: &str, limit: usize) -> Outcome<Vec<Range<usize>>> {
    let mut ranges = Vec::new();
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
    Ok(ranges)
}

/// `str.partition` and `rpartition`: the text before, in and after the separator.
pub(super) fn partition(meter: &Meter, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
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

/// Line, and its end including the line break.
pub(in crate::template) struct Line {
    pub(in crate::template) content: Range<usize>,
    pub(in crate::template) whole_end: usize,
}

/// Whether `str.splitlines` treats it as a line break.
pub(in crate::template) fn is_line_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Lines as of `str.splitlines`.
pub(in crate::template) fn lines(text: &str) -> impl Iterator<Item = Line> {
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
