//! Memory of lexers. A lexer caches its states as an answer goes on; some expressions reach a new state at every token.
//! The running answers of a model share one bound.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use llguidance::TokenParser;

use crate::{error::Stuck, limits::LEXERS_BYTES_MAX};

/// Memory of a lexer in bytes. The statistics count elements; the lists and tables that grow take up to twice as much.
pub(crate) fn lexer_bytes(lexer: &TokenParser) -> usize {
    2 * lexer.parser.lexer_stats().num_bytes
}

/// Memory of all running lexers of a vocabulary.
#[derive(Debug, Default)]
pub(crate) struct LexerMemory {
    bytes: AtomicU64, // beyond what each lexer begins with
    lexers: AtomicU64,
}

/// Memory of one lexer; dropping it releases the memory.
#[derive(Debug)]
pub(crate) struct LexerShare {
    memory: Arc<LexerMemory>,
    start: u64,
    own: u64,
}

impl LexerMemory {
    /// Adds a lexer that begins with `start` bytes.
    pub(crate) fn share(self: &Arc<Self>, start: usize) -> LexerShare {
        self.lexers.fetch_add(1, Relaxed);
        LexerShare { memory: self.clone(), start: start as u64, own: 0 }
    }
}

impl LexerShare {
    /// Records the lexer's size in bytes.
    ///
    /// # Errors
    /// [`Stuck`] if it grew, all lexers together exceed [`LEXERS_BYTES_MAX`], and this one holds more than an equal
    /// part.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), Stuck> {
        let own = (bytes as u64).saturating_sub(self.start);
        if own <= self.own {
            return Ok(());
        }
        let all = self.memory.bytes.fetch_add(own - self.own, Relaxed) + own - self.own;
        self.own = own;
        let lexers = self.memory.lexers.load(Relaxed).max(1);
        if all <= LEXERS_BYTES_MAX || own <= LEXERS_BYTES_MAX / lexers {
            return Ok(());
        }
        Err(Stuck(format!("its expressions need {own} bytes, and {lexers} answers share {LEXERS_BYTES_MAX}")))
    }
}

impl Drop for LexerShare {
    fn drop(&mut self) {
        self.memory.bytes.fetch_sub(self.own, Relaxed);
        self.memory.lexers.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lexers_that_grow_share_the_bound() {
        let memory = Arc::new(LexerMemory::default());
        let mut first = memory.share(100);
        assert!(first.set(100 + LEXERS_BYTES_MAX as usize).is_ok(), "one has all of it");
        let (mut second, mut third) = (memory.share(0), memory.share(0));
        assert!(second.set(LEXERS_BYTES_MAX as usize / 3).is_ok(), "a third of it for each of three");
        assert!(third.set(LEXERS_BYTES_MAX as usize / 2).is_err());
        assert!(first.set(101 + LEXERS_BYTES_MAX as usize).is_err());
        drop((first, third));
        assert!(second.set(LEXERS_BYTES_MAX as usize).is_ok(), "what ended gives its memory back");
        drop(second);
        assert_eq!((memory.bytes.load(Relaxed), memory.lexers.load(Relaxed)), (0, 0));
    }
}
