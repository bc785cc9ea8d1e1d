//! Images and sound in a prompt: rows that replace the embeddings of some tokens. Towers outside the engine make
//! the rows. This module holds their place in the prompt, and the names under which prompts share their cached
//! blocks.

use std::{ops::Range, sync::Arc};

use hanzo_engine_ops::{BLOCK_TOKENS, Batch, MemorySpan};
pub use hanzo_engine_text::chat::{PICTURE, SOUND};
use serde::{Deserialize, Serialize};

use crate::error::RequestError;

/// Span of prompt tokens whose embeddings are given. The tokens themselves are placeholders, for instance from a
/// template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MediaSpan {
    /// First token of the span.
    pub first: usize,
    /// Number of tokens; at least 1.
    pub tokens: usize,
    /// Digest of the media and of how its rows were made. It must be cryptographic, because equal digests share
    /// cached blocks.
    pub digest: [u8; 32],
    /// `(tokens, hidden)`, the input of the network's first layer; `width` may be larger if later layers add rows
    /// too. Empty if the rows have yet to be made from `pixels`.
    pub rows: Arc<[f32]>,
    /// Input of the model's tower: the pixels of a frame, or the numbers of a window of sound. Empty if `rows` are
    /// given.
    pub pixels: Arc<[u8]>,
    /// Rows and columns of tokens in a picture, without those at line ends.
    pub grid: [u32; 2],
    /// Rows and columns of the whole frame, of which `grid` is the middle: as many or more.
    pub whole: [u32; 2],
    /// Extra tokens at the ends of the picture's lines.
    pub ends: LineEnds,
    /// The span's rows attend to each other in both directions, so they are computed in one step.
    pub mutual: bool,
    /// Positions follow the picture's rows and columns (M-RoPE). The next token's position comes after the longer
    /// side, rather than after the number of tokens.
    pub in_plane: bool,
    /// Rows for the cross-attention cache, which follow the token's own row in `rows`: first the number that later
    /// tokens attend to, which come first, then the number of all. Zero for most models.
    pub remembered: [u32; 2],
}

/// Extra tokens at the ends of a picture's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LineEnds {
    /// Nothing.
    #[default]
    None,
    /// A row from the tower at the end of the last line.
    Last,
    /// A row from the tower at the end of each line.
    Each,
    /// A vocabulary token with its own embedding at the end of each line.
    Tokens,
}

impl LineEnds {
    /// Number of tokens of lines with so many rows each, ends included.
    pub fn tokens(self, [lines, rows]: [usize; 2]) -> usize {
        let ends = match self {
            LineEnds::None => 0,
            LineEnds::Last => 1,
            LineEnds::Each | LineEnds::Tokens => lines,
        };
        lines.saturating_mul(rows).saturating_add(ends)
    }
}

/// M-RoPE position (time, height, width) of a token of the prompt or after it.
pub fn position(spans: &[MediaSpan], token: usize) -> [u32; 3] {
    let mut saved = 0; // positions that earlier spans save
    for span in spans.iter().filter(|span| span.in_plane).take_while(|span| span.first <= token) {
        let [rows, cols] = span.grid.map(|side| side as usize);
        if token < span.first + span.tokens {
            let (start, own) = (span.first - saved, token - span.first);
            return [start, start + own / cols, start + own % cols].map(|place| place as u32);
        }
        saved += span.tokens - rows.max(cols);
    }
    [(token - saved) as u32; 3]
}

impl MediaSpan {
    /// Elements of a row, cross-attention rows included.
    pub fn width(&self) -> usize {
        self.rows.len() / self.tokens
    }

    /// Whether the tower has yet to make its rows.
    pub fn is_to_be_seen(&self) -> bool {
        !self.pixels.is_empty()
    }

    fn range(&self) -> Range<usize> {
        self.first..self.first + self.tokens
    }

    /// Elements of the token's own row, without the cross-attention rows behind it.
    pub fn own_width(&self) -> usize {
        self.width() / (1 + self.remembered[1] as usize)
    }

    /// Whether it has rows in the cross-attention cache.
    pub fn is_remembered(&self) -> bool {
        self.remembered[1] > 0
    }

