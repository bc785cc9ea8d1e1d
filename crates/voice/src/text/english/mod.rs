//! English phonemes as misaki finds them (github.com/hexgrad/misaki): by dictionaries and a tagger, in the program, made once for
//! each dialect when a voice first needs them. What they do not have is said by letters.
//!
//! The dictionaries' rules, the tokenizer and the tagger are misaki-rs's. How they are put together is `pronounce.rs`, equal to
//! its `G2P`, which would bring its dictionaries as JSON, and the weights of a tagger that it no longer asks, into the program.

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

/// How English is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    American,
    British,
}

impl Dialect {
    /// espeak-ng's name of it.
    pub(super) fn code(self) -> &'static str {
        match self {
            Dialect::American => "en-us",
            Dialect::British => "en-gb",
        }
    }
}

/// One dialect's dictionaries.
pub(crate) struct English {
    pronouncer: Pronouncer,
}

impl English {
    /// The dictionaries of a dialect.
    pub(crate) fn of(dialect: Dialect) -> &'static English {
        static BOTH: [OnceLock<English>; 2] = [OnceLock::new(), OnceLock::new()];
        BOTH[dialect as usize].get_or_init(|| English { pronouncer: Pronouncer::new(dialect) })
    }

    /// Phonemes of a sentence in words, and the words of it that neither a dictionary nor `known` has. `None` where a library
    /// failed.
    pub(crate) fn phonemes(
        &self,
        sentence: &str,
        known: &HashMap<String, String>,
    ) -> Option<(String, Vec<String>)> {
        // Brackets would be a note to misaki.
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
