//! Times of day, ranges of them, durations; also ratios and verses, which look alike.

use regex::Captures;

use super::super::english::Dialect;
use super::quantity::{amount, cardinal};
use super::{Context, Rule, digit, group, letter, spelled};

/// Pattern of time zones.
pub(super) const ZONES: &str =
    r"(?:UTC|GMT|EST|EDT|CST|CDT|MST|MDT|PST|PDT|CET|CEST|BST|IST|JST|AEST|AEDT|MSK|ET|PT|CT|MT)";
/// Books whose chapters and verses look like times.
const BOOKS: [&str; 52] = [
    "Genesis",
    "Exodus",
    "Leviticus",
    "Numbers",
    "Deuteronomy",
    "Joshua",
    "Judges",
    "Ruth",
    "Samuel",
    "Kings",
    "Chronicles",
    "Ezra",
    "Nehemiah",
    "Esther",
    "Job",
    "Psalm",
    "Psalms",
    "Proverbs",
    "Ecclesiastes",
    "Isaiah",
    "Jeremiah",
    "Lamentations",
    "Ezekiel",
    "Daniel",
    "Hosea",
    "Joel",
    "Amos",
    "Jonah",
    "Micah",
    "Habakkuk",
    "Zechariah",
    "Malachi",
    "Matthew",
    "Mark",
    "Luke",
    "John",
    "Acts",
    "Romans",
    "Corinthians",
    "Galatians",
    "Ephesians",
    "Philippians",
    "Colossians",
    "Thessalonians",
    "Timothy",
    "Titus",
    "Hebrews",
    "James",
    "Peter",
    "Jude",
    "Revelation",
    "Surah",
];

pub(super) const RULES: &[Rule] = &[
    Rule { begins: digit, pattern: r"([0-9]{1,3}):([0-9]{1,3})(?:[-–]([0-9]{1,3}))?", say: verse },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,2})(?::([0-9]{2}))?(<HALF>)?<TO>([0-9]{1,2})(?::([0-9]{2}))?(<HALF>)?(?: (<ZONE>)\b)?",
        say: range,
    },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,3}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?(<HALF>)?(?: (<ZONE>)\b)?",
        say: with_seconds,
    },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,2})[:h]([0-9]{2})(<HALF>)?(?: ?h\b)?(?: ?(?:(<ZONE>)\b([-+−][0-9]{1,2}(?::?[0-9]{2})?)?))?",
        say: with_minutes,
    },
    Rule { begins: digit, pattern: r"([0-9]{1,2})\.([0-9]{2})(<HALF>)", say: with_minutes },
    Rule { begins: digit, pattern: r"([0-9]{1,2})(<HALF>)(?: (<ZONE>)\b)?", say: hour },
    Rule { begins: digit, pattern: r"([0-2][0-9])([0-5][0-9]) ?(?:hours|hrs|h)\b", say: military },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,3}(?:,[0-9]{3}){1,3}|[0-9]{1,5}(?:\.[0-9]{1,4})?):([0-9]{1,3}(?:,[0-9]{3}){1,3}|[0-9]{1,5}(?:\.[0-9]{1,4})?)(?::([0-9]{1,5}))?",
        say: ratio,
    },
    Rule { begins: digit, pattern: r"24[/x×]7(/365)?", say: always },
    Rule {
        begins: digit,
        pattern: r"([123]) (Samuel|Kings|Chronicles|Corinthians|Thessalonians|Timothy|Peter|John)",
        say: book,
    },
    Rule { begins: letter, pattern: r"(UTC|GMT) ?([-+−±])([0-9]{1,2})(?::?([0-9]{2}))?", say: zone },
    Rule { begins: letter, pattern: r"([AaPp])\.?[Mm]\.", say: half_alone },
];

/// AM or PM in words, with a space before.
fn half_word(text: &str) -> &'static str {
    match text.trim_start_matches([' ', '\u{a0}', '\u{202f}']).chars().next() {
        Some('a' | 'A') => " A M",
        Some('p' | 'P') => " P M",
        _ => "",
    }
}

/// Time of day in words.
pub(super) fn time(hour: u64, minute: u64, half: &str, dialect: Dialect) -> Option<String> {
    if hour > 24 || minute > 59 || !half.is_empty() && !(1..=12).contains(&hour) {
        return None;
    }
    let half = half_word(half);
    let said = cardinal(hour, dialect);
    Some(match minute {
        0 if half.is_empty() && hour.is_multiple_of(24) => "midnight".to_owned(),
        0 if half.is_empty() && hour <= 12 => format!("{said} o'clock"),
        0 if half.is_empty() => format!("{said} hundred"),
        0 => format!("{said}{half}"),
        1..10 => format!("{said} oh {}{half}", cardinal(minute, dialect)),
        _ => format!("{said} {}{half}", cardinal(minute, dialect)),
    })
}

/// Seconds after a time, in words.
pub(super) fn seconds(seconds: u64, dialect: Dialect) -> String {
    let unit = if seconds == 1 { "second" } else { "seconds" };
    format!(" and {} {unit}", cardinal(seconds, dialect))
}

/// Offset from UTC after a time, in words.
pub(super) fn offset(text: &str, dialect: Dialect) -> String {
    match text {
        "" => String::new(),
        "Z" | "UTC" => " U T C".to_owned(),
        "GMT" => " G M T".to_owned(),
        _ => {
            let (sign, digits) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
            let plain = digits.replace(':', "");
            let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            let (hours, minutes) = (number(plain.get(..2).or(Some(&plain))), number(plain.get(2..)));
            let sign = if sign == "+" { "plus" } else { "minus" };
            let minutes =
                if minutes == 0 { String::new() } else { format!(" {}", cardinal(minutes, dialect)) };
            format!(", U T C {sign} {}{minutes}", cardinal(hours, dialect))
        }
    }
}

