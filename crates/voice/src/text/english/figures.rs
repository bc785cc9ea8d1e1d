//! Figures read as misaki does, for those that remain after [`super::super::normalize`]. The words are in its
//! dictionaries.

use super::super::numbers::{cardinal, ordinal, year};

const ORDINALS: [&str; 4] = ["st", "nd", "rd", "th"];

/// Returns true if the word consists only of figures, with a sign, commas, points or an ordinal ending.
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

/// Number in words. A number that has none is returned unchanged.
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

/// Figures followed directly by a word, read as in a telephone number. None if they are read as usual.
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

/// Amount of money after its sign.
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
    // Zero of a unit is not said if the other unit is not zero.
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

/// Figures before an ordinal ending.
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

/// Replaces hyphens by spaces, because dictionaries have single words.
fn apart(words: &str) -> String {
    words.replace('-', " ")
}

fn of_a_year(number: u64) -> String {
    match (number / 100, number % 100) {
        // Read as usual, except for the first thousand.
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
