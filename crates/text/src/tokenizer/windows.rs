//! Long texts, encoded window by window. A tokenizer needs some hundred times a text's bytes while it works, and
//! cannot be interrupted; windows bound both. Neighbouring windows overlap. They are joined where both have the
//! same tokens for a long stretch: far from both edges, tokens do not depend on where a window begins or ends.
//!
//! For byte-pair encoding this is exact. A sequence of tokens is a text's encoding if each two neighbours are the
//! encoding of their own text, and every two neighbours of the result come from one window.

use std::ops::Range;

use super::threes::LongRuns;
use crate::limits::{WINDOW_AGREED_BYTES, WINDOW_BYTES, WINDOW_BYTES_MAX, WINDOW_OVERLAP_BYTES};

/// Token with its byte range in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EncodedToken {
    pub(super) id: u32,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Reason why a text has no tokens.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EncodeFailure {
    /// The caller no longer waits for them.
    Interrupted,
    /// Tokens from this byte on depend on more text than a window holds.
    Unbroken(usize),
    /// Error of the encoder.
    Encoder(String),
}

impl From<tokenizers::Error> for EncodeFailure {
    fn from(error: tokenizers::Error) -> Self {
        EncodeFailure::Encoder(error.to_string())
    }
}

/// Whether a text is encoded in windows.
pub(super) fn is_long(text: &str) -> bool {
    text.len() > 2 * WINDOW_BYTES
}

/// Part of the text with its tokens.
struct TextWindow {
    range: Range<usize>,
    pieces: Vec<EncodedToken>,
    /// Whether the first token began in the previous window.
    continues: bool,
}

/// Joint of two windows: the number of tokens kept of the first, and the index of the second's first.
struct Joint {
    kept: usize,
    from: usize,
    /// Whether the first window's last token continues as the second's first.
    continues: bool,
}

/// Encoding of a long text.
pub(super) struct Walk<'a> {
    /// Whole text.
    pub(super) text: &'a str,
    /// Encodes a part of the text.
    pub(super) encode: &'a dyn Fn(Range<usize>) -> Result<Vec<EncodedToken>, EncodeFailure>,
    /// Whether to give up.
    pub(super) interrupted: &'a dyn Fn() -> bool,
    /// Long numbers that are cut into threes: windows begin and end within them only at cuts.
    pub(super) runs: Option<&'a LongRuns>,
}

impl Walk<'_> {
    /// Passes every token of the text to `emit`, in order.
    ///
    /// # Errors
    /// [`EncodeFailure`], including those of `emit`.
    pub(super) fn run(
        &self,
        emit: &mut dyn FnMut(EncodedToken) -> Result<(), EncodeFailure>,
    ) -> Result<(), EncodeFailure> {
        let mut window = self.window(0, WINDOW_BYTES)?;
        while window.range.end < self.text.len() {
            let next = self.window(self.overlap_start(&window), WINDOW_BYTES)?;
            window = match joint(&window, &next) {
                Some(joint) => {
                    window.pieces[..joint.kept].iter().copied().try_for_each(&mut *emit)?;
                    after(&window, next, joint)
                }
                None => self.grown(&window)?,
            };
        }
        window.pieces.into_iter().try_for_each(emit)
    }

    fn window(&self, start: usize, bytes: usize) -> Result<TextWindow, EncodeFailure> {
        if (self.interrupted)() {
            return Err(EncodeFailure::Interrupted);
        }
        let end = match start.saturating_add(bytes) {
            end if end >= self.text.len() => self.text.len(),
            end => self.place_before(end, start),
        };
        let pieces = (self.encode)(start..end)?;
        Ok(TextWindow { range: start..end, pieces, continues: false })
    }

    /// Start of the next window. It is the start of a token, so that runs of one character are cut alike in both
    /// windows.
    fn overlap_start(&self, window: &TextWindow) -> usize {
        let earliest = window.range.end.saturating_sub(WINDOW_OVERLAP_BYTES).max(window.range.start + 1);
        let pieces = window.pieces.windows(2);
        let mut boundaries = pieces.filter(|pair| pair[0].end <= pair[1].start).map(|pair| pair[1].start);
        let boundary = boundaries.find(|&start| start >= earliest);
        let is_near = |start: &usize| window.range.end - start >= WINDOW_OVERLAP_BYTES / 2;
        let start = boundary.filter(is_near).unwrap_or(earliest);
        self.place_before(start, window.range.start)
    }

    /// Last place after `start` and up to `at` at which a window may begin or end.
    fn place_before(&self, at: usize, start: usize) -> usize {
        let place = boundary_before(self.text, at);
        self.runs.map(|runs| runs.place_before(place)).filter(|&cut| cut > start).unwrap_or(place)
    }

    /// The same window with twice the text, from the start of its own tokens.
    fn grown(&self, window: &TextWindow) -> Result<TextWindow, EncodeFailure> {
        let unbroken = || EncodeFailure::Unbroken(window.range.start);
        let bytes = 2 * (window.range.end - window.range.start);
        if bytes > WINDOW_BYTES_MAX {
            return Err(unbroken());
        }
        let mut grown = self.window(window.range.start, bytes)?;
        let Some(&first) = window.pieces.first() else { return Ok(grown) };
        if window.continues {
            let piece = grown.pieces.first_mut().filter(|piece| piece.id == first.id).ok_or_else(unbroken)?;
            piece.start = first.start;
            grown.continues = true;
        } else {
            let same = |piece: &EncodedToken| piece.start == first.start && piece.id == first.id;
            let from = grown.pieces.iter().position(same).ok_or_else(unbroken)?;
            grown.pieces.drain(..from);
        }
        Ok(grown)
    }
}

