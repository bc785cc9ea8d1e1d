//! Dates, years, decades, eras.

use regex::Captures;

use super::super::english::Dialect;
use super::super::numbers::{self, ordinal};
use super::quantity::{amount, cardinal, year_in};
use super::{Context, Rule, clock, digit, group, letter, spelled};

pub(super) const MONTH_PATTERN: &str = "(?:January|February|March|April|May|June|July|August|September|October|November|December|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec)\\b\\.?)";
pub(super) const WEEKDAY_PATTERN: &str = "(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|(?:Mon|Tues|Tue|Wed|Thurs|Thur|Thu|Fri|Sat|Sun)\\b\\.?)";
pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

pub(super) const RULES: &[Rule] = &[
    Rule {
        begins: digit,
        pattern: r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:T| (?:at )?)([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]{1,9})?)?(?: ?(Z|UTC|GMT|[-+−][0-9]{2}:?[0-9]{2}))?",
        say: timestamp,
    },
    Rule { begins: digit, pattern: r"(<DATE>)<TO>(<DATE>)", say: span },
    Rule { begins: digit, pattern: r"([0-9]{4})([-/.])([0-9]{1,2})[-/.]([0-9]{1,2})", say: year_first },
    Rule { begins: digit, pattern: r"([0-9]{1,2})\.[ ]?([0-9]{1,2})\.[ ]?([0-9]{4})", say: day_first },
    Rule { begins: digit, pattern: r"([0-9]{2})\.([0-9]{2})\.([0-9]{2})", say: day_first },
    Rule { begins: digit, pattern: r"([0-9]{1,2})[/-]([0-9]{1,2})[/-]([0-9]{4})", say: by_dialect },
    Rule { begins: digit, pattern: r"([0-9]{1,2})/([0-9]{1,2})/([0-9]{2})", say: by_dialect },
    Rule { begins: digit, pattern: r"(0?[1-9]|1[0-2])/([12][0-9]{3})", say: month_and_year },
    Rule { begins: digit, pattern: r"([0-9]{1,2})/([0-9]{1,2})", say: without_year },
    Rule { begins: letter, pattern: r"((?:Mon|Tues|Tue|Wed|Thurs|Thur|Thu|Fri|Sat|Sun)\b\.?)", say: weekday },
    Rule { begins: letter, pattern: r"(<DAY>)(-|–| - )(<DAY>)", say: weekdays },
    Rule {
        begins: letter,
        pattern: r"(<MONTH> [0-9]{1,2}(?:st|nd|rd|th)?(?:, [12][0-9]{3})?)<TO>(<MONTH> [0-9]{1,2}(?:st|nd|rd|th)?(?:,? [12][0-9]{3}\b)?)",
        say: span,
    },
    Rule {
        begins: letter,
        pattern: r"(<MONTH>) ([0-9]{1,2})(?:st|nd|rd|th)?(?: ?[-–] ?([0-9]{1,2})(?:st|nd|rd|th)?)?(?:,? ([12][0-9]{3})\b)?",
        say: month_first,
    },
    Rule { begins: letter, pattern: r"(<MONTH>)[ -]([12][0-9]{3})", say: month_year },
    Rule { begins: digit, pattern: r"([0-9]{1,2})-(<MONTH>)-([0-9]{2})", say: day_month_short_year },
    Rule { begins: letter, pattern: r"(<MONTH>) ?('|’)([0-9]{2})", say: month_short_year },
    Rule { begins: letter, pattern: r"(<MONTH>)(-|–|/)(<MONTH>)", say: months },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,2}(?:st|nd|rd|th)? <MONTH>(?: [12][0-9]{3})?)<TO>([0-9]{1,2}(?:st|nd|rd|th)? <MONTH>(?:,? [12][0-9]{3}\b)?)",
        say: span,
    },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,2})(?:st|nd|rd|th)?(?: ?[-–] ?([0-9]{1,2})(?:st|nd|rd|th)?)?(?: |-| of )(<MONTH>)(?:[, -]{1,2}([12][0-9]{3})\b)?",
        say: day_and_month,
    },
    Rule {
        begins: letter,
        pattern: r"(in|In|since|Since|until|Until|till|from|From|by|By|last|Last|next|Next|this|This|every|Every|late|Late|early|Early|mid|of) ((?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec)\.)",
        say: lone_month,
    },
    Rule { begins: decade_begins, pattern: r"['’‘]?([0-9]0)['’]?s", say: short_decade },
    Rule { begins: digit, pattern: r"([0-9])['’]?s", say: digits },
    Rule { begins: digit, pattern: r"([12][0-9]{2}0)['’]?s", say: decade },
    Rule { begins: decade_begins, pattern: r"['’‘]([0-9]{2})", say: short_year },
    Rule { begins: digit, pattern: r"([12][0-9]{3})[-–/]([0-9]{2})", say: years },
    Rule { begins: digit, pattern: r"([12][0-9]{3})/([12][0-9]{3})", say: season },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,4})(?:[-–]([0-9]{1,4}))? ?(BCE|BC|CE|AD|B\.C\.E\.|B\.C\.|C\.E\.|A\.D\.)",
        say: era_behind,
    },
    Rule { begins: letter, pattern: r"(AD|A\.D\.) ([0-9]{1,4})", say: era_before },
    Rule { begins: letter, pattern: r"(Q[1-4]|H[12]|FY) ?['’]?([12][0-9]{3})", say: quarter },
    Rule { begins: letter, pattern: r"(Q[1-4]|H[12]|FY)(?: ?['’]| )([0-9]{2})", say: quarter },
    Rule { begins: letter, pattern: r"(FY)([0-9]{2})", say: quarter },
    Rule {
        begins: letter,
        pattern: r"(Year|year|Fiscal|fiscal|Class of|class of) ([12][0-9]{3})",
        say: named_year,
    },
];

