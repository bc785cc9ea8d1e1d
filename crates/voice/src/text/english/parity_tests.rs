//! Phonemes equal those of misaki-rs's own `G2P`, and so do the unknown words.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use misaki_rs::fallback::FallbackError;
use misaki_rs::{Fallback, G2P, Language};

use super::super::letters;
use super::*;
use crate::text::normalize;

/// Prose with all kinds of technical text: figures, signs, names, capitals, code.
const PROSE: [&str; 2] = ["README.md", "docs/guides/hanzo-node.md"];
/// Unusual forms of figures, money, signs and capitals.
const ODD: &str = "The FBI has 1,234 G2P models; 3.50 of them cost $9, £0.50 or €1,250.75.
Call 555-0199 or (020) 7946 0018 x4, since 1905, 2000, 2005, 500 and 0045.
The 1st, 22nd, 103rd and 1000th of 12345678901234567890; -40 degrees, -5th, +5, v1.2.3 and 10.0.200.04.
“Mr. Smith’s dogs' bones,” said K. V. Rao, ‘aren’t the reader’s.’ ... !? — it's the '90s…
Out-of-the-way five-storied Caucus-Race; twenty-one; re-use; AT&T; R2D2; iPhone; eBook; MacDonald; PDFs; CEOs
the apple a banana an hour to eat to go TO BE OR NOT to. The end. The owl used to use it, I am used to it
50% of 7/8 & 3+4 = 7 @ home #1 _like_ _it_ laws-a-me 1-25—1469-94 $5.00 $0.00 $ 7 £1 1.0 .5 .50 0.
café naïve é ñ ™ 漢字 Ω e.g. i.e. etc. U.S.A. Ph.D. a.m. St. John's No. 5 -- - ' ’’ \" 100,000,000 999 100 007 1,23 2's
I read what you read; close the close door; he will record a record, object to an object and live a live life.";

struct Library {
    g2p: G2P,
    asked: Arc<Mutex<Vec<String>>>,
}

struct Asked(Arc<Mutex<Vec<String>>>);

impl Fallback for Asked {
    fn phonemize(&self, word: &str) -> Result<String, FallbackError> {
        self.0.lock().unwrap().push(word.to_owned());
        Ok(letters::phonemes(word))
    }
}

impl Library {
    fn new(language: Language) -> Library {
        let asked = Arc::default();
        Library { g2p: G2P::with_fallback(language, Some(Box::new(Asked(Arc::clone(&asked))))), asked }
    }

    fn phonemes(&self, text: &str) -> (String, Vec<String>) {
        let said = self.g2p.g2p(text).unwrap().0;
        (said, std::mem::take(&mut self.asked.lock().unwrap()))
    }
}

/// Sentences of random words from the dictionaries, with variations that affect the lookup.
fn drawn(words: &[&String], sentences: usize) -> Vec<String> {
    let mut state = 1u64;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % bound
    };
    let mut sentence = || {
        let mut text = String::new();
        for _ in 0..10 {
            let word = words[below(words.len())];
            let figures = below(100_000).to_string();
            let dressed = match below(24) {
                0 => format!("{word}'s"),
                1 => word.to_uppercase(),
                2 => format!("{word}-{}", words[below(words.len())]),
                3 => format!("{word}ing"),
                4 => format!("{word}s"),
                5 => format!("{word}{figures}"),
                6 => format!("{figures} {word}"),
                7 => format!("${figures} {word}"),
                8 => format!("“{word}”"),
                9 => format!("{word}, the"),
                10 => format!("to {word}ed"),
                11 => format!("{word}{}", words[below(words.len())]),
                12 => format!("{figures}.{figures}"),
                13 => format!("({word})"),
                14 => format!("a {word};"),
                15 => format!("{}.{word}", &figures[..1]),
                _ => word.clone(),
            };
            text += &dressed;
            text.push(' ');
        }
        text + ["", ".", "?", "!", "…"][below(5)]
    };
    (0..sentences).map(|_| sentence()).collect()
}

fn same(dialect: Dialect, language: Language) {
    let (library, ours) = (Library::new(language), Pronouncer::new(dialect));
    let mut words: Vec<&String> =
        library.g2p.lexicon.golds.keys().chain(library.g2p.lexicon.silvers.keys()).collect();
    words.sort_unstable();
    let mut sentences = drawn(&words, 250);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let prose = PROSE.map(|name| fs::read_to_string(root.join(name)).unwrap());
    for line in prose.iter().flat_map(|text| text.lines()).chain(ODD.lines()) {
        let line = line.replace(['[', ']'], "|");
        sentences.push(normalize(&line, dialect));
        sentences.push(line);
    }
    sentences.retain(|sentence| !sentence.trim().is_empty());
    assert!(sentences.len() > 500, "{}", sentences.len());
    let (mut asked, mut tokens) = (0, 0);
    for sentence in &sentences {
        let right = library.phonemes(sentence);
        let mut unknown = Vec::new();
        let said = ours.phonemes(sentence, &mut |word| {
            unknown.push(word.to_owned());
            letters::phonemes(word)
        });
        asked += unknown.len();
        tokens += sentence.split_whitespace().count();
        assert_eq!((said, unknown), right, "{sentence}");
    }
    // Enough of both kinds: known and unknown words.
    assert!(tokens > 5_000 && asked > 250, "{tokens} words, {asked} unknown");
}

#[test]
fn american_is_the_librarys() {
    same(Dialect::American, Language::EnglishUS);
}

#[test]
fn british_is_the_librarys() {
    same(Dialect::British, Language::EnglishGB);
}
