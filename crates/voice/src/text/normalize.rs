//! What English says for what is written otherwise: numbers, dates, times, money, units, abbreviations, signs. Words stay.

use super::numbers::{cardinal, digits, ordinal, written, year};
use super::roman;

/// Abbreviations, without the point, where the next word begins.
const TITLES: [(&str, &str); 16] = [
    ("Mr", "mister"),
    ("Mrs", "missus"),
    ("Ms", "miz"),
    ("Dr", "doctor"),
    ("Prof", "professor"),
    ("St", "saint"),
    ("Jr", "junior"),
    ("Sr", "senior"),
    ("vs", "versus"),
    ("etc", "et cetera"),
    ("approx", "approximately"),
    ("dept", "department"),
    ("Gen", "general"),
    ("Col", "colonel"),
    ("Lt", "lieutenant"),
    ("No", "number"),
];
/// Those that are two letters with points.
const POINTED: [(&str, &str); 4] =
    [("e.g.", "for example"), ("i.e.", "that is"), ("a.m.", "A M"), ("p.m.", "P M")];
/// Units behind a number: one, several.
const UNITS: [(&str, &str, &str); 30] = [
    ("km/h", "kilometer per hour", "kilometers per hour"),
    ("mph", "mile per hour", "miles per hour"),
    ("km", "kilometer", "kilometers"),
    ("cm", "centimeter", "centimeters"),
    ("mm", "millimeter", "millimeters"),
    ("m", "meter", "meters"),
    ("kg", "kilogram", "kilograms"),
    ("mg", "milligram", "milligrams"),
    ("g", "gram", "grams"),
    ("lb", "pound", "pounds"),
    ("lbs", "pound", "pounds"),
    ("oz", "ounce", "ounces"),
    ("ft", "foot", "feet"),
    ("mi", "mile", "miles"),
    ("ml", "milliliter", "milliliters"),
    ("l", "liter", "liters"),
    ("ms", "millisecond", "milliseconds"),
    ("s", "second", "seconds"),
    ("min", "minute", "minutes"),
    ("h", "hour", "hours"),
    ("Hz", "hertz", "hertz"),
    ("kHz", "kilohertz", "kilohertz"),
    ("GB", "gigabyte", "gigabytes"),
    ("MB", "megabyte", "megabytes"),
    ("KB", "kilobyte", "kilobytes"),
    ("TB", "terabyte", "terabytes"),
    ("tbsp", "tablespoon", "tablespoons"),
    ("tsp", "teaspoon", "teaspoons"),
    ("kW", "kilowatt", "kilowatts"),
    ("%", "percent", "percent"),
];
const CURRENCIES: [(char, [&str; 4]); 4] = [
    ('$', ["dollar", "dollars", "cent", "cents"]),
    ('€', ["euro", "euros", "cent", "cents"]),
    ('£', ["pound", "pounds", "penny", "pence"]),
    ('¥', ["yen", "yen", "sen", "sen"]),
];
const MONTHS: [&str; 12] = [
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
const SCALES: [&str; 4] = ["thousand", "million", "billion", "trillion"];
const SIGNS: [(char, &str); 9] = [
    ('&', "and"),
    ('@', "at"),
    ('+', "plus"),
    ('=', "equals"),
    ('#', "number"),
    ('°', "degrees"),
    ('×', "times"),
    ('÷', "divided by"),
    ('~', "about"),
];

/// A text in words.
pub(crate) fn normalize(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut said: Vec<String> = Vec::with_capacity(words.len());
    let mut at = 0;
    while at < words.len() {
        let (used, word) = match roman::said(&words, at) {
            Some(word) => (1, word),
            None => one(words[..at].last().copied().unwrap_or_default(), &words[at..]),
        };
        said.push(word);
        at += used;
    }
    said.join(" ")
}

/// The first of these words, or the first few, and how many they were. `last` is the word before them.
fn one(last: &str, words: &[&str]) -> (usize, String) {
    let word = words[0];
    // What stands around a word stays around it.
    let opens = word.len() - word.trim_start_matches(['(', '"', '\'', '“', '‘', '[', '{']).len();
    let (before, rest) = word.split_at(opens);
    let pointed = POINTED.iter().find_map(|(short, long)| {
        let (start, after) = rest.split_at_checked(short.len())?;
        let alone = start.eq_ignore_ascii_case(short) && !after.starts_with(char::is_alphanumeric);
        alone.then_some((long, after))
    });
    if let Some((long, after)) = pointed {
        // The last point is the sentence's too, where nothing follows.
        let end = if after.is_empty() && words.len() == 1 { "." } else { after };
        return (1, format!("{before}{long}{end}"));
    }
    let core = rest.trim_end_matches([')', '"', '\'', '”', '’', ']', '}', ',', ';', ':', '!', '?', '.', '…']);
    let after = &rest[core.len()..];
    let around = |middle: String, after: &str| format!("{before}{middle}{after}");
    if let Some((_, long)) =
        TITLES.iter().find(|(short, _)| *short == core).filter(|_| after.starts_with('.'))
    {
        // The point is the abbreviation's own, unless nothing follows.
        let after = if words.len() > 1 { &after[1..] } else { after };
        let known =
            core != "No" || words.get(1).is_some_and(|next| next.starts_with(|c: char| c.is_ascii_digit()));
        if known {
            return (1, around((*long).to_owned(), after));
        }
    }
    if let Some(month) =
        MONTHS.iter().find(|month| is_month(month, core)).filter(|_| after.is_empty() || after == ".")
        && let Some((used, date, after)) = after_month(&words[1..])
    {
        return (1 + used, format!("{before}{month} {date}{after}"));
    }
    let next = words.get(1).copied().unwrap_or_default();
    if !core.contains(|c: char| c.is_ascii_digit()) {
        return (1, around(signs(core), after));
    }
    // A unit, or how many, may be a word of its own.
    let whole = names_what_follows(last, words.get(2).copied().unwrap_or_default());
    if after.is_empty()
        && let Some((value, next_after)) = with_next(core, next, whole)
    {
        return (2, format!("{before}{value}{next_after}"));
    }
    // What is said digit by digit is a breath of its own: `four two before nine` is heard as more digits.
    let breath = after.is_empty() && words.len() > 1 && phone(core).is_some();
    (1, around(token(core), if breath { "," } else { after }))
}

/// Whether it is a month's name, or the beginning of it that people write.
fn is_month(month: &str, word: &str) -> bool {
    month == word || month.starts_with(word) && (word.len() == 3 || word == "Sept")
}

/// Whether an amount between these two words says what kind of thing the second is, and is not counted: `a 5 km run`.
fn names_what_follows(last: &str, next: &str) -> bool {
    const GOES_ON: [&str; 32] = [
        "of", "in", "on", "at", "to", "by", "as", "for", "from", "with", "into", "than", "that", "which",
        "and", "or", "it", "he", "she", "they", "we", "you", "I", "is", "was", "are", "were", "has", "had",
        "have", "will", "would",
    ];
    let named = next.starts_with(char::is_alphabetic) && !GOES_ON.contains(&next);
    named && ["a", "an", "another", "the"].iter().any(|word| word.eq_ignore_ascii_case(last))
}

/// A number with the unit or the scale that stands behind it, and what stands behind that. `whole`: it is not counted.
fn with_next<'a>(core: &str, next: &'a str, whole: bool) -> Option<(String, &'a str)> {
    let name = next.trim_end_matches([',', ';', ':', '!', '?', '.', ')']);
    let after = &next[name.len()..];
    let whole = whole && after.is_empty();
    if let Some((sign, names)) = CURRENCIES.iter().find(|(sign, _)| core.starts_with(*sign)) {
        let amount = core.trim_start_matches(*sign);
        let scale = SCALES.iter().find(|scale| scale.eq_ignore_ascii_case(name));
        return scale
            .filter(|_| is_number(amount))
            .map(|scale| (format!("{} {scale} {}", written(amount), names[usize::from(!whole)]), after));
    }
    let known = |short: &str| short == name && (name.len() > 1 || ["m", "g", "l"].contains(&name));
    let (_, one, many) = UNITS.iter().find(|(short, ..)| known(short))?;
    let single = core == "1" || whole;
    is_number(core).then(|| (format!("{} {}", written(core), if single { one } else { many }), after))
}

