//! Numbers: cardinals, ordinals, decimals, fractions, ranges, versions, powers, scientific notation.

use regex::Captures;

use super::super::english::Dialect;
use super::super::numbers::{self, digits, ordinal, year};
use super::{Context, Rule, digit, group};

/// Maximum digits in a row that are spoken as one number.
const DIGITS_MAX: usize = 15;
/// Maximum digits of a number with separated groups.
const GROUPED_DIGITS_MAX: usize = 36;

pub(super) const RULES: &[Rule] = &[
    Rule {
        begins: number_begins,
        pattern: r"v(?:er(?:sion)?\.? ?)?([0-9]{1,6}(?:\.[0-9]{1,6}){0,4})(?:[-.]?(alpha|beta|rc|dev|pre)[-.]?([0-9]{0,3}))?",
        say: version,
    },
    Rule {
        begins: digit,
        pattern: r"()?([0-9]{1,6}(?:\.[0-9]{1,6}){2,4})(?:[-.]?(alpha|beta|rc|dev|pre)[-.]?([0-9]{0,3}))?",
        say: plain_version,
    },
    Rule { begins: number_begins, pattern: r"([-−+]?)(<N>)[eE]([-+−]?)([0-9]{1,3})", say: scientific },
    Rule {
        begins: number_begins,
        pattern: r"([-−+]?)(<N>) ?[×x*·] ?10(?:\^([-−]?[0-9]{1,3})|([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))",
        say: times_power_of_ten,
    },
    Rule {
        begins: number_begins,
        pattern: r"([-−+]?)(<N>)(?:\^([-−]?[0-9]{1,3})|([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))",
        say: power,
    },
    Rule { begins: char::is_alphanumeric, pattern: r"(<N>|[a-zA-Z])\^([a-zA-Z])", say: power_of_name },
    Rule { begins: digit, pattern: r"(0[xX])([0-9A-Fa-f]{1,16})", say: hexadecimal },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,3}(?:,[0-9]{3})*|[0-9]{4,12})(?:st|nd|rd|th|ST|ND|RD|TH|ˢᵗ|ⁿᵈ|ʳᵈ|ᵗʰ)",
        say: ranked,
    },
    Rule {
        begins: number_begins,
        pattern: r"([-−+]?)([0-9]{1,6})(?: | ?and ?|-)([0-9]{1,3})[/⁄]([0-9]{1,4})",
        say: mixed_fraction,
    },
    Rule {
        begins: number_begins,
        pattern: r"([-−+]?)([0-9]{0,6})(?: | ?and ?)?([½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])",
        say: vulgar_fraction,
    },
    Rule { begins: number_begins, pattern: r"([-−+]?)([0-9]{1,6})[/⁄]([0-9]{1,6})", say: fraction },
    Rule { begins: digit, pattern: r"[0-9]{1,3}(?:_[0-9]{3}){1,11}", say: underscored },
    Rule { begins: digit, pattern: r"[0-9]{1,9}(?:,[0-9]{1,9}){2,20}", say: list },
    Rule { begins: digit, pattern: r"[0-9]{1,4}(?:[-–][0-9]{1,4}){2,12}", say: list },
    Rule { begins: number_begins, pattern: r"([-−+±~≈]?)(<N>)<TO>([-−+]?)(<N>)", say: range },
    Rule {
        begins: number_begins,
        pattern: r"([-−+±~≈]?) ?([0-9]{1,3}(?:\.[0-9]{3}){2,11}|[0-9]{1,3}(?:[ \u{a0}\u{202f}\u{2009}'’][0-9]{3}){1,11},[0-9]{1,9}|[0-9]{1,3}(?:\.[0-9]{3}){1,11},[0-9]{1,9}|[0-9]{1,9},(?:[0-9]{1,2}|[0-9]{4,9}))",
        say: continental,
    },
    Rule { begins: digit, pattern: r"([0-9]{1,3}(?:\.[0-9]{1,2})?)([KkMB])", say: magnitude },
    Rule { begins: digit, pattern: r"([0-9]{1,9}(?:\.[0-9]{1,9})?)[x×]", say: multiplier },
    Rule { begins: number_begins, pattern: r"([-−+±~≈]?) ?(<N>)", say: signed },
    Rule { begins: digit, pattern: r"[0-9]{41,}", say: long },
    Rule { begins: number_sign, pattern: r"#(<N>)", say: numbered },
    Rule { begins: number_sign, pattern: r"№ ?(<N>)", say: numbered },
];

fn number_sign(c: char) -> bool {
    "#№".contains(c)
}