    /// Tokens of the span within a range of the prompt's tokens.
    pub fn within(&self, tokens: &Range<usize>) -> Range<usize> {
        let own = self.range();
        let start = own.start.max(tokens.start);
        start..own.end.min(tokens.end).max(start)
    }

    /// Whether a token of the span is an ordinary vocabulary token.
    pub fn is_token(&self, token: usize) -> bool {
        let line = self.grid[1] as usize + 1;
        self.ends == LineEnds::Tokens && (token + 1 - self.first).is_multiple_of(line)
    }

    /// Range of `rows` for a range of the prompt's tokens within the span.
    pub fn elements(&self, tokens: &Range<usize>) -> Range<usize> {
        let width = self.width();
        (tokens.start - self.first) * width..(tokens.end - self.first) * width
    }
}

/// Rows of a sequence in a batch: the batch's row that they start at, and the sequence's tokens that they hold.
#[derive(Clone, Copy, Debug)]
pub struct SequenceRows<'a> {
    /// Row of the batch that holds the first of the tokens.
    pub first: usize,
    /// Range of the sequence's tokens, one for each row.
    pub tokens: &'a Range<usize>,
}

/// Sets the M-RoPE positions of a sequence's rows. Does nothing if no sequence needs them. Rows earlier in the batch,
/// of other sequences, get their ordinary positions.
pub fn place(spans: &[MediaSpan], SequenceRows { first, tokens }: SequenceRows<'_>, batch: &mut Batch) {
    let Batch { axes, positions, .. } = batch;
    if axes.is_empty() && !spans.iter().any(|span| span.in_plane) {
        return;
    }
    axes.extend(positions[axes.len()..first].iter().map(|&position| [position; 3]));
    axes.extend(tokens.clone().map(|token| position(spans, token)));
}

/// Sets how far a sequence's rows attend, if some attend to later tokens. Rows earlier in the batch, of other
/// sequences, attend causally.
pub fn see(spans: &[MediaSpan], SequenceRows { first, tokens }: SequenceRows<'_>, batch: &mut Batch) {
    let Batch { sees, positions, .. } = batch;
    let within = |span: &&MediaSpan| span.mutual && !span.within(tokens).is_empty();
    if sees.is_empty() && !spans.iter().any(|span| within(&span)) {
        return;
    }
    sees.extend(positions[sees.len()..first].iter().map(|position| position + 1));
    sees.extend(tokens.clone().map(|token| token as u32 + 1));
    for span in spans.iter().filter(within) {
        let rows = span.within(tokens);
        let end = (span.first + span.tokens) as u32;
        sees[first + rows.start - tokens.start..first + rows.end - tokens.start].fill(end);
    }
}

/// Number of the `rows` tokens from `computed` on that one step computes, so that it splits no span with mutual
/// attention.
pub fn whole_rows(spans: &[MediaSpan], computed: usize, rows: usize) -> usize {
    let cut = |span: &&MediaSpan| {
        let end = computed + rows;
        span.mutual && (span.first + 1..span.first + span.tokens).contains(&end)
    };
    match spans.iter().find(cut) {
        Some(span) => span.first.saturating_sub(computed),
        None => rows,
    }
}

/// Checks that the spans fit a prompt, a model with rows of `hidden` elements (`seen` for pictures), and its tower:
/// `is_frame` tells whether a span that has yet to be seen is a valid input of the tower.
///
/// # Errors
/// [`RequestError::Invalid`] that says which does not, and why.
pub fn check(
    spans: &[MediaSpan],
    prompt_tokens: usize,
    [hidden, seen]: [usize; 2],
    is_frame: impl Fn(&MediaSpan) -> bool,
) -> Result<(), RequestError> {
    let mut end = 0;
    for (index, span) in spans.iter().enumerate() {
        let refuse = |reason: &str| Err(RequestError::invalid("media", format!("span {index} {reason}")));
        if span.tokens == 0 || span.first.checked_add(span.tokens).is_none_or(|end| end > prompt_tokens) {
            return refuse("is empty or reaches beyond the prompt");
        }
        if span.first < end {
            return refuse("begins before the end of the one before");
        }
        if span.is_to_be_seen() && span.rows.is_empty() {
            if !is_frame(span) {
                return refuse("is no frame of this model's tower");
            }
            end = span.first + span.tokens;
            continue;
        }
        if span.rows.is_empty() || !span.rows.len().is_multiple_of(span.tokens) {
            return refuse("has no whole row for each of its tokens");
        }
        let grid = span.grid.iter().try_fold(1usize, |all, &side| all.checked_mul(side as usize));
        if span.in_plane && grid != Some(span.tokens) {
            return refuse("has not as many tokens as its rows and columns");
        }
        if ![hidden, seen].contains(&span.width()) {
            return refuse(&format!("is in rows of {} numbers, and the model's have {hidden}", span.width()));
        }
        if span.is_remembered()
            && (span.tokens != 1 || span.width() != seen || span.remembered[0] > span.remembered[1])
        {
            return refuse("is more than one token, or not as much as the model remembers");
        }
        end = span.first + span.tokens;
    }
    Ok(())
}

