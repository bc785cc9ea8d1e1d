//! Conversion between phoneme alphabets: misaki's (Kokoro's), and IPA as espeak-ng writes it, which other
//! voices were trained on (github.com/hexgrad/misaki, `espeak.py`). espeak-ng's output has `^` between letters
//! of one sound.

/// misaki's own symbols, and vowels that espeak-ng marks as long. Longer entries come before shorter ones.
const SIGNS: [(&str, &str); 17] = [
    ("ɜɹ", "ɜː"),
    ("ɑɹ", "ɑːɹ"),
    ("ɔɹ", "ɔːɹ"),
    ("A", "eɪ"),
    ("I", "aɪ"),
    ("W", "aʊ"),
    ("Y", "ɔɪ"),
    ("O", "oʊ"),
    ("Q", "əʊ"),
    ("ʤ", "dʒ"),
    ("ʧ", "tʃ"),
    ("ᵊ", "ə"),
    ("T", "ɾ"),
    ("i", "iː"),
    ("u", "uː"),
    ("ɑ", "ɑː"),
    ("ɔ", "ɔː"),
];

/// espeak-ng's English sounds and misaki's symbols for them, in the order of replacement.
const ENGLISH: [(&str, &str); 21] = [
    ("ʔˌn\u{329}", "ʔn"),
    ("ʔn\u{329}", "ʔn"),
    ("a^ɪ", "I"),
    ("a^ʊ", "W"),
    ("d^ʒ", "ʤ"),
    ("e^ɪ", "A"),
    ("t^ʃ", "ʧ"),
    ("ɔ^ɪ", "Y"),
    ("ə^l", "ᵊl"),
    ("e^ə", "ɛː"),
    ("ʲo", "jo"),
    ("ʲə", "jə"),
    ("ʲ", ""),
    ("ɚ", "əɹ"),
    ("r", "ɹ"),
    ("x", "k"),
    ("ç", "k"),
    ("ɐ", "ə"),
    ("ɬ", "l"),
    ("\u{303}", ""),
    ("e", "A"),
];
const AMERICAN: [(&str, &str); 5] = [("o^ʊ", "O"), ("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɪə", "iə"), ("ː", "")];
const BRITISH: [(&str, &str); 2] = [("iə", "ɪə"), ("ə^ʊ", "Q")];
/// Replacements made last, for both dialects.
const LAST: [(&str, &str); 4] = [("o", "ɔ"), ("ɾ", "T"), ("ʔ", "t"), ("^", "")];

/// Replacements for other languages, as in Kokoro.
const OTHERS: [(&str, &str); 13] = [
    ("a^ɪ", "I"),
    ("a^ʊ", "W"),
    ("d^z", "ʣ"),
    ("d^ʒ", "ʤ"),
    ("e^ɪ", "A"),
    ("o^ʊ", "O"),
    ("ə^ʊ", "Q"),
    ("s^s", "S"),
    ("t^s", "ʦ"),
    ("t^ʃ", "ʧ"),
    ("ɔ^ɪ", "Y"),
    ("^", ""),
    ("-", ""),
];

fn put(mut phonemes: String, table: &[(&str, &str)]) -> String {
    for (from, to) in table {
        if phonemes.contains(from) {
            phonemes = phonemes.replace(from, to);
        }
    }
    phonemes
}

/// Converts misaki's phonemes to espeak-ng's notation.
pub(super) fn of_misaki(phonemes: &str) -> String {
    let mut said = String::with_capacity(phonemes.len() * 2);
    let mut rest = phonemes;
    while let Some(letter) = rest.chars().next() {
        let known = SIGNS.iter().find(|(own, _)| rest.starts_with(own));
        let (taken, ipa) = match known {
            Some((own, ipa)) => (own.len(), (*ipa).to_owned()),
            None => (letter.len_utf8(), letter.to_string()),
        };
        rest = &rest[taken..];
        said.push_str(&ipa);
        // Do not lengthen a vowel that is long already.
        if ipa.ends_with('ː') {
            rest = rest.strip_prefix('ː').unwrap_or(rest);
        }
    }
    said
}

/// Converts espeak-ng's English phonemes to misaki's.
pub(super) fn to_misaki(phonemes: &str, british: bool) -> String {
    let said = put(phonemes.trim().to_owned(), &ENGLISH);
    // A syllabic consonant gets a vowel before it.
    let mut whole = String::with_capacity(said.len());
    for letter in said.chars() {
        match (letter, whole.pop()) {
            ('\u{329}', Some(last)) => whole.extend(['ᵊ', last]),
            ('\u{329}', None) => {}
            (letter, last) => whole.extend(last.into_iter().chain([letter])),
        }
    }
    put(put(whole, if british { &BRITISH } else { &AMERICAN }), &LAST)
}

/// Converts espeak-ng's phonemes of other languages to Kokoro's.
pub(super) fn to_kokoro(phonemes: &str) -> String {
    put(phonemes.trim().to_owned(), &OTHERS)
}

/// Converts espeak-ng's phonemes for voices that use its own alphabet.
pub(super) fn plain(phonemes: &str) -> String {
    phonemes.trim().replace('^', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_become_letters() {
        assert_eq!(of_misaki("həlˈO wˈɜɹld, ʤˈʌmp"), "həlˈoʊ wˈɜːld, dʒˈʌmp");
        assert_eq!(of_misaki("ðə sˈiː ɪz blˈu"), "ðə sˈiː ɪz blˈuː");
    }

    /// Results of misaki 0.9.4's `EspeakFallback` and `EspeakG2P` for the output of espeak-ng 1.51 on these
    /// words.
    #[test]
    fn letters_become_misakis_signs() {
        for (said, american, british) in [
            ("blˈoː^ɹf", "blˈɔɹf", "blˈɔːɹf"),
            ("zwˈɪt^ʃɪŋ", "zwˈɪʧɪŋ", "zwˈɪʧɪŋ"),
            ("d^ʒˈɜːni", "ʤˈɜɹni", "ʤˈɜːni"),
            ("ɹˈe^ɪɾᵻd", "ɹˈATᵻd", "ɹˈATᵻd"),
            ("bˈɑːɾə^l", "bˈɑTᵊl", "bˈɑːTᵊl"),
            ("hˈa^ʊs", "hˈWs", "hˈWs"),
            ("bˈʌʔn\u{329}", "bˈʌtn", "bˈʌtn"),
            ("ɹˈɪðn\u{329}", "ɹˈɪðᵊn", "ɹˈɪðᵊn"),
        ] {
            assert_eq!(
                (to_misaki(said, false).as_str(), to_misaki(said, true).as_str()),
                (american, british)
            );
        }
        assert_eq!(to_kokoro("ˈot^ʃo a^ʊt^s"), "ˈoʧo Wʦ");
    }
}
