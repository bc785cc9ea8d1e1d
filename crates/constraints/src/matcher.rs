//! Where one answer stands in its grammar.

use std::{fmt, sync::Arc};

use crate::vocabulary::Vocabulary;

/// One answer's way through its grammar. Cheap to ask whether it may end, some 50 µs for which token may come next.
pub struct Matcher {
    pub(crate) parser: llguidance::Matcher,
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) complete: bool, // it may end, and no token of this vocabulary would continue it
}

/// What llguidance says where no token may come next.
pub(crate) const NO_TOKEN: &str = "NoExtensionBias";

/// The grammar can say no more of this answer: it became too complex on the way, or a token was not allowed. Nothing else can be
/// asked of its matcher.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the constraint cannot be followed any further: {0}")]
pub struct Stuck(String);

impl Matcher {
    /// Writes which tokens may come next, one bit each, bit `t % 32` of word `t / 32`; none where nothing may. Whether the answer
    /// may end instead is [`Matcher::is_accepting`]'s to say. `mask` may be longer than the vocabulary.
    ///
    /// # Errors
    /// [`Stuck`] where finding out takes more than it may, or where the answer is not done and no token continues it.
    pub fn allowed(&mut self, mask: &mut [u32]) -> Result<(), Stuck> {
        mask.fill(0);
        if self.is_stopped() {
            return Ok(());
        }
        let accepts = self.is_accepting();
        match self.parser.compute_mask() {
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

    /// The answer goes on with a token.
    ///
    /// # Errors
    /// [`Stuck`] where that was not allowed.
    pub fn accept(&mut self, token: u32) -> Result<(), Stuck> {
        self.parser.consume_token(token).map_err(|error| stuck(&error.to_string()))
    }

    /// Tokens that say a text, such as the rest of a token that ended a reasoning section: not always those that the model would.
    pub fn spell(&self, text: &str) -> Vec<u32> {
        self.vocabulary.spell(text.as_bytes())
    }

    /// How many of `tokens` may come next, one after the other.
    pub fn valid(&mut self, tokens: &[u32]) -> usize {
        self.parser.validate_tokens(tokens).unwrap_or(0)
    }

    /// Takes the last `tokens` back, also of an answer that was complete with them.
    ///
    /// # Errors
    /// [`Stuck`] where there are not as many, or where nothing can be asked of it any more: then it is what it was.
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

    /// The bytes of a token, as the grammar sees it; control tokens have none.
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
    Stuck(crate::grammar::first_line(error))
}