/// `5, 2024` or `5th` behind a month's name: how many words, how it is said, what stands behind.
fn after_month<'a>(words: &[&'a str]) -> Option<(usize, String, &'a str)> {
    let first = words.first()?;
    let core = first.trim_end_matches([',', '.', '!', '?', ';', ')']);
    let day = core.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse::<u64>().ok()?;
    if core.len() == 4 && (1000..3000).contains(&day) {
        return Some((1, year(day), &first[core.len()..]));
    }
    if !(1..=31).contains(&day) || core.len() > 4 {
        return None;
    }
    let of_year = words.get(1).and_then(|word| {
        let digits = word.trim_end_matches([',', '.', '!', '?', ';', ')']);
        let number = digits.parse::<u64>().ok().filter(|_| digits.len() == 4)?;
        Some((year(number), &word[digits.len()..]))
    });
    match of_year {
        Some((year, after)) if first[core.len()..].is_empty() || first.ends_with(',') => {
            Some((2, format!("{}, {year}", ordinal(day)), after))
        }
        _ => Some((1, ordinal(day), &first[core.len()..])),
    }
}

fn is_number(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').map_or((text, "0"), |(whole, rest)| (whole, rest));
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let grouped =
        whole.split(',').enumerate().all(|(at, group)| plain(group) && (at == 0 || group.len() == 3));
    grouped && plain(fraction)
}

