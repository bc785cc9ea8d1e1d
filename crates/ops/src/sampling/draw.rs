//! Sampling on the host: no sort, a few passes over the logits. Rows are independent, so any thread may draw any row.

use std::collections::VecDeque;

use super::selection::{self, SelectionBound};
use super::shaped;
use super::{
    Change, Edits, SampleSpec, SampleSpecs, SampledToken, TokenLogprob, exp_nonpositive, mass,
    mass_to_weight, soft_cap,
};
use crate::KernelError;

/// Ticket of a submitted step, to be waited for once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a step that is not waited for holds its results"]
pub struct Ticket(u64);

impl Ticket {
    /// The ticket of a device that holds its draws itself; `step` is the device's number of the step.
    pub fn new(step: u64) -> Ticket {
        Ticket(step)
    }

    /// The number given to [`Ticket::new`].
    pub fn step(&self) -> u64 {
        self.0
    }
}

/// Tokens that a backend has drawn. The last step's are kept for rows of the next
/// ([`RowSource::Sampled`](crate::RowSource::Sampled)), and each step's until the host waits for it.
#[derive(Debug, Default)]
pub struct Draws {
    rows: Vec<Draw>, // room for the largest step so far
    count: usize,    // draws of the last step
    steps: u64,
    submitted: VecDeque<(u64, Vec<Option<SampledToken>>)>, // steps not waited for yet
    spare: Vec<Vec<Option<SampledToken>>>,
    scratch: DrawScratch, // of `draw`, which handles one row after the other
}

/// Draw of one row.
#[derive(Debug, Default)]
pub struct Draw {
    pub(crate) sampled: Option<SampledToken>,
    pub(crate) token: u32,
}

/// Scratch memory for drawing from one row. Callers that draw rows in parallel have one for each thread.
#[derive(Debug, Default)]
pub struct DrawScratch {
    pub(super) keys: Vec<u64>,      // at most (vocab)
    pub(super) exponents: Vec<f32>, // (vocab), (logit - largest) / temperature
    raw: Vec<f32>,                  // (vocab), the logits as they came, where log probabilities are wanted
}

impl Draws {
    /// Token of draw `index` of the last step; 0 if it gave none.
    ///
    /// # Panics
    /// If the last step had no such draw: the caller built a wrong batch.
    #[inline]
    pub fn token(&self, index: u32) -> u32 {
        assert!((index as usize) < self.count, "draw {index} of a step with {}", self.count);
        self.rows[index as usize].token
    }

    /// Reserves memory for steps of so many draws, two of which may be waited for later.
    pub fn reserve(&mut self, rows: usize) {
        self.rows.resize_with(rows, Draw::default);
        self.submitted.reserve(2);
        self.spare.reserve(3); // each wait returns one more
        self.spare.resize_with(2, || Vec::with_capacity(rows));
    }

    /// Begins a step, whose rows have already taken the tokens of the last.
    pub fn begin(&mut self) {
        self.count = 0;
    }

    /// Memory for a step's draws.
    pub fn rows(&mut self, count: usize) -> &mut [Draw] {
        if self.rows.len() < count {
            self.rows.resize_with(count, Draw::default);
        }
        self.count = count;
        &mut self.rows[..count]
    }

    /// Draws from `(rows, vocab)` logits, which are overwritten.
    pub fn draw(&mut self, specs: &SampleSpecs, logits: &mut [f32]) {
        self.draw_others(specs, logits, |_| None);
    }

    /// Same as [`Draws::draw`], for the rows for which `drawn` returns `None`. For other rows it returns the token
    /// that a device has drawn, if any.
    pub fn draw_others(
        &mut self,
        specs: &SampleSpecs,
        logits: &mut [f32],
        drawn: impl Fn(usize) -> Option<Option<u32>>,
    ) {
        let vocab = logits.len() / specs.rows.len().max(1);
        let mut scratch = std::mem::take(&mut self.scratch);
        for (row, draw) in self.rows(specs.rows.len()).iter_mut().enumerate() {
            match drawn(row) {
                Some(token) => draw.put(token.map(|token| SampledToken { token, ..SampledToken::default() })),
                None => draw.make(specs, row, &mut logits[row * vocab..][..vocab], &mut scratch),
            }
        }
        self.scratch = scratch;
    }

