//! `'%s' % values` and `'{}'.format(values)`, formatted as in Python. The template chooses widths and precisions
//! freely, so their output is charged before it is made. A directive that contains text of the request can produce
//! anything, through its fill or its field. So its whole output counts as the request's.

use super::{
    eval::CallArgs,
    meter::{Meter, Outcome, fail},
    print,
    run::Run,
    text::{Text, TextBuilder},
    value::Value,
};

/// Maximum digits after the decimal point.
const PRECISION_MAX: usize = 1000;

/// Format of a value.
#[derive(Clone)]
struct Spec {
    fill: char,
    /// `<`, `>`, `^` or `=`; `None` is the type's default.
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    grouping: Option<char>,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Default for Spec {
    fn default() -> Self {
        Spec {
            fill: ' ',
            align: None,
            sign: None,
            alternate: false,
            grouping: None,
            width: 0,
            precision: None,
            kind: None,
        }
    }
}

/// Directive of `%` formatting: `%(name)flags width.precision kind`.
struct Directive<'a> {
    named: Option<&'a str>,
    spec: Spec,
    kind: char,
    /// Bytes after the `%`.
    len: usize,
}

/// Parses a directive from the text after its `%`. A `*` takes its number from `values_left`.
fn directive<'a>(text: &'a str, values_left: &mut std::slice::Iter<'_, Value>) -> Outcome<Directive<'a>> {
    let mut chars = text.chars().peekable();
    let mut named = None;
    let mut consumed = 0;
    if chars.peek() == Some(&'(') {
        let Some(end) = text.find(')') else { return fail("incomplete format key") };
        named = Some(&text[1..end]);
        consumed = end + 1;
        chars = text[consumed..].chars().peekable();
    }
    let mut spec = Spec::default();
    while let Some(flag) = chars.next_if(|c| matches!(c, '-' | '+' | ' ' | '#' | '0')) {
        consumed += 1;
        match flag {
            '-' => spec.align = Some('<'),
            '+' => spec.sign = Some('+'),
            ' ' if spec.sign.is_none() => spec.sign = Some(' '),
            '#' => spec.alternate = true,
            '0' => spec.fill = '0',
            _ => {}
        }
    }
    let mut number = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>, consumed: &mut usize| {
        if chars.next_if_eq(&'*').is_some() {
            *consumed += 1;
            let width = values_left.next().and_then(Value::as_int);
            return width.map_or_else(
                || fail("* wants int"),
                |width| Ok(Some(usize::try_from(width.max(0)).unwrap_or(usize::MAX))),
            );
        }
        let mut number = None;
        while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
            chars.next();
            *consumed += 1;
            number = Some(number.unwrap_or(0usize).saturating_mul(10).saturating_add(digit as usize));
        }
        Ok(number)
    };
    spec.width = number(&mut chars, &mut consumed)?.unwrap_or(0);
    if chars.next_if_eq(&'.').is_some() {
        consumed += 1;
        spec.precision = Some(number(&mut chars, &mut consumed)?.unwrap_or(0));
    }
    while chars.next_if(|c| matches!(c, 'l' | 'h' | 'L')).is_some() {
        consumed += 1;
    }
    let Some(kind) = chars.next() else { return fail("incomplete format") };
    Ok(Directive { named, spec, kind, len: consumed + kind.len_utf8() })
}

/// `format % values`; `whole` is the operand itself, for named fields.
pub(super) fn percent(meter: &Meter, format: &Text, values: &[Value], whole: &Value) -> Outcome<Text> {
    meter.scan(4 * format.len())?;
    let mut made = TextBuilder::new(meter);
    let mut values_left = values.iter();
    let text = format.as_str();
    let mut at = 0;
    let mut uses_names = false;
    while let Some(found) = text[at..].find('%') {
        made.push_part(format, at..at + found)?;
        let (begin, written) = (at + found, made.len());
        at += found + 1;
        meter.steps(4)?;
        let Directive { named, spec, kind, len } = directive(&text[at..], &mut values_left)?;
        uses_names |= named.is_some();
        at += len;
        if kind == '%' {
            made.push("%", format.has_request_in(begin..at))?;
            continue;
        }
        let value = match (named, whole) {
            (Some(name), Value::Dict(dict)) => match dict.get_str(meter, name)? {
                Some(value) => value.clone(),
                None => return fail("a key of the format is not there"),
            },
            (Some(_), _) => return fail("format requires a mapping"),
            (None, _) => match values_left.next() {
                Some(value) => value.clone(),
                None => return fail("not enough arguments for format string"),
            },
        };
        let (kind, value) = match kind {
            's' if format.is_markup() => ('s', Value::Text(print::to_text(meter, &value)?.escaped(meter)?)),
            'r' | 'a' if format.is_markup() => {
                let mut text = TextBuilder::new(meter);
                print::repr(&value, &mut text)?;
                ('s', Value::Text(text.finish()?.escaped(meter)?))
            }
            kind => (kind, value),
        };
        percent_value(kind, &value, spec, &mut made)?;
        if format.has_request_in(begin..at) {
            made.claim(written)?;
        }
    }
    made.push_part(format, at..text.len())?;
    let is_mapping = matches!(whole, Value::Dict(_));
    if !uses_names && !is_mapping && values_left.next().is_some() {
        return fail("not all arguments converted during string formatting");
    }
    Ok(made.finish()?.marked(format.is_markup()))
}

