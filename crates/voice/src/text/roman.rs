//! Roman numerals: which words are some, and whether they count or rank what stands before them.

use super::numbers::{cardinal, ordinal};

/// Names of people whose numerals are ranks.
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
/// Whoever has one of these before the name.
const TITLES: [&str; 9] =
    ["King", "Queen", "Pope", "Emperor", "Empress", "Tsar", "Kaiser", "Prince", "Sultan"];
/// What is counted, so that even one letter is a number behind it.
const COUNTED: [&str; 11] =
    ["War", "Chapter", "Part", "Volume", "Act", "Scene", "Book", "Bowl", "Title", "Article", "Phase"];
/// The largest that is read: longer ones are rarely meant.
const MOST: u64 = 39;

/// A numeral of I, V and X, written as it should be.
fn number(word: &str) -> Option<u64> {
    if word.is_empty() || word.len() > 7 || !word.bytes().all(|byte| b"IVX".contains(&byte)) {
        return None;
    }
    (1..=MOST).find(|&number| {
        let ones = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"][number as usize % 10];
        word.strip_suffix(ones).is_some_and(|tens| tens == &"XXX"[..number as usize / 10])
    })
}

/// How the word at `at` is said if it is a numeral: `War II` counts, `Henry VIII` ranks.
pub(super) fn said(words: &[&str], at: usize) -> Option<String> {
    let (word, before) = (words[at], words[..at].last()?);
    let end = word.find(|c: char| !c.is_ascii_uppercase()).unwrap_or(word.len());
    let (core, after) = word.split_at(end);
    let number = number(core)?;
    if after.starts_with(|c: char| c.is_alphanumeric() || c == '-' || c == '&') {
        return None;
    }
    let before = before.trim_start_matches(['(', '"', '“', '‘', '\'']);
    let count = || Some(format!("{}{after}", cardinal(number)));
    let rank = || Some(format!("the {}{after}", ordinal(number)));
    let titled = at > 1 && TITLES.contains(&words[at - 2]);
    if NAMES.contains(&before) || titled {
        // `I` behind a name may be who speaks.
        let next = words.get(at + 1).copied().unwrap_or_default();
        let me = core == "I" && !titled && after.is_empty() && !next.is_empty() && next != "of";
        return if me { None } else { rank() };
    }
    match core.len() {
        1 if COUNTED.contains(&before) => count(),
        1 => None,
        // `type II`, `Rocky III`; but `the IV drip`.
        _ if before.starts_with(char::is_uppercase) => count(),
        _ if ["type", "phase", "stage", "part", "level", "class"].contains(&before) => count(),
        _ => None,
    }
    .filter(|_| before.ends_with(char::is_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let said = |text: &str| {
            let words: Vec<&str> = text.split(' ').collect();
            let said = |at: usize| said(&words, at).unwrap_or_else(|| words[at].to_owned());
            (0..words.len()).map(said).collect::<Vec<_>>().join(" ")
        };
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
