//! Roman numerals: detection, and the choice between cardinal and ordinal by the word before them.

use super::numbers::{cardinal, ordinal};

/// Names of people whose numerals are ordinals.
const NAMES: [&str; 46] = [
    "Albert",
    "Alexander",
    "Alfonso",
    "Benedict",
    "Boniface",
    "Carl",
    "Catherine",
    "Charles",
    "Christian",
    "Clement",
    "Darius",
    "Edward",
    "Elizabeth",
    "Emmanuel",
    "Ferdinand",
    "Francis",
    "Frederick",
    "George",
    "Gregory",
    "Gustav",
    "Haakon",
    "Harald",
    "Henry",
    "Innocent",
    "Ivan",
    "James",
    "John",
    "Joseph",
    "Juan",
    "Leo",
    "Leopold",
    "Louis",
    "Margaret",
    "Mary",
    "Maximilian",
    "Napoleon",
    "Nicholas",
    "Otto",
    "Paul",
    "Peter",
    "Philip",
    "Pius",
    "Richard",
    "Robert",
    "Wilhelm",
    "William",
];
/// Titles before a name whose numeral is an ordinal.
const TITLES: [&str; 9] =
    ["King", "Queen", "Pope", "Emperor", "Empress", "Tsar", "Kaiser", "Prince", "Sultan"];
/// Words after which even a single letter is a number.
const COUNTED: [&str; 15] = [
    "Type", "Class", "Grade", "Division", "War", "Chapter", "Part", "Volume", "Act", "Scene", "Book", "Bowl",
    "Title", "Article", "Phase",
];
/// Lower-case words after which a numeral of several letters is a number.
const NUMBERED: [&str; 15] = [
    "type", "phase", "stage", "part", "level", "class", "vol", "volume", "chapter", "ch", "section", "book",
    "act", "appendix", "grade",
];
/// Largest number that is read. Larger ones are rarely meant as numerals.
const MOST: u64 = 39;

/// Value of a correct numeral of I, V and X.
fn number(word: &str) -> Option<u64> {
    if word.is_empty() || word.len() > 7 || !word.bytes().all(|byte| b"IVX".contains(&byte)) {
        return None;
    }
    (1..=MOST).find(|&number| {
        let ones = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"][number as usize % 10];
        word.strip_suffix(ones).is_some_and(|tens| tens == &"XXX"[..number as usize / 10])
    })
}

/// Value of a numeral of all seven letters, after a counted word: `Super Bowl LVIII`.
fn long_number(word: &str) -> Option<u64> {
    const PARTS: [(u64, &str); 13] = [
        (1000, "M"),
        (900, "CM"),
        (500, "D"),
        (400, "CD"),
        (100, "C"),
        (90, "XC"),
        (50, "L"),
        (40, "XL"),
        (10, "X"),
        (9, "IX"),
        (5, "V"),
        (4, "IV"),
        (1, "I"),
    ];
    if word.len() > 15 {
        return None;
    }
    let (mut rest, mut number) = (word, 0);
    for (value, letters) in PARTS {
        let most = if letters.len() == 2 || matches!(letters, "V" | "L" | "D") { 1 } else { 3 };
        for _ in 0..most {
            let Some(after) = rest.strip_prefix(letters) else { break };
            (rest, number) = (after, number + value);
        }
    }
    (rest.is_empty() && number > 0).then_some(number)
}

/// Words of a numeral: `War II` is a cardinal, `Henry VIII` an ordinal. `before` has the words before it,
/// nearest first. `after` is the text after it. `is_apart` is true if punctuation stands between it and the
/// last word.
pub(super) fn said(word: &str, before: &[&str], after: &str, is_apart: bool) -> Option<String> {
    let (stem, possessive) =
        word.strip_suffix("'s").or_else(|| word.strip_suffix("’s")).map_or((word, ""), |stem| (stem, "'s"));
    let last = before.first().copied().unwrap_or_default();
    let is_counted = COUNTED.contains(&last) && !is_apart;
    let number = number(stem).or_else(|| long_number(stem).filter(|_| is_counted))?;
    if after.starts_with(|c: char| c.is_alphanumeric() || c == '-' || c == '&') {
        return None;
    }
    let count = || Some(format!("{}{possessive}", cardinal(number)));
    let rank = || Some(format!("the {}{possessive}", ordinal(number)));
    let titled = before.get(1).is_some_and(|title| TITLES.contains(title));
    if NAMES.contains(&last) || titled {
        // `I` after a name may be the pronoun.
        let next = after.trim_start();
        let end = next.find(|c: char| !c.is_alphabetic()).unwrap_or(next.len());
        let goes_on = after.starts_with(' ') && !next.is_empty() && &next[..end] != "of";
        let me = stem == "I" && !titled && possessive.is_empty() && goes_on;
        return if me { None } else { rank() };
    }
    if after.trim_start().starts_with("century") {
        return Some(ordinal(number));
    }
    match stem.len() {
        _ if is_apart => None,
        1 if COUNTED.contains(&last) => count(),
        1 => None,
        // `type II`, `Rocky III`; but `the IV drip`.
        _ if last.starts_with(char::is_uppercase) => count(),
        _ if NUMBERED.contains(&last) => count(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{Dialect, normalize};

    #[test]
    fn numerals_are_what_they_should_be() {
        for (word, right) in
            [("I", Some(1)), ("IV", Some(4)), ("IX", Some(9)), ("XIV", Some(14)), ("XXXIX", Some(39))]
        {
            assert_eq!(number(word), right, "{word}");
        }
        for word in ["", "IIII", "VX", "IIX", "XXXX", "MIX", "XL", "ii"] {
            assert_eq!(number(word), None, "{word}");
        }
    }

    #[test]
    fn they_count_or_rank() {
        let said = |text: &str| normalize(text, Dialect::American);
        for (text, right) in [
            ("World War II ended", "World War two ended"),
            ("Elizabeth II was", "Elizabeth the second was"),
            ("Henry VIII's wives", "Henry the eighth's wives"),
            ("King Harold I, and Chapter V.", "King Harold the first, and Chapter five."),
            ("type II and Rocky III", "type two and Rocky three"),
            ("When I met Mary I ran", "When I met Mary I ran"),
            ("Malcolm X, the IV drip", "Malcolm X, the IV drip"),
            ("Yes, II IX-ray", "Yes, II IX-ray"),
        ] {
            assert_eq!(said(text), right);
        }
    }
}
