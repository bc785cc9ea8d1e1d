//! Products of overlapping rows, such as those of a convolution along time, in place: nothing is copied.

use super::{CpuBackend, CpuMatrix, CpuVector, Groups, Product, Scratch};
use crate::cpu::activations::Input;

impl CpuBackend {
    /// `out[r * out_step + i] = matrix[i] · x[r * x_step..][..matrix.cols()] + bias[i]` for every row `r`, in a
    /// separate turn between the steps of other models. Of the matrices, all of one shape, matrix `g` applies to the
    /// rows from `firsts[g]` to `firsts[g + 1]`, and each has separate biases.
    ///
    /// # Panics
    /// Inside a step, before `reserve`, if `x` or `out` does not hold the rows, and if a matrix is quantised and there
    /// are more rows than the step limits have.
    pub fn windows(
        &mut self,
        matrices: &[CpuMatrix],
        bias: Option<&CpuVector>,
        (x, x_step): (&[f32], usize),
        firsts: &[u32],
        out: (&mut [f32], usize),
    ) {
        assert!(self.turn.is_none(), "windows inside a step");
        let Some(scratch) = &mut self.scratch else { panic!("windows before reserve") };
        assert_eq!(firsts.len(), matrices.len() + 1, "rows of every matrix");
        let (rows, cols) = (firsts[matrices.len()] as usize, matrices.first().map_or(0, CpuMatrix::cols));
        assert!(firsts[0] == 0 && firsts.is_sorted(), "rows follow each other");
        assert!(rows == 0 || x.len() >= (rows - 1) * x_step + cols, "x holds every window");
        let Scratch { activations, plan, panels, .. } = scratch;
        let mut turn = self.pool.turn();
        let mut product = Product { tier: self.tier, turn: &mut turn, activations, plan, scratch: panels };
        let input = Input { x: x.as_ptr(), rows, step: Some(x_step), places: None };
        // SAFETY: `x` holds the rows (asserted).
        unsafe {
            product.spread(Groups { matrices, firsts }, bias.map(|bias| &bias.values[..]), input, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cpu::{ThreadPool, Tier};
    use crate::{Backend as _, DType, HeadShape, MatrixShape, MatrixSource, StepLimits};

    /// Numbers between -1 and 1.
    fn numbers(count: usize, mut seed: u32) -> Vec<f32> {
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn windows_are_rows_wherever_they_begin() {
        for (tier, &(outputs, inputs, x_step, out_step)) in Tier::available().flat_map(|tier| {
            [(1, 3, 1, 1), (20, 96, 32, 20), (40, 64, 64, 100), (17, 48, 96, 17)]
                .iter()
                .map(move |case| (tier, case))
        }) {
            let mut backend = CpuBackend::new(Arc::new(ThreadPool::new(2)), tier);
            let heads = HeadShape { heads: 1, kv_heads: 1, head_dim: 64 };
            let limits = StepLimits {
                rows: 8,
                sequences: 1,
                logit_rows: 1,
                context: 8,
                width: 128,
                vocab: 16,
                heads,
                experts: 0,
                experts_used: 0,
                experts_width: 0,
                kv_groups: 1,
                heads_matmul_width: 0,
            };
            backend.reserve(&limits).unwrap();
            let (weight, bias) = (numbers(2 * outputs * inputs, 1), numbers(2 * outputs, 2));
            let shape = MatrixShape { rows: outputs, cols: inputs, dtype: DType::F32 };
            let pack = |numbers: &[f32]| {
                let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                backend.pack(&[MatrixSource { name: "w", shape, bytes: &bytes }]).unwrap()
            };
            let matrices: Vec<CpuMatrix> = weight.chunks_exact(outputs * inputs).map(pack).collect();
            let addends = backend.vector(&bias).unwrap();
            for rows in [0, 1, 9, 700] {
                let x = numbers(rows.max(1) * x_step + inputs, 3);
                let mut out = vec![7.0; rows * out_step + outputs];
                let first = rows / 3;
                let firsts = [0, first as u32, rows as u32];
                backend.windows(&matrices, Some(&addends), (&x, x_step), &firsts, (&mut out, out_step));
                let mut right = vec![7.0_f64; out.len()];
                for row in 0..rows {
                    for output in 0..outputs {
                        let of = if row < first { output } else { outputs + output };
                        let window = x[row * x_step..][..inputs].iter().zip(&weight[of * inputs..]);
                        let sum: f64 = window.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                        right[row * out_step + output] = sum + f64::from(bias[of]);
                    }
                }
                for (at, (out, right)) in out.iter().zip(&right).enumerate() {
                    assert!(
                        (f64::from(*out) - right).abs() < 1e-4,
                        "{tier}, {rows} rows, {at}: {out} {right}"
                    );
                }
            }
        }
    }
}
