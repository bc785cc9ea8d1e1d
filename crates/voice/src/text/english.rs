//! English phonemes by misaki (github.com/hexgrad/misaki, in Rust): dictionaries and a tagger, in the program, made once for
//! each dialect when a voice first needs them. What they do not have is said by letters.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use misaki_rs::fallback::FallbackError;
use misaki_rs::{Fallback, G2P, Language};

use super::letters;

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
    reader: Mutex<G2P>,
    words: Arc<Mutex<Words>>,
}

/// Words of the sentence that is read which no dictionary has.
#[derive(Default)]
struct Words {
    /// What somebody else says of them.
    known: HashMap<String, String>,
    /// The others, which are said by their letters.
    unknown: Vec<String>,
}

struct Letters(Arc<Mutex<Words>>);

impl Fallback for Letters {
    fn phonemize(&self, word: &str) -> Result<String, FallbackError> {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(said) = words.known.get(word) {
            return Ok(said.clone());
        }
        if word.chars().any(char::is_alphabetic) {
            words.unknown.push(word.to_owned());
        }
        Ok(letters::phonemes(word))
    }
}

impl English {
    /// The dictionaries of a dialect.
    pub(crate) fn of(dialect: Dialect) -> &'static English {
        static BOTH: [OnceLock<English>; 2] = [OnceLock::new(), OnceLock::new()];
        let (place, language) = match dialect {
            Dialect::American => (0, Language::EnglishUS),
            Dialect::British => (1, Language::EnglishGB),
        };
        BOTH[place].get_or_init(|| {
            let words = Arc::new(Mutex::default());
            let fallback = Box::new(Letters(Arc::clone(&words)));
            English { reader: Mutex::new(G2P::with_fallback(language, Some(fallback))), words }
        })
    }

    /// Phonemes of a sentence in words, and the words of it that neither a dictionary nor `known` has. `None` where the library
    /// failed.
    pub(crate) fn phonemes(
        &self,
        sentence: &str,
        known: &HashMap<String, String>,
    ) -> Option<(String, Vec<String>)> {
        // Brackets would be a note to the library.
        let sentence = sentence.replace(['[', '{'], "(").replace([']', '}'], ")");
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let words = || self.words.lock().unwrap_or_else(PoisonError::into_inner);
        *words() = Words { known: known.clone(), unknown: Vec::new() };
        let said = catch_unwind(AssertUnwindSafe(|| reader.g2p(&sentence)));
        let unknown = std::mem::take(&mut *words()).unknown;
        match said {
            Ok(Ok((phonemes, _))) => Some((phonemes.replace('❓', ""), unknown)),
            Ok(Err(_)) | Err(_) => None,
        }
    }
}
