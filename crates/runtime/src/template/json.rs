//! `tojson` as transformers defines it for chat templates: Python's `json.dumps` without escaping for HTML. Models
//! were trained on its very spaces.

use std::fmt::Write;

use crate::limits::TEMPLATE_OUTPUT_BYTES_MAX;
use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, Rest, ValueKind},
};

/// Values inside values.
const DEPTH_MAX: usize = 128;

/// How Python would lay the text out.
struct Layout {
    ensure_ascii: bool,
    /// One level's indentation; everything on one line without it.
    indent: Option<String>,
    between_items: String,
    after_key: String,
    sort_keys: bool,
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let argument = |at: usize, name: &str| match args.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let given = |value: Option<Value>| value.filter(|value| !value.is_none() && !value.is_undefined());
    let ensure_ascii = given(argument(0, "ensure_ascii")?).is_some_and(|value| value.is_true());
    let indent = given(argument(1, "indent")?)
        .map(|value| match (value.as_usize(), value.as_str()) {
            (Some(spaces), _) if spaces <= 64 => Ok(" ".repeat(spaces)),
            (_, Some(text)) => Ok(text.to_owned()),
            _ => {
                Err(Error::new(ErrorKind::InvalidOperation, "indent of tojson must be 0 to 64, or a string"))
            }
        })
        .transpose()?;
    let mut layout = Layout {
        ensure_ascii,
        between_items: if indent.is_some() { "," } else { ", " }.to_owned(),
        after_key: ": ".to_owned(),
        indent,
        sort_keys: given(argument(3, "sort_keys")?).is_some_and(|value| value.is_true()),
    };
    if let Some(separators) = given(argument(2, "separators")?) {
        layout.between_items = separators.get_item_by_index(0)?.to_string();
        layout.after_key = separators.get_item_by_index(1)?.to_string();
    }
    kwargs.assert_all_used()?;
    let mut out = String::new();
    layout.write(value, 0, &mut out)?;
    Ok(out)
}

impl Layout {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(ErrorKind::BadSerialization, "the value is too deeply nested for tojson"));
        }
        // Indentation makes a text hundreds of times as long as the value that was sent.
        if out.len() > TEMPLATE_OUTPUT_BYTES_MAX {
            let reason = format!("tojson makes a text of over {TEMPLATE_OUTPUT_BYTES_MAX} bytes");
            return Err(Error::new(ErrorKind::BadSerialization, reason));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(value, out)?,
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items('[', ']', &items, depth, out, |item, out| self.write(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((key_text(&key)?, value.get_item(&key)?));
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_items('{', '}', &entries, depth, out, |(key, item), out| {
                    self.write_string(key, out);
                    out.push_str(&self.after_key);
                    self.write(item, depth + 1, out)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("{kind} cannot be written as JSON"),
                ));
            }
        }
        Ok(())
    }

    fn write_items<T>(
        &self,
        open: char,
        close: char,
        items: &[T],
        depth: usize,
        out: &mut String,
        write: impl Fn(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.between_items);
            }
            self.write_break(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            self.write_break(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn write_break(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => write_escape(c, out),
                c if self.ensure_ascii && !(' '..='~').contains(&c) => write_escape(c, out),
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// `\u` and four digits, for each UTF-16 unit.
fn write_escape(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        write!(out, "\\u{unit:04x}").expect("a String can always be written to because it grows");
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.to_string()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => {
            let mut text = String::new();
            write_number(key, &mut text)?;
            Ok(text)
        }
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("{kind} cannot be a key in JSON"))),
    }
}

fn write_number(value: &Value, out: &mut String) -> Result<(), Error> {
    if value.is_integer() {
        out.push_str(&value.to_string());
    } else {
        out.push_str(&python_float(f64::try_from(value.clone())?));
    }
    Ok(())
}

/// A float as Python's `repr` writes it: the shortest digits that read back the same, with an exponent outside
/// 1e-4 to 1e16.
fn python_float(x: f64) -> String {
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
