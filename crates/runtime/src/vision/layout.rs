//! Order of a frame's patches in a tower, and their positions. Patches of a square are consecutive. Squares come
//! row by row or, with windowed layers, window by window.

use std::ops::Range;

use hanzo_engine_ops::{Batch, RowSource, SequenceSpan};

use super::spec::{COLORS, LearnedPositions, TowerSpec};

/// Rows that a frame becomes in the text model, arranged in two dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Number of lines.
    pub(crate) rows: usize,
    /// Number of columns.
    pub(crate) cols: usize,
}

impl Grid {
    /// Total number.
    pub(crate) fn count(self) -> usize {
        self.rows * self.cols
    }
}

/// Patches of a frame in the tower's order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    /// Index of each square among the frame's rows.
    pub(super) squares: Vec<usize>,
    /// Row and column of each patch.
    places: Vec<[usize; 2]>,
    /// Rows and columns of the frame in patches.
    size: [usize; 2],
    /// Number of squares in each window, or in each part of a frame that goes through the layers separately.
    windows: Vec<usize>,
    /// Number of class tokens before the patches of each part.
    first: usize,
}

impl Layout {
    /// Computes the layout of a frame.
    pub(crate) fn new(spec: &TowerSpec, grid: Grid) -> Layout {
        let Grid { rows, cols } = grid;
        let joined = spec.joined;
        let size = [rows * joined, cols * joined];
        let mut layout = Layout { size, first: usize::from(spec.first), ..Layout::default() };
        let side = match &spec.windows {
            Some(windows) => windows.side,
            None if spec.frame.is_some() => spec.one_square().rows,
            None => usize::MAX,
        };
        for top in (0..rows).step_by(side) {
            for left in (0..cols).step_by(side) {
                let within = |first: usize, all: usize| first..all.min(first.saturating_add(side));
                let (down, along) = (within(top, rows), within(left, cols));
                layout.windows.push(down.len() * along.len());
                let squares = down.flat_map(|row| along.clone().map(move |col| (row, col)));
                for (row, col) in squares {
                    layout.squares.push(row * cols + col);
                    let patches = (0..joined)
                        .flat_map(|y| (0..joined).map(move |x| [row * joined + y, col * joined + x]));
                    layout.places.extend(patches);
                }
            }
        }
        layout
    }

    /// Batch over the patches, which attend to all others, or only to those in their window.
    pub(super) fn batch(&self, spec: &TowerSpec, windowed: bool) -> Batch {
        let apart = windowed || spec.frame.is_some();
        let lengths = match apart {
            true => self.parts(spec).map(|patches| self.first + patches).collect(),
            false => vec![self.places.len()],
        };
        let axes = match spec.layers.ropes.is_empty() {
            true => Vec::new(),
            false => self.places.iter().map(|&[row, col]| [0, row as u32, col as u32]).collect(),
        };
        Batch { axes, ..batch_of(&lengths) }
    }

    /// Number of patches in each window, or in each part of the frame.
    fn parts(&self, spec: &TowerSpec) -> impl Iterator<Item = usize> {
        let of_square = spec.square_patches();
        self.windows.iter().map(move |squares| squares * of_square)
    }

    /// Removes class tokens from the layers' output, leaving `(patches, hidden)`.
    pub(super) fn of_patches(&self, spec: &TowerSpec, mut numbers: Vec<f32>) -> Vec<f32> {
        let hidden = spec.layers.hidden;
        if self.first == 0 {
            return numbers;
        }
        let (mut from, mut to) = (0, 0);
        for patches in self.parts(spec) {
            from += self.first * hidden;
            numbers.copy_within(from..from + patches * hidden, to);
            (from, to) = (from + patches * hidden, to + patches * hidden);
        }
        numbers.truncate(to);
        numbers
    }

    /// Batch over the rows.
    pub(super) fn rows_batch(&self) -> Batch {
        batch_of(&[self.squares.len()])
    }

    /// Number of patches of the frame.
    pub(super) fn patches(&self) -> usize {
        self.places.len()
    }

    /// Number of rows of the layers, class tokens included.
    pub(super) fn rows(&self) -> usize {
        self.places.len() + self.first * self.windows.len()
    }

    /// Patches of each part with a class token; all parts of such a frame are alike.
    fn of_part(&self, spec: &TowerSpec) -> usize {
        self.parts(spec).next().unwrap_or(1)
    }