fn percent_value(kind: char, value: &Value, mut spec: Spec, made: &mut TextBuilder) -> Outcome<()> {
    let meter = made.meter();
    match kind {
        's' | 'r' | 'a' => {
            spec.fill = ' ';
            spec.align = spec.align.or(Some('>'));
            let text = match kind {
                's' => print::to_text(meter, value)?,
                _ => {
                    let mut text = TextBuilder::new(meter);
                    print::repr(value, &mut text)?;
                    text.finish()?
                }
            };
            padded_text(&text, &spec, made)
        }
        'c' => {
            spec.fill = ' ';
            spec.align = spec.align.or(Some('>'));
            padded_text(&character(value)?, &spec, made)
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let number = match value {
                Value::Float(number) if matches!(kind, 'd' | 'i' | 'u') && number.abs() < 1e38 => {
                    *number as i128
                }
                other => match other.as_int() {
                    Some(number) => number,
                    None => {
                        other.defined()?;
                        let found = other.type_name();
                        return fail(format!("%{kind} format: a real number is required, not {found}"));
                    }
                },
            };
            let kind = if matches!(kind, 'i' | 'u') { 'd' } else { kind };
            // A precision is the minimum number of digits.
            let digits = spec.precision.take().unwrap_or(0);
            let (sign, body) = whole_number(number, kind, &spec)?;
            let zeros = digits.saturating_sub(body.len());
            meter.bytes(zeros)?;
            padded_number(&sign, &format!("{}{body}", "0".repeat(zeros)), &spec, made)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let Some(number) = value.as_float() else {
                value.defined()?;
                return fail(format!("must be real number, not {}", value.type_name()));
            };
            let (sign, body) = float_number(number, kind, &spec)?;
            padded_number(&sign, &body, &spec, made)
        }
        other => fail(format!("unsupported format character {other:?}")),
    }
}

/// Character by its number. Counts as the request's, because the number may be.
fn character(value: &Value) -> Outcome<Text> {
    match value {
        Value::Text(text) if text.as_str().chars().count() == 1 => Ok(text.clone()),
        other => {
            let c = other.as_int().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32);
            c.map_or_else(|| fail("%c requires int or char"), |c| Ok(Text::request(c.to_string())))
        }
    }
}

fn precision(spec: &Spec, otherwise: usize) -> Outcome<usize> {
    match spec.precision.unwrap_or(otherwise) {
        precision if precision <= PRECISION_MAX => Ok(precision),
        _ => fail(format!("a precision of over {PRECISION_MAX} digits")),
    }
}

/// Sign and digits of a whole number.
fn whole_number(number: i128, kind: char, spec: &Spec) -> Outcome<(String, String)> {
    let size = number.unsigned_abs();
    let (prefix, digits) = match kind {
        'x' => ("0x", format!("{size:x}")),
        'X' => ("0X", format!("{size:X}")),
        'o' => ("0o", format!("{size:o}")),
        'b' => ("0b", format!("{size:b}")),
        _ => ("", size.to_string()),
    };
    let mut sign = sign_of(number < 0, spec);
    if spec.alternate {
        sign.push_str(prefix);
    }
    let digits = match spec.grouping {
        Some(separator) => grouped(&digits, separator, if prefix.is_empty() { 3 } else { 4 }),
        None => digits,
    };
    Ok((sign, digits))
}

fn sign_of(negative: bool, spec: &Spec) -> String {
    match (negative, spec.sign) {
        (true, _) => "-".to_owned(),
        (false, Some(sign @ ('+' | ' '))) => sign.to_string(),
        _ => String::new(),
    }
}

fn grouped(digits: &str, separator: char, size: usize) -> String {
    let mut made = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(size) {
            made.push(separator);
        }
        made.push(digit);
    }
    made
}