fn number_begins(c: char) -> bool {
    c.is_ascii_digit() || "-−+±~≈.v½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞".contains(c)
}

/// Cardinal in the words of a dialect.
pub(super) fn cardinal(number: u64, dialect: Dialect) -> String {
    count(u128::from(number), dialect)
}

fn count(number: u128, dialect: Dialect) -> String {
    match dialect {
        Dialect::American => numbers::large(number),
        Dialect::British => numbers::with_and(number),
    }
}

/// Number as written: digits, thousands separators, a point.
pub(super) fn amount(text: &str, dialect: Dialect) -> String {
    let is_grouped = text.contains([',', ' ', '\u{a0}', '\u{202f}', '\u{2009}', '\'', '’']);
    let plain: String = text.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect();
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let room = if is_grouped { GROUPED_DIGITS_MAX } else { DIGITS_MAX };
    let is_code = whole.len() > 1 && whole.starts_with('0');
    let said = match whole.parse::<u128>() {
        _ if whole.is_empty() => "zero".to_owned(),
        Ok(number) if whole.len() <= room && !is_code => count(number, dialect),
        _ => digits(whole),
    };
    if fraction.is_empty() { said } else { format!("{said} point {}", digits(fraction)) }
}

/// Digits that no rule matched.
pub(super) fn loose_digits(text: &str, dialect: Dialect) -> String {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return if text.len() > 4 { digits(text) } else { amount(text, dialect) };
    }
    let superscript = |c: char| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().position(|digit| digit == c);
    let subscript = |c: char| "₀₁₂₃₄₅₆₇₈₉".chars().position(|digit| digit == c);
    let plain = |c: char| {
        let value =
            c.to_digit(10).map(|value| value as usize).or_else(|| superscript(c)).or_else(|| subscript(c));
        let circled = (u32::from('①')..=u32::from('⑨')).contains(&u32::from(c));
        let value = value.or_else(|| circled.then(|| (u32::from(c) - u32::from('①') + 1) as usize));
        let foreign = || {
            // Digits of other scripts are in blocks of ten, starting with zero.
            let zeros = ['٠', '۰', '०', '০', '０', '๐'];
            zeros
                .iter()
                .find_map(|&zero| u32::from(c).checked_sub(u32::from(zero)).filter(|value| *value < 10))
        };
        value.or_else(|| foreign().map(|value| value as usize))
    };
    let values: Option<String> = text.chars().map(|c| plain(c).map(|value| value.to_string())).collect();
    match values {
        Some(values) if values.len() <= 9 => amount(&values, dialect),
        Some(values) => digits(&values),
        None => String::new(),
    }
}

/// Number that may be a year.
pub(super) fn count_or_year(text: &str, dialect: Dialect) -> String {
    match text.parse::<u64>() {
        Ok(number) if text.len() == 4 && (1100..2100).contains(&number) => year_in(number, dialect),
        _ => amount(text, dialect),
    }
}

/// Year in the words of a dialect: "two thousand five" or "two thousand and five".
pub(super) fn year_in(number: u64, dialect: Dialect) -> String {
    match (dialect, number) {
        (Dialect::British, 2001..=2009) => format!("two thousand and {}", numbers::cardinal(number - 2000)),
        _ => year(number),
    }
}

/// Two pairs of digits, as in `RTX 4090` and `1080p`. Three digits are one and a pair.
pub(super) fn pairs(text: &str) -> String {
    let value = |text: &str| text.parse::<u64>().map(numbers::cardinal).unwrap_or_default();
    let pair = |text: &str| match text.as_bytes() {
        [b'0', b'0'] => "hundred".to_owned(),
        [b'0', _] => format!("oh {}", value(&text[1..])),
        _ => value(text),
    };
    match text.len() {
        4 if text.ends_with("000") => format!("{} thousand", value(&text[..1])),
        4 if !text.starts_with('0') => format!("{} {}", value(&text[..2]), pair(&text[2..])),
        3 if !text.starts_with('0') => format!("{} {}", value(&text[..1]), pair(&text[1..])),
        1 | 2 if !text.starts_with('0') => value(text),
        _ => digits(text),
    }
}

/// Word of a sign before a number.
pub(super) fn sign_word(sign: &str) -> &'static str {
    match sign.trim() {
        "-" | "−" => "minus ",
        "+" => "plus ",
        "±" => "plus or minus ",
        "~" | "≈" => "about ",
        _ => "",
    }
}

