//! Drafts by prompt lookup: the last three, two or one tokens are looked for in the prompt and the completion, and what followed
//! them there is the draft (github.com/apoorvumang/prompt-lookup-decoding).
//!
//! What the completion goes on with is foreseen at every token, and compared with what came, whether it was drafted or not:
//! that costs no row. So how often a foreseen token is right is known for each length of the match, also while nothing is
//! drafted, and a row is computed only where it is likely to pay. A completion begins with what its predecessors have found
//! ([`Rates`]): where texts say nothing twice, little is tried.

use std::sync::Arc;

use crate::limits::LOOKUP_SLOTS_MAX;

/// Longest run of tokens that is looked up.
const GRAM_MAX: usize = 3;
/// Longest match that is told from a longer one.
const LENGTH_MAX: usize = 16;
/// Lengths of matches that are told apart: 1, 2, 3, 4 to 7, 8 to 15, more.
const CLASSES: usize = 6;
/// How often a token foreseen by a match is right before anything is known, by the length of the match.
const RIGHT_EXPECTED: [f32; CLASSES] = [0.1, 0.25, 0.5, 0.7, 0.85, 0.95];
/// Weight of the last token in such a rate.
const RATE_STEP: f32 = 0.1;
/// Weight of each token of a completion that has ended in what those after it begin with, and of all its tokens at most.
const PASSED_ON_STEP: f32 = 0.02;
const PASSED_ON_MAX: f32 = 0.5;

/// How often what was foreseen was right.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    right: [f32; CLASSES], // by length of the match
    seen: [u32; CLASSES],  // tokens that have come where one was foreseen
}

impl Default for Rates {
    fn default() -> Rates {
        Rates { right: RIGHT_EXPECTED, seen: [0; CLASSES] }
    }
}

impl Rates {
    fn see(&mut self, class: usize, right: bool) {
        self.right[class] += (f32::from(u8::from(right)) - self.right[class]) * RATE_STEP;
        self.seen[class] = self.seen[class].saturating_add(1);
    }

    /// Takes in what a completion has found that has ended.
    pub fn learn(&mut self, of: &Rates) {
        for ((known, found), &seen) in self.right.iter_mut().zip(of.right).zip(&of.seen) {
            *known += (found - *known) * (PASSED_ON_STEP * seen as f32).min(PASSED_ON_MAX);
        }
    }
}

/// What was said before, to be looked up. It remembers the tokens it has seen by their number: they only grow.
#[derive(Debug)]
pub struct Lookup {
    // Places count the prediction's tokens first, then those of prompt and completion.
    prediction: Arc<[u32]>,
    prompt_tokens: usize,
    seen: usize, // of prompt and completion
    // (last place after that run of tokens, or 0), by the hash of a run of 1, 2, 3 tokens
    slots: [Vec<u32>; GRAM_MAX],
    source: Option<Source>,
    rates: Rates,
}

/// Where the next tokens may stand already.
#[derive(Clone, Copy, Debug)]
struct Source {
    next: usize,   // place of the next token
    length: usize, // tokens before it that are the last ones
}

impl Lookup {
    /// For a prompt of so many tokens; `tokens_max` with the completion. `prediction` is what the completion may be, `rates` what
    /// others have found.
    pub fn new(prediction: Arc<[u32]>, prompt_tokens: usize, tokens_max: usize, rates: &Rates) -> Lookup {
        let count = (prediction.len() + tokens_max).next_power_of_two().clamp(256, LOOKUP_SLOTS_MAX);
        let mut lookup = Lookup {
            prompt_tokens,
            seen: 0,
            slots: std::array::from_fn(|_| vec![0; count]),
            source: None,
            rates: Rates { seen: [0; CLASSES], ..*rates },
            prediction,
        };
        let prediction = lookup.prediction.clone();
        (1..prediction.len()).for_each(|place| lookup.insert(&prediction[..place], place));
        lookup
    }

