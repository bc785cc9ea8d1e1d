//! State of a completion in its constraint: which tokens may come next, and when the answer may end. The reasoning
//! section, if the model writes one, is not part of the answer: there any token is allowed except an end.
//!
//! Computing a mask takes as long as some rows of a layer, so it is done while the device computes. The step
//! carries the work ([`MaskWork`]); after submission, the masks of all completions are computed in parallel.
//! A constraint whose last mask took [`SLOW_MASK`] gets the next one in the background, and its completion is in no
//! step meanwhile ([`Constraint::is_pending`]).
//!
//! For draft tokens the matcher advances along them to get their rows' masks, and rolls back when the step is
//! collected. If it cannot roll back, because it is stuck or its last state has no token left, it is created again
//! from the accepted tokens.

use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hanzo_engine_constraints::{Grammar, Matcher, PendingMask, SLOW_MASK, Stuck, timed};

/// Constraint of one completion.
#[derive(Debug)]
pub(super) struct Constraint {
    phase: Phase,
    open: Option<u32>, // token that opens the reasoning section
    way: Arc<Mutex<Way>>,
    slow: bool, // the next token is accepted in the background, and its mask computed there
    pending: Option<PendingMask>, // it locks `way` until it is done
}

/// Part of the output that the next token belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing was generated yet: the answer may start, or a token that opens the reasoning section.
    Start,
    Reasoning,
    Answer,
}

/// Matcher, and its work for the step in flight.
#[derive(Debug)]
struct Way {
    grammar: Arc<Grammar>,
    matcher: Option<Matcher>, // created at the first token, because copying a large grammar takes time
    taken: Vec<u32>,          // accepted tokens
    ahead: usize,             // draft tokens accepted in addition
    besides: Vec<u32>,        // tokens that are allowed although the grammar has no place for them
    ends: Vec<u32>,           // tokens that end the answer
    early: usize,             // rows in which the answer must not end while it can continue
    draft: Vec<u32>,
    masks: Vec<u32>,      // of the next token, and of the tokens after each draft token
    words: usize,         // of a mask
    found: usize,         // number of computed masks, from the first on
    ready: bool,          // the first of `masks` is what the grammar allows next
    queued: Vec<u32>,     // tokens to accept in the background
    token_time: Duration, // of the last token
    cost: Duration,       // time of the last token and the mask after it; a mean if there were drafts
    stuck: Option<String>,
}

/// Masks to be computed for one completion.
pub struct MaskWork {
    way: Arc<Mutex<Way>>,
    first: u32, // index of its first mask in the step
    count: u32,
}

/// Effect of a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The answer, or the reasoning before it, may continue.
    Open,
    /// The answer satisfies the constraint, and nothing may follow.
    Complete,
    /// No token can follow, for this reason.
    Stuck(String),
}

impl Constraint {
    /// Creates a constraint. The completion starts in the reasoning section, or may start with the token that opens
    /// it.
    pub(super) fn new(
        grammar: &Arc<Grammar>,
        in_reasoning: bool,
        open: Option<u32>,
        ends: &[u32],
        vocab: usize,
    ) -> Constraint {
        let phase = match (in_reasoning, open) {
            (true, _) => Phase::Reasoning,
            (false, Some(_)) => Phase::Start,
            (false, None) => Phase::Answer,
        };
        let way = Way {
            grammar: grammar.clone(),
            matcher: None,
            taken: Vec::new(),
            ahead: 0,
            besides: Vec::new(),
            ends: ends.to_vec(),
            early: 0,
            draft: Vec::new(),
            masks: Vec::new(),
            words: vocab.div_ceil(32),
            found: 0,
            ready: false,
            queued: Vec::new(),
            token_time: Duration::ZERO,
            cost: grammar.first_mask(),
            stuck: None,
        };
        Constraint { phase, open, way: Arc::new(Mutex::new(way)), slow: false, pending: None }
    }