/// Names before a version of two numbers: `Python 3.11`.
const VERSIONED: &[&str] = &[
    "version",
    "release",
    "Python",
    "Ubuntu",
    "Debian",
    "Fedora",
    "Android",
    "iOS",
    "iPadOS",
    "macOS",
    "Linux",
    "kernel",
    "Java",
    "Kotlin",
    "Swift",
    "Ruby",
    "Rails",
    "PHP",
    "Go",
    "Rust",
    "Node",
    "CUDA",
    "PyTorch",
    "TensorFlow",
    "Django",
    "Postgres",
    "PostgreSQL",
    "MySQL",
    "SQLite",
    "Redis",
    "Kubernetes",
    "Docker",
    "GCC",
    "Clang",
    "LLVM",
    "Chrome",
    "Firefox",
    "Safari",
    "Unity",
    "Blender",
    "Windows",
    "Minecraft",
    "Bluetooth",
    "OpenGL",
    "Vulkan",
];

fn signed(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (sign, number) = (group(found, 1), group(found, 2));
    let is_version = number.split_once('.').is_some_and(|(_, minor)| minor.len() == 2);
    if sign.is_empty() && is_version && context.follows(VERSIONED) {
        return Some(version_parts(number));
    }
    // A year before 1100 needs a word before it that indicates a year, and no noun after it.
    let tells = [
        "in", "since", "until", "before", "after", "by", "of", "year", "from", "to", "and", "c", "ca",
        "circa",
    ];
    let next = context.next_word();
    let is_counted =
        next.len() > 3 && next.starts_with(char::is_lowercase) && !["when", "that", "with"].contains(&next);
    if let (Ok(year @ 1010..1100), true) =
        (number.parse(), sign.is_empty() && !is_counted && context.follows(&tells))
    {
        return Some(year_in(year, context.dialect));
    }
    let said = if sign.is_empty() && !context.next_is_scale() {
        count_or_year(number, context.dialect)
    } else {
        amount(number, context.dialect)
    };
    Some(format!("{}{said}", sign_word(sign)))
}

fn long(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(digits(group(found, 0)))
}

fn numbered(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("number {}", amount(group(found, 1), context.dialect)))
}

impl Context<'_> {
    fn next_is_scale(&self) -> bool {
        ["hundred", "thousand", "million", "billion", "trillion"].contains(&self.next_word())
    }
}

fn ranked(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let number = group(found, 1).replace(',', "").parse().ok()?;
    Some(ordinal_in(number, context.dialect))
}

/// Ordinal in the words of a dialect.
pub(super) fn ordinal_in(number: u64, dialect: Dialect) -> String {
    match dialect {
        Dialect::American => ordinal(number),
        Dialect::British => numbers::ordinal_of(&cardinal(number, dialect)),
    }
}

/// Forms such as `100s of`.
pub(super) fn hundreds(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let scale = match group(found, 1).len() - 1 {
        1 => "tens",
        2 => "hundreds",
        3 => "thousands",
        _ => return None,
    };
    Some(format!("{scale} of"))
}

/// Numerator and denominator in words.
pub(super) fn parts(top: u64, bottom: u64, dialect: Dialect) -> Option<String> {
    let part = match bottom {
        0 | 1 => return None,
        2 if top == 1 => "half".to_owned(),
        2 => "halve".to_owned(),
        4 => "quarter".to_owned(),
        3 | 5..=20 | 30 | 32 | 40 | 50 | 60 | 64 | 90 | 100 | 128 | 1000 => ordinal(bottom),
        _ => return Some(format!("{} over {}", cardinal(top, dialect), cardinal(bottom, dialect))),
    };
    Some(format!("{} {part}{}", cardinal(top, dialect), if top == 1 { "" } else { "s" }))
}

fn fraction(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let number = |index: usize| group(found, index).parse::<u64>().ok();
    let (top, bottom) = (number(2)?, number(3)?);
    let dialect = context.dialect;
    let rated = ["star", "stars", "points", "rating"].contains(&context.next_word());
    let rated = rated || context.follows(&["rated", "scored", "score", "rating"]);
    let said = match (top, bottom) {
        (24, 7) => "twenty-four seven".to_owned(),
        (9, 11) => "nine eleven".to_owned(),
        (50, 50) => "fifty fifty".to_owned(),
        (20, 20) => "twenty twenty".to_owned(),
        _ if context.after.trim_start().starts_with('=') => {
            format!("{} divided by {}", cardinal(top, dialect), cardinal(bottom, dialect))
        }
        _ if top == bottom || rated => {
            format!("{} out of {}", cardinal(top, dialect), cardinal(bottom, dialect))
        }
        _ => match parts(top, bottom, dialect) {
            Some(said) => said,
            None => format!("{} over {}", cardinal(top, dialect), cardinal(bottom, dialect)),
        },
    };
    Some(format!("{}{said}", sign_word(group(found, 1))))
}

