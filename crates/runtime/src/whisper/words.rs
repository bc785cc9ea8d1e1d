//! Word timestamps: the path of least cost through the attention of the alignment heads (dynamic time warping;
//! openai-whisper's `timing.py`).

use super::language::has_no_spaces;
use super::vocabulary::Vocabulary;
use crate::transcript::{Segment, Word};

/// Timestamp units per second.
const MOMENTS: f64 = 50.0;
/// Width of the median filter over attention weights.
const SMOOTHED: usize = 7;
/// Punctuation that belongs to the next word, and to the previous one.
const PREPENDED: &str = "\"'“¿([{-";
const APPENDED: &str = "\"'.。,，!！?？:：”)]}、";
const SENTENCE_ENDS: &str = ".。!！?？";
/// Upper bound on the median length of a word.
const MEDIAN_MAX_S: f64 = 0.7;

/// Keys and queries of the alignment heads.
pub(crate) struct Looks<'a> {
    /// (heads, rows, head_dim)
    pub(crate) keys: &'a [f32],
    /// (heads, tokens, head_dim)
    pub(crate) queries: &'a [f32],
    pub(crate) shape: AlignmentShape,
    /// Rows of the encoder with sound.
    pub(crate) rows_heard: usize,
}

/// Number and width of the alignment heads, and rows of the encoder.
#[derive(Clone, Copy)]
pub(crate) struct AlignmentShape {
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rows: usize,
}

/// Word, its tokens in the text, and its time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TimedWord {
    word: String,
    tokens: usize,
    start_s: f64,
    end_s: f64,
    probability: f32,
}

/// Cost of tokens `from..to` at each row, `(tokens, rows_heard)`: the less attention, the higher the cost.
fn costs(looks: &Looks<'_>, from: usize, to: usize) -> Vec<f32> {
    let &Looks { keys, queries, shape, rows_heard } = looks;
    let AlignmentShape { heads, head_dim, rows } = shape;
    let tokens = queries.len() / (heads * head_dim);
    let scale = (head_dim as f32).sqrt().recip();
    let mut costs = vec![0.0f32; (to - from) * rows_heard];
    let mut weights = vec![0.0f32; tokens * rows_heard];
    for head in 0..heads {
        let keys = &keys[head * rows * head_dim..][..rows_heard * head_dim];
        let queries = &queries[head * tokens * head_dim..][..tokens * head_dim];
        for (query, weights) in queries.chunks_exact(head_dim).zip(weights.chunks_exact_mut(rows_heard)) {
            for (key, weight) in keys.chunks_exact(head_dim).zip(&mut *weights) {
                *weight = query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() * scale;
            }
            let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
            let total: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= total);
        }
        // Normalise each row over all tokens.
        for moment in 0..rows_heard {
            let of = |token: usize| weights[token * rows_heard + moment];
            let mean = (0..tokens).map(of).sum::<f32>() / tokens as f32;
            let variance = (0..tokens).map(|token| (of(token) - mean).powi(2)).sum::<f32>() / tokens as f32;
            let factor = variance.sqrt().max(f32::MIN_POSITIVE).recip();
            for token in 0..tokens {
                let weight = &mut weights[token * rows_heard + moment];
                *weight = (*weight - mean) * factor;
            }
        }
        for (row, costs) in (from..to).zip(costs.chunks_exact_mut(rows_heard)) {
            let weights = &weights[row * rows_heard..][..rows_heard];
            for (moment, cost) in costs.iter_mut().enumerate() {
                *cost -= median(weights, moment) / heads as f32;
            }
        }
    }
    costs
}

/// Median of a number's neighbours, mirrored at the ends.
fn median(values: &[f32], at: usize) -> f32 {
    let half = SMOOTHED / 2;
    if values.len() <= half {
        return values[at];
    }
    let mut near = [0.0; SMOOTHED];
    for (offset, near) in near.iter_mut().enumerate() {
        let place = (at + offset).abs_diff(half);
        *near = values[if place < values.len() { place } else { 2 * (values.len() - 1) - place }];
    }
    near.sort_by(f32::total_cmp);
    near[half]
}