    /// Adds at most `most` tokens that may follow `tokens`, as long as each is right with a chance of at least `least`.
    /// `tokens` begin with those it was given before.
    pub fn draft(&mut self, tokens: &[u32], most: usize, least: f32, draft: &mut Vec<u32>) {
        self.see(tokens);
        let Some(Source { next, length }) = self.source else { return };
        let (mut chance, first) = (1.0, draft.len());
        for ahead in 0..most {
            chance *= self.rates.right[class(length + ahead)];
            // What follows the last token of all is what is drafted itself: the text goes round.
            let place = next + ahead;
            let known = self.token(tokens, place).or_else(|| {
                let beyond = place.checked_sub(self.prediction.len() + tokens.len())?;
                draft.get(first + beyond).copied()
            });
            let predicted = next < self.prediction.len() && place >= self.prediction.len();
            let Some(token) = known.filter(|_| chance >= least && !predicted) else { return };
            draft.push(token);
        }
    }

    /// What it has found.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Compares what has come with what was foreseen, and foresees what comes next.
    fn see(&mut self, tokens: &[u32]) {
        for at in self.seen..tokens.len() {
            let place = self.prediction.len() + at;
            self.insert(&tokens[..at], place);
            if at >= self.prompt_tokens {
                self.compare(&tokens[..=at]);
            } else if at + 1 == self.prompt_tokens {
                self.source = match self.prediction.is_empty() {
                    true => self.find(&tokens[..=at]),
                    false => Some(Source { next: 0, length: LENGTH_MAX / 2 }),
                };
            }
        }
        self.seen = tokens.len();
    }

    /// The last of `tokens` has come.
    fn compare(&mut self, tokens: &[u32]) {
        let followed = self.source.and_then(|Source { next, length }| {
            let right = self.token(tokens, next) == tokens.last().copied();
            self.rates.see(class(length), right);
            (right && next + 1 != self.prediction.len())
                .then_some(Source { next: next + 1, length: length + 1 })
        });
        self.source = match followed {
            Some(source) if source.length >= GRAM_MAX => Some(source),
            followed => match self.find(tokens) {
                Some(found) if followed.is_none_or(|source| source.length <= found.length) => Some(found),
                _ => followed,
            },
        };
    }

    /// The last place where the last tokens stood before, by the most of them.
    fn find(&self, tokens: &[u32]) -> Option<Source> {
        (1..=GRAM_MAX.min(tokens.len())).rev().find_map(|length| {
            let next = self.slots[length - 1][self.slot(&tokens[tokens.len() - length..])] as usize;
            // Nothing goes from the prediction over into the prompt.
            let before = if next > self.prediction.len() { next - self.prediction.len() } else { next };
            let is_same = |back: &usize| {
                self.token(tokens, next - back).is_some_and(|token| token == tokens[tokens.len() - back])
            };
            let same = (1..=before.min(tokens.len()).min(LENGTH_MAX)).take_while(is_same).count();
            (same >= length).then_some(Source { next, length: same })
        })
    }

    fn token(&self, tokens: &[u32], place: usize) -> Option<u32> {
        match place.checked_sub(self.prediction.len()) {
            None => Some(self.prediction[place]),
            Some(at) => tokens.get(at).copied(),
        }
    }

    /// The token at `place` follows these.
    fn insert(&mut self, tokens: &[u32], place: usize) {
        for length in 1..=GRAM_MAX.min(tokens.len()) {
            let slot = self.slot(&tokens[tokens.len() - length..]);
            self.slots[length - 1][slot] = place as u32;
        }
    }