/// Sign and digits of a float.
fn float_number(number: f64, kind: char, spec: &Spec) -> Outcome<(String, String)> {
    let sign = sign_of(number.is_sign_negative() && !number.is_nan(), spec);
    let size = number.abs();
    if !size.is_finite() {
        let word = if size.is_nan() { "nan" } else { "inf" };
        let word = if kind.is_uppercase() { word.to_uppercase() } else { word.to_owned() };
        return Ok((sign, word));
    }
    let body = match kind {
        'f' | 'F' => format!("{size:.*}", precision(spec, 6)?),
        '%' => format!("{:.*}%", precision(spec, 6)?, size * 100.0),
        'e' | 'E' => exponential(size, precision(spec, 6)?),
        _ => {
            let digits = precision(spec, 6)?.max(1);
            let scientific = exponential(size, digits - 1);
            let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
            let plain = |text: &str| match text.contains('.') && !spec.alternate {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text.to_owned(),
            };
            if exponent < -4 || exponent >= digits as i32 {
                let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
                format!("{}e{exponent}", plain(mantissa))
            } else {
                plain(&format!("{size:.*}", (digits as i32 - 1 - exponent).max(0) as usize))
            }
        }
    };
    let body = match spec.grouping {
        Some(separator) => {
            let end = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(body.len());
            format!("{}{}", grouped(&body[..end], separator, 3), &body[end..])
        }
        None => body,
    };
    Ok((sign, if kind.is_uppercase() { body.to_uppercase() } else { body }))
}

fn exponential(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{exponent:0>2}")
}

fn padded_text(text: &Text, spec: &Spec, made: &mut TextBuilder) -> Outcome<()> {
    let meter = made.meter();
    meter.scan(4 * text.len())?;
    let end = match spec.precision {
        Some(precision) => text.as_str().char_indices().nth(precision).map_or(text.len(), |(at, _)| at),
        None => text.len(),
    };
    let len = text.as_str()[..end].chars().count();
    let missing = spec.width.saturating_sub(len);
    let left = match spec.align {
        Some('>') => missing,
        Some('^') => missing / 2,
        _ => 0,
    };
    let fill = Text::template(spec.fill.to_string());
    made.push_times(&fill, left)?;
    made.push_part(text, 0..end)?;
    made.push_times(&fill, missing - left)
}