    /// Rows of the layers for some patches.
    pub(super) fn rows_of(&self, spec: &TowerSpec, patches: Range<usize>) -> impl Iterator<Item = usize> {
        let (first, part) = (self.first, self.of_part(spec));
        patches.map(move |patch| if first == 0 { patch } else { patch + (patch / part + 1) * first })
    }

    /// Row and column of the patch at a row of the layers; `None` for a class token.
    fn place_of(&self, row: usize, part: usize) -> Option<[usize; 2]> {
        if self.first == 0 {
            return Some(self.places[row]);
        }
        let each = self.first + part;
        (row % each).checked_sub(self.first).map(|patch| self.places[row / each * part + patch])
    }

    /// Input values for some rows of the layers: for each patch its colours, row by row; zeros for class tokens.
    pub(super) fn patches_of(
        &self,
        spec: &TowerSpec,
        scale: &[[f32; 256]; COLORS],
        frame: &[u8],
        rows: Range<usize>,
    ) -> Vec<f32> {
        let (patch, line) = (spec.patch, self.size[1] * spec.patch * COLORS);
        let part = self.of_part(spec);
        let mut numbers = Vec::with_capacity(rows.len() * spec.patch_width());
        for row in rows {
            let Some([row, col]) = self.place_of(row, part) else {
                numbers.extend(std::iter::repeat_n(0.0, spec.patch_width()));
                continue;
            };
            let (top, left) = (row * patch, col * patch);
            for (color, scale) in scale.iter().enumerate() {
                for row in top..top + patch {
                    let pixels = &frame[row * line + left * COLORS..][..patch * COLORS];
                    let values = pixels.iter().skip(color).step_by(COLORS);
                    numbers.extend(values.map(|&value| scale[usize::from(value)]));
                }
            }
        }
        numbers
    }

    /// Indices of learned positions for some patches: those with the same relative place, as computed by the
    /// reference's `bucketize` in single precision.
    pub(super) fn nearest(&self, learned: LearnedPositions, patches: Range<usize>) -> Vec<usize> {
        let step = 1.0 / learned.side as f64;
        let bounds: Vec<f32> =
            (1..learned.side).map(|bound| (step + (bound - 1) as f64 * step) as f32).collect();
        let along = |index: usize, all: usize| {
            let share = (index as f32 * (1.0 / all as f32)).min((1.0 - 1e-6) as f32);
            bounds.partition_point(|&bound| bound <= share)
        };
        let [rows, cols] = self.size;
        let places = self.places[patches].iter();
        places.map(|&[row, col]| along(row, rows) * learned.side + along(col, cols)).collect()
    }

    /// Position embeddings of some patches, `(patches, hidden)`, interpolated linearly. The table's corners lie at
    /// the frame's corners.
    pub(super) fn between(
        &self,
        learned: LearnedPositions,
        table: &[f32],
        hidden: usize,
        patches: Range<usize>,
    ) -> Vec<f32> {
        let side = learned.side;
        // The two neighbouring rows or columns, and their weights.
        let along = |index: usize, all: usize| {
            let place = (index * (side - 1)) as f32 / (all - 1).max(1) as f32;
            let first = place.floor();
            let share = place - first;
            let first = (first as usize).min(side - 1);
            ([first, (first + 1).min(side - 1)], [1.0 - share, share])
        };
        let mut numbers = vec![0.0; patches.len() * hidden];
        let [rows, cols] = self.size;
        for (&[row, col], out) in self.places[patches].iter().zip(numbers.chunks_exact_mut(hidden)) {
            let ((down, down_shares), (right, right_shares)) = (along(row, rows), along(col, cols));
            for (row, by_row) in down.into_iter().zip(down_shares) {
                for (col, by_col) in right.into_iter().zip(right_shares) {
                    let (from, share) = (&table[(row * side + col) * hidden..][..hidden], by_row * by_col);
                    out.iter_mut().zip(from).for_each(|(out, number)| *out += share * number);
                }
            }
        }
        numbers
    }
}

/// Batch of whole sequences of these lengths with given embeddings; positions start again in each.
pub(crate) fn batch_of(lengths: &[usize]) -> Batch {
    let rows: usize = lengths.iter().sum();
    let mut row_first = 0;
    let sequences = lengths.iter().map(|&length| {
        let span = SequenceSpan { row_first, rows: length as u32, context: length as u32, table_first: 0 };
        row_first += length as u32;
        span
    });
    Batch {
        sequences: sequences.collect(),
        sources: vec![RowSource::Embedding; rows],
        positions: lengths.iter().flat_map(|&length| 0..length as u32).collect(),
        ..Batch::default()
    }
}