    /// Takes over the tokens of the last step that another has drawn, for rows of the next.
    pub(crate) fn know(&mut self, others: &Draws) {
        let others = &others.rows[..others.count];
        for (draw, other) in self.rows(others.len()).iter_mut().zip(others) {
            *draw = Draw { sampled: None, token: other.token };
        }
    }

    /// Stores draws made elsewhere.
    pub fn put(&mut self, drawn: impl ExactSizeIterator<Item = Option<SampledToken>>) {
        for (draw, sampled) in self.rows(drawn.len()).iter_mut().zip(drawn) {
            draw.put(sampled);
        }
    }

    /// Ends the step after its computation and returns its ticket.
    pub fn submit(&mut self) -> Ticket {
        self.steps += 1;
        let mut drawn = self.spare.pop().unwrap_or_default();
        drawn.extend(self.rows[..self.count].iter_mut().map(|draw| draw.sampled.take()));
        self.submitted.push_back((self.steps, drawn));
        Ticket(self.steps)
    }

    /// Returns the draws of a step, `None` where the logits were not numbers.
    ///
    /// # Panics
    /// If it is not the oldest step not waited for.
    pub fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) {
        let next = self.submitted.pop_front();
        let Some((_, next)) = next.filter(|&(step, _)| step == ticket.0) else {
            panic!("{ticket:?} is not the next to be waited for");
        };
        let mut last = std::mem::replace(drawn, next);
        last.clear();
        self.spare.push(last);
    }
}

impl Draw {
    /// Draws from a row's logits, which are overwritten.
    pub fn make(&mut self, specs: &SampleSpecs, row: usize, logits: &mut [f32], scratch: &mut DrawScratch) {
        self.put(draw_row(logits, &specs.rows[row], specs.edits_of(row), scratch));
    }

    fn put(&mut self, sampled: Option<SampledToken>) {
        self.token = sampled.as_ref().map_or(0, |sampled| sampled.token);
        self.sampled = sampled;
    }
}

/// Rules out tokens outside a mask.
fn keep_masked(logits: &mut [f32], mask: &[u32]) {
    let (within, beyond) = logits.split_at_mut(logits.len().min(32 * mask.len()));
    beyond.fill(f32::NEG_INFINITY);
    for (logits, &word) in within.chunks_mut(32).zip(mask) {
        // Most words of a mask are all ones or all zeros.
        match word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            _ => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
    }
}

/// Penalises the tokens that were seen.
fn penalize(logits: &mut [f32], seen: &[u32], penalty: f32) {
    for (logits, &word) in logits.chunks_mut(32).zip(seen) {
        let mut left = word;
        while left != 0 {
            if let Some(logit) = logits.get_mut(left.trailing_zeros() as usize) {
                *logit = Change::Penalize(penalty).apply(*logit);
            }
            left &= left - 1;
        }
    }
}

