//! English phonemes in the manner of misaki (github.com/hexgrad/misaki): by built-in dictionaries and a tagger,
//! loaded for each dialect when a voice first needs them. Other words are pronounced by letter rules.
//!
//! The dictionaries' rules, the tokenizer and the tagger are those of misaki-rs. `pronounce.rs` combines them
//! with the same results as its `G2P`, which would add its dictionaries as JSON, and the weights of an unused
//! tagger, to the program.

mod dictionary;
mod figures;
#[cfg(test)]
mod parity_tests;
mod pronounce;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use super::letters;
use pronounce::{Pronouncer, UNKNOWN};

/// Dialect of English.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    American,
    British,
}

impl Dialect {
    /// espeak-ng's name of the dialect.
    pub(super) fn code(self) -> &'static str {
        match self {
            Dialect::American => "en-us",
            Dialect::British => "en-gb",
        }
    }
}

/// Pronunciation of one dialect.
pub(crate) struct English {
    pronouncer: Pronouncer,
}

impl English {
    /// Returns the dictionaries of a dialect.
    pub(crate) fn of(dialect: Dialect) -> &'static English {
        static BOTH: [OnceLock<English>; 2] = [OnceLock::new(), OnceLock::new()];
        BOTH[dialect as usize].get_or_init(|| English { pronouncer: Pronouncer::new(dialect) })
    }

    /// Phonemes of a normalised sentence, and its words that neither a dictionary nor `known` has. None if a
    /// library failed.
    pub(crate) fn phonemes(
        &self,
        sentence: &str,
        known: &HashMap<String, String>,
    ) -> Option<(String, Vec<String>)> {
        // misaki would interpret brackets.
        let sentence = sentence.replace(['[', '{'], "(").replace([']', '}'], ")");
        let mut unknown = Vec::new();
        let mut other = |word: &str| {
            if let Some(said) = known.get(word) {
                return said.clone();
            }
            if word.chars().any(char::is_alphabetic) {
                unknown.push(word.to_owned());
            }
            letters::phonemes(word)
        };
        let said = catch_unwind(AssertUnwindSafe(|| self.pronouncer.phonemes(&sentence, &mut other)));
        Some((said.ok()?.replace(UNKNOWN, ""), unknown))
    }
}
