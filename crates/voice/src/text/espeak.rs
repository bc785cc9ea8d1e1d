//! misaki's English phonemes in the letters of the International Phonetic Alphabet that espeak-ng has for them, which other voices were
//! trained on (github.com/hexgrad/misaki, `espeak.py`, the other way round).

/// Signs of misaki's own, and vowels that espeak-ng writes as long; the longer before the shorter.
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

/// A sentence's phonemes, as espeak-ng writes them.
pub(crate) fn espeak(phonemes: &str) -> String {
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
        // What is long already is not longer.
        if ipa.ends_with('ː') {
            rest = rest.strip_prefix('ː').unwrap_or(rest);
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::espeak;

    #[test]
    fn signs_become_letters() {
        assert_eq!(espeak("həlˈO wˈɜɹld, ʤˈʌmp"), "həlˈoʊ wˈɜːld, dʒˈʌmp");
        assert_eq!(espeak("ðə sˈiː ɪz blˈu"), "ðə sˈiː ɪz blˈuː");
    }
}
