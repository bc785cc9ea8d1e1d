//! Where a completion stands in what its answer must satisfy: which tokens may come next, and when it may end. The reasoning
//! section, where the model writes one, is not part of the answer: there anything may come but the end.
//!
//! A mask takes as long to find as some rows of a layer, so it is found while the step is computed: the step has the work
//! ([`MaskWork`]), and whoever submits it has it done side by side for all rows, after the device was given all else.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hanzo_engine_constraints::{Grammar, Matcher};

/// One completion's constraint.
#[derive(Debug)]
pub(super) struct Constraint {
    phase: Phase,
    open: Option<u32>, // the token that opens the reasoning section
    way: Arc<Mutex<Way>>,
}

/// What a token is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing was drawn: a token that opens the reasoning section may come, or the answer.
    Start,
    Reasoning,
    Answer,
}

/// The matcher, and what was asked of it for the step under way.
#[derive(Debug)]
struct Way {
    grammar: Arc<Grammar>,
    matcher: Option<Matcher>, // from the first token on: copying a large grammar takes a while
    besides: Vec<u32>,        // tokens that may come though the grammar has no place for them
    ends: Vec<u32>,           // tokens that end the answer
    early: bool,              // too early to end where more can be said
    mask: Vec<u32>,
    stuck: Option<String>,
}

/// A mask to be found.
pub struct MaskWork(Arc<Mutex<Way>>);

/// What came of a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The answer, or the reasoning before it, may go on.
    Open,
    /// The answer satisfies the constraint, and nothing may follow.
    Complete,
    /// Nothing more can be said of it, for this reason.
    Stuck(String),
}

impl Constraint {
    /// One that begins in the reasoning section, or may begin with the token that opens it.
    pub(super) fn new(
        grammar: &Arc<Grammar>,
        in_reasoning: bool,
        open: Option<u32>,
        ends: &[u32],
    ) -> Constraint {
        let phase = match (in_reasoning, open) {
            (true, _) => Phase::Reasoning,
            (false, Some(_)) => Phase::Start,
            (false, None) => Phase::Answer,
        };
        let way = Way {
            grammar: grammar.clone(),
            matcher: None,
            besides: Vec::new(),
            ends: ends.to_vec(),
            early: false,
            mask: Vec::new(),
            stuck: None,
        };
        Constraint { phase, open, way: Arc::new(Mutex::new(way)) }
    }

    /// Whether the next token is part of the reasoning section whatever it is: no mask, and no end.
    pub(super) fn in_reasoning(&self) -> bool {
        self.phase == Phase::Reasoning
    }

    /// The work of finding what may come next, of a vocabulary of so many tokens. Where it is `early`, the answer ends only if
    /// nothing else can be.
    pub(super) fn ask(&mut self, vocab: usize, early: bool) -> MaskWork {
        let mut way = lock(&self.way);
        way.besides.clear();
        if self.phase == Phase::Start {
            way.besides.extend(self.open);
        }
        way.early = early;
        way.mask.resize(vocab.div_ceil(32), 0);
        drop(way);
        MaskWork(self.way.clone())
    }

    /// A token was drawn that does not end the completion. `left_reasoning`: the section ended with it, and this is what it
    /// said of the answer.
    pub(super) fn take(&mut self, token: u32, left_reasoning: Option<&str>) -> Taken {
        let mut way = lock(&self.way);
        let accepted = match self.phase {
            Phase::Start if Some(token) == self.open => {
                self.phase = Phase::Reasoning;
                return Taken::Open;
            }
            Phase::Reasoning => {
                let Some(rest) = left_reasoning else { return Taken::Open };
                self.phase = Phase::Answer;
                way.matcher().accept_text(rest)
            }
            Phase::Start | Phase::Answer => {
                self.phase = Phase::Answer;
                way.matcher().accept(token)
            }
        };
        match accepted {
            Err(stuck) => Taken::Stuck(stuck.to_string()),
            Ok(()) if way.matcher().is_stopped() => Taken::Complete,
            Ok(()) => Taken::Open,
        }
    }

    /// Why no token was drawn, where that is the constraint's doing.
    pub(super) fn undrawn(&self) -> Taken {
        let way = lock(&self.way);
        match &way.stuck {
            Some(reason) => Taken::Stuck(reason.clone()),
            None if way.matcher.as_ref().is_some_and(Matcher::is_stopped) => Taken::Complete,
            None => Taken::Open,
        }
    }
}

