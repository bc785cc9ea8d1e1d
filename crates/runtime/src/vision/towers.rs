//! Interface of a tower for the engine: frames run in pieces, with sizes and costs.

use hanzo_engine_ops::KernelError;

use crate::media::MediaSpan;

/// Size of a piece.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Piece {
    /// Number of layers.
    Layers(usize),
    /// Budget in products.
    Products {
        /// Millions of multiply-add products. If the device cannot stop within a layer, a piece is at least one
        /// layer.
        millions: f64,
        /// Cost of a product of attention, relative to one with weights.
        attention: f64,
    },
}

/// Unit for products.
pub(super) const MILLION: f64 = 1e6;

/// Number of products, in millions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Products {
    /// Products with weights.
    pub matrix: f64,
    /// Products in attention: of queries with keys, and of weights with values.
    pub attention: f64,
}

impl Products {
    /// Total, with `attention` as the cost of a product of attention relative to one with weights.
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

/// Tower that computes rows of frames in pieces, on any device.
pub trait Towers: Send {
    /// Number of layers.
    fn layers(&self) -> usize;

    /// Bytes for cached rows, reused by prompts with the same media: at least those of the largest frame.
    fn kept_bytes(&self) -> usize;

    /// Starts a frame; discards one in progress.
    ///
    /// # Errors
    /// The device's.
    fn begin(&mut self, span: &MediaSpan) -> Result<(), KernelError>;

    /// Computes a piece. At the frame's end returns its rows, `(rows, elements of a row)`, or its vector, for a
    /// tower that pools.
    ///
    /// # Errors
    /// The device's.
    fn advance(&mut self, piece: Piece) -> Result<Option<Vec<f32>>, KernelError>;

    /// Cost of the last piece, if counted.
    fn spent(&self) -> Option<Products> {
        None
    }
}

impl Piece {
    /// Number of layers, for towers that run whole ones.
    pub(crate) fn layers(self) -> usize {
        match self {
            Piece::Layers(layers) => layers,
            Piece::Products { .. } => 1,
        }
    }
}
