//! Long texts have the same tokens as when encoded as a whole.

use std::cell::Cell;

use super::{
    super::windows::EncodeFailure,
    plain::{Kind, kinds},
    *,
};
use crate::limits::{WINDOW_BYTES, WINDOW_BYTES_MAX};

/// Longer than several windows.
const BYTES: usize = 5 * WINDOW_BYTES;

/// Random letters from `alphabet`, the same for the same seed.
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

/// Tokens of a text as the crate encodes it whole.
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

/// Runs of one letter, and of digits that are cut into threes.
fn long_runs() -> Vec<(&'static str, Tokenizer, &'static str)> {
    let mut all: Vec<(&str, Tokenizer, &str)> = kinds()
        .into_iter()
        .filter(|kind| kind.name.starts_with("Unigram"))
        .map(|kind| (kind.name, kind.tokenizer, "a"))
        .collect();
    all.extend(["afmoe", "tiny_aya", "superbpe"].map(|name| (name, words::of_bytes(name), "7")));
    all
}

/// While it tokenizes megabytes, a tokenizer checks for interruption repeatedly, in proportion to the bytes.
#[test]
fn runs_of_megabytes_have_tokens_in_time_that_grows_with_their_length() {
    for (name, tokenizer, letter) in long_runs() {
        let asked = |bytes: usize| {
            let (text, asked) = (letter.repeat(bytes), Cell::new(0));
            let ask = || {
                asked.set(asked.get() + 1);
                false
            };
            let ids = tokenizer.encode_until(&text, &[], false, &ask);
            let ids = ids.unwrap_or_else(|error| panic!("{name}, {bytes} bytes: {error}"));
            assert_eq!(tokenizer.decode(&ids, false).trim_start(), text, "{name}");
            asked.get()
        };
        let (short, long) = (asked(4 * WINDOW_BYTES_MAX), asked(8 * WINDOW_BYTES_MAX));
        assert!(short > 16 && long > short && long <= 2 * short + 2, "{name}: {short}, {long}");
    }
}

/// Adjacent numbers, numbers before letters, and multi-byte digits.
#[test]
fn long_numbers_are_cut_as_in_the_whole() {
    let run =
        |digits: usize| "1234567890".repeat(digits / 10) + &"7"[..usize::from(!digits.is_multiple_of(10))];
    let texts = [
        run(3 * WINDOW_BYTES + 1),
        format!("a {}b {} c", run(3 * WINDOW_BYTES), run(2 * WINDOW_BYTES + 1)),
        format!("x{}_ {}", run(3 * WINDOW_BYTES + 1), run(WINDOW_BYTES)),
        format!("{}.{}", "٣٤٥٦٧".repeat(WINDOW_BYTES / 3), run(2 * WINDOW_BYTES)),
        format!("{} {}", run(1200), run(2 * WINDOW_BYTES)).repeat(3),
    ];
    for name in ["afmoe", "tiny_aya", "superbpe"] {
        let tokenizer = words::of_bytes(name);
        let Encoder::Words(encoder) = &tokenizer.encoder else { panic!("{name} is not of the crate") };
        for (number, text) in texts.iter().enumerate() {
            let whole = encoder.encoding(text, &[], &tokenizer.table).expect("encodes");
            let ids =
                tokenizer.encode(text, false).unwrap_or_else(|error| panic!("{name}, {number}: {error}"));
            assert!(ids == whole.get_ids(), "{name}, text {number}");
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
    // Tokens that depend on a window's end, as with digits cut into threes from their end.
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
    let walk = windows::Walk { text: &text, encode: &encode, interrupted: &|| false, runs: None };
    assert!(matches!(walk.run(&mut |_| Ok(())), Err(EncodeFailure::Unbroken(_))));
    assert!(longest.get() <= WINDOW_BYTES_MAX);
}