/// Number of rows that all pictures of a prompt have in the cross-attention cache.
pub fn remembered(spans: &[MediaSpan]) -> usize {
    spans.iter().map(|span| span.remembered[1] as usize).sum()
}

/// Rows for the cross-attention cache, in the order in which tokens attend to them. First come, picture by picture,
/// the rows that later tokens attend to. Then come the rows that only tokens before all pictures attend to.
pub fn memory_of(spans: &[MediaSpan], hidden: usize) -> Vec<f32> {
    let part = |span: &MediaSpan, first: u32, end: u32| {
        // The first row is the token's own.
        let place = |row: u32| (1 + row as usize) * hidden;
        span.rows[place(first)..place(end)].to_vec()
    };
    let spans = || spans.iter().filter(|span| span.is_remembered());
    let seen = spans().flat_map(|span| part(span, 0, span.remembered[0]));
    seen.chain(spans().flat_map(|span| part(span, span.remembered[0], span.remembered[1]))).collect()
}

/// Rows of the cross-attention cache that a token attends to: those of the last picture up to it, and of pictures
/// directly before that one, as in the reference (`processing_mllama.py`). A token before all pictures attends to
/// all rows, but skips the MLPs of cross-attention layers (`full_text_row_masked_out_mask` of
/// `modeling_mllama.py`); then the second value is false.
pub fn seen_of_memory(spans: &[MediaSpan], token: usize) -> (Range<u32>, bool) {
    let (mut seen, mut sees, mut before) = (0..0, false, None);
    for span in spans.iter().filter(|span| span.is_remembered()).take_while(|span| span.first <= token) {
        let first = if before.is_some_and(|before| before + 1 == span.first) { seen.start } else { seen.end };
        seen = first..seen.end + span.remembered[0];
        (sees, before) = (true, Some(span.first));
    }
    if sees { (seen, true) } else { (0..remembered(spans) as u32, false) }
}

/// Sets the rows of the cross-attention cache, stored in `blocks`, that a sequence's rows attend to, and marks the
/// rows that attend to any. Rows earlier in the batch, of other sequences, attend to none.
pub fn remember(
    spans: &[MediaSpan],
    SequenceRows { first, tokens }: SequenceRows<'_>,
    blocks: &[u32],
    batch: &mut Batch,
    seeing: &mut Vec<bool>,
) {
    let table_first = batch.memory_tables.len() as u32;
    batch.memory_tables.extend(blocks);
    seeing.resize(first, false);
    for (row, token) in (first as u32..).zip(tokens.clone()) {
        let (seen, sees) = seen_of_memory(spans, token);
        seeing.push(sees);
        match batch.memories.last_mut() {
            Some(last)
                if last.table_first == table_first
                    && last.row_first >= first as u32
                    && (last.first, last.context) == (seen.start, seen.end) =>
            {
                last.rows += 1;
            }
            _ => batch.memories.push(MemorySpan {
                row_first: row,
                rows: 1,
                first: seen.start,
                context: seen.end,
                table_first,
            }),
        }
    }
}