fn decade_begins(c: char) -> bool {
    c.is_ascii_digit() || "'’‘".contains(c)
}

/// Month of a name that may be abbreviated.
fn month_name(text: &str) -> Option<&'static str> {
    let stem = text.trim_end_matches('.');
    let stem = stem.get(..3).unwrap_or(stem);
    MONTHS.iter().find(|month| month.starts_with(stem)).copied()
}

fn month_number(number: u64) -> Option<&'static str> {
    MONTHS.get((number as usize).checked_sub(1)?).copied()
}

/// Full year of a two-digit one: up to 49 in this century.
fn full_year(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    Some(match text.len() {
        2 if number < 50 => 2000 + number,
        2 => 1900 + number,
        _ => number,
    })
}

/// Returns true if the month may have this day.
fn is_day(day: u64, month: &str) -> bool {
    let last = match month {
        "February" => 29,
        "April" | "June" | "September" | "November" => 30,
        _ => 31,
    };
    (1..=last).contains(&day)
}

/// Date in the words of a dialect.
fn date(day: u64, month: &str, year: Option<u64>, dialect: Dialect) -> Option<String> {
    if !is_day(day, month) {
        return None;
    }
    let said = match dialect {
        Dialect::American => format!("{month} {}", ordinal(day)),
        Dialect::British => format!("the {} of {month}", ordinal(day)),
    };
    Some(match year {
        Some(year) => format!("{said}, {}", year_in(year, dialect)),
        None => said,
    })
}

fn parsed(found: &Captures<'_>, index: usize) -> Option<u64> {
    group(found, index).parse().ok()
}

fn year_first(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let year = parsed(found, 1).filter(|year| (1000..3000).contains(year))?;
    date(parsed(found, 4)?, month_number(parsed(found, 3)?)?, Some(year), context.dialect)
}

fn timestamp(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let day = date(parsed(found, 3)?, month_number(parsed(found, 2)?)?, parsed(found, 1), context.dialect)?;
    let time = clock::time(parsed(found, 4)?, parsed(found, 5)?, "", context.dialect)?;
    let seconds = parsed(found, 6).filter(|seconds| *seconds > 0);
    let seconds = seconds.map(|seconds| clock::seconds(seconds, context.dialect)).unwrap_or_default();
    Some(format!("{day}, {time}{seconds}{}", clock::offset(group(found, 7), context.dialect)))
}

fn day_first(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (day, month) = (parsed(found, 1)?, parsed(found, 2)?);
    let (day, month) = if month > 12 { (month, day) } else { (day, month) };
    date(day, month_number(month)?, full_year(group(found, 3)), context.dialect)
}

fn by_dialect(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (first, second) = (parsed(found, 1)?, parsed(found, 2)?);
    let is_day_first = first > 12 || (context.is_british() && second <= 12);
    let (day, month) = if is_day_first { (first, second) } else { (second, first) };
    date(day, month_number(month)?, full_year(group(found, 3)), context.dialect)
}

/// Range of two dates.
fn span(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let ends = [1, 2].map(|index| super::normalize(group(found, index), context.dialect));
    let are_dates = ends.iter().all(|end| !end.contains(|c: char| c.is_ascii_digit() || "./".contains(c)));
    are_dates.then(|| ends.join(" to "))
}