/// Returns true if the words before a form show that it is no time.
fn is_ratio(context: &Context<'_>) -> bool {
    context.words.iter().any(|word| ["ratio", "odds", "aspect", "scale", "score"].contains(word))
}

fn parsed(found: &Captures<'_>, index: usize) -> Option<u64> {
    group(found, index).parse().ok()
}

/// Time zone in words, with a space before.
fn zone_word(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" {}", spelled(text)) }
}

/// Final point of "a.m." or "p.m.", which also ends the sentence if nothing follows.
fn closing(context: &Context<'_>, form: &str) -> &'static str {
    let is_last = context.after.trim_matches(['"', '”', ')', ' ', '\'', '’']).is_empty();
    if form.ends_with('.') && is_last { "." } else { "" }
}

fn with_minutes(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    if is_ratio(context) {
        return None;
    }
    let (hour, minute, half) = (parsed(found, 1)?, parsed(found, 2)?, group(found, 3));
    let said = time(hour, minute, half, context.dialect)?;
    let shift = match group(found, 5) {
        "" => String::new(),
        text => offset(text, context.dialect).replacen(", U T C", "", 1),
    };
    Some(format!("{said}{}{shift}{}", zone_word(group(found, 4)), closing(context, group(found, 0))))
}

fn with_seconds(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (hour, minute, second) = (parsed(found, 1)?, parsed(found, 2)?, parsed(found, 3)?);
    if second > 59 || is_ratio(context) {
        return None;
    }
    let fraction = match group(found, 4) {
        "" => String::new(),
        text => format!(" point {}", super::super::numbers::digits(text)),
    };
    let said = time(hour, minute, "", context.dialect)?;
    let unit = if second == 1 && fraction.is_empty() { "second" } else { "seconds" };
    let second = format!(" and {}{fraction} {unit}", cardinal(second, context.dialect));
    Some(format!("{said}{second}{}{}", half_word(group(found, 5)), zone_word(group(found, 6))))
}

fn hour(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (half, form) = (group(found, 2), group(found, 0));
    // `5 am` is a time. `I am` has no number, and is none.
    let said = time(parsed(found, 1)?, 0, half, context.dialect)?;
    Some(format!("{said}{}{}", zone_word(group(found, 3)), closing(context, form)))
}

fn range(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (from_half, to_half) = (group(found, 3), group(found, 6));
    let has_minutes = !group(found, 2).is_empty() || !group(found, 5).is_empty();
    if !has_minutes && from_half.is_empty() && to_half.is_empty() || is_ratio(context) {
        return None;
    }
    let minute = |index: usize| if group(found, index).is_empty() { Some(0) } else { parsed(found, index) };
    let (hour, last_hour) = (parsed(found, 1)?, parsed(found, 4)?);
    let to = time(last_hour, minute(5)?, to_half, context.dialect)?;
    // `9-11 a.m.`: the half applies to both times and is said once.
    let from = match (from_half, to_half) {
        ("", half) if !half.is_empty() && minute(2)? == 0 => {
            time(hour, 0, half, context.dialect)?;
            cardinal(hour, context.dialect)
        }
        (half, _) => time(hour, minute(2)?, half, context.dialect)?,
    };
    Some(format!("{from} to {to}{}{}", zone_word(group(found, 7)), closing(context, group(found, 0))))
}

fn military(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (hour, minute, dialect) = (parsed(found, 1)?, parsed(found, 2)?, context.dialect);
    let zero = if group(found, 1).starts_with('0') { "oh " } else { "" };
    let minute = match minute {
        0 => "hundred".to_owned(),
        1..10 => format!("oh {}", cardinal(minute, dialect)),
        _ => cardinal(minute, dialect),
    };
    (hour < 25).then(|| format!("{zero}{} {minute} hours", cardinal(hour, dialect)))
}

fn always(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let days = if group(found, 1).is_empty() { "" } else { " three sixty-five" };
    (!context.after.starts_with('/')).then(|| format!("twenty-four seven{days}"))
}

fn zone(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let sign = match group(found, 2) {
        "+" => "plus",
        "±" => "plus or minus",
        _ => "minus",
    };
    let minutes = parsed(found, 4).filter(|minutes| *minutes > 0);
    let minutes = minutes.map(|minutes| format!(" {}", cardinal(minutes, context.dialect)));
    let hours = cardinal(parsed(found, 3)?, context.dialect);
    Some(format!("{} {sign} {hours}{}", spelled(group(found, 1)), minutes.unwrap_or_default()))
}

fn half_alone(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let form = group(found, 0);
    if form.get(1..2).is_none_or(|point| point != ".") {
        return None;
    }
    let half = half_word(group(found, 1)).trim_start();
    Some(format!("{half}{}", closing(context, form)))
}

fn ratio(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let said = |index: usize| amount(group(found, index), context.dialect);
    let third = if group(found, 3).is_empty() { String::new() } else { format!(" to {}", said(3)) };
    Some(format!("{} to {}{third}", said(1), said(2)))
}

fn book(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("{} {}", super::super::numbers::ordinal(parsed(found, 1)?), group(found, 2)))
}

fn verse(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    if !BOOKS.contains(&context.words[0]) {
        return None;
    }
    let said = |index: usize| amount(group(found, index), context.dialect);
    let last = if group(found, 3).is_empty() { String::new() } else { format!(" to {}", said(3)) };
    Some(format!("{} {}{last}", said(1), said(2)))
}
