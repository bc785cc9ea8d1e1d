//! Modules after pooling: sentence-transformers' `Dense`, `LayerNorm` and `Normalize`. They are small and run once
//! per input, so they run on the host, with the layers that classifiers use.

use crate::head::{HeadLayer, HeadNorm};

/// Step on a pooled vector.
#[derive(Clone, Debug, PartialEq)]
pub enum Module {
    /// Linear layer with an activation function.
    Dense(HeadLayer),
    /// Layer norm.
    LayerNorm(HeadNorm),
    /// Normalisation to length 1.
    Normalize,
}

impl Module {
    /// Applies the step to a vector.
    pub fn apply(&self, vector: &mut Vec<f32>) {
        match self {
            Module::Dense(dense) => *vector = dense.apply(vector),
            Module::LayerNorm(norm) => norm.apply(vector),
            Module::Normalize => normalize(vector),
        }
    }
}

/// Normalises to length 1; zeros stay zeros, as in torch's `normalize`.
pub(crate) fn normalize(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let length = square.sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_of_zeros_has_no_direction() {
        let mut zeros = vec![0.0; 3];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
        let mut vector = vec![3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
    }
}
