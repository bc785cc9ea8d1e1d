//! From a byte of a pixel to the number that a tower reads.

use serde::{Deserialize, Serialize};

/// A number for each value of each of the three colours: `(value * factor - mean) / deviation`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PixelScale {
    factor: f64,
    mean: [f32; 3],
    deviation: [f32; 3],
}

impl PixelScale {
    /// One that multiplies, subtracts and divides.
    pub fn new(factor: f64, mean: [f32; 3], deviation: [f32; 3]) -> Self {
        Self { factor, mean, deviation }
    }

    /// All of them, by colour and value.
    pub fn table(&self) -> [[f32; 256]; 3] {
        std::array::from_fn(|color| {
            std::array::from_fn(|value| {
                let value = (value as f64 * self.factor) as f32;
                (value - self.mean[color]) / self.deviation[color]
            })
        })
    }
}
