//! `tojson` as transformers defines it for chat templates: Python's `json.dumps` without HTML escapes. Spaces must
//! match exactly, because models were trained on them.

use super::{
    eval::CallArgs,
    meter::{Meter, Outcome, fail},
    print,
    text::{Text, TextBuilder},
    value::{ListKind, Value},
};
use crate::limits::TEMPLATE_OUTPUT_BYTES_MAX;

/// Python's formatting options.
struct Layout {
    ensure_ascii: bool,
    /// Indentation of one level; without it everything is on a single line.
    indent: Option<Text>,
    between_items: Text,
    after_key: Text,
    sort_keys: bool,
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(meter: &Meter, value: &Value, args: CallArgs) -> Outcome<Text> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let given = args
        .bind("tojson", names)?
        .map(|value| value.filter(|value| !matches!(value, Value::None | Value::Undefined(_))));
    let [ensure_ascii, indent, separators, sort_keys] = given;
    let is = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let indent = match indent {
        None => None,
        Some(Value::Text(text)) => Some(text),
        Some(other) => match other.as_int() {
            Some(spaces @ 0..=64) => Some(Text::template(" ".repeat(spaces as usize))),
            _ => return fail("indent of tojson must be 0 to 64, or a string"),
        },
    };
    let (mut between_items, mut after_key) =
        (Text::template(if indent.is_some() { "," } else { ", " }), Text::template(": "));
    if let Some(separators) = separators {
        match separators.items(meter)?.as_slice() {
            [items, keys] => {
                between_items = print::to_text(meter, items)?;
                after_key = print::to_text(meter, keys)?;
            }
            _ => return fail("separators of tojson are two strings"),
        }
    }
    let (ensure_ascii, sort_keys) = (is(ensure_ascii), is(sort_keys));
    let layout = Layout { ensure_ascii, indent, between_items, after_key, sort_keys };
    let mut out = TextBuilder::new(meter);
    layout.write(value, 0, &mut out)?;
    out.finish()
}

impl Layout {
    fn write(&self, value: &Value, depth: usize, out: &mut TextBuilder) -> Outcome<()> {
        out.meter().steps(1)?;
        // Indentation can make the text hundreds of times as long as the value.
        if out.len() > TEMPLATE_OUTPUT_BYTES_MAX {
            return fail(format!("tojson makes a text of over {TEMPLATE_OUTPUT_BYTES_MAX} bytes"));
        }
        match value {
            Value::Text(text) => self.write_string(text, out),
            Value::List(list) if matches!(list.kind, ListKind::List | ListKind::Tuple | ListKind::Group) => {
                self.write_items(["[", "]"], &list.items, depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })
            }
            Value::Dict(dict) => {
                let meter = out.meter();
                meter.bytes(dict.entries.len().saturating_mul(size_of::<(Text, &Value)>()))?;
                let mut entries = Vec::with_capacity(dict.entries.len());
                for (key, item) in &dict.entries {
                    entries.push((key_text(meter, key)?, item));
                }
                if self.sort_keys {
                    let comparisons = 1 + (usize::BITS - entries.len().leading_zeros()) as usize;
                    for (key, _) in &entries {
                        meter.scan(comparisons * (64 + key.len()))?;
                    }
                    entries.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
                }
                self.write_items(["{", "}"], &entries, depth, out, |(key, item), out| {
                    self.write_string(key, out)?;
                    out.push_text(&self.after_key)?;
                    self.write(item, depth + 1, out)
                })
            }
            other => match scalar(other) {
                Some(text) => out.push_own(&text),
                None => fail(format!("Object of type {} is not JSON serializable", other.type_name())),
            },
        }
    }

    fn write_items<T>(
        &self,
        [open, close]: [&str; 2],
        items: &[T],
        depth: usize,
        out: &mut TextBuilder,
        write: impl Fn(&T, &mut TextBuilder) -> Outcome<()>,
    ) -> Outcome<()> {
        out.push_own(open)?;
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_text(&self.between_items)?;
            }
            self.write_break(depth + 1, out)?;
            write(item, out)?;
        }
        if !items.is_empty() {
            self.write_break(depth, out)?;
        }
        out.push_own(close)
    }

    fn write_break(&self, depth: usize, out: &mut TextBuilder) -> Outcome<()> {
        match &self.indent {
            Some(indent) => {
                out.push_own("\n")?;
                out.push_times(indent, depth)
            }
            None => Ok(()),
        }
    }

    fn write_string(&self, text: &Text, out: &mut TextBuilder) -> Outcome<()> {
        out.push_own("\"")?;
        out.meter().scan(4 * text.len())?;
        for (run, from_request) in text.runs() {
            let mut plain = 0;
            for (at, c) in run.char_indices() {
                let escape = match c {
                    '"' => "\\\"",
                    '\\' => "\\\\",
                    '\n' => "\\n",
                    '\r' => "\\r",
                    '\t' => "\\t",
                    '\u{8}' => "\\b",
                    '\u{c}' => "\\f",
                    '\0'..='\u{1f}' => &escaped(c),
                    c if self.ensure_ascii && !(' '..='~').contains(&c) => &escaped(c),
                    _ => continue,
                };
                out.meter().steps(4)?;
                out.push(&run[plain..at], from_request)?;
                out.push(escape, from_request)?;
                plain = at + c.len_utf8();
            }
            out.push(&run[plain..], from_request)?;
        }
        out.push_own("\"")
    }
}

/// `\u` and four digits for each UTF-16 unit.
fn escaped(c: char) -> String {
    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// Text of a value that is neither a string nor a container.
fn scalar(value: &Value) -> Option<String> {
    Some(match value {
        Value::None => "null".into(),
        Value::Bool(true) => "true".into(),
        Value::Bool(false) => "false".into(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => python_float(*number),
        _ => return None,
    })
}

fn key_text(meter: &Meter, key: &Value) -> Outcome<Text> {
    match (key, scalar(key)) {
        (Value::Text(text), _) => Ok(text.clone()),
        (_, Some(text)) => {
            meter.bytes(text.len())?;
            Ok(Text::template(text))
        }
        _ => fail(format!("keys must be str, int, float, bool or None, not {}", key.type_name())),
    }
}

/// Float as Python's `repr` writes it: the shortest digits that read back the same, with an exponent outside 1e-4
/// to 1e16.
pub(super) fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{x:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_pythons() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123456789012345.6, "123456789012345.6"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e300, "1.25e+300"),
        ];
        for (x, text) in cases {
            assert_eq!(python_float(x), text);
        }
    }
}
