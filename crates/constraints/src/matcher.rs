//! Position of an answer in its grammar.

use std::{fmt, sync::Arc};

use llguidance::{CancellationHandle, TokenParser};

use crate::error::{Stuck, first_line};
use crate::lexers::{LexerShare, lexer_bytes};
use crate::vocabulary::ConstraintVocabulary;

/// State of one answer in its grammar. Asking whether it may end is cheap. Computing the next mask usually takes
/// some 50 µs; after hundreds of tokens of an ambiguous grammar it takes a second.
pub struct Matcher {
    pub(crate) parser: llguidance::Matcher,
    pub(crate) vocabulary: Arc<ConstraintVocabulary>,
    pub(crate) complete: bool, // it may end, and no token of this vocabulary can continue it
    lexer: TokenParser,        // shares the lexer of `parser`, to read its size
    share: LexerShare,
}

/// Handle that stops a matcher's work from another thread. The matcher cannot be used any more then.
#[derive(Clone, Debug)]
pub struct Stopper(CancellationHandle);

impl Stopper {
    /// Stops the mask or token under way, and all later ones.
    pub fn stop(&self) {
        self.0.cancel();
    }
}

/// Error of llguidance if no token may come next.
pub(crate) const NO_TOKEN: &str = "NoExtensionBias";

/// Error of llguidance after [`Stopper::stop`].
const STOPPED: &str = "operation cancelled";

impl Matcher {
    pub(crate) fn new(mut start: TokenParser, vocabulary: Arc<ConstraintVocabulary>) -> Matcher {
        start.enable_cancellation();
        let lexer = start.clone();
        let share = vocabulary.lexers.share(lexer_bytes(&lexer));
        let parser = llguidance::Matcher::new(Ok(start));
        Matcher { parser, vocabulary, complete: false, lexer, share }
    }

    /// Handle that stops its work.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.parser.cancellation_handle().unwrap_or_default())
    }

    /// Writes a mask of the allowed next tokens: bit `t % 32` of word `t / 32`. The mask is empty if no token
    /// may follow. Whether the answer may end is told by [`Matcher::is_accepting`]. `mask` may be longer than
    /// the vocabulary.
    ///
    /// # Errors
    /// [`Stuck`] if a limit is reached, if the answer is incomplete and no token continues it, or after
    /// [`Stopper::stop`].
    pub fn allowed(&mut self, mask: &mut [u32]) -> Result<(), Stuck> {
        mask.fill(0);
        if self.is_stopped() {
            return Ok(());
        }
        let accepts = self.is_accepting();
        let computed = self.parser.compute_mask();
        self.share.set(lexer_bytes(&self.lexer))?;
        match computed {
            Ok(set) => {
                for (to, from) in mask.iter_mut().zip(set.as_slice()) {
                    *to = *from;
                }
                Ok(())
            }
            Err(error) if accepts && error.to_string().starts_with(NO_TOKEN) => {
                self.complete = true;
                Ok(())
            }
            Err(error) => Err(stuck(&error.to_string())),
        }
    }

    /// Advances by a token.
    ///
    /// # Errors
    /// [`Stuck`] if the token is not allowed.
    pub fn accept(&mut self, token: u32) -> Result<(), Stuck> {
        self.parser.consume_token(token).map_err(|error| stuck(&error.to_string()))
    }

    /// Tokens that spell a text, such as the rest of a token that ended a reasoning section. The model's own
    /// tokenizer may choose others.
    pub fn spell(&self, text: &str) -> Vec<u32> {
        self.vocabulary.spell(text.as_bytes())
    }

    /// Number of leading tokens of `tokens` that may come next in turn.
    pub fn valid(&mut self, tokens: &[u32]) -> usize {
        self.parser.validate_tokens(tokens).unwrap_or(0)
    }

    /// Removes the last `tokens`, also from an answer that they completed.
    ///
    /// # Errors
    /// [`Stuck`] if there are fewer tokens, or if the matcher has failed. Then nothing changes.
    pub fn rollback(&mut self, tokens: usize) -> Result<(), Stuck> {
        self.parser.rollback(tokens).map_err(|error| stuck(&error.to_string()))?;
        self.complete = false;
        Ok(())
    }

    /// Whether the answer satisfies the constraint as it is.
    pub fn is_accepting(&mut self) -> bool {
        self.complete || self.parser.is_accepting().unwrap_or(false)
    }

    /// Whether the answer satisfies the constraint and no token may follow.
    pub fn is_stopped(&self) -> bool {
        self.complete || self.parser.is_stopped() && !self.parser.is_error()
    }

    /// Bytes of a token as the grammar sees it; empty for control tokens.
    pub fn token_bytes(&self, token: u32) -> &[u8] {
        let bytes = self.vocabulary.token_bytes(token);
        if bytes.first() == Some(&0xFF) { &[] } else { bytes }
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Matcher({})", self.parser.stop_reason())
    }
}

fn stuck(error: &str) -> Stuck {
    if error.starts_with(NO_TOKEN) {
        return Stuck("no token of the model continues the answer".to_owned());
    }
    if error.starts_with(STOPPED) {
        return Stuck("a token takes too long to check".to_owned());
    }
    Stuck(first_line(error))
}
