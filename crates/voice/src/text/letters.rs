//! Pronunciation by letter rules, longest first, in misaki's phonemes, for words that no dictionary has. The
//! result is intelligible and may be wrong, so such words are reported.

/// Sounds of letters, longest first. A rule that begins with `^` applies at the start of a word, one that ends
/// with `$` at its end.
const RULES: &[(&str, &str)] = &[
    ("tion", "ʃən"),
    ("sion", "ʒən"),
    ("ture", "ʧəɹ"),
    ("cious", "ʃəs"),
    ("tious", "ʃəs"),
    ("ough", "O"),
    ("augh", "ɔ"),
    ("eigh", "A"),
    ("igh", "I"),
    ("^kn", "n"),
    ("^wr", "ɹ"),
    ("^ps", "s"),
    ("^x", "z"),
    ("tch", "ʧ"),
    ("sch", "sk"),
    ("dge$", "ʤ"),
    ("dge", "ʤ"),
    ("ck", "k"),
    ("ch", "ʧ"),
    ("sh", "ʃ"),
    ("th", "θ"),
    ("ph", "f"),
    ("wh", "w"),
    ("gh", "ɡ"),
    ("qu", "kw"),
    ("ng$", "ŋ"),
    ("ng", "ŋɡ"),
    ("nk", "ŋk"),
    ("mb$", "m"),
    ("ee", "i"),
    ("ea", "i"),
    ("oo", "u"),
    ("ou", "W"),
    ("ow$", "O"),
    ("ow", "W"),
    ("oi", "Y"),
    ("oy", "Y"),
    ("ai", "A"),
    ("ay", "A"),
    ("au", "ɔ"),
    ("aw", "ɔ"),
    ("oa", "O"),
    ("ie$", "i"),
    ("ie", "i"),
    ("ei", "A"),
    ("ey$", "i"),
    ("ey", "A"),
    ("ew", "ju"),
    ("ue$", "u"),
    ("eu", "ju"),
    ("ar", "ɑɹ"),
    ("er$", "əɹ"),
    ("er", "ɜɹ"),
    ("ir", "ɜɹ"),
    ("or", "ɔɹ"),
    ("ur", "ɜɹ"),
    ("ce", "s"),
    ("ci", "sɪ"),
    ("cy", "si"),
    ("ge$", "ʤ"),
    ("gi", "ʤɪ"),
    ("bb", "b"),
    ("cc", "k"),
    ("dd", "d"),
    ("ff", "f"),
    ("gg", "ɡ"),
    ("ll", "l"),
    ("mm", "m"),
    ("nn", "n"),
    ("pp", "p"),
    ("rr", "ɹ"),
    ("ss", "s"),
    ("tt", "t"),
    ("zz", "z"),
    ("le$", "əl"),
    ("es$", "z"),
    ("e$", ""),
    ("y$", "i"),
    ("^y", "j"),
    ("o$", "O"),
    ("a$", "ə"),
    ("i$", "i"),
    ("u$", "u"),
    ("s$", "s"),
    ("a", "æ"),
    ("b", "b"),
    ("c", "k"),
    ("d", "d"),
    ("e", "ɛ"),
    ("f", "f"),
    ("g", "ɡ"),
    ("h", "h"),
    ("i", "ɪ"),
    ("j", "ʤ"),
    ("k", "k"),
    ("l", "l"),
    ("m", "m"),
    ("n", "n"),
    ("o", "ɑ"),
    ("p", "p"),
    ("q", "k"),
    ("r", "ɹ"),
    ("s", "s"),
    ("t", "t"),
    ("u", "ʌ"),
    ("v", "v"),
    ("w", "w"),
    ("x", "ks"),
    ("y", "ɪ"),
    ("z", "z"),
];
/// Names of letters.
const NAMES: [&str; 26] = [
    "ˈA",
    "bˈi",
    "sˈi",
    "dˈi",
    "ˈi",
    "ˈɛf",
    "ʤˈi",
    "ˈAʧ",
    "ˈI",
    "ʤˈA",
    "kˈA",
    "ˈɛl",
    "ˈɛm",
    "ˈɛn",
    "ˈO",
    "pˈi",
    "kjˈu",
    "ˈɑɹ",
    "ˈɛs",
    "tˈi",
    "jˈu",
    "vˈi",
    "dˈʌbᵊlju",
    "ˈɛks",
    "wˈI",
    "zˈi",
];
const VOWELS: &str = "AIOWYQæɑɔəɛɜɪiuʊʌ";

/// Removes an accent.
fn plain(letter: char) -> char {
    match letter {
        'á' | 'à' | 'â' | 'ä' | 'ã' | 'å' => 'a',
        'é' | 'è' | 'ê' | 'ë' => 'e',
        'í' | 'ì' | 'î' | 'ï' => 'i',
        'ó' | 'ò' | 'ô' | 'ö' | 'õ' | 'ø' => 'o',
        'ú' | 'ù' | 'û' | 'ü' => 'u',
        'ñ' => 'n',
        'ç' => 's',
        other => other,
    }
}

/// Phonemes of a word, with the stress on its first vowel. A word without vowels is spelled.
pub(super) fn phonemes(word: &str) -> String {
    let lower: String =
        word.chars().flat_map(char::to_lowercase).map(plain).filter(char::is_ascii_lowercase).collect();
    if lower.is_empty() {
        return String::new();
    }
    if !lower.contains(['a', 'e', 'i', 'o', 'u', 'y']) {
        let names = lower.bytes().map(|letter| NAMES[usize::from(letter - b'a')]);
        return names.collect::<Vec<_>>().join("");
    }
    let (mut said, mut at) = (String::new(), 0);
    while at < lower.len() {
        let rest = &lower[at..];
        let fits = |rule: &str| {
            let (begins, ends) = (rule.starts_with('^'), rule.ends_with('$'));
            let letters = rule.trim_matches(['^', '$']);
            let there =
                rest.starts_with(letters) && (!begins || at == 0) && (!ends || rest.len() == letters.len());
            there.then_some(letters.len())
        };
        let rule = RULES.iter().find_map(|(rule, sound)| fits(rule).map(|length| (length, *sound)));
        // Every letter has a rule.
        let (length, sound) = rule.unwrap_or((1, ""));
        said.push_str(sound);
        at += length;
    }
    match said.find(|letter| VOWELS.contains(letter)) {
        Some(place) => format!("{}ˈ{}", &said[..place], &said[place..]),
        None => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_have_sounds() {
        assert_eq!(phonemes("blorf"), "blˈɔɹf");
        assert_eq!(phonemes("zwitching"), "zwˈɪʧɪŋ");
        assert_eq!(phonemes("xkcd"), "ˈɛkskˈAsˈidˈi");
        assert_eq!(phonemes("…"), "");
    }
}
