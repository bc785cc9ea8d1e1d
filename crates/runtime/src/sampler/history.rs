//! Previous tokens as penalties see them: all of them, or the last ones only.

use std::collections::{BTreeMap, VecDeque};

use hanzo_engine_ops::Change;

use super::SamplingParams;

/// Previous tokens of a completion, for its penalties.
#[derive(Clone, Debug)]
pub(super) struct History {
    repetition: f32,
    frequency: f32,
    presence: f32,
    /// Tokens of prompt and completion, or of the window: bit `t % 32` of word `t / 32`. Only kept for a repetition
    /// penalty.
    seen: Vec<u32>,
    /// (token, times generated), by token; only kept for the other penalties.
    generated: Vec<(u32, u32)>,
    /// Window, if penalties only count the last tokens; then `generated` stays empty.
    window: Option<Window>,
}

/// Last tokens of prompt and completion.
#[derive(Clone, Debug)]
struct Window {
    tokens_max: usize,
    tokens: VecDeque<(u32, bool)>, // and whether it was generated
    counts: BTreeMap<u32, Counts>,
}

/// Number of times a token is in the window.
#[derive(Clone, Debug, Default)]
struct Counts {
    all: u32,
    generated: u32,
}

impl History {
    /// Creates the history after a prompt, for a vocabulary of `vocab` tokens.
    pub(super) fn new(params: &SamplingParams, vocab: usize, prompt: &[u32]) -> History {
        let mut history = History {
            repetition: params.repetition_penalty,
            frequency: params.frequency_penalty,
            presence: params.presence_penalty,
            seen: Vec::new(),
            generated: Vec::new(),
            window: params.repeat_last_n.map(|n| Window {
                tokens_max: n as usize,
                tokens: VecDeque::new(),
                counts: BTreeMap::new(),
            }),
        };
        if history.repetition != 1.0 {
            history.seen = vec![0; vocab.div_ceil(32)];
        }
        match &mut history.window {
            Some(window) if params.penalizes() => {
                let last = &prompt[prompt.len().saturating_sub(window.tokens_max)..];
                last.iter().for_each(|&token| window.push(token, false, &mut history.seen));
            }
            None if history.repetition != 1.0 => {
                prompt.iter().for_each(|&token| set(&mut history.seen, token, true));
            }
            _ => {}
        }
        history
    }

    /// Adds a generated token.
    pub(super) fn push(&mut self, token: u32) {
        let subtracts = self.frequency != 0.0 || self.presence != 0.0;
        if let Some(window) = &mut self.window {
            if subtracts || self.repetition != 1.0 {
                window.push(token, true, &mut self.seen);
            }
            return;
        }
        set(&mut self.seen, token, true);
        if subtracts {
            match self.generated.binary_search_by_key(&token, |&(token, _)| token) {
                Ok(at) => self.generated[at].1 += 1,
                Err(at) => self.generated.insert(at, (token, 1)),
            }
        }
    }

    /// The repetition penalty, and the tokens it applies to as bits; no bits if there is none.
    pub(super) fn seen(&self) -> (f32, &[u32]) {
        (self.repetition, &self.seen)
    }

    /// Other changes to logits: frequency and presence penalties.
    pub(super) fn changes(&self, mut change: impl FnMut(u32, Change)) {
        if self.frequency == 0.0 && self.presence == 0.0 {
            return;
        }
        let times = |times: u32| Change::Add(-(self.frequency * times as f32 + self.presence));
        if let Some(window) = &self.window {
            for (&token, counts) in &window.counts {
                if counts.generated > 0 {
                    change(token, times(counts.generated));
                }
            }
            return;
        }
        for &(token, generated) in &self.generated {
            change(token, times(generated));
        }
    }
}

/// Sets a token's bit; IDs outside the words are ignored.
fn set(seen: &mut [u32], token: u32, is_seen: bool) {
    if let Some(word) = seen.get_mut(token as usize / 32) {
        *word = *word & !(1 << (token % 32)) | u32::from(is_seen) << (token % 32);
    }
}

impl Window {
    fn push(&mut self, token: u32, generated: bool, seen: &mut [u32]) {
        if self.tokens_max == 0 {
            return;
        }
        if self.tokens.len() == self.tokens_max
            && let Some((oldest, was_generated)) = self.tokens.pop_front()
            && let Some(counts) = self.counts.get_mut(&oldest)
        {
            counts.all -= 1;
            counts.generated -= u32::from(was_generated);
            if counts.all == 0 {
                self.counts.remove(&oldest);
                set(seen, oldest, false);
            }
        }
        self.tokens.push_back((token, generated));
        set(seen, token, true);
        let counts = self.counts.entry(token).or_default();
        counts.all += 1;
        counts.generated += u32::from(generated);
    }
}
