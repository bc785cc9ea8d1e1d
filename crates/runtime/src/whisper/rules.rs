//! Sampling of a token under Whisper's rules for timestamps and suppression (openai-whisper's `decoding.py`).

use super::vocabulary::Vocabulary;
use crate::sampler::Random;

/// Maximum timestamp of the first word, in units of 20 ms: one second.
const FIRST_MOMENT_MAX: u32 = 50;

/// Excludes tokens that must not follow `drawn`, the tokens of the text so far.
pub(crate) fn rule(vocabulary: &Vocabulary, drawn: &[u32], logits: &mut [f32]) {
    let out = f32::NEG_INFINITY;
    let (first, end) = (vocabulary.first_timestamp as usize, vocabulary.end as usize);
    if drawn.is_empty() {
        vocabulary.blank.iter().for_each(|&token| logits[token as usize] = out);
    }
    vocabulary.suppressed.iter().for_each(|&token| logits[token as usize] = out);
    logits[vocabulary.no_timestamps as usize] = out;
    let is_moment = |token: &u32| *token as usize >= first;
    let after_moment = drawn.last().is_some_and(is_moment);
    let pair_is_whole = drawn.len() < 2 || is_moment(&drawn[drawn.len() - 2]);
    if after_moment {
        if pair_is_whole {
            logits[first..].fill(out);
        } else {
            logits[..end].fill(out);
        }
    }
    if let Some(&last) = drawn.iter().rev().find(|token| is_moment(token)) {
        // A segment may start at the previous one's end; otherwise timestamps increase.
        let next = if after_moment && !pair_is_whole { last as usize } else { last as usize + 1 };
        let next = next.min(logits.len());
        logits[first..next].fill(out);
    }
    if drawn.is_empty() {
        logits[..first].fill(out);
        let behind = (first + FIRST_MOMENT_MAX as usize + 1).min(logits.len());
        logits[behind..].fill(out);
    }
    // If all timestamps together are likelier than any text token, the next token is a timestamp.
    let largest = logits[first..].iter().copied().fold(out, f32::max);
    if largest > out {
        let sum: f64 = logits[first..].iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        let moments = f64::from(largest) + sum.ln();
        let text = logits[..first].iter().copied().fold(out, f32::max);
        if moments > f64::from(text) {
            logits[..first].fill(out);
        }
    }
}

/// Token and its log probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Drawn {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
}

/// Logarithm of the sum of all exponentials, and the largest logit.
fn log_sum(logits: &[f32]) -> (f64, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - largest).exp())).sum();
    (f64::from(largest) + sum.ln(), largest)
}

/// Samples a token; the likeliest one at temperature 0. `None` if the logits are not numbers.
pub(crate) fn draw(logits: &[f32], temperature: f32, random: &mut Random) -> Option<Drawn> {
    let (total, largest) = log_sum(logits);
    if !total.is_finite() {
        return None;
    }
    let token = if temperature == 0.0 {
        logits.iter().position(|&logit| logit == largest)?
    } else {
        let weight = |&logit: &f32| f64::from(((logit - largest) / temperature).exp());
        let mut left = random.uniform() * logits.iter().map(weight).sum::<f64>();
        let chosen = logits.iter().position(|logit| {
            left -= weight(logit);
            left < 0.0
        });
        // Rounding may leave a remainder after the last.
        chosen.or_else(|| logits.iter().rposition(|logit| weight(logit) > 0.0))?
    };
    Some(Drawn { token: token as u32, logprob: (f64::from(logits[token]) - total) as f32 })
}

/// Probability of a token.
pub(crate) fn probability(logits: &[f32], token: u32) -> f32 {
    let (total, _) = log_sum(logits);
    (f64::from(logits[token as usize]) - total).exp() as f32
}

/// Likeliest language, and its probability among all languages.
pub(crate) fn language(vocabulary: &Vocabulary, logits: &[f32]) -> Option<(u32, f32)> {
    let of: Vec<f32> = vocabulary.languages.iter().map(|&(_, token)| logits[token as usize]).collect();
    let (total, largest) = log_sum(&of);
    let index = of.iter().position(|&logit| logit == largest)?;
    let probability = (f64::from(largest) - total).exp() as f32;
    Some((vocabulary.languages[index].1, probability))
}

/// Bytes of a text divided by its deflated bytes: high if it repeats itself.
pub(crate) fn compression_ratio(text: &str) -> f32 {
    if text.is_empty() {
        return 0.0;
    }
    let compressed = miniz_oxide::deflate::compress_to_vec_zlib(text.as_bytes(), 6);
    text.len() as f32 / compressed.len() as f32
}
