//! English phonemes by misaki (github.com/hexgrad/misaki, in Rust): dictionaries and a tagger, in the program, made once for
//! each dialect when a voice first needs them. What they do not have is said by letters.

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

/// One dialect's dictionaries.
pub(crate) struct English {
    reader: Mutex<G2P>,
    unknown: Arc<Mutex<Vec<String>>>,
}

struct Letters(Arc<Mutex<Vec<String>>>);

impl Fallback for Letters {
    fn phonemize(&self, word: &str) -> Result<String, FallbackError> {
        if word.chars().any(char::is_alphabetic) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(word.to_owned());
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
            let unknown = Arc::new(Mutex::default());
            let fallback = Box::new(Letters(unknown.clone()));
            English { reader: Mutex::new(G2P::with_fallback(language, Some(fallback))), unknown }
        })
    }

    /// Phonemes of a sentence in words, and the words of it that no dictionary has. `None` where the library failed.
    pub(crate) fn phonemes(&self, sentence: &str) -> Option<(String, Vec<String>)> {
        // Brackets would be a note to the library.
        let sentence = sentence.replace(['[', '{'], "(").replace([']', '}'], ")");
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let said = catch_unwind(AssertUnwindSafe(|| reader.g2p(&sentence)));
        let unknown = std::mem::take(&mut *self.unknown.lock().unwrap_or_else(PoisonError::into_inner));
        match said {
            Ok(Ok((phonemes, _))) => Some((phonemes.replace('❓', ""), unknown)),
            Ok(Err(_)) | Err(_) => None,
        }
    }
}
