//! Drafts by prompt lookup: the last three, two or one tokens are looked up in the prompt and the completion, and
//! the tokens that followed them there are the draft (github.com/apoorvumang/prompt-lookup-decoding).
//!
//! A prediction is made at every token and compared with the actual token, whether it was drafted or not; that
//! costs no row. So acceptance rates for each match length are known even while nothing is drafted, and a row is
//! computed only if it is likely to pay. A completion starts with the rates of its predecessors ([`Rates`]): for
//! texts without repetition, little is tried.

use std::sync::Arc;

use crate::limits::LOOKUP_SLOTS_MAX;

/// Maximum number of tokens that are looked up.
const GRAM_MAX: usize = 3;
/// Maximum length of a match that is counted.
const LENGTH_MAX: usize = 16;
/// Classes of match lengths: 1, 2, 3, 4 to 7, 8 to 15, more.
const CLASSES: usize = 6;
/// Initial acceptance rate of a predicted token, by class.
const RIGHT_EXPECTED: [f32; CLASSES] = [0.1, 0.25, 0.5, 0.7, 0.85, 0.95];
/// Weight of the newest token in an acceptance rate.
const RATE_STEP: f32 = 0.1;
/// Weight of each token of a finished completion in the rates for its successors, and maximum weight of all its
/// tokens.
const PASSED_ON_STEP: f32 = 0.02;
const PASSED_ON_MAX: f32 = 0.5;

/// Acceptance rates of predicted tokens.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    right: [f32; CLASSES], // by class of match length
    seen: [u32; CLASSES],  // number of predicted tokens that have been compared
}

/// Chances of draft tokens.
#[derive(Clone, Copy, Debug)]
pub struct DraftOdds<'a> {
    /// Smallest chance of acceptance that a draft token may have.
    pub least: f32,
    /// Acceptance rates of earlier completions.
    pub rates: &'a Rates,
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

    /// Learns from the rates of a finished completion.
    pub fn learn(&mut self, of: &Rates) {
        for ((known, found), &seen) in self.right.iter_mut().zip(of.right).zip(&of.seen) {
            *known += (found - *known) * (PASSED_ON_STEP * seen as f32).min(PASSED_ON_MAX);
        }
    }
}

/// Lookup over the previous tokens. It addresses them by index, because they are only appended to.
#[derive(Debug)]
pub struct Lookup {
    // Indices count the prediction's tokens first, then those of prompt and completion.
    prediction: Arc<[u32]>,
    prompt_tokens: usize,
    seen: usize, // of prompt and completion
    // (last index after that run of tokens, or 0), by the hash of a run of 1, 2, 3 tokens
    slots: [Vec<u32>; GRAM_MAX],
    source: Option<Source>,
    rates: Rates,
}

/// Place where the next tokens may already stand.
#[derive(Clone, Copy, Debug)]
struct Source {
    next: usize,   // index of the next token
    length: usize, // number of tokens before it that equal the last ones
}

impl Lookup {
    /// Creates a lookup for a prompt of `prompt_tokens` tokens; `tokens_max` includes the completion. `prediction`
    /// is the predicted completion, `rates` are the rates of earlier completions.
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

    /// Adds at most `most` tokens to follow `tokens`, while each has a chance of at least `least`. `tokens` must
    /// extend those of the last call.
    pub fn draft(&mut self, tokens: &[u32], most: usize, least: f32, draft: &mut Vec<u32>) {
        self.see(tokens);
        let Some(Source { next, length }) = self.source else { return };
        let (mut chance, first) = (1.0, draft.len());
        for ahead in 0..most {
            chance *= self.rates.right[class(length + ahead)];
            // Beyond the last token, the draft itself is read: the text repeats.
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

    /// Acceptance rates so far.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Compares new tokens with the predictions, and predicts the next.
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

    /// Compares the last of `tokens` with its prediction.
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

    /// Last place of the last tokens before, by the longest run.
    fn find(&self, tokens: &[u32]) -> Option<Source> {
        (1..=GRAM_MAX.min(tokens.len())).rev().find_map(|length| {
            let next = self.slots[length - 1][self.slot(&tokens[tokens.len() - length..])] as usize;
            // A match must not span the end of the prediction and the start of the prompt.
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

    /// Records that the token at `place` follows these.
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

/// Class of a match length.
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
        // The actual token differs from the prediction: the last place of 22 is now the later one.
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
        // The prediction ends.
        tokens.extend(523..538);
        assert_eq!(drafted(&mut lookup, &tokens, 15), [538, 539]);
    }

    #[test]
    fn what_is_never_right_is_not_drafted_for_long() {
        // Each token occurred before, but is followed by another one each time.
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
        // A repeating text is trusted soon all the same.
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