/// `5/17` after a word that a date follows.
fn without_year(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let is_week =
        context.words[0] == "of" && ["week", "night", "morning", "weekend"].contains(&context.words[1]);
    let is_weekday = |day: &&str| context.words[0].len() > 2 && day.starts_with(context.words[0]);
    let is_week = is_week || WEEKDAYS.iter().any(is_weekday);
    let is_dated =
        is_week || context.follows(&["on", "until", "since", "till", "due", "before", "dated", "starting"]);
    let (first, second) = (parsed(found, 1)?, parsed(found, 2)?);
    // September 11, and scores of an exam are no dates.
    if !is_dated || (first, second) == (9, 11) || first == second && first < 3 {
        return None;
    }
    let is_day_first = first > 12 || (context.is_british() && second <= 12);
    let (day, month) = if is_day_first { (first, second) } else { (second, first) };
    date(day, month_number(month)?, None, context.dialect)
}

fn month_and_year(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("{} {}", month_number(parsed(found, 1)?)?, year_in(parsed(found, 2)?, context.dialect)))
}

fn weekday_name(text: &str) -> &'static str {
    let stem = text.get(..3).unwrap_or(text);
    WEEKDAYS.iter().find(|day| day.starts_with(stem)).copied().unwrap_or("Sunday")
}

/// Abbreviated weekday before a date. The date itself is the next form.
fn weekday(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let after = context.after.strip_prefix(',').unwrap_or(context.after);
    let after = after.strip_prefix(' ').unwrap_or_default();
    let next = &after[..after.find(|c: char| !c.is_alphanumeric()).unwrap_or(after.len())];
    let is_dated = next.starts_with(digit)
        || next.len() >= 3 && month_name(next).is_some_and(|month| month.starts_with(next));
    let is_short = group(found, 1).ends_with('.');
    let is_dated = is_dated || is_short && context.follows(&["on", "every", "next", "last"]);
    // `Tues. and Thurs.`: `Sat.` and `Sun.` may be words at the end of a sentence.
    let is_end = context.after.trim().is_empty();
    let is_word = ["Sat.", "Sun."].contains(&group(found, 1));
    let is_dated = is_dated || is_short && !(is_word && is_end);
    let end = if is_short && is_end { "." } else { "" };
    is_dated.then(|| format!("{}{end}", weekday_name(group(found, 1))))
}

fn weekdays(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("{} to {}", weekday_name(group(found, 1)), weekday_name(group(found, 3))))
}

fn month_first(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    // `May 5` in capitals is a month; `may 5` is not, and `March 50` is none.
    let (month, day) = (month_name(group(found, 1))?, parsed(found, 2)?);
    if !is_day(day, month) {
        return None;
    }
    let mut said = match parsed(found, 3) {
        Some(last) if is_day(last, month) => format!("{month} {} to {}", ordinal(day), ordinal(last)),
        Some(_) => return None,
        None => format!("{month} {}", ordinal(day)),
    };
    if let Some(year) = parsed(found, 4) {
        said.push_str(&format!(", {}", year_in(year, context.dialect)));
    }
    Some(said)
}

fn month_year(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("{} {}", month_name(group(found, 1))?, year_in(parsed(found, 2)?, context.dialect)))
}

fn month_short_year(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("{} {}", month_name(group(found, 1))?, two_digits(group(found, 3))?))
}

/// `5-Jan-24`
fn day_month_short_year(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (day, month) = (parsed(found, 1)?, month_name(group(found, 2))?);
    let year = year_in(full_year(group(found, 3))?, context.dialect);
    is_day(day, month).then(|| format!("the {} of {month}, {year}", ordinal(day)))
}

fn months(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("{} to {}", month_name(group(found, 1))?, month_name(group(found, 3))?))
}

fn day_and_month(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (day, month) = (parsed(found, 1)?, month_name(group(found, 3))?);
    if !is_day(day, month) {
        return None;
    }
    let the = if context.follows(&["the"]) { "" } else { "the " };
    let mut said = match parsed(found, 2) {
        Some(last) if is_day(last, month) => {
            format!("{the}{} to the {} of {month}", ordinal(day), ordinal(last))
        }
        Some(_) => return None,
        None => format!("{the}{} of {month}", ordinal(day)),
    };
    if let Some(year) = parsed(found, 4) {
        said.push_str(&format!(", {}", year_in(year, context.dialect)));
    }
    Some(said)
}