/// First row of each token on the path of least cost.
fn first_moments(costs: &[f32], moments: usize) -> Vec<usize> {
    let tokens = costs.len() / moments;
    let (width, mut total) = (moments + 1, vec![f32::INFINITY; (tokens + 1) * (moments + 1)]);
    let mut trace = vec![0u8; total.len()];
    total[0] = 0.0;
    for token in 1..=tokens {
        for moment in 1..=moments {
            let at = token * width + moment;
            let (both, token_before, moment_before) =
                (total[at - width - 1], total[at - width], total[at - 1]);
            let (least, step) = if both < token_before && both < moment_before {
                (both, 0)
            } else if token_before < both && token_before < moment_before {
                (token_before, 1)
            } else {
                (moment_before, 2)
            };
            total[at] = costs[(token - 1) * moments + moment - 1] + least;
            trace[at] = step;
        }
    }
    let mut first = vec![0; tokens];
    let (mut token, mut moment) = (tokens, moments);
    while token > 0 {
        first[token - 1] = moment.saturating_sub(1);
        let step = if moment == 0 { 1 } else { trace[token * width + moment] };
        (token, moment) = match step {
            0 => (token - 1, moment - 1),
            1 => (token - 1, moment),
            _ => (token, moment - 1),
        };
    }
    first
}

/// Cuts tokens into words: whole characters, starting at a space or punctuation if the language has spaces.
fn split(vocabulary: &Vocabulary, code: &str, tokens: &[u32]) -> Vec<(String, usize)> {
    let mut characters: Vec<(String, usize)> = Vec::new();
    let (mut bytes, mut count) = (Vec::new(), 0);
    for (at, &token) in tokens.iter().enumerate() {
        bytes.extend_from_slice(vocabulary.tokenizer.token_bytes(token));
        count += 1;
        // A character that is cut off is complete with the next token.
        let unfinished = std::str::from_utf8(&bytes).is_err_and(|error| error.error_len().is_none());
        if !unfinished || at + 1 == tokens.len() {
            characters.push((String::from_utf8_lossy(&bytes).into_owned(), count));
            (bytes, count) = (Vec::new(), 0);
        }
    }
    if has_no_spaces(code) {
        return characters;
    }
    let mut words: Vec<(String, usize)> = Vec::new();
    for (text, count) in characters {
        let sign = text.trim();
        let is_sign = sign.is_empty() || sign.chars().all(|letter| letter.is_ascii_punctuation());
        match words.last_mut() {
            Some((word, tokens)) if !text.starts_with(' ') && !is_sign => {
                word.push_str(&text);
                *tokens += count;
            }
            _ => words.push((text, count)),
        }
    }
    words
}

/// Words of a window's text with their times. `tokens` have the given probabilities; their rows in `looks` start at
/// `before`.
pub(crate) fn align(
    vocabulary: &Vocabulary,
    code: &str,
    tokens: &[u32],
    probabilities: &[f32],
    before: usize,
    looks: &Looks<'_>,
) -> Vec<TimedWord> {
    if tokens.is_empty() || looks.rows_heard == 0 {
        return Vec::new();
    }
    // The token before the text and the text's last token mark its start and end.
    let costs = costs(looks, before, before + tokens.len() + 1);
    let first = first_moments(&costs, looks.rows_heard);
    let mut at = 0;
    let mut words: Vec<TimedWord> = Vec::new();
    for (word, count) in split(vocabulary, code, tokens) {
        let own = &probabilities[at..at + count];
        words.push(TimedWord {
            word,
            tokens: count,
            start_s: first[at] as f64 / MOMENTS,
            end_s: first[at + count] as f64 / MOMENTS,
            probability: own.iter().sum::<f32>() / count as f32,
        });
        at += count;
    }
    words
}

/// Attaches punctuation to words; emptied entries stay for their tokens.
fn merge_signs(words: &mut [TimedWord]) {
    let mut following = words.len().saturating_sub(1);
    for at in (0..words.len().saturating_sub(1)).rev() {
        let sign = words[at].word.trim();
        if words[at].word.starts_with(' ') && !sign.is_empty() && PREPENDED.contains(sign) {
            let (word, tokens) = (std::mem::take(&mut words[at].word), std::mem::take(&mut words[at].tokens));
            words[following].word.insert_str(0, &word);
            words[following].tokens += tokens;
        } else {
            following = at;
        }
    }
    let mut previous = 0;
    for at in 1..words.len() {
        let own = &words[at].word;
        if !words[previous].word.ends_with(' ') && !own.is_empty() && APPENDED.contains(own.as_str()) {
            let (word, tokens) = (std::mem::take(&mut words[at].word), std::mem::take(&mut words[at].tokens));
            words[previous].word.push_str(&word);
            words[previous].tokens += tokens;
        } else {
            previous = at;
        }
    }
}

