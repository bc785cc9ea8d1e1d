//! Figures as misaki reads them, in words that its dictionaries have: what is left of them after [`super::super::normalize`].

use super::super::numbers::{cardinal, ordinal, year};

const ORDINALS: [&str; 4] = ["st", "nd", "rd", "th"];

/// Whether figures are all that this is, with a sign, commas, points or the ending of an ordinal.
pub(super) fn is_number(word: &str) -> bool {
    let word = word.replace(',', "");
    if counted(&word).is_some() || word.parse::<i64>().is_ok() {
        return true;
    }
    let unsigned = word.strip_prefix('-').unwrap_or(&word);
    match unsigned.matches('.').count() {
        0 => !unsigned.is_empty() && unsigned.len() < word.len() && figures(unsigned),
        1 => unsigned
            .split_once('.')
            .is_some_and(|(whole, rest)| figures(whole) && !rest.is_empty() && figures(rest)),
        _ => {
            unsigned.chars().any(|c| c.is_ascii_digit())
                && unsigned.chars().all(|c| c.is_ascii_digit() || c == '.')
        }
    }
}

/// A number in words; one that has none stays what it is.
pub(super) fn in_words(word: &str) -> String {
    let clean = word.replace(',', "");
    if let Some(rest) = clean.strip_prefix('-')
        && !rest.is_empty()
        && rest.chars().all(|c| c.is_ascii_digit() || c == '.')
    {
        return format!("minus {}", in_words(rest));
    }
    if let Some(number) = counted(&clean).and_then(|figures| figures.parse::<i64>().ok()) {
        return apart(&ordinal(number as u64));
    }
    if word.len() == 4
        && figures(word)
        && let Ok(number) = word.parse()
    {
        return apart(&of_a_year(number));
    }
    if let Some(number) = whole(&clean) {
        return apart(&number);
    }
    match clean.split_once('.') {
        Some((_, rest)) if rest.contains('.') => {
            let parts = clean.split('.').filter(|part| !part.is_empty());
            parts.map(of_a_version).collect::<Vec<_>>().join(" ")
        }
        Some((head, rest)) if figures(head) && !rest.is_empty() && figures(rest) => {
            let head = match head {
                "" => String::new(),
                _ => match whole(head) {
                    Some(head) => apart(&head),
                    None => return word.to_owned(),
                },
            };
            let rest = rest.trim_end_matches('0');
            match (head.is_empty(), rest.is_empty()) {
                (true, true) => "zero".to_owned(),
                (false, true) => head,
                _ => format!("{head} point {}", one_by_one(rest)).trim_start().to_owned(),
            }
        }
        _ => word.to_owned(),
    }
}

/// Figures that go on with a word: those of a telephone number. `None` where they are said as others are.
pub(super) fn going_on(word: &str) -> Option<String> {
    let number = word.replace(',', "");
    if number.is_empty() || !figures(&number) {
        return None;
    }
    match number.len() {
        4 => None,
        3 if !number.starts_with('0') && !number.ends_with("00") => {
            let (first, rest) = number.split_at(1);
            let rest =
                rest.strip_prefix('0').map_or_else(|| spelled(rest), |last| format!("O {}", spelled(last)));
            Some(format!("{} {rest}", spelled(first)))
        }
        length if length > 3 || number.starts_with('0') => Some(one_by_one(&number)),
        _ => None,
    }
}

/// An amount of money after its sign.
pub(super) fn money(sign: char, amount: &str) -> Option<String> {
    let (unit, part) = match sign {
        '$' => ("dollar", "cent"),
        '£' => ("pound", "pence"),
        '€' => ("euro", "cent"),
        _ => return None,
    };
    let amount = amount.replace(',', "");
    if amount.is_empty() || !amount.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let mut sums = Vec::new();
    for (figures, unit) in amount.split('.').zip([unit, part]) {
        let number: i64 = if figures.is_empty() { 0 } else { figures.parse().ok()? };
        sums.push((number as u64, unit));
    }
    // None of one is not said where there is another.
    match sums[..] {
        [_, (0, _)] => sums.truncate(1),
        [(0, _), _] => drop(sums.remove(0)),
        _ => {}
    }
    let said = sums.into_iter().map(|(number, unit)| {
        let many = if number == 1 || unit == "pence" { "" } else { "s" };
        format!("{} {unit}{many}", apart(&cardinal(number)))
    });
    Some(said.collect::<Vec<_>>().join(" and "))
}

/// The figures before the ending of an ordinal.
fn counted(word: &str) -> Option<String> {
    let word = word.to_lowercase();
    let before = |ending| word.strip_suffix(ending).filter(|before| !before.is_empty() && figures(before));
    ORDINALS.iter().find_map(before).map(str::to_owned)
}

fn figures(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit())
}

fn whole(text: &str) -> Option<String> {
    text.parse::<i64>().ok().map(|number| cardinal(number as u64))
}

/// Words one by one, as dictionaries have them.
fn apart(words: &str) -> String {
    words.replace('-', " ")
}

fn of_a_year(number: u64) -> String {
    match (number / 100, number % 100) {
        // As others are read, but for the first thousand.
        (head @ 1..10, 0) => format!("{} hundred", cardinal(head)),
        (head @ 1..10, tail @ 1..10) => format!("{} oh {}", cardinal(head), cardinal(tail)),
        (head @ 0..10, tail @ 10..) => format!("{} {}", cardinal(head), cardinal(tail)),
        _ => year(number),
    }
}

fn of_a_version(part: &str) -> String {
    let round = part.len() == 2 || part[1..].chars().all(|figure| figure == '0');
    if part.starts_with('0') || !round { one_by_one(part) } else { spelled(part) }
}

fn spelled(figures: &str) -> String {
    whole(figures).map_or_else(|| figures.to_owned(), |number| apart(&number))
}

fn one_by_one(figures: &str) -> String {
    figures.chars().map(|figure| spelled(figure.encode_utf8(&mut [0; 4]))).collect::<Vec<_>>().join(" ")
}
