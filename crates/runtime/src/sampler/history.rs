//! What was said before, as penalties look back on it: all of it, or so many last tokens.

use std::collections::{BTreeMap, VecDeque};

use hanzo_engine_kernels::Change;

use super::SamplingParams;

/// What a completion's penalties look back on.
#[derive(Clone, Debug)]
pub(super) struct History {
    repetition: f32,
    frequency: f32,
    presence: f32,
    seen: Seen,
    /// (token, times generated), by token; kept only where a penalty reads it.
    generated: Vec<(u32, u32)>,
    /// Where penalties look back on so many last tokens; then nothing is in the others.
    window: Option<Window>,
}

/// The tokens of prompt and completion, each once; empty unless a repetition penalty reads it.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// One bit a token.
    present: Vec<u64>,
    tokens: Vec<u32>,
}

/// The last tokens of prompt and completion.
#[derive(Clone, Debug)]
struct Window {
    tokens_max: usize,
    tokens: VecDeque<(u32, bool)>, // and whether it was generated
    counts: BTreeMap<u32, Counts>,
}

/// Times that a token is in the window.
#[derive(Clone, Debug, Default)]
struct Counts {
    all: u32,
    generated: u32,
}

impl History {
    /// Of what begins with a prompt, for a vocabulary of so many tokens.
    pub(super) fn new(params: &SamplingParams, vocab: usize, prompt: &[u32]) -> History {
        let mut history = History {
            repetition: params.repetition_penalty,
            frequency: params.frequency_penalty,
            presence: params.presence_penalty,
            seen: Seen::default(),
            generated: Vec::new(),
            window: params.repeat_last_n.map(|n| Window {
                tokens_max: n as usize,
                tokens: VecDeque::new(),
                counts: BTreeMap::new(),
            }),
        };
        match &mut history.window {
            Some(window) if params.penalizes() => {
                let last = &prompt[prompt.len().saturating_sub(window.tokens_max)..];
                last.iter().for_each(|&token| window.push(token, false));
            }
            None if history.repetition != 1.0 => {
                history.seen.present = vec![0; vocab.div_ceil(64)];
                prompt.iter().for_each(|&token| history.seen.insert(token));
            }
            _ => {}
        }
        history
    }

    /// A token was drawn.
    pub(super) fn push(&mut self, token: u32) {
        let subtracts = self.frequency != 0.0 || self.presence != 0.0;
        if let Some(window) = &mut self.window {
            if subtracts || self.repetition != 1.0 {
                window.push(token, true);
            }
            return;
        }
        if self.repetition != 1.0 {
            self.seen.insert(token);
        }
        if subtracts {
            match self.generated.binary_search_by_key(&token, |&(token, _)| token) {
                Ok(at) => self.generated[at].1 += 1,
                Err(at) => self.generated.insert(at, (token, 1)),
            }
        }
    }

    /// What it does to logits: of a token first the repetition penalty.
    pub(super) fn changes(&self, mut change: impl FnMut(u32, Change)) {
        let times = |times: u32| Change::Add(-(self.frequency * times as f32 + self.presence));
        if let Some(window) = &self.window {
            for (&token, counts) in &window.counts {
                if self.repetition != 1.0 {
                    change(token, Change::Penalize(self.repetition));
                }
                if counts.generated > 0 && (self.frequency != 0.0 || self.presence != 0.0) {
                    change(token, times(counts.generated));
                }
            }
            return;
        }
        for &token in &self.seen.tokens {
            change(token, Change::Penalize(self.repetition));
        }
        for &(token, generated) in &self.generated {
            change(token, times(generated));
        }
    }
}

impl Seen {
    /// Adds a token; ids outside the vocabulary are left out.
    fn insert(&mut self, token: u32) {
        let bit = 1u64 << (token % 64);
        if let Some(word) = self.present.get_mut(token as usize / 64)
            && *word & bit == 0
        {
            *word |= bit;
            self.tokens.push(token);
        }
    }
}

impl Window {
    fn push(&mut self, token: u32, generated: bool) {
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
            }
        }
        self.tokens.push_back((token, generated));
        let counts = self.counts.entry(token).or_default();
        counts.all += 1;
        counts.generated += u32::from(generated);
    }
}