/// A word with digits in it.
fn token(core: &str) -> String {
    let number = |text: &str| text.parse::<u64>().ok();
    if let Some((sign, names)) = CURRENCIES.iter().find(|(sign, _)| core.starts_with(*sign)) {
        let amount = core.trim_start_matches(*sign);
        if is_number(amount) {
            return money(amount, names);
        }
    }
    if let Some(rest) = core.strip_prefix(['-', '−']).filter(|rest| is_number(rest)) {
        return format!("minus {}", written(rest));
    }
    if core.len() == 4 && (1100..2100).contains(&number(core).unwrap_or(0)) {
        return year(number(core).unwrap_or(0));
    }
    if is_number(core) {
        return written(core);
    }
    // Before units, of which a second is one.
    if let Some(decade) = core
        .strip_suffix('s')
        .filter(|text| text.len() == 4 && text.ends_with('0'))
        .and_then(number)
        .filter(|decade| (1100..2100).contains(decade))
    {
        let words = year(decade);
        return words.strip_suffix('y').map_or_else(|| format!("{words}s"), |stem| format!("{stem}ies"));
    }
    // The longest name first.
    for (short, one, many) in UNITS {
        if let Some(amount) = core.strip_suffix(short).filter(|amount| is_number(amount)) {
            return format!("{} {}", written(amount), if amount == "1" { one } else { many });
        }
    }
    for (short, long) in [("°C", "degrees Celsius"), ("°F", "degrees Fahrenheit"), ("°", "degrees")] {
        if let Some(amount) = core.strip_suffix(short) {
            return format!("{} {long}", token(amount));
        }
    }
    if let Some(rest) =
        ["st", "nd", "rd", "th"].iter().find_map(|end| core.strip_suffix(end)).and_then(number)
    {
        return ordinal(rest);
    }
    if let Some(said) = time(core).or_else(|| date(core)).or_else(|| phone(core)) {
        return said;
    }
    if let Some((from, to)) = core.split_once(['-', '–']).filter(|(a, b)| is_number(a) && is_number(b)) {
        return format!("{} to {}", token(from), token(to));
    }
    if let Some((top, bottom)) = core.split_once('/').and_then(|(a, b)| Some((number(a)?, number(b)?))) {
        let part = match bottom {
            2 => "half".to_owned(),
            4 => "quarter".to_owned(),
            _ => ordinal(bottom),
        };
        return format!("{} {part}{}", cardinal(top), if top == 1 { "" } else { "s" });
    }
    mixed(core)
}