/// Whole number with a fraction: "two and a quarter".
pub(super) fn with_part(whole: &str, part: &str, dialect: Dialect) -> String {
    let part = match part.strip_prefix("one ") {
        Some(single) if single.starts_with("eigh") => format!("an {single}"),
        Some(single) => format!("a {single}"),
        None => part.to_owned(),
    };
    format!("{} and {part}", amount(whole, dialect))
}

fn mixed_fraction(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (top, bottom) = (group(found, 3).parse().ok()?, group(found, 4).parse().ok()?);
    if top >= bottom || bottom > 128 {
        return None;
    }
    let part = parts(top, bottom, context.dialect)?;
    Some(format!("{}{}", sign_word(group(found, 1)), with_part(group(found, 2), &part, context.dialect)))
}

fn vulgar_fraction(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (top, bottom) = match group(found, 3) {
        "½" => (1, 2),
        "⅓" => (1, 3),
        "⅔" => (2, 3),
        "¼" => (1, 4),
        "¾" => (3, 4),
        "⅕" => (1, 5),
        "⅖" => (2, 5),
        "⅗" => (3, 5),
        "⅘" => (4, 5),
        "⅙" => (1, 6),
        "⅚" => (5, 6),
        "⅛" => (1, 8),
        "⅜" => (3, 8),
        "⅝" => (5, 8),
        _ => (7, 8),
    };
    let (sign, whole, part) = (group(found, 1), group(found, 2), parts(top, bottom, context.dialect)?);
    let said = if whole.is_empty() { part } else { with_part(whole, &part, context.dialect) };
    Some(format!("{}{said}", sign_word(sign)))
}

fn range(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (from, to, dialect) = (group(found, 2), group(found, 4), context.dialect);
    let whole = group(found, 0);
    // `5 - 3 = 2` and `5 -3` are subtractions; `5 to -3` and years are not.
    let spaced_minus = whole.contains(" - ") || whole.contains(" − ");
    if spaced_minus && (context.after.trim_start().starts_with('=') || whole.contains('−')) {
        return Some(format!(
            "{}{} minus {}",
            sign_word(group(found, 1)),
            amount(from, dialect),
            amount(to, dialect)
        ));
    }
    if whole.contains(" -") && !spaced_minus {
        return None;
    }
    match (from, to) {
        ("50", "50") => return Some("fifty fifty".to_owned()),
        ("24", "7") => return Some("twenty-four seven".to_owned()),
        _ => {}
    }
    let (start, end) = (count_or_year(from, dialect), count_or_year(to, dialect));
    Some(format!("{}{start} to {}{end}", sign_word(group(found, 1)), sign_word(group(found, 3))))
}

/// Numbers separated by commas or hyphens: `1,2,3` and `1-2-3`. Groups of three digits are one number.
fn list(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let text = group(found, 0);
    let (is_commas, parts) = (text.contains(','), text.split([',', '-', '–']));
    if is_commas && parts.clone().skip(1).all(|part| part.len() == 3) && parts.clone().next()?.len() < 4 {
        return None;
    }
    // `10,00,000`, as in India.
    let lengths: Vec<usize> = parts.clone().map(str::len).collect();
    if is_commas
        && matches!(lengths[..], [1 | 2, ref pairs @ .., 3] if pairs.iter().all(|&length| length == 2))
    {
        return Some(amount(text, context.dialect));
    }
    let said: Vec<String> = parts.map(|part| amount(part, context.dialect)).collect();
    Some(said.join(if is_commas { ", " } else { " " }))
}

/// `1_000_000`, as in source code.
fn underscored(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(amount(&group(found, 0).replace('_', ","), context.dialect))
}

/// `1.000.000`, `1.234,56` and `3,5`, as on the European continent.
fn continental(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let text = group(found, 2);
    let (whole, fraction) = text.split_once(',').unwrap_or((text, ""));
    let plain = whole.replace(['.', ' ', '\u{a0}', '\u{202f}', '\'', '’'], "\u{2009}");
    let said = amount(&plain, context.dialect);
    let fraction = if fraction.is_empty() { String::new() } else { format!(" point {}", digits(fraction)) };
    Some(format!("{}{said}{fraction}", sign_word(group(found, 1))))
}