fn lone_month(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    // `from Jan. 5 to Feb. 3`: the date that follows is a separate form.
    if context.after.trim_start().starts_with(digit) {
        return None;
    }
    Some(format!("{} {}", group(found, 1), month_name(group(found, 2))?))
}

/// Plural of a decade: "eighties", "hundreds".
fn plural(words: &str) -> String {
    words.strip_suffix('y').map_or_else(|| format!("{words}s"), |stem| format!("{stem}ies"))
}

fn short_decade(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let has_mark = group(found, 0).starts_with(['\'', '’', '‘']);
    let number = parsed(found, 1)?;
    // `10s` and `30s` are seconds, unless the context suggests years.
    let of_years =
        context.follows(&["the", "early", "late", "mid", "his", "her", "their", "my", "in", "our", "your"]);
    // `1960s-70s`
    const TASTES: [&str; 16] = [
        "music",
        "rock",
        "pop",
        "hits",
        "songs",
        "fashion",
        "style",
        "movies",
        "film",
        "films",
        "shows",
        "kid",
        "kids",
        "era",
        "nostalgia",
        "party",
    ];
    let of_years = of_years || context.words[0].ends_with("0s") || TASTES.contains(&context.next_word());
    // `80s and 90s`
    let joined = ["and", "or"].contains(&context.next_word()) && context.after[1..].contains("0s");
    let of_years = of_years || joined || context.follows(&["and", "or"]) && context.words[1].ends_with("0s");
    if !has_mark && !of_years {
        return None;
    }
    Some(if number == 0 { "two thousands".to_owned() } else { plural(&numbers::cardinal(number)) })
}

/// Digit in the plural: `the 1s and 0s`.
fn digits(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let of_digits =
        context.follows(&["the", "all", "two", "three", "four", "five", "six", "many", "no", "and", "of"]);
    let words = numbers::cardinal(parsed(found, 1)?);
    of_digits.then(|| if words == "six" { "sixes".to_owned() } else { format!("{words}s") })
}

fn decade(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let number = parsed(found, 1).filter(|number| (1100..2100).contains(number))?;
    let words = if number == 2000 { "two thousand".to_owned() } else { year_in(number, context.dialect) };
    Some(plural(&words))
}

/// Year of two digits in words.
fn two_digits(text: &str) -> Option<String> {
    let number: u64 = text.parse().ok()?;
    Some(match number {
        0 => "two thousand".to_owned(),
        1..10 => format!("oh {}", numbers::cardinal(number)),
        _ => numbers::cardinal(number),
    })
}

fn short_year(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    two_digits(group(found, 1))
}

fn years(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (from, to) = (parsed(found, 1).filter(|year| (1100..2100).contains(year))?, parsed(found, 2)?);
    let follows = from % 100 < to;
    follows.then(|| format!("{} to {}", year_in(from, context.dialect), numbers::cardinal(to)))
}

/// Consecutive years: `1999/2000`.
fn season(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (from, to) = (parsed(found, 1)?, parsed(found, 2)?);
    (to == from + 1).then(|| [from, to].map(|year| year_in(year, context.dialect)).join(" to "))
}

/// Year of an era, of up to four digits.
fn old_year(text: &str, dialect: Dialect) -> Option<String> {
    let number: u64 = text.parse().ok()?;
    let is_round = number.is_multiple_of(100);
    Some(match text.len() {
        3 if is_round => cardinal(number, dialect),
        3 => format!(
            "{} {}",
            numbers::cardinal(number / 100),
            match number % 100 {
                tail @ 1..10 => format!("oh {}", numbers::cardinal(tail)),
                tail => numbers::cardinal(tail),
            }
        ),
        4 => year_in(number, dialect),
        _ => amount(text, dialect),
    })
}

fn era_behind(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let from = old_year(group(found, 1), context.dialect)?;
    let to = match group(found, 2) {
        "" => String::new(),
        to => format!(" to {}", old_year(to, context.dialect)?),
    };
    Some(format!("{from}{to} {}", spelled(group(found, 3))))
}

fn era_before(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("A D {}", old_year(group(found, 2), context.dialect)?))
}

fn quarter(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (kind, text) = (group(found, 1), group(found, 2));
    let kind = match kind {
        "FY" => "fiscal year".to_owned(),
        _ => format!("{} {}", &kind[..1], numbers::cardinal(kind[1..].parse().ok()?)),
    };
    let year = if text.len() == 2 { two_digits(text)? } else { year_in(text.parse().ok()?, context.dialect) };
    Some(format!("{kind} {year}"))
}

fn named_year(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("{} {}", group(found, 1), year_in(parsed(found, 2)?, context.dialect)))
}
