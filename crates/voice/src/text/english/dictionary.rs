//! Dictionaries of misaki-rs, as `build.rs` packs them: a tenth of the size of its JSON, and much faster to
//! read.

use std::borrow::Cow;
use std::collections::HashMap;

use misaki_rs::lexicon::PhonemeEntry;
use misaki_rs::{Language, Lexicon};

use super::Dialect;

/// Dictionary of a dialect.
pub(super) fn lexicon(dialect: Dialect) -> Lexicon {
    let lang = match dialect {
        Dialect::American => Language::EnglishUS,
        Dialect::British => Language::EnglishGB,
    };
    let golds = unpacked(include_bytes!(concat!(env!("OUT_DIR"), "/gold")), dialect);
    let silvers = unpacked(include_bytes!(concat!(env!("OUT_DIR"), "/silver")), dialect);
    // Stress of words in capitals, and of capitalised words: misaki's own values.
    Lexicon { lang, cap_stresses: (0.5, 2.0), golds, silvers }
}

/// Entries of one of the two dialects in a file.
fn unpacked(file: &[u8], dialect: Dialect) -> HashMap<String, PhonemeEntry> {
    let bytes = miniz_oxide::inflate::decompress_to_vec(file).expect("`build.rs` deflated it");
    let mut entries = HashMap::new();
    let mut word = Vec::new();
    let mut rest = &bytes[..];
    while let [alike, after @ ..] = rest {
        let end = after.iter().position(|&byte| byte == b'\n').expect("each entry ends with its line");
        let (entry, next) = (&after[..end], &after[end + 1..]);
        let tab = entry.iter().position(|&byte| byte == b'\t').expect("each word ends with a tab");
        word.truncate(usize::from(*alike));
        word.extend_from_slice(&entry[..tab]);
        let (american, british) = values(&entry[tab + 1..]);
        let value = match dialect {
            Dialect::American => american.map(said),
            Dialect::British => british.map(|value| said(&value)),
        };
        if let Some(value) = value {
            entries.insert(text(&word), value);
        }
        rest = next;
    }
    entries
}

/// Values of a word in American and in British, if the dialect has it.
fn values(values: &[u8]) -> (Option<&[u8]>, Option<Cow<'_, [u8]>>) {
    let end = values.iter().position(|byte| matches!(byte, 3 | 4)).unwrap_or(values.len());
    let (american, british) = values.split_at(end);
    let british = match british {
        [4, begins, ends, between @ ..] => {
            let (begins, ends) = (usize::from(begins - 32), usize::from(ends - 32));
            Some([&american[..begins], between, &american[american.len() - ends..]].concat().into())
        }
        [3] => Some(american.into()),
        _ => None,
    };
    ((!american.is_empty()).then_some(american), british)
}

fn said(value: &[u8]) -> PhonemeEntry {
    let Some((1, parts)) = value.split_first() else {
        return PhonemeEntry::Simple(text(value));
    };
    let part = |part: &[u8]| match part.iter().position(|&byte| byte == 2) {
        Some(at) => (text(&part[..at]), Some(text(&part[at + 1..]))),
        None => (text(part), None),
    };
    PhonemeEntry::Tagged(parts.split(|&byte| byte == 1).map(part).collect())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("`build.rs` wrote texts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_is_the_librarys() {
        for (dialect, language) in
            [(Dialect::American, Language::EnglishUS), (Dialect::British, Language::EnglishGB)]
        {
            let (ours, right) = (lexicon(dialect), Lexicon::new(language));
            assert_eq!((ours.lang, ours.cap_stresses), (right.lang, right.cap_stresses));
            for (ours, right) in [(&ours.golds, &right.golds), (&ours.silvers, &right.silvers)] {
                assert!(right.len() > 80_000);
                assert_eq!(ours.len(), right.len());
                for (word, entry) in right {
                    let same = match (entry, &ours[word]) {
                        (PhonemeEntry::Simple(right), PhonemeEntry::Simple(ours)) => right == ours,
                        (PhonemeEntry::Tagged(right), PhonemeEntry::Tagged(ours)) => right == ours,
                        _ => false,
                    };
                    assert!(same, "{word}: {:?}, not {entry:?}", ours[word]);
                }
            }
        }
    }
}