impl Way {
    fn matcher(&mut self) -> &mut Matcher {
        self.matcher.get_or_insert_with(|| self.grammar.matcher())
    }
}

impl MaskWork {
    /// Finds the mask.
    pub(crate) fn find(&self) {
        let mut way = lock(&self.0);
        let Way { grammar, matcher, besides, ends, early, mask, stuck } = &mut *way;
        let matcher = matcher.get_or_insert_with(|| grammar.matcher());
        if let Err(error) = matcher.allowed(mask) {
            *stuck = Some(error.to_string());
            mask.fill(0);
            return;
        }
        besides.iter().for_each(|&token| set(mask, token));
        if matcher.is_accepting() && !(*early && mask.iter().any(|&word| word != 0)) {
            ends.iter().for_each(|&token| set(mask, token));
        }
    }

    /// Adds the mask that was found.
    pub(crate) fn put(&self, masks: &mut Vec<u32>) {
        masks.extend_from_slice(&lock(&self.0).mask);
    }
}

impl fmt::Debug for MaskWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaskWork")
    }
}

/// Nobody else has it but the step's threads, one of them, one after the other; a panic there ends the worker.
fn lock(way: &Mutex<Way>) -> MutexGuard<'_, Way> {
    way.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_constraints::{Spec, Vocabulary, Word};

    use super::*;

    const OPEN: u32 = 256;
    const END: u32 = 257;

    fn constraint(expression: &str, in_reasoning: bool, open: Option<u32>) -> Constraint {
        let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let words = bytes.iter().map(|byte| Word::Text(byte));
        let words = words.chain([Word::Control(b"<think>"), Word::Control(b"<|end|>")]);
        let vocabulary = Arc::new(Vocabulary::new(words).unwrap());
        let grammar = Grammar::compile(&Spec::Regex(expression.into()), &vocabulary).unwrap();
        Constraint::new(&grammar, in_reasoning, open, &[END])
    }

    fn allowed(constraint: &mut Constraint, early: bool) -> Vec<u32> {
        let work = constraint.ask(258, early);
        work.find();
        let mut mask = Vec::new();
        work.put(&mut mask);
        (0..258).filter(|&token| mask[token as usize / 32] >> (token % 32) & 1 == 1).collect()
    }

    #[test]
    fn the_end_may_come_where_the_answer_is_done() {
        let (a, b) = (b'a'.into(), b'b'.into());
        let mut constraint = constraint("ab*", false, None);
        assert_eq!(allowed(&mut constraint, false), [a]);
        assert_eq!(constraint.take(a, None), Taken::Open);
        assert_eq!(allowed(&mut constraint, false), [b, END]);
        assert_eq!(allowed(&mut constraint, true), [b], "where it is too early to end");
        assert_eq!(constraint.take(b'c'.into(), None), constraint.take(b'c'.into(), None));
        assert!(matches!(constraint.take(b, None), Taken::Stuck(_)), "after a token that was not allowed");
    }

    #[test]
    fn an_answer_that_nothing_can_follow_is_complete() {
        let mut constraint = constraint("a", false, None);
        assert_eq!(constraint.undrawn(), Taken::Open);
        assert_eq!(constraint.take(b'a'.into(), None), Taken::Complete);
        assert_eq!(allowed(&mut constraint, true), [END], "too early or not");
        assert_eq!(constraint.undrawn(), Taken::Complete);
    }

    #[test]
    fn reasoning_is_no_part_of_the_answer() {
        let mut opened = constraint("[0-9]", false, Some(OPEN));
        assert_eq!(allowed(&mut opened, false).last(), Some(&OPEN));
        assert_eq!(opened.take(OPEN, None), Taken::Open);
        assert!(opened.in_reasoning());
        assert_eq!(opened.take(b'x'.into(), None), Taken::Open);
        assert_eq!(opened.take(b'>'.into(), Some("")), Taken::Open);
        assert!(!opened.in_reasoning() && !allowed(&mut opened, false).contains(&OPEN));
        assert_eq!(opened.take(b'7'.into(), None), Taken::Complete);
        // What came with the section's end counts.
        let mut inside = constraint("[0-9]", true, Some(OPEN));
        assert_eq!(inside.take(b'>'.into(), Some("7")), Taken::Complete);
        // One that answers at once does not reason later.
        let mut answers = constraint("[0-9]{2}", false, Some(OPEN));
        assert_eq!(answers.take(b'7'.into(), None), Taken::Open);
        assert!(!allowed(&mut answers, false).contains(&OPEN));
    }
}
