//! What an engine knows of a tower: that a frame goes through it a piece at a time, how large pieces are, and what they took.

use hanzo_engine_kernels::KernelError;

use crate::media::MediaSpan;

/// How far a frame goes at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Piece {
    /// So many layers.
    Layers(usize),
    /// As far as about so many products take it.
    Products {
        /// Millions of them, multiplied and added; where the device cannot stop within a layer, it is one layer in any case.
        millions: f64,
        /// As how many of a matrix one of attention counts.
        attention: f64,
    },
}

/// What products are told in.
pub(super) const MILLION: f64 = 1e6;

/// Products, in millions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Products {
    /// With weights.
    pub matrix: f64,
    /// Of queries with keys, and of what they find with values.
    pub attention: f64,
}

impl Products {
    /// As so many with weights, where one of attention counts as `attention` of them.
    pub(crate) fn weighed(self, attention: f64) -> f64 {
        self.matrix + self.attention * attention
    }
}

impl std::ops::AddAssign for Products {
    fn add_assign(&mut self, more: Products) {
        self.matrix += more.matrix;
        self.attention += more.attention;
    }
}

/// What makes rows of frames, a piece at a time, on whatever device.
pub trait Towers: Send {
    /// Layers of the way of a frame.
    fn layers(&self) -> usize;

    /// Bytes of rows that are kept for prompts with the same pictures: those of the largest frame at least.
    fn kept_bytes(&self) -> usize;

    /// Begins with a frame that is to be seen; one that was under way is forgotten.
    ///
    /// # Errors
    /// The device's.
    fn begin(&mut self, span: &MediaSpan) -> Result<(), KernelError>;

    /// Goes a piece further. The frame's rows where that was its end, `(rows, numbers of a row)`.
    ///
    /// Of a tower whose frames become vectors it is that.
    ///
    /// # Errors
    /// The device's.
    fn advance(&mut self, piece: Piece) -> Result<Option<Vec<f32>>, KernelError>;

    /// What the last piece took, where that was counted.
    fn spent(&self) -> Option<Products> {
        None
    }
}

impl Piece {
    /// Layers, for who goes by whole ones.
    pub(crate) fn layers(self) -> usize {
        match self {
            Piece::Layers(layers) => layers,
            Piece::Products { .. } => 1,
        }
    }
}
