//! Long texts, whose tokens are those of the text as a whole.

use std::cell::Cell;

use super::{
    super::windows::EncodeFailure,
    plain::{Kind, kinds},
    *,
};
use crate::limits::WINDOW_BYTES;

/// Longer than several windows.
const BYTES: usize = 5 * WINDOW_BYTES;

/// Letters drawn from `alphabet`, the same ones for the same seed.
fn drawn(alphabet: &[&str], mut seed: u64) -> String {
    let mut text = String::new();
    while text.len() < BYTES {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        text.push_str(alphabet[(seed >> 33) as usize % alphabet.len()]);
    }
    text
}

fn runs(unit: &str) -> String {
    unit.repeat(BYTES / unit.len())
}

fn texts(special: &str) -> Vec<(&'static str, String)> {
    vec![
        ("words", drawn(&["hi ", "the ", "a", "ab ", "hello, ", "12 ", "\n", "  ", "é ", "日本 ", "🙂"], 1)),
        ("one word", drawn(&["a", "b", "h", "i", "hi", "ab"], 2)),
        ("one word of many letters", drawn(&["e", "t", "a", "o", "n", "th", "he", "ing", "er", "x"], 3)),
        ("characters of several bytes", drawn(&["é", "日", "本", "🙂", "ü", "a"], 4)),
        ("control tokens", drawn(&["hi ", "a", special, "ab ", "\n"], 5)),
        ("digits", drawn(&["0", "1", "7"], 6)),
        ("signs", drawn(&["=", "-", "#", "*", "==="], 7)),
        ("one letter", runs("a")),
        ("two letters", runs("ab")),
        ("spaces", runs(" ")),
        ("lines", runs("\n")),
        ("unknown", runs("☃")),
        ("words of one letter", runs("a ")),
    ]
}

/// The tokens of a text by the crate, as a whole.
fn at_once(kind: &Kind, text: &str) -> Vec<u32> {
    let Encoder::Words(words) = &kind.tokenizer.encoder else { panic!("{} is not of the crate", kind.name) };
    words.encoding(text, &[], &kind.tokenizer.table).expect("encodes").get_ids().to_vec()
}

#[test]
fn a_long_texts_tokens_are_those_of_the_whole() {
    let kinds = kinds();
    let reference = |name: &str| {
        let name = if name == "SentencePiece GGUF" { "SentencePiece JSON" } else { name };
        kinds.iter().find(|kind| kind.name == name).expect("a kind")
    };
    for kind in &kinds {
        for (what, text) in texts(kind.special) {
            let ids = kind.tokenizer.encode(&text, false);
            let ids = ids.unwrap_or_else(|error| panic!("{}, {what}: {error}", kind.name));
            let whole = at_once(reference(kind.name), &text);
            let differs = ids.iter().zip(&whole).position(|(a, b)| a != b);
            assert!(ids == whole, "{}, {what}: {differs:?}, {} for {}", kind.name, ids.len(), whole.len());
        }
    }
}

#[test]
fn nothing_in_a_long_text_that_is_plain_becomes_a_control_token() {
    for kind in kinds() {
        let text = drawn(&["hi ", "a", kind.special, "ab "], 8);
        let plain = kind.tokenizer.encode_plain(&text, false).expect("encodes");
        assert!(!plain.contains(&kind.id()), "{}", kind.name);
        let middle = text.len() / 2 - (text.len() / 2) % 4;
        let middle = (middle..).find(|&at| text[at..].starts_with("hi ")).expect("a word");
        let half = kind.around(&text, slice::from_ref(&(0..middle)));
        assert_eq!(kind.count(&half), text[middle..].matches(kind.special).count(), "{}", kind.name);
    }
}

#[test]
fn a_long_text_is_given_up_within_a_window() {
    for kind in kinds() {
        let text = drawn(&["hi ", "a", "ab "], 9);
        let asked = Cell::new(0);
        let leaves = || {
            asked.set(asked.get() + 1);
            asked.get() > 2
        };
        let left = kind.tokenizer.encode_until(&text, &[], false, &leaves);
        assert!(matches!(left, Err(RequestError::Interrupted)), "{}: {left:?}", kind.name);
        assert_eq!(asked.get(), 3, "{}", kind.name);
    }
}

#[test]
fn a_text_that_cannot_be_cut_is_refused_and_takes_no_more_than_a_window() {
    let text = runs("a");
    let longest = Cell::new(0);
    // Tokens that depend on where the window ends, as digits cut in threes from their end do.
    let encode = |part: Range<usize>| {
        longest.set(longest.get().max(part.len()));
        let starts = (part.start..part.end).rev().step_by(7).map(|end| end + 1).rev();
        let mut start = part.start;
        Ok(starts
            .map(|end| {
                let piece = windows::EncodedToken { id: 1, start, end };
                start = end;
                piece
            })
            .collect())
    };
    let walk = windows::Walk { text: &text, encode: &encode, interrupted: &|| false };
    assert!(matches!(walk.run(&mut |_| {}), Err(EncodeFailure::Unbroken(_))));
    assert!(longest.get() <= WINDOW_BYTES_MAX);
}