/// Part of a block's cache key besides its tokens: the media in it, and which part of them.
pub fn salt_of_block(spans: &[MediaSpan], block: usize) -> Vec<u8> {
    let tokens = block * BLOCK_TOKENS..(block + 1) * BLOCK_TOKENS;
    let mut salt = Vec::new();
    for span in spans {
        let within = span.within(&tokens);
        if !within.is_empty() {
            salt.extend([within.start - tokens.start, within.len()].map(|n| n as u8));
            salt.extend(((within.start - span.first) as u64).to_le_bytes());
            salt.extend(span.digest);
        }
    }
    salt
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: usize, tokens: usize, digest: u8) -> MediaSpan {
        MediaSpan {
            first,
            tokens,
            digest: [digest; 32],
            rows: vec![0.0; 4 * tokens].into(),
            grid: [1, tokens as u32],
            whole: [1, tokens as u32],
            ..MediaSpan::default()
        }
    }

    #[test]
    fn spans_lie_in_the_prompt_one_after_the_other() {
        assert_eq!(check(&[], 1, [4; 2], |_| false), Ok(()));
        assert_eq!(check(&[span(0, 3, 1), span(3, 2, 1)], 5, [4; 2], |_| false), Ok(()));
        for (spans, prompt_tokens) in [
            (vec![span(0, 3, 1), span(2, 2, 1)], 5),
            (vec![span(3, 3, 1)], 5),
            (vec![span(usize::MAX, 1, 1)], 5),
            (vec![MediaSpan { tokens: 0, ..span(1, 1, 1) }], 5),
            (vec![MediaSpan { tokens: 3, ..span(1, 2, 1) }], 5),
            (vec![MediaSpan { rows: Vec::new().into(), ..span(1, 2, 1) }], 5),
            (vec![MediaSpan { rows: vec![0.0; 16].into(), ..span(1, 2, 1) }], 5),
        ] {
            assert!(check(&spans, prompt_tokens, [4; 2], |_| false).is_err(), "{spans:?}");
        }
    }

    #[test]
    fn frames_are_those_of_the_model_s_tower() {
        let frame = |tokens, bytes| {
            let span =
                MediaSpan { rows: Arc::default(), pixels: vec![0; bytes].into(), ..span(1, tokens, 1) };
            [span]
        };
        let own = |span: &MediaSpan| (span.tokens, span.pixels.len()) == (2, 12);
        assert_eq!(check(&frame(2, 12), 5, [4; 2], own), Ok(()));
        assert!(check(&frame(2, 11), 5, [4; 2], own).is_err());
        assert!(check(&frame(2, 12), 5, [4; 2], |_| false).is_err(), "it has none");
        assert!(check(&frame(2, 12), 2, [4; 2], own).is_err(), "beyond the prompt");
        let wide = MediaSpan { rows: vec![0.0; 24].into(), ..span(1, 2, 1) };
        assert_eq!(check(std::slice::from_ref(&wide), 5, [4, 12], own), Ok(()), "with what layers add");
        assert!(check(&[wide], 5, [4; 2], own).is_err());
        let plane = MediaSpan { in_plane: true, grid: [2, 2], ..span(1, 2, 1) };
        assert!(check(&[plane], 5, [4; 2], own).is_err(), "another number of rows and columns");
    }

    #[test]
    fn a_picture_in_a_plane_takes_the_places_of_its_longer_side() {
        let plane = |first, grid: [u32; 2]| MediaSpan {
            grid,
            in_plane: true,
            ..span(first, (grid[0] * grid[1]) as usize, 1)
        };
        let spans = [plane(2, [2, 3]), plane(9, [3, 1])];
        let of = |tokens: Range<usize>| tokens.map(|token| position(&spans, token)).collect::<Vec<_>>();
        assert_eq!(of(0..2), [[0; 3], [1; 3]]);
        assert_eq!(of(2..8), [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]]);
        assert_eq!(of(8..9), [[5; 3]]);
        assert_eq!(of(9..12), [[6, 6, 6], [6, 7, 6], [6, 8, 6]]);
        assert_eq!(of(12..14), [[9; 3], [10; 3]]);
        assert_eq!(position(&[span(0, 5, 1)], 7), [7; 3], "in line every token has its place");
    }

    #[test]
    fn what_sees_itself_is_not_cut() {
        let spans = [MediaSpan { mutual: true, ..span(4, 6, 1) }, span(12, 3, 2)];
        let rows = |computed, rows| whole_rows(&spans, computed, rows);
        assert_eq!([rows(0, 4), rows(0, 5), rows(0, 9), rows(0, 10)], [4, 4, 4, 10]);
        assert_eq!([rows(4, 3), rows(4, 6), rows(6, 2), rows(6, 4)], [0, 6, 0, 4], "or is waited for");
        assert_eq!(rows(11, 2), 2, "others are");
        let before = Batch { positions: vec![0, 1, 2], ..Batch::default() };
        let mut batch = before.clone();
        see(&spans, SequenceRows { first: 3, tokens: &(2..12) }, &mut batch);
        assert_eq!(batch.sees, [1, 2, 3, 3, 4, 10, 10, 10, 10, 10, 10, 11, 12]);
        let mut batch = before;
        see(&spans, SequenceRows { first: 3, tokens: &(10..12) }, &mut batch);
        assert!(batch.sees.is_empty(), "nobody sees what is behind");
    }

    #[test]
    fn tokens_see_the_pictures_right_before_them() {
        // Pictures with 3 and 2 tiles of 4 rows, then one with 1 tile.
        let of = |first, seen| MediaSpan { remembered: [seen, 4], ..span(first, 1, 1) };
        let spans = [of(2, 3), of(3, 2), of(7, 1)];
        let seen = |token| seen_of_memory(&spans, token);
        assert_eq!([seen(0), seen(1)], [(0..12, false), (0..12, false)], "before all");
        assert_eq!([seen(2), seen(3), seen(6)], [(0..3, true), (0..5, true), (0..5, true)]);
        assert_eq!([seen(7), seen(100)], [(5..6, true), (5..6, true)]);
        let mut batch = Batch { positions: vec![0; 3], ..Batch::default() };
        let mut seeing = Vec::new();
        remember(&spans, SequenceRows { first: 3, tokens: &(1..9) }, &[9, 4], &mut batch, &mut seeing);
        let runs: Vec<_> = batch.memories.iter().map(|m| (m.row_first, m.rows, m.first, m.context)).collect();
        assert_eq!(runs, [(3, 1, 0, 12), (4, 1, 0, 3), (5, 4, 0, 5), (9, 2, 5, 6)]);
        assert_eq!((seeing.iter().filter(|&&sees| sees).count(), seeing.len()), (7, 11));
        let rows = |numbers: [f32; 5]| Arc::from(numbers);
        let spans = [
            MediaSpan { rows: rows([0.0, 1.0, 2.0, 3.0, 4.0]), ..of(2, 3) },
            MediaSpan { rows: rows([0.0, 5.0, 6.0, 7.0, 8.0]), ..of(3, 1) },
        ];
        assert_eq!(memory_of(&spans, 1), [1.0, 2.0, 3.0, 5.0, 4.0, 6.0, 7.0, 8.0]);
    }

    #[test]
    fn lines_end_as_their_family_has_it() {
        let tokens = |ends: LineEnds| ends.tokens([3, 4]);
        use LineEnds::{Each, Last, None, Tokens};
        assert_eq!([None, Last, Each, Tokens].map(tokens), [12, 13, 15, 15]);
        let lines = MediaSpan { grid: [2, 3], ends: Tokens, ..span(5, 8, 1) };
        let own: Vec<usize> = (5..13).filter(|&token| lines.is_token(token)).collect();
        assert_eq!(own, [8, 12]);
    }

    #[test]
    fn a_block_s_salt_is_of_its_part_of_the_media() {
        let spans = [span(10, 30, 7)];
        assert!(salt_of_block(&spans, 3).is_empty());
        let salts: Vec<Vec<u8>> = (0..3).map(|block| salt_of_block(&spans, block)).collect();
        assert!(salts[0] != salts[1] && salts[1] != salts[2] && salts.iter().all(|salt| !salt.is_empty()));
        assert_ne!(salt_of_block(&[span(10, 30, 8)], 1), salts[1]);
        assert_ne!(salt_of_block(&[span(11, 30, 7)], 1), salts[1], "another part of the same media");
    }
}