/// The second window without the tokens taken from the first.
fn after(window: &TextWindow, mut next: TextWindow, joint: Joint) -> TextWindow {
    next.pieces.drain(..joint.from);
    if joint.continues {
        next.pieces[0].start = window.pieces[joint.kept].start;
        next.continues = true;
    }
    next
}

/// Finds a joint of two windows, if they agree.
fn joint(window: &TextWindow, next: &TextWindow) -> Option<Joint> {
    let overlap = next.range.start..window.range.end;
    let (a, b) = (&window.pieces[..], &next.pieces[..]);
    // Only text without tokens, such as white space of models that drop it.
    let last_end = a.last().map_or(0, |piece| piece.end);
    if last_end <= overlap.start && b.first().is_none_or(|piece| piece.start >= overlap.end) {
        return Some(Joint { kept: a.len(), from: 0, continues: false });
    }
    // A single token for all of it, such as an unknown word.
    if let (Some(last), Some(first)) = (a.last(), b.first())
        && last.id == first.id
        && last.start < overlap.start
        && last.end == overlap.end
        && first.start == overlap.start
        && first.end >= overlap.end
    {
        return Some(Joint { kept: a.len() - 1, from: 0, continues: true });
    }
    let (mut i, mut j) = (a.partition_point(|piece| piece.start < overlap.start), 0);
    let mut run = 0; // length of the current run of equal tokens
    while i < a.len() && j < b.len() {
        if a[i] != b[j] {
            run = 0;
            match (a[i].start, a[i].end).cmp(&(b[j].start, b[j].end)) {
                std::cmp::Ordering::Less => i += 1,
                std::cmp::Ordering::Greater => j += 1,
                std::cmp::Ordering::Equal => (i, j) = (i + 1, j + 1),
            }
            continue;
        }
        run += 1;
        let begins = a[i + 1 - run].start;
        if a[i].end.saturating_sub(begins) >= WINDOW_AGREED_BYTES {
            let half = begins + WINDOW_AGREED_BYTES / 2;
            let clean = |back: &usize| a[i - back].start >= half && a[i - back - 1].end <= a[i - back].start;
            if let Some(back) = (0..run - 1).rev().find(clean) {
                return Some(Joint { kept: i - back, from: j - back, continues: false });
            }
        }
        (i, j) = (i + 1, j + 1);
    }
    None
}
/// Last place up to `at` that is not inside a character.
fn boundary_before(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|&place| text.is_char_boundary(place)).unwrap_or(0)
}