/// Median of the words' lengths, at most [`MEDIAN_MAX_S`]; `None` if no word has a length.
fn median_length_s(words: &[TimedWord]) -> Option<f64> {
    let mut lengths: Vec<f64> =
        words.iter().map(|word| word.end_s - word.start_s).filter(|&length| length != 0.0).collect();
    lengths.sort_by(f64::total_cmp);
    let median = match lengths.len() {
        0 => return None,
        count if count % 2 == 1 => lengths[count / 2],
        count => f64::midpoint(lengths[count / 2 - 1], lengths[count / 2]),
    };
    Some(median.min(MEDIAN_MAX_S))
}

/// Shortens words beside the end of a sentence that are longer than `longest` seconds.
fn shorten_around_ends(words: &mut [TimedWord], longest: f64) {
    let ends_sentence = |word: &str| !word.is_empty() && SENTENCE_ENDS.contains(word);
    for at in 1..words.len() {
        if words[at].end_s - words[at].start_s > longest {
            if ends_sentence(&words[at].word) {
                words[at].end_s = words[at].start_s + longest;
            } else if ends_sentence(&words[at - 1].word) {
                words[at].start_s = words[at].end_s - longest;
            }
        }
    }
}

/// Assigns words to segments, and adjusts the segments' times to them. `counts` are the text's tokens in each
/// segment. `offset_s` is the window's start. `spoken_s` is the end of speech before the window, and is updated.
pub(crate) fn attach(
    mut words: Vec<TimedWord>,
    segments: &mut [Segment],
    counts: &[usize],
    offset_s: f64,
    spoken_s: &mut f64,
) {
    let median = median_length_s(&words);
    let longest = 2.0 * median.unwrap_or(0.0);
    if median.is_some() {
        shorten_around_ends(&mut words, longest);
    }
    let median = median.unwrap_or(0.0);
    merge_signs(&mut words);
    let mut words = words.into_iter().peekable();
    let hundredths = |time: f64| (time * 100.0).round() / 100.0;
    for (segment, &count) in segments.iter_mut().zip(counts) {
        let (mut own, mut saved) = (Vec::new(), 0);
        while saved < count
            && let Some(timed) = words.next()
        {
            saved += timed.tokens;
            if !timed.word.is_empty() {
                own.push(Word {
                    word: timed.word,
                    start_s: hundredths(offset_s + timed.start_s),
                    end_s: hundredths(offset_s + timed.end_s),
                    probability: timed.probability,
                });
            }
        }
        if own.is_empty() {
            continue;
        }
        // The first words after a pause must not reach back into it.
        let long = |word: &Word| word.end_s - word.start_s > longest;
        let two_long = own.get(1).is_some_and(|second| second.end_s - own[0].start_s > 2.0 * longest);
        if own[0].end_s - *spoken_s > 4.0 * median && (long(&own[0]) || two_long) {
            if own.get(1).is_some_and(long) {
                let boundary = (own[1].end_s / 2.0).max(own[1].end_s - longest);
                own[0].end_s = boundary;
                own[1].start_s = boundary;
            }
            own[0].start_s = (own[0].end_s - longest).max(0.0);
        }
        if segment.start_s < own[0].end_s && segment.start_s - 0.5 > own[0].start_s {
            own[0].start_s = (own[0].end_s - median).min(segment.start_s).max(0.0);
        } else {
            segment.start_s = own[0].start_s;
        }
        let last = own.len() - 1;
        if segment.end_s > own[last].start_s && segment.end_s + 0.5 < own[last].end_s {
            own[last].end_s = (own[last].start_s + median).max(segment.end_s);
        } else {
            segment.end_s = own[last].end_s;
        }
        *spoken_s = segment.end_s;
        segment.words = own;
    }
}