fn money(amount: &str, [one, many, cent, cents]: &[&str; 4]) -> String {
    let (whole, fraction) = amount.split_once('.').map_or((amount, ""), |(whole, rest)| (whole, rest));
    let main = format!("{} {}", written(whole), if whole == "1" { one } else { many });
    let small = fraction.parse::<u64>().unwrap_or(0) * if fraction.len() == 1 { 10 } else { 1 };
    match (fraction.len(), small) {
        (0..=2, 0) => main,
        (0..=2, _) if whole == "0" => {
            format!("{} {}", cardinal(small), if small == 1 { cent } else { cents })
        }
        (0..=2, _) => format!("{main} and {} {}", cardinal(small), if small == 1 { cent } else { cents }),
        _ => format!("{} {many}", written(amount)),
    }
}

/// `3:45`, `15:00`, with or without `am` or `pm`.
fn time(core: &str) -> Option<String> {
    let lower = core.to_ascii_lowercase();
    let (clock, half) = ["am", "pm"]
        .iter()
        .find_map(|half| lower.strip_suffix(half).map(|clock| (clock, Some(*half))))
        .unwrap_or((&lower[..], None));
    let half = half.map_or("", |half| if half == "am" { " A M" } else { " P M" });
    let Some((hours, minutes)) = clock.split_once(':') else {
        let hours = clock.parse::<u64>().ok().filter(|hours| (1..=12).contains(hours))?;
        return (!half.is_empty()).then(|| format!("{}{half}", cardinal(hours)));
    };
    let (hour, minute) = (hours.parse::<u64>().ok()?, minutes.parse::<u64>().ok()?);
    if hour > 24 || minute > 59 || minutes.len() != 2 {
        return None;
    }
    let minute = match minute {
        0 if half.is_empty() && hour <= 12 => " o'clock".to_owned(),
        0 if half.is_empty() => " hundred".to_owned(),
        0 => String::new(),
        1..10 => format!(" oh {}", cardinal(minute)),
        _ => format!(" {}", cardinal(minute)),
    };
    Some(format!("{}{minute}{half}", cardinal(hour)))
}

/// `2024-05-17` and, as Americans write it, `5/17/2024`.
fn date(core: &str) -> Option<String> {
    let parts = |separator: char| -> Option<[u64; 3]> {
        let parts: Option<Vec<u64>> = core.split(separator).map(|part| part.parse().ok()).collect();
        parts?.try_into().ok()
    };
    let [of_year, month, day] = match (parts('-'), parts('/')) {
        (Some(date), _) => date,
        (None, Some([month, day, year])) => [year, month, day],
        (None, None) => return None,
    };
    let name = MONTHS.get((month as usize).checked_sub(1)?)?;
    let known = (1..=31).contains(&day) && (1000..3000).contains(&of_year);
    known.then(|| format!("{name} {}, {}", ordinal(day), year(of_year)))
}

/// `555-0142` and `202-555-0142`, as North Americans write numbers of telephones: digit by digit.
fn phone(core: &str) -> Option<String> {
    let groups: Vec<&str> = core.split('-').collect();
    if !groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let known = match groups.iter().map(|group| group.len()).collect::<Vec<_>>()[..] {
        // Rather from one to the other.
        [3, 4] => !groups[1].ends_with("00"),
        [3, 3, 4] | [1, 3, 3, 4] => true,
        _ => false,
    };
    known.then(|| groups.iter().map(|group| digits(group)).collect::<Vec<_>>().join(", "))
}

/// Letters, digits and signs in one word: each by itself.
fn mixed(core: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut run = String::new();
    let flush = |run: &mut String, parts: &mut Vec<String>| {
        if !run.is_empty() {
            let is_digits = run.starts_with(|c: char| c.is_ascii_digit());
            parts.push(match is_digits {
                true if run.len() > 4 => digits(run),
                true => written(run),
                false => std::mem::take(run),
            });
            run.clear();
        }
    };
    for letter in core.chars() {
        let ends = run.chars().next().is_some_and(|first| first.is_ascii_digit() != letter.is_ascii_digit());
        let sign = match letter {
            '.' => Some("point"),
            '/' => Some("slash"),
            ':' => Some(","),
            '-' | '–' | ',' | '(' | ')' => Some(""),
            '%' => Some("percent"),
            _ => SIGNS.iter().find(|(sign, _)| *sign == letter).map(|(_, word)| *word),
        };
        if ends || sign.is_some() {
            flush(&mut run, &mut parts);
        }
        match sign {
            Some("") => {}
            Some(word) => parts.push(word.to_owned()),
            None => run.push(letter),
        }
    }
    flush(&mut run, &mut parts);
    parts.join(" ").replace(" ,", ",")
}