/// Draws from `(vocab)` logits, which are overwritten. `None` if they are not numbers or all are ruled out.
pub(crate) fn draw_row(
    logits: &mut [f32],
    spec: &SampleSpec,
    edits: Edits<'_>,
    scratch: &mut DrawScratch,
) -> Option<SampledToken> {
    if let Some(bias) = edits.bias {
        logits.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
    }
    if let Some(cap) = edits.softcap {
        logits.iter_mut().for_each(|logit| *logit = soft_cap(cap, *logit));
    }
    let mut raw_maximum = selection::maximum(logits)?;
    if let Some(token) = spec.given {
        scratch.raw.clear();
        scratch.raw.extend_from_slice(logits);
        let logprob = spec.logprobs.map(|top| scratch.logprob(token, top, raw_maximum));
        return Some(SampledToken { token, logprob, probability: None });
    }
    if let Some(mask) = edits.mask {
        keep_masked(logits, mask);
        raw_maximum = selection::maximum(logits)?;
    }
    if spec.logprobs.is_some() {
        scratch.raw.clear();
        scratch.raw.extend_from_slice(logits);
    }
    let penalizes = spec.repetition != 1.0 && !edits.seen.is_empty();
    if penalizes {
        penalize(logits, edits.seen, spec.repetition);
    }
    for adjustment in edits.adjustments {
        if let Some(logit) = logits.get_mut(adjustment.token as usize) {
            *logit = adjustment.change.apply(*logit);
        }
    }
    let as_they_came = edits.adjustments.is_empty() && !penalizes;
    let maximum = if as_they_came { raw_maximum } else { selection::maximum(logits)? };
    let (token, probability) = if spec.temperature == 0.0 {
        (logits.iter().position(|&logit| logit == maximum)? as u32, None)
    } else if spec.shape.is_neutral() {
        (draw_token(logits, maximum, spec, &mut scratch.keys)?, None)
    } else {
        shaped::draw(logits, maximum, spec, scratch)?
    };
    let logprob = spec.logprobs.map(|top| scratch.logprob(token, top, raw_maximum));
    Some(SampledToken { token, logprob, probability })
}

fn draw_token(logits: &mut [f32], maximum: f32, spec: &SampleSpec, keys: &mut Vec<u64>) -> Option<u32> {
    let SampleSpec { temperature, top_p, min_p, .. } = *spec;
    let top_k = spec.top_k as usize;
    let top_k_cut = if (1..logits.len()).contains(&top_k) {
        selection::top_k(logits, top_k, keys)
    } else {
        SelectionBound::NONE
    };
    let total = selection::weigh(logits, maximum, temperature, top_k_cut);
    let cut = if top_p < 1.0 || min_p > 0.0 {
        let target = ((f64::from(top_p) * total as f64).ceil() as u64).clamp(1, total);
        selection::nucleus(logits, target, min_p, keys)
    } else {
        SelectionBound::NONE
    };
    selection::draw(logits, cut, spec.uniform)
}

impl DrawScratch {
    /// Size in bytes of [`DrawScratch::new`].
    pub fn bytes(vocab: usize) -> usize {
        vocab.saturating_mul(size_of::<u64>() + 2 * size_of::<f32>())
    }

    /// Scratch memory for rows of so many logits, sufficient for any settings.
    pub fn new(device: &str, vocab: usize) -> Result<DrawScratch, KernelError> {
        let mut scratch = DrawScratch::default();
        let made = scratch.keys.try_reserve_exact(vocab);
        let made = made.and_then(|()| scratch.exponents.try_reserve_exact(vocab));
        let made = made.and_then(|()| scratch.raw.try_reserve_exact(vocab));
        match made {
            Ok(()) => Ok(scratch),
            Err(_) => Err(KernelError::OutOfMemory {
                device: device.into(),
                bytes: DrawScratch::bytes(vocab),
                what: "what drawing tokens takes",
            }),
        }
    }

    fn logprob(&mut self, token: u32, top: u32, maximum: f32) -> TokenLogprob {
        let total: u64 = self.raw.iter().map(|&logit| mass(exp_nonpositive(logit - maximum))).sum();
        let log_total = mass_to_weight(total).ln();
        let logprob = |token: u32| {
            let logit = self.raw[token as usize];
            (f64::from(logit) - f64::from(maximum) - log_total) as f32
        };
        selection::largest(&self.raw, top as usize, &mut self.keys);
        self.keys.sort_unstable_by(|a, b| b.cmp(a));
        let ids = self.keys.iter().map(|&key| selection::key_id(key));
        let ids = ids.filter(|&token| self.raw[token as usize] > f32::NEG_INFINITY);
        let top = ids.map(|token| (token, logprob(token))).collect();
        TokenLogprob { token, logprob: logprob(token), top }
    }
}