    fn slot(&self, run: &[u32]) -> usize {
        let mix = |hash: u64, &token: &u32| {
            let mixed = (hash ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            mixed ^ (mixed >> 29)
        };
        run.iter().fold(run.len() as u64, mix) as usize & (self.slots[0].len() - 1)
    }
}

/// Which of the rates is a match's.
fn class(length: usize) -> usize {
    match length {
        0..=3 => length.saturating_sub(1),
        4..=7 => 3,
        8..=15 => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(lookup: &mut Lookup, tokens: &[u32], most: usize) -> Vec<u32> {
        let mut draft = Vec::new();
        lookup.draft(tokens, most, 0.25, &mut draft);
        draft
    }

    #[test]
    fn what_followed_the_last_tokens_is_drafted() {
        let mut tokens: Vec<u32> = (0..50).chain([100, 101]).collect();
        let mut lookup = Lookup::new(Arc::default(), tokens.len(), 200, &Rates::default());
        assert!(drafted(&mut lookup, &tokens, 8).is_empty());
        tokens.extend([20, 21, 22]);
        assert_eq!(drafted(&mut lookup, &tokens, 2), [23, 24]);
        // A long match is trusted further, and the limit is kept.
        tokens.extend(23..45);
        assert_eq!(drafted(&mut lookup, &tokens, 8), [45, 46, 47, 48, 49, 100, 101, 20]);
        assert_eq!(drafted(&mut lookup, &tokens, 3), [45, 46, 47]);
        // What came is not what was foreseen: the last place where 22 stood is the later one.
        tokens.extend([7, 22]);
        let mut draft = Vec::new();
        lookup.draft(&tokens, 1, 0.0, &mut draft);
        assert_eq!(draft, [23]);
    }

    #[test]
    fn a_text_that_goes_round_is_drafted_beyond_its_end() {
        let tokens = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3];
        let mut lookup = Lookup::new(Arc::default(), tokens.len(), 100, &Rates::default());
        let mut draft = Vec::new();
        lookup.draft(&tokens, 9, 0.0, &mut draft);
        assert_eq!(draft, [4, 1, 2, 3, 4, 1, 2, 3, 4]);
    }

    #[test]
    fn a_prediction_is_drafted_from_its_beginning_and_found_again() {
        let prediction: Arc<[u32]> = (500..540).collect();
        let mut tokens: Vec<u32> = (0..20).collect();
        let mut lookup = Lookup::new(prediction, tokens.len(), 200, &Rates::default());
        assert_eq!(drafted(&mut lookup, &tokens, 4), [500, 501, 502, 503]);
        tokens.extend(500..510);
        assert_eq!(drafted(&mut lookup, &tokens, 3), [510, 511, 512]);
        tokens.extend([9999, 520, 521, 522]);
        assert_eq!(drafted(&mut lookup, &tokens, 1), [523]);
        // It ends with itself.
        tokens.extend(523..538);
        assert_eq!(drafted(&mut lookup, &tokens, 15), [538, 539]);
    }

    #[test]
    fn what_is_never_right_is_not_drafted_for_long() {
        // Each token stood before, and something else follows each time.
        let mut lookup = Lookup::new(Arc::default(), 1, 4000, &Rates::default());
        let (mut tokens, mut state) = (vec![0u32], 1u64);
        let mut rows = 0;
        for _ in 0..2000 {
            rows += drafted(&mut lookup, &tokens, 8).len();
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            tokens.push((state >> 33) as u32 % 30);
        }
        assert!(rows < 40, "{rows} rows for 2000 tokens of noise");
    }

    #[test]
    fn what_a_completion_has_found_the_next_begin_with() {
        let noise = |lookup: &mut Lookup, tokens: usize| {
            let (mut said, mut state, mut rows) = (vec![0u32], 9u64, 0);
            for _ in 0..tokens {
                rows += drafted(lookup, &said, 8).len();
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                said.push((state >> 33) as u32 % 12);
            }
            rows
        };
        let (mut known, mut rows) = (Rates::default(), Vec::new());
        for _ in 0..20 {
            let mut lookup = Lookup::new(Arc::default(), 1, 400, &known);
            rows.push(noise(&mut lookup, 300));
            known.learn(lookup.rates());
        }
        assert!(rows[0] > 3 * rows[19], "{rows:?} rows for noise");
        // What says itself again is believed soon all the same.
        let mut lookup = Lookup::new(Arc::default(), 1, 400, &known);
        let tokens: Vec<u32> = (0..300).map(|at| at % 40).collect();
        let rows: usize = (40..300).map(|at| drafted(&mut lookup, &tokens[..at], 1).len()).sum();
        assert!(rows > 200, "{rows} of 260");
    }

    #[test]
    fn any_tokens_in_any_steps_are_taken() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let prediction: Vec<u32> = (0..random(12)).map(|_| random(4) as u32).collect();
            let mut tokens: Vec<u32> = (0..1 + random(10)).map(|_| random(4) as u32).collect();
            let mut lookup = Lookup::new(prediction.into(), tokens.len(), 100, &Rates::default());
            for _ in 0..20 {
                let (most, mut draft) = (random(12) as usize, vec![77]);
                lookup.draft(&tokens, most, random(3) as f32 / 3.0, &mut draft);
                assert!(draft.len() <= 1 + most && draft[0] == 77);
                tokens.extend((0..random(4)).map(|_| random(4) as u32));
            }
        }
    }
}
