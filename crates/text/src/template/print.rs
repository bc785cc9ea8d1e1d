//! Values as text: `{{ value }}` writes Python's `str(value)`.

use super::{
    json::python_float,
    meter::Outcome,
    text::{Text, TextBuilder},
    value::{ListKind, Object, Value},
};

/// Python's `str(value)`.
pub(super) fn print(value: &Value, out: &mut TextBuilder) -> Outcome<()> {
    match value {
        Value::Text(text) => out.push_text(text),
        Value::Undefined(_) => Ok(()),
        other => repr(other, out),
    }
}

/// Python's `str(value)` as a string.
pub(super) fn to_text(meter: &super::meter::Meter, value: &Value) -> Outcome<Text> {
    if let Value::Text(text) = value {
        return Ok(text.clone());
    }
    let mut out = TextBuilder::new(meter);
    print(value, &mut out)?;
    out.finish()
}

/// Python's `repr(value)`.
pub(super) fn repr(value: &Value, out: &mut TextBuilder) -> Outcome<()> {
    out.meter().steps(1)?;
    match value {
        Value::Undefined(_) => out.push_own("Undefined"),
        Value::None => out.push_own("None"),
        Value::Bool(true) => out.push_own("True"),
        Value::Bool(false) => out.push_own("False"),
        Value::Int(number) => out.push_own(&number.to_string()),
        Value::Float(number) => out.push_own(&float(*number)),
        Value::Text(text) => repr_text(text, out),
        Value::List(list) => {
            let (open, close) = match list.kind {
                ListKind::List | ListKind::Generator => ("[", "]"),
                ListKind::Tuple if list.items.len() == 1 => ("(", ",)"),
                ListKind::Tuple | ListKind::Group => ("(", ")"),
                ListKind::View(name) => {
                    out.push_own(name)?;
                    ("([", "])")
                }
            };
            out.push_own(open)?;
            for (at, item) in list.items.iter().enumerate() {
                if at > 0 {
                    out.push_own(", ")?;
                }
                repr(item, out)?;
            }
            out.push_own(close)
        }
        Value::Dict(dict) => {
            out.push_own("{")?;
            for (at, (key, item)) in dict.entries.iter().enumerate() {
                if at > 0 {
                    out.push_own(", ")?;
                }
                repr(key, out)?;
                out.push_own(": ")?;
                repr(item, out)?;
            }
            out.push_own("}")
        }
        Value::Range(span) => {
            let step = if span.step == 1 { String::new() } else { format!(", {}", span.step) };
            out.push_own(&format!("range({}, {}{step})", span.start, span.stop))
        }
        Value::Object(object) => out.push_own(match &**object {
            Object::Namespace(_) => "<Namespace>",
            Object::Macro { .. } => "<Macro>",
            Object::Loop(_) => "<LoopContext>",
            Object::Function(_) | Object::Method(..) => "<function>",
            Object::Joiner { .. } => "<Joiner>",
            Object::Cycler { .. } => "<Cycler>",
        }),
    }
}

/// Float as Python's `repr` writes it.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        "nan".into()
    } else if number.is_infinite() {
        if number > 0.0 { "inf" } else { "-inf" }.into()
    } else {
        python_float(number)
    }
}

fn repr_text(text: &Text, out: &mut TextBuilder) -> Outcome<()> {
    let quote = if text.as_str().contains('\'') && !text.as_str().contains('"') { "\"" } else { "'" };
    out.push_own(quote)?;
    for (run, from_request) in text.runs() {
        let mut plain = 0;
        for (at, c) in run.char_indices() {
            let escape = match c {
                '\\' => "\\\\".to_owned(),
                '\'' if quote == "'" => "\\'".to_owned(),
                '\n' => "\\n".to_owned(),
                '\r' => "\\r".to_owned(),
                '\t' => "\\t".to_owned(),
                ' '..='~' => continue,
                c if is_printable(c) => continue,
                c if c <= '\u{ff}' => format!("\\x{:02x}", c as u32),
                c if c <= '\u{ffff}' => format!("\\u{:04x}", c as u32),
                c => format!("\\U{:08x}", c as u32),
            };
            out.meter().steps(4)?;
            out.push(&run[plain..at], from_request)?;
            out.push(&escape, from_request)?;
            plain = at + c.len_utf8();
        }
        out.push(&run[plain..], from_request)?;
    }
    out.push_own(quote)
}

/// Whether Python counts a character as printable, or it is a space.
pub(super) fn is_printable_or_space(c: char) -> bool {
    c == ' ' || is_printable(c)
}

/// Whether Python's `repr` writes a character as it is; unassigned characters count as printable.
fn is_printable(c: char) -> bool {
    let invisible = c.is_control()
        || c.is_whitespace()
        || matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}')
        || matches!(c, '\u{e0000}'..='\u{e0fff}' | '\u{f0000}'..='\u{10ffff}');
    !invisible
}