    /// Whether its next mask is being computed in the background. No row may be sampled for it meanwhile.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| !pending.is_done())
    }

    /// Starts to compute the next mask in the background, if the constraint needs one and is slow.
    pub(super) fn prepare(&mut self) {
        if self.phase == Phase::Reasoning || self.is_pending() {
            return;
        }
        let mut way = lock(&self.way);
        if way.cost >= SLOW_MASK && !way.ready && way.stuck.is_none() {
            let stopper = way.matcher().stopper();
            drop(way);
            self.pending = Some(PendingMask::start(&self.way, advance, stopper));
        }
    }

    /// Whether the next token is certainly part of the reasoning section: no mask, and no end.
    pub(super) fn in_reasoning(&self) -> bool {
        self.phase == Phase::Reasoning
    }

    /// Cuts a draft down to allowed tokens; to nothing if the next token may open the reasoning section, or if the
    /// constraint is slow.
    pub(super) fn cut(&self, draft: &mut Vec<u32>) {
        match self.phase {
            Phase::Start if self.open.is_some() => draft.clear(),
            Phase::Reasoning => {}
            Phase::Start | Phase::Answer => {
                let mut way = lock(&self.way);
                draft.truncate(way.drafts_most());
                let end = draft.iter().position(|token| way.ends.contains(token)).unwrap_or(draft.len());
                let valid = way.matcher().valid(&draft[..end]);
                draft.truncate(valid);
            }
        }
    }

    /// Requests the masks for the next token and after each draft token. The masks come after those of `before` in
    /// the step. For the first `early` tokens the answer ends only if it cannot continue.
    pub(super) fn ask(&mut self, early: usize, draft: &[u32], before: Option<&MaskWork>) -> MaskWork {
        debug_assert!(!self.is_pending(), "a mask is asked for twice");
        self.pending = None;
        let mut way = lock(&self.way);
        self.slow = draft.is_empty() && way.cost >= SLOW_MASK;
        way.besides.clear();
        if self.phase == Phase::Start {
            way.besides.extend(self.open);
        }
        way.early = early;
        way.draft.clear();
        way.draft.extend_from_slice(draft);
        way.found = 0;
        let count = 1 + draft.len();
        let words = count * way.words;
        way.masks.resize(words, 0);
        drop(way);
        let first = before.map_or(0, |before| before.first + before.count);
        MaskWork { way: self.way.clone(), first, count: count as u32 }
    }

    /// Requests nothing for the step being prepared: as far as is known, all its rows are in the reasoning section.
    pub(super) fn ask_nothing(&mut self) {
        self.slow = false;
        lock(&self.way).found = 0;
    }

    /// Whether a token may be taken that was sampled after `after` others of the same step: its row had a mask for
    /// that place.
    pub(super) fn covers(&self, after: usize) -> bool {
        self.phase == Phase::Reasoning || after < lock(&self.way).found
    }

    /// Rolls back the draft tokens.
    pub(super) fn rewind(&mut self) {
        lock(&self.way).rewind();
    }

    /// Accepts a sampled token that does not end the completion. `left_reasoning` is given if the section ended
    /// with it: the text of the answer in the same token.
    pub(super) fn take(&mut self, token: u32, left_reasoning: Option<&str>) -> Effect {
        let mut way = lock(&self.way);
        let accepted = match self.phase {
            Phase::Start if Some(token) == self.open => {
                self.phase = Phase::Reasoning;
                return Effect::Open;
            }
            Phase::Reasoning => {
                let Some(rest) = left_reasoning else { return Effect::Open };
                self.phase = Phase::Answer;
                way.accept_text(rest)
            }
            Phase::Start | Phase::Answer if self.slow => {
                self.phase = Phase::Answer;
                way.queue(token);
                Ok(())
            }
            Phase::Start | Phase::Answer => {
                self.phase = Phase::Answer;
                way.accept(token)
            }
        };
        match accepted {
            Err(stuck) => Effect::Stuck(stuck.to_string()),
            Ok(()) if way.matcher().is_stopped() => Effect::Complete,
            Ok(()) => {
                // Tokens of a draft follow at once.
                let prepares = way.draft.is_empty();
                drop(way);
                if prepares {
                    self.prepare();
                }
                Effect::Open
            }
        }
    }

    /// Explains why no token could be sampled, if the constraint is the reason.
    pub(super) fn undrawn(&self) -> Effect {
        let way = lock(&self.way);
        match &way.stuck {
            Some(reason) => Effect::Stuck(reason.clone()),
            None if way.matcher.as_ref().is_some_and(Matcher::is_stopped) => Effect::Complete,
            None => Effect::Open,
        }
    }
}

impl Way {
    fn matcher(&mut self) -> &mut Matcher {
        self.matcher.get_or_insert_with(|| self.grammar.matcher())
    }

    fn accept(&mut self, token: u32) -> Result<(), Stuck> {
        self.taken.push(token);
        self.ready = false;
        let (accepted, time) = timed(|| self.matcher().accept(token));
        (self.token_time, self.cost) = (time, self.cost.max(time));
        accepted
    }

    /// Maximum number of draft tokens: the masks of a step take less than [`SLOW_MASK`].
    fn drafts_most(&self) -> usize {
        let rows = SLOW_MASK.as_nanos() / self.cost.as_nanos().max(1);
        usize::try_from(rows).unwrap_or(usize::MAX).saturating_sub(1)
    }