/// A word without digits, its signs said.
fn signs(core: &str) -> String {
    let is_address = core.contains("://") || core.contains('@') || core.starts_with("www.");
    let mut said = String::with_capacity(core.len());
    for letter in core.trim_start_matches("https://").trim_start_matches("http://").chars() {
        let word = match letter {
            '.' if is_address => Some("dot"),
            '/' if is_address => Some("slash"),
            '_' | '*' | '`' | '|' | '\\' | '<' | '>' | '^' => Some(""),
            '%' => Some("percent"),
            _ => SIGNS.iter().find(|(sign, _)| *sign == letter).map(|(_, word)| *word),
        };
        match word {
            Some(word) => said.push_str(&format!(" {word} ")),
            None => said.push(letter),
        }
    }
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_said_in_words() {
        for (text, right) in [
            ("It costs $3.50, not $4.", "It costs three dollars and fifty cents, not four dollars."),
            ("A $3.2 billion deal.", "A three point two billion dollar deal."),
            (
                "The $3 billion it cost, a 5 km run, the 100 m in 9 s: $2 million",
                "The three billion dollars it cost, a five kilometer run, the one hundred meters in nine s: two million dollars",
            ),
            ("World War II, 250 g", "World War two, two hundred fifty grams"),
            (
                "Call 555-0142, 202-555-0142; pages 100-2000",
                "Call five five five, zero one four two, two zero two, five five five, zero one four two; pages one hundred to two thousand",
            ),
            (
                "Call 555-0142 before 3:30 p.m.",
                "Call five five five, zero one four two, before three thirty P M.",
            ),
            ("Dial 555-0142", "Dial five five five, zero one four two"),
            ("Dr. Smith met Mrs. Jones.", "doctor Smith met missus Jones."),
            ("On May 5, 2024 at 3:45 pm!", "On May fifth, twenty twenty-four at three forty-five pm!"),
            ("At 10:05am and 9am.", "At ten oh five A M and nine A M."),
            (
                "2024-05-17 or 5/17/2024",
                "May seventeenth, twenty twenty-four or May seventeenth, twenty twenty-four",
            ),
            (
                "It is 20°C, 5 km and 80kg.",
                "It is twenty degrees Celsius, five kilometers and eighty kilograms.",
            ),
            (
                "In 1984, 1,234 of 50%",
                "In nineteen eighty-four, one thousand two hundred thirty-four of fifty percent",
            ),
            ("the 21st of the 1990s", "the twenty-first of the nineteen nineties"),
            ("pages 5-10, about 1/2 or 3/4", "pages five to ten, about one half or three quarters"),
            ("Tom & Ann, e.g. \"B2B\"", "Tom and Ann, for example \"B two B\""),
            ("mail me@example.com or https://a.org", "mail me at example dot com or a dot org"),
            ("-3.5 degrees", "minus three point five degrees"),
            ("No. 5 said: No.", "number five said: No."),
            (
                "At 9 a.m., (I.e., 2 tbsp on Oct. 3rd)",
                "At nine A M, (that is, two tablespoons on October third)",
            ),
            ("1 tsp, Sept 5, Mars 5", "one teaspoon, September fifth, Mars five"),
        ] {
            assert_eq!(normalize(text), right);
        }
    }

    #[test]
    fn nothing_panics() {
        for text in [
            "", " ", "$", "$.", "1/0", "0/0", "99:99", "1-2-3", "-", "%", "°", "€€5", "１２", "5/", "/5", "٣",
        ] {
            normalize(text);
        }
    }
}
