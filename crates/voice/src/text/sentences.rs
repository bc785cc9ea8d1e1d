//! Splitting of a text into sentences.

/// Abbreviations whose point never ends a sentence.
const SHORT: [&str; 37] = [
    "mr", "mrs", "ms", "dr", "prof", "st", "sts", "jr", "sr", "vs", "e.g", "i.e", "no", "gen", "col", "lt",
    "approx", "dept", "rev", "sen", "gov", "rep", "capt", "sgt", "cpl", "maj", "adm", "pres", "hon",
    "messrs", "mt", "ft", "cf", "viz", "ca", "tel", "incl",
];
/// Abbreviations whose point does not end a sentence before a number.
const COUNTED: [&str; 25] = [
    "fig", "figs", "pp", "vol", "vols", "ch", "chap", "sec", "eq", "art", "nos", "ext", "max", "min", "avg",
    "est", "apt", "ste", "rm", "bldg", "ver", "op", "pt", "para", "rs",
];
/// Abbreviations whose point does not end a sentence before a lower-case letter.
const BEHIND: [&str; 24] = [
    "inc", "ltd", "co", "corp", "bros", "ave", "blvd", "rd", "ln", "hwy", "ct", "sq", "pl", "max", "min",
    "avg", "al", "esq", "temp", "misc", "govt", "in", "oz", "lb",
];
/// Months whose point does not end a sentence before a number.
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"];

/// Sentences of a text, in order, trimmed. A blank line also ends a sentence.
pub(crate) fn sentences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for paragraph in text.split("\n\n") {
        let mut current = String::new();
        let mut words = paragraph.split_whitespace().peekable();
        while let Some(word) = words.next() {
            if !current.is_empty() {
                current.push(' ');
            }
            current.push_str(word);
            if ends(word, words.peek().copied().unwrap_or_default()) {
                found.push(std::mem::take(&mut current));
            }
        }
        if !current.is_empty() {
            found.push(current);
        }
    }
    found
}

/// Returns true if a sentence ends after `word` when `next` follows.
fn ends(word: &str, next: &str) -> bool {
    let bare = word.trim_end_matches(['"', '\'', ')', ']', '”', '’', '»']);
    if bare.ends_with(['!', '?', '…', '。', '！', '？']) {
        return true;
    }
    let Some(stem) = bare.strip_suffix('.') else { return false };
    let stem = stem.trim_start_matches(['(', '"', '“', '\'']).to_lowercase();
    let is_counted = MONTHS.contains(&stem.as_str()) || COUNTED.contains(&stem.as_str());
    // `9 a.m. on Monday`, `the U.S. economy`, `etc. and so on`; `Oct. 3rd`.
    let goes_on = (stem.contains('.') || stem == "etc") && next.starts_with(char::is_lowercase)
        || BEHIND.contains(&stem.as_str()) && next.starts_with(char::is_lowercase)
        || is_counted && next.starts_with(|c: char| c.is_ascii_digit());
    // A single letter is an initial.
    !goes_on && !SHORT.contains(&stem.as_str()) && stem.chars().count() != 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_inside_of_sentences_end_none() {
        let text = "Dr. A. Smith said \"No.\" He left at 3.5, e.g. early! (Really?)\n\nA title\n\nThe end";
        assert_eq!(
            sentences(text),
            ["Dr. A. Smith said \"No.\" He left at 3.5, e.g. early!", "(Really?)", "A title", "The end"]
        );
        assert!(sentences(" \n\n ").is_empty());
        let text = "Call at 9 a.m. on Oct. 3rd. He left the U.S. in May. It closes at 5 p.m. The U.S. etc. too. In Oct. He sat.";
        assert_eq!(
            sentences(text),
            [
                "Call at 9 a.m. on Oct. 3rd.",
                "He left the U.S. in May.",
                "It closes at 5 p.m.",
                "The U.S. etc. too.",
                "In Oct.",
                "He sat."
            ]
        );
        let text = "See Fig. 3 and pp. 5-6. Sen. Lee of Acme Inc. said so. He left Acme Inc. She stayed at max. 5 m.";
        assert_eq!(
            sentences(text),
            [
                "See Fig. 3 and pp. 5-6.",
                "Sen. Lee of Acme Inc. said so.",
                "He left Acme Inc.",
                "She stayed at max. 5 m."
            ]
        );
    }
}