    /// Leaves a token to the background.
    fn queue(&mut self, token: u32) {
        self.ready = false;
        self.cost = SLOW_MASK;
        self.queued.push(token);
    }

    /// Accepts the queued tokens, and computes the mask after them unless nothing may follow. A mask of a failed or a
    /// complete answer is empty.
    fn advance(&mut self) -> Result<(), Stuck> {
        self.masks.clear();
        self.masks.resize(self.words, 0);
        let accepted = mem::take(&mut self.queued).into_iter().try_for_each(|token| self.accept(token));
        let mut masks = mem::take(&mut self.masks);
        let allowed = accepted.and_then(|()| self.matcher().allowed(&mut masks));
        if allowed.is_err() {
            masks.fill(0);
        }
        self.masks = masks;
        self.ready = true;
        allowed
    }

    fn accept_text(&mut self, text: &str) -> Result<(), Stuck> {
        let tokens = self.matcher().spell(text);
        tokens.into_iter().try_for_each(|token| self.accept(token))
    }

    fn rewind(&mut self) {
        let Some(matcher) = self.matcher.as_mut().filter(|_| self.ahead > 0) else { return };
        if matcher.rollback(mem::take(&mut self.ahead)).is_err() {
            *matcher = self.grammar.matcher();
            // Accepts again what it has accepted before.
            let again = self.taken.iter().try_for_each(|&token| matcher.accept(token));
            self.stuck = again.err().map(|error| error.to_string());
        }
    }

    /// Computes the mask after `at` draft tokens, and accepts the last of these; returns false if there is none.
    fn find(&mut self, at: usize) -> bool {
        let Way { grammar, matcher, besides, ends, early, masks, draft, words, .. } = self;
        let (matcher, words) = (matcher.get_or_insert_with(|| grammar.matcher()), *words);
        let (before, mask) = masks[..(at + 1) * words].split_at_mut(at * words);
        if at > 0 {
            let token = draft[at - 1];
            if !is_set(&before[(at - 1) * words..], token)
                || ends.contains(&token)
                || besides.contains(&token)
            {
                return false;
            }
            self.ahead += 1;
            if matcher.accept(token).is_err() || matcher.is_stopped() {
                return false;
            }
        }
        if at == 0 && mem::take(&mut self.ready) {
            // A failed answer, or one that nothing may follow, has an empty mask: no token is drawn.
            if self.stuck.is_some() || matcher.is_stopped() {
                return false;
            }
        } else if let Err(error) = matcher.allowed(mask) {
            if at == 0 {
                self.stuck = Some(error.to_string());
            }
            mask.fill(0);
            return false;
        }
        if at == 0 {
            besides.iter().for_each(|&token| set(mask, token));
        }
        if matcher.is_accepting() && !(at < *early && mask.iter().any(|&word| word != 0)) {
            ends.iter().for_each(|&token| set(mask, token));
        }
        true
    }
}

/// Work of the background.
fn advance(way: &Mutex<Way>) {
    let mut way = lock(way);
    let (advanced, time) = timed(|| way.advance());
    way.cost = time;
    if let Err(stuck) = advanced {
        way.stuck = Some(stuck.to_string());
    }
}

impl MaskWork {
    /// Computes the masks. Masks after an impossible draft token belong to rows that are never taken.
    pub(crate) fn find(&self) {
        let mut way = lock(&self.way);
        let (count, computed) = (self.count as usize, way.ready);
        let (found, time) = timed(|| (0..count).position(|at| !way.find(at)).unwrap_or(count));
        way.found = found;
        if !computed {
            way.cost = way.token_time + time / (found + 1).min(count) as u32;
        }
    }

    /// Index in the step of the mask after `after` draft tokens.
    pub(super) fn mask(&self, after: usize) -> u32 {
        self.first + after as u32
    }

    /// Appends the computed masks.
    pub(crate) fn put(&self, masks: &mut Vec<u32>) {
        let way = lock(&self.way);
        masks.extend_from_slice(&way.masks[..self.count as usize * way.words]);
    }
}

impl fmt::Debug for MaskWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaskWork")
    }
}

/// Locks the state. Only the step's threads share it, one at a time; a panic there ends the worker.
fn lock(way: &Mutex<Way>) -> MutexGuard<'_, Way> {
    way.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