fn padded_number(sign: &str, body: &str, spec: &Spec, made: &mut TextBuilder) -> Outcome<()> {
    let missing = spec.width.saturating_sub(sign.len() + body.len());
    let align = match spec.align {
        Some(align) => align,
        None if spec.fill == '0' => '=',
        None => '>',
    };
    let fill = match spec.fill {
        // Zeros after a number would change it.
        '0' if align == '<' && spec.grouping.is_none() => Text::template(" "),
        fill => Text::template(fill.to_string()),
    };
    let left = match align {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    if align == '=' {
        made.push_own(sign)?;
        made.push_times(&fill, left)?;
    } else {
        made.push_times(&fill, left)?;
        made.push_own(sign)?;
    }
    made.push_own(body)?;
    made.push_times(&fill, missing - left)
}

/// `format.format(…)`.
pub(super) fn braces(run: &mut Run<'_>, format: &Text, args: CallArgs) -> Outcome<Text> {
    let meter = run.meter;
    meter.scan(4 * format.len())?;
    let text = format.as_str();
    let mut made = TextBuilder::new(meter);
    let (mut at, mut next) = (0, 0);
    while let Some(found) = text[at..].find(['{', '}']) {
        made.push_part(format, at..at + found)?;
        at += found;
        meter.steps(4)?;
        let brace = &text[at..=at];
        if text[at + 1..].starts_with(brace) {
            made.push_part(format, at..at + 1)?;
            at += 2;
            continue;
        }
        if brace == "}" {
            return fail("Single '}' encountered in format string");
        }
        let Some(end) = text[at..].find('}') else { return fail("expected '}' before end of string") };
        let field = &text[at + 1..at + end];
        if field.contains('{') {
            return fail("fields inside of fields of a format string are not supported");
        }
        let (begin, written) = (at, made.len());
        at += end + 1;
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (path, conversion) = match field.split_once('!') {
            Some((path, conversion)) => (path, Some(conversion)),
            None => (field, None),
        };
        let value = field_value(run, path, &args, &mut next)?;
        let value = match conversion {
            None => value,
            Some("s") => Value::Text(print::to_text(meter, &value)?),
            Some("r") => {
                let mut text = TextBuilder::new(meter);
                print::repr(&value, &mut text)?;
                Value::Text(text.finish()?)
            }
            Some(_) => return fail("an unknown conversion in a format string"),
        };
        match &value {
            Value::Text(text) if text.is_markup() && format.is_markup() => made.push_text(text)?,
            _ if format.is_markup() => {
                let mut text = TextBuilder::new(meter);
                brace_value(&value, spec, &mut text)?;
                made.push_text(&text.finish()?.escaped(meter)?)?;
            }
            _ => brace_value(&value, spec, &mut made)?,
        }
        if format.has_request_in(begin..at) {
            made.claim(written)?;
        }
    }
    made.push_part(format, at..text.len())?;
    made.finish()
}

/// `0.name[key]`.
fn field_value(run: &mut Run<'_>, path: &str, args: &CallArgs, next: &mut usize) -> Outcome<Value> {
    let first_end = path.find(['.', '[']).unwrap_or(path.len());
    let first = &path[..first_end];
    let index = if first.is_empty() {
        *next += 1;
        Some(*next - 1)
    } else {
        first.parse().ok()
    };
    run.meter.steps(args.named.len() as u64 * (1 + first.len() as u64 / 64) / 4)?;
    let found = match index {
        Some(index) => args.positional.get(index),
        None => args.named.iter().find(|(name, _)| **name == *first).map(|(_, value)| value),
    };
    let Some(found) = found else { return fail("a format string's field has no value") };
    let mut value = found.clone();
    let mut rest = &path[first_end..];
    while !rest.is_empty() {
        run.meter.steps(1)?;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let name = Text::request(&after[..end]);
            // attributes only, not a dictionary's entries
            value = match &value {
                Value::Dict(_) => return fail("'dict' object has no such attribute"),
                other => run.attribute(other, &name)?,
            };
            rest = &after[end..];
        } else {
            let Some((key, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
                return fail("a format string's field that cannot be read");
            };
            let key = match key.parse() {
                Ok(index) => Value::Int(index),
                Err(_) => Value::Text(Text::request(key)),
            };
            value = run.item(&value, &key)?;
            rest = after;
        }
        value.defined()?;
    }
    Ok(value)
}

fn brace_value(value: &Value, spec: &str, made: &mut TextBuilder) -> Outcome<()> {
    if spec.is_empty() {
        return print::print(value, made);
    }
    let spec = parse_spec(spec)?;
    match (value, value.as_int(), spec.kind) {
        (Value::Text(text), _, None | Some('s')) => padded_text(text, &spec, made),
        (Value::Int(_) | Value::Bool(_), Some(number), None | Some('d' | 'x' | 'X' | 'o' | 'b')) => {
            let (sign, body) = whole_number(number, spec.kind.unwrap_or('d'), &spec)?;
            padded_number(&sign, &body, &spec, made)
        }
        (Value::Int(_) | Value::Bool(_), _, Some('c')) => padded_text(&character(value)?, &spec, made),
        (
            Value::Int(_) | Value::Bool(_) | Value::Float(_),
            _,
            Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%'),
        ) => {
            let number = value.as_float().unwrap_or(f64::NAN);
            let (sign, body) = float_number(number, spec.kind.unwrap_or('g'), &spec)?;
            padded_number(&sign, &body, &spec, made)
        }
        (Value::Float(number), _, None) => {
            let (sign, body) = match spec.precision {
                Some(_) => float_number(*number, 'g', &spec)?,
                None => {
                    let text = print::float(number.abs());
                    let text = match spec.grouping {
                        Some(separator) => {
                            let end = text.find('.').unwrap_or(text.len());
                            format!("{}{}", grouped(&text[..end], separator, 3), &text[end..])
                        }
                        None => text,
                    };
                    (sign_of(number.is_sign_negative(), &spec), text)
                }
            };
            padded_number(&sign, &body, &spec, made)
        }
        _ => {
            value.defined()?;
            fail(format!("unsupported format string passed to {}.__format__", value.type_name()))
        }
    }
}

/// `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
fn parse_spec(text: &str) -> Outcome<Spec> {
    let mut spec = Spec::default();
    let chars: Vec<char> = text.chars().take(64).collect();
    let is_align = |c: Option<&char>| matches!(c, Some('<' | '>' | '^' | '='));
    let mut at = 0;
    if is_align(chars.get(1)) {
        (spec.fill, spec.align, at) = (chars[0], chars.get(1).copied(), 2);
    } else if is_align(chars.first()) {
        (spec.align, at) = (chars.first().copied(), 1);
    }
    let mut take = |wanted: &[char]| {
        let found = chars.get(at).copied().filter(|c| wanted.contains(c));
        at += usize::from(found.is_some());
        found
    };
    spec.sign = take(&['+', '-', ' ']);
    spec.alternate = take(&['#']).is_some();
    if take(&['0']).is_some() && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    let digits = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'];
    let number = |take: &mut dyn FnMut(&[char]) -> Option<char>| {
        let mut number = None;
        while let Some(digit) = take(&digits).and_then(|digit| digit.to_digit(10)) {
            number = Some(number.unwrap_or(0usize).saturating_mul(10).saturating_add(digit as usize));
        }
        number
    };
    spec.width = number(&mut take).unwrap_or(0);
    spec.grouping = take(&[',', '_']);
    if take(&['.']).is_some() {
        spec.precision = number(&mut take);
    }
    spec.kind = chars.get(at).copied();
    if at + usize::from(spec.kind.is_some()) != text.chars().count() {
        return fail("Invalid format specifier");
    }
    Ok(spec)
}