fn magnitude(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (number, said) = (group(found, 1), amount(group(found, 1), context.dialect));
    let next = context.next_word();
    let is_counted = next.starts_with(char::is_lowercase) && !["model", "models", "tape"].contains(&next);
    // `10M+ downloads`
    let is_counted = is_counted || context.after.starts_with('+');
    let scale = match group(found, 2) {
        // `221B Baker St.`
        "M" | "B" if next.starts_with(char::is_uppercase) => return None,
        letter @ ("M" | "B") if !number.contains('.') && !is_counted => letter,
        "K" if ["2", "4", "5", "8", "10"].contains(&number) => "K",
        "k" | "K" => "thousand",
        "M" => "million",
        _ => "billion",
    };
    Some(format!("{said} {scale}"))
}

fn multiplier(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let next = context.after.trim_start().chars().next();
    // `3× 4` and `2x + 1` are other forms.
    if next.is_some_and(|c| c.is_ascii_digit() || "=+-".contains(c)) {
        return None;
    }
    Some(format!("{} times", amount(group(found, 1), context.dialect)))
}

/// Version number: `3.11` is "three point eleven", and `22.04` "twenty-two point oh four".
fn version_parts(text: &str) -> String {
    let one = |part: &str| match part.as_bytes() {
        [b'0', b'1'..=b'9'] => format!("oh {}", digits(&part[1..])),
        [b'1'..=b'9'] | [b'1'..=b'9', _] => pairs(part),
        _ => digits(part),
    };
    text.split('.').map(one).collect::<Vec<_>>().join(" point ")
}

fn spoken_version(found: &Captures<'_>, text: &str) -> String {
    let mut said = version_parts(text);
    match group(found, 2 + usize::from(group(found, 1) != text)) {
        "" => {}
        "rc" => said.push_str(" R C"),
        stage => said.push_str(&format!(" {stage}")),
    }
    let number = group(found, 3 + usize::from(group(found, 1) != text));
    if number.is_empty() { said } else { format!("{said} {}", digits(number)) }
}

fn version(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    if ["engine", "engines"].contains(&context.next_word()) {
        return None;
    }
    Some(format!("version {}", spoken_version(found, group(found, 1))))
}

fn plain_version(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let text = group(found, 2);
    // Groups of three digits are a number with points between thousands.
    let parts: Vec<&str> = text.split('.').collect();
    if parts[1..].iter().all(|part| part.len() == 3) && !parts[0].starts_with('0') && parts[0].len() <= 3 {
        return None;
    }
    Some(spoken_version(found, text))
}

/// Exponent in words: "squared", "cubed", "to the minus three".
pub(super) fn exponent(text: &str, dialect: Dialect) -> String {
    let plain: String = text.chars().filter_map(superscript).collect();
    match plain.as_str() {
        "2" => "squared".to_owned(),
        "3" => "cubed".to_owned(),
        _ => match plain.strip_prefix('-') {
            Some(rest) => format!("to the minus {}", amount(rest, dialect)),
            None => match plain.parse() {
                Ok(number) => format!("to the {}", ordinal(number)),
                Err(_) => String::new(),
            },
        },
    }
}

fn superscript(c: char) -> Option<char> {
    match c {
        '-' | '−' | '⁻' => Some('-'),
        _ if c.is_ascii_digit() => Some(c),
        _ => "⁰¹²³⁴⁵⁶⁷⁸⁹"
            .chars()
            .position(|digit| digit == c)
            .and_then(|value| char::from_digit(value as u32, 10)),
    }
}

/// Power with a letter: `2^n`.
fn power_of_name(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let base = group(found, 1);
    let base = if base.starts_with(digit) { amount(base, context.dialect) } else { base.to_owned() };
    Some(format!("{base} to the {}", group(found, 2)))
}

fn power(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let exponent = exponent(&format!("{}{}", group(found, 3), group(found, 4)), context.dialect);
    Some(format!("{}{} {exponent}", sign_word(group(found, 1)), amount(group(found, 2), context.dialect)))
}

fn times_power_of_ten(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let exponent = exponent(&format!("{}{}", group(found, 3), group(found, 4)), context.dialect);
    let number = amount(group(found, 2), context.dialect);
    Some(format!("{}{number} times ten {exponent}", sign_word(group(found, 1))))
}

fn scientific(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let sign = if matches!(group(found, 3), "-" | "−") { "-" } else { "" };
    let power: u64 = group(found, 4).parse().ok()?;
    let exponent = match (sign, power) {
        ("", power) => format!("to the {}", ordinal(power)),
        _ => format!("to the minus {}", cardinal(power, context.dialect)),
    };
    let number = amount(group(found, 2), context.dialect);
    Some(format!("{}{number} times ten {exponent}", sign_word(group(found, 1))))
}

fn hexadecimal(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("zero X {}", super::names::letters_and_digits(group(found, 2))))
}