fn is_set(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use hanzo_engine_constraints::{ConstraintVocabulary, Spec, Word};

    use super::*;

    const OPEN: u32 = 256;
    const END: u32 = 257;

    fn constraint(expression: &str, in_reasoning: bool, open: Option<u32>) -> Constraint {
        let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let words = bytes.iter().map(|byte| Word::Text(byte));
        let words = words.chain([Word::Control(b"<think>"), Word::Control(b"<|end|>")]);
        let vocabulary = Arc::new(ConstraintVocabulary::new(words).unwrap());
        let grammar = Grammar::compile(&Spec::Regex(expression.into()), &vocabulary).unwrap();
        Constraint::new(&grammar, in_reasoning, open, &[END], 258)
    }

    fn allowed(constraint: &mut Constraint, early: bool) -> Vec<u32> {
        let work = constraint.ask(early.into(), &[], None);
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
        assert_eq!(constraint.take(a, None), Effect::Open);
        assert_eq!(allowed(&mut constraint, false), [b, END]);
        assert_eq!(allowed(&mut constraint, true), [b], "where it is too early to end");
        assert_eq!(constraint.take(b'c'.into(), None), constraint.take(b'c'.into(), None));
        assert!(matches!(constraint.take(b, None), Effect::Stuck(_)), "after a token that was not allowed");
    }

    /// Masks of a draft's rows, as far as they were computed.
    fn ahead(constraint: &mut Constraint, early: usize, draft: &[u32]) -> Vec<Vec<u32>> {
        let work = constraint.ask(early, draft, None);
        work.find();
        let mut masks = Vec::new();
        work.put(&mut masks);
        assert_eq!(masks.len(), (1 + draft.len()) * 9);
        let bits = |mask: &[u32]| (0..258).filter(|&token| is_set(mask, token)).collect();
        let found = (0..).take_while(|&at| constraint.covers(at)).count();
        masks.chunks(9).take(found).map(bits).collect()
    }

    #[test]
    fn what_is_asked_along_a_draft_is_what_would_be_asked_without() {
        // Some of these end within a draft; in the last, the vocabulary has no token for the rest of "é" after its
        // first byte.
        for (expression, said) in
            [("a(b|cd)*e", "abcdbbcdbe"), ("(ab){1,3}", "ababab"), ("[a-c]{2}", "ab"), ("é+", "éé")]
        {
            let said: Vec<u32> = said.bytes().map(u32::from).collect();
            let mut plain = constraint(expression, false, None);
            let mut masks = Vec::new();
            for &token in &said {
                masks.push(allowed(&mut plain, false));
                assert_ne!(plain.take(token, None), Effect::Stuck(String::new()), "{expression}");
            }
            for step in 1..6 {
                for wrong in 0..=step {
                    let (mut drafts, mut at) = (constraint(expression, false, None), 0);
                    while at < said.len() {
                        let mut draft: Vec<u32> = said[at..].iter().copied().take(step).collect();
                        draft.get_mut(wrong).into_iter().for_each(|token| *token = b'x'.into());
                        let found = ahead(&mut drafts, 0, &draft);
                        assert!(!found.is_empty() && found.len() <= 1 + wrong, "{expression}, {found:?}");
                        drafts.rewind();
                        for found in &found {
                            if at == said.len() {
                                break;
                            }
                            assert_eq!(
                                found, &masks[at],
                                "{expression} at {at}, drafts of {step}, wrong at {wrong}"
                            );
                            let taken = drafts.take(said[at], None);
                            at += 1;
                            assert!(!matches!(taken, Effect::Stuck(_)), "{expression} at {at}: {taken:?}");
                        }
                    }
                }
            }
        }
        // The answer must not end yet for some of the rows.
        let mut early = constraint("a*", false, None);
        let a = u32::from(b'a');
        assert_eq!(ahead(&mut early, 2, &[a, a, END]), [vec![a], vec![a], vec![a, END]]);
    }

    /// Marks a constraint as slow, and waits for its mask in the background.
    fn slow(constraint: &mut Constraint) {
        lock(&constraint.way).cost = SLOW_MASK;
        constraint.prepare();
        while constraint.is_pending() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn masks_of_the_background_are_those_of_a_step() {
        for (expression, said) in [("a(b|cd)*e", "abcdbbcdbe"), ("[a-c]{2}", "ab"), ("ab*", "abbb")] {
            let said: Vec<u32> = said.bytes().map(u32::from).collect();
            let (mut plain, mut other) =
                (constraint(expression, false, Some(OPEN)), constraint(expression, false, Some(OPEN)));
            for (at, &token) in said.iter().enumerate() {
                let masks = allowed(&mut plain, false);
                let taken = plain.take(token, None);
                slow(&mut other);
                assert!(at == 0 || lock(&other.way).ready, "{expression} at {at} was computed in a step");
                lock(&other.way).cost = SLOW_MASK;
                assert_eq!(allowed(&mut other, false), masks, "{expression} at {at}");
                let mut draft = vec![token];
                lock(&other.way).cost = SLOW_MASK;
                other.cut(&mut draft);
                assert!(draft.is_empty(), "a slow answer has no drafts");
                assert_eq!(other.take(token, None), Effect::Open, "{expression} at {at}");
                if taken == Effect::Complete {
                    slow(&mut other);
                    assert!(allowed(&mut other, true).is_empty(), "{expression}: nothing is drawn");
                    assert_eq!(other.undrawn(), Effect::Complete);
                }
            }
        }
        // A token that the grammar forbids.
        let mut wrong = constraint("ab", false, None);
        slow(&mut wrong);
        lock(&wrong.way).cost = SLOW_MASK;
        assert_eq!(allowed(&mut wrong, false), [u32::from(b'a')]);
        assert_eq!(wrong.take(b'x'.into(), None), Effect::Open, "it is not known yet");
        slow(&mut wrong);
        assert!(allowed(&mut wrong, false).is_empty());
        assert!(matches!(wrong.undrawn(), Effect::Stuck(_)));
    }

    #[test]
    fn a_dropped_constraint_stops_its_work() {
        let mut constraint = constraint("ab", false, None);
        let way = constraint.way.clone();
        lock(&way).cost = SLOW_MASK;
        let held = lock(&way);
        constraint.slow = true;
        drop(held);
        constraint.prepare();
        let stopper = lock(&way).matcher().stopper();
        stopper.stop();
        drop(constraint);
        let mut mask = vec![0; 9];
        assert!(lock(&way).matcher().allowed(&mut mask).is_err(), "a stopped matcher goes on");
    }

    #[test]
    fn a_draft_is_cut_to_what_may_come() {
        let cut = |constraint: &Constraint, said: &str, more: &[u32]| {
            let mut draft: Vec<u32> = said.bytes().map(u32::from).chain(more.iter().copied()).collect();
            constraint.cut(&mut draft);
            draft.len()
        };
        assert_eq!(cut(&constraint("abc*", false, None), "abcd", &[]), 3);
        assert_eq!(cut(&constraint("abc*", false, None), "xabc", &[]), 0);
        assert_eq!(cut(&constraint("a*", false, None), "aa", &[END, END]), 2);
        assert_eq!(cut(&constraint("a*", false, Some(OPEN)), "aa", &[]), 0, "it may reason first");
        assert_eq!(cut(&constraint("a*", true, Some(OPEN)), "xyz", &[]), 3, "reasoning is free");
        // Rows in the step in which the reasoning ends had no mask.
        let mut leaves = constraint("a*", true, Some(OPEN));
        leaves.ask_nothing();
        assert!(leaves.covers(3));
        assert_eq!(leaves.take(b'>'.into(), Some("")), Effect::Open);
        assert!(!leaves.covers(1));
    }

    #[test]
    fn an_answer_that_nothing_can_follow_is_complete() {
        let mut constraint = constraint("a", false, None);
        assert_eq!(constraint.undrawn(), Effect::Open);
        assert_eq!(constraint.take(b'a'.into(), None), Effect::Complete);
        assert_eq!(allowed(&mut constraint, true), [END], "too early or not");
        assert_eq!(constraint.undrawn(), Effect::Complete);
    }

    #[test]
    fn reasoning_is_no_part_of_the_answer() {
        let mut opened = constraint("[0-9]", false, Some(OPEN));
        assert_eq!(allowed(&mut opened, false).last(), Some(&OPEN));
        assert_eq!(opened.take(OPEN, None), Effect::Open);
        assert!(opened.in_reasoning());
        assert_eq!(opened.take(b'x'.into(), None), Effect::Open);
        assert_eq!(opened.take(b'>'.into(), Some("")), Effect::Open);
        assert!(!opened.in_reasoning() && !allowed(&mut opened, false).contains(&OPEN));
        assert_eq!(opened.take(b'7'.into(), None), Effect::Complete);
        // Text after the section's end in the same token counts.
        let mut inside = constraint("[0-9]", true, Some(OPEN));
        assert_eq!(inside.take(b'>'.into(), Some("7")), Effect::Complete);
        // An answer that has started does not reason later.
        let mut answers = constraint("[0-9]{2}", false, Some(OPEN));
        assert_eq!(answers.take(b'7'.into(), None), Effect::Open);
        assert!(!allowed(&mut answers, false).contains(&OPEN));
    }
}
