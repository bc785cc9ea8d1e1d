//! Conversion of a pixel's byte to the tower's input value.

use serde::{Deserialize, Serialize};

/// Input value for each byte of each colour: `(value * factor - mean) / deviation`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PixelScale {
    factor: f64,
    mean: [f32; 3],
    deviation: [f32; 3],
}

impl PixelScale {
    /// Creates a scale from factor, mean and deviation.
    pub fn new(factor: f64, mean: [f32; 3], deviation: [f32; 3]) -> Self {
        Self { factor, mean, deviation }
    }

    /// Table of all values, by colour and byte.
    pub fn table(&self) -> [[f32; 256]; 3] {
        std::array::from_fn(|color| {
            std::array::from_fn(|value| {
                let value = (value as f64 * self.factor) as f32;
                (value - self.mean[color]) / self.deviation[color]
            })
        })
    }
}
