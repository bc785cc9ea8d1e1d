//! Pooling of a sequence's hidden states to one vector, with the modes of sentence-transformers' `Pooling`. Sums
//! run over the rows in order, in f32, so a vector does not depend on how the sequence was cut into steps.

/// Pooling mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first row.
    Cls,
    /// The last row.
    Last,
    /// The mean of all rows.
    Mean,
    /// Sum of the rows divided by the square root of their number.
    MeanSqrtLen,
    /// Maximum of each element.
    Max,
    /// The mean of all rows, weighted by position from 1.
    WeightedMean,
}

impl Pooling {
    /// All modes, in the order in which vectors of several modes are concatenated.
    pub const ALL: [Pooling; 6] = [
        Pooling::Cls,
        Pooling::Max,
        Pooling::Mean,
        Pooling::MeanSqrtLen,
        Pooling::WeightedMean,
        Pooling::Last,
    ];

    /// Name in sentence-transformers' files.
    pub const fn name(self) -> &'static str {
        match self {
            Pooling::Cls => "cls",
            Pooling::Max => "max",
            Pooling::Mean => "mean",
            Pooling::MeanSqrtLen => "mean_sqrt_len_tokens",
            Pooling::WeightedMean => "weightedmean",
            Pooling::Last => "lasttoken",
        }
    }

    /// Looks up a mode by its name.
    pub fn by_name(name: &str) -> Option<Pooling> {
        Pooling::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// Pooling in progress, over the rows so far.
#[derive(Clone, Debug)]
pub struct Pooler {
    /// Rows before this one do not count: they belong to the prompt.
    first: usize,
    seen: usize,
    counted: usize,
    parts: Vec<(Pooling, Vec<f32>)>, // each (hidden)
    weights: f32,
}

impl Pooler {
    /// Starts pooling of rows with `hidden` elements; there will be one vector per mode.
    pub fn new(modes: &[Pooling], hidden: usize, first: usize) -> Pooler {
        let part = |&mode: &Pooling| {
            let start = if mode == Pooling::Max { f32::NEG_INFINITY } else { 0.0 };
            (mode, vec![start; hidden])
        };
        Pooler { first, seen: 0, counted: 0, parts: modes.iter().map(part).collect(), weights: 0.0 }
    }

    /// Adds the next rows, `(n, hidden)`.
    pub fn push(&mut self, rows: &[f32], hidden: usize) {
        for row in rows.chunks_exact(hidden) {
            let position = self.seen;
            self.seen += 1;
            if position < self.first {
                continue;
            }
            let (is_first, weight) = (self.counted == 0, (position + 1) as f32);
            self.counted += 1;
            self.weights += weight;
            for (mode, part) in &mut self.parts {
                match mode {
                    Pooling::Cls if is_first => part.copy_from_slice(row),
                    Pooling::Cls => {}
                    Pooling::Last => part.copy_from_slice(row),
                    Pooling::Mean | Pooling::MeanSqrtLen => {
                        part.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                    }
                    Pooling::WeightedMean => {
                        part.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x);
                    }
                    Pooling::Max => {
                        part.iter_mut().zip(row).for_each(|(most, x)| *most = pick_max(*most, *x))
                    }
                }
            }
        }
    }

    /// Concatenated vectors of all modes; zeros if no row counted.
    pub fn finish(self) -> Vec<f32> {
        let count = self.counted as f32;
        let mut joined = Vec::with_capacity(self.parts.iter().map(|(_, part)| part.len()).sum());
        for (mode, part) in self.parts {
            let divisor = match mode {
                _ if self.counted == 0 => f32::INFINITY,
                Pooling::Cls | Pooling::Last | Pooling::Max => 1.0,
                Pooling::Mean => count,
                Pooling::MeanSqrtLen => count.sqrt(),
                Pooling::WeightedMean => self.weights,
            };
            match mode {
                Pooling::Max if self.counted == 0 => joined.extend(part.iter().map(|_| 0.0)),
                _ => joined.extend(part.iter().map(|sum| sum / divisor)),
            }
        }
        joined
    }
}

/// Maximum of two numbers. NaN is kept, so that it is noticed later.
fn pick_max(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}
